"""Writes runs into the PostgreSQL store, for Python alone. IO: its own connection, on the recorder's thread, and `DIR/recorder.epochs`.

Rejects with whatever psycopg raises, StoreUnreadable without a connection, RunsUnavailable for a store of another version.
"""

import time
from collections.abc import Sequence as Values
from pathlib import Path

from tailrace_contract.plan import Durability
from tailrace_contract.run import POSTGRES_STORE_DDL, POSTGRES_STORE_VERSION, Epoch, Run, recorded_params

from tailrace_gateway.resources.private import read_bounded, write_private
from tailrace_gateway.runs.postgres import Connection, connect, version_of
from tailrace_gateway.runs.reading import StoreUnreadable
from tailrace_gateway.runs.writing import Entry
from tailrace_gateway.serve.recording import RunsUnavailable

STATEMENT_S = 10.0
PAUSE_S = 1.0
"""After a failed connect, runs are refused at once for so long: a store that is down does not hold every call up."""
EPOCHS_LIMIT_BYTES = 1 << 20

_NAMES = (
    "epoch, seq, time, duration_us, queue_us, database_us, rows, bytes, batch, status, query, query_version, key, connection, code,"
    " client, served_by, trace, params"
)
_VALUES = "%s, %s, 'epoch'::timestamptz + %s * interval '1 microsecond', " + ", ".join(["%s"] * 16)
_REPLACED = ", ".join(f"{name.strip()} = excluded.{name.strip()}" for name in _NAMES.split(",")[2:])


def _insert(table: str) -> str:
    return f"INSERT INTO tailrace.{table} ({_NAMES}) VALUES ({_VALUES}) ON CONFLICT (epoch, seq) DO UPDATE SET {_REPLACED}"  # noqa: S608


class PostgresWriter:
    """A `Writer`. Other pods write there too: only what was open in epochs of this directory counts as aborted at the start."""

    def __init__(self, url_file: Path, data: Path, epoch: Epoch) -> None:
        self._url_file = url_file
        self._epochs = data / "recorder.epochs"
        self._epoch = epoch
        self._started = False
        self._connection: Connection | None = None
        self._not_before_s = 0.0

    def write(self, entries: Values[Entry], durability: Durability) -> None:
        """See `Writer`."""
        connection = self._connected()
        try:
            with connection.transaction():
                if durability is Durability.DISK:
                    connection.execute(
                        "SELECT pg_catalog.set_config('synchronous_commit', 'on', true)"
                        " WHERE pg_catalog.current_setting('synchronous_commit') = 'off'"
                    )
                with connection.cursor() as cursor:
                    for table, opened in (("open_runs", True), ("runs", False)):
                        if rows := [_row(entry.run) for entry in entries if entry.open is opened]:
                            cursor.executemany(_insert(table), rows)
                    if ended := [entry.run for entry in entries if not entry.open]:
                        cursor.execute(
                            "DELETE FROM tailrace.open_runs o USING unnest(%s::int8[], %s::int8[]) e (epoch, seq)"
                            " WHERE o.epoch = e.epoch AND o.seq = e.seq",
                            ([run.epoch for run in ended], [run.sequence for run in ended]),
                        )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `Writer`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if time.monotonic() < self._not_before_s:
            raise StoreUnreadable
        try:
            connection = connect(self._url_file, STATEMENT_S)
            try:
                if version_of(connection) is None:
                    with connection.transaction():
                        connection.execute(POSTGRES_STORE_DDL.encode())
                if version_of(connection) != POSTGRES_STORE_VERSION:
                    raise RunsUnavailable
                if not self._started:
                    self._end_former_epochs(connection)
                    self._started = True
            except BaseException:
                connection.close()
                raise
        except Exception:
            self._not_before_s = time.monotonic() + PAUSE_S
            raise
        self._connection = connection
        return connection

    def _end_former_epochs(self, connection: Connection) -> None:
        """Records as aborted what earlier processes on this directory left open. Ours is written down before its first run."""
        try:
            lines = read_bounded(self._epochs, EPOCHS_LIMIT_BYTES).decode().split()
            former = [int(line, 16) for line in lines if line != f"{self._epoch:016x}"]
        except (OSError, ValueError):
            former = []
        own = f"{self._epoch:016x}\n"
        write_private(self._epochs, ("".join(f"{epoch:016x}\n" for epoch in former) + own).encode())
        aborted = _NAMES.replace(" code,", " 'aborted',")
        connection.execute(
            f"WITH gone AS (DELETE FROM tailrace.open_runs WHERE epoch = ANY(%s::int8[]) RETURNING {_NAMES})"  # noqa: S608
            f" INSERT INTO tailrace.runs ({_NAMES}) SELECT {aborted} FROM gone ON CONFLICT DO NOTHING",
            (former,),
        )
        write_private(self._epochs, own.encode())


def _row(run: Run) -> tuple[object, ...]:
    params = recorded_params(run.params)
    return (
        run.epoch,
        run.sequence,
        run.time_us,
        run.duration_us,
        run.queue_us,
        run.database_us,
        run.rows,
        run.bytes,
        run.batch,
        run.status,
        run.query,
        run.query_version,
        run.key,
        run.connection,
        run.code,
        run.client.value,
        run.served_by.value,
        bytes.fromhex(run.trace) if run.trace else None,
        None if params is None else params.replace("\0", "\ufffd"),
    )
