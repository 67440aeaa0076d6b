"""Brings the cluster in line with one ApiKey: its Secret first, then the digests into its status. IO: the API server and the pods.

    GET ApiKey, QueryAPI, pods, Secret → texts → write the Secret → digests → status

Every step is decided from what the Secret and the status hold, so the process may end between any two writes. Errors of the API server are
raised, and tried again by the queue; a write that it refuses for good is told in the status.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from tailrace_contract import document
from tailrace_contract.apikey import ApiKey
from tailrace_contract.ids import Ref
from tailrace_contract.status import ApiKeyStatus, KeyDigest

from tailrace_operator import problems
from tailrace_operator.acknowledgement import PodState, Versions
from tailrace_operator.cluster import Cluster
from tailrace_operator.conditions import Type, is_changed, read_status, status_body
from tailrace_operator.errors import Conflict
from tailrace_operator.keyadmission import NOT_ADMITTED, of_api
from tailrace_operator.keys import Digests, Texts, is_expired, next_digests, wake_at
from tailrace_operator.keysecret import Held, KeySecrets
from tailrace_operator.keystatus import NEVER, Found, Reach, Revoked, api_key_status, is_waiting, reach
from tailrace_operator.manifest import QUERY_API, Object, ObjectRef, is_going, is_paused, ref_of, uid_of, version_of
from tailrace_operator.observe import Observer
from tailrace_operator.problems import Problem
from tailrace_operator.queue import Done, Outcome
from tailrace_operator.render.service import url
from tailrace_operator.wakeups import Key

MISSING_S = 10.0
"""Between two looks while something that nobody announces is missing: a user's Secret, an owner's garbage collection."""

BROUGHT_S = 60.0
"""Between two looks at a key that was brought: Secrets of users are not watched."""

BLOCKED_S = 30.0
"""Between two looks while a stranger's Secret is in the way, or a write is refused for good."""

WAITING_S = 10.0
"""Between two looks while pods are waited for. Their answers come sooner; this is for one that was lost."""

ANNOUNCED_S = 300.0
"""Between two looks while events tell of what is waited for: the QueryAPI, its roles, whom it admits, its first ready pod. This is for one that
was lost, and long, or a thousand keys of APIs without pods would keep an API server busy."""

ANNOUNCED = ("QueryAPINotFound", "RoleNotFound", NOT_ADMITTED)

STATUS_TRIES = 3
"""Writes of a status that an edit of the spec may overtake before it is left to the next look."""

LONGEST_S = 86_400.0
"""Longest wait for a time that is far off: the clock may be set meanwhile."""


class Pods(Protocol):
    """What the pods of QueryAPIs say."""

    async def of(self, api: Ref, uid: str) -> tuple[tuple[Object, ...], tuple[PodState, ...]]:
        """The pods that exist now and what each says now."""

    def awaits(self, api: Ref) -> None:
        """Somebody waits for these pods: they are to be asked more often."""


class ApiKeys:
    """Reconciles ApiKeys. `clock`: the time, with its zone; `entropy`: a cryptographic source of so many bytes."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Pods,
        observer: Observer,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._clock = clock
        self._secrets = KeySecrets(cluster, observer, entropy)
        self._versions = Versions()
        self._marked: dict[Key, set[str]] = {}
        """What stands in `_versions` for each ApiKey, to be forgotten with it."""

    async def reconcile(self, key: Key, live: Object | None) -> Outcome:
        """One ApiKey; `live` is the object as it is now, None when it is gone."""
        if live is None:
            for mark in self._marked.pop(key, ()):
                self._versions.forget(mark)
            return Done()
        if is_going(live):
            return Done()
        now, previous = self._clock(), read_status(ApiKeyStatus, live)
        read = document.read({name: value for name, value in live.items() if name != "status"})
        if not isinstance(read, ApiKey):
            # Pods keep the last good form of it, and so do its digests.
            found = Found(previous.keys, _nobody(), previous.url, (problems.invalid_spec(read if isinstance(read, list) else ()),))
            status = api_key_status(_generation(live), found, previous, now)
            status = status.model_copy(update={"loaded_by": previous.loaded_by, "revoked_on": previous.revoked_on})
            await self._say(key, live, status, previous)
            return Done()
        api = await self._cluster.get(ObjectRef(QUERY_API, read.api_ref.namespace, read.api_ref.name))
        api_uid = uid_of(api) if api is not None else ""
        pods = (await self._pods.of(read.api_ref, api_uid))[1] if api is not None else ()
        since = self._mark(key, live, previous.keys)
        before = reach(pods, api_uid, key.ref, since, NEVER)
        address = url(read.api_ref.name, read.api_ref.namespace, api)
        held = await self._held(read, live, previous, now, address=address, is_loaded=before.is_everywhere)
        against = of_api(api, read)
        found_problems = tuple(each for each in (against, held.problem, _refused(before.refused)) if each is not None)
        is_admitted = against is None or against.reason != NOT_ADMITTED
        digests = _digests(held.texts, previous.keys, read, now, paused=is_paused(live)) if is_admitted else Digests(())
        # What is only about to be written is with nobody yet.
        changed_since = since if digests.keys == previous.keys else NEVER
        found = Found(
            keys=digests.keys,
            reach=reach(pods, api_uid, key.ref, changed_since, self._usable_since(key, live, digests.keys, held.texts.digest)),
            url=address,
            problems=found_problems,
            revoked=_revoked(read, against, now),
            is_replaced=digests.is_replaced,
            is_rotating=len(digests.keys) > 1,
        )
        # A paused spec is not acted on: saying that it was seen would also keep its old Secrets from being pruned later.
        generation = previous.observed_generation if is_paused(live) else _generation(live)
        status = api_key_status(generation, found, previous, now)
        await self._say(key, live, status, previous)
        if is_waiting(status):
            self._pods.awaits(read.api_ref)
        return Done(_again_s(read, held.texts, status, found_problems, now))

    async def _held(self, key: ApiKey, live: Object, previous: ApiKeyStatus, now: datetime, *, address: str, is_loaded: bool) -> Held:
        paused = is_paused(live)
        if not paused and previous.observed_generation != _generation(live):
            await self._secrets.prune(key, live)
        if key.spec.key_from is not None:
            return await self._secrets.brought(key, key.spec.key_from.secret_key_ref)
        return await self._secrets.minted(
            key, live, key.spec.secret_name or "", previous.keys, now, address=address, is_loaded=is_loaded, paused=paused
        )

    async def _say(self, key: Key, live: Object, status: ApiKeyStatus, previous: ApiKeyStatus) -> None:
        """Events first: one that is told twice does less harm than one that is never told."""
        body = status_body(status)
        if not is_changed(live, body):
            return
        for reason, message, is_warning in _news(status, previous):
            await self._cluster.event(live, reason, message, is_warning=is_warning)
        self._mark(key, await self._write(live, body), status.keys)

    async def _write(self, live: Object, body: Mapping[str, Any]) -> Object:
        """Writes the status over the one that was read, and over no other: a digest that somebody else ended must not come back. An owner who
        edits the spec all the time doesn't keep it from being written: then it says of which generation it is."""
        for _ in range(STATUS_TRIES):
            try:
                return await self._cluster.patch_status(live, body, unchanged=True)
            except Conflict:
                now = await self._cluster.get(ref_of(live))
                if now is None or uid_of(now) != uid_of(live) or now.get("status") != live.get("status"):
                    raise
                live = now
        return await self._cluster.patch_status(live, body, unchanged=True)

    def _mark(self, key: Key, live: Object, keys: tuple[KeyDigest, ...]) -> int:
        """The resourceVersion from which on the ApiKey is as it is in `live`. Marks its digests too, and forgets those that are gone."""
        uid, version = uid_of(live), version_of(live)
        marks = {uid, *(f"{uid}/{each.sha256}" for each in keys)}
        for gone in self._marked.get(key, set()) - marks:
            self._versions.forget(gone)
        self._marked[key] = marks
        for each in keys:
            self._versions.since(f"{uid}/{each.sha256}", _generation(live), version)
        return self._versions.since(uid, (_generation(live), keys), version)

    def _usable_since(self, key: Key, live: Object, keys: Sequence[KeyDigest], handed_out: str | None) -> int:
        """From which resourceVersion on the digest of the text that is handed out is there. While paused that may be another than the Secret's."""
        valid = [each.sha256 for each in keys if each.not_after is None]
        mine = handed_out if handed_out in valid else valid[-1] if valid else None
        mark = f"{uid_of(live)}/{mine}"
        if mark not in self._marked.get(key, ()):
            return NEVER
        return self._versions.since(mark, _generation(live), version_of(live))


def _generation(live: Object) -> int:
    return int(live["metadata"]["generation"])


def _nobody() -> Reach:
    return reach((), "", Ref("", ""), NEVER, NEVER)


def _digests(texts: Texts, keys: tuple[KeyDigest, ...], key: ApiKey, now: datetime, *, paused: bool) -> Digests:
    """While paused nothing is written into a Secret, so nothing follows from what it lacks: what is valid stays so until its time."""
    if not paused:
        return next_digests(texts, keys, key.spec, now)
    if is_expired(key.spec, now):
        return Digests(())
    return Digests(tuple(each for each in keys if each.not_after is None or now < each.not_after))


def _refused(why: str) -> Problem | None:
    """What only the gateways find: another key with the same text, a bound value of the wrong type."""
    return Problem(Type.PROGRAMMED, "KeyRefused", f"the pods refuse it: {why}", True) if why else None


def _revoked(key: ApiKey, against: Problem | None, now: datetime) -> Revoked | None:
    if key.spec.suspended:
        return Revoked("Suspended", "it is suspended")
    if is_expired(key.spec, now):
        return Revoked("Expired", "its time is over")
    if against is not None and against.reason == NOT_ADMITTED:
        return Revoked(against.reason, against.message)
    return None


def _news(status: ApiKeyStatus, previous: ApiKeyStatus) -> list[tuple[str, str, bool]]:
    """Events (reason, message, is it a warning) of what changes from one status to the next."""
    before = {each.sha256: each for each in previous.keys}
    mine = [each for each in status.keys if each.sha256 in before]
    news = []
    if status.keys and not before:
        news.append(("KeyAdded", f"the key {status.keys[-1].id} becomes valid", False))
    elif status.keys and not mine:
        text = f"the Secret was deleted or changed: {status.keys[-1].id} is valid from now on, and the earlier key is not"
        news.append(("KeyReplaced", text, True))
    for each in mine:
        if each.not_after is not None and before[each.sha256].not_after is None:
            text = f"the Secret holds {status.keys[-1].id} now; {each.id} works until {each.not_after:%Y-%m-%dT%H:%M:%SZ}"
            news.append(("KeyRotated", text, False))
    if status.revoked_on is not None and not is_waiting(status) and (previous.revoked_on is None or is_waiting(previous)):
        news.append(("KeyRevoked", f"{status.revoked_on} pods have dropped it", False))
    return news


def _has_no_pod(status: ApiKeyStatus) -> bool:
    """Whether there is nobody whose answer could be waited for."""
    return (status.revoked_on or status.loaded_by or "0/0") == "0/0"


def _again_s(key: ApiKey, texts: Texts, status: ApiKeyStatus, found: Sequence[Problem], now: datetime) -> float | None:
    """When to look again though nobody calls."""
    times = []
    at = wake_at(texts, status.keys, key.spec, now)
    if at is not None:
        times.append(min(LONGEST_S, max(0.1, (at - now).total_seconds())))
    if is_waiting(status):
        times.append(ANNOUNCED_S if _has_no_pod(status) else WAITING_S)
    for each in found:
        times.append(ANNOUNCED_S if each.reason in ANNOUNCED else BLOCKED_S if each.is_stalled else MISSING_S)
    if key.spec.key_from is not None:
        times.append(BROUGHT_S)
    return min(times, default=None)
