"""One SQLite connection and the calls on it that block. Everything here runs on a worker thread; only `cancel` may come from another.

IO: the database file. Rejects with `StatementFailed`. The file is never created; reads are opened `mode=ro`; ATTACH and PRAGMA are refused.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

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

_REFUSED_ACTIONS: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA})
_GONE: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL}
)


def failure_of(error: sqlite3.Error, write: bool) -> StatementFailed:
    """Maps SQLite's primary result code."""
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if primary in _GONE:
        failure = Failure.UNAVAILABLE
    elif primary in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        failure = Failure.TIMEOUT
    elif primary == sqlite3.SQLITE_CONSTRAINT and write:
        failure = Failure.CONSTRAINT
    else:
        failure = Failure.REFUSED
    return StatementFailed(failure, f"{primary:05d}")


class Session:
    """A connection with its statement cache."""

    def __init__(self, path: Path, write: bool, text_factory: Callable[[bytes], object]) -> None:
        self._write = write
        self._deadline_s = 0.0
        self._left = threading.Event()
        self._own = False
        try:
            mode = "rw" if write else "ro"
            self._connection = sqlite3.connect(
                driver_uri(path, mode), uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_LIMIT_S
            )
        except sqlite3.Error as error:
            raise failure_of(error, write) from None
        self._connection.text_factory = text_factory
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            if not write:
                self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except sqlite3.Error as error:
            self._connection.close()
            raise failure_of(error, write) from None
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LENGTH_LIMIT_BYTES)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._overdue, PROGRESS_STEPS)

    def _authorize(self, action: int, *what: str | None) -> int:
        loading = action == sqlite3.SQLITE_FUNCTION and "load_extension" in what
        return sqlite3.SQLITE_DENY if (action in _REFUSED_ACTIONS and not self._own) or loading else sqlite3.SQLITE_OK

    def _overdue(self) -> bool:
        return self._left.is_set() or time.monotonic() >= self._deadline_s

    def cancel(self) -> None:
        """Ends the statement under way soon; from any thread."""
        self._left.set()

    def close(self) -> None:
        """Closes it."""
        self._connection.close()

    def execute(
        self,
        sql: str,
        values: Sequence[Value],
        columns: Sequence[ColumnPlan] | None,
        deadline_s: float,
    ) -> "Cursor":
        """Runs to the first row. `columns` None: whatever it gives. StatementFailed(STALE) when the names differ from the plan's."""
        self._deadline_s = deadline_s
        self._left.clear()
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise StatementFailed(Failure.TIMEOUT)
        try:
            self._own = True
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {round(min(remaining_s, BUSY_LIMIT_S) * 1000)}")
            finally:
                self._own = False
            made = self._connection.execute(sql, [None if value is None else untag(value) for value in values])
        except sqlite3.Error as error:
            raise failure_of(error, self._write) from None
        except (ValueError, OverflowError):
            raise StatementFailed(Failure.REFUSED) from None
        if columns is not None:
            names = [described[0] for described in made.description or ()]
            if names != [column.name for column in columns]:
                made.close()
                raise StatementFailed(Failure.STALE)
        return Cursor(made, self._write)

    def run(self, sql: str, deadline_s: float, values: Sequence[Value] = ()) -> list[Row]:
        """Runs a statement of our own to its end."""
        cursor = self.execute(sql, values, None, deadline_s)
        rows = cursor.chunk(1 << 20)
        cursor.close()
        return rows

    def changes(self, deadline_s: float) -> int:
        """Rows that the last INSERT, UPDATE or DELETE changed."""
        changed = self.run("SELECT changes()", deadline_s)[0][0]
        assert isinstance(changed, int)
        return changed


class Cursor:
    """Rows of one statement."""

    def __init__(self, cursor: sqlite3.Cursor, write: bool) -> None:
        self._cursor = cursor
        self._write = write

    def chunk(self, size: int = CHUNK_ROWS) -> list[Row]:
        """The next rows, at most `size`; fewer at the end."""
        try:
            return self._cursor.fetchmany(size)
        except sqlite3.Error as error:
            raise failure_of(error, self._write) from None
        except ValueError:  # text that is not UTF-8
            raise StatementFailed(Failure.REFUSED) from None

    def close(self) -> None:
        """Resets the statement."""
        self._cursor.close()
