"""Flat out: calls per CPU-second of the data plane, in rounds with a static nginx and with deeper pipelines. IO: starts servers, loads them."""

import contextlib
import os
import statistics
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.process import status_mb
from tailrace_loadtest.servers.nginx import Nginx
from tailrace_loadtest.servers.postgres import Postgres, ServerMissing
from tailrace_loadtest.servers.tailrace import Tailrace

SERVER_CPU, OTHER_CPU = 0, 1
"""The server under load has a core of its own; generator and database share the other."""


def pinned(server: Postgres) -> int:
    """Keeps the database off the server's core; returns its pid. Connections that are there already are moved too."""
    pid = server.pid
    for each in (pid, *children(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(each, {OTHER_CPU})
    return pid


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def options(keys: Path, rows: int, seconds: float, depth: int, seed: int) -> dict[str, object]:
    """One load: every answer is checked for its key."""
    return {
        "path": "/q/user?path=/users/{}", "keys": f"1..{rows}", "contains": '"path":"/users/{}"', "api-keys": keys, "connections": 64, "depth": depth,
        "duration": f"{int(seconds * 1000) + 500}ms", "warm-up": "500ms", "seed": seed,
    }  # fmt: skip


def measure(
    stack: Tailrace, server: Postgres, keys: Path, rows: int, seconds: float, rounds: int, depths: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Interleaved rounds; medians by server and depth."""
    database = pinned(server)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as opened:
        try:
            nginx = opened.enter_context(Nginx(SERVER_CPU))
        except ServerMissing:
            nginx = None
        for number in range(rounds):
            for depth in depths:
                wanted = options(keys, rows, seconds, depth, number + 1)
                plane = generator.run(
                    stack.url, wanted, {"server": stack.pid("dataplane"), "database": database, "python": stack.pid("gateway")}, OTHER_CPU
                )
                found.setdefault(("tailrace", depth), []).append(plane)
                if nginx is not None:
                    static = wanted | {"contains": '"tier"'}
                    found.setdefault(("nginx static", depth), []).append(generator.run(nginx.url, static, {"server": nginx.pid}, OTHER_CPU))
    return [row(name, depth, reports, stack) for (name, depth), reports in found.items()]


def row(name: str, depth: int, reports: list[dict[str, Any]], stack: Tailrace) -> dict[str, Any]:
    """Medians of the rounds of one server."""

    def median(*path: str) -> float:
        values = []
        for report in reports:
            value: Any = report
            for part in path:
                value = value[part]
            values.append(float(value or 0))
        return statistics.median(values)

    wrong = sum(report["wrong"] + report["other_status"] for report in reports)
    unrecorded = sum(report["without_run_id"] for report in reports) if name == "tailrace" else None
    return {
        "server": name, "depth": depth, "rounds": len(reports), "calls_per_s": round(median("achieved_rate")),
        "calls_per_server_cpu_s": round(median("cpu", "server", "calls_per_cpu_second")), "server_us": median("cpu", "server", "us_per_call"),
        "database_us": median("cpu", "database", "us_per_call") if name == "tailrace" else None, "generator_us": median("own_us_per_call"),
        "p50_ms": median("latency_ms", "p50"), "p99_ms": median("latency_ms", "p99"), "wrong": wrong, "without_run_id": unrecorded,
        "rss_mb": status_mb(stack.pid("dataplane"), "VmRSS") if name == "tailrace" else None,
    }  # fmt: skip
