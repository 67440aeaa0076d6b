"""What parameters are sent as, and how result columns become JSON. Pure; rejects nothing."""

from collections.abc import Sequence

from tailrace_contract.plan import BigNumbers, ColumnPlan, Encoding, MysqlPlace, ParamType

from tailrace_gateway.compile.spec import ParamSpec
from tailrace_gateway.serve.mysql.wire import Column, Type

_PLACES = {
    ParamType.INTEGER: MysqlPlace.INTEGER,
    ParamType.NUMBER: MysqlPlace.DECIMAL,
    ParamType.BOOLEAN: MysqlPlace.BOOLEAN,
    ParamType.DATE: MysqlPlace.DATE,
    ParamType.TIME: MysqlPlace.TIME,
    ParamType.TIMESTAMP: MysqlPlace.TIMESTAMP,
}


def place_of(param: ParamSpec) -> MysqlPlace:
    """Of a declared parameter; a list is a JSON text."""
    return MysqlPlace.TEXT if param.array else _PLACES.get(param.type, MysqlPlace.TEXT)


def column_plan(prepared: Column, typed: Column, big: BigNumbers) -> ColumnPlan:
    """`prepared` is what every Prepare describes; `typed` what a result of parameters with types shows."""
    encoding = typed.encoding
    long = typed.type in (Type.LONGLONG, Type.DECIMAL, Type.NEWDECIMAL) or (typed.type == Type.BIT and typed.length > 32)
    if big is BigNumbers.STRING and long and encoding in (Encoding.RAW, Encoding.NUMBER):
        encoding = Encoding.QUOTED
    return ColumnPlan(name=prepared.name, encoding=encoding, type_oid=prepared.type_oid, table_oid=prepared.table_oid)


def shaped(columns: Sequence[ColumnPlan], described: Sequence[Column]) -> tuple[ColumnPlan, ...]:
    """The same columns as another statement around the query describes them."""
    return tuple(
        column.model_copy(update={"type_oid": shown.type_oid, "table_oid": shown.table_oid})
        for column, shown in zip(columns, described, strict=True)
    )


_KEYS = {
    Encoding.RAW: MysqlPlace.INTEGER,
    Encoding.NUMBER: MysqlPlace.DECIMAL,
    Encoding.BOOLEAN: MysqlPlace.BOOLEAN,
    Encoding.TIMESTAMP: MysqlPlace.TIMESTAMP,
    Encoding.TIMESTAMPTZ: MysqlPlace.TIMESTAMP,
    Encoding.BASE64: MysqlPlace.BYTES,
}
_NO_KEYS = frozenset({Type.FLOAT, Type.ENUM, Type.SET, Type.JSON, Type.GEOMETRY, Type.TIME})
_ENUM_OR_SET = 0x100 | 0x800


def key_place(column: Column) -> MysqlPlace | None:
    """What a page's mark of this column is sent as; None if its text does not stand for the value in its order.

    A single's digits are another number as a double; ENUM and SET sort by position and compare as text; a TIME's text compares as text.
    """
    if column.type in _NO_KEYS or column.flags & _ENUM_OR_SET:
        return None
    if column.type == Type.DOUBLE:
        return MysqlPlace.DOUBLE
    return _KEYS.get(column.encoding, MysqlPlace.TEXT)
