"""Asks both sides every call, over several threads, and collects what differs. IO: HTTP to loopback, progress on stderr."""

import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tailrace_loadtest.differential import compare
from tailrace_loadtest.differential.calls import Call
from tailrace_loadtest.differential.client import Answer, Side
from tailrace_loadtest.differential.compare import Difference
from tailrace_loadtest.differential.generator import Generator
from tailrace_loadtest.differential.transports import TRANSPORTS, Transport

KEPT = 2000
"""Differences that are kept whole; the rest are only counted."""


@dataclass(slots=True)
class Outcome:
    """What was asked and what came of it."""

    asked: int = 0
    good: int = 0
    differing: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    combinations: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    batched: Counter[str] = field(default_factory=Counter)
    """By query: answers of the data plane that came of a statement for several callers."""
    ways: Counter[str] = field(default_factory=Counter)
    """How the data plane was asked, by the names of `transports`."""
    parts: int = 0
    """Calls that were one of several in a body."""
    pairs: list[tuple[Call, bool, str, str]] = field(default_factory=list)
    """(call, broken off, run id left, run id right)."""

    def found(self, differences: list[Difference]) -> None:
        """Books the differences of one call."""
        if differences:
            self.differing += 1
            for each in differences:
                self.groups[f"{each.where} · {each.call.kind} · {each.call.query}"] += 1
            if len(self.differences) < KEPT:
                self.differences += differences


class Comparison:
    """Two ports, one set of keys. `transports`: how the left one is asked, thread by thread; the right one is asked one call after the other.

    `authority`: the left one speaks TLS with a certificate that this file trusts.
    """

    def __init__(
        self,
        left: int,
        right: int,
        keys: Mapping[str, str],
        workers: int = 6,
        transports: Sequence[str] = ("http1",),
        authority: Path | None = None,
    ) -> None:
        self.authority = authority
        self.ports = (left, right)
        self.keys = keys
        self.workers = workers
        self.transports = transports
        self.outcome = Outcome()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, generator: Generator, count: int, each: int) -> Outcome:
        """Asks `count` calls in all, every combination `each` times: pages that a list didn't have are made up for by other calls."""
        self._round(generator.calls(count, each), count)
        while self.outcome.asked < count and self._failure is None:
            self._round(generator.mixed(count - self.outcome.asked), count)
        if self._failure is not None:
            raise self._failure
        return self.outcome

    def at_once(self, bursts: Iterable[Sequence[Call]]) -> Outcome:
        """Asks the data plane all calls of a burst in one write, pipelined and as streams in turn; Python alone one after the other."""
        ways = [name for name in self.transports if name != "http1"] or ["pipelined"]
        lefts, right = [self._left(name) for name in ways], Side(self.ports[1], self.keys)
        try:
            for number, calls in enumerate(bursts):
                self._ask(calls, lefts[number % len(lefts)], right)
        finally:
            for left in lefts:
                left.close()
            right.close()
        return self.outcome

    def _round(self, calls: Iterable[Call], count: int) -> None:
        # Bounded: the generator waits for the askers. Calls that depend on earlier ones have an asker of their own, in order.
        plain: queue.Queue[Call | None] = queue.Queue(256)
        ordered: queue.Queue[Call | None] = queue.Queue(256)
        lanes = [plain] * self.workers + [ordered]
        # Calls that depend on each other are asked one after the other.
        ways = [*(self.transports[n % len(self.transports)] for n in range(self.workers)), "http1"]
        threads = [threading.Thread(target=self._work, args=each) for each in zip(lanes, ways, strict=True)]
        for thread in threads:
            thread.start()
        step, shown = max(1, count // 10), 0
        for number, call in enumerate(calls):
            (ordered if call.stores else plain).put(call)
            if number // step > shown and sys.stderr.isatty():
                shown = number // step
                print(f"  {self.outcome.asked} asked, {self.outcome.differing} differ", file=sys.stderr)  # noqa: T201
        for lane in lanes:
            lane.put(None)
        for thread in threads:
            thread.join()

    def _left(self, transport: str) -> Transport:
        return TRANSPORTS[transport](self.ports[0], self.keys, self.authority)

    def _work(self, lane: "queue.Queue[Call | None]", transport: str) -> None:
        left = self._left(transport)
        right = Side(self.ports[1], self.keys)
        try:
            ended = False
            while not ended and (first := lane.get()) is not None:
                calls = [first]
                while len(calls) < left.depth:
                    try:
                        more = lane.get_nowait()
                    except queue.Empty:
                        break
                    if more is None:
                        ended = True
                        break
                    calls.append(more)
                if self._failure is None:
                    self._ask(calls, left, right)
        except BaseException as error:
            self._failure = error
            while not ended and lane.get() is not None:
                pass
        finally:
            left.close()
            right.close()

    def _ask(self, calls: Sequence[Call], left: Transport, right: Side) -> None:
        for first, answer in zip(calls, left.ask_all(calls), strict=True):
            call, one = first, answer
            while True:
                two = right.ask(call)
                self._book(call, one, two)
                if call.pages == 0 or one.link == "" or one.link != two.link:
                    break
                path, _, arguments = one.link.partition("?")
                call = replace(call, path=path, pairs=(arguments,), pages=call.pages - 1, combination=None)
                (one,) = left.ask_all([call])
            if first.again:
                self._once_more(first, answer, left, right)

    def _once_more(self, call: Call, had: Answer, left: Transport, right: Side) -> None:
        """The same, then with the ETag that the answer had."""
        call = replace(call, pages=0, again=False, combination=None)
        known = replace(call, headers=(*call.headers, ("If-None-Match", had.etag or '"none"')))
        for each in (call, known):
            (one,) = left.ask_all([each])
            self._book(each, one, right.ask(each))

    def _book(self, call: Call, one: Answer, two: Answer) -> None:
        differences = compare.answers(call, one, two)
        with self._lock:
            outcome = self.outcome
            outcome.asked += 1
            outcome.good += 200 <= one.status < 300
            outcome.statuses[one.status] += 1
            outcome.kinds[call.kind] += 1
            outcome.batched[call.query] += one.batch > 1
            outcome.ways[one.way] += 1
            outcome.parts += len(one.parts)
            if call.combination is not None:
                outcome.combinations[call.combination] += 1
            outcome.found(differences)
            if one.run_id and two.run_id:
                outcome.pairs.append((call, one.broken, one.run_id, two.run_id))
            outcome.pairs += [(call, False, part, other) for part, other in zip(one.parts, two.parts, strict=False)]
