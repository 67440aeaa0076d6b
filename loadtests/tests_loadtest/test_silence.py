"""Nothing that the processes write holds a parameter value, a result value, SQL text, a host name, a password or a key.

Every value is a marker; after good calls and failures of many kinds everything they wrote is searched: logs, metrics, status, run
store, spool, and the errors that callers got.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace

MARKERS = {
    "parameter": "zqparam",
    "result": "zqresult",
    "SQL": "zqsql",
    "host": "zqhost",
    "password": "zqpassword",
    "database": "zqbase",
    "user": "zquser",
    "argument name": "zqname",
}

API = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: quiet, namespace: quiet}
spec:
  connections:
    - {name: main, urlFrom: {secretKeyRef: {name: main-db, key: url}}, statementTimeout: 2s}
    - {name: gone, urlFrom: {secretKeyRef: {name: gone-db, key: url}}}
    - {name: closed, urlFrom: {secretKeyRef: {name: closed-db, key: url}}}
  queries:
    - {name: good, connection: main, sql: "SELECT id, secret AS zqsql FROM things WHERE secret = :v", params: {v: {type: string, required: true}}}
    - {name: typed, connection: main, sql: "SELECT CAST(:v AS int) AS zqsql", params: {v: {type: integer, required: true}}, returns: one}
    - {name: cast, connection: main, sql: "SELECT CAST(CAST(:v AS text) AS int) AS zqsql", params: {v: {type: string, required: true}}, returns: one}
    - {name: broken, connection: main, sql: "SELECT zqsql FROM no_such_zqsql", returns: one}
    - {name: unparsed, connection: main, sql: "SELECT 'zqsql' FROM FROM", returns: one}
    - {name: slow, connection: main, sql: "SELECT count(*) AS zqsql FROM generate_series(1, CAST(:n AS bigint)) AS g WHERE g % 3 <> 1", params: {"n": {type: integer, required: true}}, returns: one, timeout: 100ms}
    - {name: add, connection: main, write: true, returns: none, sql: "INSERT INTO things (id, secret) VALUES (:id, :v)", params: {id: {type: integer, required: true}, v: {type: string, required: true}}}
    - {name: away, connection: gone, sql: "SELECT 1 AS zqsql", returns: one}
    - {name: shut, connection: closed, sql: "SELECT 1 AS zqsql", returns: one}
  roles:
    - {name: any, queries: ["*"]}
  runStoreRef: {name: runs}
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: any, namespace: quiet}
spec: {queryApiRef: {name: quiet}, role: any, secretName: any-key}
---
apiVersion: tailrace.dev/v1alpha1
kind: RunStore
metadata: {name: runs, namespace: quiet}
spec: {embedded: {}}
"""


@dataclass
class Written:
    """What came out, by where it was found."""

    places: dict[str, bytes] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)


def ask(stack: Tailrace, method: str, target: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=20)
    sent = {"X-API-Key": stack.keys["any-key"]} | ({"Content-Type": "application/json"} if body is not None else {}) | headers
    try:
        connection.request(method, target, body.encode() if body is not None else None, sent)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def fetched(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()


@pytest.fixture(params=[False, True], ids=["python alone", "data plane"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    file = tmp_path / "quiet.yaml"
    file.write_text(API)
    found = Written()
    with Postgres() as server:
        server.psql("CREATE DATABASE zqbase; CREATE ROLE zquser LOGIN PASSWORD 'zqpassword' SUPERUSER")
        server.psql(
            "CREATE TABLE things (id int PRIMARY KEY, secret text NOT NULL); INSERT INTO things VALUES (1, 'zqresult'), (2, 'zqparam')",
            "zqbase",
        )
        urls = {
            "main-db": f"postgresql://zquser:zqpassword@localhost:{server.port}/zqbase",
            "gone-db": "postgresql://zquser:zqpassword@zqhost.invalid/zqbase?connect_timeout=2",
            "closed-db": "postgresql://zquser:zqpassword@127.0.0.1:1/zqbase",
        }
        with Tailrace([file], urls, data_plane=request.param) as stack:
            calls: list[tuple[int, bytes]] = [
                ask(stack, "GET", "/q/good?v=zqparam"),
                ask(stack, "GET", "/q/typed?v=zqparam"),
                ask(stack, "POST", "/q/typed", '{"v": "zqparam"}'),
                ask(stack, "POST", "/q/typed", '{"v": "zqparam'),
                ask(stack, "GET", "/q/typed?v=1&zqname=zqparam"),
                ask(stack, "GET", "/q/cast?v=zqparam"),
                ask(stack, "GET", "/q/broken"),
                ask(stack, "GET", "/q/unparsed"),
                ask(stack, "GET", "/q/slow?n=2000000000"),
                ask(stack, "POST", "/q/add", '{"id": 1, "v": "zqparam"}'),
                ask(stack, "POST", "/q/add", '{"id": 3, "v": "zqparam"}', **{"Idempotency-Key": "zqparam"}),
                ask(stack, "GET", "/q/away?v=zqparam"),
                ask(stack, "GET", "/q/away"),
                ask(stack, "GET", "/q/shut"),
                ask(stack, "GET", "/q/zqparam"),
                ask(stack, "GET", "/zqparam?zqparam"),
                ask(stack, "GET", "/q/good?v=%ffzqparam"),
                ask(stack, "GET", "/q/good?v=1&cursor=zqparam"),
                ask(stack, "GET", "/q/good?v=1", traceparent="zqparam"),
                ask(stack, "GET", "/q/good?v=1", **{"X-API-Key": "zqparam-zqparam-zqparam"}),
            ]
            found.statuses = [status for status, _ in calls]
            for number, (status, body) in enumerate(calls):
                # A good answer is the caller's own business, and so is the name of an argument that he is told about.
                if status >= 400:
                    found.places[f"error {number} ({status})"] = body.replace(b"/zqname", b"")
            key = stack.keys["any-key"].encode()
            ports = {"gateway": f"http://127.0.0.1:{stack.metrics}/metrics"}
            if request.param:
                ports |= {path: f"http://127.0.0.1:{stack.admin}/{path}" for path in ("metrics", "status", "readyz?verbose", "livez")}
            for name, url in ports.items():
                found.places[f"admin {name}"] = fetched(url)
            stack.stop()
            for name in ("gateway", "dataplane"):
                found.places[f"log {name}"] = stack.log(name).encode()
            for path in stack.data.rglob("*"):
                if path.is_file() and path.relative_to(stack.data).parts[0] not in ("secrets", "keys"):
                    found.places[str(path.relative_to(stack.data))] = path.read_bytes()
            found.places = {name: text.replace(key, b"THE-KEY-ITSELF") for name, text in found.places.items()}
            yield found


@pytest.mark.postgres
def test_nothing_that_is_written_holds_a_value(written: Written) -> None:
    assert written.statuses[0] == 200
    assert {status // 100 for status in written.statuses} == {2, 4, 5}, written.statuses
    assert any("runs.sqlite" in name for name in written.places)
    leaks = [
        f"{what} in {name}: {text[max(0, text.index(marker.encode()) - 150) :][:300]!r}"
        for name, text in written.places.items()
        for what, marker in {**MARKERS, "key": "THE-KEY-ITSELF"}.items()
        if marker.encode() in text
    ]
    assert leaks == []
    for name in ("log gateway",):
        for line in written.places[name].splitlines():
            assert isinstance(json.loads(line), dict), line
