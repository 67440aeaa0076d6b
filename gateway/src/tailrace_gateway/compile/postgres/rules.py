"""A role's tables and masks, as names → the same as OIDs, with everything that depends on a masked column. Pure but for the views' trees.

A mask covers the column, the same attribute of children (and of parents, which show the children's rows), generated columns made from it, and
columns of views and materialized views through which it flows. A view that uses it for anything else than showing it is covered whole.
"""

from collections.abc import Callable

from tailrace_contract.plan import Mask

from tailrace_gateway.compile import identifiers
from tailrace_gateway.compile.decision import Rules, mask_of
from tailrace_gateway.compile.facts import RoleOnDatabase
from tailrace_gateway.compile.lineage import Lineage, Origin
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.spec import RoleSpec

ViewLineage = Callable[[int], Lineage | None]
"""Lineage of a view's own query, None if it cannot be decided."""


def resolve(role: RoleSpec, catalog: Catalog, view_lineage: ViewLineage) -> RoleOnDatabase:
    """The role on this database, in its search path."""
    masks: dict[tuple[int, int], Mask] = {}
    unresolved = set()
    for mask in role.masks:
        origin = _column(mask.column, catalog)
        if origin is None:
            unresolved.add(mask.column)
        else:
            _cover(masks, origin, mask.with_)
    while _spread(masks, catalog, view_lineage, filter_on_masked=role.filter_on_masked):
        pass
    tables: frozenset[int | str] | None = None
    if role.tables is not None:
        found = (_table(name, catalog) for name in role.tables)
        tables = frozenset(oid for oid in found if oid is not None)
    covered: dict[Origin, Mask] = {(table, number): mask for (table, number), mask in masks.items()}
    return RoleOnDatabase(Rules(tables, covered, role.filter_on_masked), frozenset(unresolved))


def _table(name: str, catalog: Catalog) -> int | None:
    try:
        return catalog.find(identifiers.parts(name))
    except ValueError:
        return None


def _column(name: str, catalog: Catalog) -> tuple[int, int] | None:
    try:
        *table, column = identifiers.parts(name)
    except ValueError:
        return None
    oid = catalog.find(tuple(table))
    attribute = catalog.relations[oid].attribute(column) if oid is not None else None
    return (oid, attribute.number) if oid is not None and attribute is not None else None


def _cover(masks: dict[tuple[int, int], Mask], origin: tuple[int, int], mask: Mask) -> bool:
    """Adds a mask; two different ones become null. Says whether anything changed."""
    before = masks.get(origin)
    after = mask if before is None or before is mask else Mask.NULL
    masks[origin] = after
    return before is not after


def _spread(masks: dict[tuple[int, int], Mask], catalog: Catalog, view_lineage: ViewLineage, *, filter_on_masked: bool) -> bool:
    changed = False
    covered: dict[Origin, Mask] = {(table, number): mask for (table, number), mask in masks.items()}
    children: dict[int, list[int]] = {}
    for child, parents in catalog.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)
    for (table, number), mask in list(masks.items()):
        relation = catalog.relations[table]
        name = next(attribute.name for attribute in relation.attributes if attribute.number == number)
        for other in (*children.get(table, ()), *catalog.parents.get(table, ())):
            same = catalog.relations[other].attribute(name) if other in catalog.relations else None
            if same is not None:
                changed |= _cover(masks, (other, same.number), mask)
    for (table, number), sources in catalog.generated.items():
        if any((table, source) in masks for source in sources):
            changed |= _cover(masks, (table, number), Mask.NULL)
    for view, depends in catalog.view_columns.items():
        relation_of_view = catalog.relations.get(view)
        # pg_depend names no column for a whole row (`SELECT c FROM customers c`): any masked column of a table that the view reads counts.
        if relation_of_view is None or not any(table == masked for table, _ in depends for masked, _ in masks):
            continue
        lineage = view_lineage(view)
        whole = lineage is None or len(lineage.columns) < len(relation_of_view.attributes)
        whole = whole or (not filter_on_masked and lineage is not None and not masks.keys().isdisjoint(lineage.consumed))
        for position, attribute in enumerate(relation_of_view.attributes):
            covering = Mask.NULL if whole or lineage is None else mask_of(lineage.columns[position], covered)
            if covering is not None:
                changed |= _cover(masks, (view, attribute.number), covering)
    return changed
