"""What a QueryAPI owns follows it: nothing superfluous stays, its scale and its queries in ConfigMaps arrive."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_e2e.installation import Installation
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually, kept
from tailrace_e2e.shop import Shop

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Shop]:
    """A shop with two pods."""
    space = Kubectl("e2e-owned")
    cluster("create", "namespace", space.namespace)
    found = Shop(space)
    found.install(ROOT)
    yield found
    if not kept():
        cluster.delete("namespace", space.namespace, "--wait=false")


def superfluous(api: Object) -> list[Object]:
    """An object of each kind, marked as the API's own, that no QueryAPI renders: as if an earlier version had."""
    uid = api["metadata"]["uid"]
    labels = {
        "app.kubernetes.io/name": "tailrace",
        "app.kubernetes.io/instance": "shop",
        "app.kubernetes.io/managed-by": "tailrace-operator",
        "tailrace.dev/queryapi": "shop",
        "tailrace.dev/queryapi-uid": uid,
    }
    owner = {
        "apiVersion": api["apiVersion"],
        "kind": "QueryAPI",
        "name": "shop",
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {"name": "shop-of-old", "labels": labels, "ownerReferences": [owner]}
    selector = {"matchLabels": {"app": "nothing"}}
    pod = {"metadata": {"labels": {"app": "nothing"}}, "spec": {"containers": [{"name": "none", "image": "none:1"}]}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": {"app": "nothing"}, "ports": [{"port": 80}]}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"replicas": 0, "selector": selector, "template": pod},
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"maxUnavailable": 1, "selector": selector},
        },
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": {"podSelector": selector}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": []},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "shop-of-old"},
            "subjects": [],
        },
    ]


def test_what_is_no_longer_wanted_goes(shop: Shop) -> None:
    """objects of every kind that the API owns and no version renders any more are removed, those of others are not"""
    extra = superfluous(shop.space.get("qapi", "shop"))
    shop.space.apply(*extra)
    shop.space("create", "serviceaccount", "somebody")
    eventually("all are gone", lambda: all(shop.space.find(each["kind"], "shop-of-old") is None for each in extra))
    assert shop.space.find("serviceaccount", "somebody") is not None
    assert shop.space.find("deployment", "shop") is not None


def test_kubectl_scale(shop: Shop) -> None:
    """kubectl scale queryapi changes the pods through the scale subresource; a single pod has no disruption budget"""
    assert shop.space.find("pdb", "shop") is not None
    for replicas in (1, 2):
        shop.space("scale", "queryapi/shop", f"--replicas={replicas}")
        eventually(f"{replicas} run and the budget follows", lambda wanted=replicas: is_scaled(shop.space, wanted))  # type: ignore[misc]


def is_scaled(space: Kubectl, replicas: int) -> bool:
    """Whether so many pods run, the status says so, and there is a budget only for several."""
    ready = space.get("deployment", "shop")["status"].get("readyReplicas")
    said = space.get("qapi", "shop")["status"]["replicas"]
    return ready == said == replicas and (space.find("pdb", "shop") is not None) == (replicas > 1)


def test_queries_of_a_config_map(shop: Shop) -> None:
    """queries as *.sql files of a ConfigMap are served beside those of the spec"""
    text = "---\nconnection: shop\nparams:\n  id: {type: integer, required: true}\nreturns: one\n---\nSELECT id, sku FROM products WHERE id = :id\n"

    shop.space.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"product_by_id.sql": text}})
    shop.space.patch("qapi", "shop", {"spec": {"queriesFrom": [{"configMapRef": {"name": "more"}}]}})

    def is_whole() -> bool:
        api = shop.space.get("qapi", "shop")
        ready = condition(api, "Ready")
        assert ready["observedGeneration"] == api["metadata"]["generation"], api["status"]
        assert ready["status"] == "True", api["status"]
        assert api["status"]["queries"]["served"] == 7, api["status"]
        return True

    eventually("the seventh query is served", is_whole, within_s=240)
    shop.key("desk")
    shop.ready("desk")
    assert shop.call(shop.text("desk"), "/q/product_by_id?id=1") == {200}
