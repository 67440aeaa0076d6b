"""The keyed queue: which key is worked on when. `Schedule` is pure (time is an argument); `Queue` runs it. IO: none but the clock.

Level-triggered: a key says only that something about it may have changed. Each key is in it once, has one worker at a time, and is
tried again with growing pauses while its work fails.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 300.0
WORKERS = 10
SPACING_S = 0.2
"""Least time between two pieces of work on one key, so that a resource edited in a loop does not take a worker for itself."""

FAILED_SPACING_S = 1.0
"""The same while its work fails: an event may shorten a pause, but our own half-done writes must not make a hot loop of it."""

JITTER = 0.2
"""A pause is stretched or cut by up to this part of it."""


@dataclass(frozen=True, slots=True)
class Done:
    """Work came to its end. `again_s`: look again after so many seconds, though nothing changed; None: only at the next event."""

    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Work has to be tried again."""


Outcome = Done | Failed


@dataclass(slots=True)
class _State:
    due: float | None = None
    """When to work on it next; None: nothing is to be done."""
    is_running: bool = False
    failures: int = 0
    free_from: float = field(default=float("-inf"))
    """Not before this time, whatever happens."""


def pause_s(failures: int, stretch: float) -> float:
    """Pause after so many failures in a row (1 or more). `stretch`: 1 ± JITTER. Never longer than LONGEST_PAUSE_S."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 20) * stretch))


class Schedule(Generic[Key]):
    """Decides what is worked on when. Every time is in seconds of one clock that never goes back."""

    def __init__(self, workers: int = WORKERS, stretch: Callable[[], float] | None = None) -> None:
        self._workers = workers
        self._stretch = stretch or (lambda: random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - spreads load, guards nothing
        self._states: dict[Key, _State] = {}

    @property
    def waiting(self) -> int:
        """Keys that are to be worked on, now or later, and are not being worked on."""
        return sum(state.due is not None and not state.is_running for state in self._states.values())

    @property
    def running(self) -> int:
        """Keys that are being worked on."""
        return sum(state.is_running for state in self._states.values())

    def failures(self, key: Key) -> int:
        """How often in a row its work failed."""
        state = self._states.get(key)
        return state.failures if state else 0

    def add(self, key: Key, now: float, after_s: float = 0.0) -> None:
        """Something about the key may have changed. The earliest wish wins; one that comes during its work has it done once more."""
        state = self._states.setdefault(key, _State())
        wanted = max(now + after_s, state.free_from)
        state.due = wanted if state.due is None else min(state.due, wanted)

    def pop(self, now: float) -> Key | None:
        """The key to work on now, the longest due first; None when none is due or every worker is busy."""
        if self.running >= self._workers:
            return None
        due = [(state.due, key) for key, state in self._states.items() if not state.is_running and state.due is not None]
        first = min(due, key=lambda each: each[0], default=None)
        if first is None or first[0] > now:
            return None
        state = self._states[first[1]]
        state.is_running, state.due = True, None
        return first[1]

    def finish(self, key: Key, now: float, outcome: Outcome) -> None:
        """Its work ended."""
        state = self._states[key]
        state.is_running = False
        if isinstance(outcome, Failed):
            state.failures += 1
            pause = pause_s(state.failures, self._stretch())
            state.free_from = now + min(pause, FAILED_SPACING_S)
            self.add(key, now, pause)
        else:
            state.failures = 0
            state.free_from = now + SPACING_S
            if outcome.again_s is not None:
                self.add(key, now, outcome.again_s)
        if state.due is not None:
            state.due = max(state.due, state.free_from)

    def forget_idle(self, now: float) -> None:
        """Drops what is known of keys with nothing to do, so that deleted resources leave nothing behind."""
        idle = [key for key, state in self._states.items() if state.due is None and not state.is_running and state.free_from <= now]
        for key in idle:
            del self._states[key]

    def next_due(self) -> float | None:
        """When `pop` may give something; None: not before something is added or finished."""
        if self.running >= self._workers:
            return None
        return min((state.due for state in self._states.values() if state.due is not None and not state.is_running), default=None)


class Queue(Generic[Key]):
    """Runs a `Schedule`: until `run` is called it only collects. All methods belong to one event loop."""

    def __init__(self, schedule: Schedule[Key], changed: Callable[[int, int], None] = lambda waiting, running: None) -> None:
        self._schedule = schedule
        self._changed = changed
        self._wake = asyncio.Event()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """See `Schedule.add`."""
        self._schedule.add(key, _now(), after_s)
        self._wake.set()

    def failures(self, key: Key) -> int:
        """See `Schedule.failures`."""
        return self._schedule.failures(key)

    async def run(self, work: Callable[[Key], Awaitable[Outcome]]) -> None:
        """Works until cancelled. An exception of `work` counts as a failure: `work` itself has to tell of it."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while (key := self._schedule.pop(_now())) is not None:
                    group.create_task(self._one(key, work), name=f"reconcile {key}")
                self._schedule.forget_idle(_now())
                self._changed(self._schedule.waiting, self._schedule.running)
                due = self._schedule.next_due()
                try:
                    async with asyncio.timeout(None if due is None else max(0.0, due - _now())):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def _one(self, key: Key, work: Callable[[Key], Awaitable[Outcome]]) -> None:
        outcome: Outcome = Failed()
        try:
            outcome = await work(key)
        except Exception:  # noqa: S110 - told by `work`; whatever it was, the key is tried again
            pass
        finally:
            self._schedule.finish(key, _now(), outcome)
            self._wake.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
