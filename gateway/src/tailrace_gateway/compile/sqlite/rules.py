"""A role's tables and masks on a SQLite file, with everything that depends on a masked column. Pure.

A mask covers the column, generated columns made from it, and columns of views through which it flows. A view that uses it for anything else than
showing it, or that cannot be decided, is covered whole.
"""

from collections.abc import Callable

import sqlglot
from sqlglot import exp
from tailrace_contract.plan import Mask

from tailrace_gateway.compile import identifiers
from tailrace_gateway.compile.decision import Rules, mask_of
from tailrace_gateway.compile.facts import RoleOnDatabase
from tailrace_gateway.compile.lineage import Lineage, Origin
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import RoleSpec
from tailrace_gateway.compile.sqlite.catalog import Catalog, Table
from tailrace_gateway.compile.sqlite.lineage import walk


def resolve(role: RoleSpec, catalog: Catalog) -> RoleOnDatabase:
    """The role on this file."""
    masks: dict[Origin, Mask] = {}
    unresolved = set()
    for mask in role.masks:
        try:
            *schema, table_name, column = (part.lower() for part in identifiers.parts(mask.column))
        except ValueError:
            unresolved.add(mask.column)
            continue
        table = catalog.tables.get(table_name) if schema in ([], ["main"]) else None
        if table is None or table.column(column) is None:
            unresolved.add(mask.column)
        else:
            cover(masks, (table_name, column), mask.with_)
    while spread(masks, catalog, lambda view: view_lineage(view, catalog), _made_from, filter_on_masked=role.filter_on_masked):
        pass
    tables: frozenset[int | str] | None = None
    if role.tables is not None:
        tables = frozenset(name for each in role.tables if (name := _table(each)) is not None)
    return RoleOnDatabase(Rules(tables, masks, role.filter_on_masked), frozenset(unresolved))


def _table(text: str) -> str | None:
    try:
        *schema, name = (part.lower() for part in identifiers.parts(text))
    except ValueError:
        return None
    return ("sqlite_master" if name == "sqlite_schema" else name) if schema in ([], ["main"]) else None


def cover(masks: dict[Origin, Mask], origin: Origin, mask: Mask) -> bool:
    """Adds a mask; two different ones become null. Says whether anything changed."""
    before = masks.get(origin)
    after = mask if before is None or before is mask else Mask.NULL
    masks[origin] = after
    return before is not after


ViewLineage = Callable[[Table], Lineage | None]
"""Lineage of a view's own query, None if it cannot be decided."""
MadeFrom = Callable[[Table, str, set[str]], bool]
"""Whether a generated column may use one of these columns; yes if its definition can't be read."""


def spread(masks: dict[Origin, Mask], catalog: Catalog, lineage_of: ViewLineage, made_from: MadeFrom, *, filter_on_masked: bool) -> bool:
    """Covers what is made directly from masked columns; says whether anything changed. Used for MySQL too."""
    changed = False
    masked_tables = {table for table, _ in masks}
    for table in catalog.tables.values():
        if table.name in masked_tables:
            masked = {str(column) for name, column in masks if name == table.name}
            for column in table.columns:
                if column.generated and column.name not in masked and made_from(table, column.name, masked):
                    changed |= cover(masks, (table.name, column.name), Mask.NULL)
        if table.kind != "view":
            continue
        lineage = lineage_of(table)
        touched = lineage.tables if lineage is not None else table.opened | masked_tables
        if masked_tables.isdisjoint(touched):
            continue
        whole = lineage is None or len(lineage.columns) != len(table.columns)
        whole = whole or (not filter_on_masked and lineage is not None and not masks.keys().isdisjoint(lineage.consumed))
        for n, column in enumerate(table.columns):
            covering = Mask.NULL if whole or lineage is None else mask_of(lineage.columns[n], masks)
            if covering is not None:
                changed |= cover(masks, (table.name, column.name), covering)
    return changed


def view_lineage(view: Table, catalog: Catalog) -> Lineage | None:
    """Where a view's own columns come from; None if that cannot be decided."""
    try:
        tree = sqlglot.parse_one(view.sql, dialect="sqlite")
        query = tree.expression if isinstance(tree, exp.Create) else None
        return walk(query, catalog)[0] if isinstance(query, exp.Expr) else None
    except (sqlglot.errors.SqlglotError, RefusedError, RecursionError):
        return None


def _made_from(table: Table, column: str, masked: set[str]) -> bool:
    """Whether a generated column may use a masked one; yes if its definition can't be read."""
    try:
        tree = sqlglot.parse_one(table.sql, dialect="sqlite")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return True
    definition = next((each for each in tree.find_all(exp.ColumnDef) if each.name.lower() == column), None)
    if definition is None or not definition.args.get("constraints"):
        return True
    names = {each.name.lower() for each in definition.find_all(exp.Column, exp.Identifier)} - {column}
    generated = {each.name for each in table.columns if each.generated} - {column}
    return not names or bool(names & masked) or bool(names & generated & masked)
