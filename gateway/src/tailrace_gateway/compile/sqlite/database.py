"""One SQLite file during one compile. Rejects units (`RefusedError`). IO through `Session`."""

import hashlib

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, ColumnPlan, Encoding, Engine, ParamPlan, StatementPlan

from tailrace_gateway.compile.decision import Rules
from tailrace_gateway.compile.facts import Facts, RoleOnDatabase
from tailrace_gateway.compile.lineage import EMPTY, Lineage, Origin
from tailrace_gateway.compile.placeholders import place
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec, RoleSpec
from tailrace_gateway.compile.sqlite.session import Session


class SqliteDatabase:
    """Implements `facts.Database`."""

    engine = Engine.SQLITE

    def __init__(self, session: Session, spec: ConnectionSpec) -> None:
        self._session = session
        self.session = spec.session
        schema = session.rows("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
        self.fingerprint = hashlib.sha256(repr(schema).encode()).hexdigest()
        self.system: frozenset[int | str] = frozenset({"sqlite_schema", "sqlite_master", "sqlite_sequence", "sqlite_stat1", "sqlite_stat4"})

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """See `facts.Database`."""
        placed = place(query.sql, [param.name for param in query.params], Engine.SQLITE)
        try:
            prepared = self._session.prepare(placed.sql, len(placed.params))
        except ServerError as error:
            raise RefusedError(Refusal.DATABASE_REFUSED, "the database does not accept the statement", error.message) from None
        if not prepared.read_only and not query.write:
            raise RefusedError(Refusal.NOT_READ_ONLY, "a query without write: true must be one SELECT or VALUES")
        columns = tuple(ColumnPlan(name=name, encoding=Encoding.STORAGE) for name, _, _ in prepared.columns)
        return Facts(
            params=tuple(
                ParamPlan(
                    name=param.name,
                    type=param.type,
                    array=param.array,
                    required=param.required,
                    nullable=param.nullable,
                    default=param.default,
                    enum=param.enum,
                    minimum=param.minimum,
                    maximum=param.maximum,
                    min_length=param.min_length,
                    max_length=param.max_length,
                    pattern=param.pattern,
                )
                for param in query.params
            ),
            columns=columns,
            statement=StatementPlan(sql=placed.sql, params=placed.params),
            page=None,
            lineage=Lineage((EMPTY,) * len(columns), frozenset(), frozenset({"?"})),
            exclusive_because="engine",
        )

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """See `facts.Database`."""
        return RoleOnDatabase(Rules(tables=frozenset() if role.masks or role.tables is not None else None))

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
