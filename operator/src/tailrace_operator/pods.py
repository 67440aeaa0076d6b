"""What the pods of QueryAPIs say: on demand, and by asking them again and again. IO: lists of pods, and HTTP to them.

Nothing is claimed from what is remembered here: it only decides whom to wake. Every claim asks anew (`of`).
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tailrace_contract.ids import Ref

from tailrace_operator.acknowledgement import PodState
from tailrace_operator.cluster import Cluster
from tailrace_operator.manifest import POD, QUERY_API_UID_LABEL, Object

WAITING_S = 1.0
"""Between two looks at the pods of an API for which something waits."""

IDLE_S = 5.0
"""The same when nothing waits."""

AWAITED_S = 30.0
"""For so long after an ApiKey asked for it, pods are asked often. One that goes on waiting asks again."""


class Asking(Protocol):
    """Asks pods (see `acknowledgement.Poller`)."""

    async def ask(self, pods: Iterable[Object]) -> tuple[PodState, ...]:
        """Each pod's state, asked now."""


Changed = Callable[[Ref, bool], None]
"""Told of an API whose pods say something else than before, and whether ApiKeys wait for them."""


@dataclass(slots=True)
class _Watched:
    """The pods of one QueryAPI, as its last reconcile saw them."""

    pods: tuple[Object, ...]
    states: tuple[PodState, ...]
    is_waiting: bool
    due: float


class Pods:
    """All pods of all QueryAPIs. `now`: the event loop's clock unless a test has its own."""

    def __init__(
        self, cluster: Cluster, poller: Asking, waiting_s: float = WAITING_S, idle_s: float = IDLE_S, awaited_s: float = AWAITED_S
    ) -> None:
        self._cluster = cluster
        self._poller = poller
        self._waiting_s = waiting_s
        self._idle_s = idle_s
        self._awaited_s = awaited_s
        self._watched: dict[Ref, _Watched] = {}
        self._awaited: dict[Ref, float] = {}
        """Until when pods are awaited by ApiKeys."""

    async def of(self, api: Ref, uid: str) -> tuple[tuple[Object, ...], tuple[PodState, ...]]:
        """The pods that exist now and what each says now: both are found out after this call began."""
        listing = await self._cluster.list(POD, api.namespace, {QUERY_API_UID_LABEL: uid})
        return listing.items, await self._poller.ask(listing.items)

    def watch(self, api: Ref, pods: tuple[Object, ...], states: tuple[PodState, ...], *, is_waiting: bool) -> None:
        """Goes on asking these pods: every second while their API waits for what they say."""
        watched = self._watched[api] = _Watched(pods, states, is_waiting, 0.0)
        watched.due = _now() + self._pause_s(api, watched)

    def awaits(self, api: Ref) -> None:
        """An ApiKey waits for these pods: they are asked every second for a while."""
        self._awaited[api] = _now() + self._awaited_s
        watched = self._watched.get(api)
        if watched is not None:
            watched.due = min(watched.due, _now() + self._waiting_s)

    def forget(self, api: Ref) -> None:
        """Stops asking."""
        self._watched.pop(api, None)
        self._awaited.pop(api, None)

    async def run(self, changed: Changed, tick_s: float = 0.1) -> None:
        """Asks until cancelled."""
        while True:
            now = _now()
            self._awaited = {api: until for api, until in self._awaited.items() if until > now}
            due = [(api, watched) for api, watched in self._watched.items() if watched.due <= now]
            await asyncio.gather(*(self._again(api, watched, changed) for api, watched in due))
            await asyncio.sleep(tick_s)

    async def _again(self, api: Ref, watched: _Watched, changed: Changed) -> None:
        states = await self._poller.ask(watched.pods)
        watched.due = _now() + self._pause_s(api, watched)
        is_awaited = api in self._awaited
        news = matters(watched.states, is_awaited or watched.is_waiting) != matters(states, is_awaited or watched.is_waiting)
        if news and self._watched.get(api) is watched:
            watched.states = states
            changed(api, is_awaited)

    def _pause_s(self, api: Ref, watched: _Watched) -> float:
        return self._waiting_s if watched.is_waiting or api in self._awaited else self._idle_s


def matters(states: Iterable[PodState], is_awaited: bool) -> list[PodState]:
    """What of the pods' states is news. How far they have read ApiKeys moves with every bookmark, and matters only while somebody waits."""
    if is_awaited:
        return list(states)
    return [state if state.report is None else replace(state, report=replace(state.report, api_keys={})) for state in states]


def _now() -> float:
    return asyncio.get_running_loop().time()
