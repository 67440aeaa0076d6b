"""`python -m tailrace_loadtest.revocation --keys 20`: rights taken away, and tables and views changed under a mask, while the data plane is loaded flat out.

One generator loads the data plane through a masked role and checks every answer. Meanwhile keys are suspended one after the other, each called
without a pause by a prober; then columns come and go under a `SELECT *`, and a view is redefined so that it shows a masked column. The lines are
`revoked N: p50 … p99 …, admitted after acknowledgement A` (from the edit to the last answer that was 200; A: calls begun after the data plane
named the new version that were 200 all the same), `altered N: unmasked U` and `replaced a view: …`. Exit 1 when A or U is above 0, when the load
saw a wrong answer, or when the view's new definition is not masked in the end. Times are told, never judged.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.scale import STORE, version, write
from tailrace_loadtest.servers import users
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace

ROWS = 10_000
LOAD_S = 15
PATIENCE_S = 60.0
NAMESPACE = "load"
TOLERATED = (502, 503)
"""While a plan is older than its table: a problem instead of an answer."""


def api() -> dict[str, Any]:
    """Look-ups of a table and of a view over it; the role masks `users.name`."""
    params = {"path": {"type": "string", "required": True, "maxLength": 100}}
    queries = {
        "everything": "SELECT * FROM users WHERE path = :path",
        "label": "SELECT path, label FROM labels WHERE path = :path",
    }
    spec = {
        "connections": [{"name": "users", "urlFrom": {"secretKeyRef": {"name": "users-db", "key": "url"}}, "maxConnections": 16}],
        "queries": [
            {"name": name, "connection": "users", "sql": sql, "params": params, "returns": "one", "timeout": "1s"}
            for name, sql in queries.items()
        ],
        "roles": [{"name": "masked", "queries": ["*"], "masks": [{"column": "users.name", "with": "partial"}]}],
        "runStoreRef": {"name": "runs"},
    }
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "users", "namespace": NAMESPACE}, "spec": spec}


def key(name: str, *, suspended: bool) -> dict[str, Any]:
    """One ApiKey of the masked role."""
    spec = {"queryApiRef": {"name": "users"}, "role": "masked", "secretName": name, "suspended": suspended}
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


@dataclass(slots=True)
class Prober:
    """Calls with one key, one after the other on one connection. `calls`: when each began and ended (monotonic seconds), and its status."""

    stack: Tailrace
    text: str
    path: str = "/q/everything?path=/users/77"
    calls: list[tuple[float, float, int]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until `stopping`; a connection that breaks is opened again."""
        connection = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=30)
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                connection.request("GET", self.path, headers={"X-API-Key": self.text})
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            self.calls.append((began, time.monotonic(), answer.status))
            self.bodies.append(body)
        connection.close()

    def statuses(self) -> list[int]:
        """So far."""
        return [status for _, _, status in self.calls]


class Load:
    """The generator, flat out, started again when its time is up; `stop` gives what all of them saw."""

    def __init__(self, stack: Tailrace, folder: Path, connections: int) -> None:
        keys, values = folder / "steady", folder / "values"
        keys.write_text(stack.keys["steady"] + "\n")
        values.write_text("".join(f"{n}\t{n % 100:02}\n" for n in range(10, ROWS)))
        self._url = stack.url
        self._options: dict[str, object] = {
            "path": "/q/everything?path=/users/{0}", "keys": f"@{values}", "contains": '"id":{0},"name":"U***{1}"', "api-keys": keys,
            "connections": connections, "duration": f"{LOAD_S}s", "timeout": "30s", "tolerate": list(TOLERATED),
        }  # fmt: skip
        self.reports: list[dict[str, Any]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stopping.is_set():
            load = generator.start(self._url, self._options | {"seed": len(self.reports) + 1})
            while load.poll() is None and not self._stopping.wait(0.1):
                pass
            self.reports.append(generator.finish(load))

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def count(self, name: str) -> int:
        """Sum of a figure over all reports."""
        return sum(int(report[name]) for report in self.reports)


def say(text: str) -> None:
    """One line on stdout."""
    print(text, flush=True)  # noqa: T201


def until(check: Any, what: str) -> None:
    """Waits for it; RuntimeError after the patience."""
    end = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not happen within {PATIENCE_S} s")
        time.sleep(0.005)


def revoke(stack: Tailrace, path: Path, names: list[str], position: int) -> tuple[float, int]:
    """Suspends one key under its prober: seconds from the edit to the end of the last 200, and calls admitted after the acknowledgement."""
    prober = Prober(stack, stack.keys[names[position]])
    thread = threading.Thread(target=prober.run)
    thread.start()
    try:
        until(lambda: 200 in prober.statuses()[-20:], "a first answer")
        old = version(stack)
        edited = time.monotonic()
        write(path, [key(name, suspended=n <= position) for n, name in enumerate(names)] + [key("steady", suspended=False)])
        until(lambda: version(stack) != old, "the acknowledgement")
        acknowledged = time.monotonic()
        until(lambda: prober.calls[-1][2] == 401, "a refusal")
        seen = len(prober.calls)
        until(lambda: len(prober.calls) >= seen + 50, "fifty more calls")
    finally:
        prober.stopping.set()
        thread.join()
    admitted = [(began, ended) for began, ended, status in prober.calls if status == 200]
    return max(0.0, admitted[-1][1] - edited), sum(began > acknowledged for began, _ in admitted)


def alter(stack: Tailrace, server: Postgres, rounds: int) -> int:
    """Columns come and go under `SELECT *`; how many answers of a prober show a name as it is."""
    prober = Prober(stack, stack.keys["steady"])
    thread = threading.Thread(target=prober.run)
    thread.start()
    try:
        for n in range(rounds):
            column = f"added_{n // 2}"
            change = f"DROP COLUMN {column}" if n % 2 else f"ADD COLUMN {column} text DEFAULT 'x'"
            old = version(stack)
            server.psql(f"ALTER TABLE users {change}", users.DATABASE)
            until(lambda: version(stack) != old, "a new plan")  # noqa: B023
            seen = len(prober.calls)
            until(lambda: 200 in prober.statuses()[seen:], "an answer under the new plan")  # noqa: B023
    finally:
        prober.stopping.set()
        thread.join()
    return sum(b"User 77" in body for body in prober.bodies)


def replace_view(stack: Tailrace, server: Postgres) -> tuple[int, float, bool]:
    """A view shows the masked column from now on: answers with it as it is, the seconds until the last of them, whether it is masked in the end."""
    prober = Prober(stack, stack.keys["steady"], "/q/label?path=/users/77")
    thread = threading.Thread(target=prober.run)
    thread.start()
    try:
        until(lambda: 200 in prober.statuses()[-20:], "a first answer")
        old = version(stack)
        began = time.monotonic()
        server.psql("CREATE OR REPLACE VIEW labels AS SELECT path, name AS label FROM users", users.DATABASE)
        until(lambda: version(stack) != old, "a new plan")
        seen = len(prober.calls)
        until(lambda: len(prober.calls) >= seen + 50, "fifty more calls")
    finally:
        prober.stopping.set()
        thread.join()
    plain = [n for n, body in enumerate(prober.bodies) if b"User 77" in body]
    masked = b'"label":"U***77"' in prober.bodies[-1]
    return len(plain), prober.calls[plain[-1]][1] - began if plain else 0.0, masked


def run(keys: int, rounds: int, connections: int) -> int:
    """The whole gate; returns the exit code."""
    names = [f"key-{n:03}" for n in range(keys)]
    with Postgres({"max_connections": "200"}) as server, tempfile.TemporaryDirectory(prefix="tailrace-revocation-", dir="/var/tmp") as home:
        folder = Path(home)
        url = users.load(server, ROWS)
        server.psql("CREATE VIEW labels AS SELECT path, tier AS label FROM users", users.DATABASE)
        specs, key_file = folder / "api.yaml", folder / "keys.yaml"
        write(specs, [api(), STORE])
        write(key_file, [key(name, suspended=False) for name in [*names, "steady"]])
        with Tailrace([specs, key_file], {"users-db": url}) as stack, Load(stack, folder, connections) as load:
            revoked = [revoke(stack, key_file, names, n) for n in range(keys)]
            unmasked = alter(stack, server, rounds)
            shown, lasted_s, masked = replace_view(stack, server)
    times = sorted(seconds * 1000 for seconds, _ in revoked)
    late = sum(admitted for _, admitted in revoked)
    p99 = times[max(0, -(-len(times) * 99 // 100) - 1)]
    wrong = load.count("wrong") + load.count("other_status")
    say(f"load: {load.count('right')} right answers, {wrong} wrong, {json.dumps(load.reports[-1]['statuses'])}")
    say(f"revoked {keys}: p50 {statistics.median(times):.0f} ms p99 {p99:.0f} ms, admitted after acknowledgement {late}")
    say(f"altered {rounds}: unmasked {unmasked}")
    say(f"replaced a view: {shown} answers under the old plan within {lasted_s:.1f} s, then masked" + ("" if masked else ": NEVER"))
    return int(bool(late or unmasked or wrong or not masked))


def main() -> int:
    """Parses the command line."""
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.revocation", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--keys", type=int, default=20)
    cli.add_argument("--rounds", type=int, default=4, help="columns that come and go")
    cli.add_argument("--connections", type=int, default=64)
    options = cli.parse_args()
    return run(options.keys, options.rounds, options.connections)


if __name__ == "__main__":
    sys.exit(main())
