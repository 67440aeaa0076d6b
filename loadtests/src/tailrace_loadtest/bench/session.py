"""The servers of one session: one database with the table, Tailrace on it, and others beside, each started when it is first needed.

Each server under load has core 0, database and generator share core 1; whoever isn't loaded idles. IO: starts and ends processes.
A server that can't be had here is said on stderr and left out: `target` gives None for it.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tailrace_loadtest import cases, generator, ids
from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.servers import six, users
from tailrace_loadtest.servers.mariadb import Mariadb
from tailrace_loadtest.servers.nginx import Nginx
from tailrace_loadtest.servers.peers import KINDS, Peer
from tailrace_loadtest.servers.postgres import Postgres, ServerMissing
from tailrace_loadtest.servers.tailrace import Tailrace

SERVER_CPU, OTHER_CPU = 0, 1
OURS = "tailrace"
CUSTOMERS = 10_000
KEYS: Mapping[str, int] = {"order_status": CUSTOMERS, "stock_level": CUSTOMERS // 100}
"""Of the six databases."""
MARIADB = ("user",)
"""Queries that a bar asks there."""
NOTES = "CREATE TABLE notes (number bigint NOT NULL)"
LOOK_UP = '"path":"/users/{}"'
WARM_UP_S = 0.5


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def pin(pid: int, cpu: int) -> None:
    """Keeps a process, its threads and its children on one core."""
    for each in (pid, *children(pid)):
        for thread in Path(f"/proc/{each}/task").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {cpu})


@dataclass(frozen=True, slots=True)
class Ask:
    """What one query is asked and what must come back; `{}` is the key."""

    path: str
    contains: str
    body: str | None = None


ASKS: Mapping[str, Ask] = {
    "user": Ask("/q/user?path=/users/{}", LOOK_UP),
    "masked": Ask("/q/user?path=/users/{}", LOOK_UP),
    "user_alone": Ask("/q/user_alone?path=/users/{}", LOOK_UP),
    "user_few": Ask("/q/user_few?path=/users/{}", LOOK_UP),
    "user_cached": Ask("/q/user_cached?path=/users/{}", LOOK_UP),
    "user_divided": Ask("/q/user_divided?path=/users/{}&by=1", LOOK_UP),
    "users": Ask("/q/users", '"path":"/users/1"'),
    "order_status": Ask("/q/order_status?id={}", '"id":{},"last_name"'),
    "stock_level": Ask("/q/stock_level?district={}", '"district":{},'),
    "note": Ask("/q/note", '"number":{}', '{"number":{}}'),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A server as a load sees it: where, what, whose CPU is counted. `extra` are options of the generator that it needs."""

    name: str
    url: str
    ask: Ask
    watched: Mapping[str, int]
    extra: Mapping[str, object] = field(default_factory=dict)

    def options(self, load: Load, rows: int, seconds: float, seed: int, rate: float | None) -> dict[str, object]:
        """The generator's options for one load."""
        found: dict[str, object] = {
            "path": self.ask.path, "keys": f"1..{min(load.keys or rows, rows)}", "contains": self.ask.contains, "connections": load.connections,
            "depth": load.depth, "duration": f"{int((seconds + WARM_UP_S) * 1000)}ms", "warm-up": f"{int(WARM_UP_S * 1000)}ms", "seed": seed,
        }  # fmt: skip
        if self.ask.body is not None:
            found |= {"method": "POST", "body": self.ask.body, "header": ["Content-Type: application/json"]}
        if rate is not None:
            found |= {"rate": round(rate, 3), "arrivals": "poisson"}
        if load.transport == "h2":
            found["h2"] = True
        if load.transport == "bulk":
            path, _, arguments = self.ask.path.partition("?")
            name, _, value = arguments.partition("=")
            found |= {"method": "POST", "path": path, "body": json.dumps({name: value}), "bulk": load.depth, "depth": 1}
            found["header"] = ["Content-Type: application/json"]
        return found | dict(self.extra)


def _databases(stack: contextlib.ExitStack, kind: str, rows: int) -> tuple[Postgres | Mariadb, str]:
    """The database of a session with its tables, and its URL. Rows come from memory: figures are about the servers, not the disk."""
    if kind == "postgres":
        server = stack.enter_context(Postgres({"shared_buffers": "1GB", "max_connections": "400", "autovacuum": "off"}))
        url = users.load(server, rows)
        server.psql(NOTES, users.DATABASE)
        return server, url
    maria = stack.enter_context(Mariadb({"innodb_buffer_pool_size": "1G", "max_statement_time": "0"}))
    return maria, users.load_mariadb(maria, rows) if kind == "mariadb" else six.load(maria, CUSTOMERS // 1000)


class Session:
    """`with Session(rows, folder) as session:`; the table, the stack, and `target(name, load)`. `kind`: postgres, mariadb or six."""

    def __init__(self, rows: int, folder: Path, kind: str = "postgres") -> None:
        self.rows, self.folder, self.kind = rows, folder, kind
        self.ids = folder / "ids"
        self.missing: dict[str, str] = {}
        """Servers that couldn't be had, and why."""
        self._opened = contextlib.ExitStack()
        self._peers: dict[str, Peer | Nginx] = {}
        self._stack: Tailrace | None = None

    def __enter__(self) -> "Session":
        try:
            self.database, self.url = _databases(self._opened, self.kind, self.rows)
            pin(self.database.pid, OTHER_CPU)
        except BaseException:
            self._opened.close()
            raise
        return self

    @property
    def server(self) -> Postgres:
        """The PostgreSQL of this session; the other kinds have none."""
        assert isinstance(self.database, Postgres), "asked of a session on PostgreSQL only"
        return self.database

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def specs(self) -> Path:
        """The QueryAPI of this session: cases/six.yaml, or cases/bench.yaml with what its database understands."""
        text = cases.path("six.yaml" if self.kind == "six" else "bench.yaml").read_text()
        documents = [each for each in yaml.safe_load_all(text) if each]
        if self.kind == "mariadb":
            spec = documents[0]["spec"]
            spec["queries"] = [query for query in spec["queries"] if query["name"] in MARIADB]
        path = self.folder / "bench.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        return path

    def miss(self, name: str, why: str) -> None:
        """Says once, loudly, that something is left out."""
        if name not in self.missing:
            self.missing[name] = why
            print(f"SKIPPED {name}: {why}", file=sys.stderr, flush=True)  # noqa: T201

    @property
    def stack(self) -> Tailrace:
        """Tailrace on the table, with one data-plane thread."""
        if self._stack is None:
            secret = "six-db" if self.kind == "six" else "users-db"
            made = Tailrace([self.specs()], {secret: self.url}, threads=1, taskset=str(SERVER_CPU))
            self._stack = self._opened.enter_context(made)
            for name in ("app", "masked"):
                (self.folder / f"{name}.key").write_text(made.keys["office-key" if self.kind == "six" else f"{name}-key"] + "\n")
            pin(made.pid("gateway"), OTHER_CPU)
        return self._stack

    def _beside(self, name: str) -> Peer | Nginx | None:
        if name in self.missing:
            return None
        if name not in self._peers:
            try:
                made: Peer | Nginx = Nginx(SERVER_CPU) if name == "nginx" else Peer(name, self.server, SERVER_CPU)
                self._opened.enter_context(made)
                self._peers[name] = made
            except (ServerMissing, RuntimeError) as error:
                self.miss(name, str(error))
                return None
            pin(self.server.pid, OTHER_CPU)
        return self._peers[name]

    def target(self, name: str, load: Load) -> Target | None:
        """A server for a load, started if it doesn't run; None when it can't be had."""
        ask = ASKS[load.query]
        if name == OURS:
            stack = self.stack
            watched = {"server": stack.pid("dataplane"), "database": self.database.pid, "python": stack.pid("gateway")}
            key = self.folder / ("masked.key" if load.query == "masked" else "app.key")
            return Target(OURS, stack.url, ask, watched, {"api-keys": key, "run-ids": self.ids, "run-ids-append": True})
        peer = self._beside(name)
        if peer is None:
            return None
        watched = {"server": peer.pid, "database": self.server.pid}
        if isinstance(peer, Nginx):
            return Target(name, peer.url, replace(ASKS["user"], contains='"tier"'), watched)
        return Target(
            name, peer.url, replace(ask, path=KINDS[name].path) if ask.body is None else ask, watched,
            {"header": [f"{key}: {value}" for key, value in peer.headers.items()]} if peer.headers else {},
        )  # fmt: skip

    def run(self, target: Target, load: Load, seconds: float, seed: int, rate: float | None = None) -> dict[str, Any]:
        """One load on one server; the generator's report."""
        return generator.run(
            target.url, target.options(load, KEYS.get(load.query, self.rows), seconds, seed, rate), target.watched, OTHER_CPU
        )

    def recorded(self) -> dict[str, int]:
        """Ends Tailrace in order and compares the ids that callers hold with the store's."""
        stack = self.stack
        stack.stop()
        self._stack = None
        if not self.ids.exists():
            return {"answered": 0, "missing": 0, "doubled": 0}
        with self.ids.open() as lines:
            answered = ids.of_lines(lines)
        stored = ids.of_store(stack.data / "runs.sqlite")
        self.ids.unlink()
        return {"answered": len(answered), "missing": answered.without(stored), "doubled": answered.doubled + stored.doubled}


@contextlib.contextmanager
def opened(rows: int, folder: Path, kind: str = "postgres") -> Iterator[Session]:
    """A session that is ended whatever happens."""
    with Session(rows, folder, kind) as session:
        yield session
