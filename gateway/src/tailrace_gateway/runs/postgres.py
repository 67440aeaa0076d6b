"""The PostgreSQL store as a reader sees it. IO: its own short connections, few at a time. Rejects as `reading` says."""

import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Values
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import psycopg
from tailrace_contract.postgres_uri import Files, UriError, parse
from tailrace_contract.run import POSTGRES_STORE_VERSION, ClientClass, Epoch, Run, Sequence, ServedBy

from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.runs.history import HistoryFilter, Page, page_of
from tailrace_gateway.runs.reading import ReadTimeout, RunReader, StoreUnreadable
from tailrace_gateway.runs.usage import Usage, UsageFilter

URL_LIMIT_BYTES = 65_536
PROBE_S = 10.0
READERS = 4
"""Connections that this process has open at once for reading; more wait."""
_TIME = "(extract(epoch FROM time) * 1000000)::int8"
COLUMNS = f"""epoch, seq, {_TIME}, duration_us, queue_us, database_us, query, query_version, key, connection, status, code,
    rows, bytes, batch, encode(trace, 'hex'), client, served_by, params"""
_DAY_0 = date(1970, 1, 1)
_room = threading.BoundedSemaphore(READERS)

Connection = psycopg.Connection[tuple[object, ...]]


def connect(url_file: Path, statement_timeout_s: float) -> Connection:
    """A session with the store, its URL read now. StoreUnreadable, which says nothing of it, when there is none."""
    try:
        text = read_bounded(url_file, URL_LIMIT_BYTES).decode().strip()
        words = parse(text, Files()).keywords()
        connection = psycopg.connect(psycopg.conninfo.make_conninfo("", **words), autocommit=True, prepare_threshold=None)
    except (OSError, ValueError, UriError, psycopg.Error):
        raise StoreUnreadable from None
    try:
        milliseconds = max(1, round(statement_timeout_s * 1000))
        pins = [("statement_timeout", str(milliseconds)), ("TimeZone", "UTC"), ("client_encoding", "UTF8"), ("bytea_output", "hex")]
        for name, value in pins:
            connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    except psycopg.Error:
        connection.close()
        raise StoreUnreadable from None
    return connection


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """Why a store would take no runs: `code`, what it is and what to do. Names no host, user or path."""

    code: str
    message: str
    hint: str


def problem_of(url_file: Path) -> StoreProblem | None:
    """What keeps runs from being stored there, as far as can be told without writing."""
    try:
        parse(read_bounded(url_file, URL_LIMIT_BYTES).decode().strip(), Files())
    except UriError as wrong:
        return StoreProblem(
            "connection_malformed", f"the URL is malformed ({wrong})", "correct the Secret: postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    except (OSError, ValueError):
        return StoreProblem("connection_malformed", "the URL can't be read", "correct the Secret")
    try:
        with closing(connect(url_file, PROBE_S)) as connection:
            version = version_of(connection)
            if version is None:
                missing = "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
                what = "there is no schema tailrace, and the role may not create it"
            else:
                missing = (
                    "pg_catalog.has_table_privilege('tailrace.runs', 'SELECT') AND pg_catalog.has_table_privilege('tailrace.runs', 'INSERT')"
                    " AND pg_catalog.has_table_privilege('tailrace.open_runs', 'SELECT')"
                    " AND pg_catalog.has_table_privilege('tailrace.open_runs', 'INSERT')"
                    " AND pg_catalog.has_table_privilege('tailrace.open_runs', 'DELETE')"
                )
                what = "the role may not write the tables of schema tailrace"
            row = connection.execute(
                f"SELECT {missing} AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY'),"
                " pg_catalog.current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')"
            ).fetchone()
    except (StoreUnreadable, psycopg.Error):
        return StoreProblem(
            "database_unreachable",
            "the database can't be reached, or refuses the role",
            "see that it runs and that the Secret holds its URL",
        )
    if version not in (None, POSTGRES_STORE_VERSION):
        return StoreProblem(
            "store_version",
            f"its tables are of version {version}, this Tailrace knows {POSTGRES_STORE_VERSION}",
            "use the Tailrace that made them, or another database",
        )
    if row is None or not row[0]:
        return StoreProblem("permission_denied", what + ", or not make temporary tables", "grant what docs/runs.md lists")
    if not row[1]:
        return StoreProblem("store_encoding", "the database is not encoded in UTF8", "use a database that is")
    return None


def version_of(connection: Connection) -> int | None:
    """The version of the tables; None when there are none."""
    found = connection.execute("SELECT pg_catalog.to_regclass('tailrace.store') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return None
    row = connection.execute("SELECT version FROM tailrace.store").fetchone()
    return int(str(row[0])) if row is not None else 0


@contextmanager
def reading_postgres(url_file: Path, timeout_s: float) -> Iterator[RunReader | None]:
    """See `reading`."""
    until_s = time.monotonic() + timeout_s
    if not _room.acquire(timeout=timeout_s):
        raise ReadTimeout
    try:
        connection = connect(url_file, max(0.001, until_s - time.monotonic()))
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            version = version_of(connection)
            if version not in (None, POSTGRES_STORE_VERSION):
                raise StoreUnreadable
            yield None if version is None else PostgresReader(connection)
        except psycopg.errors.QueryCanceled:
            raise ReadTimeout from None
        except psycopg.Error:
            raise StoreUnreadable from None
        finally:
            connection.close()
    finally:
        _room.release()


class PostgresReader:
    """A `RunReader` in an open transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _ask(self, text: str, values: Values[object] = ()) -> list[tuple[object, ...]]:
        return self._connection.execute(text.encode(), values).fetchall()

    def history(self, wanted: HistoryFilter) -> Page | None:
        """See `RunReader`."""
        conditions, values = ["true"], list[object]()
        for column, name in (("key", wanted.key), ("query", wanted.query)):
            if name is not None:
                conditions.append(f"{column} = %s")
                values.append(name)
        if wanted.status is not None:
            low, high = (wanted.status * 100, wanted.status * 100 + 99) if wanted.status < 10 else (wanted.status, wanted.status)
            conditions.append("status BETWEEN %s AND %s")
            values += (low, high)
        where = " AND ".join(conditions)
        if wanted.after is not None:
            last = self._ask(f"SELECT time::text FROM tailrace.runs WHERE epoch = %s AND seq = %s AND {where}", (*wanted.after, *values))  # noqa: S608
            if not last:
                return None
            where += " AND (time, epoch, seq) < (%s::timestamptz, %s::int8, %s::int8)"
            values += (last[0][0], *wanted.after)
        found = self._ask(
            f"SELECT {COLUMNS} FROM tailrace.runs WHERE {where} ORDER BY time DESC, epoch DESC, seq DESC LIMIT %s",  # noqa: S608
            (*values, wanted.limit + 1),
        )
        return page_of([run_of(row) for row in found], wanted)

    def usage(self, wanted: UsageFilter) -> list[Usage]:
        """See `RunReader`. Percentiles are nearest-rank, in whole numbers."""
        values: list[object] = [wanted.first, wanted.last + timedelta(days=1)]
        conditions = ["time >= %s::date::timestamp AT TIME ZONE 'UTC'", "time < %s::date::timestamp AT TIME ZONE 'UTC'"]
        for column, name in (("key", wanted.key), ("query", wanted.query)):
            if name is not None:
                conditions.append(f"{column} = %s")
                values.append(name)
        rows = self._ask(
            f"""WITH g AS (
                SELECT (time AT TIME ZONE 'UTC')::date - date '1970-01-01' AS day, key, query, duration_us, count(*) AS calls,
                    count(*) FILTER (WHERE code <> '') AS errors, sum(rows) AS rows, sum(bytes) AS bytes, sum(database_us) AS database_us
                FROM tailrace.runs WHERE {" AND ".join(conditions)} GROUP BY 1, 2, 3, 4
            ), c AS (
                SELECT *, sum(calls) OVER (PARTITION BY day, key, query ORDER BY duration_us) AS upto,
                    sum(calls) OVER (PARTITION BY day, key, query) AS of FROM g
            )
            SELECT day, key, query, sum(calls), sum(errors), sum(rows), sum(bytes), sum(database_us),
                min(duration_us) FILTER (WHERE upto * 100 >= of * 50), min(duration_us) FILTER (WHERE upto * 100 >= of * 99)
            FROM c GROUP BY 1, 2, 3 ORDER BY 1, key COLLATE "C", query COLLATE "C\"""",  # noqa: S608
            values,
        )
        return [Usage(_DAY_0 + timedelta(days=int(str(day))), str(key), str(query), *map(_int, more)) for day, key, query, *more in rows]

    def stored(self) -> dict[int, tuple[int, int]]:
        """See `RunReader`."""
        rows = self._ask("SELECT epoch, count(*), max(seq) FROM tailrace.runs GROUP BY epoch")
        return {_int(epoch): (_int(count), _int(highest)) for epoch, count, highest in rows}

    def highest(self) -> dict[int, int]:
        """See `RunReader`."""
        # Each epoch is found from the one before, and its highest sequence from the end of its rows, by the primary key.
        rows = self._ask(
            """WITH RECURSIVE e (epoch) AS (
                SELECT min(epoch) FROM tailrace.runs UNION ALL
                SELECT (SELECT min(r.epoch) FROM tailrace.runs r WHERE r.epoch > e.epoch) FROM e WHERE e.epoch IS NOT NULL)
            SELECT epoch, (SELECT max(r.seq) FROM tailrace.runs r WHERE r.epoch = e.epoch) FROM e WHERE epoch IS NOT NULL"""
        )
        return {_int(epoch): _int(highest) for epoch, highest in rows}

    def opened(self) -> dict[int, list[int]]:
        """See `RunReader`."""
        opened: dict[int, list[int]] = {}
        for epoch, sequence in self._ask("SELECT epoch, seq FROM tailrace.open_runs ORDER BY epoch, seq"):
            opened.setdefault(_int(epoch), []).append(_int(sequence))
        return opened

    def sequences(self, epoch: int, above: int = 0) -> Iterator[int]:
        """See `RunReader`. Read in portions: there may be millions."""
        with self._connection.cursor(f"sequences_{epoch}") as cursor:
            cursor.itersize = 50_000
            cursor.execute("SELECT seq FROM tailrace.runs WHERE epoch = %s AND seq > %s ORDER BY seq", (epoch, above))
            for (sequence,) in cursor:
                yield _int(sequence)

    def later(self, epoch: int, above: int, limit: int) -> list[Run]:
        """See `RunReader`."""
        rows = self._ask(
            f"SELECT {COLUMNS} FROM tailrace.runs WHERE epoch = %s AND seq > %s ORDER BY seq LIMIT %s",  # noqa: S608
            (epoch, above, limit),
        )
        return [run_of(row) for row in rows]


def _int(value: object) -> int:
    return int(str(value))


def run_of(row: tuple[object, ...]) -> Run:
    """A row of `COLUMNS` as a run."""
    epoch, sequence, *times, query, version, key, connection, status, code, rows, size, batch, trace, client, served_by, params = row
    time_us, duration_us, queue_us, database_us = map(_int, times)
    return Run(
        epoch=Epoch(_int(epoch)),
        sequence=Sequence(_int(sequence)),
        time_us=time_us,
        duration_us=duration_us,
        queue_us=queue_us,
        database_us=database_us,
        query=str(query),
        query_version=str(version),
        key=str(key),
        connection=str(connection),
        status=_int(status),
        code=str(code),
        rows=_int(rows),
        bytes=_int(size),
        batch=_int(batch),
        trace="" if trace is None else str(trace),
        client=ClientClass(str(client)),
        served_by=ServedBy(str(served_by)),
        params=None if params is None else str(params),
    )
