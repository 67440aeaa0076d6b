"""Keyset paging on PostgreSQL: proves that the key orders rows without ties, and wraps the saved text in its two statements.

Rejects (`RefusedError`, page_key) what isn't proven. IO: Describe through `Session`.
"""

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import ColumnPlan, PageKeyPlan, PagePlan, StatementPlan

from tailrace_gateway.compile.paging import PageKey, first_sql, next_sql
from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.postgres.describe import TypedStatement
from tailrace_gateway.compile.postgres.nodetree import Node
from tailrace_gateway.compile.postgres.session import ServerError, Session
from tailrace_gateway.compile.postgres.types import INT8
from tailrace_gateway.compile.postgres.uniqueness import Prover
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import PageSpec


def page_plan(
    session: Session,
    catalog: Catalog,
    prover: Prover,
    spec: PageSpec,
    query: Node,
    placed: Placed,
    statement: TypedStatement,
    columns: tuple[ColumnPlan, ...],
) -> PagePlan:
    """The plan of a paged query."""
    names = [column.name for column in columns]
    for name in spec.key:
        if name not in names:
            raise _refused(f"page.key names `{name}`, which is no result column")
    positions = [names.index(name) for name in spec.key]
    if len(set(positions)) < len(positions):
        raise _refused("page.key names a column twice")
    for name, position in zip(spec.key, positions, strict=True):
        if not prover.not_null(query, position + 1):
            raise _refused(f"`{name}` in page.key may be null, as far as can be proven: use a NOT NULL column of a table")
    if not prover.unique(query, frozenset(position + 1 for position in positions)):
        raise _refused("the columns of page.key are not proven to be unique: add the primary key of every table that can repeat")
    descending = _directions(query, catalog, positions)
    keys = [PageKey(name, down) for name, down in zip(spec.key, descending, strict=True)]
    count = len(placed.params)
    key_oids = tuple(columns[position].type_oid for position in positions)
    first = StatementPlan(sql=first_sql(placed.sql, keys, f"${count + 1}"), params=placed.params, oids=(*statement.oids, INT8))
    marks = [f"${count + 1 + n}" for n in range(len(keys))]
    limit = f"${count + 1 + len(keys)}"
    following = StatementPlan(sql=next_sql(placed.sql, keys, marks, limit), params=placed.params, oids=(*statement.oids, *key_oids, INT8))
    for each in (first, following):
        try:
            described = session.describe(each.sql, each.oids)
        except ServerError as error:
            raise RefusedError(
                Refusal.PAGE_KEY, f"the query cannot be paged by this key (SQLSTATE {error.sqlstate})", error.message
            ) from None
        if described.columns != statement.described.columns or described.params != each.oids:
            raise _refused("the paged statement has other columns or parameters than the query")
    return PagePlan(
        keys=tuple(PageKeyPlan(column=position, descending=down) for position, down in zip(positions, descending, strict=True)),
        default_size=min(spec.default_size, spec.max_size),
        max_size=spec.max_size,
        first=first,
        next=following,
    )


def _directions(query: Node, catalog: Catalog, positions: list[int]) -> list[bool]:
    """From the query's ORDER BY, which must be the key's columns in their order, or a beginning of them; ascending without."""
    directions = [False] * len(positions)
    by_reference = {target.integer("ressortgroupref"): target.integer("resno") - 1 for target in query.nodes("targetList")}
    for n, clause in enumerate(query.nodes("sortClause")):
        if n == len(positions):
            break  # a unique key leaves nothing to order
        if by_reference[clause.integer("tleSortGroupRef")] != positions[n]:
            raise _refused("ORDER BY and page.key differ: list the columns of ORDER BY first in page.key, in the same order")
        directions[n] = clause.integer("sortop") in catalog.descending
    return directions


def _refused(hint: str) -> RefusedError:
    return RefusedError(Refusal.PAGE_KEY, hint)
