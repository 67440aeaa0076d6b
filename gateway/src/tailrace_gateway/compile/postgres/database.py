"""One PostgreSQL during one compile: puts Describe, probe, lineage and paging together for each query.

Rejects units (`RefusedError`). IO through `Session`.
"""

from tailrace_contract.plan import BigNumbers, Engine, StatementPlan

from tailrace_gateway.compile.decision import Rules
from tailrace_gateway.compile.facts import Facts, RoleOnDatabase
from tailrace_gateway.compile.lineage import EMPTY, Lineage, Origin
from tailrace_gateway.compile.placeholders import place
from tailrace_gateway.compile.postgres import catalog as catalogs
from tailrace_gateway.compile.postgres.describe import column_plans, param_plan, typed
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec, RoleSpec


class PostgresDatabase:
    """Implements `facts.Database`."""

    engine = Engine.POSTGRES

    def __init__(self, session: Session, spec: ConnectionSpec, catalog: catalogs.Catalog | None = None) -> None:
        self._session = session
        self._spec = spec
        current = catalogs.fingerprint(session) if catalog is not None else ""
        self.catalog = catalog if catalog is not None and catalog.fingerprint == current else catalogs.load(session)
        self.fingerprint = self.catalog.fingerprint
        self.session = (*((n, v) for n, v in spec.session if n.lower() != "search_path"), ("search_path", session.search_path))
        self.system = self.catalog.system

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """See `facts.Database`."""
        placed = place(query.sql, [param.name for param in query.params], Engine.POSTGRES)
        params = [query.params[n] for n in placed.params]
        types = self.catalog.types
        statement = typed(self._session, types, placed.sql, params)
        columns = column_plans(types, statement.described, big_numbers)
        oids = dict(zip(placed.params, statement.oids, strict=True))
        return Facts(
            params=tuple(param_plan(types, param, oids[n]) for n, param in enumerate(query.params)),
            columns=columns,
            statement=StatementPlan(sql=placed.sql, params=placed.params, oids=statement.oids),
            page=None,
            lineage=Lineage((EMPTY,) * len(columns), frozenset(), frozenset({0})),
            exclusive_because="" if query.returns == "one" else "unbounded_rows",
        )

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """See `facts.Database`."""
        return RoleOnDatabase(Rules(tables=frozenset() if role.masks or role.tables is not None else None))

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
        return ()

    def close(self) -> None:
        """See `facts.Database`."""
        self._session.__exit__(None, None, None)
