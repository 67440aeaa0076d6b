"""PID 1 of the gateway's container, as a real process with a stand-in for the worker."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

POD = """
import sys
from tailrace_gateway.pod import Pod
assert "asyncio" not in sys.modules and "pydantic" not in sys.modules, "too heavy for a process that only waits"
sys.exit(Pod([sys.executable, "-c", *sys.argv[1:]]).run())
"""
WORKER = """
import os, pathlib, signal, subprocess, sys, time
here = pathlib.Path({folder!r})
def end(*_):
    (here / "ended").touch()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
(here / "new").write_text(str(os.getpid()))
(here / "new").rename(here / "pid")
{more}
while True: time.sleep(60)
"""


def eventually(check: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, "-c", POD, code], stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    for left in tmp_path.glob("*pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(left.read_text()), signal.SIGKILL)


def worker(folder: Path, more: str = "") -> str:
    return WORKER.format(folder=str(folder), more=more)


def test_a_killed_worker_comes_back_and_the_end_is_handed_on(pod: Callable[[str], subprocess.Popen[str]], tmp_path: Path) -> None:
    process = pod(worker(tmp_path))
    eventually((tmp_path / "pid").exists, "no worker")
    first = (tmp_path / "pid").read_text()
    os.kill(int(first), signal.SIGKILL)
    eventually(lambda: (tmp_path / "pid").read_text() != first, "not restarted")
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 7
    assert (tmp_path / "ended").exists()
    assert process.stderr is not None
    line = json.loads(process.stderr.readline())
    assert (line["event"], line["fate"], line["restarts"]) == ("worker_ended", "was killed by SIGKILL", "0")


@pytest.mark.parametrize("end", ["import sys; sys.exit(64)", "import os; os.abort()", "syntax error"])
def test_no_end_of_the_worker_ends_it(pod: Callable[[str], subprocess.Popen[str]], end: str) -> None:
    process = pod(end)
    assert process.stderr is not None
    told: list[dict[str, str]] = []
    while len(told) < 3:
        text = process.stderr.readline()
        assert text, "it exited"
        if text.startswith("{"):
            told.append(json.loads(text))
    assert [line["delay_ms"] for line in told] == ["100", "200", "400"]
    assert process.poll() is None
    process.terminate()
    process.wait(60)


def test_orphans_are_reaped(pod: Callable[[str], subprocess.Popen[str]], tmp_path: Path) -> None:
    # Not PID 1 here: PR_SET_CHILD_SUBREAPER makes it the one that orphans come to.
    orphan = "import os; os.fork() and os._exit(0); open(sys.argv[1] + '/orphan.pid', 'w').write(str(os.getpid()))".replace(
        "sys", "__import__('sys')"
    )
    more = f"subprocess.run([sys.executable, '-c', {orphan!r}, {str(tmp_path)!r}])"
    code = f"import ctypes; ctypes.CDLL(None).prctl(36, 1)\n{POD}"
    process = subprocess.Popen([sys.executable, "-c", code, worker(tmp_path, more)], stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: (tmp_path / "orphan.pid").exists() and (tmp_path / "orphan.pid").read_text(), "no orphan")
        orphan_pid = (tmp_path / "orphan.pid").read_text()
        eventually(lambda: not Path(f"/proc/{orphan_pid}").exists(), "a zombie stays")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()


def test_the_entry_point_gives_the_worker_every_argument() -> None:
    process = subprocess.Popen([sys.executable, "-m", "tailrace_gateway.pod", "--bogus", "--api=x/y"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(2)]
        assert lines[0] == "tailrace worker: unknown argument --bogus\n"
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()
