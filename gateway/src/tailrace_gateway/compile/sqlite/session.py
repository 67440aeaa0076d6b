"""The compiler's own connection to a SQLite file: it prepares statements and reads the schema; it runs none of them.

Rejects a file that isn't there or is no database (`UnreachableError`), what SQLite cannot prepare (`ServerError`). IO: one read-only connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import apsw

from tailrace_gateway.compile.postgres.session import ServerError, UnreachableError
from tailrace_gateway.serve.sqlite.location import database_path, driver_uri

Value = None | int | float | bytes | str

Action = tuple[int, str | None, str | None, str | None, str | None]
"""What the authorizer was asked: (action code, two arguments, database, innermost view or trigger)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What SQLite says of a statement. `columns`: (name, table, column) with None for what is no plain column, as far as SQLite tells."""

    columns: tuple[tuple[str, str | None, str | None], ...]
    read_only: bool
    explain: bool
    actions: tuple[Action, ...] = field(repr=False)


class Session:
    """One connection. Use as a context manager; not thread-safe."""

    def __init__(self, url: str) -> None:
        path = database_path(url)
        if not path.is_file():
            raise UnreachableError("there is no such file")
        try:
            self._connection = apsw.Connection(driver_uri(path, "ro"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            self._connection.set_busy_timeout(2000)
            self._connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            self._connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
            self.rows("SELECT count(*) FROM sqlite_schema")
        except apsw.Error as error:
            raise UnreachableError("the file cannot be read") from error

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._connection.close()

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Runs one statement of ours."""
        try:
            return [tuple(row) for row in self._connection.execute(sql, tuple(values))]
        except apsw.Error as error:
            raise _translated(error) from error

    def opened(self, sql: str, places: int) -> frozenset[int]:
        """Root pages of the b-trees that the statement's program opens in the main file. EXPLAIN lists the program and runs nothing of it."""
        try:
            program = self._connection.execute(f"EXPLAIN {sql}", (None,) * places)
            return frozenset(int(row[3]) for row in program if row[1] in ("OpenRead", "OpenWrite", "ReopenIdx") and row[4] == 0)
        except apsw.Error as error:
            raise _translated(error) from error

    def prepare(self, sql: str, places: int) -> Prepared:
        """Prepares a statement with the authorizer listening, and stops before its first step."""
        actions: list[Action] = []
        seen: list[Prepared] = []

        def authorize(code: int, first: str | None, second: str | None, database: str | None, inner: str | None) -> int:
            actions.append((code, first, second, database, inner))
            return apsw.SQLITE_OK

        def stop(cursor: apsw.Cursor, statement: str, values: object) -> bool:
            columns = tuple((name, table, column) for name, _, _, table, column in cursor.description_full)
            seen.append(Prepared(columns, cursor.is_readonly, bool(cursor.is_explain), tuple(actions)))
            return False

        self._connection.authorizer = authorize
        try:
            cursor = self._connection.cursor()
            cursor.exec_trace = stop
            cursor.execute(sql, (None,) * places, can_cache=False)
        except apsw.ExecTraceAbort:
            return seen[0]
        except apsw.Error as error:
            raise _translated(error) from error
        finally:
            self._connection.authorizer = None
        raise ServerError("empty", "the statement is empty")


def _translated(error: apsw.Error) -> Exception:
    if isinstance(error, (apsw.BusyError, apsw.IOError, apsw.CantOpenError, apsw.NotADBError, apsw.CorruptError, apsw.LockedError)):
        return UnreachableError("the file cannot be read now")
    return ServerError(type(error).__name__, str(error))
