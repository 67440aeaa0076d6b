"""Whom an event wakes."""

from typing import Any

import pytest
from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind as Custom
from tailrace_operator.manifest import API_KEY, DEPLOYMENT, NAMESPACE, POD, QUERY_API, ROLE_BINDING, RUN_STORE, SECRET, Kind, Object
from tailrace_operator.wakeups import Key, Wakeups

SHOP, DESK, RUNS = Key(Custom.QUERY_API, "retail", "shop"), Key(Custom.API_KEY, "teama", "desk"), Key(Custom.RUN_STORE, "retail", "runs")


def body(key: Key, generation: int = 1, **metadata: Any) -> Object:
    specs: dict[Custom, Object] = {
        Custom.QUERY_API: {"runStoreRef": {"name": "runs"}, "allowKeysFrom": [{}]},
        Custom.API_KEY: {"queryApiRef": {"name": "shop", "namespace": "retail"}},
        Custom.RUN_STORE: {},
    }
    meta = {
        "name": key.name,
        "namespace": key.namespace,
        "uid": f"uid-{key.name}",
        "generation": generation,
        "resourceVersion": "7",
        **metadata,
    }
    return {"metadata": meta, "spec": specs[key.kind], "status": {}}


@pytest.fixture
def wakeups() -> Wakeups:
    known = Wakeups()
    for kind, key in ((QUERY_API, SHOP), (API_KEY, DESK), (RUN_STORE, RUNS)):
        known.seen(kind, None, body(key))
    return known


def test_a_resource_wakes_itself_and_who_names_it(wakeups: Wakeups) -> None:
    assert wakeups.seen(QUERY_API, "MODIFIED", body(SHOP, 2)) == (SHOP, DESK)
    assert wakeups.seen(RUN_STORE, "MODIFIED", body(RUNS, 2)) == (RUNS, SHOP)
    assert wakeups.seen(API_KEY, "MODIFIED", body(DESK, 2)) == (DESK,)
    assert wakeups.api_of(DESK) == Ref("retail", "shop")


def test_a_write_of_the_status_wakes_nobody(wakeups: Wakeups) -> None:
    written = {**body(SHOP, resourceVersion="9"), "status": {"observedGeneration": 1}}
    assert wakeups.seen(QUERY_API, "MODIFIED", written) == ()


@pytest.mark.parametrize(
    "change", [{"labels": {"a": "b"}}, {"annotations": {"tailrace.dev/paused": "true"}}, {"uid": "x"}, {"deletionTimestamp": "t"}]
)
def test_other_metadata_wakes(wakeups: Wakeups, change: Object) -> None:
    assert SHOP in wakeups.seen(QUERY_API, "MODIFIED", body(SHOP, **change))


def test_a_deleted_key_wakes_its_api(wakeups: Wakeups) -> None:
    assert wakeups.seen(API_KEY, "DELETED", body(DESK)) == (DESK, SHOP)
    assert wakeups.keys_of(SHOP.ref) == ()


def test_labels_of_namespaces_wake_who_depends_on_them_and_only_when_they_change(wakeups: Wakeups) -> None:
    def namespace(**labels: str) -> Object:
        return {"metadata": {"name": "teama", "labels": labels}}

    assert wakeups.seen(NAMESPACE, None, namespace(a="1")) == (SHOP,)
    assert wakeups.seen(NAMESPACE, "MODIFIED", namespace(a="1")) == ()
    assert wakeups.seen(NAMESPACE, "MODIFIED", namespace(a="2")) == (SHOP,)
    assert wakeups.seen(NAMESPACE, "DELETED", namespace(a="2")) == (SHOP,)


OWNER = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "name": "shop", "controller": True}


@pytest.mark.parametrize(
    ("kind", "metadata", "woken"),
    [
        (DEPLOYMENT, {"ownerReferences": [OWNER]}, (SHOP,)),
        (SECRET, {"ownerReferences": [{**OWNER, "kind": "ApiKey", "name": "desk"}]}, (Key(Custom.API_KEY, "retail", "desk"),)),
        (DEPLOYMENT, {"ownerReferences": [{**OWNER, "controller": False}]}, ()),
        (DEPLOYMENT, {"ownerReferences": [{**OWNER, "apiVersion": "other/v1"}]}, ()),
        (DEPLOYMENT, {"labels": {"tailrace.dev/queryapi": "shop"}}, ()),
        (POD, {"labels": {"tailrace.dev/queryapi": "shop"}, "ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, (SHOP,)),
        (ROLE_BINDING, {"labels": {"tailrace.dev/queryapi-uid": "uid-shop"}, "namespace": "teama"}, (SHOP,)),
        (ROLE_BINDING, {"labels": {"tailrace.dev/queryapi-uid": "unknown"}, "namespace": "teama"}, ()),
    ],
)
def test_what_is_owned_wakes_its_owner(wakeups: Wakeups, kind: Kind, metadata: Object, woken: tuple[Key, ...]) -> None:
    assert wakeups.seen(kind, "MODIFIED", {"metadata": {"name": "x", "namespace": "retail", **metadata}}) == woken


def test_a_list_of_everything_wakes_what_it_has_and_what_it_has_no_longer(wakeups: Wakeups) -> None:
    other = Key(Custom.QUERY_API, "retail", "other")
    lists = {Custom.QUERY_API: [body(other)], Custom.API_KEY: [body(DESK)], Custom.RUN_STORE: []}
    assert set(wakeups.relisted(lists)) == {SHOP, DESK, RUNS, other}
    assert wakeups.apis_of(RUNS.ref) == (other,)


@pytest.mark.parametrize("spec", [None, [], {"runStoreRef": 3, "queryApiRef": {"name": 4}}, {"queryApiRef": None}])
def test_a_spec_of_any_form_is_taken(spec: object) -> None:
    for kind, key in ((QUERY_API, SHOP), (API_KEY, DESK)):
        assert Wakeups().seen(kind, "ADDED", {**body(key), "spec": spec}) == (key,)


def test_a_key_that_tells_another_count_of_pods_is_behind(wakeups: Wakeups) -> None:
    assert wakeups.keys_behind(SHOP.ref, "2/2") == ()
    wakeups.seen(API_KEY, "MODIFIED", {**body(DESK), "status": {"loadedBy": "1/1"}})
    assert wakeups.keys_behind(SHOP.ref, "2/2") == (DESK,)
    assert wakeups.keys_behind(SHOP.ref, "1/1") == ()
    assert wakeups.keys_behind(Ref("retail", "other"), "2/2") == ()
