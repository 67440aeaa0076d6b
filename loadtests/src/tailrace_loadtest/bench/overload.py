"""Twice as many calls as the server can answer: what it still answers, how it refuses the rest. IO: runs loads.

What limits the answers is the data plane's own core, or a database that is some way away and takes so many calls at a time (`overload-far`: one
statement shared by many, and one a connection). Two crowds load the core: few clients that ask far ahead, whose connections can make them wait,
and more clients than may wait that ask one by one, who are refused. Met when of each ≥ 90 % of the peak is still answered right, every refusal
is 503 with Retry-After, nothing else goes wrong, and p99 of what was answered stays below `P99_MS`, counted from when a call was sent.
The generator shares its core with the database and gives way to it (`NICE`), or the loss would be the database's: callers don't run there.
"""

import http.client
import threading
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.session import OTHER_CPU, OURS, SERVER_CPU, Session, Target, pin
from tailrace_loadtest.bench.verdict import Range, Verdict, at_least, combined
from tailrace_loadtest.servers.delay import Delay
from tailrace_loadtest.servers.tailrace import Tailrace
from tailrace_loadtest.servers.users import DATABASE

CROWDS = {
    "ahead": (Load("user", depth=64), Load("user", depth=64, connections=512)),
    "one by one": (Load("user", connections=1024), Load("user", connections=10_000)),
}
"""Each: what is asked for the peak, in a closed loop, and by whom twice that is offered."""
FAR = {
    "a statement shared": (10_000, Load("user_few", connections=512), Load("user_few", connections=8192)),
    "a statement a connection": (40_000, Load("users", connections=64), Load("users", connections=4096)),
}
"""Each: round trip to the database, µs, so that it is busy long before a core is, by 16 calls a statement or by 16 connections (of what takes
more than 20 ms each call has one); then as in `CROWDS`."""
PAGE = "/q/users?page_size=1"
NICE = 10
KEPT = 0.9
P99_MS = 1000.0
UNSENT = 0.01
"""Share of the offer that may lack."""
PROBE_S = 0.02


def _refusals(target: Target, over: threading.Event, seen: list[tuple[int, bool]]) -> None:
    """Asks beside the load: status and whether there was a Retry-After."""
    url, key = urllib.parse.urlsplit(target.url), Path(str(target.extra["api-keys"])).read_text().strip()
    while not over.wait(PROBE_S):
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
        try:
            connection.request("GET", target.ask.path.format(7), headers={"X-API-Key": key})
            answer = connection.getresponse()
            answer.read()
            seen.append((answer.status, answer.getheader("Retry-After") is not None))
        except (OSError, http.client.HTTPException):
            seen.append((0, False))
        finally:
            connection.close()


def _crowd(session: Session, bar: str, name: str, target: Target, within: Load, load: Load, rounds: int, seconds: float) -> Verdict:
    """A closed loop that the server can queue for the peak, then twice that by the crowd."""
    shares, p99, refused, unsent, other = [], [], 0, 0, 0
    seen: list[tuple[int, bool]] = []
    details: list[dict[str, Any]] = []
    for number in range(rounds):
        flat = session.run(target, within, seconds, number + 1)
        peak = flat["right"] / flat["seconds"]
        if not peak:
            return Verdict(bar, "no peak", f"≥ {KEPT:g}", False, "nothing was answered flat out")
        options = target.options(load, session.rows, seconds, number + 1, 2 * peak) | {"tolerate": 503, "timeout": "20s"}
        over = threading.Event()
        prober = threading.Thread(target=_refusals, args=(target, over, seen))
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
    offered = sum(each["offered"] * seconds for each in details)
    # Who asks ahead waits in its sockets, where calls can't be sent; of the others those are load that wasn't there.
    lacking = load.depth == 1 and unsent > UNSENT * offered
    notes = [
        f"{other} calls went wrong in another way" if other else "",
        f"{bare} refusals without Retry-After" if bare else "",
        f"{unsent / offered:.0%} of the offer was never sent" if lacking else "",
    ]
    met = share.median >= KEPT and slowest.high <= P99_MS and not other and not bare and not lacking
    kept = at_least(bar, share, KEPT, f"of the peak, {name}")
    value = f"{name}: {share} of the peak, {refused:,} refused by 503, {unsent:,} never sent, p99 of the answered {slowest} ms"
    return Verdict(
        bar,
        value,
        f"≥ {KEPT:g}, p99 ≤ {P99_MS:g} ms",
        met,
        "; ".join(note for note in notes if note),
        details=details,
        to_goal=kept.to_goal,
    )


def overload(session: Session, rounds: int, seconds: float) -> Verdict:
    """Both crowds; the data plane's core is the limit."""
    parts = []
    for name, (within, load) in CROWDS.items():
        target = session.target(OURS, load)
        assert target is not None, "ours is always there"
        parts.append(_crowd(session, "overload", name, target, within, load, rounds, seconds))
    return combined("overload", parts)


def far(session: Session, rounds: int, seconds: float) -> Verdict:
    """The database is the limit, and both cores have air."""
    return combined("overload-far", [_far(session, name, rounds, seconds) for name in FAR])


def _far(session: Session, name: str, rounds: int, seconds: float) -> Verdict:
    round_trip_us, within, load = FAR[name]
    with Delay(session.server.port, round_trip_us // 2, OTHER_CPU) as delay:
        url = f"postgresql://postgres@127.0.0.1:{delay.port}/{DATABASE}"
        with Tailrace([session.specs()], {"users-db": url}, threads=1, taskset=str(SERVER_CPU)) as stack:
            pin(stack.pid("gateway"), OTHER_CPU)
            texts = session.folder / "far.keys"
            texts.write_text(stack.keys["app-key"] + "\n")
            watched = {"server": stack.pid("dataplane"), "database": session.server.pid}
            near = session.target(OURS, load)
            assert near is not None, "ours is always there"
            ask = replace(near.ask, path=PAGE) if load.query == "users" else near.ask
            target = Target(OURS, stack.url, ask, watched, {"api-keys": texts})
            session.run(target, within, seconds, 0)
            return _crowd(session, "overload-far", name, target, within, load, rounds, seconds)
