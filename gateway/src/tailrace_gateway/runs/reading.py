"""The embedded store as a reader sees it: never created, never written, a time limit on every statement.

IO: `DIR/runs.sqlite`. Rejects with `StoreUnreadable` (locked, damaged, of another version) and `ReadTimeout`.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tailrace_contract.run import STORE_VERSION, ClientClass, Epoch, Run, Sequence, ServedBy

BUSY_S = 5.0
STEPS = 10_000
"""Virtual machine steps between two looks at the clock."""

COLUMNS = """r.epoch, r.seq, r.time_us, r.duration_us, r.queue_us, r.database_us, q.name, v.name, k.name, c.name, r.status, e.name,
    r.rows, r.bytes, r.batch, r.trace, r.client, r.served_by, r.params"""
JOINS = """JOIN names q ON q.id = r.query JOIN names v ON v.id = r.query_version JOIN names k ON k.id = r.key
    JOIN names c ON c.id = r.connection JOIN names e ON e.id = r.code"""

_CLIENTS = tuple(ClientClass)
_SERVED_BY = tuple(ServedBy)


class StoreUnreadable(Exception):
    """The store cannot be read; never says where it is."""


class ReadTimeout(StoreUnreadable):
    """Reading took longer than allowed."""


def store_file(data: Path) -> Path:
    """The embedded store below `--data`."""
    return data / "runs.sqlite"


@contextmanager
def reading(path: Path, timeout_s: float = 10.0) -> Iterator[sqlite3.Connection | None]:
    """A connection that only reads, in one snapshot; None when nothing was ever recorded."""
    if not path.is_file():
        yield None
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
    except sqlite3.Error:
        raise StoreUnreadable from None
    deadline_s = time.monotonic() + timeout_s
    try:
        connection.set_progress_handler(lambda: time.monotonic() >= deadline_s, STEPS)
        connection.execute("PRAGMA query_only = ON")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, STORE_VERSION):
            raise StoreUnreadable
        connection.execute("BEGIN")
        yield None if version == 0 else connection
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_INTERRUPT:
            raise ReadTimeout from None
        raise StoreUnreadable from None
    except sqlite3.Error:
        raise StoreUnreadable from None
    finally:
        connection.close()


def name_id(connection: sqlite3.Connection, name: str) -> int | None:
    """The store's number of a name; None when no run has it."""
    found = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found[0])


def run_of(row: tuple[object, ...]) -> Run:
    """A row of `COLUMNS` as a run."""
    epoch, sequence, *times, query, version, key, connection, status, code, rows, size, batch, trace, client, served_by, params = row
    time_us, duration_us, queue_us, database_us = (int(str(t)) for t in times)
    assert isinstance(client, int)
    assert isinstance(served_by, int)
    return Run(
        epoch=Epoch(int(str(epoch))),
        sequence=Sequence(int(str(sequence))),
        time_us=time_us,
        duration_us=duration_us,
        queue_us=queue_us,
        database_us=database_us,
        query=str(query),
        query_version=str(version),
        key=str(key),
        connection=str(connection),
        status=int(str(status)),
        code=str(code),
        rows=int(str(rows)),
        bytes=int(str(size)),
        batch=int(str(batch)),
        trace=trace.hex() if isinstance(trace, bytes) else "",
        client=_CLIENTS[client],
        served_by=_SERVED_BY[served_by],
        params=None if params is None else str(params),
    )
