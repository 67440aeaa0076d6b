"""Who reconciles: the one that holds the Lease. `next_step` is pure; `Leader` runs it. IO: the Lease in the API server.

A lease that could not be renewed in time ends the process at once (`os._exit`): another may lead by then, and a half-done reconcile of
ours must not go on beside its. Times of other operators' clocks are never compared: a standby takes the Lease when it has not seen it
change for as long as the Lease says.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tailrace_operator.cluster import Cluster
from tailrace_operator.errors import ClusterError, Conflict
from tailrace_operator.manifest import LEASE, Object, ObjectRef
from tailrace_operator.observe import Event, Observer, observation

LEASE_S = 15
"""How long the Lease holds without being renewed."""

RENEW_S = 2.5
"""Between renewals, and between a standby's looks."""

GIVE_UP_S = 10.0
"""Without a renewal for so long, a leader ends: well before another may take over."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease's state as last seen, and when (on our clock) it was first seen so."""

    mark: tuple[str, str]
    """Holder and renewal time: opaque, only compared."""
    since: float


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now. `body`: the Lease to write (None: nothing); `leads`: whether we lead once that is written."""

    body: Object | None
    leads: bool
    seen: Seen | None


def next_step(live: Object | None, seen: Seen | None, ref: ObjectRef, identity: str, now: float, wall: datetime) -> Step:
    """Decides from the Lease as it is. `now`: our steady clock in seconds; `wall`: the time to write into the Lease."""
    stamp = wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec: dict[str, Any] = dict((live or {}).get("spec") or {})
    holder = spec.get("holderIdentity") or ""
    if live is None:
        body = {
            "apiVersion": ref.kind.api_version,
            "kind": ref.kind.kind,
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "spec": _held(identity, stamp, stamp, 0),
        }
        return Step(body, True, None)
    if holder == identity:
        held = _held(identity, spec.get("acquireTime") or stamp, stamp, int(spec.get("leaseTransitions") or 0))
        return Step({**live, "spec": {**spec, **held}}, True, None)
    mark = (holder, str(spec.get("renewTime")))
    if seen is None or seen.mark != mark:
        seen = Seen(mark, now)
    lasts = int(spec.get("leaseDurationSeconds") or LEASE_S)
    if holder and now - seen.since <= lasts:
        return Step(None, False, seen)
    taken = _held(identity, stamp, stamp, int(spec.get("leaseTransitions") or 0) + 1)
    return Step({**live, "spec": {**spec, **taken}}, True, seen)


def _held(identity: str, acquired: str, renewed: str, transitions: int) -> Object:
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_S,
        "acquireTime": acquired,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }


class Leader:
    """Acquires the Lease, then renews it for as long as the process lives."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        observer: Observer,
        die: Callable[[int], object] = os._exit,
        renew_s: float = RENEW_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._cluster = cluster
        self._ref = ObjectRef(LEASE, namespace, name)
        self._identity = identity
        self._observer = observer
        self._die = die
        self._renew_s = renew_s
        self._give_up_s = give_up_s
        self._seen: Seen | None = None
        self._renewed = 0.0
        self._is_failing = False

    async def acquire(self) -> None:
        """Returns once we lead. Until then the API server may be away for any time."""
        told = ""
        while True:
            began = _now()
            try:
                if await self._step():
                    self._renewed = began
                    self._observer(observation(Event.LEADING, identity=self._identity))
                    return
                holder = self._seen.mark[0] if self._seen else ""
                if holder != told:
                    told = holder
                    self._observer(observation(Event.STANDING_BY, holder=holder))
            except Conflict:
                pass
            except ClusterError as error:
                self._failed(error)
            await asyncio.sleep(self._renew_s)

    async def keep(self) -> None:
        """Renews until cancelled; ends the process when that fails for too long or another holds the Lease."""
        guard = asyncio.create_task(self._guard(), name="lease guard")
        try:
            while True:
                await asyncio.sleep(self._renew_s)
                began = _now()
                try:
                    if not await self._step():
                        self._lose("another operator holds the Lease")
                    self._renewed = began
                except ClusterError as error:
                    self._failed(error)
        finally:
            guard.cancel()

    async def release(self) -> None:
        """Gives the Lease up, after the last write, so that another need not wait. A failure is no matter: it runs out by itself."""
        try:
            live = await self._cluster.get(self._ref)
            if live is not None and (live.get("spec") or {}).get("holderIdentity") == self._identity:
                await self._cluster.replace({**live, "spec": {**live["spec"], "holderIdentity": ""}})
        except ClusterError:
            return

    async def _guard(self) -> None:
        """A call to the API server may hang for longer than the Lease lasts: the time is watched beside it."""
        while True:
            left = self._renewed + self._give_up_s - _now()
            if left <= 0:
                self._lose("it could not be renewed in time")
            await asyncio.sleep(max(left, 0.1))

    async def _step(self) -> bool:
        live = await self._cluster.get(self._ref)
        step = next_step(live, self._seen, self._ref, self._identity, _now(), datetime.now(UTC))
        self._seen = step.seen
        if step.body is not None:
            await (self._cluster.create(step.body) if live is None else self._cluster.replace(step.body))
        self._is_failing = False
        return step.leads

    def _failed(self, error: ClusterError) -> None:
        """Told once, until it succeeds again."""
        if not self._is_failing:
            self._observer(observation(Event.LEASE_FAILED, reason=error.code))
        self._is_failing = True

    def _lose(self, reason: str) -> None:
        self._observer(observation(Event.LEASE_LOST, reason=reason))
        self._die(1)


def _now() -> float:
    return asyncio.get_running_loop().time()
