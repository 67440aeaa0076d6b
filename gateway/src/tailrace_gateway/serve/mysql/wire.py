"""Values of MySQL's binary protocol: text → parameter, row → texts (docs/contract.md, "MySQL and MariaDB"). Pure.

Rejects (`Malformed`) packets and values that are not of their form. The Rust twin is in `dataplane-rs/src/engine/mysql`; both read
`crds/golden/vectors/mysql_values.json`.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum

from tailrace_contract.plan import ColumnPlan, Encoding, MysqlPlace, StatementPlan
from tailrace_gateway.serve.floats import float_text, single_text
from tailrace_gateway.serve.values import Malformed

BINARY = 63
"""Charset of what is bytes, not text."""
_UNSIGNED = 0x20


class Type(IntEnum):
    """Type codes of columns."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_INTEGERS: dict[int, int] = {Type.TINY: 1, Type.SHORT: 2, Type.YEAR: 2, Type.LONG: 4, Type.INT24: 4, Type.LONGLONG: 8}
_DIGITS = frozenset({*_INTEGERS, Type.DECIMAL, Type.NEWDECIMAL, Type.FLOAT, Type.DOUBLE})


@dataclass(frozen=True, slots=True)
class Column:
    """A column definition as the server sends it; `length` in bytes of its charset."""

    schema: str
    table: str
    org_table: str
    name: str
    org_name: str
    charset: int
    length: int
    type: int
    flags: int

    @property
    def is_unsigned(self) -> bool:
        """Of integers."""
        return bool(self.flags & _UNSIGNED)

    @property
    def is_bit(self) -> bool:
        """BIT of length 1: a boolean."""
        return self.type == Type.BIT and self.length == 1

    @property
    def type_oid(self) -> int:
        """As `ColumnPlan.type_oid` says it."""
        return self.type | self.is_unsigned << 8 | (self.charset == BINARY) << 9 | self.is_bit << 10

    @property
    def table_oid(self) -> int:
        """As `ColumnPlan.table_oid` says it; 0 for what is no table's column."""
        return zlib.crc32(f"{self.schema}\0{self.org_table}\0{self.org_name}".encode()) if self.org_table else 0

    @property
    def encoding(self) -> Encoding:
        """How its texts become JSON, without regard to bigNumbers."""
        match self.type:
            case Type.BIT:
                return Encoding.BOOLEAN if self.is_bit else Encoding.RAW
            case Type.DECIMAL | Type.NEWDECIMAL | Type.FLOAT | Type.DOUBLE:
                return Encoding.NUMBER
            case Type.DATETIME:
                return Encoding.TIMESTAMP
            case Type.TIMESTAMP:
                return Encoding.TIMESTAMPTZ
            case Type.JSON:
                return Encoding.JSON
            case Type.DATE | Type.TIME | Type.NULL:
                return Encoding.STRING
            case _ if self.type in _INTEGERS:
                return Encoding.RAW
            case _:
                return Encoding.BASE64 if self.charset == BINARY else Encoding.STRING

    def fits(self, planned: Encoding) -> bool:
        """Whether its texts may be encoded as planned; else the answer is an error, never a guess."""
        if planned in (self.encoding, Encoding.STRING) or self.type == Type.NULL:
            return True
        return planned in (Encoding.RAW, Encoding.NUMBER, Encoding.QUOTED) and (
            self.type in _DIGITS or (self.type == Type.BIT and not self.is_bit)
        )


class Reader:
    """A cursor over one packet."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size < 0 or self.at + size > len(self.data):
            raise Malformed("a packet ends early")
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, size: int, *, signed: bool = False) -> int:
        """Little endian."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def length(self) -> int:
        """A length-encoded integer."""
        first = self.integer(1)
        if first < 0xFB:
            return first
        sizes = {0xFC: 2, 0xFD: 3, 0xFE: 8}
        if first not in sizes:
            raise Malformed("not a length")
        return self.integer(sizes[first])

    def counted(self) -> bytes:
        """Bytes behind their length."""
        return self.take(self.length())


def column_of(packet: bytes) -> Column:
    """A column definition (protocol 4.1)."""
    reader = Reader(packet)
    try:
        _, schema, table, org_table, name, org_name = (reader.counted().decode() for _ in range(6))
    except UnicodeDecodeError:
        raise Malformed("a name is not UTF-8") from None
    reader.length()
    charset, length, kind, flags = reader.integer(2), reader.integer(4), reader.integer(1), reader.integer(2)
    return Column(schema, table, org_table, name, org_name, charset, length, kind, flags)


def same_shape(columns: Sequence[Column], plans: Sequence[ColumnPlan]) -> bool:
    """Whether a Prepare describes what was compiled."""
    return len(columns) == len(plans) and all(
        (column.name, column.type_oid, column.table_oid) == (plan.name, plan.type_oid, plan.table_oid)
        for column, plan in zip(columns, plans, strict=True)
    )


def row_of(packet: bytes, columns: Sequence[Column]) -> list[bytes | None]:
    """The texts of a binary row."""
    reader = Reader(packet, 1)
    nulls = reader.take((len(columns) + 9) // 8)
    row: list[bytes | None] = []
    for n, column in enumerate(columns, 2):
        row.append(None if nulls[n >> 3] >> (n & 7) & 1 else _text(reader, column))
    if reader.at != len(packet):
        raise Malformed("something behind the row")
    return row


def _text(reader: Reader, column: Column) -> bytes:
    kind = column.type
    if size := _INTEGERS.get(kind):
        return b"%d" % reader.integer(size, signed=not column.is_unsigned and kind != Type.YEAR)
    match kind:
        case Type.DOUBLE:
            return float_text(struct.unpack("<d", reader.take(8))[0]).encode()
        case Type.FLOAT:
            return single_text(struct.unpack("<f", reader.take(4))[0]).encode()
        case Type.DATE:
            return _moment(reader.counted())[:10].encode()
        case Type.DATETIME:
            return _moment(reader.counted()).encode()
        case Type.TIMESTAMP:
            return _moment(reader.counted()).encode() + b"+00"
        case Type.TIME:
            return _clock(reader.counted()).encode()
        case Type.BIT:
            value = reader.counted()
            if len(value) != (column.length + 7) // 8:
                raise Malformed("not the bits of a column")
            number = int.from_bytes(value, "big")
            return (b"f", b"t")[bool(number)] if column.is_bit else b"%d" % number
        case Type.DECIMAL | Type.NEWDECIMAL | Type.JSON | Type.NULL:
            return reader.counted()
        case _ if kind == Type.VARCHAR or kind >= Type.ENUM:
            value = reader.counted()
            return b"\\x" + value.hex().encode() if column.charset == BINARY else value
        case _:
            raise Malformed("a type that is not known")


def _fraction(micros: int) -> str:
    return f".{micros:06d}".rstrip("0").rstrip(".")


def _moment(value: bytes) -> str:
    """0, 4, 7 or 11 bytes; what is not sent is zero."""
    if len(value) not in (0, 4, 7, 11):
        raise Malformed("not a date")
    year, month, day, hour, minute, second, micros = struct.unpack("<HBBBBBI", value.ljust(11, b"\0"))
    if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59 or micros > 999_999:
        raise Malformed("not a date")
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}{_fraction(micros)}"


def _clock(value: bytes) -> str:
    """0, 8 or 12 bytes: sign, days, hours, minutes, seconds, microseconds."""
    if len(value) not in (0, 8, 12):
        raise Malformed("not a time")
    negative, days, hour, minute, second, micros = struct.unpack("<BIBBBI", value.ljust(12, b"\0"))
    if hour > 23 or minute > 59 or second > 59 or micros > 999_999 or negative > 1:
        raise Malformed("not a time")
    return f"{'-' if negative else ''}{days * 24 + hour:02d}:{minute:02d}:{second:02d}{_fraction(micros)}"


_PLAIN_DECIMAL = re.compile(rb"-?([0-9]+)(?:\.([0-9]+))?")
_HEX = re.compile(rb"\\x((?:[0-9a-fA-F]{2})*)")
_WHOLE = re.compile(rb"-?[0-9]{1,20}")
_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(\.\d+)?(?:(Z)|([+-])(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_MOST_DIGITS, _MOST_PLACES = 65, 30


def parameter(place: int, text: bytes) -> tuple[int, bytes]:
    """(type and flags as they are sent, the value's bytes); `place` is a `MysqlPlace`."""
    match place:
        case MysqlPlace.INTEGER:
            if not _WHOLE.fullmatch(text):
                raise Malformed("not an integer")
            number = int(text)
            if not -(2**63) <= number < 2**64:
                raise Malformed("an integer is too large")
            unsigned = number >= 2**63
            return Type.LONGLONG | unsigned << 15, number.to_bytes(8, "little", signed=not unsigned)
        case MysqlPlace.BOOLEAN:
            return Type.TINY, b"\1" if text in (b"true", b"t", b"1") else b"\0"
        case MysqlPlace.DECIMAL:
            plain = _PLAIN_DECIMAL.fullmatch(text)
            if plain and len(plain[1]) + len(plain[2] or b"") <= _MOST_DIGITS and len(plain[2] or b"") <= _MOST_PLACES:
                return Type.NEWDECIMAL, _counted(text)
            return _double(text)
        case MysqlPlace.DOUBLE:
            return _double(text)
        case MysqlPlace.TIMESTAMP:
            return Type.VAR_STRING, _counted(_utc(text))
        case MysqlPlace.BYTES:
            digits = _HEX.fullmatch(text)
            if digits is None:
                raise Malformed("not bytes in hex form")
            return Type.BLOB, _counted(bytes.fromhex(digits[1].decode()))
        case _:
            return Type.VAR_STRING, _counted(text)


def _double(text: bytes) -> tuple[int, bytes]:
    try:
        number = float(text)
    except ValueError:
        raise Malformed("not a number") from None
    if number in (float("inf"), float("-inf")) or number != number:
        raise Malformed("a number is too large")
    return Type.DOUBLE, struct.pack("<d", number)


def _utc(text: bytes) -> bytes:
    """A timestamp without its offset, in UTC; the fraction stays as it is."""
    match = _MOMENT.fullmatch(text.decode("ascii", "replace"))
    if match is None:
        raise Malformed("not a timestamp")
    date, time, fraction, zulu, sign, hours, minutes = match.groups()
    if sign is None or zulu is not None or not (int(hours) or int(minutes or 0)):
        return f"{date} {time}{fraction or ''}".encode()
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    try:
        moment = datetime.fromisoformat(f"{date}T{time}").replace(tzinfo=timezone(offset)).astimezone(UTC)
    except (OverflowError, ValueError):
        raise Malformed("not a timestamp") from None
    return f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}{fraction or ''}".encode()


def _counted(value: bytes) -> bytes:
    size = len(value)
    if size < 0xFB:
        return bytes((size,)) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little") + value
    return b"\xfe" + size.to_bytes(8, "little") + value


_NULL_TYPES: dict[int, int] = {
    MysqlPlace.BOOLEAN: Type.TINY,
    MysqlPlace.DOUBLE: Type.DOUBLE,
    MysqlPlace.INTEGER: Type.LONGLONG,
    MysqlPlace.DECIMAL: Type.NEWDECIMAL,
    MysqlPlace.BYTES: Type.BLOB,
}


def execution(statement_id: int, statement: StatementPlan, values: Sequence[bytes | None]) -> bytes:
    """The body of COM_STMT_EXECUTE without a cursor."""
    if len(values) != len(statement.oids):
        raise Malformed("values and places differ in number")
    head = struct.pack("<IBI", statement_id, 0, 1)
    if not values:
        return head
    nulls = bytearray((len(values) + 7) // 8)
    types, data = bytearray(), bytearray()
    for n, (place, value) in enumerate(zip(statement.oids, values, strict=True)):
        if value is None:
            nulls[n >> 3] |= 1 << (n & 7)
            types += struct.pack("<H", _NULL_TYPES.get(place, Type.VAR_STRING))
        else:
            kind, encoded = parameter(place, value)
            types += struct.pack("<H", kind)
            data += encoded
    return head + bytes(nulls) + b"\1" + bytes(types) + bytes(data)
