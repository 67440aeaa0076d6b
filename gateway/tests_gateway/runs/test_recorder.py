"""Python's own recorder against a real store."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.run import ClientClass, Run, ServedBy
from tailrace_gateway.errors import RecorderLocked
from tailrace_gateway.runs.history import HistoryFilter
from tailrace_gateway.runs.place import EmbeddedPlace
from tailrace_gateway.runs.reading import reading
from tailrace_gateway.runs.recorder import StoreRecorder, take_lock
from tailrace_gateway.runs.verify import verify
from tailrace_gateway.serve.recording import RunsUnavailable


def recorder_of(data: Path) -> StoreRecorder:
    return StoreRecorder(data, lambda observed: None, alone=True, place=EmbeddedPlace(data / "runs.sqlite"))


def a_run(recorder: StoreRecorder, status: int = 200, code: str = "") -> Run:
    epoch, sequence = recorder.draw()
    return Run(
        epoch=epoch,
        sequence=sequence,
        time_us=1_750_000_000_000_000 + sequence,
        duration_us=5,
        queue_us=0,
        database_us=3,
        query="q",
        query_version="v",
        key="retail/me",
        connection="orders",
        status=status,
        code=code,
        rows=3,
        bytes=30,
        batch=1,
        trace="0af7651916cd43dd8448eb211c80319c",
        client=ClientClass.LOOPBACK,
        served_by=ServedBy.GATEWAY,
        params='{"id":1}',
    )


def stored(data: Path) -> dict[int, tuple[int, str]]:
    with reading(EmbeddedPlace(data / "runs.sqlite")) as connection:
        assert connection is not None
        assert verify(connection, None).missing == 0
        page = connection.history(HistoryFilter(1000))
        assert page is not None
        return {run.sequence: (run.status, run.code) for run in page.runs}


async def test_runs_come_back_as_they_were(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    runs = [a_run(recorder) for _ in range(300)]
    await asyncio.gather(*(recorder.store(run) for run in runs))
    await recorder.close()
    with reading(EmbeddedPlace(tmp_path / "runs.sqlite")) as connection:
        assert connection is not None
        page = connection.history(HistoryFilter(1000))
    assert page is not None
    assert list(page.runs) == runs[::-1]


async def test_what_was_refused_is_stored_as_refused(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    await recorder.store(a_run(recorder))
    stream = a_run(recorder)
    await recorder.open(stream)
    recorder.configure(Durability.DISK, OnFull.REJECT)
    store = tmp_path / "runs.sqlite"
    aside = tmp_path / "aside"
    assert recorder._writer is not None
    await asyncio.to_thread(recorder._writer.close)
    store.rename(aside)
    store.mkdir()
    with pytest.raises(RunsUnavailable):
        await recorder.store(a_run(recorder))
    with pytest.raises(RunsUnavailable):
        await recorder.open(a_run(recorder))
    with pytest.raises(RunsUnavailable):
        await recorder.store(stream)
    store.rmdir()
    aside.rename(store)
    await recorder.store(a_run(recorder))
    await recorder.close()
    assert stored(tmp_path) == {1: (200, ""), 2: (200, ""), 3: (503, "spool_full"), 4: (503, "spool_full"), 5: (200, "")}


async def test_what_was_open_is_aborted_at_the_next_start(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    await recorder.open(a_run(recorder))
    await recorder.close()
    again = recorder_of(tmp_path)
    await again.store(a_run(again))
    await again.close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        codes = connection.execute("SELECT n.name FROM runs JOIN names n ON n.id = code ORDER BY n.name DESC").fetchall()
    assert codes == [("aborted",), ("",)]


async def test_one_process_records(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    with pytest.raises(RecorderLocked):
        recorder_of(tmp_path)
    await recorder.close()
    await recorder_of(tmp_path).close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tailrace_gateway.runs.recorder import take_lock;"
        "take_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    paths = ":".join(sys.path)
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env={"PYTHONPATH": paths})
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(RecorderLocked):
            take_lock(tmp_path)
        child.send_signal(signal.SIGKILL)
        child.wait()
    take_lock(tmp_path)
