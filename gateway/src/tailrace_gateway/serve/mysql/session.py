"""One MySQL session and the calls on it that block: statements prepared once, results in chunks. On worker threads, one at a time.

IO: through `Connection`. Rejects with `StatementFailed`; a session that is `broken` can only be closed.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tailrace_contract.plan import ColumnPlan, ConnectionPlan, StatementPlan
from tailrace_contract.uri_parts import Files, UriError
from tailrace_gateway.serve.engine import Failure, Row, StatementFailed, Value
from tailrace_gateway.serve.mysql.connect import Connection, ConnectionLost, DeadlinePassed, Prepared, Result, ServerError
from tailrace_gateway.serve.mysql.errors import failure_of
from tailrace_gateway.serve.mysql.wire import Column, same_shape
from tailrace_gateway.serve.values import Malformed

STATEMENTS = 256
"""Prepared statements kept on a connection; the least recently used is closed."""
CHUNK_ROWS = 64
DRAIN_BYTES = 1 << 20
DRAIN_S = 0.2
"""How much of an unread result is read to its end before the connection is given up instead."""
KILL_S = 5.0

Stamp = tuple[int, int, int]


def stamp_of(plan: ConnectionPlan) -> Stamp:
    """Changes when the URL file is replaced; (0, 0, 0) while there is none."""
    try:
        status = Path(plan.url_file).stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def connect(plan: ConnectionPlan, deadline_s: float) -> Connection:
    """A connection that is not pinned; StatementFailed(UNAVAILABLE)."""
    try:
        url = Path(plan.url_file).read_text().strip()
        return Connection(url, Files(plan.ca_file, plan.certificate_file, plan.key_file), deadline_s)
    except (OSError, UnicodeDecodeError, UriError, ConnectionLost):
        raise StatementFailed(Failure.UNAVAILABLE) from None


class Session:
    """A connected and pinned session."""

    def __init__(self, plan: ConnectionPlan, deadline_s: float) -> None:
        self.stamp = stamp_of(plan)
        self.born_s = time.monotonic()
        self.broken = False
        self._write = False
        self._statements: OrderedDict[tuple[str, tuple[int, ...]], Prepared] = OrderedDict()
        self._rows: Iterator[tuple[list[bytes | None], int]] | None = None
        self._plan = plan
        self.connection = connect(plan, deadline_s)
        try:
            self.connection.pin(plan.session, plan.statement_timeout_ms, deadline_s)
        except (ConnectionLost, DeadlinePassed, ServerError):
            self.connection.close()
            raise StatementFailed(Failure.UNAVAILABLE) from None

    @property
    def is_idle(self) -> bool:
        """Whether every result was read to its end."""
        return self._rows is None and not self.broken

    def close(self) -> None:
        """Ends it."""
        if self.broken:
            self.connection.close()
        else:
            self.connection.quit()

    def kill(self) -> None:
        """From another thread: ends the connection in the server, and with it the statement under way and its transaction.

        One that is not found, on the server that answers, is left alone, and so is everybody else's.
        """
        deadline_s = time.monotonic() + KILL_S
        try:
            second = connect(self._plan, deadline_s)
        except StatementFailed:
            return
        try:
            second.kill(self.connection.mark, deadline_s)
        except (ConnectionLost, DeadlinePassed, ServerError):
            pass
        finally:
            second.close()

    def _failed(self, error: Exception, deadline_s: float) -> StatementFailed:
        """What an error of the connection means."""
        self._rows = None
        match error:
            case ServerError():
                failure = failure_of(error.number, error.sqlstate, self._write, time.monotonic() >= deadline_s)
                self.broken = self.broken or failure is Failure.UNAVAILABLE
                return StatementFailed(failure, error.sqlstate)
            case Malformed():
                return StatementFailed(Failure.REFUSED)
            case DeadlinePassed():
                self.broken = True
                return StatementFailed(Failure.TIMEOUT)
            case _:
                self.broken = True
                return StatementFailed(Failure.UNAVAILABLE)

    def run(self, sql: str, deadline_s: float) -> list[tuple[str | None, ...]]:
        """A statement of our own without values."""
        try:
            return self.connection.query(sql, deadline_s)
        except (ServerError, ConnectionLost, DeadlinePassed) as error:
            raise self._failed(error, deadline_s) from None

    def begin(self, deadline_s: float) -> None:
        """Opens a write's transaction."""
        self._write = True
        self.run("START TRANSACTION READ WRITE", deadline_s)

    def settle(self, deadline_s: float) -> None:
        """After a write: rolls back what is open, and proves that the session is read-only again."""
        self._write = False
        if self.broken:
            return
        try:
            self.connection.query("ROLLBACK", deadline_s)
            self.broken = not self.connection.is_read_only(deadline_s)
        except (ServerError, ConnectionLost, DeadlinePassed):
            self.broken = True

    def execute(self, statement: StatementPlan, values: Sequence[Value], columns: Sequence[ColumnPlan] | None, deadline_s: float) -> int:
        """Begins a statement and says how many rows a write changed; `chunk` gives the rows. `columns` None: whatever it returns."""
        try:
            prepared = self._prepared(statement, columns, deadline_s)
            result = self.connection.execute(prepared, statement, values, deadline_s)
        except (ServerError, ConnectionLost, DeadlinePassed, Malformed) as error:
            raise self._failed(error, deadline_s) from None
        if not result.columns:
            if columns:
                raise StatementFailed(Failure.STALE)
            return result.affected
        self._rows = self.connection.rows(result.columns, deadline_s)
        if columns is not None:
            self._check(result, columns)
        return 0

    def _check(self, result: Result, plans: Sequence[ColumnPlan]) -> None:
        """The server prepares again unseen after an ALTER TABLE: each result is compared before its first row leaves."""
        shown = [(column.name, column.table_oid) for column in result.columns]
        if shown != [(plan.name, plan.table_oid) for plan in plans]:
            raise StatementFailed(Failure.STALE)
        if not all(column.fits(plan.encoding) for column, plan in zip(result.columns, plans, strict=True)):
            raise StatementFailed(Failure.REFUSED)

    def _prepared(self, statement: StatementPlan, columns: Sequence[ColumnPlan] | None, deadline_s: float) -> Prepared:
        key = (statement.sql, statement.oids)
        prepared = self._statements.get(key)
        if prepared is not None:
            self._statements.move_to_end(key)
        else:
            prepared = self.connection.prepare(statement.sql, deadline_s)
            self._statements[key] = prepared
            if len(self._statements) > STATEMENTS:
                self.connection.forget(self._statements.popitem(last=False)[1])
        # MariaDB describes nothing of a RETURNING before it is executed; then the result itself is compared.
        untold = self._write and not prepared.columns
        if columns is not None and not untold and not same_shape(prepared.columns, columns):
            del self._statements[key]
            self.connection.forget(prepared)
            raise StatementFailed(Failure.STALE)
        return prepared

    def chunk(self, size: int, deadline_s: float) -> list[Row]:
        """The next rows, at most `size`; fewer at the end."""
        rows: list[Row] = []
        if self._rows is None:
            return rows
        try:
            while len(rows) < size:
                item = next(self._rows, None)
                if item is None:
                    self._rows = None
                    break
                rows.append(item[0])
        except (ServerError, ConnectionLost, DeadlinePassed) as error:
            raise self._failed(error, deadline_s) from None
        return rows

    def drain(self) -> None:
        """Reads a result that nobody wants any more to its end, if that is near; else the connection is killed."""
        until_s, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
        while self._rows is not None and left > 0 and time.monotonic() < until_s:
            try:
                item = next(self._rows, None)
            except (ServerError, ConnectionLost, DeadlinePassed) as error:
                self._failed(error, until_s)
                break
            if item is None:
                self._rows = None
            else:
                left -= item[1]
        if self._rows is not None:
            self._rows = None
            self.broken = True
            self.kill()

    def columns(self, statement: StatementPlan, deadline_s: float) -> tuple[Column, ...]:
        """What a Prepare describes."""
        try:
            return self._prepared(statement, None, deadline_s).columns
        except (ServerError, ConnectionLost, DeadlinePassed) as error:
            raise self._failed(error, deadline_s) from None
