"""What a status says of every situation, and how kubectl wait, kstatus (Flux) and Argo CD read it."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.findings import Finding
from tailrace_contract.runstore import RunStoreSpec
from tailrace_contract.status import QueriesStatus, QueryAPIStatus, RefusedQuery, RunStoreStatus
from tailrace_operator import problems
from tailrace_operator.conditions import is_changed, read_status, status_body
from tailrace_operator.errors import Conflict, Forbidden, Foreign, Invalid, Unavailable
from tailrace_operator.keyadmission import NOT_ADMITTED
from tailrace_operator.keystatus import REPLACED
from tailrace_operator.problems import Problem
from tailrace_operator.references import References, SecretKey
from tailrace_operator.reports import GatewayReport, PodReport
from tailrace_operator.rollout import STUCK_REASONS
from tailrace_operator.status import Observed, query_api_status, run_store_status

Json = dict[str, Any]
NOW = datetime(2026, 11, 30, 22, tzinfo=UTC)
UID, GENERATION = "6f1f", 7
GITOPS = Path(__file__).parents[2] / "docs" / "gitops"
EMBEDDED = RunStoreSpec.model_validate_json('{"embedded":{}}')

API: Json = {
    "apiVersion": "tailrace.dev/v1alpha1",
    "kind": "QueryAPI",
    "metadata": {"name": "shop", "namespace": "retail", "uid": UID, "generation": GENERATION},
    "spec": {},
    "status": {"observedGeneration": -1},
}


def pod(name: str, *, is_ready: bool = True, waiting: str = "") -> Json:
    status: Json = {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]}
    if waiting:
        status["containerStatuses"] = [{"name": "gateway", "state": {"waiting": {"reason": waiting, "message": f"why {waiting}"}}}]
    return {"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}}, "status": status}


def deployment(replicas: int = 2, available: int | None = None, conditions: tuple[Json, ...] = ()) -> Json:
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": replicas},
        "status": {
            "observedGeneration": 1,
            "replicas": replicas,
            "updatedReplicas": replicas,
            "availableReplicas": replicas if available is None else available,
            "conditions": list(conditions),
        },
    }


SERVES = GatewayReport(QueriesStatus(total=6, served=6), 2, is_stale=False)
LOADED = PodReport(UID, GENERATION, {"retail": 100}, {}, is_gateway_up=True, gateway=SERVES)
BEHIND = replace(LOADED, generation=GENERATION - 1)
REFUSES = replace(
    LOADED,
    gateway=GatewayReport(
        QueriesStatus(total=6, served=5, refused=(RefusedQuery(name="orders", code="unknown_table", message="no table orders"),)), 2, False
    ),
)
GOOD = Observed(deployment(), (pod("a"), pod("b")), {"uid-a": LOADED, "uid-b": LOADED})


def with_problem(problem: Problem, base: Observed = GOOD) -> Observed:
    return replace(base, problems=(*base.problems, problem), is_applied=False)


def with_reports(**reports: PodReport) -> Observed:
    return replace(GOOD, reports={f"uid-{name}": report for name, report in reports.items()})


QUOTA = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: small"}
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
FINDING = Finding(("spec", "queries", 0, "params", "id", "default"), "default: must be a whole number", "remove the quotes")
NOTHING = Observed(None, (), {}, is_applied=False)

# situation: (what was found, Ready, its reason, Reconciling/Stalled, words of the message, False conditions, kstatus, Argo CD)
TABLE: dict[str, tuple[Observed, str, str, str, str, set[str], str, str]] = {
    "all is well": (GOOD, "True", "Ready", "", "all 2 pods", set(), "Current", "Healthy"),
    "one pod": (
        Observed(deployment(1), (pod("a"),), {"uid-a": LOADED}),
        "True", "Ready", "", "the pod serves", set(), "Current", "Healthy",
    ),
    "scaled to zero": (Observed(deployment(0), (), {}), "True", "ScaledToZero", "", "nothing is served", set(), "Current", "Healthy"),
    "nothing there yet": (NOTHING, "Unknown", "Applying", "Reconciling", "being applied", set(), "InProgress", "Progressing"),
    "no pod is ready yet": (
        Observed(deployment(available=0), (pod("a", is_ready=False),), {}),
        "Unknown", "RollingOut", "Reconciling", "0 of 2", set(), "InProgress", "Progressing",
    ),
    "a pod is behind": (
        with_reports(a=LOADED, b=BEHIND),
        "Unknown", "WaitingForPods", "Reconciling", "1/2 pods run on this generation; behind: b", set(), "InProgress", "Progressing",
    ),
    "a pod does not answer": (
        with_reports(a=LOADED),
        "Unknown", "WaitingForPods", "Reconciling", "b (no answer)", set(), "InProgress", "Progressing",
    ),
    "a pod runs on another API's plan": (
        with_reports(a=LOADED, b=replace(LOADED, uid="other")),
        "Unknown", "WaitingForPods", "Reconciling", "behind: b", set(), "InProgress", "Progressing",
    ),
    "the gateway has not spoken of it yet": (
        with_reports(a=LOADED, b=replace(LOADED, gateway=None)),
        "Unknown", "WaitingForPods", "Reconciling", "behind: b", set(), "InProgress", "Progressing",
    ),
    "a ConfigMap is not there yet in a pod": (
        replace(GOOD, configs={"retail/queries": "f00"}, reports={"uid-a": replace(LOADED, configs={"retail/queries": "f00"}), "uid-b": LOADED}),
        "Unknown", "WaitingForPods", "Reconciling", "behind: b", set(), "InProgress", "Progressing",
    ),
    "a pod that isn't ready is not asked": (
        replace(GOOD, pods=(*GOOD.pods, pod("c", is_ready=False))),
        "True", "Ready", "", "all 2", set(), "Current", "Healthy",
    ),
    "a pod is lost": (
        replace(GOOD, deployment=deployment(3, available=2)),
        "Unknown", "RollingOut", "Reconciling", "2 of 3 pods are available", set(), "InProgress", "Progressing",
    ),
    "a query is refused": (
        with_reports(a=LOADED, b=REFUSES),
        "False", "QueryRefused", "", "orders: no table orders", set(), "InProgress", "Degraded",
    ),
    "the last good is served": (
        with_reports(a=LOADED, b=replace(LOADED, gateway=replace(SERVES, is_stale=True))),
        "False", "Stale", "", "on b", set(), "InProgress", "Degraded",
    ),
    "Python is down": (
        with_reports(a=LOADED, b=replace(LOADED, is_gateway_up=False)),
        "True", "Ready", "", "all 2", {"GatewayHealthy"}, "Current", "Healthy",
    ),
    "the spec is invalid": (
        with_problem(problems.invalid_spec([FINDING])),
        "False", "InvalidSpec", "Stalled", "spec.queries[0].params.id.default: must be a whole number (remove the quotes)",
        {"Accepted", "Programmed"}, "Failed", "Degraded",
    ),
    "an embedded store and two pods": (
        with_problem(problems.embedded_needs_one_pod("runs", 2)),
        "False", "EmbeddedNeedsOnePod", "Stalled", "RunStore runs is embedded", {"Accepted"}, "Failed", "Degraded",
    ),
    "no RunStore": (
        with_problem(problems.run_store_missing("runs"), NOTHING),
        "False", "RunStoreNotFound", "Reconciling", "RunStore runs is not there", {"ResolvedRefs"}, "InProgress", "Progressing",
    ),
    "a RunStore that is broken": (
        with_problem(problems.run_store_invalid("runs")),
        "False", "RunStoreInvalid", "Stalled", "RunStore runs", {"ResolvedRefs"}, "Failed", "Degraded",
    ),
    "no Secret": (
        replace(GOOD, problems=(Problem(problems.Type.RESOLVED_REFS, "SecretNotFound", "Secret db is not there", False),)),
        "False", "SecretNotFound", "Reconciling", "Secret db", {"ResolvedRefs"}, "InProgress", "Progressing",
    ),
    "a URL that is none, and a ConfigMap that is missing": (
        replace(
            GOOD,
            problems=(
                *problems.config_maps_missing(["queries"]),
                Problem(problems.Type.RESOLVED_REFS, "InvalidUrl", "Secret db, key url: sslmode: malformed", True),
            ),
        ),
        "False", "InvalidUrl", "Stalled", "sslmode: malformed", {"ResolvedRefs"}, "Failed", "Degraded",
    ),
    "a stranger's Service": (
        with_problem(problems.foreign(Foreign("Service retail/shop"))),
        "False", "ForeignObject", "Stalled", "Service retail/shop is there already", {"Programmed"}, "Failed", "Degraded",
    ),
    "the API server is away": (
        with_problem(problems.write_failed(Unavailable("apply deployments: the API server did not answer"))),
        "False", "ServerUnavailable", "Reconciling", "did not answer", {"Programmed"}, "InProgress", "Progressing",
    ),
    "not allowed": (
        with_problem(problems.write_failed(Forbidden("create roles: forbidden"))),
        "False", "Forbidden", "Stalled", "create roles", {"Programmed"}, "Failed", "Degraded",
    ),
    "the namespace goes": (
        with_problem(problems.write_failed(Forbidden("create roles: forbidden", is_terminating=True))),
        "False", "Forbidden", "Reconciling", "create roles", {"Programmed"}, "InProgress", "Progressing",
    ),
    "refused by the API server": (
        with_problem(problems.write_failed(Invalid("apply deployments: no"))),
        "False", "RefusedByServer", "Stalled", "no", {"Programmed"}, "Failed", "Degraded",
    ),
    "somebody else was quicker": (
        with_problem(problems.write_failed(Conflict("apply services: it was changed"))),
        "False", "Conflict", "Reconciling", "changed", {"Programmed"}, "InProgress", "Progressing",
    ),
    "an image that can't be pulled": (
        Observed(deployment(available=0), (pod("a", is_ready=False, waiting="ImagePullBackOff"),), {}),
        "False", "ImagePullBackOff", "Stalled", "pod a, container gateway: why ImagePullBackOff", set(), "Failed", "Degraded",
    ),
    "a container that can't be made": (
        Observed(deployment(available=0), (pod("a", is_ready=False, waiting="CreateContainerConfigError"),), {}),
        "False", "CreateContainerConfigError", "Stalled", "why", set(), "Failed", "Degraded",
    ),
    "too late": (
        Observed(deployment(available=0, conditions=(LATE,)), (), {}),
        "False", "ProgressDeadlineExceeded", "Stalled", "timed out", set(), "Failed", "Degraded",
    ),
    "a quota": (
        Observed(deployment(available=0, conditions=(QUOTA,)), (), {}),
        "False", "FailedCreate", "Stalled", "exceeded quota: small", set(), "Failed", "Degraded",
    ),
    "paused with a change": (
        replace(GOOD, is_applied=False, is_paused=True),
        "Unknown", "Paused", "", "stops all writes", set(), "InProgress", "Suspended",
    ),
    "paused with an image that can't be pulled": (
        Observed(deployment(available=0), (pod("a", is_ready=False, waiting="ErrImagePull"),), {}, is_applied=False, is_paused=True),
        "False", "ErrImagePull", "Stalled", "why ErrImagePull", set(), "Failed", "Degraded",
    ),
    "paused without one": (replace(GOOD, is_paused=True), "True", "Ready", "", "all 2", set(), "Current", "Healthy"),
}  # fmt: skip


def status_of(case: str) -> Json:
    return status_body(query_api_status(API, TABLE[case][0], QueryAPIStatus(), NOW))


def conditions(status: Json) -> dict[str, Json]:
    return {each["type"]: each for each in status["conditions"]}


@pytest.mark.parametrize("case", TABLE)
def test_table(case: str) -> None:
    _, ready, reason, extra, words, not_so, _, _ = TABLE[case]
    status = status_of(case)
    found = conditions(status)
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == (ready, reason)
    assert words in found["Ready"]["message"]
    assert {"Reconciling", "Stalled"} & found.keys() == ({extra} if extra else set())
    assert {name for name, each in found.items() if each["status"] == "False"} - {"Ready"} == not_so
    assert {"Accepted", "ResolvedRefs", "Programmed", "GatewayHealthy"} <= found.keys()
    assert status["observedGeneration"] == GENERATION
    assert {each["observedGeneration"] for each in status["conditions"]} == {GENERATION}
    assert all(each["message"] for each in status["conditions"])
    assert QueryAPIStatus.model_validate(read_status(QueryAPIStatus, {"status": status})).observed_generation == GENERATION


@pytest.mark.parametrize("case", TABLE)
def test_said_again_it_is_no_write(case: str) -> None:
    live = {**API, "status": status_of(case)}
    again = query_api_status(API, TABLE[case][0], read_status(QueryAPIStatus, live), NOW + timedelta(hours=1))
    assert not is_changed(live, status_body(again))


@given(st.lists(st.sampled_from(sorted(TABLE)), min_size=1, max_size=6))
def test_times_move_only_when_the_status_flips(path: list[str]) -> None:
    status, at = QueryAPIStatus(), NOW
    for case in path:
        at += timedelta(minutes=1)
        before = {each.type: each for each in status.conditions}
        status = query_api_status(API, TABLE[case][0], status, at)
        for each in status.conditions:
            last = before.get(each.type)
            kept = last is not None and last.status == each.status
            assert each.last_transition_time == (last.last_transition_time if last is not None and kept else at)


def test_an_api_with_tls_is_at_https() -> None:
    sealed = {**API, "spec": {"http": {"tls": {"secretName": "crt"}}}}
    assert query_api_status(sealed, GOOD, QueryAPIStatus(), NOW).url == "https://shop.retail.svc"
    assert query_api_status({**API, "spec": {"http": "nonsense"}}, GOOD, QueryAPIStatus(), NOW).url == "http://shop.retail.svc"


def test_the_numbers() -> None:
    status = status_of("a pod is behind")
    assert status["loadedBy"] == "1/2"
    assert status["url"] == "http://shop.retail.svc"
    assert status["replicas"] == 2
    assert status["selector"] == f"tailrace.dev/queryapi-uid={UID}"
    assert status["queries"] == {"total": 6, "served": 6, "coalesced": 0, "refused": []}
    assert status["keys"] == 2


def test_numbers_of_the_last_time_stand_until_there_are_new_ones() -> None:
    first = query_api_status(API, GOOD, QueryAPIStatus(), NOW)
    then = query_api_status(API, replace(GOOD, reports={}), first, NOW)
    assert (then.queries, then.keys, then.loaded_by) == (first.queries, 2, "0/2")


def test_refused_queries_are_bounded_and_the_same_from_every_pod() -> None:
    many = tuple(RefusedQuery(name=f"q{number:03}", code="c", message="m") for number in range(300))
    report = replace(LOADED, gateway=GatewayReport(QueriesStatus.model_construct(total=300, served=0, refused=many), 1, False))
    status = status_body(query_api_status(API, with_reports(a=report, b=report), QueryAPIStatus(), NOW))
    assert [each["name"] for each in status["queries"]["refused"]] == [f"q{number:03}" for number in range(20)]
    assert "and 15 more" in conditions(status)["Ready"]["message"]
    assert len(conditions(status)["Ready"]["message"]) < 1024


def test_nothing_of_a_secret_is_told() -> None:
    references = References((SecretKey("db", "url", "connection orders", is_url=True),))
    for value in (b"postgresql://me:hunter2@h/db?sslmode=hunter2", b"hunter2://x", b"sqlite:///hunter2", b"\xff\xfehunter2", b"hunter2"):
        found = replace(GOOD, problems=problems.of_secrets(references, {"db": {"url": value}}))
        assert found.problems
        assert "hunter2" not in str(status_body(query_api_status(API, found, QueryAPIStatus(), NOW)))


def test_every_reason_is_in_the_users_guide() -> None:
    guide = (GITOPS.parent / "kubernetes.md").read_text()
    said = {
        each["reason"] for case in TABLE for each in status_of(case)["conditions"] if each["type"] == "Ready" or each["status"] != "True"
    }
    said |= {*STUCK_REASONS, "DeploymentMissing", "NoReport", REPLACED, NOT_ADMITTED}
    sources = "".join(path.read_text() for path in Path(problems.__file__).parent.glob("*.py"))
    written = re.findall(r'(?:Problem\([\w.]+, |Revoked\(|ready\(\s*"\w+", |Verdict\([\w.]+, "(?:False|Unknown)", )"(\w+)"', sources)
    assert {"RoleNotFound", "Suspended", "Loaded", "InvalidUrl", "NoPodReady"} <= set(written), "the pattern finds what it should"
    said |= set(written)
    assert {reason for reason in said if f"`{reason}`" not in guide} == set()


def kstatus(live: Json) -> str:
    """The rules of kubernetes-sigs/cli-utils `pkg/kstatus` for a kind that it does not know, which Flux uses too."""
    meta, status = live["metadata"], live.get("status", {})
    if meta.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != meta["generation"]:
        return "InProgress"
    for each in status.get("conditions", []):
        if each["type"] == "Reconciling" and each["status"] == "True":
            return "InProgress"
        if each["type"] == "Stalled" and each["status"] == "True":
            return "Failed"
    for each in status.get("conditions", []):
        if each["type"] == "Ready":
            return "Current" if each["status"] == "True" else "InProgress"
    return "Current"


# RunStores.

STORE: Json = {
    "kind": "RunStore",
    "metadata": {"name": "runs", "namespace": "retail", "uid": "5", "generation": 2},
    "spec": {"embedded": {}},
}


@pytest.mark.parametrize(
    ("spec", "found", "expected"),
    [
        (EMBEDDED, (), ("True", "Ready", None)),
        (
            EMBEDDED,
            (Problem(problems.Type.RESOLVED_REFS, "SecretNotFound", "Secret x", False),),
            ("False", "SecretNotFound", "Reconciling"),
        ),
        (EMBEDDED, (Problem(problems.Type.RESOLVED_REFS, "InvalidUrl", "Secret x", True),), ("False", "InvalidUrl", "Stalled")),
        (None, (problems.invalid_spec([FINDING]),), ("False", "InvalidSpec", "Stalled")),
    ],
)
def test_run_stores(spec: RunStoreSpec | None, found: tuple[Problem, ...], expected: tuple[str, str, str | None]) -> None:
    status = status_body(run_store_status(STORE, spec, found, RunStoreStatus(), NOW))
    stands = conditions(status)
    extra = next((name for name in ("Reconciling", "Stalled") if name in stands), None)
    assert (stands["Ready"]["status"], stands["Ready"]["reason"], extra) == expected
    assert status.get("backend") == (None if spec is None else "embedded")
    assert kstatus({**STORE, "status": status}) == {None: "Current", "Reconciling": "InProgress", "Stalled": "Failed"}[extra]
    again = run_store_status(STORE, spec, found, read_status(RunStoreStatus, {"status": status}), NOW + timedelta(hours=1))
    assert not is_changed({"status": status}, status_body(again))
