"""Runs into the embedded store: before the answer, once, without gaps; what to do when it takes nothing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.runs.place import EmbeddedPlace
from tailrace_gateway.runs.recorder import StoreRecorder, draw_epoch
from tailrace_gateway.serve.recording import RunsUnavailable

BLANK = Run(
    epoch=Epoch(0),
    sequence=Sequence(0),
    time_us=1,
    duration_us=2,
    queue_us=3,
    database_us=4,
    query="q",
    query_version="v",
    key="t/k",
    connection="c",
    status=200,
    code="",
    rows=5,
    bytes=6,
    batch=1,
    trace="0af7651916cd43dd8448eb211c80319c",
    client=ClientClass.PRIVATE,
    served_by=ServedBy.GATEWAY,
    params=None,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def seen() -> list[Observation]:
    return []


@pytest.fixture
async def recorder(path: Path, seen: list[Observation]) -> AsyncIterator[StoreRecorder]:
    made = StoreRecorder(path.parent, seen.append, alone=True, place=EmbeddedPlace(path))
    yield made
    await made.close()


def drawn(recorder: StoreRecorder) -> Run:
    epoch, sequence = recorder.draw()
    return replace(BLANK, epoch=epoch, sequence=sequence)


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


async def test_a_stored_run_is_in_the_file(recorder: StoreRecorder, path: Path) -> None:
    run = drawn(recorder)
    await recorder.store(run)
    sql = """SELECT r.seq, q.name, v.name, k.name, c.name, e.name, status, rows, bytes, hex(trace), client, served_by FROM runs r
        JOIN names q ON q.id = query JOIN names v ON v.id = query_version JOIN names k ON k.id = key JOIN names c ON c.id = connection
        JOIN names e ON e.id = code"""
    assert rows(path, sql) == [(1, "q", "v", "t/k", "c", "", 200, 5, 6, BLANK.trace.upper(), 1, 1)]


async def test_many_at_once_have_no_gaps(recorder: StoreRecorder, path: Path) -> None:
    await asyncio.gather(*(recorder.store(drawn(recorder)) for _ in range(500)))
    assert rows(path, "SELECT count(*), max(seq), count(DISTINCT epoch) FROM runs") == [(500, 500, 1)]


async def test_what_is_open_ends_or_is_aborted(path: Path, seen: list[Observation]) -> None:
    first = StoreRecorder(path.parent, seen.append, alone=True, place=EmbeddedPlace(path))
    ended, left = drawn(first), drawn(first)
    await first.open(ended)
    await first.open(left)
    assert rows(path, "SELECT count(*) FROM runs") == [(0,)]
    await first.store(replace(ended, rows=9))
    await first.close()
    second = StoreRecorder(path.parent, seen.append, alone=True, place=EmbeddedPlace(path))
    await second.store(drawn(second))
    await second.close()
    sql = "SELECT rows, (SELECT name FROM names WHERE id = code) FROM runs WHERE epoch = %d ORDER BY seq"
    assert rows(path, sql % ended.epoch) == [(9, ""), (5, "aborted")]
    assert rows(path, "SELECT count(*) FROM open_runs") == [(0,)]


async def test_a_cancelled_caller_leaves_his_run(recorder: StoreRecorder, path: Path) -> None:
    task = asyncio.create_task(recorder.store(drawn(recorder)))
    await asyncio.sleep(0)
    task.cancel()
    await recorder.store(drawn(recorder))
    assert rows(path, "SELECT count(*) FROM runs") == [(2,)]


@pytest.mark.parametrize("on_full", list(OnFull))
async def test_a_store_that_takes_nothing(recorder: StoreRecorder, path: Path, seen: list[Observation], on_full: OnFull) -> None:
    path.write_bytes(b"not a database" * 100)
    recorder.configure(Durability.DISK, on_full)
    if on_full is OnFull.REJECT:
        with pytest.raises(RunsUnavailable):
            await recorder.store(drawn(recorder))
    else:
        await recorder.store(drawn(recorder))
    assert [(one.event, one.fields["runs"]) for one in seen] == [(Event.RUN_STORE_FAILED, 1)]
    path.unlink()
    await recorder.store(drawn(recorder))
    # A refusal is stored as one, once the store takes it; a dropped run stays missing.
    assert rows(path, "SELECT seq, status FROM runs ORDER BY seq") == ([(1, 503), (2, 200)] if on_full is OnFull.REJECT else [(2, 200)])


async def test_a_store_of_another_version_is_left_alone(recorder: StoreRecorder, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE runs (a)")
        connection.commit()
    with pytest.raises(RunsUnavailable):
        await recorder.store(drawn(recorder))
    assert rows(path, "SELECT count(*) FROM runs") == [(0,)]


def test_epochs_fit_a_signed_integer_and_are_no_clock() -> None:
    epochs = {draw_epoch() for _ in range(1_000)}
    assert len(epochs) == 1_000
    assert all(0 <= epoch < 1 << 63 for epoch in epochs)
    # 1,000 of 65,536 values: fewer than 900 different ones never happens by chance, and always with a clock.
    assert all(len({(epoch >> shift) & 0xFFFF for epoch in epochs}) > 900 for shift in (0, 16, 32, 47))
