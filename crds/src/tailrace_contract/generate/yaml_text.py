"""JSON values as YAML text: block style, strings quoted as JSON where needed, long texts folded by nothing. Pure; no dependency."""

import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/.$^(][-A-Za-z0-9_./ (),%|$^+*\[\]]*[A-Za-z0-9).$]|[A-Za-z]")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "none", "~"])


def dump(value: Any) -> str:
    """The document, with a line end."""
    return "\n".join(_lines(value, 0)) + "\n"


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and " #" not in text:
        return text
    return "'" + text.replace("'", "''") + "'"


def _lines(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(value, dict):
        if not value:
            return [pad + "{}"]
        return [line for key, each in value.items() for line in _entry(pad + _scalar(key) + ":", each, depth + 1)]
    if isinstance(value, list | tuple):
        if not value:
            return [pad + "[]"]
        lines: list[str] = []
        for each in value:
            if isinstance(each, dict | list) and each:
                inner = _lines(each, depth + 1)  # A list in a list begins on the line of its dash, too.
                lines += [pad + "- " + inner[0].lstrip(), *inner[1:]]
            else:
                lines.append(pad + "- " + _leaf(each))
        return lines
    return [pad + _scalar(value)]


def _entry(head: str, value: Any, depth: int) -> list[str]:
    if isinstance(value, dict) and value:
        return [head, *_lines(value, depth)]
    if isinstance(value, list | tuple) and value:
        return [head, *_lines(value, depth - 1)]
    return [f"{head} {_leaf(value)}"]


def _leaf(value: Any) -> str:
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return _scalar(value)
