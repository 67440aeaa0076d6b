"""What an ApiKey's status says. Pure: what was found in, the whole status out; rejects nothing.

`Ready` = every ready pod admits the text that the Secret holds under `key`. It stays so while the key is replaced: the next text is handed
out only once all pods have it. `Programmed` and `loadedBy` are about everything, dates and bindings too.

    Accepted      the spec is valid, its role exists and its namespace is admitted
    ResolvedRefs  the QueryAPI and the Secret are found and usable
    Programmed    every ready pod has the key as it is
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tailrace_contract.ids import Ref
from tailrace_contract.status import ApiKeyStatus, KeyDigest

from tailrace_operator.acknowledgement import Confirmation, PodState, confirmed_keys
from tailrace_operator.conditions import Type, Verdict, listed, ready, stamped
from tailrace_operator.problems import Problem

NEVER = 2**62
"""A resourceVersion that no pod has: of what is only about to be written."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a key has come among the pods."""

    loaded: Confirmation
    """Ready pods that have it as it is."""
    usable: Confirmation
    """Ready pods that have the digest of the text that is handed out."""
    dropped: Confirmation
    """Pods that have taken in that it is no more, of all that could still admit a call."""
    is_everywhere: bool
    """Whether every pod that could admit a call has it as it is, and one is ready at least."""
    refused: str = ""
    """Why a pod that has taken it in does not serve it: only compiling finds that."""


def reach(pods: Sequence[PodState], api_uid: str, key: Ref, since: int, usable_since: int) -> Reach:
    """How far the pods of an API are. `since`: resourceVersion from which on the ApiKey is as it is now; `usable_since`: from which on it has
    the digest of the text that is handed out."""
    up = [pod for pod in pods if pod.is_ready]
    return Reach(
        loaded=Confirmation(sum(_has(pod, api_uid, key, since) for pod in up), len(up)),
        usable=Confirmation(sum(_has(pod, api_uid, key, usable_since) for pod in up), len(up)),
        dropped=confirmed_keys(pods, api_uid, key.namespace, since),
        is_everywhere=bool(up) and all(_has(pod, api_uid, key, since) for pod in pods if pod.is_counted),
        refused=next((why for pod in pods if _read(pod, api_uid, key, since) and (why := _refusal(pod, key))), ""),
    )


def _has(pod: PodState, api_uid: str, key: Ref, since: int) -> bool:
    return _read(pod, api_uid, key, since) and not _refusal(pod, key)


def _read(pod: PodState, api_uid: str, key: Ref, since: int) -> bool:
    return pod.report is not None and pod.report.has_keys(api_uid, key.namespace, since)


def _refusal(pod: PodState, key: Ref) -> str:
    said = pod.report.gateway if pod.report is not None else None
    return said.refused_keys.get(str(key), "") if said is not None else ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Why no pod is to admit the key. `reason` is one word."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a reconcile found of an ApiKey."""

    keys: tuple[KeyDigest, ...]
    reach: Reach
    url: str | None
    problems: tuple[Problem, ...] = ()
    revoked: Revoked | None = None
    is_replaced: bool = False
    """Whether the text came from outside: its Secret was deleted or changed."""
    is_rotating: bool = False
    """Whether a next text waits to be handed out, or the last one still works."""


REPLACED = "KeyReplaced"
"""Reason of ResolvedRefs after the text came from outside, until it changes again."""


def api_key_status(generation: int, found: Found, previous: ApiKeyStatus, now: datetime) -> ApiKeyStatus:
    """The status of an ApiKey of this generation."""
    verdicts = [*_ready(found), _accepted(found), _references(found, previous), _programmed(found)]
    is_gone = found.revoked is not None
    return ApiKeyStatus(
        observed_generation=generation,
        conditions=stamped(previous.conditions, verdicts, generation, now),
        keys=found.keys,
        loaded_by=str(found.reach.loaded) if found.keys and not is_gone else None,
        revoked_on=str(found.reach.dropped) if is_gone else None,
        url=found.url,
    )


def is_waiting(status: ApiKeyStatus) -> bool:
    """Whether the pods' next words are waited for. Not of one that is stalled: what could mend it comes from elsewhere."""
    if any(each.type == Type.STALLED for each in status.conditions):
        return False
    words = (status.loaded_by, status.revoked_on)
    return any(text is not None and text.partition("/")[0] != text.partition("/")[2] for text in words) or any(
        each.type == Type.RECONCILING for each in status.conditions
    )


def _first(problems: Sequence[Problem]) -> Problem | None:
    return min(problems, key=lambda each: not each.is_stalled, default=None)


def _ready(found: Found) -> tuple[Verdict, ...]:
    problem = _first(found.problems)
    if found.revoked is not None:
        is_done = found.reach.dropped.is_complete
        text = f"{found.revoked.message}: {found.reach.dropped} pods have dropped it"
        return ready(
            "False", found.revoked.reason, text, reconciling=not is_done, stalled=is_done and problem is not None and problem.is_stalled
        )
    if problem is not None:
        return ready("False", problem.reason, problem.message, stalled=problem.is_stalled, reconciling=not problem.is_stalled)
    if not found.keys:
        return ready("Unknown", "Paused", "the annotation tailrace.dev/paused stops all writes: there is no key yet")
    usable = found.reach.usable
    if not usable.of:
        return ready("Unknown", "NoPodReady", "no pod of the QueryAPI is ready", reconciling=True)
    if not usable.is_complete:
        return ready("Unknown", "WaitingForPods", f"{usable} pods admit it", reconciling=True)
    if found.is_rotating:
        return ready("True", "Rotating", f"{usable} pods admit it; it is being replaced")
    return ready("True", "Loaded", f"{usable} pods admit it")


def _of(kind: Type, found: Found, reason: str, message: str) -> Verdict:
    mine = [each for each in found.problems if each.type == kind]
    if not mine:
        return Verdict(kind, "True", reason, message)
    return Verdict(kind, "False", (_first(mine) or mine[0]).reason, listed([each.message for each in mine]))


def _accepted(found: Found) -> Verdict:
    return _of(Type.ACCEPTED, found, "Accepted", "the spec is valid and its QueryAPI admits it")


def _references(found: Found, previous: ApiKeyStatus) -> Verdict:
    if any(each.reason == "InvalidSpec" for each in found.problems):
        return Verdict(Type.RESOLVED_REFS, "Unknown", "InvalidSpec", "the spec can't be read")
    told = any(each.type == Type.RESOLVED_REFS and each.reason == REPLACED for each in previous.conditions)
    if found.keys and (found.is_replaced or (told and found.keys == previous.keys)):
        since = found.keys[-1].not_before.strftime("%Y-%m-%dT%H:%M:%SZ")
        message = f"the Secret was deleted or changed: since {since} the key that it holds now is valid, and the earlier one is not"
        return _of(Type.RESOLVED_REFS, found, REPLACED, message)
    return _of(Type.RESOLVED_REFS, found, "Resolved", "the QueryAPI and the Secret are there")


def _programmed(found: Found) -> Verdict:
    kind = Type.PROGRAMMED
    failed = _of(kind, found, "Programmed", f"{found.reach.loaded} pods have it as it is")
    if not failed.is_true:
        return failed
    if found.revoked is not None:
        return Verdict(kind, "False", found.revoked.reason, f"{found.reach.dropped} pods have dropped it")
    problem = _first(found.problems)
    if not found.keys or (problem is not None and problem.reason == "InvalidSpec"):
        return Verdict(kind, "False", problem.reason if problem else "NoKey", "there is nothing that pods could load")
    if not found.reach.loaded.of:
        return Verdict(kind, "Unknown", "NoPodReady", "no pod of the QueryAPI is ready")
    if not found.reach.loaded.is_complete:
        return Verdict(kind, "Unknown", "WaitingForPods", f"{found.reach.loaded} pods have it as it is")
    return failed
