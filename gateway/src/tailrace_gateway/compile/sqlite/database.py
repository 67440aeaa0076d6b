"""One SQLite file during one compile. Rejects units (`RefusedError`). IO through `Session`.

Three sources are held against each other: the syntax tree says where each column stands; the authorizer says which columns the statement reads
(it misses those of USING and NATURAL); the compiled program says which b-trees it opens. What only one of them knows is refused or consumed.
"""

from dataclasses import replace

import apsw
import sqlglot
from sqlglot import exp
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, ColumnPlan, Encoding, Engine, StatementPlan

from tailrace_gateway.compile.facts import Facts, RoleOnDatabase, param_plan
from tailrace_gateway.compile.lanes import exclusive_because
from tailrace_gateway.compile.lineage import Flow, Lineage, Origin
from tailrace_gateway.compile.placeholders import first_word, place, with_names
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec, RoleSpec
from tailrace_gateway.compile.sqlite import catalog as catalogs
from tailrace_gateway.compile.sqlite import rules
from tailrace_gateway.compile.sqlite.functions import ALLOWED, VOLATILE
from tailrace_gateway.compile.sqlite.lineage import walk
from tailrace_gateway.compile.sqlite.page import page_plan
from tailrace_gateway.compile.sqlite.session import Prepared, Session

_READS = frozenset({"select", "values", "with"})
_WRITES = frozenset({"insert", "update", "delete", "with"})
_READING = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_WRITING = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})


class SqliteDatabase:
    """Implements `facts.Database`. After `close` it still resolves roles from what it has read."""

    engine = Engine.SQLITE

    def __init__(self, session: Session, spec: ConnectionSpec) -> None:
        self._session = session
        self.session = spec.session
        self._spec = spec
        self.catalog = catalogs.load(session)
        self.fingerprint = self.catalog.fingerprint
        self.system = self.catalog.system

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """See `facts.Database`."""
        if first_word(query.sql, Engine.SQLITE) not in (_WRITES if query.write else _READS):
            raise RefusedError(Refusal.NOT_READ_ONLY, _KIND_HINT)
        placed = place(query.sql, [param.name for param in query.params], Engine.SQLITE)
        places = len(placed.params)
        try:
            prepared = self._session.prepare(placed.sql, places)
            opened = self._session.opened(placed.sql, places)
        except ServerError as error:
            raise RefusedError(Refusal.DATABASE_REFUSED, "the database does not accept the statement", error.message) from None
        try:
            tree = sqlglot.parse_one(with_names(placed.sql, Engine.SQLITE), dialect="sqlite")
        except (sqlglot.errors.SqlglotError, RecursionError):
            raise RefusedError(Refusal.NOT_PARSED, "the parser does not understand the statement") from None
        if prepared.explain or prepared.read_only == query.write:
            raise RefusedError(Refusal.NOT_READ_ONLY, _KIND_HINT)
        owners = self._owners(tree)
        functions = self._functions(prepared, owners, write=query.write)
        lineage = self._lineage(tree, prepared, opened, owners, write=query.write)
        encoding = Encoding.STORAGE_QUOTED if big_numbers is BigNumbers.STRING else Encoding.STORAGE
        columns = tuple(ColumnPlan(name=name, encoding=encoding) for name, _, _ in prepared.columns)
        page = page_plan(self._session, self.catalog, query.page, tree, placed, columns) if query.page is not None else None
        return Facts(
            params=tuple(param_plan(param) for param in query.params),
            columns=columns,
            statement=StatementPlan(sql=placed.sql, params=placed.params),
            page=page,
            lineage=lineage,
            exclusive_because=exclusive_because(query, page, bool(functions & VOLATILE), None) or "sqlite",
            depends=self.fingerprint
            if any(self.catalog.tables[str(t)].kind == "view" for t in lineage.tables if t in self.catalog.tables)
            else "",
        )

    def _owners(self, tree: exp.Expr) -> frozenset[str]:
        """Views whose inside is their owner's matter. A WITH query of the same name is the author's."""
        mine = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        return frozenset(name for name, table in self.catalog.tables.items() if table.kind == "view" and name not in mine)

    def _functions(self, prepared: Prepared, owners: frozenset[str], *, write: bool) -> frozenset[str]:
        """Checks every action; says which functions are called."""
        called = set()
        for code, _, second, _, inner in prepared.actions:
            if code == apsw.SQLITE_FUNCTION:
                name = str(second).lower()
                called.add(name)
                if name not in ALLOWED and (inner or "").lower() not in owners:
                    raise RefusedError(
                        Refusal.FUNCTION_NOT_ALLOWED, f"the function {name} is not on the list of functions that queries may use"
                    )
            elif code not in _READING and not (write and code in _WRITING):
                raise RefusedError(Refusal.NOT_READ_ONLY, _KIND_HINT)
        return frozenset(called)

    def _lineage(self, tree: exp.Expr, prepared: Prepared, opened: frozenset[int], owners: frozenset[str], *, write: bool) -> Lineage:
        lineage, seen, names = walk(tree, self.catalog)
        self._names(prepared, names)
        tables, consumed = set(lineage.tables), set(lineage.consumed)
        for code, first, second, _, inner in prepared.actions:
            if code != apsw.SQLITE_READ or (inner or "").lower() in owners:
                continue
            table, column = str(first).lower(), str(second).lower()
            if table in self.catalog.tables or table.startswith("sqlite_"):
                tables.add(table)
                if column and (table, column) not in seen:
                    consumed.add((table, column))
            elif table not in catalogs.TABLE_FUNCTIONS:
                raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "it reads a table that is none of the file's own")
        explained = tables | lineage.written
        for name in list(explained):
            if str(name) in self.catalog.tables:
                explained |= self.catalog.tables[str(name)].opened
        if not write and any(self.catalog.roots.get(page, "sqlite_master") not in explained for page in opened):
            raise RefusedError(Refusal.NOT_PARSED, "the statement opens a table that its text does not show")
        columns = []
        for flow, (_, table_name, column_name) in zip(lineage.columns, prepared.columns, strict=True):
            origin: Origin = ((table_name or "").lower(), (column_name or "").lower())
            if table_name is not None and origin not in flow.origins and origin[0] in self.catalog.tables:
                flow = Flow(flow.plain | {origin}, flow.computed) if not flow.computed else Flow(flow.plain, flow.computed | {origin})
            columns.append(flow)
        return replace(lineage, columns=tuple(columns), tables=frozenset(tables), consumed=frozenset(consumed))

    def _names(self, prepared: Prepared, names: list[str]) -> None:
        found = [name for name, _, _ in prepared.columns]
        if len(found) != len(names):
            raise RefusedError(Refusal.NOT_PARSED, "SQLite shows another number of columns than the text")
        for shown, name in zip(found, names, strict=True):
            if not name:
                raise RefusedError(Refusal.UNNAMED_COLUMN, "a result column has no name: give it one with AS")
            if shown.lower() != name:
                raise RefusedError(Refusal.NOT_PARSED, "SQLite shows another name of a column than the text")
            if found.count(shown) > 1:
                raise RefusedError(Refusal.DUPLICATE_COLUMN, f"two result columns are named `{shown}`: rename one with AS")

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """See `facts.Database`."""
        return rules.resolve(role, self.catalog)

    def table_name(self, table: int | str) -> str:
        """See `facts.Database`."""
        return str(table)

    def column_name(self, origin: Origin) -> str:
        """See `facts.Database`."""
        return f"{origin[0]}.{origin[1]}"

    def warnings(self) -> tuple[str, ...]:
        """See `facts.Database`."""
        return ()

    def close(self) -> None:
        """See `facts.Database`."""
        self._session.close()


_KIND_HINT = "a saved query is one SELECT or VALUES that changes nothing; with write: true one INSERT, UPDATE or DELETE"
