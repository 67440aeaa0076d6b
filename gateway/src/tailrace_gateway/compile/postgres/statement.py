"""One PostgreSQL statement, probed and walked, with pg_depend held against the walk. Rejects (`RefusedError`). IO through `Session`."""

from collections.abc import Sequence
from dataclasses import replace

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.postgres.catalog import FIRST_USER_OID, Catalog
from tailrace_gateway.compile.postgres.lineage import Walked, walk
from tailrace_gateway.compile.postgres.probe import Probed
from tailrace_gateway.compile.refusal import RefusedError

_HARMLESS_CATALOGS = frozenset({"pg_class", "pg_type", "pg_collation", "pg_language", "pg_namespace", "pg_constraint"})
"""Nothing in them runs code of its own: a constraint is what lets a GROUP BY of a primary key show the other columns."""


def decided(probed: Probed, catalog: Catalog, *, write: bool) -> Walked:
    """Walks the tree. Whatever pg_depend lists and the walk did not meet is refused, or counts as consumed: two sources, the stricter wins."""
    walked = walk(probed.query, catalog, write=write)
    lineage = walked.lineage
    consumed = set(lineage.consumed)
    for depend in probed.depends:
        if depend.oid < FIRST_USER_OID and depend.catalog != "pg_class":
            continue  # shipped with the server: the walk decides by its own list
        if depend.catalog not in _HARMLESS_CATALOGS:
            raise RefusedError(
                Refusal.FUNCTION_NOT_ALLOWED, "it depends on a function, operator or cast that was not shipped with the server"
            )
        if depend.catalog == "pg_type" and not catalog.type_allowed(depend.oid):
            raise RefusedError(Refusal.FUNCTION_NOT_ALLOWED, "it depends on a type that queries may not use")
        if depend.catalog != "pg_class":
            continue
        if depend.oid not in lineage.tables | lineage.written:
            if depend.oid not in catalog.relations:
                raise RefusedError(Refusal.NOT_PARSED, "it depends on a relation that is no table or view")
            lineage = replace(lineage, tables=lineage.tables | {depend.oid})
        if depend.attribute > 0 and (depend.oid, depend.attribute) not in walked.seen:
            consumed.add((depend.oid, depend.attribute))
    return replace(walked, lineage=replace(lineage, consumed=frozenset(consumed)))


def columns_match(walked: Walked, count: int, origins: Sequence[tuple[int, int]]) -> None:
    """RowDescription against the walk: as many columns, and an origin that it names must be in the column's flow."""
    flows = walked.lineage.columns
    if len(flows) != count:
        raise RefusedError(Refusal.NOT_PARSED, "the server describes other columns than its parse tree has")
    for flow, (table, number) in zip(flows, origins, strict=True):
        if table and number > 0 and (table, number) not in flow.origins:
            raise RefusedError(Refusal.NOT_PARSED, "the server names another origin of a column than its parse tree")
