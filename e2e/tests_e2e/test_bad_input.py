"""What input does that is too long, too much or contradicts itself: it is told, nothing opens by it, and what is beside it goes on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_e2e.installation import Installation
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually, kept
from tailrace_e2e.shop import Shop

ROOT = Path(__file__).resolve().parents[2]
KINDS = "qapi,akey,rstore"


@pytest.fixture(scope="module")
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Shop]:
    """A shop on one pod, with a key for each of its roles."""
    found = Shop(Kubectl("e2e-bad-input"))
    cluster("create", "namespace", found.space.namespace)
    found.install(ROOT, replicas=1)
    for role in ("support", "analyst"):
        found.key(role, role=role)
    for role in ("support", "analyst"):
        found.ready(role)
    yield found
    if not kept():
        cluster.delete("namespace", found.space.namespace, "--wait=false")


def taken_up(shop: Shop) -> Object:
    """The QueryAPI, once its status is of the last edit and the pod has acknowledged that."""

    def found() -> Object | None:
        api = shop.space.get("qapi", "shop")
        is_of_it = api["status"]["observedGeneration"] == api["metadata"]["generation"]
        return api if is_of_it and api["status"]["loadedBy"] == "1/1" and condition(api, "Ready")["status"] != "Unknown" else None

    return eventually("the edit is taken up", found)


def test_a_long_name(space: Kubectl, crds: None) -> None:
    """a name of 64 characters is refused with the rule, for each kind, and what is applied with it is not"""
    long = "a" * 64
    store: Object = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "RunStore", "metadata": {"name": "runs"}, "spec": {"embedded": {}}}
    key = {"queryApiRef": {"name": "shop"}, "role": "all", "secretName": "k"}
    api = {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": [{"name": "one", "connection": "db", "sql": "SELECT 1 AS x"}],
        "roles": [{"name": "all", "queries": ["*"]}],
        "runStoreRef": {"name": "runs"},
        "replicas": 0,
    }
    wrong = [
        {**store, "metadata": {"name": long}},
        {**store, "kind": "ApiKey", "metadata": {"name": long}, "spec": key},
        {**store, "kind": "QueryAPI", "metadata": {"name": long}, "spec": api},
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*wrong, store]})
    said = space("apply", "--server-side", "--filename", "-", given=text, check=False)
    assert said.count("metadata.name: at most 50 characters") == len(wrong), said
    assert [each["metadata"]["name"] for each in space.list(KINDS)] == ["runs"]


def test_a_policy_that_can_not_hold(shop: Shop) -> None:
    """a mask on a column that is not there opens nothing: the role's calls are refused, the status says so, and other roles go on"""
    texts = {role: shop.text(role) for role in ("support", "analyst")}
    before = shop.space.get("qapi", "shop")["spec"]["roles"]
    broken = [dict(each) for each in before]
    broken[1] = {**broken[1], "masks": [*broken[1]["masks"], {"column": "customers.no_such_column", "with": "hash"}]}
    assert shop.call(texts["analyst"]) == {200}
    shop.space.patch("qapi", "shop", {"spec": {"roles": broken}})
    api = taken_up(shop)
    # The spec alone is in order, and the API server took it: that it can't be kept is known to the pods only.
    assert condition(api, "Accepted")["status"] == "True"
    assert (condition(api, "Ready")["status"], condition(api, "Ready")["reason"]) == ("False", "QueryRefused")
    assert {each["role"] for each in api["status"]["queries"]["refused"]} == {"analyst"}
    assert 200 not in shop.call(texts["analyst"])
    assert shop.call(texts["support"]) == {200}
    shop.space.patch("qapi", "shop", {"spec": {"roles": before}})
    assert condition(taken_up(shop), "Ready")["status"] == "True"
    assert shop.call(texts["analyst"]) == {200}


def test_one_query_of_many(shop: Shop) -> None:
    """a query on a table that is not there is refused alone: the others are served, the status names it, never its SQL"""
    before = shop.space.get("qapi", "shop")["spec"]["queries"]
    bad = {"name": "lost", "connection": "shop", "sql": "SELECT 'hunter2' AS x FROM no_such_table"}
    shop.space.patch("qapi", "shop", {"spec": {"queries": [*before, bad]}})
    api = taken_up(shop)
    assert condition(api, "Ready")["reason"] == "QueryRefused"
    assert {each["name"] for each in api["status"]["queries"]["refused"]} == {"lost"}
    assert (api["status"]["queries"]["total"], api["status"]["queries"]["served"]) == (len(before) + 1, len(before))
    assert "hunter2" not in json.dumps(api["status"])
    assert shop.call(shop.text("support")) == {200}
    assert 200 not in shop.call(shop.text("support"), "/q/lost")
    shop.space.patch("qapi", "shop", {"spec": {"queries": before}})
    assert condition(taken_up(shop), "Ready")["status"] == "True"


def test_five_hundred_queries(shop: Shop) -> None:
    """a QueryAPI of 500 queries is Ready, serves the last of them, rolls no pod for it, and its status stays short"""
    before = shop.space.get("qapi", "shop")["spec"]["queries"]
    deployed = shop.space.get("deployment", "shop")["metadata"]["generation"]
    many = [
        {"name": f"more_{number}", "connection": "shop", "sql": f"SELECT id, {number} AS n FROM customers WHERE id = :id",
         "params": {"id": {"type": "integer", "required": True}}, "returns": "one"}
        for number in range(500 - len(before))
    ]  # fmt: skip
    shop.space.patch("qapi", "shop", {"spec": {"queries": [*before, *many]}})
    api = taken_up(shop)
    assert condition(api, "Ready")["status"] == "True", api["status"]
    assert api["status"]["queries"]["served"] == 500
    assert len(json.dumps(api["status"])) < 8192
    assert shop.call(shop.text("support"), f"/q/more_{len(many) - 1}?id=1") == {200}
    assert shop.space.get("deployment", "shop")["metadata"]["generation"] == deployed
    shop.space.patch("qapi", "shop", {"spec": {"queries": before}})
    taken_up(shop)


def test_nothing_is_left_on_the_resources(shop: Shop) -> None:
    """the operator puts no finalizer and no annotation on a resource, and manages nothing of it but the status"""
    found = json.loads(shop.space("get", KINDS, "--output", "json", "--show-managed-fields"))["items"]
    assert {each["kind"] for each in found} == {"QueryAPI", "ApiKey", "RunStore"}
    for each in found:
        metadata = each["metadata"]
        assert "finalizers" not in metadata
        assert "annotations" not in metadata
        ours = {entry.get("subresource", "") for entry in metadata["managedFields"] if "operator" in entry["manager"]}
        assert ours == {"status"}, metadata["managedFields"]
