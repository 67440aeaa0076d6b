"""Keyset paging on MySQL: proves the key, wraps the saved text. Rejects (`RefusedError`, page_key). IO: prepares through `Session`."""

from collections.abc import Sequence

from sqlglot import exp
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import ColumnPlan, MysqlPlace, PageKeyPlan, PagePlan, StatementPlan

from tailrace_gateway.compile.identifiers import quoted
from tailrace_gateway.compile.mysql.catalog import Catalog
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.mysql.types import key_place, shaped
from tailrace_gateway.compile.paging import PageKey, first_sql, next_sql
from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import PageSpec
from tailrace_gateway.compile.sqlite.page import directions, positions_of, refused
from tailrace_gateway.compile.sqlite.uniqueness import Proof
from tailrace_gateway.serve.mysql.wire import Column, same_shape


def page_plan(
    session: Session,
    catalog: Catalog,
    spec: PageSpec,
    tree: exp.Expr,
    placed: Placed,
    places: Sequence[int],
    described: Sequence[Column],
    columns: Sequence[ColumnPlan],
) -> tuple[PagePlan, tuple[ColumnPlan, ...]]:
    """The plan of a paged query, and its columns as the paged statements describe them (the server names the wrapper as their table).

    `places` are those of the placed SQL.
    """
    names = [column.name for column in columns]
    proof = Proof(tree, catalog)
    positions = positions_of(spec, names, proof)
    marks = []
    for name, position in zip(spec.key, positions, strict=True):
        place = key_place(described[position])
        if place is None:
            raise refused(f"`{name}` in page.key has a type whose text does not sort as its values do: page by another column")
        marks.append(place)
    descending = directions(tree, proof, names, positions)
    keys = [PageKey(name, down, "`") for name, down in zip(spec.key, descending, strict=True)]
    first = StatementPlan(sql=first_sql(placed.sql, keys, "?"), params=placed.params, oids=(*places, MysqlPlace.INTEGER))
    following = StatementPlan(sql=_next_sql(placed.sql, keys), params=placed.params, oids=(*places, *marks, MysqlPlace.INTEGER))
    try:
        shown, again = (session.prepare(statement.sql, len(statement.oids)) for statement in (first, following))
    except ServerError as error:
        raise RefusedError(Refusal.PAGE_KEY, "the query cannot be paged by this key", error.message) from None
    if [each.name for each in shown] != names or not same_shape(again, paged := shaped(columns, shown)):
        raise refused("the paged statement has other columns than the query")
    plan = PagePlan(
        keys=tuple(PageKeyPlan(column=position, descending=down) for position, down in zip(positions, descending, strict=True)),
        default_size=min(spec.default_size, spec.max_size),
        max_size=spec.max_size,
        first=first,
        next=following,
    )
    return plan, paged


def _next_sql(sql: str, keys: Sequence[PageKey]) -> str:
    """Each mark stands once in the text: where the order needs one several times, a row of marks is joined."""
    if len({key.descending for key in keys}) == 1:
        return next_sql(sql, keys, ["?"] * len(keys), "?")
    names = [f"tailrace_page_marks.{quoted(f'k{n}', '`')}" for n in range(len(keys))]
    row = ", ".join(f"? AS {quoted(f'k{n}', '`')}" for n in range(len(keys)))
    text = next_sql(sql, keys, names, "?").replace("SELECT * FROM (", "SELECT tailrace_page.* FROM (", 1)
    return text.replace("\n) AS tailrace_page WHERE ", f"\n) AS tailrace_page CROSS JOIN (SELECT {row}) AS tailrace_page_marks WHERE ", 1)
