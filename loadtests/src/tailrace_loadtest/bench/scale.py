"""A large API: 1,000 queries × 50 roles × 10,000 keys. How long it takes to be served, what it weighs, what a change does. IO: runs it."""

import contextlib
import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.process import cpu_s, status_mb
from tailrace_loadtest.servers.tailrace import Tailrace

NAMESPACE = "load"
PATIENCE_S = 600.0
SETTLE_S = 2.0
"""Between two changes, so that what one leaves to be done is not counted with the next."""
MASKS: tuple[list[dict[str, str]], ...] = (
    [],
    [{"column": "users.name", "with": "partial"}],
    [{"column": "users.name", "with": "hash"}, {"column": "users.tier", "with": "redact"}],
    [{"column": "users.tier", "with": "null"}],
)


def api(queries: int, roles: int, edition: int = 0) -> dict[str, Any]:
    """The QueryAPI: look-ups, lists and pages over `users`; `edition` changes the text of one query."""

    path = {"path": {"type": "string", "required": True, "maxLength": 100}}
    tier = {"tier": {"type": "string", "required": True}, "least": {"type": "integer", "default": 0}}

    def query(number: int) -> dict[str, Any]:
        base = {"name": f"user_{number:04}", "connection": "users"}
        if number % 4 == 2:
            sql = f"SELECT id, name, tier FROM users WHERE id > {number} ORDER BY id"  # noqa: S608
            return base | {"sql": sql, "page": {"key": ["id"]}}
        if number % 4 == 3:
            sql = f"SELECT count(*) AS n, max(id) AS highest FROM users WHERE id <= :least AND path <> '{number}' AND id > length(:tier)"  # noqa: S608
            return base | {"sql": sql, "params": tier, "returns": "one"}
        extra = f" AND id > -{edition + 1}" if number == 1 else ""
        sql = f"SELECT path, id, name, tier FROM users WHERE path = :path AND id <> {-number}{extra}"  # noqa: S608
        return base | {"sql": sql, "params": path, "returns": "one"}

    made = [query(number) for number in range(queries)]
    wanted = [
        {"name": f"role-{number:02}", "queries": ["*"], "tables": {"allow": ["users"]}, "masks": MASKS[number % len(MASKS)]}
        for number in range(roles)
    ]
    spec = {
        "connections": [{"name": "users", "urlFrom": {"secretKeyRef": {"name": "users-db", "key": "url"}}, "maxConnections": 16}],
        "queries": made, "roles": wanted, "runStoreRef": {"name": "runs"},
    }  # fmt: skip
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "large", "namespace": NAMESPACE}, "spec": spec}


def key(number: int, roles: int, suspended: bool = False) -> dict[str, Any]:
    """One ApiKey."""
    spec = {"queryApiRef": {"name": "large"}, "role": f"role-{number % roles:02}", "secretName": f"key-{number:05}", "suspended": suspended}
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "ApiKey",
        "metadata": {"name": f"key-{number:05}", "namespace": NAMESPACE},
        "spec": spec,
    }


STORE = {
    "apiVersion": "tailrace.dev/v1alpha1",
    "kind": "RunStore",
    "metadata": {"name": "runs", "namespace": NAMESPACE},
    "spec": {"embedded": {}},
}


def write(path: Path, documents: list[dict[str, Any]]) -> None:
    """YAML (each document as JSON), put in place by rename."""
    temporary = path.with_suffix(".new")
    temporary.write_text("\n---\n".join(json.dumps(each) for each in documents) + "\n")
    temporary.rename(path)


class _Socket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def version(stack: Tailrace) -> int:
    """Version of the snapshot that the data plane serves."""
    connection = _Socket(stack.data / "run" / "dataplane.sock")
    with contextlib.closing(connection):
        connection.request("GET", "/plans")
        return int(json.loads(connection.getresponse().read())["version"])


def until_served(stack: Tailrace, old: int) -> float:
    """Seconds until another version than `old` is served; RuntimeError after the patience."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if version(stack) != old:
            return time.monotonic() - began
        time.sleep(0.02)
    raise RuntimeError("the change was never served")


def measure(folder: Path, url: str, rows: int, queries: int, roles: int, keys: int, rate: float, seconds: int) -> dict[str, Any]:
    """Everything about one large API."""
    specs, key_file = folder / "api.yaml", folder / "keys.yaml"
    write(specs, [api(queries, roles), STORE])
    write(key_file, [key(number, roles) for number in range(keys)])
    found: dict[str, Any] = {
        "queries": queries,
        "roles": roles,
        "keys": keys,
        "yaml_mb": round((specs.stat().st_size + key_file.stat().st_size) / 1e6, 1),
    }
    stack = Tailrace([specs, key_file], {"users-db": url}, ready_s=PATIENCE_S)
    began = time.monotonic()
    with stack:
        found["start_to_first_answer_s"] = round(time.monotonic() - began, 2)
        found["data_plane_rss_mb"] = status_mb(stack.pid("dataplane"), "VmRSS")
        found["data_plane_peak_mb"] = status_mb(stack.pid("dataplane"), "VmHWM")
        found["gateway_rss_mb"] = status_mb(stack.pid("gateway"), "VmRSS")
        old, spent_s = version(stack), cpu_s(stack.pid("gateway"))
        write(specs, [api(queries, roles, 1), STORE])
        found["changed_query_served_s"] = round(until_served(stack, old), 2)
        found["changed_query_gateway_cpu_s"] = round(cpu_s(stack.pid("gateway")) - spent_s, 2)
        time.sleep(SETTLE_S)
        old, spent_s = version(stack), cpu_s(stack.pid("gateway"))
        write(key_file, [key(number, roles, suspended=number == keys - 1) for number in range(keys)])
        found["suspended_key_refused_s"] = round(until_served(stack, old), 2)
        found["suspended_key_gateway_cpu_s"] = round(cpu_s(stack.pid("gateway")) - spent_s, 2)
        found["data_plane_rss_after_changes_mb"] = status_mb(stack.pid("dataplane"), "VmRSS")
        texts = folder / "texts"
        texts.write_text("\n".join(stack.keys[f"key-{number:05}"] for number in range(min(keys - 1, 1000))) + "\n")
        found["load"] = under_change(stack, specs, texts, rows, queries, roles, rate, seconds)
        found["data_plane_rss_after_load_mb"] = status_mb(stack.pid("dataplane"), "VmRSS")
        found["gateway_peak_mb"] = status_mb(stack.pid("gateway"), "VmHWM")
    return found


def memory(folder: Path, url: str, queries: int, keys: int) -> dict[str, Any]:
    """RSS of the data plane with many queries and keys and few roles, after its first snapshot and an answer."""
    specs, key_file, roles = folder / "api.yaml", folder / "keys.yaml", 3
    write(specs, [api(queries, roles), STORE])
    write(key_file, [key(number, roles) for number in range(keys)])
    with Tailrace([specs, key_file], {"users-db": url}, ready_s=PATIENCE_S) as stack:
        return {"queries": queries, "roles": roles, "keys": keys, "data_plane_rss_mb": status_mb(stack.pid("dataplane"), "VmRSS")}


def under_change(
    stack: Tailrace, specs: Path, texts: Path, rows: int, queries: int, roles: int, rate: float, seconds: int
) -> dict[str, Any]:
    """The same open loop twice: quiet, and while the API changes again and again."""
    options: dict[str, object] = {
        "path": "/q/user_0000?path=/users/{}", "keys": f"1..{rows}", "contains": '"path":"/users/{}"', "api-keys": texts, "rate": rate, "arrivals": "poisson",
        "connections": 64, "duration": f"{seconds}s", "warm-up": "1s",
    }  # fmt: skip
    quiet = generator.run(stack.url, options)
    load = generator.start(stack.url, options)
    changes, edition = 0, 2
    while load.poll() is None:
        old = version(stack)
        write(specs, [api(queries, roles, edition), STORE])
        edition += 1
        while load.poll() is None and version(stack) == old:
            time.sleep(0.05)
        changes += version(stack) != old
    changing = generator.finish(load)
    keep = ("offered_rate", "achieved_rate", "delivered", "void", "wrong", "other_status", "errors", "latency_ms", "behind_ms")
    return {"changes_served": changes, "quiet": {name: quiet[name] for name in keep}, "changing": {name: changing[name] for name in keep}}
