"""One caller: p50 through the data plane beside the same prepared statement by libpq (pgbench), interleaved. IO: runs both."""

import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace
from tailrace_loadtest.servers.users import DATABASE

SCRIPT = "\\set id random(1, {rows})\nSELECT path, id, name, tier FROM users WHERE path = '/users/' || :id::text;\n"


def by_libpq(server: Postgres, rows: int, seconds: int) -> float:
    """p50 in ms of a prepared look-up over one TCP connection, as pgbench logs it."""
    with tempfile.TemporaryDirectory(prefix="tailrace-pgbench-", dir="/var/tmp") as folder:
        script = Path(folder) / "look-up.sql"
        script.write_text(SCRIPT.format(rows=rows))
        command = [
            str(server.bin / "pgbench"),
            "-n",
            "-M",
            "prepared",
            "-c",
            "1",
            "-T",
            str(seconds),
            "-f",
            str(script),
            "-l",
            "--log-prefix",
            f"{folder}/log",
        ]
        subprocess.run([*command, server.url(DATABASE)], check=True, capture_output=True, cwd=folder)
        times = [int(line.split()[2]) for log in Path(folder).glob("log.*") for line in log.read_text().splitlines()]
    return statistics.median(times) / 1000


def by_tailrace(stack: Tailrace, keys: Path, rows: int, seconds: int) -> float:
    """p50 in ms of one caller on one connection."""
    options = {
        "path": "/q/user?path=/users/{}",
        "keys": f"1..{rows}",
        "contains": '"path":"/users/{}"',
        "api-keys": keys,
        "connections": 1,
        "duration": f"{seconds}s",
        "warm-up": "300ms",
    }
    report = generator.run(stack.url, options)
    return float(report["latency_ms"]["p50"])


def measure(stack: Tailrace, server: Postgres, keys: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, and the median of their differences."""
    pairs = [(by_tailrace(stack, keys, rows, 2), by_libpq(server, rows, 2)) for _ in range(rounds)]
    return {
        "tailrace_p50_ms": round(statistics.median(one for one, _ in pairs), 4),
        "libpq_p50_ms": round(statistics.median(two for _, two in pairs), 4),
        "added_low_ms": round(min(one - two for one, two in pairs), 4),
        "added_p50_ms": round(statistics.median(one - two for one, two in pairs), 4),
        "added_high_ms": round(max(one - two for one, two in pairs), 4),
        "rounds": rounds,
    }
