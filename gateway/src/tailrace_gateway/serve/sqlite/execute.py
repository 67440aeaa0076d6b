"""Runs an `Ask` on SQLite: reads on bounded threads, writes one at a time in `BEGIN IMMEDIATE`.

IO: the database file, always on worker threads. Each step fetches one chunk, so memory is flat and a slow reader holds only its own
connection. A deadline or a caller who leaves interrupts the statement. Rejects with `StatementFailed`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tailrace_contract.plan import ConnectionPlan
from tailrace_gateway.serve.engine import Ask, Done, Failure, Row, Rows, StatementFailed
from tailrace_gateway.serve.outcome import Outcome
from tailrace_gateway.serve.sqlite.idempotent import claim, keep
from tailrace_gateway.serve.sqlite.location import database_path
from tailrace_gateway.serve.sqlite.session import CHUNK_ROWS, Cursor, Session

WAITERS_PER_CONNECTION = 64
"""Queue bound; beyond it callers get 503 at once."""

Result = TypeVar("Result")


class _Database:
    """One SQLite file: idle sessions, and the threads that work on them."""

    def __init__(self, plan: ConnectionPlan) -> None:
        self.plan = plan
        self.threads = ThreadPoolExecutor(plan.max_connections + 1, thread_name_prefix=f"sqlite-{plan.name}")
        self._free = asyncio.Semaphore(plan.max_connections)
        self._writer = asyncio.Lock()
        self._waiting = 0
        self._idle: list[tuple[Session, object]] = []
        self._closed = False

    def stamp(self) -> tuple[Path, int, int]:
        """The file that the URL names now, and which one it is; StatementFailed(UNAVAILABLE) when there is none."""
        try:
            path = database_path(Path(self.plan.url_file).read_text().strip())
            status = path.stat()
        except (OSError, ValueError):
            raise StatementFailed(Failure.UNAVAILABLE) from None
        return path, status.st_dev, status.st_ino

    async def enter(self, write: bool, deadline_s: float) -> None:
        """Waits for a place (writes: for the one writer); StatementFailed(POOL_FULL) when there is none by the deadline."""
        if self._waiting >= WAITERS_PER_CONNECTION * self.plan.max_connections:
            raise StatementFailed(Failure.POOL_FULL)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                await (self._writer.acquire() if write else self._free.acquire())
        except TimeoutError:
            raise StatementFailed(Failure.POOL_FULL) from None
        finally:
            self._waiting -= 1

    def leave(self, write: bool) -> None:
        """Gives the place back."""
        if write:
            self._writer.release()
        else:
            self._free.release()

    def session(self, deadline_s: float) -> tuple[Session, object]:
        """A session for reads; on a worker thread."""
        stamp = self.stamp()
        while self._idle:
            session, its = self._idle.pop()
            if its == stamp:
                return session, stamp
            session.close()
        return Session(stamp[0], False, deadline_s), stamp

    def give_back(self, session: Session, stamp: object) -> None:
        """Keeps it for the next call."""
        if self._closed:
            session.close()
        else:
            self._idle.append((session, stamp))

    def close(self) -> None:
        """Closes what is idle; threads end when their work does."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()
        self.threads.shutdown(wait=False)


class SqliteExecutor:
    """All SQLite connections of the snapshots that are in use."""

    def __init__(self) -> None:
        self._databases: dict[ConnectionPlan, _Database] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def retain(self, plans: tuple[ConnectionPlan, ...]) -> None:
        """Closes what the current snapshot no longer has; calls under way finish."""
        for plan in [plan for plan in self._databases if plan not in plans]:
            self._databases.pop(plan).close()

    async def close(self) -> None:
        """Closes everything."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.retain(())

    def _database(self, plan: ConnectionPlan) -> _Database:
        database = self._databases.get(plan)
        if database is None:
            database = self._databases[plan] = _Database(plan)
        return database

    async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        """See `Executor`."""
        database = self._database(ask.connection)
        arrived_s = time.monotonic()
        await database.enter(ask.write, ask.deadline_s)
        began_s = time.monotonic()
        queue_us = round((began_s - arrived_s) * 1e6)
        work = _Work(database, ask)
        try:
            if ask.write:
                outcome, repeated = await self._step(work, work.change)
                if outcome.rows:
                    yield Rows(outcome.rows)
                yield Done(outcome.affected, outcome.more, queue_us, round((time.monotonic() - began_s) * 1e6), repeated)
                return
            step: Callable[[], tuple[list[Row], bool, bool]] = work.first
            while True:
                rows, ended, more = await self._step(work, step)
                if rows:
                    yield Rows(rows)
                if ended:
                    break
                step = work.next
            yield Done(0, more, queue_us, round((time.monotonic() - began_s) * 1e6))
        except StatementFailed as failed:
            raise StatementFailed(failed.failure, failed.sqlstate, queue_us, round((time.monotonic() - began_s) * 1e6)) from None
        finally:
            self._end(work)

    async def _step(self, work: "_Work", step: Callable[[], Result]) -> Result:
        """Runs one blocking step on a thread. When the caller leaves meanwhile, a write that committed all the same is told as done."""
        running = asyncio.get_running_loop().run_in_executor(work.database.threads, step)
        work.running = running
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            work.cancel()
            if not work.ask.write:
                raise
            with suppress(StatementFailed):
                return await running
            raise

    def _end(self, work: "_Work") -> None:
        """Gives the session back once its thread is done with it."""
        if work.running is None or work.running.done():
            work.finish()
            work.database.leave(work.ask.write)
            return

        async def later(running: asyncio.Future[Any]) -> None:
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()
            work.finish()
            work.database.leave(work.ask.write)

        task = asyncio.ensure_future(later(work.running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Work:
    """One `Ask` under way. `first`, `next` and `change` run on a worker thread, one at a time."""

    def __init__(self, database: _Database, ask: Ask) -> None:
        self.database = database
        self.ask = ask
        self.running: asyncio.Future[Any] | None = None
        self._session: Session | None = None
        self._stamp: object = None
        self._cursor: Cursor | None = None
        self._seen = 0
        self._left = False

    def cancel(self) -> None:
        """From the event loop: ends the step under way soon."""
        self._left = True
        if self._session is not None:
            self._session.cancel()

    def first(self) -> tuple[list[Row], bool, bool]:
        """Opens and executes; the first chunk, whether it is the last, whether it stopped at the limit."""
        ask = self.ask
        self._session, self._stamp = self.database.session(ask.deadline_s)
        if self._left:
            raise StatementFailed(Failure.TIMEOUT)
        self._cursor = self._session.execute(ask.statement.sql, ask.values, ask.columns, ask.deadline_s)
        return self.next()

    def next(self) -> tuple[list[Row], bool, bool]:
        """A further chunk."""
        limit = self.ask.limit
        size = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - self._seen)
        assert self._cursor is not None
        rows = self._cursor.chunk(size)
        self._seen += len(rows)
        more = self._seen == limit
        return rows, more or len(rows) < size, more

    def change(self) -> tuple[Outcome, bool]:
        """The whole write; committed when it returns."""
        ask = self.ask
        session = Session(self.database.stamp()[0], True, self.ask.deadline_s)
        self._session = session
        try:
            if self._left:
                raise StatementFailed(Failure.TIMEOUT)
            session.run("BEGIN IMMEDIATE", ask.deadline_s)
            if ask.idempotency is not None:
                first = claim(session, ask)
                if first is not None:
                    return first, True
            outcome = self._changes(session)
            if ask.idempotency is not None:
                keep(session, ask, outcome)
            session.run("COMMIT", ask.deadline_s)
            return outcome, False
        finally:
            self._session = None
            session.close()

    def _changes(self, session: Session) -> Outcome:
        ask = self.ask
        cursor = session.execute(ask.statement.sql, ask.values, ask.columns, ask.deadline_s)
        rows: list[Row] = []
        more = False
        while chunk := cursor.chunk():
            room = len(chunk) if ask.limit is None else ask.limit - len(rows)
            rows += chunk[:room]
            more = more or room < len(chunk)
        cursor.close()
        return Outcome(session.changes(), more, rows)

    def finish(self) -> None:
        """From the event loop, when no step runs: gives the session back."""
        if self._cursor is not None:
            self._cursor.close()
        if self._session is not None:
            try:
                self._session.rest()
            except StatementFailed:
                self._session.close()
            else:
                self.database.give_back(self._session, self._stamp)
