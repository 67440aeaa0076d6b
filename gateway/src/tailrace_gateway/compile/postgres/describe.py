"""Types of a statement's parameters and columns: declared types and what the server infers, brought together.

Rejects (`RefusedError`): what the server cannot prepare, a parameter whose declared type cannot be what the statement needs. IO: Prepare and
Describe through `Session`, which run nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, ColumnPlan, ParamPlan, ParamType

from tailrace_gateway.compile.postgres.session import Described, ServerError, Session
from tailrace_gateway.compile.postgres.types import INT8, INTEGER_BOUNDS, NATURAL, TEXT_LIKE, Types
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ParamSpec


@dataclass(frozen=True, slots=True)
class TypedStatement:
    """A statement with the types that it is prepared with. `params` are the places in order."""

    oids: tuple[int, ...]
    described: Described


def typed(session: Session, types: Types, sql: str, params: Sequence[ParamSpec]) -> TypedStatement:
    """Finds the type of each place.

    `integer` is bound as int8 where the statement allows it, so that no 64-bit value fails; where it doesn't (`left(text, int4)`), as inferred.
    Everything else is what the server infers, if it suits the declared type, else the declared type's own.
    """
    wished = [_array(types, INT8, param) if param.type is ParamType.INTEGER else 0 for param in params]
    try:
        described = session.describe(sql, wished)
    except ServerError as first:
        if not any(wished) and first.sqlstate not in ("42P18", "42P08"):
            raise _refused(first) from None
        wished, described = _without_wishes(session, types, sql, params)
    oids = list(described.params)
    changed = False
    for n, param in enumerate(params):
        if not _suits(types, param, oids[n]):
            oids[n], changed = _array(types, NATURAL[param.type], param), True
        elif param.type not in (ParamType.STRING, ParamType.JSON) and types.resolved(types.element(oids[n]) or oids[n]) in TEXT_LIKE:
            natural = list(oids)
            natural[n] = _array(types, NATURAL[param.type], param)
            with suppress(ServerError):  # raised where only text can stand
                described, oids = session.describe(sql, natural), natural
    if changed:
        try:
            described = session.describe(sql, oids)
        except ServerError as error:
            wrong = next((p.name for n, p in enumerate(params) if not _suits(types, p, described.params[n])), "")
            hint = f"the database needs another type for the parameter `{wrong}` than the declared one"
            raise RefusedError(Refusal.DATABASE_REFUSED, hint, error.message) from None
    return TypedStatement(tuple(oids), described)


def _without_wishes(session: Session, types: Types, sql: str, params: Sequence[ParamSpec]) -> tuple[list[int], Described]:
    """What the server infers; then each integer that may be wider is made so, one after the other."""
    wished = [0] * len(params)
    try:
        described = session.describe(sql, wished)
    except ServerError as error:
        if error.sqlstate not in ("42P18", "42P08"):
            raise _refused(error) from None
        wished = [_array(types, NATURAL[param.type], param) for param in params]
        try:
            described = session.describe(sql, wished)
        except ServerError as again:
            raise _refused(again) from None
    wished = list(described.params)
    for n, param in enumerate(params):
        if param.type is ParamType.INTEGER and types.resolved(types.element(wished[n]) or wished[n]) in INTEGER_BOUNDS:
            wider = [*wished[:n], _array(types, INT8, param), *wished[n + 1 :]]
            try:
                described = session.describe(sql, wider)
            except ServerError:
                continue
            wished = wider
    return wished, described


def _array(types: Types, oid: int, param: ParamSpec) -> int:
    return types.array_of(oid) if param.array else oid


def _suits(types: Types, param: ParamSpec, oid: int) -> bool:
    element = types.element(oid)
    if param.array:
        return bool(element) and types.accepts(param.type, element)
    return not element and types.accepts(param.type, oid)


def _refused(error: ServerError) -> RefusedError:
    return RefusedError(Refusal.DATABASE_REFUSED, f"the database does not accept the statement (SQLSTATE {error.sqlstate})", error.message)


def param_plan(types: Types, param: ParamSpec, oid: int) -> ParamPlan:
    """The parameter as it is checked per call: narrowed to what the bound type holds."""
    base = types.resolved(types.element(oid) or oid)
    if param.type is ParamType.INTEGER and base in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[base]
        minimum, maximum = param.minimum, param.maximum
        if minimum is None or Decimal(minimum) < low:
            minimum = str(low)
        if maximum is None or Decimal(maximum) > high:
            maximum = str(high)
        param = replace(param, minimum=minimum, maximum=maximum)
    return ParamPlan(
        name=param.name,
        type=param.type,
        array=param.array,
        required=param.required,
        nullable=param.nullable,
        default=param.default,
        enum=param.enum,
        minimum=param.minimum,
        maximum=param.maximum,
        min_length=param.min_length,
        max_length=param.max_length,
        pattern=param.pattern,
    )


def column_plans(types: Types, described: Described, big_numbers: BigNumbers) -> tuple[ColumnPlan, ...]:
    """The expected result columns; refuses names that a caller could not tell apart."""
    names = [name for name, *_ in described.columns]
    for name in names:
        if name in ("", "?column?"):
            raise RefusedError(Refusal.UNNAMED_COLUMN, "a result column has no name: give it one with AS")
        if names.count(name) > 1:
            raise RefusedError(Refusal.DUPLICATE_COLUMN, f"two result columns are named `{name}`: rename one with AS")
    plans = []
    for name, oid, table, number in described.columns:
        encoding, array, delimiter = types.encoding(oid, big_numbers)
        plans.append(
            ColumnPlan(name=name, encoding=encoding, array=array, delimiter=delimiter, type_oid=oid, table_oid=table, column_number=number)
        )
    return tuple(plans)
