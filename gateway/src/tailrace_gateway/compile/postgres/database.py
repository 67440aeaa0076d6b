"""One PostgreSQL during one compile: puts Describe, probe, lineage and paging together for each query.

Rejects units (`RefusedError`). IO through `Session`.
"""

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, Engine, PagePlan, Pooler, StatementPlan

from tailrace_gateway.compile.facts import Facts, RoleOnDatabase
from tailrace_gateway.compile.lanes import exclusive_because
from tailrace_gateway.compile.lineage import Lineage, Origin
from tailrace_gateway.compile.placeholders import first_word, place
from tailrace_gateway.compile.postgres import catalog as catalogs
from tailrace_gateway.compile.postgres import nodetree, rules
from tailrace_gateway.compile.postgres.coalescing import Statement, coalesced
from tailrace_gateway.compile.postgres.describe import column_plans, param_plan, typed
from tailrace_gateway.compile.postgres.lineage import walk
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError
from tailrace_gateway.compile.postgres.page import page_plan
from tailrace_gateway.compile.postgres.parsed import parsed
from tailrace_gateway.compile.postgres.probe import UnavailableError, probe
from tailrace_gateway.compile.postgres.session import PINS, Session
from tailrace_gateway.compile.postgres.statement import columns_match, decided
from tailrace_gateway.compile.postgres.uniqueness import Prover
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec, RoleSpec

_READS = frozenset({"select", "values", "table", "with", "("})
_WRITES = frozenset({"insert", "update", "delete", "with"})


class PostgresDatabase:
    """Implements `facts.Database`. After `close` it still resolves roles from what it has read."""

    engine = Engine.POSTGRES

    def __init__(self, session: Session, spec: ConnectionSpec, before: "PostgresDatabase | None" = None) -> None:
        for name, _ in spec.session:
            if name.lower() in {pinned.lower() for pinned, _ in PINS}:
                raise RefusedError(
                    Refusal.DATABASE_REFUSED, f"the setting `{name}` is fixed, because answers depend on it: remove it from session"
                )
        self._session = session
        self._spec = spec
        self.catalog: catalogs.Catalog
        self._views: dict[int, Node | None] = {}
        self._lineages: dict[int, Lineage | None] = {}
        self._texts: dict[int, str] = {}
        if before is not None and before.catalog.fingerprint == catalogs.fingerprint(session):
            self.catalog, self._views, self._lineages, self._texts = before.catalog, before._views, before._lineages, before._texts
        else:
            self.catalog = catalogs.load(session)
            self._texts = dict(session.rows(_VIEWS))
        self.fingerprint: str = self.catalog.fingerprint
        self.session = (*((n, v) for n, v in spec.session if n.lower() != "search_path"), ("search_path", session.search_path))
        self.system = self.catalog.system
        self._prover = Prover(self.catalog, self.view_query)

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """See `facts.Database`."""
        if first_word(query.sql, Engine.POSTGRES) not in (_WRITES if query.write else _READS):
            raise RefusedError(
                Refusal.NOT_READ_ONLY,
                "a query with write: true is one INSERT, UPDATE or DELETE"
                if query.write
                else "a saved query is one SELECT, VALUES or TABLE",
            )
        placed = place(query.sql, [param.name for param in query.params], Engine.POSTGRES)
        params = [query.params[n] for n in placed.params]
        types = self.catalog.types
        statement = typed(self._session, types, placed.sql, params)
        tree: Node | None = None
        try:
            probed = probe(self._session, placed.sql, statement.oids)
            tree = probed.query
            walked = decided(probed, self.catalog, write=query.write)
        except UnavailableError:
            if query.write:
                raise RefusedError(
                    Refusal.NOT_PARSED, "a write needs a role with TEMP right on the database: what it touches can't be told"
                ) from None
            walked = parsed(placed.sql, self.catalog, statement.described.columns)
        columns = column_plans(types, statement.described, big_numbers)
        columns_match(walked, len(columns), [(column.table_oid, column.column_number) for column in columns])
        oids = dict(zip(placed.params, statement.oids, strict=True))
        page: PagePlan | None = None
        if query.page is not None:
            if tree is None:
                raise RefusedError(Refusal.PAGE_KEY, "without TEMP right on the database (or on a standby) no key can be proven")
            page = page_plan(self._session, self.catalog, self._prover, query.page, tree, placed, statement, columns)
        limit = _constant_limit(tree) if tree is not None else None
        because = exclusive_because(query, page, walked.volatile, limit)
        tables = walked.lineage.tables | walked.lineage.written
        if self._spec.pooler is Pooler.TRANSACTION:
            batch, alone = None, "pooler"
        else:
            batch, alone = coalesced(
                self._session, self.catalog, self.view_query, query, Statement(placed, statement, tree, limit, tables, because)
            )
        return Facts(
            params=tuple(param_plan(types, param, oids[n]) for n, param in enumerate(query.params)),
            columns=columns,
            statement=StatementPlan(sql=placed.sql, params=placed.params, oids=statement.oids),
            page=page,
            lineage=walked.lineage,
            exclusive_because=because,
            coalesce=batch,
            not_coalesced_because=alone,
            depends=self._depends(walked.lineage),
        )

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """See `facts.Database`."""
        return rules.resolve(role, self.catalog, self.view_lineage)

    def view_query(self, view: int) -> Node | None:
        """The tree of a view or materialized view; None if it can't be read."""
        if view not in self._views:
            text = self._texts.pop(view, "")
            try:
                found = nodetree.queries(text) if text else []
            except NotATreeError:
                found = []
            self._views[view] = found[0] if len(found) == 1 else None
        return self._views[view]

    def view_lineage(self, view: int) -> Lineage | None:
        """Where a view's own columns come from; None if it can't be decided."""
        if view not in self._lineages:
            tree = self.view_query(view)
            try:
                self._lineages[view] = walk(tree, self.catalog, owner=True).lineage if tree is not None else None
            except RefusedError:
                self._lineages[view] = None
        return self._lineages[view]

    def _depends(self, lineage: Lineage) -> str:
        """Digest over the definitions of views that the statement reads, directly or not."""
        views: set[int] = set()
        waiting = [int(table) for table in lineage.tables]
        while waiting:
            table = waiting.pop()
            if table in self.catalog.view_columns and table not in views:
                views.add(table)
                waiting += [other for other, _ in self.catalog.view_columns[table]]
        if not views:
            return ""
        rows = self._session.rows(
            "SELECT md5(string_agg(ev_class::text || ev_action::text, ',' ORDER BY oid)) FROM pg_rewrite WHERE ev_class = ANY($1::int8[]::oid[])",
            (sorted(views),),
        )
        return str(rows[0][0])

    def table_name(self, table: int | str) -> str:
        """See `facts.Database`."""
        relation = self.catalog.relations.get(int(table))
        return f"{relation.schema}.{relation.name}" if relation is not None else str(table)

    def column_name(self, origin: Origin) -> str:
        """See `facts.Database`."""
        relation = self.catalog.relations.get(int(origin[0]))
        name = next((a.name for a in relation.attributes if a.number == origin[1]), "*") if relation is not None else "?"
        return f"{self.table_name(origin[0])}.{name}"

    def warnings(self) -> tuple[str, ...]:
        """See `facts.Database`."""
        where = f"connection `{self._spec.name}`"
        found = []
        if self.catalog.superuser:
            found.append(
                f"{where}: its database role is a superuser, whom no right of the database limits: use a role that may only read what is served"
            )
        owned = sorted(
            relation.name
            for relation in self.catalog.relations.values()
            if relation.owner == self.catalog.user and relation.oid not in self.system
        )
        if owned and not self.catalog.superuser:
            found.append(
                f"{where}: its database role owns tables ({owned[0]}, {len(owned)} in all), so it may alter and drop them: use another role"
            )
        return tuple(found)

    def close(self) -> None:
        """See `facts.Database`."""
        self._session.__exit__(None, None, None)


_VIEWS = (
    "SELECT ev_class::int8, ev_action::text FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class"
    " WHERE rulename = '_RETURN' AND r.oid >= 16384 AND relkind IN ('v', 'm')"
)
"""Trees of all views at once: roles must resolve although the database has gone since."""


def _constant_limit(query: Node) -> int | None:
    """The number in a LIMIT that is one."""
    limit = query.node("limitCount")
    if limit is not None and limit.tag == "FUNCEXPR" and len(limit.nodes("args")) == 1:
        limit = limit.nodes("args")[0]  # the cast of a literal to int8
    if limit is None or limit.tag != "CONST":
        return None
    value = limit.get("constvalue")
    if not isinstance(value, list) or not isinstance(value[1], bytes):
        return None
    return int.from_bytes(value[1][:8], "little", signed=True)
