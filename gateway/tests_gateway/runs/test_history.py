"""Reading the run store: pages, usage, the proof of completeness."""

import csv
import io
import json
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence as Values
from dataclasses import astuple, replace
from datetime import UTC, date, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tailrace_contract.codes import Fault
from tailrace_contract.plan import KeyPlan
from tailrace_contract.run import STORE_DDL, ClientClass, Epoch, Run, Sequence, ServedBy, run_id
from tailrace_contract.run_block import PackedRun, pack
from tailrace_gateway.cli import main as command_line
from tailrace_gateway.console import Console
from tailrace_gateway.routes import history as history_route
from tailrace_gateway.routes import usage as usage_route
from tailrace_gateway.routes.caller import Caller
from tailrace_gateway.runs import history as pages
from tailrace_gateway.runs import verify as proof
from tailrace_gateway.runs.commands import inspect, tail, verify_data
from tailrace_gateway.runs.embedded import EmbeddedReader
from tailrace_gateway.runs.history import HistoryFilter, Page, rfc3339, run_json
from tailrace_gateway.runs.place import EmbeddedPlace
from tailrace_gateway.runs.reading import ReadTimeout, StoreUnreadable, reading
from tailrace_gateway.runs.usage import Usage, UsageFilter, day_of, usage_csv, usage_json
from tailrace_gateway.runs.verify import Report, SpoolEpoch, SpoolStatus, gaps_of, merged
from tailrace_gateway.serve.admission import Refused
from tailrace_gateway.serve.tables import Key

DAY = 86_400_000_000
NUMBERS = ("time_us", "duration_us", "queue_us", "database_us", "status", "rows", "bytes", "batch")
_CLIENTS, _SERVED = list(ClientClass), list(ServedBy)


def a_run(epoch: int, sequence: int, **changes: Any) -> Run:
    run = Run(
        epoch=Epoch(epoch),
        sequence=Sequence(sequence),
        time_us=1_750_000_000_000_000 + sequence,
        duration_us=100,
        queue_us=1,
        database_us=50,
        query="q",
        query_version="0123456789abcdef",
        key="retail/me",
        connection="orders",
        status=200,
        code="",
        rows=1,
        bytes=10,
        batch=1,
        trace="",
        client=ClientClass.LOOPBACK,
        served_by=ServedBy.DATA_PLANE,
    )
    return replace(run, **changes)


def store_of(runs: Values[Run], opened: Values[Run] = (), path: Path | str = ":memory:", packed: int = 0) -> sqlite3.Connection:
    """`packed`: so many runs become one block, and the next one becomes a row."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(STORE_DDL)

    def name(text: str) -> int:
        connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (text,))
        return int(connection.execute("SELECT id FROM names WHERE name = ?", (text,)).fetchone()[0])

    packable = sorted((run for run in runs if run.params is None and packed), key=lambda run: (run.epoch, run.sequence))
    for epoch, of_epoch in groupby(packable, key=lambda run: run.epoch):
        mine = list(of_epoch)
        for start in range(0, len(mine), packed + 1):
            block = [
                PackedRun(
                    seq=r.sequence,
                    query=(name(r.query), name(r.query_version), name(r.connection)),
                    key=name(r.key),
                    code=name(r.code),
                    trace=bytes.fromhex(r.trace) or None,
                    client=_CLIENTS.index(r.client),
                    served_by=_SERVED.index(r.served_by),
                    **{field: getattr(r, field) for field in NUMBERS},
                )
                for r in mine[start : start + packed]
            ]
            connection.execute(f"INSERT INTO run_blocks VALUES ({','.join('?' * 11)})", (epoch, *astuple(pack(block))))
            runs = [run for run in runs if run not in mine[start : start + packed]]
    for table, rows in (("runs", runs), ("open_runs", opened)):
        for r in rows:
            names = [name(text) for text in (r.query, r.query_version, r.key, r.connection)]
            trace = bytes.fromhex(r.trace) or None
            values = (
                r.epoch,
                r.sequence,
                r.time_us,
                r.duration_us,
                r.queue_us,
                r.database_us,
                *names,
                r.status,
                name(r.code),
                r.rows,
                r.bytes,
            )
            more = (r.batch, trace, _CLIENTS.index(r.client), _SERVED.index(r.served_by), r.params)
            connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * 19)})", (*values, *more))
    return connection


def history(store: sqlite3.Connection, wanted: HistoryFilter) -> Page | None:
    return EmbeddedReader(store).history(wanted)


def usage(store: sqlite3.Connection, wanted: UsageFilter) -> list[Usage]:
    return EmbeddedReader(store).usage(wanted)


def verify(store: sqlite3.Connection | None, *more: Any) -> Report:
    return proof.verify(None if store is None else EmbeddedReader(store), *more)


names = st.sampled_from(["", "a", "b", "c d"])
packing = st.sampled_from([0, 1, 3, 100])
many_runs = st.lists(
    st.builds(
        a_run,
        st.integers(1, 3),
        st.integers(1, 40),
        time_us=st.integers(0, 3 * DAY) | st.integers(0, 3),
        duration_us=st.integers(0, 10**10),
        database_us=st.integers(0, 10**9),
        query=names,
        key=names,
        status=st.sampled_from([200, 404, 499, 503]),
        code=st.sampled_from(["", "aborted", "row_not_found"]),
        rows=st.integers(0, 10**12),
        bytes=st.integers(0, 10**12),
        trace=st.sampled_from(["", "0af7651916cd43dd8448eb211c80319c"]),
        client=st.sampled_from(_CLIENTS),
        served_by=st.sampled_from(_SERVED),
        params=st.sampled_from([None, '{"id":1}']),
    ),
    max_size=30,
    unique_by=lambda run: (run.epoch, run.sequence),
)


@settings(max_examples=60, deadline=None)
@given(
    runs=many_runs,
    limit=st.integers(1, 7),
    key=st.none() | names,
    query=st.none() | names,
    status=st.sampled_from([None, 2, 4, 5, 404, 200]),
    packed=packing,
)
def test_pages_together_are_all_runs_once_newest_first(
    runs: list[Run], limit: int, key: str | None, query: str | None, status: int | None, packed: int
) -> None:
    store = store_of(runs, packed=packed)
    expected = [
        run
        for run in sorted(runs, key=lambda run: (run.time_us, run.epoch, run.sequence), reverse=True)
        if key in (None, run.key) and query in (None, run.query) and status in (None, run.status, run.status // 100)
    ]
    got: list[Run] = []
    after = None
    while True:
        page = history(store, HistoryFilter(limit, key, query, status, after))
        assert page is not None
        assert len(page.runs) <= limit
        got += page.runs
        if not page.more:
            break
        after = (page.runs[-1].epoch, page.runs[-1].sequence)
    assert got == expected


def test_after_a_run_that_is_not_ones_own_gives_no_page() -> None:
    store = store_of([a_run(1, 1), a_run(1, 2, key="retail/other")])
    assert history(store, HistoryFilter(key="retail/me", after=(Epoch(1), Sequence(2)))) is None
    assert history(store, HistoryFilter(key="retail/me", after=(Epoch(1), Sequence(9)))) is None


def by_hand(runs: list[Run]) -> list[Usage]:
    groups: dict[tuple[date, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[day_of(run.time_us), run.key, run.query].append(run)
    rows = []
    for (day, key, query), mine in sorted(groups.items()):
        durations = sorted(run.duration_us for run in mine)
        p50, p99 = (durations[-(-len(mine) * percent // 100) - 1] for percent in (50, 99))
        errors = sum(run.code != "" for run in mine)
        sums = [sum(getattr(run, what) for run in mine) for what in ("rows", "bytes", "database_us")]
        rows.append(Usage(day, key, query, len(mine), errors, *sums, p50, p99))
    return rows


@settings(max_examples=60, deadline=None)
@given(runs=many_runs, packed=packing)
def test_usage_equals_the_runs(runs: list[Run], packed: int) -> None:
    got = usage(store_of(runs, packed=packed), UsageFilter(date(1970, 1, 1), date(1970, 1, 31)))
    assert got == by_hand(runs)


@settings(max_examples=40, deadline=None)
@given(runs=many_runs, key=names, query=names, day=st.integers(1, 4), packed=packing)
def test_usage_of_one_key_query_and_day(runs: list[Run], key: str, query: str, day: int, packed: int) -> None:
    wanted = date(1970, 1, day)
    got = usage(store_of(runs, packed=packed), UsageFilter(wanted, wanted, key, query))
    assert got == [row for row in by_hand(runs) if (row.day, row.key, row.query) == (wanted, key, query)]


def test_usage_as_csv_and_json_say_the_same() -> None:
    rows = [Usage(date(2026, 1, 31), "retail/me", 'a,"b', 3, 1, 2, 10, 1_234_567, 5, 9)]
    parsed = list(csv.DictReader(io.StringIO(usage_csv(rows))))
    assert [{**row} for row in parsed] == [{name: str(value) for name, value in each.items()} for each in usage_json(rows)["usage"]]  # type: ignore[attr-defined]
    assert parsed[0]["databaseSeconds"] == "1.234567"


sequences = st.sets(st.integers(1, 30))


@settings(max_examples=100, deadline=None)
@given(stored=sequences, opened=sequences, spooled=sequences, packed=packing)
def test_what_is_nowhere_is_missing(stored: set[int], opened: set[int], spooled: set[int], packed: int) -> None:
    opened -= stored
    store = store_of([a_run(7, n) for n in stored], [a_run(7, n) for n in opened], packed=packed)
    ranges = tuple(merged((n, n) for n in spooled))
    spool = SpoolStatus(segments=1, bytes=1, unreadable=(), torn=0, epochs=(SpoolEpoch(epoch=7, ranges=ranges),) if ranges else ())
    report = verify(store, spool)
    everything = stored | opened | spooled
    missing = set(range(1, max(everything, default=0) + 1)) - everything
    assert report.missing == len(missing)
    assert report.complete == (not missing)
    for epoch in report.epochs:
        assert (epoch.stored, epoch.open, epoch.spooled) == (len(stored), len(opened), len(spooled - stored - opened))
        assert {n for first, last in epoch.gaps for n in range(first, last + 1)} == missing
        assert epoch.stored + epoch.open + epoch.spooled + epoch.missing == epoch.highest
    assert gaps_of([]) == []


@settings(max_examples=60, deadline=None)
@given(runs=many_runs, above=st.integers(0, 41), limit=st.integers(1, 9), packed=packing)
def test_an_epoch_is_read_by_sequence(runs: list[Run], above: int, limit: int, packed: int) -> None:
    reader = EmbeddedReader(store_of(runs, packed=packed))
    for epoch in {run.epoch for run in runs}:
        mine = sorted((run for run in runs if run.epoch == epoch), key=lambda run: run.sequence)
        later = [run for run in mine if run.sequence > above]
        assert list(reader.sequences(epoch, above)) == [run.sequence for run in later]
        assert reader.later(epoch, above, limit) == later[:limit]
        assert reader.stored()[epoch] == (len(mine), mine[-1].sequence)
        assert reader.highest()[epoch] == mine[-1].sequence


def test_a_block_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    store = store_of([a_run(1, n) for n in range(1, 9)], path=path, packed=8)
    whole_year = UsageFilter(date(2025, 1, 1), date(2025, 12, 31))

    def read(timeout_s: float) -> None:
        with reading(EmbeddedPlace(path), timeout_s) as reader:
            assert reader is not None
            assert reader.usage(whole_year)

    read(60.0)
    with pytest.raises(ReadTimeout):
        read(0.0)
    store.execute("UPDATE run_blocks SET body = substr(body, 1, 40)")
    with pytest.raises(StoreUnreadable):
        read(60.0)


@pytest.mark.parametrize("packed", [0, 2])
def test_a_follower_shows_each_run_once_streams_when_they_end(packed: int) -> None:
    store = store_of([a_run(1, 1), a_run(1, 2), a_run(1, 4)], [a_run(1, 3)], packed=packed)
    follower = pages.Follower(EmbeddedReader(store))
    assert list(follower.news(EmbeddedReader(store))) == []
    later = store_of([a_run(1, n) for n in (1, 2, 3, 4, 6)] + [a_run(2, 1)], [a_run(1, 5)])
    assert [(run.epoch, run.sequence) for run in follower.news(EmbeddedReader(later))] == [(2, 1), (1, 3), (1, 6)]
    assert list(follower.news(EmbeddedReader(later))) == []
    last = store_of([a_run(1, n) for n in (1, 2, 3, 4, 5, 6)] + [a_run(2, 1)])
    assert [run.sequence for run in follower.news(EmbeddedReader(last))] == [5]


def execute(path: Path, sql: str, timeout_s: float = 10.0) -> None:
    with reading(EmbeddedPlace(path), timeout_s) as reader:
        assert isinstance(reader, EmbeddedReader)
        reader._connection.execute(sql).fetchall()


def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with reading(EmbeddedPlace(path)) as reader:
        assert reader is None
    assert not path.exists()
    path.write_text("no database " * 1000)
    with pytest.raises(StoreUnreadable), reading(EmbeddedPlace(path)):
        pass
    path.unlink()
    store = store_of([a_run(1, 1)], path=path)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(ReadTimeout):
        execute(path, endless, timeout_s=0.0)
    with pytest.raises(StoreUnreadable):
        execute(path, "DELETE FROM runs")
    store.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreUnreadable), reading(EmbeddedPlace(path)):
        pass


def app(path: Path, key: str = "retail/me") -> httpx.AsyncClient:
    inner = FastAPI()
    inner.include_router(history_route.router(lambda: EmbeddedPlace(path)))
    inner.include_router(usage_route.router(lambda: EmbeddedPlace(path), lambda: datetime(2025, 6, 15, tzinfo=UTC)))

    @inner.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        return JSONResponse({"code": error.code, "faults": [[name, fault.value] for name, fault in error.faults]}, 422)

    caller = Caller(Key(KeyPlan(id=key, sha256=("00" * 32,), role=0), ()), None)  # type: ignore[arg-type]

    async def with_caller(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "tailrace.caller": caller}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(app=with_caller), base_url="http://tailrace")


async def test_the_routes_show_ones_own_runs_only(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    runs = [a_run(5, n, key="retail/me" if n % 2 else "retail/other", status=200 if n < 8 else 503) for n in range(1, 11)]
    store_of(runs, path=path)
    client = app(path)
    mine = [run for run in reversed(runs) if run.key == "retail/me"]
    assert (await client.get("/history")).json() == {"runs": [run_json(run) for run in mine], "next": None}
    first = (await client.get("/history?limit=2")).json()
    assert [run["id"] for run in first["runs"]] == [run_id(5, 9), run_id(5, 7)]
    assert first["next"] == run_id(5, 7)
    assert [run["id"] for run in (await client.get(f"/history?limit=2&after={first['next']}")).json()["runs"]] == [
        run_id(5, 5),
        run_id(5, 3),
    ]
    assert (await client.get("/history?key=retail/other")).json() == {"runs": [], "next": None}
    assert len((await client.get("/history?key=retail%2Fme&query=q&status=5xx")).json()["runs"]) == 1
    assert (await client.get("/history?query=unknown")).json()["runs"] == []
    (row,) = (await client.get("/usage")).json()["usage"]
    assert (row["calls"], row["key"], row["databaseSeconds"]) == (5, "retail/me", 0.00025)
    assert (
        (await client.get("/usage?format=csv&from=2025-06-15")).text.splitlines()[1].startswith("2025-06-15,retail/me,q,5,0,5,50,0.000250")
    )
    assert (await client.get("/usage?to=2025-06-14")).json() == {"usage": []}
    assert (await app(tmp_path / "none").get("/history")).json() == {"runs": [], "next": None}


@pytest.mark.parametrize(
    ("url", "code", "fault"),
    [
        ("/history?limit=0", "invalid_parameters", ["limit", Fault.MINIMUM]),
        ("/history?limit=1001", "invalid_parameters", ["limit", Fault.MAXIMUM]),
        ("/history?limit=x", "invalid_parameters", ["limit", Fault.TYPE]),
        ("/history?status=600", "invalid_parameters", ["status", Fault.TYPE]),
        ("/history?status=20", "invalid_parameters", ["status", Fault.TYPE]),
        ("/history?after=1", "invalid_parameters", ["after", Fault.TYPE]),
        (f"/history?after={run_id(1, 1)}", "invalid_parameters", ["after", Fault.ENUM]),
        ("/history?x=1", "invalid_parameters", ["x", Fault.UNKNOWN]),
        ("/history?limit=1&limit=2", "invalid_parameters", ["limit", Fault.DUPLICATE]),
        ("/history?query=%ff", "malformed_arguments", None),
        ("/history?query=%2", "malformed_arguments", None),
        ("/usage?from=2025-13-01", "invalid_parameters", ["from", Fault.TYPE]),
        ("/usage?from=20250101", "invalid_parameters", ["from", Fault.TYPE]),
        ("/usage?from=2025-06-16", "invalid_parameters", ["to", Fault.MINIMUM]),
        ("/usage?from=2020-01-01", "invalid_parameters", ["from", Fault.MINIMUM]),
        ("/usage?format=xlsx", "not_acceptable", None),
    ],
)
async def test_bad_arguments(tmp_path: Path, url: str, code: str, fault: list[str] | None) -> None:
    assert (await app(tmp_path / "none").get(url)).json() == {"code": code, "faults": [] if fault is None else [fault]}


def shown(run: Any) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    status = run(Console(json=True, out=out, err=err))
    return status, out.getvalue() + err.getvalue()


def test_the_commands(tmp_path: Path) -> None:
    status, text = shown(lambda console: tail(tmp_path / "nowhere", console, wanted=HistoryFilter()))
    assert status == 1
    assert "--data" in text
    # A directory of something else proves nothing.
    status, text = shown(lambda console: verify_data(tmp_path, console))
    assert status == 1
    assert "--data" in text
    store_of([a_run(1, n) for n in (1, 2, 4)], path=tmp_path / "runs.sqlite")
    status, text = shown(lambda console: tail(tmp_path, console, wanted=HistoryFilter(limit=2)))
    assert [json.loads(line)["id"] for line in text.splitlines()] == [run_id(1, 2), run_id(1, 4)]
    status, text = shown(lambda console: verify_data(tmp_path, console))
    assert status == 1
    found = json.loads(text)
    assert (found["complete"], found["missing"], found["epochs"][0]["gaps"]) == (False, 1, [[3, 3]])
    assert inspect(tmp_path).problems == ()
    # What is in the spool and can't be read is no proof.
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "x.seg").write_text("x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace_gateway.runs.commands.find_data_plane", lambda binary: None)
        assert not inspect(tmp_path).complete


def test_a_spool_that_is_given_counts_instead_of_the_directorys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_of([a_run(1, n) for n in (1, 2)], path=tmp_path / "runs.sqlite")
    (tmp_path / "spools.json").write_text(
        json.dumps(
            {
                "segments": 1,
                "bytes": 1,
                "unreadable": [],
                "torn": 0,
                "epochs": [{"epoch": 1, "ranges": [[2, 3]]}, {"epoch": 2, "ranges": [[2, 2]]}],
            }
        )
    )
    words = ["runs", "verify", "--data", str(tmp_path), "--spool", str(tmp_path / "spools.json"), "-o", "json"]
    assert command_line(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(each["stored"], each["spooled"], each["highest"], each["missing"]) for each in found["epochs"]] == [(2, 1, 3, 0), (0, 1, 2, 1)]
    (tmp_path / "spools.json").write_text("{}")
    assert command_line(words) == 64
    assert "--spool" in capsys.readouterr().err


def test_following_ends_when_nobody_listens_any_more(tmp_path: Path) -> None:
    store_of([a_run(1, 1)], path=tmp_path / "runs.sqlite")
    words = [sys.executable, "-m", "tailrace_gateway", "runs", "tail", "--data", str(tmp_path), "--follow", "--until-eof"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline()
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(60) == 0


def test_batch_tells_what_came_from_the_cache() -> None:
    store = store_of([a_run(1, 1, batch=64), a_run(1, 2, batch=1), a_run(1, 3, batch=0)])
    page = history(store, HistoryFilter(10))
    assert page is not None
    assert [(shown["batch"], shown["cached"]) for shown in map(run_json, page.runs)] == [(0, True), (1, False), (64, False)]


def test_times() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"
    assert rfc3339(1_750_000_000_000_001) == "2025-06-15T15:06:40.000001Z"
