"""One value's database text → JSON text (docs/values.md). Pure. Rejects (`Malformed`) what no database should have sent.

PostgreSQL values are the bytes of its text format. SQLite values are what the driver gives by storage class (int, float, str, bytes).
The Rust twin is `dataplane-rs/src/encode/value.rs`; both read `crds/golden/vectors/values.json`.
"""

import base64
import re
import struct
from collections.abc import Callable

from tailrace_contract.plan import ColumnPlan, Encoding
from tailrace_gateway.serve.floats import float_text

Value = bytes | int | float | str
"""A value that is not NULL. `str`, `int` and `float` only on SQLite."""

Encoder = Callable[[Value], str]
"""Value → compact JSON text."""


class Malformed(ValueError):
    """A value, or a row, that cannot be read: the answer is `database_error`, never a guess."""


_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES = {chr(code): f"\\u{code:04x}" for code in range(0x20)} | {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def json_string(text: str) -> str:
    """A JSON string: only `"`, `\\` and what is below 0x20 are escaped."""
    return '"' + _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text) + '"'


def text_of(value: Value) -> str:
    """UTF-8 bytes → text."""
    if not isinstance(value, bytes):
        raise Malformed("not text")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8") from error


def sqlite_text(value: bytes) -> str:
    """`text_factory` of SQLite connections: strict UTF-8."""
    return text_of(value)


_DIGITS = re.compile(r"[0-9.e+-]+")


def _digits(value: Value) -> str:
    text = text_of(value)
    if not _DIGITS.fullmatch(text):
        raise Malformed("not a number")
    return text


def _number(value: Value) -> str:
    if value in (b"NaN", b"Infinity", b"-Infinity"):
        return json_string(text_of(value))
    return _digits(value)


def _boolean(value: Value) -> str:
    if value == b"t":
        return "true"
    if value == b"f":
        return "false"
    raise Malformed("not a boolean")


def _string(value: Value) -> str:
    return json_string(text_of(value))


_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(\+00)?")


def _timestamp(value: Value, zone: bool) -> str:
    text = text_of(value)
    match = _TIMESTAMP.fullmatch(text)
    if match is None or (match[4] is not None) is not zone:
        return json_string(text)
    return f'"{match[1]}T{match[2]}{(match[3] or "").rstrip("0").rstrip(".")}{"Z" if zone else ""}"'


_HEX = re.compile(rb"\\x(?:[0-9a-fA-F]{2})*")


def _bytea(value: Value) -> str:
    if not isinstance(value, bytes) or not _HEX.fullmatch(value):
        raise Malformed("not bytea in hex form")
    return f'"{base64.b64encode(bytes.fromhex(value[2:].decode())).decode()}"'


_OUTSIDE = re.compile(r'"(?:[^"\\]|\\.)*"?|[\n\r]+', re.DOTALL)


def _embedded(value: Value) -> str:
    text = text_of(value)
    if not text:
        raise Malformed("empty JSON")
    if "\n" not in text and "\r" not in text:
        return text
    return _OUTSIDE.sub(lambda match: match[0] if match[0][0] == '"' else "", text)


def _storage(value: Value, quoted: bool) -> str:
    match value:
        case bool():
            raise Malformed("not a SQLite value")
        case int():
            return f'"{value}"' if quoted else str(value)
        case float():
            text = float_text(value)
            return text if text[-1].isdigit() else f'"{text}"'
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise Malformed("not UTF-8") from error
            return json_string(value)
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case _:
            raise Malformed("not a SQLite value")


_SCALARS: dict[Encoding, Encoder] = {
    Encoding.RAW: _digits,
    Encoding.NUMBER: _number,
    Encoding.QUOTED: _string,
    Encoding.BOOLEAN: _boolean,
    Encoding.STRING: _string,
    Encoding.TIMESTAMP: lambda value: _timestamp(value, zone=False),
    Encoding.TIMESTAMPTZ: lambda value: _timestamp(value, zone=True),
    Encoding.BASE64: _bytea,
    Encoding.JSON: _embedded,
    Encoding.STORAGE: lambda value: _storage(value, quoted=False),
    Encoding.STORAGE_QUOTED: lambda value: _storage(value, quoted=True),
}


def encoder(column: ColumnPlan) -> Encoder:
    """How a column's values become JSON; ValueError for an array that cannot be one."""
    scalar = _SCALARS[column.encoding]
    if not column.array:
        return scalar
    delimiter = column.delimiter
    storage = column.encoding in (Encoding.STORAGE, Encoding.STORAGE_QUOTED)
    if len(delimiter) != 1 or not "!" <= delimiter <= "~" or delimiter in '{}"\\' or storage:
        raise ValueError("an array column cannot be read")
    return lambda value: _array(value, scalar, delimiter)


_BOUNDS = re.compile(rb"\[[\[\]:0-9-]*=")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def _array(value: Value, element: Encoder, delimiter: str) -> str:
    """array_out's text → JSON; explicit bounds (`[2:3]={…}`) are dropped."""
    if not isinstance(value, bytes):
        raise Malformed("not an array")
    bounds = _BOUNDS.match(value)
    at = bounds.end() if bounds else 0
    split = delimiter.encode()
    bare = re.compile(rb'(?:[^{}"\\' + re.escape(split) + rb"]|\\.)+", re.DOTALL)
    parts: list[str] = []
    depth, begins, closes = 0, True, False
    while True:
        byte = value[at : at + 1]
        if not byte:
            raise Malformed("unfinished array")
        if byte == b"{" and begins:
            parts.append("[")
            depth, closes, at = depth + 1, True, at + 1
            continue
        if byte == b"}" and depth and (closes or not begins):
            parts.append("]")
            depth, at = depth - 1, at + 1
            if not depth:
                break
        elif byte == split and not begins and depth:
            parts.append(",")
            begins, closes, at = True, False, at + 1
            continue
        elif not begins or not depth:
            raise Malformed("not an array")
        elif byte == b'"':
            quoted = _QUOTED.match(value, at)
            if quoted is None:
                raise Malformed("unfinished element")
            parts.append(element(_UNESCAPE.sub(rb"\1", quoted[1])))
            at = quoted.end()
        else:
            plain = bare.match(value, at)
            if plain is None:
                raise Malformed("not an element")
            parts.append("null" if plain[0].upper() == b"NULL" else element(_UNESCAPE.sub(rb"\1", plain[0])))
            at = plain.end()
        begins, closes = False, False
    if at != len(value):
        raise Malformed("something behind the array")
    return "".join(parts)


def tag(value: Value) -> bytes:
    """A SQLite value in DataRow form: storage tag and bytes."""
    match value:
        case int():
            return b"i%d" % value
        case float():
            return b"r" + struct.pack(">d", value)
        case str():
            return b"t" + value.encode()
        case _:
            return b"b" + value


_WHOLE = re.compile(rb"-?[0-9]{1,19}")


def untag(value: bytes) -> Value:
    """A SQLite value from its DataRow form."""
    kind, rest = value[:1], value[1:]
    match kind:
        case b"i":
            if not _WHOLE.fullmatch(rest):
                raise Malformed("not an integer")
            return int(rest)
        case b"r" if len(rest) == 8:
            return float(struct.unpack(">d", rest)[0])
        case b"t":
            return text_of(rest)
        case b"b":
            return rest
        case _:
            raise Malformed("unknown storage class")
