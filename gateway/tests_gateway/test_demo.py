"""`make demo` as its user meets it: wait for the line that begins with `try: `, paste what follows, press Ctrl-C."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tailrace_gateway.dataplane import find_data_plane
from tailrace_loadtest.servers.postgres import free_port

ROOT = Path(__file__).parents[2]


class Demo:
    """The demo's script, in a directory of its own, as the leader of a terminal's foreground group."""

    def __init__(self, folder: Path, *options: str, environment: dict[str, str]) -> None:
        (folder / "docs").symlink_to(ROOT / "docs")
        self.folder = folder
        command = [
            sys.executable,
            "docs/examples/shop/local/demo.py",
            "--listen",
            f"127.0.0.1:{free_port()}",
            "--admin",
            f"127.0.0.1:{free_port()}",
        ]
        self.process = subprocess.Popen(
            [*command, *options], cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )  # fmt: skip
        self.lines: list[str] = []

    def try_line(self) -> str:
        """What follows `try: `."""
        watchdog = threading.Timer(100, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("try: "):
                watchdog.cancel()
                return line.removeprefix("try: ").strip()
        log = self.folder / ".demo" / "log"
        raise AssertionError("".join(self.lines) + (log.read_text()[-3000:] if log.exists() else ""))

    def left(self) -> list[str]:
        """Command lines of processes that work in our directory."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
        return found


def _modes() -> list[Any]:
    program = find_data_plane(None)
    marks = [pytest.mark.dataplane, pytest.mark.skipif(program is None and not os.environ.get("CI"), reason="the data plane is not built: cargo build --release -p tailrace-dataplane")]  # fmt: skip
    return [
        pytest.param((("--no-data-plane",), {}), id="python"),
        pytest.param(((), {"TAILRACE_DATAPLANE": str(program)}), id="dataplane", marks=marks),
    ]


@pytest.fixture(params=_modes())
def demo(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Demo]:
    options, environment = request.param
    made = Demo(tmp_path.resolve(), *options, environment=environment)
    yield made
    made.process.kill()
    made.process.wait()
    if made.process.stdout is not None:
        made.process.stdout.close()


def test_the_line_works_when_pasted_and_ctrl_c_leaves_nothing_running(demo: Demo) -> None:
    command = demo.try_line()
    assert command.startswith("curl ")
    pasted = subprocess.run(["bash", "-c", f"{command} --silent --include --max-time 30"], capture_output=True, text=True, check=True)
    head, _, body = pasted.stdout.partition("\r\n\r\n") if "\r\n\r\n" in pasted.stdout else pasted.stdout.partition("\n\n")
    assert head.split()[1] == "200"
    row = json.loads(body)
    database = sqlite3.connect(demo.folder / ".demo" / "shop.db")
    assert (row["id"], row["name"], row["email"]) == database.execute("SELECT id, name, email FROM customers WHERE id = 42").fetchone()
    assert (
        sum(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("customers", "orders", "order_lines")) >= 100_000
    )
    database.close()
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(60) == 0
    assert demo.left() == []


def test_a_killed_demo_takes_everything_with_it(tmp_path: Path) -> None:
    demo = Demo(tmp_path.resolve(), "--no-data-plane", environment={})
    demo.try_line()
    demo.process.kill()
    demo.process.wait()
    deadline = threading.Event()
    for _ in range(600):
        if not demo.left():
            break
        deadline.wait(0.1)
    assert demo.left() == []
    assert demo.process.stdout is not None
    demo.process.stdout.close()


def test_the_shop_is_free_of_faults(tmp_path: Path) -> None:
    """Also offline, where the same file's PostgreSQL Secret would be as good."""
    command = [sys.executable, "-m", "tailrace_gateway", "check", "--offline", "-f", "docs/examples/shop", "-f", "docs/examples/shop/local"]
    done = subprocess.run([*command, "--data", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:9]) == (0, "no faults"), done.stdout + done.stderr
