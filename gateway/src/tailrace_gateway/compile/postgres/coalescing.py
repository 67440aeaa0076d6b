"""One statement for many callers of a saved query on PostgreSQL: the rewrite, and whether it may stand for the singles.

The saved text stays as it is; only its parameters become columns of our own row source, one row a caller. What cannot be proven to answer
alike, or would be planned worse, is not coalesced (`NotCoalescedError` with a code); that refuses nothing: each call has its own statement.
IO: Describe and EXPLAIN through `Session`, in a transaction that is rolled back; neither runs the query.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailrace_contract.plan import CoalescePlan, Engine, Returns, StatementPlan

from tailrace_gateway.compile.identifiers import quoted
from tailrace_gateway.compile.lexer import Kind, tokens
from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.postgres.describe import TypedStatement
from tailrace_gateway.compile.postgres.nodetree import Node
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
DEARER = 4.0
"""A batch may cost so many times the single, per caller, by the planner's own estimate."""
FEW_PAGES = 25.0
"""A scan that the planner thinks as cheap as this counts for no scan: some 1,000 rows."""
ESTIMATED_CALLERS = 10
"""Elements that the planner takes an array of unknown length to have."""

_TEXT_ARRAY = 1009
_BATCH, _ROWS, _ONE = "tailrace_batch", "tailrace_batch_rows", "tailrace_batch_one"
"""Reserved: `placeholders` refuses a query that has a name beginning so."""

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
}
"""By type: values to plan the single with; nothing is run with them. Other types get a letter, an enum its first label."""


class NotCoalescedError(Exception):
    """Each call keeps its own statement. `code`: why, for `explain`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Statement:
    """A compiled single statement, as far as the rewrite needs it. `tree` None: the server's own parse tree could not be had."""

    placed: Placed
    typed: TypedStatement
    tree: Node | None
    limit: int | None
    tables: frozenset[int | str]
    exclusive_because: str


def coalesced(session: Session, catalog: Catalog, query: QuerySpec, single: Statement) -> tuple[CoalescePlan | None, str]:
    """The batch's plan, or None and why not."""
    try:
        return _coalesced(session, catalog, query, single), ""
    except NotCoalescedError as why:
        return None, why.code


def _coalesced(session: Session, catalog: Catalog, query: QuerySpec, single: Statement) -> CoalescePlan:
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
    if _has_row_security(catalog, single.tables):
        raise NotCoalescedError("row_security")
    cap = 2 if query.returns is Returns.ONE else (single.limit or 0) + 1
    oids, texts = _places(catalog.types, single.typed.oids)
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


def rewritten(sql: str, places: Sequence[str], cap: int) -> str:
    """The batch statement of a placed single. `places`: what stands for `$1…`. A line break ends a comment that the text may end with."""
    pieces = []
    for token in tokens(sql, Engine.POSTGRES):
        piece = sql[token.start : token.end]
        pieces.append(f" {places[int(piece[1:]) - 1]} " if token.kind is Kind.FOREIGN else piece)
    names = ", ".join(f"p{n + 1}" for n in range(len(places)))
    arrays = ", ".join(f"${n + 1}" for n in range(len(places)))
    return (
        f"SELECT {_BATCH}.ord, {_ROWS}.* FROM unnest({arrays}) WITH ORDINALITY AS {_BATCH} ({names}, ord)"  # noqa: S608
        f" CROSS JOIN LATERAL (SELECT * FROM (\n{''.join(pieces)}\n) AS {_ONE} LIMIT {cap}) AS {_ROWS}"
    )


def _places(types: Types, oids: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """The arrays' types and what stands for each place. unnest flattens arrays of arrays, so these come as texts and are cast inside."""
    arrays, texts = [], []
    for n, oid in enumerate(oids, 1):
        info = types.known.get(oid)
        if info is None or info.delimiter != ",":
            raise NotCoalescedError("array_type")
        if types.element(oid):
            arrays.append(_TEXT_ARRAY)
            texts.append(f"CAST({_BATCH}.p{n} AS {_name(types, oid)})")
        elif info.array:
            arrays.append(info.array)
            texts.append(f"{_BATCH}.p{n}")
        else:
            raise NotCoalescedError("array_type")
    return tuple(arrays), texts


def _name(types: Types, oid: int) -> str:
    info = types.known[oid]
    return f"{quoted(info.schema)}.{quoted(info.name)}"


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


def _has_row_security(catalog: Catalog, tables: frozenset[int | str]) -> bool:
    """On any table that is read, through views too."""
    seen: set[int] = set()
    waiting = [int(table) for table in tables]
    while waiting:
        table = waiting.pop()
        if table in seen:
            continue
        seen.add(table)
        relation = catalog.relations.get(table)
        if relation is None or relation.row_security:
            return True
        waiting += [other for other, _ in catalog.view_columns.get(table, ())]
        waiting += catalog.parents.get(table, ())
    return False


def _compare(session: Session, types: Types, query: QuerySpec, single: Statement, sql: str, oids: tuple[int, ...]) -> None:
    """EXPLAIN of both: the single as it is planned for a caller's values, the batch as it is planned once for all. Its inner side may not scan
    a table that the single reaches by an index, and may not be dearer by far."""
    samples = [_sample(types, query.params[n], oid) for n, oid in zip(single.placed.params, single.typed.oids, strict=True)]
    try:
        one = _explained(session, types, single.placed.sql, single.typed.oids, samples, "force_custom_plan")
        batch = _explained(session, types, sql, oids, [None] * len(oids), "force_generic_plan")
    except ServerError:
        raise NotCoalescedError("not_explained") from None
    if _scans(batch) - _scans(one):
        raise NotCoalescedError("sequential_scan")
    if float(batch["Total Cost"]) / ESTIMATED_CALLERS > DEARER * max(float(one["Total Cost"]), 1.0):
        raise NotCoalescedError("cost")


def _sample(types: Types, param: ParamSpec, oid: int) -> str:
    """A value of the place's type: an enumerated or least one, if the parameter declares such."""
    base = types.resolved(types.element(oid) or oid)
    info = types.known.get(base)
    value = info.labels[0] if info is not None and info.labels else _SAMPLES.get(base, "a")
    if param.enum and isinstance(param.enum[0], str | int) and not isinstance(param.enum[0], bool):
        value = str(param.enum[0])
    elif param.minimum is not None:
        value = param.minimum
    return "{" + _element(value) + "}" if types.element(oid) else value


def _element(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _explained(session: Session, types: Types, sql: str, oids: Sequence[int], values: Sequence[str | None], mode: str) -> dict[str, Any]:
    """The plan's root. PREPARE and EXECUTE, because EXPLAIN itself has no generic plan before PostgreSQL 16."""
    given = ", ".join("NULL" if value is None else _literal(value) for value in values)
    try:
        with session.rolled_back():
            session.command(f"SET LOCAL plan_cache_mode = {mode}")
            session.command(f"PREPARE {_ONE} ({', '.join(_name(types, oid) for oid in oids)}) AS {sql}")
            row = session.rows(f"EXPLAIN (FORMAT JSON) EXECUTE {_ONE} ({given})")[0][0]
    finally:
        # The end of a transaction doesn't end it.
        with suppress(ServerError):
            session.command(f"DEALLOCATE {_ONE}")
    plan = json.loads(row) if isinstance(row, str) else row
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _scans(plan: dict[str, Any]) -> Counter[str]:
    """Tables that are read from end to end, each as often as it is; but for those of a few pages, where that is as cheap as an index."""
    found: Counter[str] = Counter()
    if plan["Node Type"] in ("Seq Scan", "Sample Scan", "Foreign Scan") and float(plan["Total Cost"]) > FEW_PAGES:
        found[plan.get("Relation Name", "?")] += 1
    for each in plan.get("Plans", ()):
        found += _scans(each)
    return found
