"""What a SQLite file has: tables, views, columns, unique keys. Rejects nothing. IO: reads the schema through `Session`.

Names are compared in lower case, as SQLite does for ASCII.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.sqlite.session import Session

ROWID_NAMES = frozenset({"rowid", "oid", "_rowid_"})
TABLE_FUNCTIONS = dict.fromkeys(
    ("json_each", "json_tree"), ("key", "value", "type", "atom", "id", "parent", "fullkey", "path", "json", "root")
)
"""Functions that stand in FROM, and their columns. All others (pragma_*, …) are tables that nobody may list."""


@dataclass(frozen=True, slots=True)
class Column:
    """`not_null` holds for the INTEGER PRIMARY KEY too."""

    name: str
    not_null: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table, view or virtual table. `row_key` is the column that is another name of the rowid, if there is one."""

    name: str
    kind: str
    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...]
    row_key: str
    sql: str = field(repr=False)
    opened: frozenset[str] = frozenset()
    """Tables that a view opens underneath."""

    def column(self, name: str) -> Column | None:
        """By its name in lower case."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Catalog:
    """One file at one moment."""

    fingerprint: str
    tables: Mapping[str, Table]
    roots: Mapping[int, str]
    """Table of each b-tree, by its root page; indexes belong to their table."""

    def named(self, schema: str, name: str) -> Table | None:
        """A table as FROM names it."""
        return self.tables.get(name.lower()) if schema.lower() in ("", "main") else None

    @property
    def system(self) -> frozenset[int | str]:
        """Tables that count only when listed: the schema's own, and virtual tables, whose content may be another table's."""
        own = {
            "sqlite_master",
            "sqlite_schema",
            "sqlite_temp_master",
            "sqlite_temp_schema",
            "sqlite_sequence",
            "sqlite_stat1",
            "sqlite_stat4",
        }
        return frozenset(own | {name for name, table in self.tables.items() if table.kind in ("virtual", "shadow")})


def load(session: Session) -> Catalog:
    """Reads the schema."""
    schema = session.rows("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema ORDER BY type, name")
    texts = {str(name).lower(): str(sql or "") for kind, name, _, _, sql in schema if kind in ("table", "view")}
    tables: dict[str, Table] = {}
    for schema_name, name, kind in session.rows("SELECT schema, name, type FROM pragma_table_list"):
        if schema_name == "main" and not str(name).lower().startswith("sqlite_"):
            tables[str(name).lower()] = _table(session, str(name), str(kind), texts.get(str(name).lower(), ""))
    return Catalog(
        fingerprint=hashlib.sha256(repr(schema).encode()).hexdigest(),
        tables=tables,
        roots={int(root): str(table).lower() for _, _, table, root, _ in schema if root},
    )


def _table(session: Session, name: str, kind: str, sql: str) -> Table:
    columns, key = [], []
    for column, type_, not_null, place, hidden in session.rows(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)', (name,)
    ):
        columns.append((str(column).lower(), bool(not_null), hidden in (2, 3)))
        if place:
            key.append((int(place), str(column).lower(), str(type_).upper()))
    without_rowid = bool(session.rows("SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (name,))[0][0])
    row_key = key[0][1] if len(key) == 1 and key[0][2] == "INTEGER" and kind == "table" and not without_rowid else ""
    not_null_keys = {column for _, column, _ in key} if without_rowid else {row_key}
    unique = [frozenset({row_key})] if row_key else []
    for index, is_unique, partial in session.rows('SELECT name, "unique", partial FROM pragma_index_list(?)', (name,)):
        if is_unique and not partial:
            parts = [part for (part,) in session.rows("SELECT name FROM pragma_index_info(?)", (index,))]
            if all(part is not None for part in parts):
                unique.append(frozenset(str(part).lower() for part in parts))
    return Table(
        name=name.lower(),
        kind=kind,
        columns=tuple(Column(column, not_null or column in not_null_keys, generated) for column, not_null, generated in columns),
        unique=tuple(unique),
        row_key=row_key,
        sql=sql,
        opened=opened_by_view(session, name) if kind == "view" else frozenset(),
    )


def opened_by_view(session: Session, name: str) -> frozenset[str]:
    """Root pages are resolved by the caller; here the names of tables that the view's own program opens."""
    roots = {
        int(root): str(table).lower() for table, root in session.rows("SELECT tbl_name, rootpage FROM sqlite_schema WHERE rootpage > 0")
    }
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        opened = session.opened(f"SELECT * FROM {quoted}", 0)  # noqa: S608
    except ServerError:
        return frozenset()  # A view of what isn't there any more: no statement can use it.
    return frozenset(roots[page] for page in opened if page in roots)
