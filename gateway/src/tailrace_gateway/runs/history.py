"""Runs, newest first: by end time, then by id. Pure but for the connection it is given."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue
from tailrace_contract.run import Epoch, Run, Sequence

from tailrace_gateway.runs.reading import COLUMNS, JOINS, name_id, run_of

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """What is asked for. None: any. `status` may be a class: 4 for all 4xx. `after`: the last run of the page before."""

    limit: int = LIMIT_DEFAULT
    key: str | None = None
    query: str | None = None
    status: int | None = None
    after: tuple[Epoch, Sequence] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Runs and whether older ones follow."""

    runs: tuple[Run, ...]
    more: bool


def history(connection: sqlite3.Connection, wanted: HistoryFilter) -> Page | None:
    """One page; None when `after` names no run that the filter admits."""
    conditions, values = ["1"], list[object]()
    for column, name in (("key", wanted.key), ("query", wanted.query)):
        if name is not None:
            number = name_id(connection, name)
            if number is None:
                return Page((), False) if wanted.after is None else None
            conditions.append(f"r.{column} = ?")
            values.append(number)
    if wanted.status is not None:
        low, high = (wanted.status * 100, wanted.status * 100 + 99) if wanted.status < 10 else (wanted.status, wanted.status)
        conditions.append("r.status BETWEEN ? AND ?")
        values += (low, high)
    where = " AND ".join(conditions)
    if wanted.after is not None:
        last = connection.execute(
            f"SELECT r.time_us FROM runs r WHERE r.epoch = ? AND r.seq = ? AND {where}",  # noqa: S608
            (*wanted.after, *values),
        ).fetchone()
        if last is None:
            return None
        where += " AND (r.time_us, r.epoch, r.seq) < (?, ?, ?)"
        values += (last[0], *wanted.after)
    # The inner SELECT finds the page in the index on time alone; rows and names are joined to it afterwards.
    found = connection.execute(
        f"SELECT {COLUMNS} FROM (SELECT r.epoch, r.seq FROM runs r WHERE {where}"  # noqa: S608
        f" ORDER BY r.time_us DESC, r.epoch DESC, r.seq DESC LIMIT ?) page CROSS JOIN runs r ON r.epoch = page.epoch AND r.seq = page.seq"
        f" {JOINS} ORDER BY r.time_us DESC, r.epoch DESC, r.seq DESC",
        (*values, wanted.limit + 1),
    ).fetchall()
    runs = tuple(run_of(row) for row in found[: wanted.limit])
    return Page(runs, len(found) > wanted.limit)


class Follower:
    """Runs that come in after it was made, each once, roughly in order. Streams come when they end, whatever their number."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._floors: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}
        if connection is not None:
            for epoch, highest in connection.execute("SELECT epoch, max(seq) FROM runs GROUP BY epoch"):
                self._seen[epoch] = set()
                self._floors[epoch] = highest
                for (sequence,) in connection.execute("SELECT seq FROM open_runs WHERE epoch = ?", (epoch,)):
                    # What is open now is to be shown when it ends.
                    self._floors[epoch] = min(self._floors[epoch], sequence - 1)
                floor = self._floors[epoch]
                later = connection.execute("SELECT seq FROM runs WHERE epoch = ? AND seq > ?", (epoch, floor))
                self._seen[epoch].update(sequence for (sequence,) in later)

    def news(self, connection: sqlite3.Connection, limit: int = 10_000) -> Iterator[Run]:
        """What has come in since."""
        epochs = [epoch for (epoch,) in connection.execute("SELECT DISTINCT epoch FROM runs")]
        fresh: list[Run] = []
        for epoch in epochs:
            seen, floor = self._seen.setdefault(epoch, set()), self._floors.get(epoch, 0)
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM (SELECT * FROM runs WHERE epoch = ? AND seq > ? ORDER BY seq LIMIT ?) r {JOINS}",  # noqa: S608
                (epoch, floor, limit + len(seen)),
            )
            runs = [run for run in map(run_of, rows) if run.sequence not in seen]
            seen.update(run.sequence for run in runs)
            while floor + 1 in seen:
                floor += 1
                seen.discard(floor)
            self._floors[epoch] = floor
            fresh += runs
        yield from sorted(fresh, key=lambda run: (run.time_us, run.epoch, run.sequence))


def rfc3339(time_us: int) -> str:
    """UTC with µs."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_us % 1_000_000:06d}Z"


def run_json(run: Run) -> dict[str, JsonValue]:
    """A run as the API shows it; times in µs, sizes in bytes."""
    return {
        "id": run.id,
        "time": rfc3339(run.time_us),
        "durationUs": run.duration_us,
        "queueUs": run.queue_us,
        "databaseUs": run.database_us,
        "query": run.query,
        "queryVersion": run.query_version,
        "key": run.key,
        "connection": run.connection,
        "status": run.status,
        "code": run.code,
        "rows": run.rows,
        "bytes": run.bytes,
        "batch": run.batch,
        "trace": run.trace,
        "client": run.client.value,
        "servedBy": run.served_by.value,
        "params": run.params,
    }


def page_json(page: Page) -> dict[str, JsonValue]:
    """A page as the API shows it: `next` is what `after` of the next page is to be, null at the end."""
    runs: list[JsonValue] = [run_json(run) for run in page.runs]
    return {"runs": runs, "next": page.runs[-1].id if page.more and page.runs else None}
