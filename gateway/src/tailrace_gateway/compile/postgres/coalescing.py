"""One statement for many callers of a saved query on PostgreSQL: the rewrite, and whether it may stand for the singles.

The saved text stays as it is; only its parameters become columns of our own row source, one row a caller. What cannot be proven to answer
alike, or would be planned worse, is not coalesced (`NotCoalescedError` with a code); that refuses nothing: each call has its own statement.
IO: Describe and EXPLAIN through `Session`, in a transaction that is rolled back; neither runs the query.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailrace_contract.plan import CoalescePlan, Returns, StatementPlan

from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres import plans
from tailrace_gateway.compile.postgres.batch import NotCoalescedError, places, rewritten, type_name
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.postgres.describe import TypedStatement
from tailrace_gateway.compile.postgres.nodetree import Node
from tailrace_gateway.compile.postgres.reach import check_shareable
from tailrace_gateway.compile.postgres.session import ServerError, Session
from tailrace_gateway.compile.postgres.types import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INTEGERS,
    INTERVAL,
    JSON,
    JSONB,
    MONEY,
    NUMERIC,
    OID,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    UUID,
    Types,
)
from tailrace_gateway.compile.spec import ParamSpec, QuerySpec

MOST_ROWS = 100
"""A list of up to so many rows a caller is coalesced; longer answers gain little (measured: 1.2–1.4 × at 100 rows)."""

_NAME = "tailrace_batch_one"
_LIST_LENGTH = 10
"""Elements that the server expects in a list that it doesn't know; a list of the same length is compared."""

_SAMPLES = {
    **dict.fromkeys((*INTEGERS, NUMERIC, FLOAT4, FLOAT8, OID, MONEY), "1"),
    BOOL: "true",
    DATE: "2000-01-01",
    **dict.fromkeys((TIME, TIMETZ), "00:00:00"),
    **dict.fromkeys((TIMESTAMP, TIMESTAMPTZ), "2000-01-01T00:00:00Z"),
    UUID: "00000000-0000-0000-0000-000000000001",
    **dict.fromkeys((JSON, JSONB), "{}"),
    INTERVAL: "1 hour",
    BYTEA: "a",
    650: "127.0.0.0/8",  # cidr
    869: "127.0.0.1",  # inet
    829: "00:00:00:00:00:00",  # macaddr
}
"""By type: values to plan the single with; nothing is run with them. Other types get a letter, an enum its first label."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A compiled single statement, as far as the rewrite needs it. `tree` None: the server's own parse tree could not be had."""

    placed: Placed
    typed: TypedStatement
    tree: Node | None
    limit: int | None
    tables: frozenset[int | str]
    exclusive_because: str


def coalesced(
    session: Session, catalog: Catalog, view_query: Callable[[int], Node | None], query: QuerySpec, single: Statement
) -> tuple[CoalescePlan | None, str]:
    """The batch's plan, or None and why not."""
    try:
        return _coalesced(session, catalog, view_query, query, single), ""
    except NotCoalescedError as why:
        return None, why.code


def _coalesced(
    session: Session, catalog: Catalog, view_query: Callable[[int], Node | None], query: QuerySpec, single: Statement
) -> CoalescePlan:
    wanted = query.coalesce
    if wanted is None:
        raise NotCoalescedError("off")
    if query.write:
        raise NotCoalescedError("write")
    if query.page is not None:
        raise NotCoalescedError("paged")
    if single.exclusive_because:
        raise NotCoalescedError("exclusive")
    if not single.placed.params:
        raise NotCoalescedError("no_parameters")
    if single.tree is None:
        raise NotCoalescedError("not_probed")
    if query.returns is Returns.MANY and (single.limit is None or single.limit > MOST_ROWS):
        raise NotCoalescedError("many_rows")
    if any(node.items("rowMarks") for node in _queries(single.tree)):
        raise NotCoalescedError("locks")
    check_shareable(single.tables, catalog, view_query)
    cap = 2 if query.returns is Returns.ONE else (single.limit or 0) + 1
    oids, texts = places(catalog.types, single.typed.oids)
    sql = rewritten(single.placed.sql, texts, cap)
    try:
        described = session.describe(sql, oids)
    except ServerError:
        raise NotCoalescedError("not_prepared") from None
    if described.params != oids or described.columns[1:] != single.typed.described.columns or not described.columns:
        raise NotCoalescedError("other_shape")
    _compare(session, catalog.types, query, single, sql, oids)
    return CoalescePlan(
        statement=StatementPlan(sql=sql, params=single.placed.params, oids=oids),
        max_batch=wanted.max_batch,
        max_in_flight=wanted.max_in_flight,
    )


def _queries(node: object) -> Iterator[Node]:
    """Every query in a tree."""
    if isinstance(node, list):
        for each in node:
            yield from _queries(each)
    elif isinstance(node, Node):
        if node.tag == "QUERY":
            yield node
        for value in node.fields.values():
            yield from _queries(value)


def _compare(session: Session, types: Types, query: QuerySpec, single: Statement, sql: str, oids: tuple[int, ...]) -> None:
    """EXPLAIN of both. The single twice, as it is planned for a caller's values and without: the server uses either, and which of the two is good
    depends on the query (`:x IS NULL OR id = :x` has its index only while the value is known). The batch is planned once for all."""
    samples = [_sample(types, query.params[n], oid) for n, oid in zip(single.placed.params, single.typed.oids, strict=True)]
    try:
        alone = _explained(session, types, single.placed.sql, single.typed.oids, (samples, None))
        batch = _explained(session, types, sql, oids, (None,))
    except ServerError:
        raise NotCoalescedError("not_explained") from None
    plans.check_no_worse([plans.single(plan) for plan in alone], plans.batch(batch[0]))


def _sample(types: Types, param: ParamSpec, oid: int) -> str:
    """A value of the place's type: an enumerated or least one, if the parameter declares such."""
    base = types.resolved(types.element(oid) or oid)
    info = types.known.get(base)
    value = info.labels[0] if info is not None and info.labels else _SAMPLES.get(base, "a")
    if info is not None and info.kind == "r":
        value = "empty"
    if param.enum and isinstance(param.enum[0], str | int) and not isinstance(param.enum[0], bool):
        value = str(param.enum[0])
    elif param.minimum is not None:
        value = param.minimum
    return "{" + ",".join([_element(value)] * _LIST_LENGTH) + "}" if types.element(oid) else value


def _element(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _explained(
    session: Session, types: Types, sql: str, oids: Sequence[int], calls: Sequence[Sequence[str] | None]
) -> list[dict[str, Any]]:
    """Plans of one statement, each its root: with these values, or (None) without. PREPARE and EXECUTE, because EXPLAIN itself has no generic plan
    before PostgreSQL 16."""
    found: list[dict[str, Any]] = []
    try:
        with session.rolled_back():
            session.command(f"PREPARE {_NAME} ({', '.join(type_name(types, oid) for oid in oids)}) AS {sql}\n")
            for values in calls:
                given = ", ".join(["NULL"] * len(oids) if values is None else [_literal(value) for value in values])
                session.command(f"SET LOCAL plan_cache_mode = {'force_generic_plan' if values is None else 'force_custom_plan'}")
                row = session.rows(f"EXPLAIN (FORMAT JSON) EXECUTE {_NAME} ({given})")[0][0]
                found.append((json.loads(row) if isinstance(row, str) else row)[0]["Plan"])
    finally:
        # The end of a transaction doesn't end it.
        with suppress(ServerError):
            session.command(f"DEALLOCATE {_NAME}")
    return found


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
