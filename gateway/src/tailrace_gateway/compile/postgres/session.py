"""The compiler's own connection to a PostgreSQL: same pins and search path as serving sessions, read-only by default, short timeouts.

Rejects a malformed URL (`postgres_uri.UriError`), what the server rejects (`ServerError`), a server that cannot be reached (`UnreachableError`). IO: one blocking connection.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row
from tailrace_contract import postgres_uri

from tailrace_gateway.compile import identifiers

PINS = (
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "iso_8601"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
    ("client_encoding", "UTF8"),
    ("standard_conforming_strings", "on"),
)
"""What value encoding and tokens depend on. A connection's `session` may not change them."""


def pinned_search_path(shown: str) -> str:
    """The search path that sessions get: pg_catalog first, so that nothing shadows it; pg_temp last."""
    middle = [name for name in identifiers.listed(shown) if name not in ("pg_catalog", "pg_temp")]
    return ", ".join(["pg_catalog", *(identifiers.quoted(name) for name in middle), "pg_temp"])


class UnreachableError(Exception):
    """No session could be had, or it broke. Worth a retry."""


class ServerError(Exception):
    """The server refused a statement. `message` may hold identifiers: for `check` only."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate
        self.message = message


@dataclass(frozen=True, slots=True)
class Described:
    """What the server says of a prepared statement. Columns: (name, type OID, table OID, column number)."""

    params: tuple[int, ...]
    columns: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files that stand for the URI's sslrootcert, sslcert and sslkey."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


class Session:
    """One connection. Use as a context manager; not thread-safe.

    `pooled`: behind a pooler in transaction mode, where a setting of the session would reach other clients: then everything happens in one
    transaction with settings of its own, each statement behind a savepoint, and closing rolls it back.
    """

    def __init__(
        self,
        url: str,
        settings: Sequence[tuple[str, str]] = (),
        tls: TlsFiles = TlsFiles(),
        statement_timeout_ms: int = 10_000,
        *,
        pooled: bool = False,
    ) -> None:
        uri = postgres_uri.parse(url, postgres_uri.Files(tls.ca, tls.certificate, tls.key))
        given: dict[str, Any] = dict(uri.keywords())
        try:
            self._connection = psycopg.connect(autocommit=True, prepare_threshold=None, **given)
        except psycopg.Error as error:
            raise UnreachableError("connecting failed") from error
        self._connection.cursor_factory = psycopg.RawCursor
        self._pooled = False
        try:
            if pooled:
                self.rows("BEGIN")
                self._pooled = True
            for name, value in (*settings, *PINS, ("statement_timeout", str(statement_timeout_ms)), ("lock_timeout", "2000")):
                self.rows("SELECT set_config($1, $2, $3)", (name, value, pooled))
            self.search_path = pinned_search_path(str(self.rows("SHOW search_path")[0][0]))
            self.rows("SELECT set_config('search_path', $1, $2)", (self.search_path, pooled))
            if not pooled:
                self.rows("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one statement of ours and returns its rows (none for a command)."""
        with self._guarded():
            try:
                with self._connection.cursor(row_factory=tuple_row) as cursor:
                    cursor.execute(sql, values or None)
                    return cursor.fetchall() if cursor.description is not None else []
            except psycopg.Error as error:
                raise _translated(error, self._connection) from error

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """In the one transaction of a pooled session a statement that fails must not take the others with it."""
        if not self._pooled:
            yield
            return
        self._control("SAVEPOINT one")
        try:
            yield
        except ServerError:
            self._control("ROLLBACK TO SAVEPOINT one")
            raise
        self._control("RELEASE SAVEPOINT one")

    def _control(self, sql: str) -> None:
        try:
            self._check(self._connection.pgconn.exec_(sql.encode()))
        except psycopg.Error as error:
            raise _translated(error, self._connection) from error

    @contextmanager
    def rolled_back(self, begin: str = "BEGIN READ ONLY") -> Iterator[None]:
        """A transaction (or, in a pooled session, a part of it) that leaves nothing behind, whatever happens in it."""
        self._control("SAVEPOINT part" if self._pooled else begin)
        try:
            yield
        finally:
            try:
                self._control("ROLLBACK TO SAVEPOINT part" if self._pooled else "ROLLBACK")
            except (ServerError, UnreachableError):
                self._connection.close()

    def command(self, sql: str) -> None:
        """Runs one command by the extended protocol, which refuses several."""
        with self._guarded():
            try:
                self._check(self._connection.pgconn.exec_params(sql.encode(), None))
            except psycopg.Error as error:
                raise _translated(error, self._connection) from error

    def describe(self, sql: str, params: Sequence[int] = ()) -> Described:
        """Prepares an unnamed statement, which plans and runs nothing, and asks for its description."""
        connection = self._connection.pgconn
        encoded = sql.encode()
        with self._guarded():
            try:
                self._check(connection.prepare(b"", encoded, list(params) or None))
                result = connection.describe_prepared(b"")
                self._check(result)
            except psycopg.Error as error:
                raise _translated(error, self._connection) from error
        return Described(
            tuple(result.param_type(n) for n in range(result.nparams)),
            tuple(
                ((result.fname(n) or b"").decode(), result.ftype(n), result.ftable(n), result.ftablecol(n)) for n in range(result.nfields)
            ),
        )

    def _check(self, result: pq.abc.PGresult) -> None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
            if not sqlstate or _passes(sqlstate):
                raise UnreachableError("the connection broke")
            raise ServerError(sqlstate, message)


def _passes(sqlstate: str) -> bool:
    """Whether it says something of this moment (lost, out of something, ended, a lock or a conflict), nothing of the statement."""
    return sqlstate[:2] in ("08", "40", "53", "55", "57")


def _translated(error: psycopg.Error, connection: psycopg.Connection[Any]) -> Exception:
    sqlstate = error.sqlstate or ""
    if connection.closed or connection.broken or _passes(sqlstate) or not sqlstate:
        return UnreachableError("the connection broke")
    return ServerError(sqlstate, error.diag.message_primary or "")
