"""What the real data plane records, read by the commands: while it runs, after a kill, after its next start."""

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tailrace_gateway.console import Console
from tailrace_gateway.dataplane import find_data_plane
from tailrace_gateway.runs.commands import tail, verify_data
from tailrace_gateway.runs.history import HistoryFilter

PROGRAM = find_data_plane(None)
pytestmark = [
    pytest.mark.dataplane,
    pytest.mark.skipif(
        PROGRAM is None and "CI" not in os.environ, reason="no data plane here; bring it with: cargo build -p tailrace-dataplane"
    ),
]
SNAPSHOT = {
    "schema": 1,
    "version": 1,
    "api": {
        "namespace": "retail",
        "name": "shop",
        "bigNumbers": "number",
        "hideForbidden": False,
        "trustedProxies": [],
        "spoolSizeBytes": 1 << 24,
        "onFull": "reject",
        "durability": "process",
        "runStore": {"embedded": {}},
    },
    **{each: [] for each in ("sources", "connections", "queries", "roles", "keys")},
}


class Running:
    """A data plane and where it listens."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, data: Path) -> None:
        self.process = process
        self.port = port
        self.data = data

    def call(self, count: int) -> list[str]:
        """Calls without a key; the run ids of their answers."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}") as client:
            return [client.get("/q/nothing").headers["x-run-id"] for _ in range(count)]


@contextmanager
def data_plane(data: Path) -> Iterator[Running]:
    assert PROGRAM is not None
    command = [PROGRAM, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", data, "--threads", "2", "--lame-duck", "0s"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        port = 0
        while not port:
            line = process.stderr.readline()
            assert line, "the data plane ended"
            port = json.loads(line).get("port", 0)
        push = httpx.Client(transport=httpx.HTTPTransport(uds=str(data / "run" / "dataplane.sock")))
        with push:
            assert push.put("http://dataplane/plans", json=SNAPSHOT).status_code == 200
        yield Running(process, port, data)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def verified(data: Path) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    status = verify_data(data, Console(json=True, out=out, err=out))
    return status, json.loads(out.getvalue())


def recorded(data: Path) -> int:
    return sum(epoch["stored"] + epoch["spooled"] + epoch["open"] for epoch in verified(data)[1]["epochs"])


def test_nothing_is_missing_before_and_after_a_kill(tmp_path: Path) -> None:
    with data_plane(tmp_path) as running:
        ids = running.call(50)
        status, report = verified(tmp_path)
        assert (status, report["missing"], report["complete"]) == (0, 0, True)
        assert recorded(tmp_path) == 50
        ids += running.call(30)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
    # Dead: the rest is in the spool alone.
    status, report = verified(tmp_path)
    assert (status, report["missing"]) == (0, 0)
    assert recorded(tmp_path) == 80
    with data_plane(tmp_path) as running:
        ids += running.call(20)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=30) == 0
    status, report = verified(tmp_path)
    assert (status, report["missing"], report["spool"]["segments"]) == (0, 0, 0)
    assert sum(epoch["stored"] for epoch in report["epochs"]) == 100
    out = io.StringIO()
    assert tail(tmp_path, Console(json=True, out=out, err=out), wanted=HistoryFilter(limit=1000)) == 0
    assert {json.loads(line)["id"] for line in out.getvalue().splitlines()} == set(ids)
    assert len(set(ids)) == 100


def test_a_second_data_plane_on_the_directory_is_refused(tmp_path: Path) -> None:
    assert PROGRAM is not None
    with data_plane(tmp_path) as running:
        command = [PROGRAM, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", tmp_path]
        second = subprocess.run(command, capture_output=True, timeout=30, check=False)
        assert second.returncode != 0
        assert b"another process records into this directory" in second.stderr
        assert len(running.call(3)) == 3


def test_a_damaged_segment_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "0000000000000001-00000000.seg").write_bytes(b"something else")
    status, report = verified(tmp_path)
    assert (status, report["complete"], report["missing"]) == (1, False, 0)
    assert "0000000000000001-00000000.seg" in report["problems"][0]
