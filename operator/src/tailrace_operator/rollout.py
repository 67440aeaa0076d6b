"""How far a Deployment's rollout is, and why it doesn't go on. Pure: live objects in, one `Rollout` out.

The rules are those of `kubectl rollout status`, with the containers' own words where pods can't start.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace_operator.conditions import bounded, listed
from tailrace_operator.manifest import Manifest, is_going, labels_of, uid_of

STUCK_REASONS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Why a container waits that won't run by waiting longer."""

_DEADLINE = "ProgressDeadlineExceeded"
_HASH = "pod-template-hash"


class Phase(StrEnum):
    """Where the rollout stands."""

    DONE = "Done"
    UNDER_WAY = "UnderWay"
    STUCK = "Stuck"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The phase, with a word for programs and a text for people."""

    phase: Phase
    reason: str
    message: str


def rollout(deployment: Manifest | None, pods: Iterable[Manifest]) -> Rollout:
    """Of the Deployment as it is wanted now. `pods`: all of its pods, of whatever revision."""
    if deployment is None:
        return Rollout(Phase.UNDER_WAY, "DeploymentMissing", "the Deployment is not there yet")
    status: dict[str, Any] = deployment.get("status") or {}
    if int(status.get("observedGeneration", 0)) < int(deployment["metadata"].get("generation", 0)):
        return Rollout(Phase.UNDER_WAY, "RollingOut", "the Deployment's change is not taken up yet")
    wanted = int(deployment["spec"].get("replicas", 1))
    updated, total, available = (int(status.get(name) or 0) for name in ("updatedReplicas", "replicas", "availableReplicas"))
    if updated >= wanted and total <= updated and available >= updated:
        return Rollout(Phase.DONE, "RolledOut", f"{available} of {wanted} pods are available")
    return _stuck(status, newest(pods)) or _under_way(wanted, updated, total, available, newest(pods))


def _stuck(status: dict[str, Any], pods: list[Manifest]) -> Rollout | None:
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":  # A quota, a limit range, an admission plug-in: the API server's own words.
        return Rollout(Phase.STUCK, failure.get("reason") or "ReplicaFailure", bounded(str(failure.get("message", ""))))
    waiting = [found for pod in pods if (found := _waiting(pod)) is not None]
    if waiting:
        return Rollout(Phase.STUCK, waiting[0][0], listed([text for _, text in waiting], 2))
    progressing = conditions.get("Progressing", {})
    if progressing.get("status") == "False" and progressing.get("reason") == _DEADLINE:
        detail = listed([text for pod in pods if (text := _unready(pod))], 2) or str(progressing.get("message", ""))
        return Rollout(Phase.STUCK, _DEADLINE, bounded(f"pods did not become available in time: {detail}"))
    return None


def _under_way(wanted: int, updated: int, total: int, available: int, pods: list[Manifest]) -> Rollout:
    if updated < wanted:
        text = f"{updated} of {wanted} pods are of the new revision"
    elif total > updated:
        text = f"{total - updated} pods of the old revision are still there"
    else:
        text = f"{available} of {wanted} pods are available"
    detail = listed([why for pod in pods if (why := _unready(pod))], 2)
    return Rollout(Phase.UNDER_WAY, "RollingOut", bounded(f"{text}: {detail}" if detail else text))


def newest(pods: Iterable[Manifest]) -> list[Manifest]:
    """Pods of the revision that was begun last, but for those that are going, by name. Older ones may well be broken: they are replaced."""
    staying = [pod for pod in pods if not is_going(pod)]
    if not staying:
        return []
    latest = max(staying, key=lambda pod: (str(pod["metadata"].get("creationTimestamp") or ""), pod["metadata"]["name"]))
    revision = labels_of(latest).get(_HASH)
    return sorted((pod for pod in staying if labels_of(pod).get(_HASH) == revision), key=lambda pod: str(pod["metadata"]["name"]))


def _waiting(pod: Manifest) -> tuple[str, str] | None:
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waits = (container.get("state") or {}).get("waiting") or {}
        if waits.get("reason") in STUCK_REASONS:
            text = f"pod {pod['metadata']['name']}, container {container['name']}: {waits.get('message') or waits['reason']}"
            return str(waits["reason"]), bounded(text, 400)
    return None


def _unready(pod: Manifest) -> str:
    """Why a pod does not run, if it says so: it can't be scheduled, or a container waits."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return bounded(f"pod {pod['metadata']['name']} can't be scheduled: {condition.get('message', '')}", 400)
    found = _waiting(pod)
    return found[1] if found is not None else ""


def ready_pods(pods: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Pods that get calls: ready and not going, by name."""
    found = [pod for pod in pods if not is_going(pod) and _is_ready(pod)]
    return tuple(sorted(found, key=lambda pod: (str(pod["metadata"]["name"]), uid_of(pod))))


def _is_ready(pod: Manifest) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in (pod.get("status") or {}).get("conditions") or ())
