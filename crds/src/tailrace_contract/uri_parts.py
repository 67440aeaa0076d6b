"""What the URLs of all engines are read with: escapes, parameters given once, words and numbers, and the error that names no value.

May reject: by `UriError`. IO: none.
"""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum

PLAIN = re.compile(r"[A-Za-z0-9_]{1,40}\Z")
"""A parameter's name that may be shown."""
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
HOST = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
"""A name or an IPv4 address."""
PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
BLANK = re.compile(r"[\x00-\x20\x7f]")
_ESCAPE = re.compile(rb"%(?:([0-9A-Fa-f]{2})|)")


class Problem(StrEnum):
    """What is wrong with a parameter."""

    UNKNOWN = "unknown"
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"
    MISSING = "missing"


_TEXT = {
    Problem.UNKNOWN: "unknown parameter",
    Problem.DUPLICATE: "given more than once",
    Problem.MALFORMED: "malformed",
    Problem.MISSING: "missing",
}


class UriError(ValueError):
    """Why a URL was refused. Safe to log and to show: `parameter` is a libpq keyword, or `url` for what belongs to none."""

    def __init__(self, parameter: str, problem: Problem) -> None:
        super().__init__(f"{parameter}: {_TEXT[problem]}")
        self.parameter = parameter
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files of a ConnectionPlan; each stands for the URI's parameter."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def malformed(parameter: str) -> UriError:
    """What is not of its form."""
    return UriError(parameter, Problem.MALFORMED)


def decode(parameter: str, text: str) -> str:
    """Percent-escapes of strict UTF-8, without NUL."""

    def byte(match: re.Match[bytes]) -> bytes:
        if match[1] is None or match[1] == b"00":
            raise malformed(parameter)
        return bytes((int(match[1], 16),))

    try:
        return _ESCAPE.sub(byte, text.encode()).decode()
    except UnicodeError:
        raise malformed(parameter) from None


def is_ipv6(text: str) -> bool:
    """Without a zone."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


class Given:
    """Parameters as they come, each once."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def put(self, name: str, value: str) -> None:
        """Takes one."""
        if name in self.values:
            raise UriError(name, Problem.DUPLICATE)
        self.values[name] = value

    def number(self, name: str, most: int, default: int) -> int:
        """A whole number up to `most`."""
        text = self.values.get(name)
        if text is None:
            return default
        if not _NUMBER.match(text) or int(text) > most:
            raise malformed(name)
        return int(text)

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        """One of the words."""
        text = self.values.get(name, default)
        if text not in words:
            raise malformed(name)
        return text
