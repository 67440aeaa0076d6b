"""A pod's two programs as they are in it: whatever becomes of the worker, the data plane answers and stays ready."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tailrace_gateway.dataplane import find_data_plane
from tailrace_loadtest.servers.postgres import free_port

pytestmark = pytest.mark.dataplane
BINARY = find_data_plane(None)
RESOURCES = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: shop}
spec:
  connections: [{name: db, urlFrom: {secretKeyRef: {name: db, key: url}}}]
  queries: [{name: item, connection: db, sql: SELECT label FROM items WHERE id = 1, returns: one}]
  roles: [{name: all, queries: ["*"]}]
  runStoreRef: {name: runs}
---
apiVersion: tailrace.dev/v1alpha1
kind: RunStore
metadata: {name: runs}
spec: {embedded: {}}
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: desk}
spec: {queryApiRef: {name: shop}, role: all, secretName: desk}
---
apiVersion: v1
kind: Secret
metadata: {name: db}
stringData: {url: "sqlite:///DATABASE"}
"""


def eventually(check: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Caller(threading.Thread):
    """Calls and asks for readiness without a pause; keeps every answer that is not as it should be."""

    def __init__(self, url: str, admin: str, key: str) -> None:
        super().__init__(daemon=True)
        self.wrong: list[object] = []
        self.answered = 0
        self.over = threading.Event()
        self._requests = (urllib.request.Request(f"{url}/q/item", headers={"X-API-Key": key}), urllib.request.Request(f"{admin}/readyz"))

    def run(self) -> None:
        while not self.over.is_set():
            for request in self._requests:
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        answer.read()
                except (urllib.error.URLError, OSError) as error:
                    self.wrong.append((request.full_url, str(error)))
            self.answered += 1
            time.sleep(0.005)


@pytest.mark.skipif(
    BINARY is None and not os.environ.get("CI"), reason="the data plane is not built: cargo build --release -p tailrace-dataplane"
)
def test_a_worker_that_is_killed_and_one_that_keeps_dying_fail_no_call(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "items.db")) as connection:
        connection.executescript("CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT); INSERT INTO items VALUES (1, 'lamp');")
    (tmp_path / "shop.yaml").write_text(RESOURCES.replace("DATABASE", str(tmp_path / "items.db")))
    data, secret = tmp_path / "data", tmp_path / "secret"
    secret.write_text("07" * 32)
    port, admin_port = free_port(), free_port()
    url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    log = (tmp_path / "pod.log").open("wb")
    listen = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin_port}"]
    plane = subprocess.Popen(
        [str(BINARY), *listen, "--data", str(data), "--secret", str(secret), "--threads", "1"], stderr=subprocess.DEVNULL
    )
    words = ["--data", str(data), "--secret", str(secret), "-f", str(tmp_path / "shop.yaml")]
    pod = subprocess.Popen([sys.executable, "-m", "tailrace_gateway.pod", *words], stderr=log)

    def worker() -> int | None:
        children = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def status() -> dict[str, object]:
        with suppress(OSError), urllib.request.urlopen(f"{admin}/status", timeout=30) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found
        return {}

    def ends() -> int:
        return (tmp_path / "pod.log").read_text().count('"event":"worker_ended"')

    caller: Caller | None = None
    try:
        eventually(lambda: status().get("ready") and status().get("gatewayUp"), "not ready")
        caller = Caller(url, admin, (data / "keys" / "default" / "desk").read_text().strip())
        caller.start()
        for _ in range(3):
            eventually(lambda: status().get("gatewayUp") and worker() is not None, "the worker did not come back")
            was = worker()
            assert was is not None
            os.kill(was, signal.SIGKILL)
            eventually(lambda was=was: worker() not in (None, was), "not restarted")  # type: ignore[misc]
        eventually(lambda: status().get("gatewayUp"), "the worker did not come back")
        secret.rename(tmp_path / "elsewhere")
        was = worker()
        assert was is not None
        os.kill(was, signal.SIGKILL)
        before = ends()
        eventually(lambda: ends() >= before + 3, "it does not keep dying")
        # Noticed when its connection ends, or after some seconds of silence.
        eventually(lambda: status().get("gatewayUp") is False, "nobody notices that the worker is away")
        assert status()["ready"] is True
        (tmp_path / "elsewhere").rename(secret)
        eventually(lambda: status().get("gatewayUp"), "the worker did not come back")
        assert pod.poll() is None
        assert caller.answered > 100
    finally:
        if caller is not None:
            caller.over.set()
            caller.join(60)
        pod.terminate()
        plane.kill()
        plane.wait()
        pod.wait(60)
        log.close()
    assert not caller.wrong
