"""What is left when the operator goes, and how it comes back. The last tests that need it: they take it away."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_e2e.installation import CRDS, NAMESPACE, RELEASE, Installation, shell
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually, kept

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Kubectl]:
    """The example shop, ready."""
    cluster("apply", "--kustomize", str(ROOT / "docs/examples/shop/cluster"))
    retail = Kubectl("retail")
    retail("wait", "--for=condition=Ready", "queryapi/shop", "apikey/support-desk", "--timeout=5m", timeout_s=320)
    yield retail
    if not kept():
        cluster.delete("namespace", "retail", "--wait=false")


def call(shop: Kubectl) -> Object:
    """Calls the shop from within the database's pod, which has curl."""
    key = shop("get", "secret", "support-desk-key", "--output", "go-template={{.data.key | base64decode}}")
    url = "http://shop.retail.svc/q/customer_by_id?id=1"
    found: Object = json.loads(shop("exec", "deploy/shop-postgres", "--", "curl", "-sS", "-m", "20", "-H", f"X-API-Key: {key}", url))
    return found


def pods(shop: Kubectl) -> set[str]:
    """UIDs of the shop's gateway pods."""
    return {each["metadata"]["uid"] for each in shop.list("pod", "tailrace.dev/queryapi=shop")}


def test_uninstalling_keeps_everything_that_serves(cluster: Kubectl, installation: Installation, shop: Kubectl) -> None:
    """helm uninstall: the types, the resources and what serves stay, and calls go on"""
    before = pods(shop)
    assert call(shop)["id"] == 1
    installation.uninstall()
    for name in CRDS:
        assert cluster.find("crd", name) is not None
    assert shop.find("qapi", "shop") is not None
    assert shop.find("akey", "support-desk") is not None
    assert call(shop)["id"] == 1
    assert pods(shop) == before


def test_a_manifest_applied_by_kubectl_works_too(installation: Installation, shop: Kubectl) -> None:
    """helm template | kubectl apply --server-side installs an operator that takes over without a new pod"""
    before = pods(shop)
    template = f"helm template {RELEASE} charts/tailrace --namespace {NAMESPACE} --no-hooks"
    shell(f"{template} | kubectl apply --server-side --force-conflicts --filename -", ROOT)
    Kubectl(NAMESPACE)("rollout", "status", "deployment/tailrace-operator", "--timeout=120s")
    shop.patch("qapi", "shop", {"spec": {"queries": shop.get("qapi", "shop")["spec"]["queries"][:5]}})
    try:
        eventually(
            "the change is served",
            lambda: (
                (api := shop.get("qapi", "shop"))["status"]["observedGeneration"] == api["metadata"]["generation"]
                and condition(api, "Ready").get("status") == "True"
                and api["status"]["queries"]["total"] == 5
            ),
        )
        assert pods(shop) == before
    finally:
        # All but the types, whose deletion would take the resources along.
        with installation.going():
            shell(f"{template} --set crds.install=false | kubectl delete --wait --filename -", ROOT)


def test_installing_again_takes_over(cluster: Kubectl, installation: Installation, shop: Kubectl) -> None:
    """helm install again: the resources are taken over as they are, without a new pod"""
    before = pods(shop)
    installation.install()
    cluster("apply", "--kustomize", str(ROOT / "docs/examples/shop/cluster"))
    eventually(
        "the shop is whole again",
        lambda: (
            (api := shop.get("qapi", "shop"))["status"]["observedGeneration"] == api["metadata"]["generation"]
            and condition(api, "Ready").get("status") == "True"
            and api["status"]["queries"]["total"] == 6
        ),
    )
    assert pods(shop) == before
    assert call(shop)["id"] == 1


def test_a_namespace_goes_while_the_operator_is_away(cluster: Kubectl, installation: Installation, shop: Kubectl) -> None:
    """without an operator a namespace with everything in it can be deleted: nothing is stuck"""
    installation.uninstall()
    cluster.delete("namespace", "retail", "--timeout=180s")
    assert cluster.find("namespace", "retail") is None
    installation.install()
