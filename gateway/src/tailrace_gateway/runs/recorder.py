"""Runs of calls that Python answers, into the store before the answer leaves.

IO: the store, on a thread of its own, so that the event loop never waits; what arrives while a transaction is written goes into the
next one together. Rejects with `RunsUnavailable` when the store takes nothing. One epoch for each start.

Sequences have no gaps: a call whose run could not be stored got 503 `spool_full`, and just that is stored with the next transaction.
Alone, it holds `DIR/recorder.lock`, as the data plane does when there is one: one process records into a directory.
"""

import asyncio
import fcntl
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.run import Epoch, Run, Sequence

from tailrace_gateway.errors import RecorderLocked
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.runs.place import Place
from tailrace_gateway.runs.writing import Entry, Writer, writer_of
from tailrace_gateway.serve.recording import RunsUnavailable

QUEUE_LIMIT = 10_000
"""Runs that wait for a transaction; beyond it calls are refused."""
OWED_LIMIT = 100_000
"""Runs that are stored later because the store took nothing; beyond it they are lost, and `tailrace runs verify` lists them as missing."""


def draw_epoch() -> Epoch:
    """63 random bits."""
    return Epoch(secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What waits to be written, and who for it."""

    entry: Entry
    written: "asyncio.Future[None]"


def take_lock(data: Path) -> int:
    """Makes this process the one that records into the directory, until it ends or closes the descriptor; RecorderLocked."""
    descriptor = os.open(data / "recorder.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RecorderLocked(
            "Another process records into this data directory.", "End the other Tailrace, or give this one its own --data."
        ) from None
    return descriptor


class StoreRecorder:
    """Writes runs. Use from one event loop. `alone`: nobody else records into this directory, so what earlier processes left open was
    aborted; RecorderLocked when somebody does. Until `place` is known, nothing is served: refusals wait."""

    def __init__(self, data: Path, observe: Observer, *, alone: bool, place: Place | None = None) -> None:
        self._data = data
        self._observe = observe
        self._alone = alone
        self._durability = Durability.PROCESS
        self._on_full = OnFull.REJECT
        self._epoch = draw_epoch()
        self._sequence = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runs")
        self._waiting: list[_Waiting] = []
        self._drain_task: asyncio.Task[None] | None = None
        self._opened: set[Sequence] = set()
        self._owed: list[Run] = []
        self._writer: Writer | None = None
        self._lock = take_lock(data) if alone else None
        if place is not None:
            self.keep_in(place)

    def keep_in(self, place: Place) -> None:
        """Says where runs go. It holds until the process ends: the runs of an epoch are all in one store."""
        if self._writer is None:
            self._writer = writer_of(place, self._data, self._epoch, alone=self._alone)

    def draw(self) -> tuple[Epoch, Sequence]:
        """The next run id."""
        self._sequence += 1
        return self._epoch, Sequence(self._sequence)

    def configure(self, durability: Durability, on_full: OnFull) -> None:
        """What the RunStore says: whether an answer waits for the disk, and whether calls go on unrecorded when the store takes nothing."""
        self._durability, self._on_full = durability, on_full

    async def open(self, run: Run) -> None:
        """Stores a call that goes on: aborted, unless `store` follows."""
        await self._write(run, open=True)

    async def store(self, run: Run) -> None:
        """Stores a call that has ended."""
        await self._write(run, open=False)

    async def close(self) -> None:
        """Writes what waits and closes the store."""
        while self._drain_task is not None and not self._drain_task.done():
            await asyncio.wait((self._drain_task,))
        loop = asyncio.get_running_loop()
        if self._owed:
            with suppress(Exception):
                await loop.run_in_executor(self._thread, self._transaction, [])
        if self._writer is not None:
            await loop.run_in_executor(self._thread, self._writer.close)
        self._thread.shutdown()
        if self._lock is not None:
            os.close(self._lock)

    async def _write(self, run: Run, open: bool) -> None:
        if self._writer is None and len(self._owed) < OWED_LIMIT:
            # Nothing is served yet: this is a refusal, stored as soon as the first snapshot says where.
            self._owed.append(run)
            return None
        if len(self._waiting) >= QUEUE_LIMIT:
            return self._untaken([run])
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(Entry(run, open), written))
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.ensure_future(self._drain())
        # A caller who is cancelled leaves his run in the queue: it is written all the same.
        await asyncio.shield(written)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await loop.run_in_executor(self._thread, self._transaction, [each.entry for each in waiting])
            except Exception:
                try:
                    self._untaken([each.entry.run for each in waiting])
                except RunsUnavailable as unavailable:
                    for each in waiting:
                        if not each.written.done():
                            each.written.set_exception(unavailable)
                            each.written.exception()
                    continue
            for each in waiting:
                (self._opened.add if each.entry.open else self._opened.discard)(each.entry.run.sequence)
                if not each.written.done():
                    each.written.set_result(None)

    def _untaken(self, runs: list[Run]) -> None:
        """The store takes nothing: RunsUnavailable, unless runs may be dropped (their numbers then stay missing)."""
        self._observe(observation(Event.RUN_STORE_FAILED, reason=self._on_full.value, runs=len(runs)))
        if self._on_full is OnFull.REJECT:
            for run in runs:
                self._owe(run)
            raise RunsUnavailable

    def _owe(self, run: Run) -> None:
        """Keeps what the caller really got: the end of a stream as it was, else a refusal."""
        if len(self._owed) < OWED_LIMIT:
            as_it_was = run.sequence in self._opened
            self._owed.append(run if as_it_was else replace(run, status=503, code="spool_full", rows=0, bytes=0))
            self._opened.discard(run.sequence)

    def _transaction(self, entries: list[Entry]) -> None:
        """On the thread."""
        if self._writer is None:
            raise RunsUnavailable
        owed = len(self._owed)
        self._writer.write([*(Entry(run, False) for run in self._owed[:owed]), *entries], self._durability)
        # Only ever appended to elsewhere.
        del self._owed[:owed]
