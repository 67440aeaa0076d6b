"""PostgreSQL's types as far as values are concerned: what encodes a column, what a declared parameter may be bound as.

Rejects nothing, does no IO. Domains count as their base type, arrays as their elements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace_contract.plan import BigNumbers, Encoding, ParamType

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID, JSON, XML = 16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 142
FLOAT4, FLOAT8, UNKNOWN, MONEY, BPCHAR, VARCHAR, DATE, TIME = 700, 701, 705, 790, 1042, 1043, 1082, 1083
TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ, NUMERIC, UUID, JSONB = 1114, 1184, 1186, 1266, 1700, 2950, 3802

TEXT_LIKE = frozenset({TEXT, VARCHAR, BPCHAR, NAME, CHAR})
INTEGERS = frozenset({INT2, INT4, INT8})
INTEGER_BOUNDS = {INT2: (-(2**15), 2**15 - 1), INT4: (-(2**31), 2**31 - 1)}
"""Values that the wire grammar of `integer` admits and the type does not hold."""

_ENCODINGS = {
    BOOL: Encoding.BOOLEAN,
    BYTEA: Encoding.BASE64,
    INT2: Encoding.RAW,
    INT4: Encoding.RAW,
    INT8: Encoding.RAW,
    NUMERIC: Encoding.NUMBER,
    FLOAT4: Encoding.NUMBER,
    FLOAT8: Encoding.NUMBER,
    TIMESTAMP: Encoding.TIMESTAMP,
    TIMESTAMPTZ: Encoding.TIMESTAMPTZ,
    JSON: Encoding.JSON,
    JSONB: Encoding.JSON,
}

NATURAL = {
    ParamType.INTEGER: INT8,
    ParamType.NUMBER: NUMERIC,
    ParamType.STRING: TEXT,
    ParamType.BOOLEAN: BOOL,
    ParamType.DATE: DATE,
    ParamType.TIME: TIME,
    ParamType.TIMESTAMP: TIMESTAMPTZ,
    ParamType.UUID: UUID,
    ParamType.JSON: JSONB,
}
"""What a parameter is bound as when the statement alone does not say."""

_ACCEPTED = {
    ParamType.INTEGER: INTEGERS | {NUMERIC, FLOAT4, FLOAT8, OID, MONEY},
    ParamType.NUMBER: frozenset({NUMERIC, FLOAT4, FLOAT8, MONEY}),
    ParamType.BOOLEAN: frozenset({BOOL}),
    ParamType.DATE: frozenset({DATE, TIMESTAMP, TIMESTAMPTZ}),
    ParamType.TIME: frozenset({TIME, TIMETZ}),
    ParamType.TIMESTAMP: frozenset({TIMESTAMP, TIMESTAMPTZ}),
    ParamType.UUID: frozenset({UUID}),
    ParamType.JSON: frozenset({JSON, JSONB}),
}
_NOT_STRINGS = INTEGERS | {NUMERIC, FLOAT4, FLOAT8, OID, MONEY, BOOL, DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, UUID, JSON, JSONB}


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One row of pg_type. `base` of a domain, `element` of a true array, else 0. `labels` of an enum, in order."""

    oid: int
    name: str
    schema: str
    kind: str
    base: int = 0
    element: int = 0
    array: int = 0
    delimiter: str = ","
    relation: int = 0
    labels: tuple[str, ...] = ()
    subtypes: tuple[int, ...] = ()
    """Of a composite its attributes' types, of a range its subtype."""


class Types:
    """Every type of one database, by OID."""

    def __init__(self, known: Mapping[int, TypeInfo]) -> None:
        self.known = known

    def resolved(self, oid: int) -> int:
        """The type under any number of domains."""
        while (info := self.known.get(oid)) is not None and info.base:
            oid = info.base
        return oid

    def element(self, oid: int) -> int:
        """The element's type of an array, 0 for what is none."""
        info = self.known.get(self.resolved(oid))
        return info.element if info is not None else 0

    def encoding(self, oid: int, big_numbers: BigNumbers) -> tuple[Encoding, bool, str]:
        """(encoding, is an array, delimiter between its elements)."""
        element = self.element(oid)
        info = self.known.get(self.resolved(element or oid))
        encoding = _ENCODINGS.get(info.oid if info is not None else 0, Encoding.STRING)
        if element and (info is None or info.element):
            encoding = Encoding.STRING  # a domain over an array inside an array: its text is a quoted string
        if big_numbers is BigNumbers.STRING and info is not None and info.oid in (INT8, NUMERIC):
            encoding = Encoding.QUOTED
        return encoding, bool(element), info.delimiter if element and info is not None else ","

    def accepts(self, declared: ParamType, inferred: int) -> bool:
        """Whether every text that passes the declared type's grammar is good input for the inferred type.

        Text types take anything but a boolean's nothing; enums, networks, ranges and the like are for strings, whose content the server checks.
        """
        oid = self.resolved(inferred)
        info = self.known.get(oid)
        if oid in TEXT_LIKE:
            return True
        if declared is ParamType.STRING:
            return info is not None and oid not in _NOT_STRINGS and info.kind in "ebrm" and not info.element
        return oid in _ACCEPTED[declared]

    def array_of(self, oid: int) -> int:
        """The array type of an element type, 0 for none."""
        info = self.known.get(oid)
        return info.array if info is not None else 0
