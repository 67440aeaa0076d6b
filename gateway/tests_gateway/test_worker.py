"""The worker as a process: real sockets, a real PostgreSQL and SQLite, snapshots from a file."""

import asyncio
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tailrace_contract.idempotency import ddl
from tailrace_contract.plan import (
    ApiPlan,
    ColumnPlan,
    ConnectionPlan,
    Encoding,
    Engine,
    Grant,
    KeyPlan,
    ParamPlan,
    ParamType,
    QueryPlan,
    Returns,
    RolePlan,
    Snapshot,
    StatementPlan,
    TlsPlan,
)
from tailrace_gateway.worker import main
from tailrace_loadtest.servers.postgres import Postgres, free_port

pytestmark = pytest.mark.postgres
KEY = "tlr_worker_key"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        running.psql("CREATE TABLE notes (id bigint generated always as identity, note text);" + ddl("kept"))
        yield running


def raw(name: str) -> ColumnPlan:
    return ColumnPlan(name=name, encoding=Encoding.RAW, type_oid=20)


def text(name: str) -> ColumnPlan:
    return ColumnPlan(name=name, encoding=Encoding.STRING, type_oid=25)


def query(name: str, sql: str, columns: tuple[ColumnPlan, ...], returns: Returns = Returns.ONE, **more: Any) -> QueryPlan:
    params = tuple(ParamPlan(name=n, type=ParamType.INTEGER, required=True) for n in more.pop("takes", ()))
    connection = more.get("connection", 0)
    statement = StatementPlan(sql=sql, params=tuple(range(len(params))), oids=(20,) * len(params) if connection == 0 else ())
    fields: dict[str, Any] = {"timeout_ms": 60_000, "connection": 0, "params": params, "statement": statement} | more
    version = hashlib.sha256(sql.encode()).hexdigest()[:16]
    return QueryPlan(name=name, version=version, returns=returns, columns=columns, **fields)


STORED = (ColumnPlan(name="n", encoding=Encoding.STORAGE),)
WRITE_COLUMNS = (ColumnPlan(name="id", encoding=Encoding.RAW, type_oid=20, table_oid=0, column_number=1),)


def queries(oid: int) -> tuple[QueryPlan, ...]:
    returning = (WRITE_COLUMNS[0].model_copy(update={"table_oid": oid}),)
    return (
        query("echo", "SELECT $1 AS n", (raw("n"),), takes=("n",)),
        query("sleep", "SELECT pg_sleep($1::float8)::text AS s", (text("s"),), takes=("n",), timeout_ms=2000),
        query("many", "SELECT n::int8 AS n FROM generate_series(1, $1) n", (raw("n"),), Returns.MANY, takes=("n",)),
        query("wide", "SELECT repeat('x', 10000) AS x FROM generate_series(1, $1) n", (text("x"),), Returns.MANY, takes=("n",)),
        query("fails", "SELECT (1000 / (n - $1))::int8 AS n FROM generate_series(1, 100000) n", (raw("n"),), Returns.MANY, takes=("n",)),
        query("add", "INSERT INTO notes (note) VALUES ($1::int8::text) RETURNING id", returning, takes=("n",), write=True),
        query("slow_add", "INSERT INTO notes (note) SELECT 'slow' FROM pg_sleep($1::float8)", (), Returns.NONE, takes=("n",), write=True),
        query(
            "listed",
            "SELECT n::int8 AS n FROM generate_series(1, 5) n WHERE n = ANY($1)",
            (raw("n"),),
            Returns.MANY,
            params=(ParamPlan(name="ids", type=ParamType.INTEGER, array=True, required=True),),
            statement=StatementPlan(sql="SELECT n::int8 AS n FROM generate_series(1, 5) n WHERE n = ANY($1)", params=(0,), oids=(1016,)),
        ),
        query(
            "moment",
            "SELECT $1 AS t, $2 AS s",
            (ColumnPlan(name="t", encoding=Encoding.TIMESTAMPTZ, type_oid=1184), text("s")),
            params=(
                ParamPlan(name="at", type=ParamType.TIMESTAMP, nullable=True),
                ParamPlan(name="word", type=ParamType.STRING),
            ),
            statement=StatementPlan(sql="SELECT $1 AS t, $2 AS s", params=(0, 1), oids=(1184, 25)),
        ),
        query("lite", "SELECT ?1 AS n", STORED, takes=("n",), connection=1),
    )


class Worker:
    """A worker process and its files."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.snapshot_file = folder / "snapshot.json"
        (folder / "url").write_text(server.url())
        with closing(sqlite3.connect(folder / "lite.db")) as connection:
            connection.execute("CREATE TABLE t (n)")
        (folder / "lite").write_text(f"sqlite:///{folder / 'lite.db'}")
        oid = int(server.psql("SELECT 'notes'::regclass::oid"))
        self.plans = queries(oid)
        self.version = 1
        self.write()
        self.process = self.start()

    def write(self, **change: Any) -> None:
        grants = tuple(Grant(query=n) for n in range(len(self.plans)))
        snapshot = Snapshot(
            version=self.version,
            api=ApiPlan(namespace="t", name="t"),
            connections=(
                ConnectionPlan(
                    name="main", engine=Engine.POSTGRES, url_file=str(self.folder / "url"), max_connections=2, idempotency_table="kept"
                ),
                ConnectionPlan(name="lite", engine=Engine.SQLITE, url_file=str(self.folder / "lite")),
            ),
            queries=self.plans,
            roles=(RolePlan(name="all", grants=grants),),
            keys=(KeyPlan(id="t/a", sha256=(hashlib.sha256(KEY.encode()).hexdigest(),), role=0),),
        ).model_copy(update=change)
        fresh = self.folder / "fresh.json"
        fresh.write_bytes(snapshot.to_json())
        fresh.replace(self.snapshot_file)
        self.version += 1

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tailrace_gateway", "worker", "--data", str(self.data), "--snapshot", str(self.snapshot_file)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        until(lambda: self.answers() is not None and self.answers() != 503)
        return process

    def answers(self) -> int | None:
        try:
            return self.call("/q/echo?n=1")[0]
        except OSError:
            return None

    def call(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, bytes, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, {"X-API-Key": KEY} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheader("X-Run-Id") or ""

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.data / "runs.sqlite")) as connection:
            return connection.execute(sql).fetchall()

    def run(self, run_id: str) -> tuple[Any, ...]:
        epoch, sequence = (int(part, 16) for part in run_id.split("-"))
        sql = "SELECT status, (SELECT name FROM names WHERE id = code), rows, bytes FROM runs WHERE epoch = %d AND seq = %d"
        return self.rows(sql % (epoch, sequence))[0]


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def worker(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    running = Worker(tmp_path_factory.mktemp("worker"), server)
    yield running
    assert running.stop() == 0


def connect(worker: Worker) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", worker.port), timeout=30)
    return made


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def request(path: str, *more: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: t", f"X-API-Key: {KEY}", *more, "", ""]).encode()


def active(server: Postgres) -> int:
    return int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace' AND state <> 'idle'"))


def test_answers_are_recorded_before_they_leave(worker: Worker) -> None:
    for path, body in (("/q/echo?n=7", b'{"n":7}'), ("/q/lite?n=7", b'{"n":7}'), ("/q/many?n=3", b'[{"n":1},{"n":2},{"n":3}]')):
        status, got, run_id = worker.call(path)
        assert (status, got) == (200, body)
        assert worker.run(run_id)[:2] == (200, "")


def test_the_unix_socket_is_the_owners_only(worker: Worker) -> None:
    assert (worker.data / "run" / "gateway.sock").stat().st_mode & 0o777 == 0o600
    assert (worker.data / "run").stat().st_mode & 0o777 == 0o700
    assert (worker.data / "gateway-secret").stat().st_mode & 0o777 == 0o600
    assert (worker.data / "runs.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_failure_after_the_head_aborts_the_body(worker: Worker) -> None:
    """Case 21."""
    with connect(worker) as connection:
        connection.sendall(request("/q/fails?n=90000&format=ndjson"))
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" in head
    assert not answer.endswith(b"0\r\n\r\n")
    assert b"$complete" not in body
    run_id = next(line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"x-run-id"))
    status, code, rows, size = worker.run(run_id)
    assert (status, code) == (200, "database_error")
    assert 0 < rows < 90_000
    assert size > 0


def test_a_client_who_leaves_cancels_and_is_recorded(worker: Worker, server: Postgres) -> None:
    """Cases 1 and 2."""
    before = len(worker.rows("SELECT 1 FROM runs WHERE status = 499"))
    connections = [connect(worker) for _ in range(2)]
    for connection, method, path in zip(connections, ("GET", "POST"), ("/q/sleep?n=300", "/q/slow_add?n=300"), strict=True):
        connection.sendall(request(path, "Content-Length: 0", method=method))
    until(lambda: active(server) == 2)
    for connection in connections:
        connection.close()
    until(lambda: active(server) == 0)
    until(lambda: len(worker.rows("SELECT 1 FROM runs WHERE status = 499")) == before + 2)
    assert server.psql("SELECT count(*) FROM notes WHERE note = 'slow'").strip() == "0"
    assert worker.call("/q/echo?n=1")[0] == 200


def test_timeouts(worker: Worker, server: Postgres) -> None:
    status, body, _ = worker.call("/q/sleep?n=300")
    assert (status, json.loads(body)["code"]) == (504, "query_timeout")
    until(lambda: active(server) == 0)


def test_a_slow_reader_of_a_large_answer_costs_no_memory(worker: Worker, server: Postgres) -> None:
    """Case 11: 200 MB to a reader who does not read."""

    def resident() -> int:
        return int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]) * 4096

    worker.call("/q/wide?n=100&format=csv")
    before = resident()
    with connect(worker) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(request("/q/wide?n=20000&format=ndjson"))
        assert connection.recv(1000)
        time.sleep(1)
        assert resident() - before < 30 << 20
    until(lambda: active(server) == 0)


def test_a_large_answer_is_whole(worker: Worker) -> None:
    status, body, run_id = worker.call("/q/wide?n=2000&format=ndjson")
    assert (status, len(body)) == (200, 2000 * 10_009 + len('{"$complete":{"rows":2000,"truncated":false}}\n'))
    assert worker.run(run_id) == (200, "", 2000, len(body))


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ("at=2026-01-31T09:30:00%2B02:00", b'{"t":"2026-01-31T07:30:00Z","s":null}'),  # case 15: an escaped plus
        ("at=2026-01-31+09:30:00Z", b'{"t":"2026-01-31T09:30:00Z","s":null}'),  # a plus is a blank
        ("", b'{"t":null,"s":null}'),  # case 16: NULL is null, not 1970
        ("word=%27%3B+DROP+TABLE+notes%3B--+%22%5C", b'{"t":null,"s":"\'; DROP TABLE notes;-- \\"\\\\"}'),  # case 19
    ],
)
def test_arguments_arrive_as_they_were_meant(worker: Worker, arguments: str, body: bytes) -> None:
    assert worker.call(f"/q/moment?{arguments}")[:2] == (200, body)


def test_an_unescaped_plus_before_an_offset_is_told(worker: Worker) -> None:
    """Case 15: `+02:00` unescaped is a blank and a wrong timestamp: 422 names it."""
    status, body, _ = worker.call("/q/moment?at=2026-01-31T09:30:00+02:00")
    assert (status, json.loads(body)["errors"]) == (422, [{"pointer": "/at", "code": "type", "detail": "has the wrong type"}])


def test_lists_and_what_is_missing(worker: Worker) -> None:
    """Cases 17 and 18: one list style, an empty list gives no rows, a missing parameter never drops a predicate."""
    assert worker.call("/q/listed?ids=1,3,5")[:2] == (200, b'[{"n":1},{"n":3},{"n":5}]')
    assert worker.call("/q/listed?ids=")[:2] == (200, b"[]")
    json_type = {"Content-Type": "application/json"}
    assert worker.call("/q/listed", "POST", json_type, b'{"ids":[2,4]}')[:2] == (200, b'[{"n":2},{"n":4}]')
    assert worker.call("/q/listed", "POST", json_type, b'{"ids":[]}')[:2] == (200, b"[]")
    for path, code in (("/q/listed", "missing"), ("/q/listed?ids=1,x", "type"), ("/q/listed?ids=1&ids=2", "duplicate")):
        status, body, _ = worker.call(path)
        assert (status, json.loads(body)["errors"][0]["code"]) == (422, code)


def test_idempotent_writes(worker: Worker) -> None:
    first = worker.call("/q/add?n=5", "POST", {"Idempotency-Key": "w1"})
    again = worker.call("/q/add?n=5", "POST", {"Idempotency-Key": "w1"})
    other = worker.call("/q/add?n=6", "POST", {"Idempotency-Key": "w1"})
    assert first[0] == 200
    assert again[:2] == first[:2]
    assert (other[0], json.loads(other[1])["code"]) == (422, "idempotency_mismatch")


def test_pipelined_requests_are_answered_in_order(worker: Worker) -> None:
    with connect(worker) as connection:
        connection.sendall(b"".join(request(f"/q/echo?n={n}") for n in range(1, 6)) + request("/q/echo?n=6", "Connection: close"))
        answer = read_all(connection)
    assert [answer.find(b'{"n":%d}' % n) for n in range(1, 7)] == sorted(answer.find(b'{"n":%d}' % n) for n in range(1, 7))
    assert answer.count(b"HTTP/1.1 200") == 6


def test_http_1_0_gets_bodies_without_chunks(worker: Worker) -> None:
    whole = '{"n":1}\n{"n":2}\n{"$complete":{"rows":2,"truncated":false}}\n'
    for path, body in (("/q/many?n=2&format=ndjson", whole), ("/q/echo?n=5", '{"n":5}')):
        with connect(worker) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nX-API-Key: {KEY}\r\n\r\n".encode())
            head, _, got = read_all(connection).partition(b"\r\n\r\n")
        assert got.decode() == body
        assert b"chunked" not in head.lower()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"GET /catalog#top HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 17_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", b"431"),
        (b"B" * 17_000, b"431"),
        (b"BR@W / HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    ],
)
def test_what_is_not_http_gets_a_bare_answer(worker: Worker, data: bytes, status: bytes) -> None:
    with connect(worker) as connection:
        connection.sendall(data)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("method", ["BREW", "get", "GETS", "CONNECT", "PRI", "M-SEARCH", "PROPFIND", "P!"])
def test_any_method_is_405_after_the_key(worker: Worker, method: str) -> None:
    with connect(worker) as connection:
        connection.sendall(f"{method} /q/echo?n=7 HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 401"
    with connect(worker) as connection:
        # Bodies of both kinds and an empty line stand in front of the next call, and nothing of them is taken for one.
        body = b"BREW /q/echo HTTP/1.1\r\n\r\n"
        connection.sendall(
            request("/q/echo?n=7", f"Content-Length: {len(body)}", method=method)
            + body
            + request("/q/unknown", "Transfer-Encoding: chunked", method=method)
            + b"%x\r\n%b\r\n0\r\nT: t\r\n\r\n\r\n" % (len(body), body)
            + request("/catalog", method=method)
            + request("/q/echo?n=9", "Connection: close")
        )
        answers = read_all(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"405", b"404", b"405", b"200"]
    assert re.findall(rb"(?im)^allow: (.*?)\r$", answers) == [b"GET, HEAD, POST, OPTIONS", b"GET, HEAD, OPTIONS"]
    assert answers.endswith(b'{"n":9}')


def test_a_new_snapshot_is_served_and_a_bad_one_is_not(worker: Worker) -> None:
    plans = worker.plans
    changed = query("echo", "SELECT $1 + 1 AS n", (raw("n"),), takes=("n",))
    worker.write(queries=(changed, *plans[1:]))
    until(lambda: worker.call("/q/echo?n=1")[1] == b'{"n":2}')
    worker.write(roles=(RolePlan(name="all", grants=(Grant(query=99),)),))
    (worker.folder / "fresh.json").write_text("{")
    (worker.folder / "fresh.json").replace(worker.snapshot_file)
    time.sleep(0.6)
    assert worker.call("/q/echo?n=1")[1] == b'{"n":2}'
    worker.write()
    until(lambda: worker.call("/q/echo?n=1")[1] == b'{"n":1}')
    worker.write(keys=())
    until(lambda: worker.call("/q/echo?n=1")[0] == 401)
    worker.write()
    until(lambda: worker.call("/q/echo?n=1")[0] == 200)


def test_epochs_have_no_gaps_and_logs_no_payload(worker: Worker, server: Postgres) -> None:
    until(lambda: not worker.rows("SELECT 1 FROM open_runs"))
    for count, highest in worker.rows("SELECT count(*), max(seq) FROM runs GROUP BY epoch"):
        assert count == highest
    log = (worker.folder / "log").read_text()
    for secret in (KEY, "SELECT", "generate_series", f":{server.port}", "postgresql://"):
        assert secret not in log
    for line in log.splitlines():
        assert json.loads(line)["event"]


def test_killed_and_started_again_nothing_is_missing(server: Postgres, tmp_path: Path) -> None:
    worker = Worker(tmp_path, server)
    try:
        ids = {worker.call(f"/q/echo?n={n}")[2] for n in range(20)}
        with connect(worker) as connection:
            connection.sendall(request("/q/wide?n=20000&format=ndjson"))
            assert connection.recv(1000)
            worker.process.kill()
            worker.process.wait()
        worker.process = worker.start()
        assert worker.call("/q/echo?n=1")[0] == 200
        assert all(worker.run(run_id)[0] == 200 for run_id in ids)
        aborted = worker.rows("SELECT status FROM runs WHERE code = (SELECT id FROM names WHERE name = 'aborted')")
        assert aborted == [(200,)]
        assert not worker.rows("SELECT 1 FROM open_runs")
    finally:
        assert worker.stop() == 0


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bogus", "--listen", "x"]) == 64
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "s").write_text("{}")
        arguments = ["--data", str(tmp_path / "d"), "--snapshot", str(tmp_path / "s"), "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert main(arguments) == 1
    assert "Address already in use" in capsys.readouterr().err


def test_tls_is_not_served_in_the_clear_by_python_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = ApiPlan(namespace="t", name="t", tls=TlsPlan(certificate_file="crt", key_file="key"))
    (tmp_path / "s").write_bytes(Snapshot(version=1, api=api).to_json())
    arguments = ["--data", str(tmp_path / "d"), "--snapshot", str(tmp_path / "s"), "--listen", f"127.0.0.1:{free_port()}"]
    assert main(arguments) == 64
    assert "http.tls is served by the data plane only" in capsys.readouterr().err


async def test_nothing_leaks_into_the_loop() -> None:
    assert asyncio.all_tasks() - {asyncio.current_task()} == set()
