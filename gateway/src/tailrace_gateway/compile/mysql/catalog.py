"""What a MySQL or MariaDB has: tables, views, columns, unique keys, over all schemas that our user sees. Rejects nothing. IO: reads
information_schema through `Session`.

A table's key is `schema.table`; columns are compared in lower case, as the server does. Tables of the server's own schemas are in no catalog: no
query can name them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.sqlite import catalog as base
from tailrace_gateway.compile.sqlite.catalog import Column, Table

_OWN = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_TABLES = """
SELECT table_schema, table_name, table_type, engine FROM information_schema.tables WHERE table_schema NOT IN @own@ ORDER BY 1, 2
"""
_COLUMNS = """
SELECT table_schema, table_name, column_name, is_nullable, generation_expression, data_type, column_type, collation_name
FROM information_schema.columns WHERE table_schema NOT IN @own@ ORDER BY table_schema, table_name, ordinal_position
"""
_INDEXES = """
SELECT table_schema, table_name, index_name, column_name, sub_part, index_type
FROM information_schema.statistics WHERE non_unique = 0 AND table_schema NOT IN @own@ ORDER BY table_schema, table_name, index_name, seq_in_index
"""
_VIEWS = """
SELECT table_schema, table_name, view_definition FROM information_schema.views WHERE table_schema NOT IN @own@ ORDER BY 1, 2
"""
_ELSEWHERE = frozenset({"mrg_myisam", "federated", "connect", "spider", "sphinx", "oqgraph", "csv", "s3", "ndb"})
"""Storage engines whose tables may hold another table's content: they count only when listed."""


@dataclass(frozen=True, slots=True)
class Catalog(base.Catalog):
    """One server at one moment, for one default schema."""

    default: str = ""
    folded: bool = False
    """Whether names of tables and schemas are compared in lower case."""
    elsewhere: frozenset[str] = frozenset()
    generated: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Expressions of generated columns, by table key and column."""
    types: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Data types in lower case, likewise."""
    collations: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def key(self, schema: str, name: str) -> str:
        """A table's key."""
        key = f"{schema or self.default}.{name}"
        return key.lower() if self.folded else key

    def named(self, schema: str, name: str) -> Table | None:
        """See `sqlite.catalog.Catalog`."""
        return self.tables.get(self.key(schema, name))

    @property
    def system(self) -> frozenset[int | str]:
        """See `sqlite.catalog.Catalog`."""
        return frozenset(self.elsewhere)


def load(session: Session) -> Catalog:
    """Reads the catalog."""
    tables, columns, indexes, views = (session.rows(text.replace("@own@", _OWN)) for text in (_TABLES, _COLUMNS, _INDEXES, _VIEWS))
    settings = session.rows("SELECT database(), @@lower_case_table_names, @@version, current_user(), @@collation_connection")[0]
    fingerprint = hashlib.sha256(repr((tables, columns, indexes, views, settings)).encode()).hexdigest()
    default, folded = settings[0] or "", settings[1] != "0"

    def key(schema: str | None, name: str | None) -> str:
        return f"{schema}.{name}".lower() if folded else f"{schema}.{name}"

    found: dict[str, list[Column]] = {}
    generated, types, collations = {}, {}, {}
    for schema, table, name, nullable, expression, data_type, _, collation in columns:
        column = (name or "").lower()
        found.setdefault(key(schema, table), []).append(Column(column, nullable == "NO", bool(expression)))
        types[key(schema, table), column] = (data_type or "").lower()
        collations[key(schema, table), column] = collation or ""
        if expression:
            generated[key(schema, table), column] = expression
    unique: dict[str, dict[str, list[str | None]]] = {}
    for schema, table, index, part, prefix, kind in indexes:
        whole = part.lower() if part is not None and prefix is None and kind == "BTREE" else None
        unique.setdefault(key(schema, table), {}).setdefault(index or "", []).append(whole)
    definitions = {key(schema, table): definition or "" for schema, table, definition in views}
    known = {}
    for schema, table, kind, _ in tables:
        name = key(schema, table)
        keys = [frozenset(part for part in parts if part) for parts in unique.get(name, {}).values() if all(parts)]
        is_view = kind == "VIEW"
        known[name] = Table(
            name, "view" if is_view else "table", tuple(found.get(name, ())), tuple(keys), "", definitions.get(name, "") if is_view else ""
        )
    elsewhere = frozenset(key(schema, table) for schema, table, _, engine in tables if (engine or "").lower() in _ELSEWHERE)
    return Catalog(fingerprint, known, {}, default, folded, elsewhere, generated, types, collations)
