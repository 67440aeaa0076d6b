"""When a rollout is done, goes on, or is stuck."""

from typing import Any

import pytest
from tailrace_operator.rollout import STUCK_REASONS, Phase, newest, ready_pods, rollout

Json = dict[str, Any]


def deployment(
    replicas: int = 2,
    updated: int | None = None,
    total: int | None = None,
    available: int | None = None,
    *,
    generation: int = 3,
    observed: int = 3,
    conditions: tuple[Json, ...] = (),
) -> Json:
    status = {
        "observedGeneration": observed,
        "replicas": replicas if total is None else total,
        "updatedReplicas": replicas if updated is None else updated,
        "availableReplicas": replicas if available is None else available,
        "conditions": list(conditions),
    }
    # The API server leaves zeros out.
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": {k: v for k, v in status.items() if v}}


def pod(
    name: str, *, revision: str = "new", at: str = "2026-01-02T00:00:00Z", going: bool = False, waiting: str = "", **status: Any
) -> Json:
    meta: Json = {"name": name, "uid": name, "creationTimestamp": at, "labels": {"pod-template-hash": revision}}
    if going:
        meta["deletionTimestamp"] = at
    if waiting:
        status["containerStatuses"] = [
            {"name": "dataplane", "state": {"running": {}}},
            {"name": "gateway", "state": {"waiting": {"reason": waiting, "message": f"why {waiting}"}}},
        ]
    return {"metadata": meta, "status": status}


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


LATE = condition("Progressing", "False", "ProgressDeadlineExceeded", "ReplicaSet has timed out progressing.")
QUOTA = condition("ReplicaFailure", "True", "FailedCreate", 'pods "shop-x" is forbidden: exceeded quota: small')
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: Insufficient cpu."}]}

TABLE: dict[str, tuple[Json | None, list[Json], Phase, str, str]] = {
    "none yet": (None, [], Phase.UNDER_WAY, "DeploymentMissing", "not there"),
    "no status at all": ({"metadata": {"generation": 1}, "spec": {}}, [], Phase.UNDER_WAY, "RollingOut", "not taken up"),
    "not taken up": (deployment(observed=2), [], Phase.UNDER_WAY, "RollingOut", "not taken up"),
    "done": (deployment(), [], Phase.DONE, "RolledOut", "2 of 2"),
    "done with none": (deployment(0), [], Phase.DONE, "RolledOut", "0 of 0"),
    "too few new": (deployment(updated=1, total=3), [], Phase.UNDER_WAY, "RollingOut", "1 of 2 pods are of the new revision"),
    "old ones left": (deployment(total=3), [], Phase.UNDER_WAY, "RollingOut", "1 pods of the old revision"),
    "not available yet": (deployment(available=1), [], Phase.UNDER_WAY, "RollingOut", "1 of 2 pods are available"),
    "to be scaled down": (deployment(1, updated=1, total=2), [], Phase.UNDER_WAY, "RollingOut", "1 pods"),
    "not scheduled": (deployment(available=0), [pod("a", **UNSCHEDULABLE)], Phase.UNDER_WAY, "RollingOut", "Insufficient cpu"),
    "quota": (deployment(updated=0, total=0, available=0, conditions=(QUOTA,)), [], Phase.STUCK, "FailedCreate", "exceeded quota"),
    "quota in the past": (
        deployment(updated=1, total=2, conditions=({**QUOTA, "status": "False"},)),
        [],
        Phase.UNDER_WAY,
        "RollingOut",
        "1 of 2",
    ),
    "too late": (deployment(available=0, conditions=(LATE,)), [], Phase.STUCK, "ProgressDeadlineExceeded", "timed out"),
    "too late, not scheduled": (
        deployment(available=0, conditions=(LATE,)),
        [pod("a", **UNSCHEDULABLE)],
        Phase.STUCK,
        "ProgressDeadlineExceeded",
        "a can't be scheduled: 0/3 nodes",
    ),
    "late once, done now": (deployment(conditions=(LATE,)), [], Phase.DONE, "RolledOut", "2 of 2"),
    "image": (
        deployment(available=1),
        [pod("a", waiting="ImagePullBackOff")],
        Phase.STUCK,
        "ImagePullBackOff",
        "pod a, container gateway: why",
    ),
    "starting": (deployment(available=1), [pod("a", waiting="ContainerCreating")], Phase.UNDER_WAY, "RollingOut", "1 of 2"),
    "image of a pod that goes": (
        deployment(available=1),
        [pod("a", waiting="ImagePullBackOff", going=True), pod("b")],
        Phase.UNDER_WAY,
        "RollingOut",
        "1 of 2",
    ),
    "image of the revision before": (
        deployment(updated=1, total=2),
        [pod("a", revision="old", at="2026-01-01T00:00:00Z", waiting="ImagePullBackOff"), pod("b")],
        Phase.UNDER_WAY,
        "RollingOut",
        "1 of 2",
    ),
    "image, before the change is taken up": (
        deployment(available=1, observed=2),
        [pod("a", waiting="ImagePullBackOff")],
        Phase.UNDER_WAY,
        "RollingOut",
        "not taken up",
    ),
    "a broken pod beside a full set": (deployment(), [pod("a", waiting="ImagePullBackOff")], Phase.DONE, "RolledOut", "2 of 2"),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(case: str) -> None:
    found, pods, phase, reason, words = TABLE[case]
    result = rollout(found, pods)
    assert (result.phase, result.reason) == (phase, reason)
    assert words in result.message


@pytest.mark.parametrize("reason", STUCK_REASONS)
def test_containers_that_wait_in_vain(reason: str) -> None:
    result = rollout(deployment(available=1), [pod("a", waiting=reason)])
    assert (result.phase, result.reason, result.message) == (Phase.STUCK, reason, f"pod a, container gateway: why {reason}")


def test_the_newest_revision_is_that_of_the_youngest_pod_that_stays() -> None:
    pods = [
        pod("b", revision="2", at="2026-01-02T00:00:00Z"),
        pod("a", revision="2", at="2026-01-01T00:00:00Z"),
        pod("c", revision="1", at="2026-01-01T00:00:00Z"),
        pod("d", revision="3", at="2026-01-03T00:00:00Z", going=True),
    ]
    assert [each["metadata"]["name"] for each in newest(pods)] == ["a", "b"]
    assert newest([]) == []


def test_pods_that_get_calls() -> None:
    yes = {"conditions": [{"type": "Ready", "status": "True"}]}
    no = {"conditions": [{"type": "Ready", "status": "False"}]}
    pods = [pod("b", **yes), pod("a", **yes), pod("c", **no), pod("d", going=True, **yes), pod("e")]
    assert [each["metadata"]["name"] for each in ready_pods(pods)] == ["a", "b"]
