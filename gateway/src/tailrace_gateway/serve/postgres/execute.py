"""Runs an `Ask` on PostgreSQL: reads, reads behind a transaction pooler, and writes in a transaction of their own.

IO: through `Session`. A read whose connection turned out to be closed before its first row is tried once more on another; a write
never is. Rejects with `StatementFailed`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tailrace_contract.idempotency import RESULT_LIMIT_BYTES
from tailrace_contract.plan import ConnectionPlan, Pooler
from tailrace_gateway.observe import Observer
from tailrace_gateway.serve.engine import Ask, Done, Failure, Row, Rows, StatementFailed
from tailrace_gateway.serve.outcome import Outcome
from tailrace_gateway.serve.postgres.idempotent import claim, keep
from tailrace_gateway.serve.postgres.pool import Pool
from tailrace_gateway.serve.postgres.session import Session, settings_of
from tailrace_gateway.serve.postgres.sqlstate import PLAN_CHANGED

COMMIT_S = 5.0
"""How long a COMMIT under way is waited for, whatever the caller's deadline: its outcome must be known."""


class PostgresExecutor:
    """All PostgreSQL connections of the snapshots that are in use, one pool for each distinct ConnectionPlan."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._pools: dict[ConnectionPlan, Pool] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def retain(self, plans: tuple[ConnectionPlan, ...]) -> None:
        """Closes the pools of connections that the current snapshot no longer has; calls under way finish on them."""
        for plan in [plan for plan in self._pools if plan not in plans]:
            task = asyncio.ensure_future(self._pools.pop(plan).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes every pool."""
        self.retain(())
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _pool(self, plan: ConnectionPlan) -> Pool:
        pool = self._pools.get(plan)
        if pool is None:
            pool = self._pools[plan] = Pool(plan, self._observe)
        return pool

    async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        """See `Executor`."""
        loop = asyncio.get_running_loop()
        pool = self._pool(ask.connection)
        arrived_s = loop.time()
        queued_s = 0.0
        retries = 0 if ask.write else 1
        while True:
            try:
                session = await pool.acquire(ask.deadline_s)
            except StatementFailed as failed:
                raise StatementFailed(failed.failure, queue_us=round((loop.time() - arrived_s) * 1e6)) from None
            queued_s = loop.time() - arrived_s
            began_s = loop.time()
            started = False
            try:
                async with aclosing(_run(session, ask)) as events:
                    async for event in events:
                        started = True
                        if isinstance(event, Rows):
                            yield event
                        else:
                            affected, more, repeated = event
                            yield Done(affected, more, round(queued_s * 1e6), round((loop.time() - began_s) * 1e6), repeated)
                return
            except StatementFailed as failed:
                if retries and not started and session.broken and failed.failure is Failure.UNAVAILABLE:
                    retries -= 1
                    continue
                took_us = round((loop.time() - began_s) * 1e6)
                raise StatementFailed(failed.failure, failed.sqlstate, round(queued_s * 1e6), took_us) from None
            finally:
                session.writing = False
                pool.release(session)


_Event = Rows | tuple[int, bool, bool]
"""Rows, or (affected, more, repeated) at the end."""


def _run(session: Session, ask: Ask) -> AsyncGenerator[_Event, None]:
    if ask.write:
        return _write(session, ask)
    return _pooled_read(session, ask) if ask.connection.pooler is Pooler.TRANSACTION else _read(session, ask)


async def _read(session: Session, ask: Ask) -> AsyncGenerator[_Event, None]:
    """In an implicit transaction of a session that begins all of them read-only."""
    retried = False
    while True:
        name = await session.prepare(ask.version, ask.statement, ask.columns, ask.deadline_s, ask.trace)
        started = False
        try:
            async with aclosing(session.rows(name, ask.values, ask.limit, ask.deadline_s)) as steps:
                async for step in steps:
                    started = True
                    yield Rows(step) if isinstance(step, list) else (*step, False)
            return
        except StatementFailed as failed:
            if failed.sqlstate != PLAN_CHANGED or retried or started:
                raise
            retried = True
            await session.settle()
            await session.forget(name, ask.deadline_s)


async def _begin(session: Session, ask: Ask, mode: str) -> None:
    try:
        await session.simple(f"BEGIN {mode}", ask.deadline_s)
    except StatementFailed as failed:
        if failed.sqlstate == PLAN_CHANGED:  # here: a standby cannot begin READ WRITE
            raise StatementFailed(Failure.UNAVAILABLE, failed.sqlstate) from None
        raise
    if ask.connection.pooler is Pooler.TRANSACTION:
        settings = settings_of(ask.connection)
        calls = ", ".join(f"set_config(${2 * n + 1}, ${2 * n + 2}, true)" for n in range(len(settings)))
        values = [text.encode() for pair in settings for text in pair]
        await session.ask(f"SELECT {calls}", values, [25] * len(values), ask.deadline_s)


async def _pooled_read(session: Session, ask: Ask) -> AsyncGenerator[_Event, None]:
    """In an explicit read-only transaction with the pins set locally: nothing outlives it, whichever server connection it had."""
    await _begin(session, ask, "READ ONLY")
    name = await session.prepare(ask.version, ask.statement, ask.columns, ask.deadline_s, ask.trace)
    ended = (0, False)
    async with aclosing(session.rows(name, ask.values, ask.limit, ask.deadline_s)) as steps:
        async for step in steps:
            if isinstance(step, list):
                yield Rows(step)
            else:
                ended = step
    if not ended[1]:
        await session.simple("COMMIT", ask.deadline_s)
    yield (*ended, False)


async def _write(session: Session, ask: Ask) -> AsyncGenerator[_Event, None]:
    """In its own transaction, together with the outcome under its Idempotency-Key; rows are shown after the COMMIT only."""
    retried = False
    session.writing = True
    while True:
        await _begin(session, ask, "READ WRITE")
        if ask.idempotency is not None:
            first = await claim(session, ask)
            if first is not None:
                await session.simple("ROLLBACK", ask.deadline_s)
                if first.rows:
                    yield Rows(first.rows)
                yield first.affected, first.more, True
                return
        name = await session.prepare(ask.version, ask.statement, ask.columns, ask.deadline_s, ask.trace)
        try:
            outcome = await _changes(session, name, ask)
            break
        except StatementFailed as failed:
            if failed.sqlstate != PLAN_CHANGED or retried:
                raise
            retried = True
            await session.settle()
            await session.forget(name, ask.deadline_s)
    if ask.idempotency is not None:
        await keep(session, ask, outcome)
    await _commit(session)
    if outcome.rows:
        yield Rows(outcome.rows)
    yield outcome.affected, outcome.more, False


async def _changes(session: Session, name: bytes, ask: Ask) -> Outcome:
    """Runs the write to its end (a limit cannot stop it half-way) and keeps at most `limit` of its rows."""
    rows: list[Row] = []
    more = False
    affected = size = 0
    async with aclosing(session.rows(name, ask.values, None, ask.deadline_s)) as steps:
        async for step in steps:
            if isinstance(step, tuple):
                affected = step[0]
                continue
            room = len(step) if ask.limit is None else ask.limit - len(rows)
            rows += step[:room]
            size += sum(4 + len(value) for row in step[:room] for value in row if isinstance(value, bytes))
            if size > RESULT_LIMIT_BYTES:
                raise StatementFailed(Failure.REFUSED)
            more = more or room < len(step)
    return Outcome(affected, more, rows)


async def _commit(session: Session) -> None:
    """COMMIT, once sent, is waited for even when the caller leaves: what is told is what happened."""
    commit = asyncio.ensure_future(session.simple("COMMIT", asyncio.get_running_loop().time() + COMMIT_S))
    while not commit.done():
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            if commit.cancelled():
                raise
        except StatementFailed:
            break
    try:
        commit.result()
    except StatementFailed as failed:
        if failed.failure is Failure.TIMEOUT:
            session.broken = True
            raise StatementFailed(Failure.UNAVAILABLE) from None
        raise
