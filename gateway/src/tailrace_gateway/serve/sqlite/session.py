"""One SQLite connection and the calls on it that block. Everything here runs on a worker thread; only `cancel` may come from another.

By apsw, whose SQLite is as new as the data plane's (the system's may sum floating-point numbers differently). IO: the database file, never
created; reads are opened read-only; ATTACH, PRAGMA and load_extension are refused. Rejects with `StatementFailed`.
"""

import threading
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
from tailrace_contract.plan import ColumnPlan
from tailrace_gateway.serve.engine import Failure, Row, StatementFailed, Value
from tailrace_gateway.serve.sqlite.location import driver_uri
from tailrace_gateway.serve.values import untag

CHUNK_ROWS = 64
PROGRESS_STEPS = 1000
"""Virtual machine steps between two looks at the deadline."""
BUSY_LIMIT_S = 5.0
LENGTH_LIMIT_BYTES = 64 << 20
"""Longest value, statement and row; the data plane's too."""
STATEMENTS = 256

_REFUSED_ACTIONS: Final = frozenset({apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA})
_GONE: Final = frozenset({apsw.SQLITE_CANTOPEN, apsw.SQLITE_IOERR, apsw.SQLITE_NOTADB, apsw.SQLITE_CORRUPT, apsw.SQLITE_FULL})
_WAITED: Final = frozenset({apsw.SQLITE_INTERRUPT, apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED})


def failure_of(error: apsw.Error, write: bool) -> StatementFailed:
    """Maps SQLite's primary result code."""
    primary = getattr(error, "result", apsw.SQLITE_ERROR) & 0xFF
    if primary in _GONE:
        failure = Failure.UNAVAILABLE
    elif primary in _WAITED:
        failure = Failure.TIMEOUT
    elif primary == apsw.SQLITE_CONSTRAINT and write:
        failure = Failure.CONSTRAINT
    else:
        failure = Failure.REFUSED
    return StatementFailed(failure, f"{primary:05d}")


def _busy_ms(remaining_s: float) -> int:
    """How long a lock is waited for."""
    return max(1, round(min(remaining_s, BUSY_LIMIT_S) * 1000))


class Session:
    """A connection with its statement cache. It opens by the deadline, or fails with StatementFailed."""

    def __init__(self, path: Path, write: bool, deadline_s: float) -> None:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise StatementFailed(Failure.TIMEOUT)
        self._write = write
        self._deadline_s = 0.0
        self._left = threading.Event()
        mode = apsw.SQLITE_OPEN_READWRITE if write else apsw.SQLITE_OPEN_READONLY
        connection: apsw.Connection | None = None
        try:
            connection = apsw.Connection(
                driver_uri(path, "rw" if write else "ro"), mode | apsw.SQLITE_OPEN_URI, statementcachesize=STATEMENTS
            )
            connection.set_busy_timeout(_busy_ms(remaining_s))
            connection.pragma("trusted_schema", False)
            connection.pragma("foreign_keys", True)  # off by default in some builds
            if not write:
                connection.pragma("query_only", True)
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except apsw.Error as error:
            if connection is not None:
                connection.close(True)
            raise failure_of(error, write) from None
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, LENGTH_LIMIT_BYTES)
        connection.authorizer = _authorize
        connection.set_progress_handler(self._overdue, PROGRESS_STEPS)
        self._connection = connection

    def _overdue(self) -> bool:
        return self._left.is_set() or time.monotonic() >= self._deadline_s

    def cancel(self) -> None:
        """Ends the statement under way soon; from any thread."""
        self._left.set()

    def close(self) -> None:
        """Closes it."""
        self._connection.close(True)

    def execute(self, sql: str, values: Sequence[Value], columns: Sequence[ColumnPlan] | None, deadline_s: float) -> "Cursor":
        """Begins a statement. `columns` None: whatever it gives; else StatementFailed(STALE) before it runs when the names differ.

        The names are read in a transaction that has already seen the schema, from a statement prepared in it: nothing can change between
        the look and the first row.
        """
        self._deadline_s = deadline_s
        self._left.clear()
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise StatementFailed(Failure.TIMEOUT)
        cursor = self._connection.cursor()
        try:
            self._connection.set_busy_timeout(_busy_ms(remaining_s))
            if columns is not None:
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN")
                self._connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
                names = [column.name for column in columns]
                cursor.exec_trace = lambda running, _sql, _bindings: [each[0] for each in running.get_description()] == names
            cursor.execute(sql, [None if value is None else untag(value) for value in values], can_cache=columns is None)
        except apsw.ExecTraceAbort:
            cursor.close(True)
            raise StatementFailed(Failure.STALE) from None
        except apsw.Error as error:
            cursor.close(True)
            raise failure_of(error, self._write) from None
        except ValueError:
            cursor.close(True)
            raise StatementFailed(Failure.REFUSED) from None
        return Cursor(cursor, self._write)

    def rest(self) -> None:
        """Ends the transaction of a read; StatementFailed when the connection is no longer fit for use."""
        self._deadline_s = float("inf")
        self._left.clear()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            raise failure_of(error, self._write) from None

    def run(self, sql: str, deadline_s: float, values: Sequence[Value] = ()) -> list[Row]:
        """Runs a statement of our own to its end."""
        cursor = self.execute(sql, values, None, deadline_s)
        rows = cursor.chunk(1 << 20)
        cursor.close()
        return rows

    def changes(self) -> int:
        """Rows that the last INSERT, UPDATE or DELETE changed."""
        return self._connection.changes()


class Cursor:
    """Rows of one statement."""

    def __init__(self, cursor: apsw.Cursor, write: bool) -> None:
        self._cursor = cursor
        self._write = write

    def chunk(self, size: int = CHUNK_ROWS) -> list[Row]:
        """The next rows, at most `size`; fewer at the end."""
        try:
            return list(islice(self._cursor, size))
        except apsw.Error as error:
            raise failure_of(error, self._write) from None
        except ValueError:  # text that is not UTF-8
            raise StatementFailed(Failure.REFUSED) from None

    def close(self) -> None:
        """Resets the statement."""
        self._cursor.close(True)


def _authorize(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
    loading = action == apsw.SQLITE_FUNCTION and two == "load_extension"
    return apsw.SQLITE_DENY if action in _REFUSED_ACTIONS or loading else apsw.SQLITE_OK
