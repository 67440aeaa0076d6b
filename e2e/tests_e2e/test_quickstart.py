"""README's quickstart on Kubernetes, run from its text."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_e2e.installation import Installation, shell
from tailrace_e2e.kubectl import Kubectl, condition, eventually, kept

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = ("retail", "storefront")


@pytest.fixture(scope="module")
def printed(cluster: Kubectl, installation: Installation) -> Iterator[str]:
    """What README's lines after the installation printed, run one after the other in one shell."""
    for name in NAMESPACES:
        cluster.delete("namespace", name, "--timeout=120s")
    yield shell("\n".join(installation.commands()[1:]), ROOT)
    if not kept():
        cluster.delete("namespace", *NAMESPACES, "--wait=false")


def test_the_operator_runs(cluster: Kubectl, installation: Installation) -> None:
    """helm install: two operators are ready, one of them leads"""
    system = Kubectl("tailrace-system")
    deployment = system.get("deployment", "tailrace-operator")
    assert deployment["status"]["readyReplicas"] == 2
    # An operator before this one may have left its Lease behind; it runs out.
    eventually("one of them leads", lambda: system.get("lease", "tailrace-operator")["spec"]["holderIdentity"] in installation.pods())


def test_a_pod_of_another_namespace_gets_the_row(printed: str) -> None:
    """README's commands: a pod of another namespace calls shop.retail.svc with its key and gets the customer"""
    row = json.loads(printed.splitlines()[-1])
    assert row["id"] == 1
    assert row["email"].endswith(".1@example.com")
    assert set(row) == {"id", "name", "email", "tier", "joined_on"}


def test_kubectl_get_shows_it_at_a_glance(printed: str) -> None:
    """kubectl get qapi shows at a glance that it is ready, on how many pods, and where"""
    lines = printed.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("NAME "))
    shown = dict(zip(lines[head].split(), lines[head + 1].split(), strict=False))
    assert shown["NAME"] == "shop"
    assert shown["READY"] == "True"
    assert "http://shop.retail.svc" in lines[head + 1]
    assert "2/2" in lines[head + 1]


def test_every_condition_is_of_this_generation(printed: str) -> None:
    """the status is of the generation that was applied, with every pod's acknowledgement"""
    api = Kubectl("retail").get("qapi", "shop")
    generation = api["metadata"]["generation"]
    assert api["status"]["observedGeneration"] == generation
    for kind in ("Accepted", "ResolvedRefs", "Programmed", "Ready"):
        assert condition(api, kind)["status"] == "True", kind
        assert condition(api, kind)["observedGeneration"] == generation, kind
    assert api["status"]["queries"]["served"] == api["status"]["queries"]["total"] == 6
    assert not {"Reconciling", "Stalled"} & {each["type"] for each in api["status"]["conditions"]}


def test_nothing_is_left_on_the_resources(printed: str) -> None:
    """the operator leaves no finalizer and no annotation on the resources"""
    for kind in ("qapi", "akey", "rstore"):
        for each in Kubectl("retail").list(kind):
            assert not each["metadata"].get("finalizers"), each["metadata"]["name"]
            assert set(each["metadata"].get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}


def test_the_same_file_is_served_on_a_laptop() -> None:
    """docs/examples/shop/shop.yaml is the file that make demo serves and kubectl applies"""
    here = ROOT / "docs/examples/shop"
    assert (here / "shop.yaml").read_bytes() == (here / "cluster/shop.yaml").read_bytes()
    assert "docs/examples/shop/shop.yaml" in (here / "local/demo.py").read_text()
    assert "- shop.yaml" in (here / "cluster/kustomization.yaml").read_text()
