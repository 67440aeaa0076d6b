"""Files in, answers out, as a user has it: `tailrace run` on resource files over a real PostgreSQL and a SQLite file.

Once by the data plane (where it is built) and once by Python alone, with the same expectations.
"""

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tailrace_gateway.dataplane import find_data_plane
from tailrace_loadtest.servers.postgres import Postgres, free_port

pytestmark = [pytest.mark.postgres, pytest.mark.dataplane]

RESOURCES = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: notes, namespace: team}
spec:
  connections:
    - {name: main, urlFrom: {secretKeyRef: {name: main-db, key: url}}, maxConnections: 4, idempotencyTable: kept}
    - {name: lite, urlFrom: {secretKeyRef: {name: lite-db, key: url}}}
  queries:
    - name: person
      connection: main
      sql: SELECT id, name, email FROM people WHERE id = :id
      params: {id: {type: integer, required: true, minimum: 1}}
      returns: one
    - name: people
      connection: main
      sql: SELECT id, name, email FROM people ORDER BY id
      page: {key: [id], defaultSize: 3, maxSize: 100}
    - name: salaries
      connection: main
      sql: SELECT id, amount FROM salaries
    - name: add_person
      connection: main
      sql: INSERT INTO people (name, email) VALUES (:name, :email) RETURNING id, name
      params: {name: {type: string, required: true}, email: {type: string, required: true}}
      returns: one
      write: true
    - name: item
      connection: lite
      sql: SELECT id, label FROM items WHERE id = :id
      params: {id: {type: integer, required: true}}
      returns: one
  roles:
    - name: staff
      queries: ["*"]
      tables: {allow: [people, salaries, items]}
    - name: desk
      queries: [person, people, item, salaries]
      tables: {allow: [people, items]}
      masks: [{column: people.email, with: partial}]
  runStoreRef: {name: runs}
---
apiVersion: tailrace.dev/v1alpha1
kind: RunStore
metadata: {name: runs, namespace: team}
spec: {embedded: {}}
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: staff, namespace: team}
spec: {queryApiRef: {name: notes}, role: staff, secretName: staff-key}
"""
DESK = """
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: desk, namespace: team}
spec: {queryApiRef: {name: notes}, role: desk, secretName: desk-key}
"""
PEOPLE = """
CREATE TABLE people (id bigint generated always as identity primary key, name text not null, email text);
INSERT INTO people (name, email) SELECT 'n' || n, 'person' || n || '@example.com' FROM generate_series(1, 10) n;
CREATE TABLE salaries (id bigint primary key, amount numeric);
"""


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def put(file: Path, text: str) -> None:
    """Whole at once: a file that is empty for a moment means that nothing is left."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class Stack:
    """`tailrace run` and its files."""

    def __init__(self, folder: Path, server: Postgres, binary: Path | None) -> None:
        self.folder = folder
        self.binary = binary
        self.data = folder / "data"
        self.port = free_port()
        files = folder / "files"
        files.mkdir()
        with closing(sqlite3.connect(folder / "lite.db")) as connection:
            connection.executescript("CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT); INSERT INTO items VALUES (1, 'lamp');")
        secrets = [("main-db", server.url("notes")), ("lite-db", f"sqlite:///{folder / 'lite.db'}")]
        documents = [
            f"apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: team}}\nstringData:\n  url: {url}\n"
            for name, url in secrets
        ]
        (files / "secrets.yaml").write_text("---\n".join(documents))
        (files / "notes.yaml").write_text(RESOURCES)
        self.desk = files / "desk.yaml"
        self.desk.write_text(DESK)
        command = [sys.executable, "-m", "tailrace_gateway", "run", "-f", str(files), "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        command += ["--no-data-plane"] if binary is None else ["--admin", f"127.0.0.1:{free_port()}", "--data-plane-binary", str(binary)]
        self.out = folder / "out"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        until(lambda: "Ctrl-C" in self.out.read_text() or self.process.poll() is not None, "it never became ready")
        assert self.process.poll() is None, self.out.read_text()

    def key(self, name: str) -> str:
        return (self.data / "keys" / "team" / f"{name}-key").read_text().strip()

    def call(self, path: str, key: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        fields = {"X-API-Key": self.key(key)} | {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            fields["Content-Type"] = "application/json"
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, data, fields)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def json(self, path: str, key: str = "staff", **more: Any) -> Any:
        status, _, body = self.call(path, key, **more)
        assert status == 200, body
        return json.loads(body)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module", params=["data plane", "Python alone"])
def stack(request: pytest.FixtureRequest, server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    binary = None
    if request.param == "data plane":
        binary = find_data_plane(None)
        if binary is None:
            message = "the data plane is not built: cargo build -p tailrace-dataplane"
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    server.psql("DROP DATABASE IF EXISTS notes")
    server.psql("CREATE DATABASE notes")
    folder = tmp_path_factory.mktemp("stack")
    printed = subprocess.run(
        [sys.executable, "-c", "from tailrace_contract.idempotency import ddl; print(ddl('kept'))"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    server.psql(PEOPLE + printed.stdout, "notes")
    running = Stack(folder, server, binary)
    yield running
    assert running.stop() == 0, running.out.read_text()


def test_answers(stack: Stack) -> None:
    assert stack.json("/q/person?id=3") == {"id": 3, "name": "n3", "email": "person3@example.com"}
    assert stack.json("/q/person?id=3", "desk") == {"id": 3, "name": "n3", "email": "p***@example.com"}
    assert stack.json("/q/item?id=1", "desk") == {"id": 1, "label": "lamp"}
    status, _, body = stack.call("/q/person?id=0", "staff")
    assert (status, json.loads(body)["errors"][0]["code"]) == (422, "minimum")
    status, _, body = stack.call("/q/salaries", "desk")
    assert (status, json.loads(body)["code"]) == (503, "query_refused")
    assert stack.call("/q/add_person", "desk", "POST", {})[0] == 403


def test_pages_walk_to_the_end(stack: Stack) -> None:
    target, seen = "/q/people?page_size=4", []
    while target:
        status, headers, body = stack.call(target, "desk")
        assert status == 200
        seen += [row["id"] for row in json.loads(body)]
        target = headers["link"][1:].partition(">")[0] if "link" in headers else ""
    assert seen[:10] == list(range(1, 11))
    assert seen == sorted(set(seen))


def test_writes_once(stack: Stack) -> None:
    person = {"name": "new", "email": "new@example.com"}
    first = stack.call("/q/add_person", "staff", "POST", person, Idempotency_Key="e1")
    again = stack.call("/q/add_person", "staff", "POST", person, Idempotency_Key="e1")
    assert first[0] == again[0] == 200
    assert first[2] == again[2]
    assert stack.call("/q/add_person", "staff", "POST", person | {"name": "x"}, Idempotency_Key="e1")[0] == 422


def test_python_serves_the_rest(stack: Stack) -> None:
    names = [query["name"] for query in stack.json("/catalog", "desk")["queries"]]
    assert names == ["person", "people", "item"]
    document = stack.json("/openapi.json", "desk")
    OpenAPIV31SpecValidator(document).validate()
    assert {"/q/person", "/q/people", "/q/item"} <= set(document["paths"])
    status, headers, body = stack.call("/nothing", "desk")
    assert (status, json.loads(body)["code"]) == (404, "not_found")
    assert not [name for name in headers if name.startswith("x-tailrace")]
    assert stack.call("/catalog", "desk", "HEAD")[0] == 200
    assert stack.call("/catalog", "desk", "POST")[0] == 405


def test_every_call_is_in_the_history(stack: Stack) -> None:
    served = {"forwarded", "dataplane"} if stack.binary else {"gateway"}
    _, headers, _ = stack.call("/q/person?id=1", "desk")
    _, forwarded, _ = stack.call("/catalog", "desk")
    wanted = {headers["x-run-id"], forwarded["x-run-id"]}

    def found() -> dict[str, Any]:
        return {run["id"]: run for run in stack.json("/history?limit=100", "desk")["runs"]}

    until(lambda: wanted <= set(found()), "the runs never came", 20)
    runs = found()
    assert runs[headers["x-run-id"]]["query"] == "person"
    assert {runs[run_id]["servedBy"] for run_id in wanted} == served
    assert all(run["key"] == "team/desk" for run in runs.values())


def test_a_removed_key_is_gone_soon(stack: Stack) -> None:
    text = stack.desk.read_text()
    assert stack.call("/q/item?id=1", "desk")[0] == 200
    put(stack.desk, text.replace("role: desk,", "role: desk, suspended: true,"))
    until(lambda: stack.call("/q/item?id=1", "desk")[0] == 401, "the key was never revoked", 20)
    assert stack.call("/q/item?id=1", "staff")[0] == 200
    put(stack.desk, text)
    until(lambda: stack.call("/q/item?id=1", "desk")[0] == 200, "the key never came back", 20)


def test_a_broken_file_changes_nothing(stack: Stack) -> None:
    text = stack.desk.read_text()
    put(stack.desk, "kind: [")
    time.sleep(1.5)
    assert stack.call("/q/item?id=1", "desk")[0] == 200
    put(stack.desk, text)
