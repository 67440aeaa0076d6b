"""Run records by id, read from the embedded store after its writer has ended. IO: one SQLite file, read-only."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_contract.run_block import BlockRow, unpack

_CLIENTS, _SERVED = tuple(ClientClass), tuple(ServedBy)
_NUMBERS = ("time_us", "duration_us", "queue_us", "database_us", "status", "rows", "bytes", "batch")
_SELECT = """
SELECT r.epoch, r.seq, r.time_us, r.duration_us, r.queue_us, r.database_us, q.name, v.name, k.name, c.name, r.status, e.name, r.rows, r.bytes, r.batch, r.trace,
    r.client, r.served_by, r.params
FROM runs AS r
LEFT JOIN names AS q ON q.id = r.query LEFT JOIN names AS v ON v.id = r.query_version LEFT JOIN names AS k ON k.id = r.key
LEFT JOIN names AS c ON c.id = r.connection LEFT JOIN names AS e ON e.id = r.code
"""


def _run(row: tuple[Any, ...]) -> Run:
    """A row of `_SELECT`; SQLite gives integers, texts, bytes and None."""
    trace, params = row[15], row[18]
    return Run(
        epoch=Epoch(row[0]),
        sequence=Sequence(row[1]),
        time_us=row[2],
        duration_us=row[3],
        queue_us=row[4],
        database_us=row[5],
        query=row[6] or "",
        query_version=row[7] or "",
        key=row[8] or "",
        connection=row[9] or "",
        status=row[10],
        code=row[11] or "",
        rows=row[12],
        bytes=row[13],
        batch=row[14],
        trace=trace.hex() if isinstance(trace, bytes) else trace or "",
        client=_CLIENTS[row[16]],
        served_by=_SERVED[row[17]],
        params=params,
    )


def _packed(connection: sqlite3.Connection) -> Iterator[Run]:
    """The runs that are in blocks."""
    names = dict(connection.execute("SELECT id, name FROM names"))
    for epoch, *row in connection.execute("SELECT * FROM run_blocks"):
        for run in unpack(BlockRow(*row)):
            query, version, connected = (names[number] for number in run.query)
            yield Run(
                epoch=Epoch(epoch),
                sequence=Sequence(run.seq),
                query=query,
                query_version=version,
                key=names[run.key],
                connection=connected,
                code=names[run.code],
                trace="" if run.trace is None else run.trace.hex(),
                client=_CLIENTS[run.client],
                served_by=_SERVED[run.served_by],
                **{field: getattr(run, field) for field in _NUMBERS},
            )


def runs(path: Path) -> Iterator[Run]:
    """Every run of a store."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        for row in connection.execute(_SELECT):
            yield _run(row)
        yield from _packed(connection)
    connection.close()
