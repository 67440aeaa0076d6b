"""A role's tables and masks on a MySQL server, with everything that depends on a masked column. Pure.

What a mask covers is as on SQLite. A view whose definition our user may not see, or that cannot be decided, is covered whole.
"""

import sqlglot
from sqlglot import exp
from tailrace_contract.plan import Mask

from tailrace_gateway.compile import identifiers
from tailrace_gateway.compile.decision import Rules
from tailrace_gateway.compile.facts import RoleOnDatabase
from tailrace_gateway.compile.lineage import Lineage, Origin
from tailrace_gateway.compile.mysql.catalog import Catalog
from tailrace_gateway.compile.mysql.lineage import walk
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import RoleSpec
from tailrace_gateway.compile.sqlite.catalog import Table
from tailrace_gateway.compile.sqlite.rules import cover, spread


def resolve(role: RoleSpec, catalog: Catalog) -> RoleOnDatabase:
    """The role on this server."""
    masks: dict[Origin, Mask] = {}
    unresolved = set()
    for mask in role.masks:
        parts = _parts(mask.column)
        found = _tables(parts[:-1], catalog)
        having = [table for table in found if table.column(parts[-1].lower()) is not None]
        if not having:
            unresolved.add(mask.column)
        for table in having:
            cover(masks, (table.name, parts[-1].lower()), mask.with_)

    def made_from(table: Table, column: str, masked: set[str]) -> bool:
        return _made_from(table, column, masked, catalog)

    while spread(masks, catalog, lambda view: view_lineage(view, catalog), made_from, filter_on_masked=role.filter_on_masked):
        pass
    tables: frozenset[int | str] | None = None
    if role.tables is not None:
        tables = frozenset(name for text in role.tables if (name := _one(_parts(text), catalog)) is not None)
    return RoleOnDatabase(Rules(tables, masks, role.filter_on_masked), frozenset(unresolved))


def _parts(text: str) -> tuple[str, ...]:
    """Dotted parts; backticks quote like double quotes. None for what is no name."""
    try:
        return identifiers.parts(text.replace("`", '"'))
    except ValueError:
        return ()


def _tables(parts: tuple[str, ...], catalog: Catalog) -> list[Table]:
    """Every table that the name may mean, whatever its letters: a mask must not miss one."""
    if len(parts) not in (1, 2):
        return []
    wanted = catalog.key(parts[0] if len(parts) == 2 else "", parts[-1]).lower()
    return [table for name, table in catalog.tables.items() if name.lower() == wanted]


def _one(parts: tuple[str, ...], catalog: Catalog) -> str | None:
    """The one table that is meant: exactly, or else the only one of these letters."""
    if len(parts) not in (1, 2):
        return None
    exact = catalog.key(parts[0] if len(parts) == 2 else "", parts[-1])
    if exact in catalog.tables:
        return exact
    found = _tables(parts, catalog)
    return found[0].name if len(found) == 1 else None


def view_lineage(view: Table, catalog: Catalog) -> Lineage | None:
    """Where a view's own columns come from; None if that cannot be decided."""
    if not view.sql:
        return None
    try:
        return walk(sqlglot.parse_one(view.sql, dialect="mysql"), catalog)[0]
    except (sqlglot.errors.SqlglotError, RefusedError, RecursionError):
        return None


def _made_from(table: Table, column: str, masked: set[str], catalog: Catalog) -> bool:
    try:
        tree = sqlglot.parse_one(catalog.generated.get((table.name, column), ""), dialect="mysql")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return True
    names = {each.name.lower() for each in tree.find_all(exp.Column, exp.Identifier)} - {column}
    generated = {each.name for each in table.columns if each.generated} - {column}
    return not names or bool(names & masked) or bool(names & generated & masked)
