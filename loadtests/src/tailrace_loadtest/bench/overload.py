"""Twice as many calls as the server can answer: what it still answers, how it refuses the rest. IO: runs loads.

Met when ≥ 90 % of the peak is still answered right, every refusal is 503 with Retry-After, nothing else goes wrong, and p99 of what was
answered stays below `P99_MS`, counted from when a call was sent.
"""

import http.client
import threading
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.session import OTHER_CPU, OURS, Session
from tailrace_loadtest.bench.verdict import Range, Verdict

CONNECTIONS, DEPTH = 512, 64
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


def overload(session: Session, rounds: int, seconds: float) -> Verdict:
    """A closed loop that the server can queue for the peak, then twice that from more callers than it lets wait."""
    load, within = Load("user", depth=DEPTH, connections=CONNECTIONS), Load("user", depth=DEPTH)
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    shares, p99, refused, other = [], [], 0, 0
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
            report = generator.run(target.url, options, target.watched, OTHER_CPU)
        finally:
            over.set()
            prober.join()
        shares.append(report["right"] / report["seconds"] / peak)
        # Intended times say how late an unbounded queue of callers is; the server's part is what the calls under way waited.
        p99.append(report["answered_ms"]["p99"] if report["answered_ms"] else float("inf"))
        refused += report["statuses"].get("503", 0)
        other += report["wrong"] + report["other_status"] + sum(report["errors"].values())
        details.append({"peak": peak, "offered": options["rate"], "right": report["right"], "unsent": report["unsent"],
                        "statuses": report["statuses"], "errors": report["errors"], "answered_ms": report["answered_ms"]})  # fmt: skip
    share, slowest = Range.of(shares), Range.of(p99)
    bare = sum(1 for status, again in seen if status == 503 and not again)
    notes = [f"{other} calls went wrong in another way" if other else "", f"{bare} refusals without Retry-After" if bare else ""]
    met = share.median >= KEPT and slowest.high <= P99_MS and not other and not bare
    value = f"{share} of the peak at 2 × it, {refused:,} refused by 503, p99 of the answered {slowest} ms"
    return Verdict("overload", value, f"≥ {KEPT:g}, p99 ≤ {P99_MS:g} ms", met, "; ".join(note for note in notes if note), details=details)
