"""Bars that are no plain load: a forwarded call, poisoned batches, every run recorded, memory. IO: runs loads and servers."""

import contextlib
import http.client
import threading
import time
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench import alone as one_caller
from tailrace_loadtest.bench import scale
from tailrace_loadtest.bench.bars import right
from tailrace_loadtest.bench.case import Case, Load
from tailrace_loadtest.bench.rounds import play
from tailrace_loadtest.bench.session import OURS, Session
from tailrace_loadtest.bench.verdict import Range, Verdict, at_least, at_most, ratios
from tailrace_loadtest.servers.tailrace import Tailrace

BULK, BULK_LEAST = 16, 0.5
POISON_S = 0.05
PATIENCE_S = 60.0


def forward(case: Case, session: Session, rounds: int, seconds: float) -> Verdict:
    """p50 of one caller's forwarded call, less the same call to Python without a data plane in front; rounds interleaved."""
    stack = session.stack
    options: dict[str, object] = {
        "path": "/catalog", "contains": "user", "api-keys": session.folder / "app.key", "connections": 1,
        "duration": f"{int(seconds * 1000) + 300}ms", "warm-up": "300ms",
    }  # fmt: skip
    pairs = []
    with Tailrace([session.specs()], {"users-db": session.url}, data_plane=False, identity=stack.identity) as python:
        for _ in range(rounds):
            with_plane, without = (generator.run(each.url, options) for each in (stack, python))
            if with_plane["wrong"] + with_plane["other_status"] + without["wrong"] + without["other_status"]:
                return Verdict(
                    case.id, "wrong answers", f"≤ {case.goals['most']:g}", False, str(with_plane["wrong_samples"]), case.reference
                )
            pairs.append((with_plane["latency_ms"]["p50"], without["latency_ms"]["p50"]))
    added = Range.of(one - two for one, two in pairs)
    details = {"forwarded_ms": Range.of(one for one, _ in pairs).to_json(), "python_ms": Range.of(two for _, two in pairs).to_json()}
    return at_most(case.id, added, case.goals["most"], "ms p50 added", reference=case.reference, details=details)


def poison(case: Case, session: Session, rounds: int, seconds: float) -> Verdict:
    """Good callers flat out while one caller divides by zero every 50 ms: how many good calls that spoils."""
    spoiled = good = poisoned = 0
    stack, load = session.stack, Load("user_divided")
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    statuses: dict[int, int] = {}
    for number in range(rounds):
        over = threading.Event()

        def poisoner(over: threading.Event = over) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=20)
            with contextlib.closing(connection):
                while not over.wait(POISON_S):
                    connection.request("GET", "/q/user_divided?path=/users/7&by=0", headers={"X-API-Key": stack.keys["app-key"]})
                    answer = connection.getresponse()
                    answer.read()
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1

        thread = threading.Thread(target=poisoner)
        thread.start()
        try:
            report = session.run(target, load, seconds, number + 1)
        finally:
            over.set()
            thread.join(PATIENCE_S)
        spoiled += report["wrong"] + report["other_status"] + sum(report["errors"].values())
        good += report["right"]
    poisoned = sum(statuses.values())
    note = "" if poisoned and 200 not in statuses else f"the poisoned caller got {statuses}: the run says nothing"
    details = {"good": good, "poisoned": {str(status): count for status, count in statuses.items()}}
    return Verdict(
        case.id, f"{spoiled} of {good:,} good calls spoiled by {poisoned}", "0", spoiled == 0 and not note, note, case.reference, details
    )


def recorded(case: Case, session: Session, seconds: float) -> Verdict:
    """Every id that a caller of this session holds is in the store, with a kill -9 under flat-out load at the end."""
    stack, load = session.stack, Load("user")
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    options = target.options(load, session.rows, seconds + 1, 99, None) | {"tolerate": [502, 503]}
    running = generator.start(target.url, options, {}, None)
    time.sleep(0.5 + seconds / 2)
    stack.kill("dataplane")
    generator.finish(running)
    stack.wait_ready()
    found = session.recorded()
    answered, missing, doubled = found["answered"], found["missing"], found["doubled"]
    percent = 100 * (answered - missing) / answered if answered else 0.0
    value = f"{percent:.4g} % of {answered:,} answers ({missing} missing, {doubled} doubled)"
    whole = answered > 0 and missing == 0 and doubled == 0
    to_goal = at_least(case.id, Range.of([percent]), 100, "%").to_goal
    return Verdict(case.id, value, "100 %", whole, "", case.reference, found, to_goal=to_goal)


def memory(case: Case, session: Session, small: bool) -> Verdict:
    """RSS of the data plane with many queries and keys."""
    found = scale.memory(session.folder, session.url, *((100, 1000) if small else (1000, 10_000)))
    value, most = float(found["data_plane_rss_mb"]), case.goals["most"]
    note = "a small API" if small else ""
    text = f"{value:g} MB with {found['keys']:,} keys, {found['queries']:,} queries"
    to_goal = at_most(case.id, Range.of([value]), most, "MB").to_goal
    return Verdict(case.id, text, f"≤ {most:g}", value <= most and not small, note, case.reference, found, to_goal=to_goal)


def alone(case: Case, session: Session, rounds: int) -> Verdict:
    """One caller's p50 less that of the database's own client library."""
    found: dict[str, Any] = one_caller.measure(session.stack, session.server, session.folder / "app.key", session.rows, rounds)
    added = Range(found["added_low_ms"], found["added_p50_ms"], found["added_high_ms"])
    return at_most(case.id, added, case.goals["most"], "ms p50 added", reference=case.reference, details=found)


def bulk(session: Session, rounds: int, seconds: float) -> Verdict:
    """16 calls in one body beside 16 pipelined ones: neither a bar nor published, but callers choose between them."""
    flat, deep = Load("user", "bulk", BULK), Load("user", depth=BULK)
    played = play(session, {flat: [OURS], deep: [OURS]}, rounds, seconds, lambda _: None)
    ratio = ratios(played.per_cpu(flat), played.per_cpu(deep))
    faults = "; ".join(text for load in (flat, deep) for text in (right(played, load),) if text)
    value = f"{Range.of(played.per_cpu(flat))} calls per CPU-second, {ratio} × pipelined"
    return Verdict("bulk", value, "≥ 0.5 × pipelined", ratio.median >= BULK_LEAST and not faults, faults, details=ratio.to_json())
