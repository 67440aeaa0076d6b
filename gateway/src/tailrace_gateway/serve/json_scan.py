"""A strict scanner of JSON (RFC 8259) that keeps every value's own text. Pure.

Rejects (`MalformedJson`) what is not JSON, lone surrogates, anything behind the text, and nesting deeper than `DEPTH`. The Rust twin is
`dataplane-rs/src/params/json.rs`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

DEPTH = 128
"""Arrays and objects inside each other, of one value."""


class MalformedJson(ValueError):
    """Not the JSON that was wanted."""


class Kind(Enum):
    """What a value is."""

    NULL = auto()
    BOOLEAN = auto()
    NUMBER = auto()
    STRING = auto()
    ARRAY = auto()
    OBJECT = auto()


@dataclass(frozen=True, slots=True)
class Item:
    """One value as it stands: its own text without blanks around; `nul` if a `\\u0000` is anywhere in it."""

    kind: Kind
    text: str
    nul: bool


_BLANKS = re.compile(r"[ \t\n\r]*")
# A high surrogate is followed by a low one, and a low one follows a high one. Possessive, so that it stays linear.
_STRING = re.compile(
    r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CeEfF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    r'|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*+"'
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"null": Kind.NULL, "true": Kind.BOOLEAN, "false": Kind.BOOLEAN}
_WORD = re.compile("null|true|false")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|(.))")
_PLAIN = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def scan(text: str) -> Item:
    """One JSON text that holds a single value."""
    at = _blanks(text, 0)
    item, at = _value(text, at)
    _end(text, at)
    return item


def members(body: str) -> Iterator[tuple[str, Item]]:
    """Every member of the object that `body` is, in order. All of the body is checked only when the iterator ends."""
    at = _blanks(body, _expect(body, _blanks(body, 0), "{"))
    if body.startswith("}", at):
        _end(body, at + 1)
        return
    while True:
        name, at = _string(body, at)
        at = _blanks(body, _expect(body, _blanks(body, at), ":"))
        item, at = _value(body, at)
        yield own_text(name), item
        at = _blanks(body, at)
        if body.startswith("}", at):
            _end(body, at + 1)
            return
        at = _blanks(body, _expect(body, at, ","))


def elements(item: Item) -> Iterator[Item]:
    """Every element of the array that `item` is."""
    at = _blanks(item.text, 1)
    if item.text.startswith("]", at):
        return
    while True:
        element, at = _value(item.text, at)
        yield element
        at = _blanks(item.text, at)
        if item.text.startswith("]", at):
            return
        at = _blanks(item.text, _expect(item.text, at, ","))


def own_text(string: str) -> str:
    """The text that a scanned string (with its quotes) stands for."""
    inside = string[1:-1]
    return _ESCAPE.sub(_unescape, inside) if "\\" in inside else inside


def _unescape(match: re.Match[str]) -> str:
    high, low, plain = match.groups()
    if plain is not None:
        return _PLAIN.get(plain, plain)
    code = int(high, 16)
    if not 0xD800 <= code < 0xDC00:
        # What looked like a low surrogate behind it cannot be: the scanner would have refused it.
        return chr(code)
    return chr(0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00)


def _blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, wanted: str) -> int:
    if not text.startswith(wanted, at):
        raise MalformedJson
    return at + 1


def _end(text: str, at: int) -> None:
    if _blanks(text, at) != len(text):
        raise MalformedJson


def _string(text: str, at: int) -> tuple[str, int]:
    match = _STRING.match(text, at)
    if match is None:
        raise MalformedJson
    return match[0], match.end()


def _has_nul(string: str) -> bool:
    return "\\u0000" in string and "\0" in own_text(string)


def _value(text: str, at: int) -> tuple[Item, int]:
    """The value at `at` with all that is in it, and where it ends. No recursion."""
    start, first, nul = at, None, False
    open_containers: list[str] = []
    while True:
        # A value begins here.
        begins = text[at : at + 1]
        if begins == '"':
            string, at = _string(text, at)
            nul = nul or _has_nul(string)
            kind = Kind.STRING
        elif begins in ("[", "{") and begins:
            if len(open_containers) == DEPTH:
                raise MalformedJson
            closing = "]" if begins == "[" else "}"
            kind = Kind.ARRAY if begins == "[" else Kind.OBJECT
            first = first or kind
            at = _blanks(text, at + 1)
            if not text.startswith(closing, at):
                open_containers.append(closing)
                if closing == "}":
                    at, nul = _name(text, at, nul)
                continue
            at += 1
        else:
            kind, at = _atom(text, at)
        first = first or kind
        # A value ended here: close what ends with it.
        while True:
            if not open_containers:
                return Item(first, text[start:at], nul), at
            at = _blanks(text, at)
            if text.startswith(",", at):
                at = _blanks(text, at + 1)
                if open_containers[-1] == "}":
                    at, nul = _name(text, at, nul)
                break
            at = _expect(text, at, open_containers.pop())


def _name(text: str, at: int, nul: bool) -> tuple[int, bool]:
    name, at = _string(text, at)
    at = _blanks(text, _expect(text, _blanks(text, at), ":"))
    return at, nul or _has_nul(name)


def _atom(text: str, at: int) -> tuple[Kind, int]:
    match = _NUMBER.match(text, at)
    if match is not None:
        return Kind.NUMBER, match.end()
    match = _WORD.match(text, at)
    if match is None:
        raise MalformedJson
    return _WORDS[match[0]], match.end()
