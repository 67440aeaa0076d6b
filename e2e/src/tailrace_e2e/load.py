"""A constant load on a Service from the node's own network, and what became of each of its calls. IO: the generator's process, a folder, psql.

A load is an open loop over keep-alive connections: calls are due at fixed moments whatever happens, none is tried again, and one that
was sent and got no right answer has failed. Each answer's run id is kept by the generator, and later sought in the run store's own table.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace_contract.run import parse_run_id
from tailrace_loadtest import generator
from tailrace_loadtest.ids import RunIds, of_lines

from tailrace_e2e.kubectl import Kubectl, eventually
from tailrace_e2e.testbed import Bed

RATE = 320.0
"""Calls a second; what is asked for is 300 at least."""
CONNECTIONS = 64
CUSTOMERS = 1_000
LONG = os.environ.get("LONG", "") not in ("", "0")
"""`make e2e LONG=1`: every change with two pods and with one. Else a short form, for CI."""

LONGEST = "40m"
PATIENCE = "30s"
"""After which a call without an answer has failed: longer than any time limit of the product."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one load came to."""

    report: dict[str, Any]

    @property
    def calls(self) -> int:
        """How many were due."""
        return int(self.report["offered"])

    @property
    def failed(self) -> int:
        """How many were sent and had no answer, another status than 200, or a wrong body."""
        lost = sum(count for kind, count in self.report["errors"].items() if kind != "refused")
        return int(self.report["wrong"] + self.report["other_status"] + lost)

    @property
    def unsent(self) -> int:
        """How many were due when the load ended and not sent yet, because the generator itself was behind."""
        return self.calls - self.failed - int(self.report["right"])

    @property
    def refused(self) -> int:
        """Connections that could not be made."""
        return int(self.report["errors"]["refused"])

    def __str__(self) -> str:
        times = self.report["latency_ms"] or {"p99": "-", "max": "-"}
        text = f"{self.calls} calls at {self.report['achieved_rate']}/s, failed {self.failed}, unsent at the end {self.unsent}, refused connections {self.refused}, "
        text += f"reopened {self.report['reopened']}, p99 {times['p99']} ms, slowest {times['max']} ms"
        if self.failed or self.refused:
            text += f"; {self.report['errors']}, {self.report['statuses']}, {self.report['wrong_samples'][:3]}"
        return text


@dataclass(slots=True)
class Load:
    """A load that is under way."""

    process: subprocess.Popen[str]
    until: Path

    def end(self) -> Outcome:
        """Ends it and waits for the answers that are still due."""
        self.until.touch()
        return Outcome(generator.finish(self.process))

    def is_under_way(self) -> bool:
        """Whether calls are still made."""
        return self.process.poll() is None


@dataclass(slots=True)
class Loader:
    """Loads one Service and keeps the ids of all answers that anybody had from it."""

    bed: Bed
    folder: Path
    address: str
    """ClusterIP of the Service."""
    probed: list[str] = field(default_factory=list)
    """Ids of single calls."""
    failed: int = 0
    """Calls that failed so far: as many runs may be stored whose answer nobody had."""
    _count: int = 0

    def start(self, text: str, rate: float = RATE) -> Load:
        """Begins to load with a key, and returns once the first calls are made."""
        self._count += 1
        keys, until, plan = (self.folder / f"{self._count}.{what}" for what in ("keys", "until", "plan"))
        keys.touch(mode=0o600)
        keys.write_text(text + "\n")
        request = {"name": "customer", "path": "/q/customer_by_id?id={}", "keys": f"1..{CUSTOMERS}", "expect": {"contains": '"id":{},'}}
        plan.write_text(json.dumps({"requests": [request]}))
        options: dict[str, object] = {
            "allow-remote": True, "rate": rate, "connections": CONNECTIONS, "duration": LONGEST, "until": until, "plan": plan,
            "api-keys": keys, "timeout": PATIENCE, "grace": PATIENCE, "run-ids": self.folder / f"{self._count}.ids", "seed": self._count,
        }  # fmt: skip
        words = generator.arguments(f"http://{self.address}", options)
        process = subprocess.Popen([str(self.bed.program), "exec", "--", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ids = self.folder / f"{self._count}.ids"
        eventually("the load is under way", lambda: process.poll() is not None or (ids.exists() and ids.stat().st_size > 0), within_s=60)
        return Load(process, until)

    @contextmanager
    def loading(self, text: str, rate: float = RATE) -> Iterator[list[Outcome]]:
        """A load for as long as the block lasts; behind it the list holds its outcome."""
        outcomes: list[Outcome] = []
        load = self.start(text, rate)
        try:
            yield outcomes
            assert load.is_under_way(), "the load ended before the change did"
        finally:
            outcomes.append(load.end())
            self.failed += outcomes[-1].failed

    def call(self, text: str, number: int = 1) -> dict[str, Any]:
        """The row of one single call; its run id is remembered."""
        url = f"http://{self.address}/q/customer_by_id?id={number}"
        told = self.bed.node("curl", "-sS", "--max-time", "60", "-i", "-H", f"X-API-Key: {text}", url, timeout_s=90)
        head, _, body = told.replace("\r\n", "\n").partition("\n\n")
        headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
        self.probed.append(headers["x-run-id"])
        assert " 200" in head.splitlines()[0], told
        row: dict[str, Any] = json.loads(body)
        return row

    def answered(self) -> RunIds:
        """Ids of all answers so far."""
        found = of_lines(self.probed)
        for path in sorted(self.folder.glob("*.ids")):
            with path.open() as lines:
                for line in lines:
                    found.add(*parse_run_id(line.rstrip("\n")))
        return found


@dataclass(frozen=True, slots=True)
class Ledger:
    """The run store's table compared with the answers."""

    answered: int
    stored: int
    missing: int
    """Answered and not stored."""
    doubled: int
    """Ids that were given out twice, or stored twice."""
    beyond: int
    """Stored and never answered: what was done twice under another id would be here."""

    def __str__(self) -> str:
        return f"answered {self.answered}, stored {self.stored}, missing {self.missing}, doubled {self.doubled}, beyond {self.beyond}"


def stored(space: Kubectl) -> RunIds:
    """Every run in the shop's run store, read by its database's own administrator."""
    found = RunIds()
    words = ["exec", "deployment/shop-postgres", "--", "psql", "-h", "/tmp", "-U", "admin", "-d", "runs", "-Atc"]  # noqa: S108 (in its pod)
    for line in space(*words, "SELECT epoch, seq FROM tailrace.runs").split():
        epoch, _, sequence = line.partition("|")
        found.add(int(epoch) % 2**64, int(sequence))
    return found


def ledger(loader: Loader, space: Kubectl, within_s: float = 90) -> Ledger:
    """The comparison, once nothing is missing any more or the time is up: runs are shipped a moment after their answers."""
    end = time.monotonic() + within_s
    answered = loader.answered()
    while True:
        kept = stored(space)
        missing = answered.without(kept)
        if not missing or time.monotonic() > end:
            doubled = answered.doubled + kept.doubled
            return Ledger(len(answered), len(kept), missing, doubled, kept.without(answered))
        time.sleep(1)
