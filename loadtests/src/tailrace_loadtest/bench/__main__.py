"""`python -m tailrace_loadtest.bench`: the figures of docs/performance.md, as a table, JSON and a graph.

Ratios within one session are what counts on a shared machine; absolutes are notes. --only picks parts; --small is a quick look.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tailrace_loadtest import cases
from tailrace_loadtest.bench import alone, chart, flat, scale
from tailrace_loadtest.generator import ROOT
from tailrace_loadtest.servers import users
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace

PARTS = ("flat", "alone", "memory", "scale")
BARS = {"calls_per_data_plane_cpu_s": 80_000, "added_p50_ms": 0.15, "data_plane_rss_mb": 25}
"""What must hold: at least, at most, at most."""


def say(text: str) -> None:
    """One line on stdout."""
    print(text, flush=True)  # noqa: T201


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.machine(),
    )
    return {"commit": commit, "cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    names = list(rows[0])
    shown = [
        [("" if row[name] is None else f"{row[name]:,}" if isinstance(row[name], int | float) else str(row[name])) for name in names]
        for row in rows
    ]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *("| " + " | ".join(row) + " |" for row in shown)])


def run(options: argparse.Namespace) -> int:
    """Measures the chosen parts; exit code 1 when a bar is missed."""
    rows = 100_000 if options.small else 1_000_000
    results: dict[str, Any] = {"machine": machine(), "rows": rows}
    # Rows come from memory: figures are about the servers, not the disk.
    with (
        Postgres({"shared_buffers": "512MB", "max_connections": "200"}) as server,
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir="/var/tmp") as home,
    ):
        folder = Path(home)
        url = users.load(server, rows)
        if "flat" in options.only or "alone" in options.only:
            with Tailrace([cases.path("users.yaml")], {"users-db": url}, threads=1, taskset=str(flat.SERVER_CPU)) as stack:
                keys = folder / "keys"
                keys.write_text(stack.keys["app-key"] + "\n")
                if "alone" in options.only:
                    results["alone"] = alone.measure(stack, server, keys, rows, options.rounds)
                    say(json.dumps(results["alone"]))
                if "flat" in options.only:
                    results["flat"] = flat.measure(stack, server, keys, rows, options.seconds, options.rounds, (1, 16))
                    say(table(results["flat"]))
        if "memory" in options.only:
            results["memory"] = scale.memory(folder, url, *((100, 1000) if options.small else (1000, 10_000)))
            say(json.dumps(results["memory"]))
        if "scale" in options.only:
            size = (100, 5, 1000) if options.small else (1000, 50, 10_000)
            results["scale"] = scale.measure(folder, url, rows, *size, rate=options.rate, seconds=max(5, int(options.seconds * 5)))
            say(json.dumps(results["scale"], indent=1))
    missed = verdicts(results, options.small)
    for line in missed:
        say(f"MISSED: {line}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
        if "flat" in results:
            graph = [(f"{each['server']}, {each['depth']} a read", float(each["calls_per_server_cpu_s"])) for each in results["flat"]]
            (options.output / "bench.svg").write_text(chart.bars("Calls per CPU-second of the server", "", graph))
        say(f"written to {options.output}")
    return int(bool(missed))


def verdicts(results: dict[str, Any], small: bool) -> list[str]:
    """Bars that are missed."""
    missed = []
    for each in results.get("flat", []):
        if each["server"] == "tailrace":
            if each["depth"] == 1 and each["calls_per_server_cpu_s"] < BARS["calls_per_data_plane_cpu_s"]:
                missed.append(
                    f"{each['calls_per_server_cpu_s']} calls per data-plane CPU-second, wanted {BARS['calls_per_data_plane_cpu_s']}"
                )
            if each["wrong"] or each["without_run_id"]:
                missed.append(f"{each['wrong']} wrong answers, {each['without_run_id']} without a run")
    if "alone" in results and results["alone"]["added_p50_ms"] > BARS["added_p50_ms"]:
        missed.append(f"{results['alone']['added_p50_ms']} ms added to a call alone, at most {BARS['added_p50_ms']}")
    if "memory" in results and not small and results["memory"]["data_plane_rss_mb"] > BARS["data_plane_rss_mb"]:
        missed.append(
            f"{results['memory']['data_plane_rss_mb']} MB with {results['memory']['keys']} keys, at most {BARS['data_plane_rss_mb']}"
        )
    return missed


def main() -> int:
    """Parses the command line."""
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.bench", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--seconds", type=float, default=6, help="of one load")
    cli.add_argument("--rate", type=float, default=5000, help="of the open loop under change, calls per second")
    cli.add_argument("--small", action="store_true", help="a small table and a small API")
    cli.add_argument("--output", type=Path, help="folder for bench.json and bench.svg")
    return run(cli.parse_args())


if __name__ == "__main__":
    sys.exit(main())
