"""Runs an `Ask` on MySQL or MariaDB: reads alone in a read-only session, writes in a transaction of their own.

IO: the database's sockets, on worker threads. Each step fetches one chunk, so memory is flat. A deadline or a caller who leaves ends the connection
in the server. A read whose idle connection turned out to be closed is asked once more on a new one; a write never is. Rejects with
`StatementFailed`.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tailrace_contract.idempotency import RESULT_LIMIT_BYTES
from tailrace_contract.plan import ConnectionPlan
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.serve.engine import Ask, Done, Failure, Row, Rows, StatementFailed
from tailrace_gateway.serve.mysql.idempotent import claim, keep, release
from tailrace_gateway.serve.mysql.session import CHUNK_ROWS, Session, Stamp, stamp_of
from tailrace_gateway.serve.outcome import Outcome

WAITERS_PER_CONNECTION = 64
"""Queue bound; beyond it callers get 503 at once."""
LIFETIME_S = (1500.0, 1800.0)
BACK_OFF_S = (0.05, 1.0)
"""After a failed connect, calls fail at once for so long (doubling, with jitter), so that a dead server is not stormed."""
COMMIT_S = 5.0
"""How long a COMMIT under way is waited for, whatever the caller's deadline: its outcome must be known."""

Result = TypeVar("Result")


class _Database:
    """One connection of the snapshot: idle sessions, and the threads that work on them."""

    def __init__(self, plan: ConnectionPlan, observe: Observer) -> None:
        self.plan = plan
        self.threads = ThreadPoolExecutor(plan.max_connections, thread_name_prefix=f"mysql-{plan.name}")
        self.killers = ThreadPoolExecutor(2, thread_name_prefix=f"mysql-kill-{plan.name}")
        self._observe = observe
        self._free = asyncio.Semaphore(plan.max_connections)
        self._waiting = 0
        self._idle: list[Session] = []
        self._closed = False
        self._pause_s = BACK_OFF_S[0]
        self._failed: tuple[float, Stamp] = (0.0, (0, 0, 0))

    async def enter(self, deadline_s: float) -> None:
        """Waits for a place; StatementFailed(POOL_FULL) when there is none by the deadline."""
        if self._waiting >= WAITERS_PER_CONNECTION * self.plan.max_connections:
            raise StatementFailed(Failure.POOL_FULL)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._free.acquire()
        except TimeoutError:
            raise StatementFailed(Failure.POOL_FULL) from None
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        """Gives the place back."""
        self._free.release()

    def take(self, deadline_s: float, *, fresh: bool = False) -> tuple[Session, bool]:
        """A session, and whether it was idle before; on a worker thread."""
        stamp = stamp_of(self.plan)
        old: Session | None = None
        while self._idle and not fresh:
            session = self._idle.pop()
            if session.stamp == stamp and time.monotonic() - session.born_s < random.uniform(*LIFETIME_S):  # noqa: S311
                if old is not None:
                    self._idle.append(old)
                return session, True
            if old is not None:
                old.close()
            old = session
        # Credentials changed: the new ones are tried, and the old session goes on if they do not work yet.
        try:
            session = self._connect(stamp, deadline_s)
        except StatementFailed:
            if old is not None:
                return old, True
            raise
        if old is not None:
            old.close()
        return session, False

    def _connect(self, stamp: Stamp, deadline_s: float) -> Session:
        until_s, failed = self._failed
        if time.monotonic() < until_s and stamp == failed:
            raise StatementFailed(Failure.UNAVAILABLE)
        try:
            session = Session(self.plan, deadline_s)
        except StatementFailed:
            self._failed = (time.monotonic() + self._pause_s * (0.5 + random.random() / 2), stamp)  # noqa: S311
            self._pause_s = min(self._pause_s * 2, BACK_OFF_S[1])
            self._observe(observation(Event.DATABASE_UNAVAILABLE, connection=self.plan.name, reason="connect"))
            raise
        self._pause_s, self._failed = BACK_OFF_S[0], (0.0, stamp)
        self._observe(observation(Event.DATABASE_CONNECTED, connection=self.plan.name))
        return session

    def give_back(self, session: Session) -> None:
        """Keeps it for the next call, or closes it; on a worker thread, or for what is idle on any."""
        if self._closed or not session.is_idle:
            session.close()
        else:
            self._idle.append(session)

    def close(self) -> None:
        """Closes what is idle; threads end when their work does."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self.threads.shutdown(wait=False)
        self.killers.shutdown(wait=False)


class MysqlExecutor:
    """All MySQL connections of the snapshots that are in use."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._databases: dict[ConnectionPlan, _Database] = {}
        self._leaving: list[_Database] = []
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

    async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        """See `Executor`."""
        database = self._databases.get(ask.connection)
        if database is None:
            database = self._databases[ask.connection] = _Database(ask.connection, self._observe)
        arrived_s = time.monotonic()
        await database.enter(ask.deadline_s)
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
        if (work.running is None or work.running.done()) and work.is_clean:
            work.finish()
            work.database.leave()
            return

        async def later(running: asyncio.Future[Any] | None) -> None:
            if running is not None:
                await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()
            # The place is still ours, so a thread is free.
            with suppress(RuntimeError):
                await asyncio.get_running_loop().run_in_executor(work.database.threads, work.finish)
            work.database.leave()

        task = asyncio.ensure_future(later(work.running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextmanager
def _ended_in_the_server(session: Session) -> Iterator[None]:
    """A statement that is still under way at the deadline is killed: the server would go on with it."""
    try:
        yield
    except StatementFailed as failed:
        if failed.failure is Failure.TIMEOUT and session.broken:
            session.kill()
        raise


class _Work:
    """One `Ask` under way. `first`, `next`, `change` and `finish` run one at a time, on a worker thread."""

    def __init__(self, database: _Database, ask: Ask) -> None:
        self.database = database
        self.ask = ask
        self.running: asyncio.Future[Any] | None = None
        self._session: Session | None = None
        self._seen = 0
        self._left = False
        self._committing = False

    @property
    def is_clean(self) -> bool:
        """Whether `finish` has nothing to wait for."""
        return self._session is None or self._session.is_idle

    def cancel(self) -> None:
        """From the event loop: ends the step under way soon, unless its COMMIT is."""
        self._left = True
        session = self._session
        if session is not None and not self._committing:
            session.broken = True
            with suppress(RuntimeError):
                self.database.killers.submit(session.kill)

    def _take(self, *, fresh: bool = False) -> bool:
        if time.monotonic() >= self.ask.deadline_s or self._left:
            raise StatementFailed(Failure.TIMEOUT)
        self._session, was_idle = self.database.take(self.ask.deadline_s, fresh=fresh)
        return was_idle

    def first(self) -> tuple[list[Row], bool, bool]:
        """Connects if need be and executes; the first chunk, whether it is the last, whether it stopped at the limit."""
        was_idle = self._take()
        try:
            return self._first()
        except StatementFailed as failed:
            if not (was_idle and failed.failure is Failure.UNAVAILABLE and self._seen == 0) or self._left or self._session is None:
                raise
            self._session.close()
            self._session = None
            self._take(fresh=True)
            return self._first()

    def _first(self) -> tuple[list[Row], bool, bool]:
        session = self._session
        assert session is not None
        with _ended_in_the_server(session):
            session.execute(self.ask.statement, self.ask.values, self.ask.columns, self.ask.deadline_s)
        return self.next()

    def next(self) -> tuple[list[Row], bool, bool]:
        """A further chunk."""
        limit = self.ask.limit
        size = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - self._seen)
        session = self._session
        assert session is not None
        with _ended_in_the_server(session):
            rows = session.chunk(size, self.ask.deadline_s)
        self._seen += len(rows)
        more = self._seen == limit
        return rows, more or len(rows) < size, more

    def change(self) -> tuple[Outcome, bool]:
        """The whole write; committed when it returns."""
        ask = self.ask
        self._take()
        session = self._session
        assert session is not None
        try:
            session.begin(ask.deadline_s)
        except StatementFailed as failed:
            if failed.failure is not Failure.UNAVAILABLE:
                raise
            # Nothing has happened yet: an idle connection may have been closed by the server.
            session.close()
            self._session = None
            self._take(fresh=True)
            session = self._session
            assert session is not None
            session.begin(ask.deadline_s)
        claimed = False
        try:
            with _ended_in_the_server(session):
                if ask.idempotency is not None:
                    claimed = True
                    first = claim(session, ask)
                    if first is not None:
                        return first, True
                outcome = self._changes(session)
                if ask.idempotency is not None:
                    keep(session, ask, outcome)
            self._commit(session)
            return outcome, False
        finally:
            session.settle(time.monotonic() + COMMIT_S)
            if claimed:
                release(session, ask)

    def _commit(self, session: Session) -> None:
        """COMMIT, once sent, is waited for even when the caller leaves: what is told is what happened."""
        self._committing = True
        if self._left:
            raise StatementFailed(Failure.TIMEOUT)
        try:
            session.run("COMMIT", time.monotonic() + COMMIT_S)
        except StatementFailed as failed:
            if failed.failure is Failure.TIMEOUT:
                raise StatementFailed(Failure.UNAVAILABLE) from None
            raise

    def _changes(self, session: Session) -> Outcome:
        ask = self.ask
        affected = session.execute(ask.statement, ask.values, ask.columns, ask.deadline_s)
        rows: list[Row] = []
        more, size, returned = False, 0, 0
        while chunk := session.chunk(CHUNK_ROWS, ask.deadline_s):
            room = len(chunk) if ask.limit is None else max(0, ask.limit - len(rows))
            rows += chunk[:room]
            returned += len(chunk)
            size += sum(4 + len(value) for row in chunk[:room] for value in row if isinstance(value, bytes))
            if size > RESULT_LIMIT_BYTES:
                session.drain()
                raise StatementFailed(Failure.REFUSED)
            more = more or room < len(chunk)
        return Outcome(affected or returned, more, rows)

    def finish(self) -> None:
        """When no step runs: reads what is left of the result, and gives the session back."""
        session, self._session = self._session, None
        if session is not None:
            if not session.is_idle and not session.broken:
                session.drain()
            self.database.give_back(session)
