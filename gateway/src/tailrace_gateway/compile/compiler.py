"""The compiler's shell: asks each database, keeps what it learnt, decides every (query, role) pair, and assembles the snapshot.

Rejects units, never the whole. IO: reads URL files, opens one short session per connection. Not thread-safe: one compile at a time, off the
serving path.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, Engine, Pooler
from tailrace_contract.uri_parts import Files, UriError

from tailrace_gateway.compile.decision import Verdict, decide
from tailrace_gateway.compile.facts import Database, RoleOnDatabase
from tailrace_gateway.compile.postgres import session as postgres_session
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.refusal import RefusedError, RefusedUnit
from tailrace_gateway.compile.snapshot import Assembled, CompiledConnection, CompiledQuery, Kept, assemble
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, QuerySpec, RoleRules, RoleSpec
from tailrace_gateway.compile.sqlite import session as sqlite_session
from tailrace_gateway.compile.sqlite.database import SqliteDatabase
from tailrace_gateway.serve.params import DeclarationError, Param

_AWAY = "the database cannot be reached; it is tried again"
ENGINES = {"postgres": Engine.POSTGRES, "postgresql": Engine.POSTGRES, "sqlite": Engine.SQLITE, "mysql": Engine.MYSQL}


def read_url(path: str) -> str:
    """The URL in a mounted file; OSError when it isn't there."""
    return Path(path).read_text().strip()


@dataclass(slots=True)
class _Known:
    """What was learnt of one connection. `facts` by digest of the query's spec; kept while URL and spec of the connection are the same."""

    identity: str
    fingerprint: str = ""
    database: Database | None = None
    """The last one that was asked; its session is closed, what it read stays."""
    facts: dict[str, CompiledQuery] = field(default_factory=dict)
    roles: dict[RoleRules, RoleOnDatabase] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of one compile. `unreachable` names connections that should be tried again soon."""

    assembled: Assembled
    warnings: tuple[str, ...]
    unreachable: tuple[str, ...]

    @property
    def refusals(self) -> tuple[RefusedUnit, ...]:
        """Every unit without a plan."""
        return self.assembled.refusals


class Compiler:
    """Compiles whole APIs, again and again; what hasn't changed is not asked twice."""

    def __init__(self, url_of: Callable[[str], str] = read_url) -> None:
        self._url_of = url_of
        self._known: dict[str, _Known] = {}
        self._compiled: dict[str, CompiledQuery] = {}
        self._unknown: dict[RoleRules, frozenset[str]] = {}
        self._kept = Kept()

    def compile(self, spec: ApiSpec, version: int) -> Compiled:
        """One snapshot of the API as its databases are now."""
        for gone in set(self._known) - {connection.name for connection in spec.connections}:
            del self._known[gone]
        connections: dict[str, CompiledConnection] = {}
        queries: dict[str, CompiledQuery] = {}
        unreachable: list[str] = []
        for connection in spec.connections:
            mine = [query for query in spec.queries if query.connection == connection.name]
            state = self._connection(connection, mine, spec.api.big_numbers, queries)
            if state is Refusal.DATABASE_UNREACHABLE:
                unreachable.append(connection.name)
            known = self._known.get(connection.name)
            if known is None:
                continue
            for rules in set(known.roles) - {role.rules for role in spec.roles}:
                del known.roles[rules]
            connections[connection.name] = CompiledConnection(
                Engine(known.identity.partition(" ")[0]),
                known.database.session if known.database is not None else connection.session,
            )
        self._compiled, self._unknown = queries, {}
        assembled = assemble(spec, version, connections, queries, self, self._kept)
        self._kept = assembled.kept
        return Compiled(assembled, tuple(w for known in self._known.values() for w in known.warnings), tuple(unreachable))

    def stale(self, spec: ApiSpec) -> tuple[str, ...]:
        """Connections whose catalog is another than the one compiled against, or that answer again: ask every 10 s, recompile if any."""
        found = []
        for connection in spec.connections:
            known = self._known.get(connection.name)
            try:
                database = self._open(connection, known.database if known is not None else None)
            except (RefusedError, postgres_session.UnreachableError, postgres_session.ServerError, OSError):
                continue
            try:
                if known is None or known.fingerprint != database.fingerprint:
                    found.append(connection.name)
            finally:
                database.close()
        return tuple(found)

    def tables(self, query: QuerySpec) -> tuple[str, ...]:
        """Names of the tables that a query of the last compile reads or writes, for `explain`; none when it was refused."""
        compiled, known = self._compiled.get(query.name), self._known.get(query.connection)
        if compiled is None or compiled.facts is None or known is None or known.database is None:
            return ()
        lineage = compiled.facts.lineage
        return tuple(sorted({known.database.table_name(table) for table in lineage.tables | lineage.written}))

    def _connection(
        self, connection: ConnectionSpec, queries: list[QuerySpec], big: BigNumbers, out: dict[str, CompiledQuery]
    ) -> Refusal | None:
        """Compiles the queries of one connection into `out`; says why it couldn't be asked."""
        try:
            url = self._url_of(connection.url_file)
        except (OSError, UnicodeDecodeError):
            return self._without(connection, queries, big, out, Refusal.MISSING_SECRET, "the connection's URL file is missing", keep=False)
        scheme = urlsplit(url).scheme if "://" in url else ""
        engine = ENGINES.get(scheme)
        if engine is None:
            return self._without(
                connection, queries, big, out, Refusal.UNSUPPORTED_ENGINE, "the URL's scheme is no engine that is served", keep=False
            )
        identity = f"{engine.value} {hashlib.sha256(repr((url, connection)).encode()).hexdigest()}"
        known = self._known.get(connection.name)
        if known is None or known.identity != identity:
            known = self._known[connection.name] = _Known(identity)
        try:
            database = self._open(connection, known.database)
        except RefusedError as error:
            return self._without(connection, queries, big, out, error.code, error.hint, keep=False)
        except (postgres_session.UnreachableError, postgres_session.ServerError):
            return self._without(connection, queries, big, out, Refusal.DATABASE_UNREACHABLE, _AWAY, keep=True)
        try:
            if known.fingerprint != database.fingerprint:
                known.facts.clear()
                known.roles.clear()
            known.fingerprint, known.database = database.fingerprint, database
            known.warnings = database.warnings()
            live: set[str] = set()
            for query in queries:
                digest = _digest(query, big)
                live.add(digest)
                if digest not in known.facts:
                    known.facts[digest] = _compile(database, query, big)
                out[query.name] = known.facts[digest]
            for digest in set(known.facts) - live:
                del known.facts[digest]
        except postgres_session.UnreachableError:
            return self._without(connection, queries, big, out, Refusal.DATABASE_UNREACHABLE, _AWAY, keep=True)
        finally:
            database.close()
        return None

    def _without(
        self,
        connection: ConnectionSpec,
        queries: list[QuerySpec],
        big: BigNumbers,
        out: dict[str, CompiledQuery],
        code: Refusal,
        hint: str,
        *,
        keep: bool,
    ) -> Refusal:
        """A connection that cannot be asked: a query keeps its plan only if its own spec is unchanged and was compiled here before."""
        known = self._known.get(connection.name) if keep else None
        for query in queries:
            last = known.facts.get(_digest(query, big)) if known is not None else None
            out[query.name] = last if last is not None else CompiledQuery(None, code, hint)
        return code

    def _open(self, connection: ConnectionSpec, before: Database | None) -> Database:
        url = self._url_of(connection.url_file)
        scheme = urlsplit(url).scheme
        if scheme == "sqlite":
            return self._open_sqlite(url, connection)
        if scheme == "mysql":
            return self._open_mysql(url, connection, before)
        tls = postgres_session.TlsFiles(connection.ca_file, connection.certificate_file, connection.key_file)
        try:
            session = postgres_session.Session(url, connection.session, tls, pooled=connection.pooler is Pooler.TRANSACTION)
        except UriError as error:
            raise RefusedError(Refusal.INVALID_URL, f"the URL cannot be read: {error}") from None
        try:
            return PostgresDatabase(session, connection, before if isinstance(before, PostgresDatabase) else None)
        except BaseException:
            session.__exit__(None, None, None)
            raise

    def _open_sqlite(self, url: str, connection: ConnectionSpec) -> Database:
        try:
            session = sqlite_session.Session(url)
        except ValueError as error:
            raise RefusedError(Refusal.INVALID_URL, f"the URL cannot be read: {error}") from None
        try:
            return SqliteDatabase(session, connection)
        except BaseException:
            session.close()
            raise

    def _open_mysql(self, url: str, connection: ConnectionSpec, before: Database | None) -> Database:
        # The driver is loaded by those who need it.
        from tailrace_gateway.compile.mysql.database import MysqlDatabase
        from tailrace_gateway.compile.mysql.session import Session

        files = Files(connection.ca_file, connection.certificate_file, connection.key_file)
        try:
            session = Session(url, connection.session, files)
        except UriError as error:
            raise RefusedError(Refusal.INVALID_URL, f"the URL cannot be read: {error}") from None
        try:
            return MysqlDatabase(session, connection, before if isinstance(before, MysqlDatabase) else None)
        except BaseException:
            session.close()
            raise

    def basis(self, role: RoleSpec) -> tuple[object, ...]:
        """See `grants.Judge`."""
        on = ((name, self._system(known), self._role(known, role)) for name, known in self._known.items())
        return (self._unknown_masks(role), *on)

    def verdict(self, query: QuerySpec, role: RoleSpec) -> Verdict:
        """See `grants.Judge`: decides from what is known; a role's change applies although its database is away."""
        known = self._known[query.connection]
        facts, system = self._compiled[query.name].facts, self._system(known)
        on = self._role(known, role)
        if facts is None or system is None or on is None:
            return Verdict(refused=Refusal.DATABASE_UNREACHABLE, hint=_AWAY)
        if unknown := self._unknown_masks(role):
            return Verdict(refused=Refusal.UNKNOWN_MASK, hint=f"no connection has the masked column `{min(unknown)}`: correct its name")
        return decide(facts.lineage, on.rules, system, facts.page_columns)

    def _system(self, known: _Known) -> frozenset[int | str] | None:
        return known.database.system if known.database is not None else None

    def _role(self, known: _Known, role: RoleSpec) -> RoleOnDatabase | None:
        rules = role.rules
        if rules not in known.roles:
            if known.database is None:
                return None
            try:
                known.roles[rules] = known.database.role(role)
            except (postgres_session.UnreachableError, postgres_session.ServerError):
                return None
        return known.roles[rules]

    def _unknown_masks(self, role: RoleSpec) -> frozenset[str]:
        """Masked columns that no database has: a typing error must not unmask. A database never seen may have them."""
        if not role.masks:
            return frozenset()
        rules = role.rules
        if rules not in self._unknown:
            found = [self._role(known, role) for known in self._known.values()]
            missing = [on.unresolved for on in found if on is not None]
            surely = len(missing) == len(found) and missing
            self._unknown[rules] = missing[0].intersection(*missing[1:]) if surely else frozenset()
        return self._unknown[rules]


def _compile(database: Database, query: QuerySpec, big: BigNumbers) -> CompiledQuery:
    if query.twice:
        return CompiledQuery(None, Refusal.DUPLICATE_NAME, query.twice)
    try:
        facts = database.facts(query, big)
        for param in facts.params:
            Param(param, database.engine)
        return CompiledQuery(facts)
    except DeclarationError as error:
        return CompiledQuery(None, Refusal.INVALID_PARAMETER, str(error))
    except RefusedError as error:
        return CompiledQuery(None, error.code, error.hint, error.detail)


def _digest(query: QuerySpec, big: BigNumbers) -> str:
    return hashlib.sha256(repr((query, query.sql, big)).encode()).hexdigest()
