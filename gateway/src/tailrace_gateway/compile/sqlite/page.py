"""Keyset paging on SQLite: proves the key, wraps the saved text. Rejects (`RefusedError`, page_key). IO: prepares through `Session`."""

from sqlglot import exp
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import ColumnPlan, PageKeyPlan, PagePlan, StatementPlan

from tailrace_gateway.compile.paging import PageKey, first_sql, next_sql
from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import PageSpec
from tailrace_gateway.compile.sqlite.catalog import Catalog
from tailrace_gateway.compile.sqlite.session import Session
from tailrace_gateway.compile.sqlite.uniqueness import Proof


def page_plan(
    session: Session, catalog: Catalog, spec: PageSpec, tree: exp.Expr, placed: Placed, columns: tuple[ColumnPlan, ...]
) -> PagePlan:
    """The plan of a paged query."""
    names = [column.name for column in columns]
    proof = Proof(tree, catalog)
    positions = positions_of(spec, names, proof)
    descending = directions(tree, proof, names, positions)
    keys = [PageKey(name, down) for name, down in zip(spec.key, descending, strict=True)]
    count = len(placed.params)
    marks = [f"?{count + 1 + n}" for n in range(len(keys))]
    first = StatementPlan(sql=first_sql(placed.sql, keys, f"?{count + 1}"), params=placed.params)
    following = StatementPlan(sql=next_sql(placed.sql, keys, marks, f"?{count + 1 + len(keys)}"), params=placed.params)
    for statement, places in ((first, count + 1), (following, count + 1 + len(keys))):
        try:
            prepared = session.prepare(statement.sql, places)
        except ServerError as error:
            raise RefusedError(Refusal.PAGE_KEY, "the query cannot be paged by this key", error.message) from None
        if [name for name, _, _ in prepared.columns] != names:
            raise refused("the paged statement has other columns than the query")
    return PagePlan(
        keys=tuple(PageKeyPlan(column=position, descending=down) for position, down in zip(positions, descending, strict=True)),
        default_size=min(spec.default_size, spec.max_size),
        max_size=spec.max_size,
        first=first,
        next=following,
    )


def positions_of(spec: PageSpec, names: list[str], proof: Proof) -> list[int]:
    """Where the key's columns stand in the result, once the key is proven."""
    for name in spec.key:
        if name not in names:
            raise refused(f"page.key names `{name}`, which is no result column")
    positions = [names.index(name) for name in spec.key]
    if len(set(positions)) < len(positions):
        raise refused("page.key names a column twice")
    for name, position in zip(spec.key, positions, strict=True):
        if not proof.not_null(position):
            raise refused(f"`{name}` in page.key may be null, as far as can be proven: use a NOT NULL column of a table")
    if not proof.unique(positions):
        raise refused("the columns of page.key are not proven to be unique: add the primary key of every table that can repeat")
    return positions


def directions(tree: exp.Expr, proof: Proof, names: list[str], positions: list[int]) -> list[bool]:
    """From the query's ORDER BY, which must begin with the key's columns in their order; ascending without."""
    directions = [False] * len(positions)
    order = tree.args.get("order")
    for n, each in enumerate(order.expressions if order is not None else ()):
        if n == len(positions):
            break
        ordered = each if isinstance(each, exp.Ordered) else exp.Ordered(this=each)
        if _position(ordered.this, proof, names) != positions[n]:
            raise refused("ORDER BY and page.key differ: list the columns of ORDER BY first in page.key, in the same order")
        directions[n] = bool(ordered.args.get("desc"))
    return directions


def _position(node: exp.Expr, proof: Proof, names: list[str]) -> int | None:
    if isinstance(node, exp.Literal) and node.name.isdigit():
        return int(node.name) - 1
    if not isinstance(node, exp.Column):
        return None
    if not node.table and node.name in names:
        return names.index(node.name)
    atom = proof.atom(node)
    return proof.expressions.index(atom) if atom is not None and atom in proof.expressions else None


def refused(hint: str) -> RefusedError:
    """The refusal of a key."""
    return RefusedError(Refusal.PAGE_KEY, hint)
