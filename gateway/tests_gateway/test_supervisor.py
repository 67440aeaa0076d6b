"""Real processes: children are restarted when killed, ended in order, and never outlive their supervisor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SUPERVISE = """
import asyncio, sys
from tailrace_gateway.supervisor import Child, Supervisor
grace = float(sys.argv[1])
children = [Child(f"child{n}", [sys.executable, "-c", code], grace) for n, code in enumerate(sys.argv[2:])]
sys.exit(asyncio.run(Supervisor(children, lambda text: print(text, flush=True)).run()))
"""

CHILD = """
import os, pathlib, signal, sys, time
here = pathlib.Path({folder!r})
def end(*_):
    {end}
    with (here / "ended").open("a") as out: out.write("{name} ")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, lambda *_: (here / "interrupted").write_text("{name}"))
(here / "{name}.new").write_text(str(os.getpid()))
(here / "{name}.new").rename(here / "{name}")
while True: time.sleep(60)
"""


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, *names: str, grace: float = 20, end: str = "pass", code: str | None = None) -> subprocess.Popen[str]:
        codes = [code or CHILD.format(folder=str(self.folder), name=name, end=end) for name in names]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(grace), *codes], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if code is None:
            for name in names:
                eventually(lambda name=name: (self.folder / name).exists(), f"{name} did not start")  # type: ignore[misc]
        return self.process

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def ended(self) -> str:
        return (self.folder / "ended").read_text() if (self.folder / "ended").exists() else ""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
        if made.process.stdout is not None:
            made.process.stdout.close()


def test_a_killed_child_comes_back_and_its_sibling_stays(bench: Bench) -> None:
    process = bench.start("a", "b")
    first, other = bench.pid("a"), bench.pid("b")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: bench.pid("a") != first, "not restarted")
    again = bench.pid("a")
    os.kill(again, signal.SIGKILL)
    eventually(lambda: bench.pid("a") not in (first, again), "not restarted twice")
    assert bench.pid("b") == other
    process.terminate()
    assert process.wait(30) == 0
    assert not alive(bench.pid("a"))
    assert not alive(other)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_children_end_one_after_the_other(bench: Bench, number: signal.Signals) -> None:
    process = bench.start("a", "b", end="time.sleep(0.2)")
    pids = [bench.pid("a"), bench.pid("b")]
    os.kill(process.pid, number)
    assert process.wait(30) == 0
    assert bench.ended() == "a b "
    assert not any(map(alive, pids))


def test_ctrl_c_in_a_terminal_reaches_only_the_supervisor(bench: Bench) -> None:
    process = bench.start("a")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 0
    assert not (bench.folder / "interrupted").exists()
    assert bench.ended() == "a "


def test_nothing_is_left_when_the_supervisor_is_killed(bench: Bench) -> None:
    process = bench.start("a", "b")
    pids = [bench.pid("a"), bench.pid("b")]
    process.kill()
    process.wait()
    eventually(lambda: not any(map(alive, pids)), "children outlived their supervisor")


def test_a_child_that_does_not_end_is_killed_after_its_grace(bench: Bench) -> None:
    process = bench.start("a", "b", grace=0.3, end="time.sleep(600)")
    pids = [bench.pid("a"), bench.pid("b")]
    process.terminate()
    assert process.wait(30) == 0
    assert not any(map(alive, pids))


def test_a_second_signal_ends_at_once(bench: Bench) -> None:
    process = bench.start("a", grace=600, end="(here / 'ending').touch(); time.sleep(600)")
    process.terminate()
    eventually((bench.folder / "ending").exists, "SIGTERM did not arrive")
    process.terminate()
    assert process.wait(30) == 0
    assert not alive(bench.pid("a"))


def test_a_usage_error_of_a_child_ends_everything(bench: Bench) -> None:
    process = bench.start("a", code="import sys; sys.exit(64)")
    assert process.wait(30) == 64


def test_a_child_that_keeps_dying_is_started_again_and_again_more_slowly(bench: Bench) -> None:
    code = f"import pathlib, os; p = pathlib.Path({str(bench.folder)!r}) / str(os.getpid()); p.touch(); raise SystemExit(3)"
    process = bench.start("a", code=code)
    eventually(lambda: len(list(bench.folder.iterdir())) >= 3, "not restarted")
    process.terminate()
    assert process.wait(30) == 0
    assert process.stdout is not None
    delays = [line.rsplit(" ", 2)[1] for line in process.stdout.read().splitlines() if "ended with code 3" in line]
    assert delays[:2] == ["0.1", "0.2"]
