"""The operator killed between any two writes, beside another one, without its API server, without events."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind as Custom
from tailrace_operator.acknowledgement import Deletion
from tailrace_operator.cluster import Listing
from tailrace_operator.manifest import (
    API_KEY,
    NAMESPACE,
    POD,
    QUERY_API,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    Object,
    ObjectRef,
    controller_uid,
    ref_of,
)
from tailrace_operator.queue import LONGEST_PAUSE_S, Schedule
from tailrace_operator.wakeups import Key

from .fake_cluster import FakeCluster, Killed
from .test_reconcile import API, others
from .world import RUNS, SHOP, World, a_world, namespace, pending, query_api, ready, run_store, watch_everything

STORE = run_store(postgres={"urlFrom": {"secretKeyRef": {"name": "orders-db", "key": "url"}}})


def content(cluster: FakeCluster) -> dict[str, object]:
    """What is in the cluster but for what differs from run to run: versions, times, minted secrets."""
    found: dict[str, object] = {}
    for ref, live in cluster.objects.items():
        plain = copy.deepcopy(live)
        for name in ("resourceVersion", "generation", "managedFields", "uid"):
            plain["metadata"].pop(name, None)
        plain.pop("data", None)
        for condition in plain.get("status", {}).get("conditions", ()):
            condition.pop("lastTransitionTime", None)
        annotations = (
            plain.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}) if ref.kind.kind == "Deployment" else {}
        )
        annotations.pop("tailrace.dev/gateway-secret", None)
        found[str(ref)] = plain
    return found


def base() -> World:
    """The same world every time: uids and all."""
    return a_world(STORE, namespace("teama", shop="yes", tenant="42"), api=query_api(**others(shop="yes")))


def grow(world: World) -> None:
    """An edit that needs every kind of write: create, apply, scale; and another namespace."""
    world.cluster.edit(
        API,
        lambda live: live["spec"].update(replicas=2, dataPlane={"resources": {"limits": {"memory": "1Gi"}}}),
    )


def shrink(world: World) -> None:
    """An edit that prunes: the budget and the binding."""
    world.cluster.edit(API, lambda live: live["spec"].update(replicas=1))
    world.cluster.edit(ObjectRef(NAMESPACE, "", "teama"), lambda live: live["metadata"]["labels"].clear())


STEPS: list[Callable[[World], None]] = [lambda world: None, grow, shrink]


@pytest.mark.parametrize("step", range(len(STEPS)), ids=["create", "grow", "shrink"])
async def test_killed_after_any_write_it_converges_to_the_same(step: int) -> None:
    async def at_step() -> World:
        world = base()
        for earlier in STEPS[:step]:
            earlier(world)
            await world.settle()
        STEPS[step](world)
        world.cluster.written()
        return world

    whole = await at_step()
    await whole.settle()
    writes = len(whole.cluster.writes)
    assert writes >= 3
    for survived in range(1, writes + 1):
        world = await at_step()
        world.cluster.lives_for = survived
        with pytest.raises(Killed):
            await world.settle()
        after = World(world.cluster)
        await after.settle()
        assert content(world.cluster) == content(whole.cluster), f"killed after write {survived}: {world.cluster.written()}"


async def test_two_operators_at_once_do_no_harm() -> None:
    whole = base()
    await whole.settle()
    for delay in range(40):
        cluster = base().cluster
        one, other = World(cluster), World(cluster)

        async def second(other: World = other, delay: int = delay) -> None:
            for _ in range(delay):
                await asyncio.sleep(0)
            await other.reconcile()

        slow(cluster)
        await asyncio.gather(one.reconcile(), second())
        await one.settle()
        await other.settle()
        assert content(cluster) == content(whole.cluster), f"second began after {delay} steps"


def slow(cluster: FakeCluster) -> None:
    """Lets others run before every call, as a network does."""
    for name in ("get", "list", "create", "apply", "take_fields", "patch_scale", "delete", "patch_status"):
        method = getattr(cluster, name)

        def later(method: Callable[..., object] = method) -> Callable[..., object]:
            async def call(*args: object, **kwargs: object) -> object:
                await asyncio.sleep(0)
                return await method(*args, **kwargs)  # type: ignore[misc]

            return call

        setattr(cluster, name, later())


async def test_an_api_server_that_is_away_for_minutes_heals_by_itself_and_is_not_hammered() -> None:
    """On a clock of the test's own: a queue's schedule, five minutes without an answer, then work goes on."""
    world = base()
    schedule: Schedule[Key] = Schedule(stretch=lambda: 1.0)
    now, tries = 0.0, 0
    schedule.add(SHOP, now)
    world.cluster.is_away = True
    while now < 300:
        if (key := schedule.pop(now)) is not None:
            tries += 1
            schedule.finish(key, now, await world.reconcile(key))
        now = min(due, 300.0) if (due := schedule.next_due()) is not None else 300.0
    assert 5 < tries < 15
    world.cluster.is_away = False
    back = now
    for _ in range(20):
        due = schedule.next_due()
        if due is None:
            break
        now = max(now, due)
        if (key := schedule.pop(now)) is not None:
            schedule.finish(key, now, await world.reconcile(key))
        if world.condition("Ready") is not None and len(world.cluster.objects) > 10:
            break
    assert ObjectRef(SERVICE, "retail", "shop") in world.cluster.objects
    assert now - back <= LONGEST_PAUSE_S


async def test_without_any_event_the_next_list_heals_everything() -> None:
    """A watch that went silent: an edit, a deletion and a new resource that nobody told of."""
    world = base()
    await world.settle()
    watch_everything(world)
    pending(world)
    world.cluster.edit(API, lambda live: live["spec"].update(replicas=2))
    world.cluster.outside({**query_api(), "metadata": {"name": "other", "namespace": "retail"}})
    await world.engine.relist()
    assert set(pending(world)) == {Key(SHOP.kind, "retail", "other"), SHOP, RUNS}
    assert world.health.last_list is not None


async def test_a_key_that_vanished_without_an_event_is_followed_and_one_that_is_new_is_not() -> None:
    world = a_world()
    key: Object = {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "ApiKey",
        "metadata": {"name": "desk", "namespace": "retail"},
        "spec": {"queryApiRef": {"name": "shop"}, "role": "support", "secretName": "s"},
    }
    new: Object = {**key, "metadata": {"name": "new", "namespace": "retail"}}
    world.cluster.outside(key)
    watch_everything(world)
    world.cluster.remove(ref_of(key))
    original = world.cluster.list

    async def list_then_create(*args: Any, **kwargs: Any) -> Listing:
        listing = await original(*args, **kwargs)
        if args[0] == API_KEY:  # It is made right after the list, and its event comes before the list is taken in.
            world.engine.deliver(API_KEY, "ADDED", world.cluster.outside(new))
        return listing

    world.cluster.list = list_then_create  # type: ignore[method-assign]
    await world.engine.relist()
    assert [str(each.key) for each in world.deletions.of(SHOP.ref)] == ["retail/desk"]
    assert Key(Custom.API_KEY, "retail", "new") in world.wakeups.keys_of(SHOP.ref)


async def test_a_list_sweeps_bindings_of_apis_that_are_gone_and_no_others() -> None:
    world = base()
    await world.settle()
    stray: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {
            "name": "tailrace-gateway-gone",
            "namespace": "teamb",
            "labels": {"app.kubernetes.io/managed-by": "tailrace-operator", "tailrace.dev/queryapi-uid": "gone"},
        },
    }
    foreign: Object = {**stray, "metadata": {"name": "theirs", "namespace": "teamb", "labels": {"tailrace.dev/queryapi-uid": "gone"}}}
    world.cluster.outside(stray)
    world.cluster.outside(foreign)
    before = {ref for ref in world.cluster.objects if ref.kind == ROLE_BINDING}
    await world.engine.relist()
    assert before - set(world.cluster.objects) == {ref_of(stray)}


@pytest.mark.parametrize(("home", "stays"), [("retail", False), ("far", True)])
async def test_a_list_sweeps_no_bindings_of_another_operators_apis(home: str, stays: bool) -> None:
    """One that watches some namespaces can't know which QueryAPIs there are elsewhere."""
    world = World(watched=("retail", "teamb"))
    labels = {"app.kubernetes.io/managed-by": "tailrace-operator", "tailrace.dev/queryapi-uid": "another"}
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tailrace-gateway-another", "namespace": "teamb", "labels": labels},
        "subjects": [{"kind": "ServiceAccount", "name": "shop-gateway", "namespace": home}],
    }
    world.cluster.outside(binding)
    await world.engine.relist()
    assert (ref_of(binding) in world.cluster.objects) == stays


async def test_a_deleted_key_is_followed_until_the_last_pod_dropped_it() -> None:
    world = a_world()
    await ready(world)
    key: Object = {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "ApiKey",
        "metadata": {"name": "desk", "namespace": "retail"},
        "spec": {"queryApiRef": {"name": "shop"}, "role": "support", "secretName": "s"},
    }
    made = world.cluster.outside(key)
    watch_everything(world)
    pending(world)
    world.cluster.remove(ref_of(key))
    deleted = {**made, "metadata": {**made["metadata"], "resourceVersion": "999"}}
    world.engine.deliver(API_KEY, "DELETED", deleted)
    assert Key(SHOP.kind, "retail", "shop") in pending(world)
    world.acknowledge(retail=998)
    await world.settle()
    assert world.status()["revocation"] == [{"key": "retail/desk", "resourceVersion": "999", "confirmedBy": "0/1"}]
    assert world.cluster.events == []
    again = World(world.cluster)  # Another operator goes on from the status.
    again.poller.reports = world.poller.reports
    await again.settle()
    assert again.status()["revocation"][0]["confirmedBy"] == "0/1"
    again.acknowledge(retail=1000)
    await again.settle()
    assert again.status()["revocation"][0]["confirmedBy"] == "1/1"
    assert [event.reason for event in again.cluster.events] == ["KeyRevoked"]


async def test_the_newest_deletions_are_kept_and_those_of_other_namespaces_only_if_admitted() -> None:
    world = a_world()
    await ready(world)
    for number in range(30):
        world.deletions.add(SHOP.ref, Deletion(Ref("retail", f"k{number}"), 1000 + number))
    world.deletions.add(SHOP.ref, Deletion(Ref("elsewhere", "k"), 5000))
    await world.settle()
    said = world.status()["revocation"]
    assert [each["resourceVersion"] for each in said] == [str(number) for number in range(1029, 1010, -1)]


async def test_what_a_look_costs_and_that_a_second_one_writes_nothing() -> None:
    """Calls of the API server per reconcile of something that is as it should be: what 200 APIs cost every ten minutes."""
    world = base()
    await world.settle()
    world.roll()
    world.acknowledge()
    await world.settle()
    world.cluster.written()
    before = world.cluster.reads
    await world.reconcile()
    assert world.cluster.reads - before <= 16
    assert world.cluster.written() == []


async def test_a_periodic_list_spreads_its_work_and_the_first_does_not() -> None:
    world = base()
    await world.engine.relist()
    assert set(pending(world)) == {SHOP, RUNS}
    await world.engine.relist(3600.0)
    assert len(pending(world)) == 1


async def test_many_edits_and_pods_wake_each_api_once() -> None:
    world = base()
    watch_everything(world)
    for generation in range(100):
        live = copy.deepcopy(world.cluster.objects[API])
        live["metadata"]["generation"] = generation + 2
        world.engine.deliver(QUERY_API, "MODIFIED", live)
    pod = {"metadata": {"name": "p", "namespace": "retail", "labels": {"tailrace.dev/queryapi": "shop"}}}
    world.engine.deliver(POD, "MODIFIED", pod)
    assert pending(world).count(SHOP) == 1


def test_what_a_query_api_owns_is_controlled_by_it() -> None:
    async def made() -> World:
        world = base()
        await world.settle()
        return world

    world = asyncio.run(made())
    uid = world.cluster.objects[API]["metadata"]["uid"]
    for ref, live in world.cluster.objects.items():
        if ref.kind in (SECRET, NAMESPACE, QUERY_API) or ref.name == "runs":
            continue
        assert controller_uid(live) == uid or ref.namespace == "teama"
