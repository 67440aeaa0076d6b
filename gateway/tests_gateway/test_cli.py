"""`tailrace` as its users meet it: real processes, files as they come, exit codes and words."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tailrace_gateway.dataplane import find_data_plane
from tailrace_loadtest.servers.postgres import free_port

API = """apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: shop}
spec:
  connections:
    - {name: db, urlFrom: {secretKeyRef: {name: db, key: url}}, idempotencyTable: idem}
  queries:
    - name: item
      connection: db
      sql: SELECT id, name FROM items WHERE id = :id
      params: {id: {type: integer, required: true}}
      returns: one
      timeout: 900ms
  roles:
    - {name: all, queries: ["*"], tables: {allow: [items]}}
    - {name: masked, queries: ["*"], masks: [{column: items.name, with: redact}]}
  runStoreRef: {name: runs}
"""
REST = """---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: app}
spec: {queryApiRef: {name: shop}, role: all, secretName: app-key}
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: low}
spec: {queryApiRef: {name: shop}, role: masked, secretName: low-key}
---
apiVersion: tailrace.dev/v1alpha1
kind: RunStore
metadata: {name: runs}
spec: {embedded: {}}
"""


def secret(database: Path) -> str:
    return f"---\napiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{url: 'sqlite:///{database}'}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    database = sqlite3.connect(tmp_path / "shop.db")
    database.executescript(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL); INSERT INTO items VALUES (1, 'tea'), (2, 'cup');"
    )
    database.close()
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "shop.yaml").write_text(API + REST + secret(tmp_path / "shop.db"))
    return tmp_path


def tailrace(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace_gateway", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=100, check=False)


def put(file: Path, text: str) -> None:
    """Whole at once: a file that is empty for a moment means that nothing is left."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage"), (["serve"], "serve"), (["run"], "-f"), (["run", "-f"], "-f"), (["check", "-f", "/no/such"], "/no/such"),
        (["run", "-f", ".", "--listen", "8080"], "HOST:PORT"), (["run", "-f", ".", "--threads", "0"], "1 to 256"),
        (["run", "-f", ".", "--api", "A/B/C"], "NAMESPACE/NAME"), (["run", "-f", ".", "--data-plane-binary", "/no/such"], "/no/such"),
        (["diff", "/no/such", "/no/such"], "/no/such"), (["runs"], "ACTION"),
    ],
)  # fmt: skip
def test_usage_errors_say_what_is_wrong_and_exit_64(arguments: list[str], said: str) -> None:
    done = tailrace(*arguments)
    assert done.returncode == 64
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help_are_fine() -> None:
    assert tailrace("--version").stdout.startswith("tailrace ")
    for command in ("run", "check", "explain", "diff"):
        done = tailrace(command, "--help")
        assert done.returncode == 0
        assert "options:" in done.stdout


def test_check_finds_nothing_wrong_with_a_good_directory(folder: Path) -> None:
    done = tailrace("check", "-f", folder / "api")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no faults")
    assert not (folder / ".tailrace").exists()


def test_check_lists_every_fault_at_once_with_file_line_and_fix(folder: Path) -> None:
    file = folder / "api" / "shop.yaml"
    broken = API.replace("returns: one", "retuns: one").replace("timeout: 900ms", "timeout: 900")
    file.write_text(broken + REST.replace("role: masked", "role: gone") + secret(folder / "shop.db"))
    (folder / "api" / "tabs.yaml").write_text("a:\n\t- b\n")
    (folder / "api" / "twice.yaml").write_text(REST.split("---")[3] + "---" + REST.split("---")[3])
    done = tailrace("check", "-f", folder / "api", "-o", "json")
    assert done.returncode == 1
    found = {(Path(each["file"]).name, each["line"]): each for each in json.loads(done.stdout)["faults"]}
    assert set(found) == {("shop.yaml", 12), ("shop.yaml", 13), ("tabs.yaml", 2), ("twice.yaml", 4), ("twice.yaml", 9)}
    assert all(each["fix"] for each in found.values())
    text = tailrace("check", "-f", folder / "api").stdout
    assert f"{file}:12:7: error: spec.queries[0].retuns: retuns: there is no such field here\n    fix: did you mean returns?" in text
    assert "\033[" not in text, "no colours without a terminal"


def test_check_compiles_against_the_live_database_unless_it_may_not(folder: Path) -> None:
    file = folder / "api" / "shop.yaml"
    file.write_text(file.read_text().replace("SELECT id, name FROM items", "SELECT id, name FROM itms"))
    done = tailrace("check", "-f", folder / "api", "-o", "json")
    assert done.returncode == 1
    faults = json.loads(done.stdout)["faults"]
    assert [(Path(each["file"]).name, each["line"]) for each in faults] == [("shop.yaml", 8)]
    assert tailrace("check", "-f", folder / "api", "--offline").returncode == 0


def test_check_knows_missing_secrets_stores_and_roles(folder: Path) -> None:
    file = folder / "api" / "shop.yaml"
    file.write_text(API.replace("name: runs", "name: store") + REST.replace("role: masked", "role: gone"))
    done = tailrace("check", "--offline", "-f", file, "--data", folder / "data")
    assert done.returncode == 1
    assert "there is no Secret default/db with a key url" in done.stdout
    assert "there is no RunStore default/store" in done.stdout
    assert "the API has no role gone" in done.stdout
    mounted = folder / "data" / "secrets" / "default" / "db" / "url"
    mounted.parent.mkdir(parents=True)
    mounted.write_text(f"sqlite:///{folder / 'shop.db'}")
    assert "there is no Secret" not in tailrace("check", "--offline", "-f", file, "--data", folder / "data").stdout


def test_check_prints_the_table_of_idempotency_keys(folder: Path) -> None:
    done = tailrace("check", "-f", folder / "api", "--print-ddl")
    assert done.returncode == 0
    database = sqlite3.connect(folder / "shop.db")
    database.executescript(done.stdout)
    assert database.execute("SELECT count(*) FROM idem").fetchone() == (0,)
    database.close()


def test_explain_tells_tables_columns_and_masks(folder: Path) -> None:
    done = tailrace("explain", "-f", folder / "api", "-o", "json")
    found = {each["key"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 0
    assert found["default/low"]["columns"] == [{"name": "id", "mask": ""}, {"name": "name", "mask": "redact"}]
    assert found["default/app"]["columns"][1]["mask"] == ""
    assert list(found["default/app"]["tables"]) == ["items"]
    only = tailrace("explain", "-f", folder / "api", "--key", "app", "--query", "item").stdout
    assert "default/app" in only
    assert "default/low" not in only
    nope = tailrace("explain", "-f", folder / "api", "--query", "itm")
    assert nope.returncode == 1
    assert "there is no query itm: did you mean item?" in nope.stderr + nope.stdout
    (folder / "api" / "shop.yaml").write_text("a: [")
    broken = tailrace("check", "-f", folder / "api")
    assert "correct the name" not in broken.stdout
    ddl = tailrace("check", "--print-ddl", "-f", folder / "api")
    assert "a faulty QueryAPI may have an idempotencyTable" in ddl.stderr + ddl.stdout


def test_diff_tells_who_sees_more_and_what_breaks(folder: Path) -> None:
    old, new = folder / "api" / "shop.yaml", folder / "new.yaml"
    new.write_text(
        old.read_text().replace(", masks: [{column: items.name, with: redact}]", "").replace("id: {type: integer", "id: {type: string")
    )
    done = tailrace("diff", old, new)
    assert done.returncode == 1
    assert "who sees or may do more\n  role masked: items.name is not masked any more  [default/low]" in done.stdout
    assert "what breaks for callers\n  query item: parameter id has another type" in done.stdout
    assert tailrace("diff", old, old).returncode == 0
    assert json.loads(tailrace("diff", old, new, "-o", "json").stdout)[0]["effect"] == "widens"


class Running:
    """`tailrace run` on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.data = folder / "data"
        self.log = folder / "log"
        command = [sys.executable, "-m", "tailrace_gateway", "run", "-f", str(folder / "api"), "--listen", f"127.0.0.1:{self.port}"]
        command += ["--admin", f"127.0.0.1:{free_port()}", "--data", str(self.data), "--logs", str(self.log), *options]
        self.out = folder / "out"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def said(self) -> str:
        return self.out.read_text()

    def wait_for(self, check: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 60
        while not check():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said()}\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{what}: {self.said()}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def ready(self) -> "Running":
        self.wait_for(lambda: "Ctrl-C ends it" in self.said(), "not ready")
        return self

    def key(self, name: str = "app-key") -> str:
        return (self.data / "keys" / "default" / name).read_text().strip()

    def call(self, path: str = "/q/item?id=1", key: str | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"X-API-Key": key or self.key()})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())["code"]
        except OSError:
            return 0, None

    def children(self) -> list[int]:
        """Processes that name our data directory, but for the one that was started here."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if words else "Z"
            except OSError:
                continue
            if str(self.data).encode() in words and state not in "ZX" and int(entry.name) != self.process.pid:
                found.append(int(entry.name))
        return found


def _modes() -> list[Any]:
    marks = [pytest.mark.dataplane, pytest.mark.skipif(find_data_plane(None) is None and not os.environ.get("CI"), reason="the data plane is not built: cargo build --release -p tailrace-dataplane")]  # fmt: skip
    return [pytest.param(("--no-data-plane",), id="python"), pytest.param((), id="dataplane", marks=marks)]


@pytest.fixture(params=_modes())
def running(folder: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(folder, *request.param)
    try:
        yield made.ready()
    finally:
        made.process.terminate()
        made.process.wait(60)


def test_run_serves_follows_the_files_and_ends_clean(running: Running, folder: Path) -> None:
    said = running.said()
    assert f"http://127.0.0.1:{running.port}" in said
    assert "/q/item?id=…" in said
    assert str(running.data / "keys" / "default" / "app-key") in said
    assert running.call() == (200, {"id": 1, "name": "tea"})
    assert running.call(key=running.key("low-key")) == (200, {"id": 1, "name": "***"})
    file = folder / "api" / "shop.yaml"
    good = file.read_text()
    put(file, good.replace("SELECT id, name FROM", "SELECT id, name AS title FROM"))
    running.wait_for(lambda: running.call() == (200, {"id": 1, "title": "tea"}), "a changed query is not served")
    put(file, "a: [")
    running.wait_for(lambda: "the structure breaks off here" in running.said(), "a broken file is not told")
    assert running.call()[0] == 200, "the last good is served on"
    put(file, good.replace("role: all, secretName", "role: all, suspended: true, secretName"))
    running.wait_for(lambda: running.call() == (401, "unauthorized"), "a suspended key is still served")
    assert running.call(key=running.key("low-key"))[0] == 200
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(60) == 0
    assert running.children() == []
    done = tailrace("runs", "verify", "--data", running.data)
    assert (done.returncode, "missing: 0" in done.stdout) == (0, True), done.stdout + done.stderr


def test_run_brings_back_whatever_is_killed_and_leaves_nothing_when_it_is_killed_itself(running: Running) -> None:
    first = running.children()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    running.wait_for(lambda: len(running.children()) == len(first) and not set(first) & set(running.children()), "not restarted")
    running.wait_for(lambda: running.call() == (200, {"id": 1, "name": "tea"}), "not serving again")
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait(60)
    deadline = time.monotonic() + 30
    while running.children():
        assert time.monotonic() < deadline, "children outlived their parent"
        time.sleep(0.05)


def test_keys_survive_a_restart_and_a_second_one_on_the_same_directory_is_refused(folder: Path) -> None:
    first = Running(folder, "--no-data-plane").ready()
    key = first.key()
    second = tailrace("run", "-f", folder / "api", "--no-data-plane", "--listen", f"127.0.0.1:{free_port()}", "--data", first.data)
    assert second.returncode == 1
    assert "another one uses" in second.stderr
    taken = tailrace("run", "-f", folder / "api", "--no-data-plane", "--listen", f"127.0.0.1:{first.port}", "--data", folder / "other")
    assert taken.returncode == 1
    assert f"--listen 127.0.0.1:{first.port} can't be used (something listens there already)" in taken.stderr
    first.process.terminate()
    assert first.process.wait(60) == 0
    again = Running(folder, "--no-data-plane").ready()
    try:
        assert again.key() == key
        assert again.call(key=key)[0] == 200
    finally:
        again.process.terminate()
        again.process.wait(60)


def test_run_without_anything_to_serve_says_why_and_ends(folder: Path) -> None:
    (folder / "api" / "shop.yaml").write_text(API.replace("connection: db", "connection: other") + REST)
    started = Running(folder, "--no-data-plane")
    assert started.process.wait(60) == 1
    assert "no entry of connections has this name" in started.said()
    assert started.children() == []
