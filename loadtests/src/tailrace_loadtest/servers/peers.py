"""What a user might run instead, on the same table: built once into a folder outside the clone, started on a port and a core of its own.

Sources and pinned versions are in `loadtests/peers`. None of them checks a key or records, but QueryAPIGate, which does both.
IO: cargo, go and pip when something isn't built yet (`TAILRACE_PEERS`, else /var/tmp/tailrace-peers); processes on loopback.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tailrace_loadtest.generator import ROOT
from tailrace_loadtest.servers.postgres import Postgres, ServerMissing, free_port
from tailrace_loadtest.servers.users import DATABASE

SOURCES = ROOT / "loadtests" / "peers"
READY_S = 60.0
QUERY = "/q/user?path=/users/{}"
ADMIN = "admin-secret"
STORE = "queryapigate"


def cache() -> Path:
    """Where builds are kept."""
    path = Path(os.environ.get("TAILRACE_PEERS", "/var/tmp/tailrace-peers"))  # noqa: S108
    path.mkdir(parents=True, exist_ok=True)
    return path


def _build(what: str, command: list[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Runs one step of a build, out of others' way; ServerMissing with its last lines when it fails."""
    if shutil.which(command[0]) is None:
        raise ServerMissing(f"{what}: {command[0]} is not installed")
    print(f"building {what} (once, into {cache()})", file=sys.stderr, flush=True)  # noqa: T201
    done = subprocess.run(
        ["nice", "-n", "10", *command], cwd=cwd, env=os.environ | dict(environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerMissing(f"{what} does not build:\n{done.stderr[-2000:]}")


def _rust(name: str) -> Path:
    target = cache() / "target"
    program = target / "release" / name
    if not program.exists():
        manifest = str(SOURCES / "rust" / "Cargo.toml")
        _build(
            "the Rust peers",
            ["cargo", "build", "-q", "--locked", "--release", "--manifest-path", manifest],
            {"CARGO_TARGET_DIR": str(target)},
        )
    return program


def _go() -> Path:
    program = cache() / "go_pgx"
    if not program.exists():
        _build("the Go peer", ["go", "build", "-o", str(program), "."], cwd=SOURCES / "go")
    return program


def _venv(name: str) -> Path:
    """The bin folder of a virtual environment with exactly what `loadtests/peers/python/NAME.txt` says."""
    folder = cache() / name
    wanted, stamp = (SOURCES / "python" / f"{name}.txt").read_text(), folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _build(name, [sys.executable, "-m", "venv", str(folder)])
        _build(name, [str(folder / "bin" / "pip"), "install", "-q", "-r", str(SOURCES / "python" / f"{name}.txt")])
        stamp.write_text(wanted)
    return folder / "bin"


def _fastapi(port: int) -> list[str]:
    words = ["fastapi_app:app", "--app-dir", str(SOURCES / "python"), "--host", "127.0.0.1", "--port", str(port)]
    return [str(_venv("fastapi") / "uvicorn"), *words, "--no-access-log", "--log-level", "warning"]


def _queryapigate(port: int) -> list[str]:
    words = ["-c", "python:queryapigate.gunicorn_conf", "-w", "1", "-k", "gthread", "-b", f"127.0.0.1:{port}", "--timeout", "60"]
    return [str(_venv("queryapigate") / "gunicorn"), *words, "queryapigate:create_app()"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One peer: its name and version for people, its command line for a port, what it needs to know, and how it is asked."""

    says: str
    command: Callable[[int], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = QUERY


KINDS: Mapping[str, Kind] = {
    "dataloader": Kind("async-graphql 7.2 DataLoader, axum 0.8, sqlx 0.9", lambda _: [str(_rust("dataloader"))]),
    "mq_bridge": Kind("mq-bridge 1.3, its own route", lambda _: [str(_rust("mq_bridge"))], {"MODE": "input"}, "/users/{}"),
    "pipelined": Kind("axum 0.8, tokio-postgres 0.7 pipelined over 16 connections", lambda _: [str(_rust("pipelined"))]),
    "go_pgx": Kind("Go net/http, pgx 5.13, pool of 64", lambda _: [str(_go())], {"GOMAXPROCS": "1"}),
    "sqlx_one": Kind("axum 0.8, sqlx 0.9, pool of 64", lambda _: [str(_rust("sqlx_one"))]),
    "fastapi": Kind("FastAPI, uvicorn, asyncpg", _fastapi),
    "queryapigate": Kind("QueryAPIGate 0.43, one worker, metadata cached; checks a key and records", _queryapigate),
}


class Peer:
    """`with Peer("go_pgx", server, cpu=0) as peer:`; `peer.url`, `peer.path`, `peer.pid`, `peer.headers`.

    ServerMissing when it can't be built here. The table is `users` of `servers.users`.
    """

    def __init__(self, name: str, server: Postgres, cpu: int | None = None) -> None:
        self.name, self.kind = name, KINDS[name]
        self._server, self._cpu = server, cpu
        self.port = free_port()
        self.url, self.path = f"http://127.0.0.1:{self.port}", self.kind.path
        self.headers: dict[str, str] = {}
        self._command = self.kind.command(self.port)
        self.home = Path(tempfile.mkdtemp(prefix=f"tailrace-peer-{name}-", dir="/var/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The root of its processes."""
        assert self._process is not None, "the peer runs"
        return self._process.pid

    def _environment(self) -> dict[str, str]:
        url = self._server.url(DATABASE).replace("postgresql://", "postgres://")
        found = {**os.environ, "PORT": str(self.port), "DATABASE_URL": url, **self.kind.environment}
        if self.name == "queryapigate":
            found |= {
                "QUERYAPIGATE_HOME": str(self.home), "QUERYAPIGATE_API_KEY": ADMIN, "QUERYAPIGATE_METADATA_CACHE_TTL": "30",
                "QUERYAPIGATE_THREADS": "2", "QUERYAPIGATE_ACCESS_LOG": "off", "QUERYAPIGATE_LOG_REQUESTS": "off",
                "QUERYAPIGATE_DATABASE_URL": self._server.url(STORE),
            }  # fmt: skip
        return found

    def __enter__(self) -> "Peer":
        try:
            if self.name == "queryapigate":
                self._server.psql(f"DROP DATABASE IF EXISTS {STORE}")
                self._server.psql(f"CREATE DATABASE {STORE}")
            pin = ["taskset", "-c", str(self._cpu)] if self._cpu is not None else []
            with (self.home / "log").open("ab") as log:
                self._process = subprocess.Popen([*pin, *self._command], env=self._environment(), stdout=log, stderr=log, cwd=self.home)
            if self.name == "queryapigate":
                self._eventually("/health")
                self._publish()
            self._eventually(self.path.format(1))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _get(self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {**(headers or self.headers), "Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return answer.read()

    def _eventually(self, path: str) -> None:
        end = time.monotonic() + READY_S
        while True:
            try:
                self._get(path)
            except (OSError, urllib.error.HTTPError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                    text = (self.home / "log").read_text(errors="replace")[-1500:]
                    raise RuntimeError(f"{self.name} did not start ({error}): {text}") from error
                time.sleep(0.1)
            else:
                return

    def _publish(self) -> None:
        """QueryAPIGate's connection, saved query and key."""
        admin = {"X-API-Key": ADMIN}
        database = {"host": "127.0.0.1", "port": self._server.port, "database": DATABASE, "user": "postgres", "password": ""}
        self._get("/api/v1/connections", {"name": "app", "db": "postgres", "active": True} | database, admin)
        query = {
            "name": "user", "sql": "SELECT path, id, name, tier FROM users WHERE path = :path", "parameters": {"path": {"type": "str"}},
            "connection_name": "app", "author": "bench", "description": "look-up", "publish": True,
        }  # fmt: skip
        self._get("/api/v1/queries", query, admin)
        made = json.loads(self._get("/api/v1/api-keys", {"name": "bench", "connections": [], "queries": ["user"]}, admin))
        self.headers = {"X-API-Key": made["secret"]}

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)
