"""Runs of calls that Python answers, into the embedded store before the answer leaves.

IO: `DIR/runs.sqlite` on a thread of its own, so that the event loop never waits; what arrives while a transaction is written goes into the
next one together. Rejects with `RunsUnavailable` when the store takes nothing. One epoch for each start.

Sequences have no gaps: a call whose run could not be stored got 503 `spool_full`, and just that is stored with the next transaction.
Alone, it holds `DIR/recorder.lock`, as the data plane does when there is one: one process records into a directory.
"""

import asyncio
import fcntl
import os
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.run import STORE_DDL, STORE_VERSION, ClientClass, Epoch, Run, Sequence, ServedBy, recorded_params

from tailrace_gateway.errors import RecorderLocked
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.serve.recording import RunsUnavailable

BUSY_S = 5.0
"""How long the store may be locked by its other writer."""
QUEUE_LIMIT = 10_000
"""Runs that wait for a transaction; beyond it calls are refused."""
OWED_LIMIT = 100_000
"""Runs that are stored later because the store took nothing; beyond it they are lost, and `tailrace runs verify` lists them as missing."""

_CLIENTS = {client: n for n, client in enumerate(ClientClass)}
_SERVED_BY = {served: n for n, served in enumerate(ServedBy)}
_COLUMNS = ",".join("?" * 19)


def draw_epoch() -> Epoch:
    """63 random bits."""
    return Epoch(secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class _Entry:
    """What waits to be written. `open`: the call has not ended."""

    run: Run
    open: bool
    written: "asyncio.Future[None] | None"
    """None: nobody waits."""


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


class EmbeddedRecorder:
    """Writes runs. Use from one event loop. `alone`: nobody else writes this store, so what is open in it at the start was aborted;
    RecorderLocked when somebody does."""

    def __init__(self, path: Path, observe: Observer, *, alone: bool) -> None:
        self._path = path
        self._observe = observe
        self._alone = alone
        self._durability = Durability.PROCESS
        self._on_full = OnFull.REJECT
        self._epoch = draw_epoch()
        self._sequence = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runs")
        self._waiting: list[_Entry] = []
        self._writer: asyncio.Task[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._names: dict[str, int] = {}
        self._opened: set[Sequence] = set()
        self._owed: list[Run] = []
        self._started = False
        self._lock = take_lock(path.parent) if alone else None

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
        while self._writer is not None and not self._writer.done():
            await asyncio.wait((self._writer,))
        loop = asyncio.get_running_loop()
        if self._owed:
            with suppress(Exception):
                await loop.run_in_executor(self._thread, self._transaction, [])
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown()
        if self._lock is not None:
            os.close(self._lock)

    async def _write(self, run: Run, open: bool) -> None:
        if len(self._waiting) >= QUEUE_LIMIT:
            return self._untaken([run])
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(run, open, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._drain())
        # A caller who is cancelled leaves his run in the queue: it is written all the same.
        await asyncio.shield(written)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            entries, self._waiting = self._waiting, []
            try:
                await loop.run_in_executor(self._thread, self._transaction, entries)
            except Exception:
                try:
                    self._untaken([entry.run for entry in entries])
                except RunsUnavailable as unavailable:
                    for entry in entries:
                        if entry.written is not None and not entry.written.done():
                            entry.written.set_exception(unavailable)
                            entry.written.exception()
                    continue
            for entry in entries:
                (self._opened.add if entry.open else self._opened.discard)(entry.run.sequence)
                if entry.written is not None and not entry.written.done():
                    entry.written.set_result(None)

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

    # On the thread.

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, STORE_VERSION):
                raise RunsUnavailable
            connection.execute("PRAGMA journal_mode = WAL")
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {STORE_DDL} COMMIT;")
            if self._alone and not self._started:
                self._abort_what_is_open(connection)
                self._started = True
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _abort_what_is_open(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT OR IGNORE INTO names (name) VALUES ('aborted')")
        connection.execute(
            "INSERT OR IGNORE INTO runs SELECT epoch, seq, time_us, duration_us, queue_us, database_us, query, query_version, key, connection,"
            " status, (SELECT id FROM names WHERE name = 'aborted'), rows, bytes, batch, trace, client, served_by, params FROM open_runs"
        )
        connection.execute("DELETE FROM open_runs")
        connection.execute("COMMIT")

    def _transaction(self, entries: list[_Entry]) -> None:
        connection = self._connected()
        owed = len(self._owed)
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durability is Durability.DISK else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            for entry in (*(_Entry(run, False, None) for run in self._owed[:owed]), *entries):
                row = self._row(connection, entry.run)
                if entry.open:
                    connection.execute(f"INSERT OR REPLACE INTO open_runs VALUES ({_COLUMNS})", row)  # noqa: S608
                else:
                    connection.execute(f"INSERT OR REPLACE INTO runs VALUES ({_COLUMNS})", row)  # noqa: S608
                    connection.execute("DELETE FROM open_runs WHERE epoch = ? AND seq = ?", row[:2])
            connection.execute("COMMIT")
            # Only ever appended to elsewhere.
            del self._owed[:owed]
        except BaseException:
            self._names.clear()
            self._close()
            raise

    def _row(self, connection: sqlite3.Connection, run: Run) -> tuple[object, ...]:
        names = (run.query, run.query_version, run.key, run.connection)
        return (
            run.epoch,
            run.sequence,
            run.time_us,
            run.duration_us,
            run.queue_us,
            run.database_us,
            *(self._name(connection, name) for name in names),
            run.status,
            self._name(connection, run.code),
            run.rows,
            run.bytes,
            run.batch,
            bytes.fromhex(run.trace) if run.trace else None,
            _CLIENTS[run.client],
            _SERVED_BY[run.served_by],
            recorded_params(run.params),
        )

    def _name(self, connection: sqlite3.Connection, name: str) -> int:
        known = self._names.get(name)
        if known is None:
            connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            known = self._names[name] = int(connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()[0])
        return known

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
