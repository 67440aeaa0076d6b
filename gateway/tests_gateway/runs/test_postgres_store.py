"""The PostgreSQL store: it answers as the embedded one does, pods share it, and both processes record into it."""

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_contract.plan import Durability, EmbeddedStorePlan, Nothing, PostgresStorePlan, PostgresTarget
from tailrace_contract.run import Epoch, Run
from tailrace_gateway.console import Console
from tailrace_gateway.runs.commands import tail, verify_data
from tailrace_gateway.runs.embedded import EmbeddedReader
from tailrace_gateway.runs.history import Follower, HistoryFilter
from tailrace_gateway.runs.place import EmbeddedPlace, PostgresPlace, keep_plan, kept_place
from tailrace_gateway.runs.postgres import PostgresReader, problem_of
from tailrace_gateway.runs.postgres_writer import PostgresWriter
from tailrace_gateway.runs.reading import ReadTimeout, StoreUnreadable, reading
from tailrace_gateway.runs.recorder import StoreRecorder
from tailrace_gateway.runs.usage import UsageFilter, day_of
from tailrace_gateway.runs.verify import verify
from tailrace_gateway.runs.writing import Entry
from tailrace_gateway.serve.recording import RunsUnavailable
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace

from .test_data_plane import PROGRAM, SNAPSHOT, data_plane
from .test_history import a_run, many_runs, store_of

WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def place(server: Postgres, tmp_path: Path) -> PostgresPlace:
    server.psql("DROP SCHEMA IF EXISTS tailrace CASCADE")
    path = tmp_path / "url"
    path.write_text(server.url() + "\n")
    return PostgresPlace(path)


def written(place: PostgresPlace, data: Path, runs: list[Run], opened: list[Run]) -> None:
    writer = PostgresWriter(place.url_file, data, Epoch(0))
    writer.write([*(Entry(run, False) for run in runs), *(Entry(run, True) for run in opened)], Durability.DISK)
    writer.close()


opened_runs = st.lists(st.integers(41, 45).map(lambda n: a_run(1, n)), max_size=4, unique_by=lambda run: run.sequence)
days = st.integers(0, 3).map(lambda n: date(1970, 1, 1 + n))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(many_runs, opened_runs, st.data())
def test_both_stores_answer_alike(
    server: Postgres, place: PostgresPlace, tmp_path: Path, runs: list[Run], opened: list[Run], data: st.DataObject
) -> None:
    runs = list({(run.epoch, run.sequence): run for run in runs}.values())
    if server.psql("SELECT to_regclass('tailrace.runs') IS NOT NULL").strip() == "t":
        server.psql("TRUNCATE tailrace.runs, tailrace.open_runs")
    written(place, tmp_path, runs, opened)
    embedded = EmbeddedReader(store_of(runs, opened))
    names = st.sampled_from([None, "", "a", "b", "c d", "unknown"])
    with reading(place) as reader:
        assert reader is not None
        assert reader.stored() == embedded.stored()
        assert reader.highest() == embedded.highest()
        assert reader.opened() == embedded.opened()
        for epoch in (1, 2, 4):
            assert list(reader.sequences(epoch, 7)) == list(embedded.sequences(epoch, 7))
            assert reader.later(epoch, 3, 5) == embedded.later(epoch, 3, 5)
        assert verify(reader, None) == verify(embedded, None)
        assert list(Follower(None).news(reader)) == list(Follower(None).news(embedded))
        for _ in range(4):
            after = data.draw(st.none() | st.sampled_from([(run.epoch, run.sequence) for run in runs] or [None]))
            status = data.draw(st.sampled_from([None, 2, 4, 404, 500]))
            wanted = HistoryFilter(data.draw(st.integers(1, 8)), data.draw(names), data.draw(names), status, after)
            assert reader.history(wanted) == embedded.history(wanted)
            first, last = sorted((data.draw(days), data.draw(days)))
            range_ = UsageFilter(first, last, data.draw(names), data.draw(names))
            assert reader.usage(range_) == embedded.usage(range_)


def sleep(place: PostgresPlace) -> None:
    with reading(place, 0.2) as reader:
        assert isinstance(reader, PostgresReader)
        reader._ask("SELECT pg_sleep(60)")


def test_a_store_that_cannot_be_read(server: Postgres, place: PostgresPlace, tmp_path: Path) -> None:
    with reading(place) as reader:
        assert reader is None
    assert server.psql("SELECT to_regnamespace('tailrace') IS NULL").strip() == "t"
    written(place, tmp_path, [a_run(1, 1)], [])
    server.psql("UPDATE tailrace.store SET version = 2")
    with pytest.raises(StoreUnreadable), reading(place):
        pass
    with pytest.raises(RunsUnavailable):
        written(place, tmp_path, [a_run(1, 2)], [])
    server.psql("UPDATE tailrace.store SET version = 1")
    with pytest.raises(ReadTimeout):
        sleep(place)
    place.url_file.write_text("postgresql://postgres@127.0.0.1:1/postgres")
    with pytest.raises(StoreUnreadable), reading(place):
        pass


def recorder_of(data: Path, place: PostgresPlace) -> StoreRecorder:
    return StoreRecorder(data, lambda observed: None, alone=True, place=place)


def drawn(recorder: StoreRecorder, **changes: Any) -> Run:
    epoch, sequence = recorder.draw()
    return a_run(epoch, sequence, trace="0af7651916cd43dd8448eb211c80319c", params='{"id":"\\u0000"}', **changes)


async def test_python_alone_records_and_ends_only_its_own(place: PostgresPlace, tmp_path: Path, server: Postgres) -> None:
    written(place, tmp_path / "other", [], [a_run(7, 1)])
    recorder = recorder_of(tmp_path, place)
    runs = [drawn(recorder) for _ in range(200)]
    await asyncio.gather(*(recorder.store(run) for run in runs))
    stream, lost = drawn(recorder, status=0), drawn(recorder, status=0)
    await recorder.open(stream)
    await recorder.open(lost)
    ended = replace(stream, status=200, rows=9)
    await recorder.store(ended)
    await recorder.close()
    later = recorder_of(tmp_path, place)
    await later.store(drawn(later))
    await later.close()
    with reading(place) as reader:
        assert reader is not None
        assert verify(reader, None).missing == 0
        assert reader.opened() == {7: [1]}
        page = reader.history(HistoryFilter(1000))
        assert page is not None
        stored = {run.id: run for run in page.runs}
    assert [stored[run.id] for run in [*runs, ended]] == [*runs, ended]
    assert (stored[lost.id].code, stored[lost.id].status) == ("aborted", 0)
    assert len(stored) == 203


async def test_refusals_before_the_store_is_known_are_stored(place: PostgresPlace, tmp_path: Path) -> None:
    recorder = StoreRecorder(tmp_path, lambda observed: None, alone=True)
    refused = [drawn(recorder, status=503, code="not_ready") for _ in range(3)]
    for run in refused:
        await recorder.store(run)
    recorder.keep_in(place)
    await recorder.close()
    with reading(place) as reader:
        assert reader is not None
        page = reader.history(HistoryFilter())
        assert page is not None
        assert list(page.runs) == refused[::-1]


async def test_what_was_refused_is_stored_as_refused(place: PostgresPlace, tmp_path: Path) -> None:
    url = place.url_file.read_text()
    recorder = recorder_of(tmp_path, place)
    place.url_file.write_text("postgresql://postgres@127.0.0.1:1/postgres")
    for _ in range(3):
        with pytest.raises(RunsUnavailable):
            await recorder.store(drawn(recorder))
    place.url_file.write_text(url)
    for _ in range(600):
        try:
            await recorder.store(drawn(recorder))
            break
        except RunsUnavailable:
            await asyncio.sleep(0.1)
    await recorder.close()
    with reading(place) as reader:
        assert reader is not None
        assert verify(reader, None).missing == 0
        page = reader.history(HistoryFilter(1000))
        assert page is not None
        refused = [run for run in page.runs if (run.status, run.code) == (503, "spool_full")]
        assert len(refused) == len(page.runs) - 1 >= 3


def test_where_runs_are_kept_is_written_down(tmp_path: Path) -> None:
    assert kept_place(tmp_path) == EmbeddedPlace(tmp_path / "runs.sqlite")
    keep_plan(tmp_path, EmbeddedStorePlan(embedded=Nothing()))
    assert not list(tmp_path.iterdir())
    keep_plan(tmp_path, PostgresStorePlan(postgres=PostgresTarget(url_file="/secret/url")))
    assert kept_place(tmp_path) == PostgresPlace(Path("/secret/url"))
    keep_plan(tmp_path, EmbeddedStorePlan(embedded=Nothing()))
    assert kept_place(tmp_path) == EmbeddedPlace(tmp_path / "runs.sqlite")


def verified(data: Path) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    status = verify_data(data, Console(json=True, out=out, err=out))
    return status, json.loads(out.getvalue())


def eventually(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.dataplane
@pytest.mark.skipif(PROGRAM is None, reason="no data plane here")
def test_nothing_is_missing_while_the_server_is_down_and_after_kills(
    server: Postgres, place: PostgresPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PostgresStorePlan(postgres=PostgresTarget(url_file=str(place.url_file)))
    monkeypatch.setitem(SNAPSHOT["api"], "runStore", plan.model_dump(by_alias=True))  # type: ignore[arg-type]
    data = tmp_path / "pod"
    data.mkdir(mode=0o700)
    keep_plan(data, plan)
    with data_plane(data) as running:
        ids = running.call(40)
        eventually(lambda: sum(epoch["stored"] for epoch in verified(data)[1]["epochs"]) == 40)
        server.stop("immediate")
        ids += running.call(30)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
    with data_plane(data) as running:
        ids += running.call(10)
        server.start()
        status, report = verified(data)
        assert (status, report["missing"]) == (0, 0)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=60) == 0
    status, report = verified(data)
    assert (status, report["missing"], report["spool"]["segments"]) == (0, 0, 0)
    assert sum(epoch["stored"] for epoch in report["epochs"]) == 80
    out = io.StringIO()
    assert tail(data, Console(json=True, out=out, err=out), wanted=HistoryFilter(limit=1000)) == 0
    assert {json.loads(line)["id"] for line in out.getvalue().splitlines()} == set(ids)
    assert not (data / "runs.sqlite").exists()


def granted(server: Postgres, place: PostgresPlace, grants: str) -> str:
    server.psql(f"DROP OWNED BY recorder; DROP ROLE recorder; CREATE ROLE recorder LOGIN; {grants}")
    place.url_file.write_text(server.url(user="recorder"))
    problem = problem_of(place.url_file)
    return "" if problem is None else problem.code


def test_what_keeps_runs_from_being_stored(server: Postgres, place: PostgresPlace, tmp_path: Path) -> None:
    assert problem_of(place.url_file) is None
    server.psql("CREATE ROLE recorder LOGIN")
    assert granted(server, place, "") == "permission_denied"
    assert granted(server, place, "GRANT CREATE ON DATABASE postgres TO recorder") == ""
    place.url_file.write_text(server.url())
    written(place, tmp_path, [a_run(1, 1)], [])
    few = "GRANT USAGE ON SCHEMA tailrace TO recorder; GRANT SELECT ON ALL TABLES IN SCHEMA tailrace TO recorder;"
    assert granted(server, place, few) == "permission_denied"
    few += "GRANT INSERT ON tailrace.runs, tailrace.open_runs TO recorder; GRANT DELETE ON tailrace.open_runs TO recorder"
    assert granted(server, place, few) == ""
    server.psql("UPDATE tailrace.store SET version = 2")
    assert granted(server, place, few) == "store_version"
    for url, code in (("postgresql://", "connection_malformed"), ("postgresql://u@127.0.0.1:1/d", "database_unreachable")):
        place.url_file.write_text(url)
        problem = problem_of(place.url_file)
        assert problem is not None
        assert problem.code == code


def test_check_tells_of_the_store(server: Postgres, place: PostgresPlace, tmp_path: Path) -> None:
    server.psql("CREATE TABLE IF NOT EXISTS numbers (id int PRIMARY KEY)")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "store", "namespace": "default"},
        "stringData": {"url": server.url()},
    }
    (tmp_path / "api.yaml").write_text(API)
    command = [sys.executable, "-m", "tailrace_gateway", "check", "-f", str(tmp_path / "api.yaml"), "--data", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "api.yaml:5:29: error: spec.postgres.urlFrom.secretKeyRef: urlFrom: there is no Secret default/store" in done.stdout
    (tmp_path / "api.yaml").write_text(API + "---\n" + json.dumps(secret))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    written(place, tmp_path, [a_run(1, 1)], [])
    server.psql("UPDATE tailrace.store SET version = 2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "api.yaml:5:19: error: spec.postgres: its tables are of version 2, this Tailrace knows 1" in done.stdout


API = """
apiVersion: tailrace.dev/v1alpha1
kind: RunStore
metadata: {name: runs, namespace: default}
spec: {postgres: {urlFrom: {secretKeyRef: {name: store, key: url}}}}
---
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: shop, namespace: default}
spec:
  connections: [{name: main, urlFrom: {secretKeyRef: {name: store, key: url}}}]
  queries:
    - {name: number, connection: main, sql: "SELECT id FROM numbers WHERE id = :id", params: {id: {type: integer, required: true}}, returns: many}
  roles: [{name: all, queries: ["*"]}]
  runStoreRef: {name: runs}
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: desk, namespace: default}
spec: {queryApiRef: {name: shop}, role: all, secretName: desk}
"""


@pytest.mark.parametrize("with_data_plane", [False, pytest.param(True, marks=pytest.mark.dataplane)])
def test_a_run_store_in_files(server: Postgres, place: PostgresPlace, tmp_path: Path, with_data_plane: bool) -> None:
    if with_data_plane and PROGRAM is None:
        pytest.skip("no data plane here")
    server.psql("CREATE TABLE IF NOT EXISTS numbers (id int PRIMARY KEY)")
    file = tmp_path / "api.yaml"
    file.write_text(API)
    with Tailrace([file], {"store": server.url()}, data_plane=with_data_plane) as stack:
        with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.keys["desk"]}) as client:
            ids = [client.get("/q/number", params={"id": n}).headers["x-run-id"] for n in range(20)]

            def runs() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = client.get("/history?query=number&limit=1000").json()["runs"]
                return found

            eventually(lambda: set(ids) <= {run["id"] for run in runs()})
            day = day_of(time.time_ns() // 1000)
            used = [each for each in client.get("/usage?query=number").json()["usage"] if each["day"] == day.isoformat()]
            assert not used or used[0]["calls"] >= 20
        assert not (stack.data / "runs.sqlite").exists()
        stack.stop()
        status, report = verified(stack.data)
        assert (status, report["missing"]) == (0, 0)
    counted = server.psql("SELECT count(*) FROM tailrace.runs WHERE query = 'number'").strip()
    assert int(counted) >= 20
