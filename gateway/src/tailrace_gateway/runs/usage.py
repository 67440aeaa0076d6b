"""What each key used, by query and day (UTC): sums of exactly the runs that are stored. Pure; the readers of the stores add them up."""

import csv
import io
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

DAY_US = 86_400_000_000
RANGE_MAX_DAYS = 366
RANGE_DEFAULT_DAYS = 31

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
