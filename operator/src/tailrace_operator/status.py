"""What a QueryAPI's and a RunStore's status say. Pure: what was found in, the whole status out; rejects nothing.

`Ready` = this generation is applied, rolled out, and acknowledged by every ready pod. Who is asked comes in this order, and the first
that has something against it gives the reason: the spec, its references, the API server, the rollout, the pods, the queries.

    Accepted      the spec is valid
    ResolvedRefs  Secrets, ConfigMaps and the RunStore are found and usable
    Programmed    every ready pod runs on this generation
    GatewayHealthy  Python answers in every ready pod (calls are served without it)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tailrace_contract.runstore import RunStoreSpec
from tailrace_contract.status import REFUSED_SHOWN, AdmittedNamespace, QueriesStatus, QueryAPIStatus, Revocation, RunStoreStatus

from tailrace_operator.conditions import Type, Verdict, listed, ready, stamped
from tailrace_operator.manifest import QUERY_API_UID_LABEL, Manifest, uid_of
from tailrace_operator.problems import Problem
from tailrace_operator.render.service import url
from tailrace_operator.reports import PodReport, merged
from tailrace_operator.rollout import Phase, Rollout, ready_pods, rollout


@dataclass(frozen=True, slots=True)
class Observed:
    """What a reconcile found of a QueryAPI."""

    deployment: Manifest | None
    pods: tuple[Manifest, ...]
    """All pods of the Deployment, of whatever revision."""
    reports: Mapping[str, PodReport]
    """Of the ready pods, by their UID; one that did not answer has none."""
    problems: tuple[Problem, ...] = ()
    is_applied: bool = True
    """Whether the cluster's objects are what this generation asks for."""
    is_paused: bool = False
    """Whether the owner has stopped all writes."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the ConfigMaps of queriesFrom as they are now, by NAMESPACE/NAME."""
    namespaces: tuple[AdmittedNamespace, ...] = ()
    revocation: tuple[Revocation, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Who runs on what is wanted."""

    ready: int
    acknowledged: int
    behind: tuple[str, ...]
    """Names of ready pods that don't, or don't say so."""

    @property
    def share(self) -> str:
        """`2/3`."""
        return f"{self.acknowledged}/{self.ready}"

    @property
    def is_complete(self) -> bool:
        """Whether all do."""
        return self.acknowledged == self.ready


def loaded(uid: str, generation: int, observed: Observed) -> Loaded:
    """Which ready pods have acknowledged a generation."""
    pods = ready_pods(observed.pods)
    behind = tuple(str(pod["metadata"]["name"]) for pod in pods if not _has(observed, pod, uid, generation))
    return Loaded(len(pods), len(pods) - len(behind), behind)


def _has(observed: Observed, pod: Manifest, uid: str, generation: int) -> bool:
    report = observed.reports.get(uid_of(pod))
    return report is not None and report.has_generation(uid, generation, observed.configs)


def query_api_status(api: Manifest, observed: Observed, previous: QueryAPIStatus, now: datetime) -> QueryAPIStatus:
    """The status of a QueryAPI (the live object: its spec may well be invalid)."""
    meta = api["metadata"]
    uid, generation = uid_of(api), int(meta["generation"])
    found = loaded(uid, generation, observed)
    queries, keys = _served(uid, generation, observed) or (previous.queries, previous.keys)
    state = rollout(observed.deployment, observed.pods)
    verdicts = [
        *_ready(observed, found, state, queries if found.acknowledged else None),
        _of_problems(Type.ACCEPTED, "Accepted", "the spec is valid", observed.problems),
        _references(observed.problems),
        _programmed(observed, found),
        _gateway(observed),
    ]
    return QueryAPIStatus(
        observed_generation=generation,
        conditions=stamped(previous.conditions, verdicts, generation, now),
        url=url(meta["name"], meta["namespace"], api),
        replicas=int(((observed.deployment or {}).get("status") or {}).get("replicas") or 0),
        selector=f"{QUERY_API_UID_LABEL}={uid}",
        loaded_by=found.share,
        queries=queries,
        keys=keys,
        namespaces=observed.namespaces,
        revocation=observed.revocation,
    )


def _served(uid: str, generation: int, observed: Observed) -> tuple[QueriesStatus, int] | None:
    """What the pods that acknowledged it say they serve."""
    reports = [
        report.gateway
        for pod in ready_pods(observed.pods)
        if _has(observed, pod, uid, generation) and (report := observed.reports.get(uid_of(pod))) is not None and report.gateway is not None
    ]
    return merged(tuple(reports), REFUSED_SHOWN)


def _ready(observed: Observed, found: Loaded, state: Rollout, queries: QueriesStatus | None) -> tuple[Verdict, ...]:
    problem = _first(observed.problems)
    if problem is not None:
        return ready("False", problem.reason, problem.message, stalled=problem.is_stalled, reconciling=not problem.is_stalled)
    if not observed.is_applied and not observed.is_paused:
        return ready("Unknown", "Applying", "this generation is being applied", reconciling=True)
    if state.phase is Phase.STUCK:
        return ready("False", state.reason, state.message, stalled=True)
    if not observed.is_applied:
        return ready("Unknown", "Paused", "the annotation tailrace.dev/paused stops all writes: this generation is not applied")
    if state.phase is Phase.UNDER_WAY:
        return ready("Unknown", state.reason, state.message, reconciling=True)
    if not found.is_complete:
        return ready("Unknown", "WaitingForPods", _behind(observed, found), reconciling=True)
    if queries is not None and (queries.refused or queries.served < queries.total):
        texts = [f"{each.name}{f' for role {each.role}' if each.role else ''}: {each.message}" for each in queries.refused]
        return ready("False", "QueryRefused", listed(texts) or f"{queries.total - queries.served} of {queries.total} queries are refused")
    if stale := _stale(observed):
        return ready("False", "Stale", f"the last good is served of what can't be read now, on {listed(stale)}")
    if not found.ready:
        return ready("True", "ScaledToZero", "replicas is 0: nothing is served")
    return ready("True", "Ready", f"all {found.ready} pods serve this generation" if found.ready > 1 else "the pod serves this generation")


def _stale(observed: Observed) -> list[str]:
    return [
        str(pod["metadata"]["name"])
        for pod in ready_pods(observed.pods)
        if (report := observed.reports.get(uid_of(pod))) is not None and report.gateway is not None and report.gateway.is_stale
    ]


def _first(problems: Iterable[Problem]) -> Problem | None:
    """The one that is told: what nobody but the owner can mend before what is waited for, and in the order of the conditions."""
    order = (Type.ACCEPTED, Type.RESOLVED_REFS, Type.PROGRAMMED)
    return min(problems, key=lambda each: (not each.is_stalled, order.index(each.type)), default=None)


def _of_problems(kind: Type, reason: str, message: str, problems: Sequence[Problem]) -> Verdict:
    mine = [each for each in problems if each.type == kind]
    if not mine:
        return Verdict(kind, "True", reason, message)
    first = _first(mine) or mine[0]
    return Verdict(kind, "False", first.reason, listed([each.message for each in sorted(mine, key=lambda each: each is not first)]))


def _references(problems: Sequence[Problem]) -> Verdict:
    if any(each.reason == "InvalidSpec" for each in problems):
        return Verdict(Type.RESOLVED_REFS, "Unknown", "InvalidSpec", "the spec can't be read")
    return _of_problems(Type.RESOLVED_REFS, "Resolved", "everything that the spec refers to is there", problems)


def _programmed(observed: Observed, found: Loaded) -> Verdict:
    kind = Type.PROGRAMMED
    failed = _of_problems(kind, "Programmed", f"{found.share} pods run on this generation", observed.problems)
    if not failed.is_true:
        return failed
    if any(each.reason == "InvalidSpec" for each in observed.problems):
        return Verdict(kind, "False", "InvalidSpec", "the pods keep what they had")
    if not found.is_complete:
        return Verdict(kind, "Unknown", "WaitingForPods", _behind(observed, found))
    if not found.ready and int(((observed.deployment or {}).get("spec") or {}).get("replicas", 1)) > 0:
        return Verdict(kind, "Unknown", "NoPodReady", "no pod is ready yet")
    return failed


def _behind(observed: Observed, found: Loaded) -> str:
    silent = {str(pod["metadata"]["name"]) for pod in ready_pods(observed.pods) if uid_of(pod) not in observed.reports}
    texts = [f"{name} (no answer)" if name in silent else name for name in found.behind]
    return f"{found.share} pods run on this generation; behind: {listed(texts)}"


def _gateway(observed: Observed) -> Verdict:
    kind = Type.GATEWAY_HEALTHY
    pods = ready_pods(observed.pods)
    reports = [(str(pod["metadata"]["name"]), observed.reports[uid_of(pod)]) for pod in pods if uid_of(pod) in observed.reports]
    if down := [name for name, report in reports if not report.is_gateway_up]:
        return Verdict(kind, "False", "GatewayDown", f"calls are served, but changes don't arrive on {listed(down)}")
    if not pods:
        return Verdict(kind, "Unknown", "NoPodReady", "no pod is ready")
    if len(reports) < len(pods):
        return Verdict(kind, "Unknown", "NoReport", f"{len(reports)} of {len(pods)} ready pods say how they are")
    return Verdict(kind, "True", "Healthy", "Python answers in every ready pod")


def run_store_status(
    store: Manifest, spec: RunStoreSpec | None, problems: Sequence[Problem], previous: RunStoreStatus, now: datetime
) -> RunStoreStatus:
    """The status of a RunStore. `spec`: None when it is invalid (then a problem says why).

    Ready means that it may be used. Whether a database answers is known to the pods that use it, and told by their metrics.
    """
    generation = int(store["metadata"]["generation"])
    problem = _first(problems)
    if problem is not None:
        verdicts = ready("False", problem.reason, problem.message, stalled=problem.is_stalled, reconciling=not problem.is_stalled)
    else:
        verdicts = ready("True", "Ready", "it may be used")
    return RunStoreStatus(
        observed_generation=generation,
        conditions=stamped(
            previous.conditions,
            [*verdicts, _of_problems(Type.ACCEPTED, "Accepted", "the spec is valid", problems), _references(problems)],
            generation,
            now,
        ),
        backend=None if spec is None else "embedded" if spec.embedded is not None else "postgres",
    )
