"""A bounded pool of PostgreSQL sessions for one connection of the snapshot.

IO: connects, and looks at the URL file at each check-out. Never more than `maxConnections` sessions, counting those that are being
connected or cancelled. A caller waits for a free one until its deadline, in order of arrival; a full queue refuses at once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress

from tailrace_contract.plan import ConnectionPlan
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.serve.engine import Failure, StatementFailed
from tailrace_gateway.serve.postgres.session import Session, stamp_of

WAITERS_PER_CONNECTION = 64
"""Queue bound; beyond it callers get 503 at once."""
LIFETIME_S = (1500.0, 1800.0)
"""A session older than this (drawn for each) is replaced when it is next idle."""
BACK_OFF_S = (0.05, 1.0)
"""After a failed connect, calls fail at once for so long (doubling, with jitter), so that a dead server is not stormed."""


class Pool:
    """Sessions of one ConnectionPlan. Use from one event loop."""

    def __init__(self, plan: ConnectionPlan, observe: Observer) -> None:
        self.plan = plan
        self._observe = observe
        self._idle: list[Session] = []
        self._count = 0
        """Sessions that exist or are being made."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._pause_s = BACK_OFF_S[0]
        self._until_s = 0.0
        self._failed_stamp = (0, 0, 0)

    async def acquire(self, deadline_s: float) -> Session:
        """A session that is idle and alive; StatementFailed (POOL_FULL, UNAVAILABLE) when there is none by the deadline."""
        first = True
        while True:
            if first and self._waiters and len(self._waiters) >= WAITERS_PER_CONNECTION * self.plan.max_connections:
                raise StatementFailed(Failure.POOL_FULL)
            if not (first and self._waiters):
                session = await self._take(deadline_s)
                if session is not None:
                    return session
            await self._wait(deadline_s, front=not first)
            first = False

    async def _take(self, deadline_s: float) -> Session | None:
        """An idle session, or a new one while there is room; None: wait."""
        stamp = stamp_of(self.plan)
        old: Session | None = None
        while self._idle:
            session = self._idle.pop()
            if not session.usable or not session.read_only:
                self._discard(session)
            elif session.stamp == stamp:
                if old is not None:
                    self._idle.append(old)
                return session
            elif old is None:
                old = session
            else:
                self._discard(session)
        if old is not None:
            # Credentials changed: try the new ones, and go on with the old session if they do not work yet.
            try:
                fresh = await self._connect(deadline_s, stamp)
            except StatementFailed:
                return old
            except BaseException:
                self._discard(old)
                raise
            self._discard(old)
            self._count += 1
            return fresh
        if self._count >= self.plan.max_connections:
            return None
        self._count += 1
        try:
            return await self._connect(deadline_s, stamp)
        except StatementFailed:
            self._count -= 1
            if self._count > 0:
                # The server may just refuse one more (CONNECTION LIMIT): the excess waits for those that are there.
                return None
            self._wake_all()
            raise
        except BaseException:
            self._count -= 1
            self._wake()
            raise

    async def _connect(self, deadline_s: float, stamp: tuple[int, int, int]) -> Session:
        loop = asyncio.get_running_loop()
        if loop.time() < self._until_s and stamp == self._failed_stamp:
            raise StatementFailed(Failure.UNAVAILABLE)
        try:
            session = await Session.connect(self.plan, deadline_s)
        except StatementFailed:
            self._until_s = loop.time() + self._pause_s * (0.5 + random.random() / 2)  # noqa: S311
            self._pause_s = min(self._pause_s * 2, BACK_OFF_S[1])
            self._failed_stamp = stamp
            self._observe(observation(Event.DATABASE_UNAVAILABLE, connection=self.plan.name, reason="connect"))
            raise
        self._pause_s = BACK_OFF_S[0]
        self._until_s = 0.0
        self._observe(observation(Event.DATABASE_CONNECTED, connection=self.plan.name))
        return session

    async def _wait(self, deadline_s: float, front: bool) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if front:
            self._waiters.appendleft(turn)
        else:
            self._waiters.append(turn)
        try:
            async with asyncio.timeout_at(deadline_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._wake()
            with suppress(ValueError):
                self._waiters.remove(turn)
            if isinstance(error, TimeoutError):
                raise StatementFailed(Failure.POOL_FULL) from None
            raise

    def _wake(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)

    def release(self, session: Session) -> None:
        """Gives it back. With a statement still under way it is cancelled and drained first, in the background."""
        if not session.idle and not session.broken:
            self._spawn(self._reclaim(session))
            return
        age = asyncio.get_running_loop().time() - session.born_s
        if session.broken or self._closing or age > random.uniform(*LIFETIME_S):  # noqa: S311
            self._discard(session)
        else:
            self._idle.append(session)
        self._wake()

    async def _reclaim(self, session: Session) -> None:
        await session.settle()
        self.release(session)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _discard(self, session: Session) -> None:
        self._count -= 1
        self._spawn(session.close())
        self._wake()

    async def close(self) -> None:
        """Closes what is idle now and the rest as it comes back. Waits for what runs in the background."""
        self._closing = True
        while self._idle:
            self._discard(self._idle.pop())
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
