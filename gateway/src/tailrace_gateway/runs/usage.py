"""What each key used, by query and day (UTC): sums of exactly the runs that are stored. Pure but for the connection it is given."""

import csv
import io
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import groupby

from tailrace_gateway.runs.reading import name_id

DAY_US = 86_400_000_000
RANGE_MAX_DAYS = 366
RANGE_DEFAULT_DAYS = 31
_EPOCH = date(1970, 1, 1)

FIELDS = ("day", "key", "query", "calls", "errors", "rows", "bytes", "databaseSeconds", "p50Us", "p99Us")


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Days from `first` to `last`, both counted. None: any key, any query."""

    first: date
    last: date
    key: str | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """One key, query and day. `errors`: runs with an error code, aborted ones included. Percentiles are nearest-rank, of `duration_us`."""

    day: date
    key: str
    query: str
    calls: int
    errors: int
    rows: int
    bytes: int
    database_us: int
    p50_us: int
    p99_us: int


def default_range(today: date) -> tuple[date, date]:
    """The last 31 days."""
    return today - timedelta(days=RANGE_DEFAULT_DAYS - 1), today


def day_of(time_us: int) -> date:
    """The UTC day of a time in µs since 1970."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).date()


def usage(connection: sqlite3.Connection, wanted: UsageFilter) -> list[Usage]:
    """By day, key and query. One pass over the range's runs in the database; exact."""
    conditions = ["time_us >= ?", "time_us < ?"]
    values: list[object] = [(wanted.first - _EPOCH).days * DAY_US, ((wanted.last - _EPOCH).days + 1) * DAY_US]
    for column, name in (("key", wanted.key), ("query", wanted.query)):
        if name is not None:
            number = name_id(connection, name)
            if number is None:
                return []
            conditions.append(f"{column} = ?")
            values.append(number)
    grouped = connection.execute(
        f"""SELECT g.day, k.name, q.name, g.duration_us, g.calls, g.errors, g.rows, g.bytes, g.database_us FROM (
            SELECT r.time_us / {DAY_US} AS day, r.key, r.query, r.duration_us, count(*) AS calls, sum(r.code <> 0) AS errors,
                sum(r.rows) AS rows, sum(r.bytes) AS bytes, sum(r.database_us) AS database_us
            FROM (SELECT epoch, seq FROM runs WHERE {" AND ".join(conditions)}) found
            CROSS JOIN runs r ON r.epoch = found.epoch AND r.seq = found.seq GROUP BY 1, 2, 3, 4) g
            JOIN names k ON k.id = g.key JOIN names q ON q.id = g.query ORDER BY g.day, k.name, q.name, g.duration_us""",  # noqa: S608
        values,
    )
    return list(_combined(grouped))


def _combined(grouped: Iterable[tuple[int, str, str, int, int, int, int, int, int]]) -> Iterator[Usage]:
    """Rows of one (day, key, query) come together, by rising duration."""
    for (day, key, query), rows in groupby(grouped, key=lambda row: row[:3]):
        parts = [row[3:] for row in rows]
        calls = sum(part[1] for part in parts)
        yield Usage(
            day=_EPOCH + timedelta(days=day),
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


def usage_json(rows: list[Usage]) -> dict[str, object]:
    """As the API shows it."""
    return {"usage": [dict(zip(FIELDS, _fields(row), strict=True)) for row in rows]}


def usage_csv(rows: list[Usage]) -> str:
    """RFC 4180, with a header line."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(FIELDS)
    writer.writerows(_fields(row) for row in rows)
    return out.getvalue()


def _fields(row: Usage) -> tuple[object, ...]:
    seconds = Decimal(row.database_us).scaleb(-6)
    return (row.day.isoformat(), row.key, row.query, row.calls, row.errors, row.rows, row.bytes, seconds, row.p50_us, row.p99_us)
