"""Writes runs into the embedded store, for Python alone. IO: `DIR/runs.sqlite`, on the recorder's thread.

Rejects with whatever SQLite raises, or RunsUnavailable for a store of another version.
"""

import sqlite3
from collections.abc import Sequence as Values
from pathlib import Path

from tailrace_contract.plan import Durability
from tailrace_contract.run import STORE_DDL, STORE_VERSION, ClientClass, Run, ServedBy, recorded_params

from tailrace_gateway.runs.writing import Entry
from tailrace_gateway.serve.recording import RunsUnavailable

BUSY_S = 5.0
"""How long the store may be locked by its other writer."""

_CLIENTS = {client: n for n, client in enumerate(ClientClass)}
_SERVED_BY = {served: n for n, served in enumerate(ServedBy)}
_COLUMNS = ",".join("?" * 19)


class EmbeddedWriter:
    """A `Writer`. `alone`: nobody else writes this store, so what is open in it at the start was aborted."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        self._path = path
        self._alone = alone
        self._started = False
        self._connection: sqlite3.Connection | None = None
        self._names: dict[str, int] = {}

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

    def write(self, entries: Values[Entry], durability: Durability) -> None:
        """See `Writer`."""
        connection = self._connected()
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durability is Durability.DISK else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            for entry in entries:
                row = self._row(connection, entry.run)
                if entry.open:
                    connection.execute(f"INSERT OR REPLACE INTO open_runs VALUES ({_COLUMNS})", row)  # noqa: S608
                else:
                    connection.execute(f"INSERT OR REPLACE INTO runs VALUES ({_COLUMNS})", row)  # noqa: S608
                    connection.execute("DELETE FROM open_runs WHERE epoch = ? AND seq = ?", row[:2])
            connection.execute("COMMIT")
        except BaseException:
            self._names.clear()
            self.close()
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

    def close(self) -> None:
        """See `Writer`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
