"""A QueryAPI's reconcile against a cluster in memory: what is written, in which order, and what is said."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tailrace_contract.resource import Kind as Custom
from tailrace_operator.errors import ClusterError, Conflict, Forbidden, Invalid, Unavailable
from tailrace_operator.manifest import (
    API_KEY,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NAMESPACE,
    NETWORK_POLICY,
    QUERY_API,
    ROLE_BINDING,
    RUN_STORE,
    SECRET,
    SERVICE,
    Object,
    ObjectRef,
    ref_of,
)
from tailrace_operator.observe import Event
from tailrace_operator.queue import Done, Failed

from .fake_cluster import FakeCluster, Write
from .world import RUNS, SHOP, World, a_world, namespace, parts, pending, query_api, ready, run_store, secret

API = ObjectRef(QUERY_API, "retail", "shop")
DEPLOYED = ObjectRef(DEPLOYMENT, "retail", "shop")
GATEWAY_SECRET = ObjectRef(SECRET, "retail", "shop-gateway")


async def test_from_nothing_to_ready_and_then_not_a_single_write() -> None:
    world = a_world()
    await world.reconcile()
    created = [text for text in world.cluster.written() if text.startswith("create")]
    assert created == [
        "create Secret retail/shop-gateway",
        "create ServiceAccount retail/shop-gateway",
        "create Role retail/shop-gateway",
        "create RoleBinding retail/shop-gateway",
        "create Service retail/shop",
        "create NetworkPolicy retail/shop",
        "create Deployment retail/shop",
    ]
    assert world.condition("Ready") == ("Unknown", "RollingOut")
    await ready(world)
    assert world.condition("Reconciling") is None
    assert world.status()["loadedBy"] == "1/1"
    world.cluster.written()
    assert await world.reconcile() == Done()
    assert world.cluster.written() == []
    assert world.failures() == []


async def test_nothing_of_a_secret_leaves_it() -> None:
    world = a_world(secret("orders-db", url="postgresql://user:hidden@db/orders"))
    await ready(world)
    minted = world.cluster.objects[GATEWAY_SECRET]["data"]["secret"]
    rest = [live for ref, live in world.cluster.objects.items() if ref.kind != SECRET]
    for text in (minted, "hidden"):
        assert text not in repr(rest)
        assert text not in repr(world.told)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_every_order_of_applying_ends_in_the_same(order: tuple[int, ...]) -> None:
    world = World()
    for each in (parts()[number] for number in order):
        world.cluster.outside(each)
        if API in world.cluster.objects:
            outcome = await world.reconcile()
            if len(world.cluster.objects) < 3:
                assert isinstance(outcome, Done)
                assert outcome.again_s is not None, "nobody announces a Secret"
                assert world.condition("ResolvedRefs") is not None
    await ready(world)


async def test_without_its_run_store_nothing_is_begun_and_what_runs_goes_on() -> None:
    world = a_world()
    world.cluster.remove(ObjectRef(RUN_STORE, "retail", "runs"))
    await world.reconcile()
    assert DEPLOYED not in world.cluster.objects
    assert world.condition("ResolvedRefs") == ("False", "RunStoreNotFound")
    world.cluster.outside(run_store())
    await ready(world)
    world.cluster.remove(ObjectRef(RUN_STORE, "retail", "runs"))
    world.cluster.written()
    await world.reconcile()
    assert world.cluster.written() == ["status QueryAPI retail/shop"]


async def test_the_first_ready_pod_wakes_the_keys_and_no_later_one_does() -> None:
    world = a_world()
    desk = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "desk", "namespace": "retail"}}
    world.engine.deliver(API_KEY, "ADDED", world.cluster.outside({**desk, "spec": {"queryApiRef": {"name": "shop"}, "role": "support"}}))
    await world.settle()
    pending(world)
    await world.reconcile()
    assert pending(world) == []
    world.roll()
    await world.reconcile()
    assert [key.kind for key in pending(world)] == [Custom.API_KEY]
    world.acknowledge()
    await world.reconcile()
    assert pending(world) == []


async def test_a_key_that_tells_another_count_of_pods_is_looked_at_again() -> None:
    world = a_world()
    desk = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "desk", "namespace": "retail"}}
    live = world.cluster.outside({**desk, "spec": {"queryApiRef": {"name": "shop"}, "role": "support"}})
    world.engine.deliver(API_KEY, "ADDED", live)
    await ready(world)
    pending(world)
    for said, behind in (("1/1", []), ("1/2", [Custom.API_KEY])):
        world.engine.deliver(API_KEY, "MODIFIED", {**live, "status": {"loadedBy": said}})
        assert pending(world) == []
        await world.reconcile()
        assert [key.kind for key in pending(world)] == behind


async def test_an_edit_is_applied_and_ready_only_when_acknowledged() -> None:
    world = a_world()
    await ready(world)
    world.cluster.edit(API, lambda live: live["spec"]["queries"][0].update(sql="SELECT 2 AS one"))
    world.cluster.written()
    await world.settle()
    assert world.cluster.written() == ["status QueryAPI retail/shop"], "a query rolls no pod and writes no object"
    assert world.condition("Ready") == ("Unknown", "WaitingForPods")
    assert world.status()["loadedBy"] == "0/1"
    world.acknowledge()
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.status()["observedGeneration"] == 2


async def test_an_invalid_spec_changes_nothing_but_the_status() -> None:
    world = a_world()
    await ready(world)
    world.cluster.edit(API, lambda live: live["spec"]["queries"][0].update(connection="nowhere"))
    world.cluster.written()
    assert isinstance(await world.reconcile(), Done)
    assert world.cluster.written() == ["status QueryAPI retail/shop"]
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Stalled") == ("True", "InvalidSpec")


async def test_what_was_changed_by_hand_is_put_back() -> None:
    world = a_world()
    await ready(world)

    def change(live: Object) -> None:
        live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"

    world.cluster.edit(DEPLOYED, change)
    world.cluster.remove(ObjectRef(NETWORK_POLICY, "retail", "shop"))
    world.cluster.edit(ObjectRef(SERVICE, "retail", "shop"), lambda live: live["metadata"]["labels"].clear())
    await world.settle()
    assert world.cluster.objects[DEPLOYED]["spec"]["template"]["spec"]["containers"][0]["image"] != "evil:1"
    assert ObjectRef(NETWORK_POLICY, "retail", "shop") in world.cluster.objects
    assert world.cluster.objects[ObjectRef(SERVICE, "retail", "shop")]["metadata"]["labels"]


async def test_replicas_go_by_scale_and_the_budget_comes_and_goes() -> None:
    store = run_store(postgres={"urlFrom": {"secretKeyRef": {"name": "orders-db", "key": "url"}}})
    world = a_world(store)
    await ready(world)
    world.cluster.written()
    world.cluster.edit(API, lambda live: live["spec"].update(replicas=3))
    await world.settle()
    written = world.cluster.written()
    assert "create PodDisruptionBudget retail/shop" in written
    assert "scale Deployment retail/shop/tailrace-operator-scale" in written
    assert "apply Deployment retail/shop" not in written
    assert world.cluster.objects[DEPLOYED]["spec"]["replicas"] == 3
    world.cluster.edit(API, lambda live: live["spec"].update(replicas=1))
    await world.settle()
    assert ObjectRef(DISRUPTION_BUDGET, "retail", "shop") not in world.cluster.objects


async def test_embedded_with_more_than_one_replica_is_refused() -> None:
    world = a_world(api=query_api(replicas=2))
    await world.settle()
    assert DEPLOYED not in world.cluster.objects
    assert world.condition("Accepted") == ("False", "EmbeddedNeedsOnePod")
    assert world.condition("Stalled") is not None


FOREIGN: list[Object] = [
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop", "namespace": "retail"}, "spec": {}},
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shop-gateway", "namespace": "retail"}, "data": {}},
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop", "namespace": "retail"}, "spec": {"replicas": 7}},
]


@pytest.mark.parametrize("stranger", FOREIGN, ids=lambda each: each["kind"])
async def test_a_strangers_object_is_never_adopted(stranger: Object) -> None:
    world = a_world(stranger)
    before = world.cluster.objects[ref_of(stranger)]
    outcome = await world.reconcile()
    assert isinstance(outcome, Done)
    assert outcome.again_s is not None
    assert world.cluster.objects[ref_of(stranger)] == before
    assert world.condition("Programmed") == ("False", "ForeignObject")
    assert world.condition("Stalled") is not None
    assert ref_of(stranger).kind == SECRET or not [
        text for text in world.cluster.written() if text.startswith("create ") and "Secret" not in text
    ]
    world.cluster.remove(ref_of(stranger))
    await ready(world)


async def test_one_that_takes_the_name_in_between_is_not_adopted_either() -> None:
    world = a_world()
    stranger = FOREIGN[0]

    def fail(write: Write) -> ClusterError | None:
        if write.verb == "create" and write.ref == ref_of(stranger) and ref_of(stranger) not in world.cluster.objects:
            world.cluster.outside(stranger)
        return None

    world.cluster.fail = fail
    await world.reconcile()
    assert world.condition("Programmed") == ("False", "ForeignObject")


async def test_paused_means_the_status_alone() -> None:
    world = a_world()
    await ready(world)
    world.cluster.edit(API, lambda live: live["metadata"].update(annotations={"tailrace.dev/paused": "true"}))
    world.cluster.edit(
        API,
        lambda live: (
            live["spec"]["dataPlane"].update(resources={"limits": {"memory": "1Gi"}})
            if "dataPlane" in live["spec"]
            else live["spec"].update(dataPlane={"resources": {"limits": {"memory": "1Gi"}}})
        ),
    )
    world.cluster.written()
    await world.settle()
    assert set(world.cluster.written()) == {"status QueryAPI retail/shop"}
    assert world.condition("Ready") == ("Unknown", "Paused")
    world.cluster.edit(API, lambda live: live["metadata"].update(annotations={}))
    await world.settle()
    assert "apply Deployment retail/shop" in world.cluster.written()


def others(**labels: str) -> dict[str, Any]:
    return {
        "allowKeysFrom": [{"namespaces": {"matchLabels": labels}, "roles": ["support"], "bind": {"tenant": {"namespaceLabel": "tenant"}}}]
    }


async def test_a_namespace_is_named_after_its_binding_is_there_and_unnamed_before_it_goes() -> None:
    world = a_world(namespace("teama", shop="yes", tenant="42"), namespace("teamb", shop="yes"), api=query_api(**others(shop="yes")))
    await ready(world)
    (admitted,) = world.status()["namespaces"]
    assert (admitted["name"], admitted["bind"]) == ("teama", {"tenant": "42"})
    uid = world.cluster.objects[API]["metadata"]["uid"]
    binding = ObjectRef(ROLE_BINDING, "teama", f"tailrace-gateway-{uid}")
    written = world.cluster.written()
    named = next(i for i, text in enumerate(written) if text == "status QueryAPI retail/shop")
    assert written.index(f"create {binding}") < named
    world.cluster.edit(ObjectRef(NAMESPACE, "", "teama"), lambda live: live["metadata"]["labels"].pop("shop"))
    await world.settle()
    written = world.cluster.written()
    assert written[:2] == ["status QueryAPI retail/shop", f"delete {binding}"]
    assert "namespaces" not in world.status()


async def test_a_namespace_where_the_binding_is_refused_is_not_named_and_holds_up_nobody() -> None:
    world = a_world(
        namespace("teama", shop="yes", tenant="1"), namespace("teamb", shop="yes", tenant="2"), api=query_api(**others(shop="yes"))
    )
    world.cluster.fail = lambda write: Forbidden("no") if write.ref.namespace == "teama" else None
    await world.reconcile()
    assert [each["name"] for each in world.status()["namespaces"]] == ["teamb"]
    assert DEPLOYED in world.cluster.objects
    world.cluster.fail = lambda write: None
    await world.settle()
    assert [each["name"] for each in world.status()["namespaces"]] == ["teama", "teamb"]


def taken(world: World) -> tuple[ObjectRef, Object]:
    """A RoleBinding of the wanted name in `teama` that somebody there made."""
    uid = world.cluster.objects[API]["metadata"]["uid"]
    meta = {"name": f"tailrace-gateway-{uid}", "namespace": "teama"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "theirs"}
    stranger = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": []}
    return ref_of(stranger), world.cluster.outside(stranger)


async def test_who_rules_in_another_namespace_keeps_only_that_one_from_being_admitted() -> None:
    world = a_world(
        namespace("teama", shop="yes", tenant="1"), namespace("teamb", shop="yes", tenant="2"), api=query_api(**others(shop="yes"))
    )
    ref, before = taken(world)
    outcome = await world.reconcile()
    assert isinstance(outcome, Done)
    assert outcome.again_s is not None, "a stranger's object is not watched"
    assert world.cluster.objects[ref] == before
    await ready(world)
    assert [each["name"] for each in world.status()["namespaces"]] == ["teamb"]
    assert {(each.reason, "teama" in each.message) for each in world.cluster.events} == {("NamespaceNotAdmitted", True)}
    world.cluster.fail = lambda write: Forbidden("exceeded quota") if write.ref.namespace == "teama" else None
    world.cluster.remove(ref)
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready"), "a quota there is no fault of the API's"
    world.cluster.fail = lambda write: None
    await world.settle()
    assert [each["name"] for each in world.status()["namespaces"]] == ["teama", "teamb"]


async def test_a_deleted_api_leaves_nothing_in_other_namespaces() -> None:
    world = a_world(namespace("teama", shop="yes", tenant="42"), api=query_api(**others(shop="yes")))
    await world.settle()
    world.cluster.remove(API)
    await world.reconcile()
    assert [ref for ref in world.cluster.objects if ref.namespace == "teama"] == []
    assert [ref for ref in world.cluster.objects if ref.namespace == "retail" and ref.kind not in (RUN_STORE, SECRET)] == []


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("exceeded quota"), Invalid("wrong")])
async def test_each_write_refused_once_is_told_and_mended(error: ClusterError) -> None:
    probe = a_world()
    await probe.settle()
    for number in range(len([write for write in probe.cluster.writes if write.verb in ("create", "apply", "scale")])):
        world = a_world()
        count = itertools.count()

        def fail(write: Write, number: int = number, count: "itertools.count[int]" = count) -> ClusterError | None:
            return error if write.verb in ("create", "apply", "scale") and next(count) == number else None

        world.cluster.fail = fail
        await world.reconcile()
        assert error.message in repr(world.status()) + repr(world.failures())
        await ready(world)


async def test_a_namespace_that_goes_is_left_in_peace() -> None:
    world = a_world()
    world.cluster.fail = lambda write: Forbidden("terminating", is_terminating=True)
    assert await world.reconcile() == Done()
    assert world.failures() == []


async def test_an_api_that_is_being_deleted_is_left_in_peace() -> None:
    world = a_world()
    world.cluster.edit(API, lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    assert await world.reconcile() == Done()
    assert world.cluster.written() == []


async def test_a_damaged_gateway_secret_is_minted_anew() -> None:
    world = a_world()
    await ready(world)
    before = world.cluster.objects[GATEWAY_SECRET]["data"]["secret"]
    world.cluster.edit(GATEWAY_SECRET, lambda live: live.update(data={"secret": "AAAA"}))
    await world.settle()
    after = world.cluster.objects[GATEWAY_SECRET]["data"]["secret"]
    assert len(after) == len(before)
    assert after != before


async def test_a_run_store_says_whether_it_may_be_used() -> None:
    reference = {"secretKeyRef": {"name": "runs-db", "key": "url"}}
    world = a_world(run_store(postgres={"urlFrom": reference}))

    def said() -> list[tuple[str, str]]:
        live = world.cluster.objects[ObjectRef(RUN_STORE, "retail", "runs")]
        return [(each["type"], each["reason"]) for each in live["status"]["conditions"] if each["type"] in ("Ready", "ResolvedRefs")]

    outcome = await world.reconcile(RUNS)
    assert isinstance(outcome, Done)
    assert outcome.again_s is not None
    assert said() == [("Ready", "SecretNotFound"), ("ResolvedRefs", "SecretNotFound")]
    world.cluster.outside(secret("runs-db", url="postgresql://app@db/runs"))
    assert await world.reconcile(RUNS) == Done()
    assert said()[0] == ("Ready", "Ready")
    world.cluster.written()
    await world.reconcile(RUNS)
    assert world.cluster.written() == []


async def test_a_defect_of_ours_in_one_resource_is_a_failure_and_tells_no_value() -> None:
    world = a_world()

    async def broken(*_: object) -> Done:
        raise RuntimeError("postgresql://hidden")

    world.engine.reconcilers[SHOP.kind] = broken
    assert await world.reconcile() == Failed()
    assert "hidden" not in repr(world.told)


async def test_that_others_were_faster_is_worth_a_warning_only_when_it_goes_on() -> None:
    world = a_world()
    world.cluster.fail = lambda write: Conflict("faster", 409)
    world.queue.add(SHOP)
    for _ in range(5):
        assert await world.reconcile() == Failed()
        world.queue._schedule._states[SHOP].is_running = True
        world.queue._schedule.finish(SHOP, 0, Failed())
    told = [each.event for each in world.told if each.event in (Event.RECONCILE_RACED, Event.RECONCILE_FAILED)]
    assert told == [Event.RECONCILE_RACED] * 3 + [Event.RECONCILE_FAILED] * 2


async def test_our_own_writes_of_a_status_wake_nobody() -> None:
    world = a_world()
    world.engine.deliver(QUERY_API, "ADDED", world.cluster.objects[API])
    assert pending(world) == [SHOP]
    await world.reconcile()
    world.engine.deliver(QUERY_API, "MODIFIED", world.cluster.objects[API])
    assert pending(world) == []


def test_the_fake_is_a_cluster() -> None:
    from tailrace_operator.cluster import Cluster

    cluster: Cluster = FakeCluster()
    assert cluster


async def test_batches_that_a_pod_gave_up_are_told_by_an_event() -> None:
    world = a_world()
    await ready(world)
    for uid, report in world.poller.reports.items():
        assert report.gateway is not None
        world.poller.reports[uid] = replace(report, gateway=replace(report.gateway, stopped=frozenset({("look", "unequal")})))
    await world.reconcile()
    (event,) = [each for each in world.cluster.events if each.reason == "CoalescingStopped"]
    assert event.is_warning
    assert "query look" in event.message
    assert "unequal" in event.message
