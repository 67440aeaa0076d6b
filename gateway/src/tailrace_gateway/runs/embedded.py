"""The embedded store as a reader sees it: runs in rows, and in blocks. IO: `DIR/runs.sqlite`, which is never created.

Rejects as `reading` says.
"""

import heapq
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from tailrace_contract.run import STORE_VERSION, ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_contract.run_block import BlockUnreadable

from tailrace_gateway.runs.blocks import Blocks, Grouped, Wanted
from tailrace_gateway.runs.history import HistoryFilter, Page, page_of
from tailrace_gateway.runs.reading import ReadTimeout, RunReader, StoreUnreadable
from tailrace_gateway.runs.usage import DAY_US, Usage, UsageFilter

BUSY_S = 5.0
STEPS = 10_000
"""Virtual machine steps between two looks at the clock."""

COLUMNS = """r.epoch, r.seq, r.time_us, r.duration_us, r.queue_us, r.database_us, q.name, v.name, k.name, c.name, r.status, e.name,
    r.rows, r.bytes, r.batch, r.trace, r.client, r.served_by, r.params"""
JOINS = """JOIN names q ON q.id = r.query JOIN names v ON v.id = r.query_version JOIN names k ON k.id = r.key
    JOIN names c ON c.id = r.connection JOIN names e ON e.id = r.code"""

_CLIENTS = tuple(ClientClass)
_SERVED_BY = tuple(ServedBy)
_DAY_0 = date(1970, 1, 1)


@contextmanager
def reading_embedded(path: Path, timeout_s: float) -> Iterator[RunReader | None]:
    """See `reading`."""
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
        yield None if version == 0 else EmbeddedReader(connection, deadline_s)
    except BlockUnreadable:
        raise StoreUnreadable from None
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_INTERRUPT:
            raise ReadTimeout from None
        raise StoreUnreadable from None
    except sqlite3.Error:
        raise StoreUnreadable from None
    finally:
        connection.close()


class EmbeddedReader:
    """A `RunReader` of an open file."""

    def __init__(self, connection: sqlite3.Connection, deadline_s: float = math.inf) -> None:
        self._connection = connection
        self._blocks = Blocks(connection, deadline_s)

    def _name_id(self, name: str) -> int | None:
        """The store's number of a name; None when no run has it."""
        found = self._connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        return None if found is None else int(found[0])

    def _wanted(self, key: str | None, query: str | None, status: int | None = None) -> Wanted | None:
        """A filter in the store's numbers; None: no run has that name."""
        numbers = [None if name is None else self._name_id(name) for name in (key, query)]
        if (key is not None and numbers[0] is None) or (query is not None and numbers[1] is None):
            return None
        statuses = None
        if status is not None:
            statuses = (status * 100, status * 100 + 99) if status < 10 else (status, status)
        return Wanted(numbers[0], numbers[1], statuses)

    def history(self, wanted: HistoryFilter) -> Page | None:
        """See `RunReader`."""
        numbers = self._wanted(wanted.key, wanted.query, wanted.status)
        if numbers is None:
            return Page((), False) if wanted.after is None else None
        conditions, values = _conditions(numbers)
        where, before = " AND ".join(conditions), None
        if wanted.after is not None:
            epoch, sequence = wanted.after
            last = self._connection.execute(
                f"SELECT r.time_us FROM runs r WHERE r.epoch = ? AND r.seq = ? AND {where}",  # noqa: S608
                (epoch, sequence, *values),
            ).fetchone()
            time_us = self._blocks.time_of(numbers, epoch, sequence) if last is None else int(last[0])
            if time_us is None:
                return None
            before = (time_us, int(epoch), int(sequence))
            where += " AND (r.time_us, r.epoch, r.seq) < (?, ?, ?)"
            values += before
        # The inner SELECT finds the page in the index on time alone; rows and names are joined to it afterwards.
        found = self._connection.execute(
            f"SELECT {COLUMNS} FROM (SELECT r.epoch, r.seq FROM runs r WHERE {where}"  # noqa: S608
            f" ORDER BY r.time_us DESC, r.epoch DESC, r.seq DESC LIMIT ?) page CROSS JOIN runs r ON r.epoch = page.epoch AND r.seq = page.seq"
            f" {JOINS} ORDER BY r.time_us DESC, r.epoch DESC, r.seq DESC",
            (*values, wanted.limit + 1),
        ).fetchall()
        rows = [run_of(row) for row in found]
        packed = self._blocks.newest(numbers, before, wanted.limit + 1, [_moment(run) for run in rows])
        return page_of(list(heapq.merge(rows, packed, key=_moment, reverse=True)), wanted)

    def usage(self, wanted: UsageFilter) -> list[Usage]:
        """See `RunReader`. One pass over the range's runs: in the database over rows, here over blocks."""
        numbers = self._wanted(wanted.key, wanted.query)
        if numbers is None:
            return []
        from_us, until_us = (wanted.first - _DAY_0).days * DAY_US, ((wanted.last - _DAY_0).days + 1) * DAY_US
        conditions, values = _conditions(numbers)
        rows = self._connection.execute(
            f"""SELECT g.day, k.name, q.name, g.duration_us, g.calls, g.errors, g.rows, g.bytes, g.database_us FROM (
                SELECT r.time_us / {DAY_US} AS day, r.key, r.query, r.duration_us, count(*) AS calls, sum(r.code <> 0) AS errors,
                    sum(r.rows) AS rows, sum(r.bytes) AS bytes, sum(r.database_us) AS database_us
                FROM (SELECT r.epoch, r.seq FROM runs r WHERE r.time_us >= ? AND r.time_us < ? AND {" AND ".join(conditions)}) found
                CROSS JOIN runs r ON r.epoch = found.epoch AND r.seq = found.seq GROUP BY 1, 2, 3, 4) g
                JOIN names k ON k.id = g.key JOIN names q ON q.id = g.query ORDER BY g.day, k.name, q.name, g.duration_us""",  # noqa: S608
            (from_us, until_us, *values),
        )
        grouped: Grouped = {}
        if not self._blocks.add_usage(numbers, from_us, until_us, grouped):
            return list(_combined(rows))
        for day, key, query, duration_us, *sums in rows:
            total = grouped.setdefault((day, key, query, duration_us), [0] * 5)
            total[:] = (a + b for a, b in zip(total, sums, strict=True))
        return list(_combined((*group, *sums) for group, sums in sorted(grouped.items())))  # type: ignore[misc]

    def stored(self) -> dict[int, tuple[int, int]]:
        """See `RunReader`."""
        rows = self._connection.execute("SELECT epoch, count(*), max(seq) FROM runs GROUP BY epoch")
        stored = {int(epoch): (int(count), int(highest)) for epoch, count, highest in rows}
        for epoch, (count, highest) in self._blocks.stored().items():
            others, other = stored.get(epoch, (0, 0))
            stored[epoch] = (count + others, max(highest, other))
        return stored

    def highest(self) -> dict[int, int]:
        """See `RunReader`."""
        # Each epoch is found from the one before, and its highest sequence from the end of its rows.
        rows = self._connection.execute(
            """WITH RECURSIVE e (epoch) AS (
                SELECT min(epoch) FROM runs UNION ALL SELECT (SELECT min(epoch) FROM runs r WHERE r.epoch > e.epoch) FROM e
                WHERE e.epoch IS NOT NULL)
            SELECT epoch, (SELECT max(seq) FROM runs r WHERE r.epoch = e.epoch) FROM e WHERE epoch IS NOT NULL"""
        )
        highest = {int(epoch): int(highest) for epoch, highest in rows}
        for epoch, (_, last) in self._blocks.stored().items():
            highest[epoch] = max(last, highest.get(epoch, 0))
        return highest

    def opened(self) -> dict[int, list[int]]:
        """See `RunReader`."""
        opened: dict[int, list[int]] = {}
        for epoch, sequence in self._connection.execute("SELECT epoch, seq FROM open_runs ORDER BY epoch, seq"):
            opened.setdefault(int(epoch), []).append(int(sequence))
        return opened

    def sequences(self, epoch: int, above: int = 0) -> Iterator[int]:
        """See `RunReader`."""
        rows = self._connection.execute("SELECT seq FROM runs WHERE epoch = ? AND seq > ? ORDER BY seq", (epoch, above))
        return heapq.merge((int(sequence) for (sequence,) in rows), self._blocks.sequences(epoch, above))

    def later(self, epoch: int, above: int, limit: int) -> list[Run]:
        """See `RunReader`."""
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM (SELECT * FROM runs WHERE epoch = ? AND seq > ? ORDER BY seq LIMIT ?) r {JOINS} ORDER BY r.seq",  # noqa: S608
            (epoch, above, limit),
        )
        packed = self._blocks.later(epoch, above, limit)
        return list(heapq.merge((run_of(row) for row in rows), packed, key=lambda run: run.sequence))[:limit]


def _conditions(wanted: Wanted) -> tuple[list[str], list[int]]:
    conditions, values = ["1"], list[int]()
    for column, number in (("key", wanted.key), ("query", wanted.query)):
        if number is not None:
            conditions.append(f"r.{column} = ?")
            values.append(number)
    if wanted.statuses is not None:
        conditions.append("r.status BETWEEN ? AND ?")
        values += wanted.statuses
    return conditions, values


def _moment(run: Run) -> tuple[int, int, int]:
    return run.time_us, run.epoch, run.sequence


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


def _combined(grouped: Iterable[tuple[int, str, str, int, int, int, int, int, int]]) -> Iterator[Usage]:
    """Rows of one (day, key, query) come together, by rising duration."""
    for (day, key, query), rows in groupby(grouped, key=lambda row: row[:3]):
        parts = [row[3:] for row in rows]
        calls = sum(part[1] for part in parts)
        yield Usage(
            day=_DAY_0 + timedelta(days=day),
            key=key,
            query=query,
            calls=calls,
            errors=sum(part[2] for part in parts),
            rows=sum(part[3] for part in parts),
            bytes=sum(part[4] for part in parts),
            database_us=sum(part[5] for part in parts),
            p50_us=_nearest_rank([(part[0], part[1]) for part in parts], calls, 50),
            p99_us=_nearest_rank([(part[0], part[1]) for part in parts], calls, 99),
        )


def _nearest_rank(counted: list[tuple[int, int]], total: int, percent: int) -> int:
    """The smallest value that `percent` % of all are not above."""
    rank = -(-total * percent // 100)
    for value, count in counted:
        rank -= count
        if rank <= 0:
            return value
    raise ValueError("nothing was counted")
