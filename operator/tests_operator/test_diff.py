"""Wanted against live: what is written, what is no drift, what is refused."""

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_operator.diff import Action, Apply, Create, Prune, Scale, Take, diff, drift, strangers
from tailrace_operator.errors import Foreign
from tailrace_operator.manifest import OWNED, Manifest, Object, ref_of
from tailrace_operator.quantity import read_quantity, same_quantity

from .fake_cluster import FakeCluster

OWNER = "uid-owner"
HOME = "retail"
REFERENCE = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "name": "shop", "uid": OWNER, "controller": True}


def metadata(name: str) -> Object:
    return {"name": name, "namespace": "retail", "labels": {"a": "b"}, "ownerReferences": [REFERENCE]}


def deployment(**spec: Any) -> Object:
    pod = {
        "containers": [
            {
                "name": "dataplane",
                "image": "d:1",
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"limits": {"cpu": "0.5"}},
            },
            {"name": "gateway", "image": "g:1", "env": [{"name": "STORE", "value": "{}"}]},
        ]
    }
    whole = {"replicas": 2, "template": {"spec": pod}, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("shop"), "spec": whole}


def service() -> Object:
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata("shop"), "spec": {"ports": [{"port": 80, "targetPort": 8080}]}}


def budget() -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata("shop"),
        "spec": {"minAvailable": 1},
    }


async def carry_out(cluster: FakeCluster, actions: tuple[Action, ...]) -> None:
    for action in actions:
        match action:
            case Create(manifest):
                await cluster.create(manifest)
            case Take(live, manifest):
                await cluster.take_fields(live, manifest)
            case Apply(manifest, uid):
                await cluster.apply(manifest, uid)
            case Scale(ref, uid, replicas):
                await cluster.patch_scale(ref, uid, replicas)
            case Prune(ref, uid):
                await cluster.delete(ref, uid)


def plan(cluster: FakeCluster, desired: list[Object]) -> tuple[Action, ...]:
    live = list(cluster.objects.values())
    return diff(desired, live, OWNER, HOME)


async def settle(cluster: FakeCluster, desired: list[Object]) -> None:
    await carry_out(cluster, plan(cluster, desired))
    await carry_out(cluster, plan(cluster, desired))


async def test_from_nothing_to_all_of_it_and_then_nothing_more() -> None:
    cluster, desired = FakeCluster(), [deployment(), service(), budget()]
    await settle(cluster, desired)
    assert [str(write.verb) for write in cluster.writes] == ["create"] * 3 + ["take"] * 3
    assert plan(cluster, desired) == ()


async def test_defaults_rewritten_quantities_and_others_fields_are_no_drift() -> None:
    cluster, desired = FakeCluster(), [deployment(), service()]
    await settle(cluster, desired)

    def change(live: Object) -> None:
        live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500m"
        live["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "m"})
        live["spec"]["template"]["spec"]["containers"].reverse()
        live["metadata"]["labels"]["theirs"] = "yes"

    cluster.edit(ref_of(deployment()), change)
    assert plan(cluster, desired) == ()


async def test_a_mutated_template_is_put_back_and_only_it() -> None:
    cluster, desired = FakeCluster(), [deployment(), service()]
    await settle(cluster, desired)
    cluster.edit(ref_of(deployment()), lambda live: live["spec"]["template"]["spec"]["containers"][1].update(image="evil"))
    (action,) = plan(cluster, desired)
    assert isinstance(action, Apply)
    assert action.reason == "spec.template.spec.containers.image"
    assert "replicas" not in action.manifest["spec"]
    await carry_out(cluster, (action,))
    assert plan(cluster, desired) == ()


async def test_what_we_no_longer_want_within_an_object_goes() -> None:
    cluster = FakeCluster()
    await settle(cluster, [deployment()])
    fewer = deployment()
    del fewer["spec"]["template"]["spec"]["containers"][1]["env"]
    fewer["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}
    assert [action.reason for action in plan(cluster, [fewer]) if isinstance(action, Apply)]
    await settle(cluster, [fewer])
    (live,) = cluster.objects.values()
    assert "env" not in live["spec"]["template"]["spec"]["containers"][1]
    assert live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
    assert live["spec"]["progressDeadlineSeconds"] == 600
    assert plan(cluster, [fewer]) == ()
    assert live["spec"]["replicas"] == 2, "an apply does not reset replicas"


async def test_replicas_go_by_scale_alone() -> None:
    cluster = FakeCluster()
    await settle(cluster, [deployment()])
    (action,) = plan(cluster, [deployment(replicas=5)])
    assert action == Scale(ref_of(deployment()), action.uid, 5)  # type: ignore[union-attr]


async def test_what_is_not_wanted_goes_and_what_is_not_ours_stays() -> None:
    cluster = FakeCluster()
    await settle(cluster, [deployment(), service(), budget()])
    stranger = budget()
    stranger["metadata"] = {"name": "other", "namespace": "retail", "labels": {"a": "b"}}
    cluster.outside(stranger)
    actions = plan(cluster, [deployment(), service()])
    assert [type(action) for action in actions] == [Prune]
    await carry_out(cluster, actions)
    assert ref_of(stranger) in cluster.objects
    assert ref_of(budget()) not in cluster.objects


@pytest.mark.parametrize("owners", [[], [{**REFERENCE, "uid": "another"}], [{**REFERENCE, "controller": False}]])
def test_a_strangers_object_of_our_name_is_refused_before_anything_is_written(owners: list[Object]) -> None:
    stranger = service()
    stranger["metadata"] = {"name": "shop", "namespace": "retail", "uid": "u", "ownerReferences": owners}
    with pytest.raises(Foreign, match="Service retail/shop"):
        diff([deployment(), service()], [stranger], OWNER, HOME)


def test_in_another_namespace_labels_say_whose_it_is() -> None:
    def binding(**labels: str) -> Object:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "r", "namespace": "teama", "labels": labels},
        }

    ours = binding(**{"app.kubernetes.io/managed-by": "tailrace-operator", "tailrace.dev/queryapi-uid": OWNER})
    live = {**ours, "metadata": {**ours["metadata"], "uid": "u"}}
    assert diff([ours], [live], OWNER, HOME) == ()
    assert diff([], [live], OWNER, HOME) == (Prune(ref_of(ours), "u"),)
    assert strangers([ours], [live], OWNER, HOME) == ()
    assert strangers([ours], [binding()], OWNER, HOME) == (ref_of(ours),)
    with pytest.raises(Foreign):
        diff([ours], [binding()], OWNER, HOME)


def test_an_object_on_its_way_out_is_left_alone() -> None:
    going = service()
    going["metadata"] = {**going["metadata"], "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    going["spec"] = {}
    assert diff([service()], [going], OWNER, HOME) == ()
    assert diff([], [going], OWNER, HOME) == ()


@pytest.mark.parametrize(
    ("wanted", "live", "place"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": 1}, {"a": True}, "a"),
        ({"a": {}}, {}, None),
        ({"a": False}, {}, None),
        ({"a": True}, {}, "a"),
        ({"a": []}, {}, None),
        ({"rules": [{"verbs": ["get"]}]}, {"rules": [{"verbs": ["get"]}, {"verbs": ["*"]}]}, "rules"),
        ({"egress": [{"ports": [{"port": 1}]}]}, {"egress": [{"ports": [{"port": 1, "protocol": "TCP"}]}]}, None),
        ({"egress": [{"ports": [{"port": 1}]}]}, {"egress": [{"ports": [{"port": 1}, {"port": 2}]}]}, "egress.ports"),
        ({"volumes": [{"name": "b"}, {"name": "a"}]}, {"volumes": [{"name": "a"}, {"name": "b"}]}, None),
        ({"volumes": [{"name": "b"}]}, {"volumes": [{"name": "a"}]}, "volumes"),
        ({"limits": {"memory": "1024Mi"}}, {"limits": {"memory": "1Gi"}}, None),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1G"}}, "limits.memory"),
    ],
)
def test_subset_with_lists_by_key(wanted: Object, live: Object, place: str | None) -> None:
    assert drift(wanted, live) == place


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5", "500m", True),
        ("1", 1, True),
        ("1e3", "1k", True),
        ("1Ki", "1024", True),
        ("", "0", False),
        ("x", "x", False),
        ("1K", "1k", False),
    ],
)
def test_quantities(one: object, other: object, same: bool) -> None:
    assert same_quantity(one, other) is same
    assert read_quantity(True) is None


NAMES = st.sampled_from(["alpha", "beta", "gamma"])
VALUES = st.recursive(
    st.one_of(st.integers(0, 3), st.booleans(), st.sampled_from(["", "x", "y"])),
    lambda inner: st.one_of(st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=6,
)
CONTAINERS = st.lists(st.fixed_dictionaries({"name": NAMES, "image": st.sampled_from(["i:1", "i:2"])}), unique_by=lambda each: each["name"])


@st.composite
def wishes(draw: st.DrawFn) -> list[Object]:
    """A set of manifests such as render might want."""
    wanted: list[Object] = []
    for kind in OWNED:
        for name in draw(st.sets(NAMES, max_size=2)):
            manifest: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata(name)}
            if kind.kind == "Deployment":
                manifest["spec"] = {"replicas": draw(st.integers(1, 3)), "template": {"spec": {"containers": draw(CONTAINERS)}}}
            elif kind.kind == "Service":
                manifest["spec"] = {"ports": [{"port": port} for port in sorted(draw(st.sets(st.integers(1, 3), min_size=1)))]}
            else:
                manifest["data"] = draw(st.dictionaries(NAMES, VALUES, max_size=3))
            wanted.append(manifest)
    return wanted


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(wishes(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_after_the_writes_there_is_nothing_left_to_write(history: list[list[Object]], random: Any) -> None:
    """diff(desired, apply(diff)) is empty, whatever was wanted before, in whatever order the objects are given."""
    cluster = FakeCluster()
    for desired in history:
        asyncio.run(settle(cluster, desired))
        shuffled: list[Manifest] = [copy.deepcopy(each) for each in cluster.objects.values()]
        random.shuffle(shuffled)
        assert diff(desired, shuffled, OWNER, HOME) == ()
        assert set(cluster.objects) == {ref_of(manifest) for manifest in desired}
