"""What the command line prints: text for people or JSON for programs, colours only on a terminal. IO: standard output and error."""

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from pydantic import JsonValue

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


def may_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream is a terminal that shows colours and nobody asked for none (NO_COLOR)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


class Console:
    """Standard output and error of one command. `json`: results as JSON on standard output, everything else on standard error."""

    def __init__(self, *, json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json = json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._progress = False

    def line(self, text: str = "") -> None:
        """A line of the result."""
        self._clear()
        self._out.write(text + "\n")
        self._out.flush()

    def note(self, text: str) -> None:
        """A line beside the result."""
        self._clear()
        self._err.write(text + "\n")
        self._err.flush()

    def value(self, value: JsonValue) -> None:
        """The result as JSON."""
        self._clear()
        self._out.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        self._out.flush()

    def progress(self, text: str) -> None:
        """What is being done, on one line that the next output replaces. Only on a terminal."""
        if self._err.isatty():
            self._clear()
            self._err.write(text)
            self._err.flush()
            self._progress = True

    def paint(self, text: str, *codes: str) -> str:
        """Coloured for standard output, if it may be."""
        return f"\033[{';'.join(codes)}m{text}\033[0m" if may_colour(self._out) else text

    def paint_note(self, text: str, *codes: str) -> str:
        """Coloured for standard error, if it may be."""
        return f"\033[{';'.join(codes)}m{text}\033[0m" if may_colour(self._err) else text

    def _clear(self) -> None:
        if self._progress:
            self._err.write("\r\033[K")
            self._progress = False


def columns(rows: list[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Rows as aligned text."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    return [indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
