"""Twice as many calls as the server can answer: what it still answers, how it refuses the rest. IO: runs loads.

Two crowds: few clients that ask far ahead, whose connections can make them wait, and more clients than may wait that ask one by one, who are
refused. Met when of both ≥ 90 % of the peak is still answered right, every refusal is 503 with Retry-After, nothing else goes wrong, and p99
of what was answered stays below `P99_MS`, counted from when a call was sent.
The generator shares its core with the database and gives way to it (`NICE`), or the loss would be the database's: callers don't run there.
"""

import http.client
import threading
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.session import OTHER_CPU, OURS, Session
from tailrace_loadtest.bench.verdict import Range, Verdict, combined

CROWDS = {
    "ahead": (Load("user", depth=64), Load("user", depth=64, connections=512)),
    "one by one": (Load("user", connections=1024), Load("user", connections=10_000)),
}
"""Each: what is asked for the peak, in a closed loop, and by whom twice that is offered."""
NICE = 10
KEPT = 0.9
P99_MS = 1000.0
PROBE_S = 0.02


def _refusals(session: Session, over: threading.Event, seen: list[tuple[int, bool]]) -> None:
    """Asks beside the load: status and whether there was a Retry-After."""
    stack = session.stack
    while not over.wait(PROBE_S):
        connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=20)
        try:
            connection.request("GET", "/q/user?path=/users/7", headers={"X-API-Key": stack.keys["app-key"]})
            answer = connection.getresponse()
            answer.read()
            seen.append((answer.status, answer.getheader("Retry-After") is not None))
        except (OSError, http.client.HTTPException):
            seen.append((0, False))
        finally:
            connection.close()


def _crowd(session: Session, name: str, within: Load, load: Load, rounds: int, seconds: float) -> Verdict:
    """A closed loop that the server can queue for the peak, then twice that by the crowd."""
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    shares, p99, refused, unsent, other = [], [], 0, 0, 0
    seen: list[tuple[int, bool]] = []
    details: list[dict[str, Any]] = []
    for number in range(rounds):
        flat = session.run(target, within, seconds, number + 1)
        peak = flat["right"] / flat["seconds"]
        if not peak:
            return Verdict("overload", "no peak", f"≥ {KEPT:g}", False, "nothing was answered flat out")
        options = target.options(load, session.rows, seconds, number + 1, 2 * peak) | {"tolerate": 503, "timeout": "20s"}
        over = threading.Event()
        prober = threading.Thread(target=_refusals, args=(session, over, seen))
        prober.start()
        try:
            report = generator.run(target.url, options, target.watched, OTHER_CPU, NICE)
        finally:
            over.set()
            prober.join()
        shares.append(report["right"] / report["seconds"] / peak)
        # Intended times say how late an unbounded queue of callers is; the server's part is what the calls under way waited.
        p99.append(report["answered_ms"]["p99"] if report["answered_ms"] else float("inf"))
        refused += report["statuses"].get("503", 0)
        unsent += report["unsent"]
        other += report["wrong"] + report["other_status"] + sum(report["errors"].values())
        details.append({"crowd": name, "peak": peak, "offered": options["rate"], "right": report["right"], "unsent": report["unsent"],
                        "statuses": report["statuses"], "errors": report["errors"], "answered_ms": report["answered_ms"],
                        "cpu": report["cpu"], "cpu_at_the_peak": flat["cpu"]})  # fmt: skip
    share, slowest = Range.of(shares), Range.of(p99)
    bare = sum(1 for status, again in seen if status == 503 and not again)
    notes = [f"{other} calls went wrong in another way" if other else "", f"{bare} refusals without Retry-After" if bare else ""]
    met = share.median >= KEPT and slowest.high <= P99_MS and not other and not bare
    value = f"{name}: {share} of the peak, {refused:,} refused by 503, {unsent:,} never sent, p99 of the answered {slowest} ms"
    return Verdict("overload", value, f"≥ {KEPT:g}, p99 ≤ {P99_MS:g} ms", met, "; ".join(note for note in notes if note), details=details)


def overload(session: Session, rounds: int, seconds: float) -> Verdict:
    """Both crowds."""
    parts = [_crowd(session, name, within, load, rounds, seconds) for name, (within, load) in CROWDS.items()]
    return combined("overload", parts)
