"""One PostgreSQL connection: made with the pins that value encoding rests on, its statements, its cancellation.

IO: the database's socket, through libpq without blocking the event loop. Every wait ends at the caller's deadline. Rejects with
`StatementFailed`; a session whose protocol state is unknown is marked `broken` and must be closed.
"""

import asyncio
import hashlib
import select
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import pq
from tailrace_contract.plan import ColumnPlan, ConnectionPlan, Pooler, StatementPlan
from tailrace_contract.postgres_uri import Files, UriError, parse
from tailrace_gateway.serve.engine import Failure, Row, StatementFailed, Value
from tailrace_gateway.serve.postgres.sqlstate import failure_of

STATEMENTS = 256
"""Prepared statements kept on a connection; the least recently used is closed."""
CHUNK_ROWS = 64
"""Rows of one step of a stream: what is in memory at once besides libpq's input buffer."""
RECLAIM_S = 5.0
"""How long a cancelled connection may take to become usable again before it is closed."""
CONNECT_LIMIT_S = 60.0
"""Of one attempt over all hosts and addresses; each has the URL's connect_timeout."""

PINS = (
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "iso_8601"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
)
"""What the text form of values depends on."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The connection's URL and what tells its file from a later one."""

    url: str
    stamp: tuple[int, int, int]


def stamp_of(plan: ConnectionPlan) -> tuple[int, int, int]:
    """Changes when the URL file is replaced; (0, 0, 0) while there is none."""
    try:
        status = Path(plan.url_file).stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def read_credentials(plan: ConnectionPlan) -> Credentials:
    """Reads the URL file; StatementFailed(UNAVAILABLE) when it cannot be read."""
    stamp = stamp_of(plan)
    try:
        return Credentials(Path(plan.url_file).read_text().strip(), stamp)
    except (OSError, UnicodeDecodeError):
        raise StatementFailed(Failure.UNAVAILABLE) from None


def keywords(plan: ConnectionPlan, url: str) -> dict[str, str]:
    """What libpq gets: the URL, the mounted files, and (without a pooler) the pins as server options; StatementFailed when malformed."""
    try:
        words = parse(url, Files(plan.ca_file, plan.certificate_file, plan.key_file)).keywords()
    except UriError:
        raise StatementFailed(Failure.UNAVAILABLE) from None
    if plan.pooler is Pooler.NONE:
        options = [words["options"]] if words["options"] else []
        for name, value in settings_of(plan):
            options.append("-c " + f"{name}={value}".replace("\\", "\\\\").replace(" ", "\\ "))
        words["options"] = " ".join(options)
    return words


def settings_of(plan: ConnectionPlan) -> list[tuple[str, str]]:
    """Session settings in the order of application: the owner's first, so that none of them undoes a pin."""
    return [
        *plan.session,
        *PINS,
        ("statement_timeout", str(plan.statement_timeout_ms)),
    ]


def statement_name(version: str, statement: StatementPlan) -> bytes:
    """Of the prepared statement: a changed query never meets an old one."""
    text = f"{statement.sql}\0{statement.oids}".encode()
    return f"tailrace_{version}_{hashlib.sha256(text).hexdigest()[:12]}".encode()


class Session:
    """A connected session. Used by one call at a time."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]], plan: ConnectionPlan, stamp: tuple[int, int, int]) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._plan = plan
        self._statements: OrderedDict[bytes, None] = OrderedDict()
        self.stamp = stamp
        self.born_s = asyncio.get_running_loop().time()
        self._sent_s = 0.0
        self.broken = False
        self.writing = False
        """A write's transaction is open: class 23 is the caller's conflict."""
        self.busy = False
        """A statement was sent and its results are not all read."""

    @classmethod
    async def connect(cls, plan: ConnectionPlan, deadline_s: float) -> "Session":
        """Connects, in libpq's order of hosts, and checks that the pins hold; StatementFailed(UNAVAILABLE) when either fails."""
        credentials = read_credentials(plan)
        words = psycopg.conninfo.make_conninfo("", **keywords(plan, credentials.url))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(deadline_s, loop.time() + CONNECT_LIMIT_S)):
                connection = await psycopg.AsyncConnection.connect(words, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, TimeoutError, OSError, UnicodeError):
            raise StatementFailed(Failure.UNAVAILABLE) from None
        session = cls(connection, plan, credentials.stamp)
        try:
            if plan.pooler is Pooler.NONE:
                await session._verify(deadline_s)
        except BaseException:
            await session.close()
            raise
        return session

    async def _verify(self, deadline_s: float) -> None:
        names = [*(name for name, _ in PINS), "default_transaction_read_only", "client_encoding"]
        wanted = [*(value for _, value in PINS), "on", "UTF8"]
        # Not a start-up option: libpq would take every server for a read-only one (target_session_attrs).
        await self.simple("SELECT set_config('default_transaction_read_only', 'on', false)", deadline_s)
        sql = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
        results = await self.simple(sql, deadline_s)
        held = [(results[0].get_value(0, n) or b"").decode() for n in range(len(names))]
        if any(not got.startswith(want) for got, want in zip(held, wanted, strict=True)):
            raise StatementFailed(Failure.UNAVAILABLE)

    @property
    def usable(self) -> bool:
        """False when the server closed it, or said something while nobody asked (it is about to close)."""
        if self.broken or self.busy or self._pg.status != pq.ConnStatus.OK:
            return False
        poll = select.poll()
        poll.register(self._pg.socket, select.POLLIN)
        if not poll.poll(0):
            return True
        try:
            self._pg.consume_input()
        except psycopg.Error:
            return False
        return self._pg.status == pq.ConnStatus.OK and not poll.poll(0)

    @property
    def idle(self) -> bool:
        """Nothing is under way: no statement, no transaction."""
        return not self.busy and self._pg.transaction_status == pq.TransactionStatus.IDLE

    @property
    def read_only(self) -> bool:
        """The session still begins transactions read-only, as far as the server reports it (PostgreSQL 14 and later)."""
        return self._pg.parameter_status(b"default_transaction_read_only") in (None, b"on")

    async def close(self) -> None:
        """Closes it; never fails."""
        self.broken = True
        with suppress(psycopg.Error, OSError):
            await self._connection.close()

    # Waiting for the socket.

    async def _ready(self, write: bool, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        descriptor = self._pg.socket

        def wake(error: Exception | None = None) -> None:
            if not ready.done():
                if error is None:
                    ready.set_result(None)
                else:
                    ready.set_exception(error)

        timer = loop.call_at(deadline_s, wake, TimeoutError())
        loop.add_reader(descriptor, wake)
        if write:
            loop.add_writer(descriptor, wake)
        try:
            await ready
        except TimeoutError:
            raise StatementFailed(Failure.TIMEOUT) from None
        finally:
            timer.cancel()
            loop.remove_reader(descriptor)
            if write:
                loop.remove_writer(descriptor)

    def _lost(self) -> StatementFailed:
        self.broken = True
        return StatementFailed(Failure.UNAVAILABLE)

    async def _flush(self, deadline_s: float) -> None:
        try:
            while self._pg.flush():
                await self._ready(True, deadline_s)
                self._pg.consume_input()
        except psycopg.Error:
            raise self._lost() from None

    async def _result(self, deadline_s: float) -> pq.abc.PGresult | None:
        try:
            while self._pg.is_busy():
                await self._ready(False, deadline_s)
                self._pg.consume_input()
            return self._pg.get_result()
        except psycopg.Error:
            raise self._lost() from None

    async def _results(self, deadline_s: float) -> list[pq.abc.PGresult]:
        """All results of what was sent; StatementFailed with the first error's SQLSTATE."""
        await self._flush(deadline_s)
        results = []
        while (result := await self._result(deadline_s)) is not None:
            results.append(result)
        self.busy = False
        for result in results:
            self._check(result)
        return results

    def _check(self, result: pq.abc.PGresult) -> None:
        if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
            elapsed_ms = (asyncio.get_running_loop().time() - self._sent_s) * 1000
            failure = failure_of(sqlstate, self.writing, elapsed_ms >= self._plan.statement_timeout_ms)
            if failure is Failure.UNAVAILABLE:
                self.broken = True
            raise StatementFailed(failure, sqlstate)

    def _sending(self) -> None:
        self.busy = True
        self._sent_s = asyncio.get_running_loop().time()

    # Statements.

    async def simple(self, sql: str, deadline_s: float) -> list[pq.abc.PGresult]:
        """Runs text without parameters, all results at once. For our own statements only."""
        try:
            self._sending()
            self._pg.send_query(sql.encode())
        except psycopg.Error:
            raise self._lost() from None
        return await self._results(deadline_s)

    async def ask(self, sql: str, values: Sequence[Value], oids: Sequence[int], deadline_s: float) -> pq.abc.PGresult:
        """Runs our own statement with parameters and gives its one result."""
        try:
            self._sending()
            self._pg.send_query_params(sql.encode(), list(values) or None, list(oids) or None)
        except psycopg.Error:
            raise self._lost() from None
        return (await self._results(deadline_s))[-1]

    async def prepare(
        self, version: str, statement: StatementPlan, columns: Sequence[ColumnPlan], deadline_s: float, trace: str | None = None
    ) -> bytes:
        """Prepares (once per connection) and compares what the server describes with the plan; StatementFailed(STALE) when it differs.

        With `trace`, and behind a transaction pooler, the statement is unnamed and prepared each time.
        """
        named = trace is None and self._plan.pooler is Pooler.NONE
        name = statement_name(version, statement) if named else b""
        if named and name in self._statements:
            self._statements.move_to_end(name)
            return name
        sql = statement.sql if trace is None else f"/*traceparent='{trace}'*/ {statement.sql}"
        try:
            self._sending()
            self._pg.send_prepare(name, sql.encode(), list(statement.oids) or None)
            await self._results(deadline_s)
            self._sending()
            self._pg.send_describe_prepared(name)
        except psycopg.Error:
            raise self._lost() from None
        described = (await self._results(deadline_s))[-1]
        if not _same_shape(described, statement, columns):
            if named:
                await self._close_statement(name, deadline_s)
            raise StatementFailed(Failure.STALE)
        if named:
            self._statements[name] = None
            if len(self._statements) > STATEMENTS:
                await self._close_statement(self._statements.popitem(last=False)[0], deadline_s)
        return name

    async def forget(self, name: bytes, deadline_s: float) -> None:
        """Drops a prepared statement that the server no longer accepts."""
        if name and self._statements.pop(name, name) is None:
            await self._close_statement(name, deadline_s)

    async def _close_statement(self, name: bytes, deadline_s: float) -> None:
        await self.simple(f'DEALLOCATE "{name.decode("ascii")}"', deadline_s)

    async def rows(
        self, name: bytes, values: Sequence[Value], limit: int | None, deadline_s: float
    ) -> AsyncGenerator[list[Row] | tuple[int, bool], None]:
        """Executes a prepared statement: lists of rows, then (affected, more).

        Stops as soon as there are `limit` rows, without a look at what follows: the rest is cancelled by whoever settles the session.
        """
        try:
            self._sending()
            self._pg.send_query_prepared(name, list(values) or None)
            if limit is None and psycopg.capabilities.has_stream_chunked():
                self._pg.set_chunked_rows_mode(CHUNK_ROWS)
            else:
                self._pg.set_single_row_mode()
        except psycopg.Error:
            raise self._lost() from None
        await self._flush(deadline_s)
        seen = 0
        affected = 0
        while (result := await self._result(deadline_s)) is not None:
            self._check(result)
            if result.status == pq.ExecStatus.COMMAND_OK:
                affected = result.command_tuples or 0
                continue
            if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE, pq.ExecStatus.TUPLES_CHUNK):
                affected = result.command_tuples or affected
                count = result.ntuples
                seen += count
                if count:
                    columns = range(result.nfields)
                    yield [[result.get_value(row, column) for column in columns] for row in range(count)]
                if seen == limit:
                    # The rest is not wanted; whoever gives the session back has it cancelled.
                    yield affected, True
                    return
        self.busy = False
        yield affected, False

    async def settle(self) -> None:
        """Brings a session with a statement or a transaction under way back to idle: cancels, drains, rolls back.

        A cancel that arrives late hits an empty statement of ours, never the next caller's. Bounded by RECLAIM_S; marks the session
        broken when it does not succeed.
        """
        if self.broken or self.idle:
            return
        end_s = asyncio.get_running_loop().time() + RECLAIM_S
        try:
            async with asyncio.timeout_at(end_s):
                if self.busy:
                    await self._cancel_or_drain(end_s)
                    while (await self._result(end_s)) is not None:
                        pass
                    self.busy = False
                    with suppress(StatementFailed):
                        await self.simple("", end_s)
                if self._pg.transaction_status != pq.TransactionStatus.IDLE:
                    await self.simple("ROLLBACK", end_s)
        except (StatementFailed, TimeoutError, psycopg.Error, OSError):
            self.broken = True
        if not self.idle:
            self.broken = True

    async def _cancel_or_drain(self, end_s: float) -> None:
        """Results that are already here need no cancel; anything else does."""
        with suppress(psycopg.Error):
            self._pg.consume_input()
        while not self._pg.is_busy():
            if self._pg.get_result() is None:
                return
        await self._connection.cancel_safe(timeout=max(0.1, end_s - asyncio.get_running_loop().time()))


def _same_shape(described: pq.abc.PGresult, statement: StatementPlan, columns: Sequence[ColumnPlan]) -> bool:
    if described.nparams != len(statement.oids):
        return False
    for place, oid in enumerate(statement.oids):
        if oid and described.param_type(place) != oid:
            return False
    if described.nfields != len(columns):
        return False
    for n, column in enumerate(columns):
        if (
            (described.fname(n) or b"") != column.name.encode()
            or described.ftype(n) != column.type_oid
            or described.ftable(n) != column.table_oid
            or (column.table_oid and described.ftablecol(n) != column.column_number)
        ):
            return False
    return True
