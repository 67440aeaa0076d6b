"""A second opinion on one row: the same look-ups by oha, a load generator of other hands. IO: runs it, if it is installed.

It checks only statuses, and its own cost keeps it from the same rate; what both must agree on is what a call costs the data plane.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.session import OTHER_CPU, OURS, Session
from tailrace_loadtest.bench.stream import thread_cpu_s
from tailrace_loadtest.bench.verdict import Range, Verdict, ratios

HINT = "not installed: cargo install oha --locked"
AGREE = (0.5, 1.5)
"""Calls per CPU-second by oha over ours: fewer calls wait for a turn when the generator is slower, so that each costs more."""


def program() -> str | None:
    """Where it is."""
    return os.environ.get("TAILRACE_OHA") or shutil.which("oha") or shutil.which("oha", path=str(Path.home() / ".cargo" / "bin"))


def calls(report: dict[str, Any]) -> int:
    """Answers of 200 in its report; anything else is a RuntimeError."""
    found = {str(status): int(count) for status, count in report["statusCodeDistribution"].items()}
    if set(found) != {"200"}:
        raise RuntimeError(f"oha got {found}")
    return found["200"]


def oha(session: Session, rounds: int, seconds: float) -> Verdict:
    """64 connections, random keys, the cost of a call in the data plane beside our own generator's."""
    found = program()
    if found is None:
        return Verdict("oha", "not measured", "agrees", False, HINT)
    stack, load = session.stack, Load("user")
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    url = f"{stack.url}/q/user\\?path=/users/[1-9][0-9]{{0,{len(str(session.rows)) - 2}}}"
    words = [found, "--no-tui", "--output-format", "json", "-z", f"{max(1, round(seconds))}s", "-c", "64", "--rand-regex-url"]
    words += ["-H", f"X-API-Key: {stack.keys['app-key']}", url]
    theirs, ours = [], []
    for number in range(rounds):
        report = session.run(target, load, seconds, number + 1)
        ours.append(float(report["cpu"]["server"]["calls_per_cpu_second"]))
        pid, before = stack.pid("dataplane"), thread_cpu_s(stack.pid("dataplane"))
        done = subprocess.run(["taskset", "-c", str(OTHER_CPU), *words], capture_output=True, text=True, check=True)
        theirs.append(calls(json.loads(done.stdout)) / (thread_cpu_s(pid) - before))
    ratio = ratios(theirs, ours)
    value = f"{Range.of(theirs)} calls per CPU-second by oha, {ratio} × by ours"
    return Verdict("oha", value, f"{AGREE[0]:g}–{AGREE[1]:g} ×", AGREE[0] <= ratio.median <= AGREE[1], details=ratio.to_json())
