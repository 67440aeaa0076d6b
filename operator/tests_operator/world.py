"""A cluster in memory with our reconcilers at work in it: what the tests of the operator's engine share.

The Deployment controller, the kubelet and the pods are played by `roll` and `Pods.says`; nothing happens by itself.
"""

import asyncio
import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from tailrace_contract.resource import Kind as Custom
from tailrace_operator.acknowledgement import Answer, Deletions, PodState, is_pod_ready
from tailrace_operator.engine import Engine
from tailrace_operator.handlers import WATCHED
from tailrace_operator.health import Health
from tailrace_operator.manifest import DEPLOYMENT, POD, QUERY_API, QUERY_API_LABEL, QUERY_API_UID_LABEL, Object, ObjectRef, is_going, uid_of
from tailrace_operator.observe import Event, Observation
from tailrace_operator.pods import Pods
from tailrace_operator.queue import Done, Outcome, Queue, Schedule
from tailrace_operator.reconcile import QueryAPIs
from tailrace_operator.render import Installation
from tailrace_operator.reports import GatewayReport, PodReport, QueriesStatus
from tailrace_operator.run_stores import RunStores
from tailrace_operator.wakeups import Key, Wakeups

from .fake_cluster import FakeCluster

GOLDEN = Path(__file__).parents[2] / "crds" / "golden" / "valid"
SHOP, RUNS = Key(Custom.QUERY_API, "retail", "shop"), Key(Custom.RUN_STORE, "retail", "runs")


class FakePoller:
    """Plays the pods: each says what was put here under its UID; others are silent."""

    def __init__(self) -> None:
        self.reports: dict[str, PodReport] = {}

    async def ask(self, pods: Iterable[Object]) -> tuple[PodState, ...]:
        states = []
        for pod in pods:
            report = self.reports.get(uid_of(pod))
            answer = Answer.REPORT if report is not None else Answer.SILENT
            states.append(PodState(uid_of(pod), is_pod_ready(pod), is_going(pod), True, answer, report))
        return tuple(states)


class World:
    """One operator over a cluster; a second one over the same cluster is another World."""

    def __init__(self, cluster: FakeCluster | None = None, *, watched: tuple[str, ...] = ()) -> None:
        self.cluster = cluster or FakeCluster()
        self.told: list[Observation] = []
        self.poller = FakePoller()
        self.queue: Queue[Key] = Queue(Schedule())
        self.wakeups = Wakeups()
        self.deletions = Deletions(20)
        self.pods = Pods(self.cluster, self.poller)
        self.health = Health()
        self.engine = Engine(self.cluster, self.queue, self.wakeups, self.pods, self.deletions, self.told.append, self.health, watched)
        installation = Installation("gateway:1", "dataplane:1", None, "tailrace")
        apis = QueryAPIs(self.cluster, self.engine, self.pods, self.deletions, installation, watched, self.told.append)
        self.engine.reconcilers = {Custom.QUERY_API: apis.reconcile, Custom.RUN_STORE: RunStores(self.cluster).reconcile}

    async def reconcile(self, key: Key = SHOP) -> Outcome:
        return await self.engine.work(key)

    async def settle(self, key: Key = SHOP, rounds: int = 6) -> None:
        """Reconciles until nothing is written any more."""
        for _ in range(rounds):
            before = len(self.cluster.writes)
            await self.reconcile(key)
            if len(self.cluster.writes) == before:
                return
        raise AssertionError(f"it never settles: {self.cluster.written()}")

    def status(self, key: Key = SHOP) -> Object:
        found: Object = self.cluster.objects[ObjectRef(QUERY_API, key.namespace, key.name)]["status"]
        return found

    def condition(self, kind: str, key: Key = SHOP) -> tuple[str, str] | None:
        """Status and reason of a condition."""
        found = [each for each in self.status(key).get("conditions", ()) if each["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else None

    def failures(self) -> list[str]:
        return [str(each.fields["detail"]) for each in self.told if each.event is Event.RECONCILE_FAILED]

    def roll(self, replicas: int | None = None) -> list[Object]:
        """The Deployment's change is rolled out: pods are there and ready."""
        ref = ObjectRef(DEPLOYMENT, "retail", "shop")
        live = self.cluster.objects[ref]
        count = live["spec"]["replicas"] if replicas is None else replicas
        uid = live["metadata"]["labels"][QUERY_API_UID_LABEL]
        made = []
        for number in range(count):
            labels = {QUERY_API_LABEL: "shop", QUERY_API_UID_LABEL: uid, "pod-template-hash": "h"}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"shop-{number}", "namespace": "retail", "labels": labels},
                "spec": {},
                "status": {
                    "podIP": f"10.0.0.{number + 1}",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": "dataplane", "state": {"running": {}}}],
                },
            }
            made.append(self.cluster.outside(pod))
        generation = self.cluster.objects[ref]["metadata"]["generation"]
        numbers = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), count)
        self.cluster.edit(ref, lambda edited: edited.update(status={"observedGeneration": generation, **numbers}))
        return made

    def acknowledge(self, **sources: int) -> None:
        """Every pod runs on the QueryAPI as it is; `sources`: highest resourceVersion of ApiKeys by namespace."""
        api = self.cluster.objects[ObjectRef(QUERY_API, "retail", "shop")]
        said = GatewayReport(QueriesStatus(total=1, served=1), 2, False)
        for ref, pod in self.cluster.objects.items():
            if ref.kind == POD:
                self.poller.reports[uid_of(pod)] = PodReport(uid_of(api), api["metadata"]["generation"], dict(sources), {}, True, said)


def document(name: str) -> Object:
    """A golden document."""
    loaded: Object = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    return loaded


def secret(name: str, namespace: str = "retail", **data: str) -> Object:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": encoded}


def run_store(**spec: Any) -> Object:
    metadata = {"name": "runs", "namespace": "retail"}
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "RunStore", "metadata": metadata, "spec": spec or {"embedded": {}}}


def query_api(replicas: int = 1, **spec: Any) -> Object:
    """A small QueryAPI `shop` in `retail`, on the Secret `orders-db` and the RunStore `runs`."""
    whole = {
        "connections": [{"name": "orders", "urlFrom": {"secretKeyRef": {"name": "orders-db", "key": "url"}}}],
        "queries": [{"name": "one", "connection": "orders", "sql": "SELECT 1 AS one", "returns": "one"}],
        "roles": [{"name": "support", "queries": ["*"], "tables": {"allow": []}}],
        "runStoreRef": {"name": "runs"},
        "replicas": replicas,
        **spec,
    }
    metadata = {"name": "shop", "namespace": "retail"}
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": metadata, "spec": whole}


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def parts(api: Object | None = None) -> list[Object]:
    """What a user applies: QueryAPI, RunStore and Secret."""
    return [api or query_api(), run_store(), secret("orders-db", url="postgresql://app@db/orders")]


def a_world(*more: Object, api: Object | None = None) -> World:
    world = World()
    for each in [*parts(api), *more]:
        world.cluster.outside(each)
    return world


async def ready(world: World) -> None:
    """Brings `shop` up to Ready."""
    await world.settle()
    world.roll()
    world.acknowledge(retail=0)
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready"), world.status()


def watch_everything(world: World) -> None:
    """Delivers what a watch that is begun now would."""
    for kind in WATCHED:
        for live in [each for ref, each in world.cluster.objects.items() if ref.kind == kind]:
            world.engine.deliver(kind, None, live)


def pending(world: World) -> list[Key]:
    """What the queue would work on now; it counts as done then, long ago."""
    found = []
    while (key := world.queue._schedule.pop(asyncio.get_running_loop().time())) is not None:
        found.append(key)
    for key in found:
        world.queue._schedule.finish(key, -1, Done())
    return found
