"""`kubectl tailrace status`: the tree, from objects and answers as a cluster gives them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tailrace_contract.ids import Ref
from tailrace_gateway.plugin import objects, tree

from .conftest import FakeKubectl, api_key, condition, items, pod, pod_says, query_api, run_store

Run = Callable[..., tuple[int, str, str]]


def cluster(kubectl: FakeKubectl, *found: dict[str, Any], pods: list[dict[str, Any]], says: dict[str, dict[str, Any] | None]) -> None:
    kubectl.answers("get queryapis", items(*found))
    kubectl.answers("get pods", items(*pods))
    for name, answer in says.items():
        if answer is None:
            kubectl.answers(
                f"port-forward .*pod/{name} ", err='error: pods "x" is forbidden: User "u" cannot create "pods/portforward"\n', code=1
            )
        else:
            kubectl.answers(f"port-forward .*pod/{name} :9090", serve={"GET": [200, {}, json.dumps(answer)]})


def test_all_is_well(kubectl: FakeKubectl, tailrace: Run) -> None:
    cluster(
        kubectl, query_api(), api_key("desk", "support"), run_store(), pods=[pod("shop-a"), pod("shop-b")], says={"shop-a": pod_says(), "shop-b": pod_says()}
    )  # fmt: skip
    code, out, err = tailrace("status", "-n", "retail")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "retail/shop  Ready  generation 3  http://shop.retail.svc"
    assert "├─ runs      RunStore runs (postgres)  Ready" in lines
    assert "├─ queries   2 of 2 served" in lines
    assert "│    shop-b  ready  0.1.0  generation 3  keys retail@812, retail/q@01234567  for 2 min" in lines
    assert lines[-1] == "     retail/desk  role support  Loaded  loaded by 2/2  3fK9Qm2x"
    assert "behind" not in out
    assert all("--namespace=retail" in each for each in kubectl.asked() if each[0] not in ("GET",))


def test_what_is_not_well_is_said(kubectl: FakeKubectl, tailrace: Run) -> None:
    refused = {
        "total": 2,
        "served": 1,
        "refused": [{"name": "rename", "role": "support", "code": "unknown_column", "message": "see the table"}],
    }
    conditions = [condition("Programmed", "False", "RollingOut", "shop-b is behind"), condition("Ready", "Unknown", "RollingOut", "1 of 2"),
                  condition("Reconciling", "True", "RollingOut", "1 of 2")]  # fmt: skip
    suspended = api_key(
        "old", "support", conditions=[condition("Ready", "False", "Suspended", "as the spec says")], keys=[], revokedOn="2/2"
    )
    cluster(
        kubectl,
        query_api(queries=refused, conditions=conditions, loadedBy="1/2", revocation=[{"key": "retail/gone", "resourceVersion": "7", "confirmedBy": "1/2"}]),
        suspended,
        api_key("desk", "support", "900"),
        pods=[pod("shop-a"), pod("shop-b"), pod("shop-c", ready=False, waiting="ImagePullBackOff")],
        says={"shop-a": pod_says(2, "812", gatewayUp=False), "shop-b": None, "shop-c": None},
    )  # fmt: skip
    code, out, _ = tailrace("status", "shop")
    assert code == 1
    assert "  Programmed False RollingOut: shop-b is behind" in out
    assert "  Reconciling True RollingOut: 1 of 2" in out
    assert "│    refused  rename for role support: unknown_column: see the table" in out
    assert "Python is down" in out
    assert "shop-a: behind: has not acknowledged generation 3, key retail/desk" in out
    assert 'shop-b: could not be asked: pods "x" is forbidden: User "u" cannot create "pods/portforward"' in out
    assert "shop-c  not ready (ImagePullBackOff)" in out
    assert not any("pod/shop-c" in each for each in kubectl.asked() if "port-forward" in each), "it does not run"
    assert "├─ runs      RunStore runs: not there" in out
    assert "retail/old   role support  Suspended  revoked on 2/2" in out
    assert "     retail/gone  dropped by 1/2" in out


def test_without_the_right_to_ask_pods(kubectl: FakeKubectl, tailrace: Run) -> None:
    cluster(kubectl, query_api(), api_key("desk", "support"), pods=[pod("shop-a")], says={})
    assert tailrace("status", "--no-pods")[0] == 0
    assert not any("port-forward" in each for each in kubectl.asked())
    assert tailrace("status")[0] == 1, "a pod that nobody could ask is not well"


def test_json(kubectl: FakeKubectl, tailrace: Run) -> None:
    cluster(kubectl, query_api(), api_key("desk", "support"), run_store(), pods=[pod("shop-a")], says={"shop-a": pod_says()})
    code, out, _ = tailrace("status", "-o", "json")
    [told] = json.loads(out)
    assert code == 0
    assert told["ready"] is True
    assert told["pods"][0]["generation"] == 3
    assert told["pods"][0]["keys"] == [{"namespace": "retail", "resourceVersion": "812"}]
    assert told["keys"][0]["ids"] == ["3fK9Qm2x"]
    assert "ab" * 32 not in out


def test_keys_of_other_namespaces(kubectl: FakeKubectl, tailrace: Run) -> None:
    admitted = [{"name": "teama", "entry": "0" * 16, "bind": {}}, {"name": "teamb", "entry": "0" * 16, "bind": {}}]
    cluster(kubectl, query_api(namespaces=admitted), pods=[], says={})
    kubectl.answers(r"\[teama\] get apikeys", items(api_key("bot", "support", namespace="teama")))
    kubectl.answers(r"\[teamb\] get apikeys", err="Error from server (Forbidden): apikeys is forbidden\n", code=1)
    code, out, err = tailrace("status", "-n", "retail", "--no-pods")
    assert code == 0
    assert "teama/bot" in out
    assert "keys of namespace teamb are not shown: Error from server (Forbidden)" in err


@pytest.mark.parametrize(
    ("status", "well"),
    [
        ({}, True),
        ({"observedGeneration": 2}, False),
        ({"conditions": [condition("Ready", "False", "InvalidSpec", "x")]}, False),
        ({"conditions": []}, False),
    ],
)
def test_well(status: dict[str, Any], well: bool) -> None:
    found = objects.objects([query_api(**status)])
    assert [each.well for each in tree.view(found, [], None)] == [well]


@pytest.mark.parametrize(("revoked", "well"), [("2/2", True), ("1/2", False), (None, False)])
def test_a_suspended_key_is_well_once_every_pod_has_dropped_it(revoked: str | None, well: bool) -> None:
    key = api_key("old", "support", conditions=[condition("Ready", "False", "Suspended", "x")], revokedOn=revoked)
    assert [each.well for each in tree.view(objects.objects([query_api(), key]), [], None)] == [well]


def test_an_object_that_cant_be_read_is_shown_as_far_as_it_can() -> None:
    found = objects.objects(
        [{"kind": "QueryAPI", "metadata": {"name": "x", "namespace": "n"}, "spec": None, "status": {"conditions": "?"}}, {}]
    )
    assert [api.ref for api in found.apis] == [Ref("n", "x")]
    assert found.apis[0].status.observed_generation == -1


def test_many_keys_are_cut_those_with_a_fault_first(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [api_key(f"k{n:03}", "support") for n in range(80)] + [
        api_key("z", "support", conditions=[condition("Ready", "False", "RoleNotFound", "no role")])
    ]
    tree.show(tree.view(objects.objects([query_api(), *keys]), [], None), tree.Console())
    out = capsys.readouterr().out
    assert "and 31 more" in out
    assert "Ready False RoleNotFound: no role" in out


def test_usage(tailrace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tailrace()[0] == 64
    assert tailrace("status", "--all")[0] == 64
    assert "kubectl tailrace status" in tailrace("status", "--help")[1]
    monkeypatch.setenv("PATH", "")
    assert tailrace("status") == (1, "", "kubectl tailrace status: kubectl is not on PATH\n")


def test_context_user_and_kubeconfig_are_kubectls(kubectl: FakeKubectl, tailrace: Run) -> None:
    cluster(kubectl, query_api(), pods=[], says={})
    tailrace("status", "-A", "--context", "c", "--kubeconfig", "f", "--as", "someone", "--no-pods")
    assert all(each[:3] == ["--context=c", "--kubeconfig=f", "--as=someone"] for each in kubectl.asked())
    assert all("--all-namespaces" in each for each in kubectl.asked())


def test_what_is_not_there(kubectl: FakeKubectl, tailrace: Run) -> None:
    cluster(kubectl, query_api(), pods=[], says={})
    assert tailrace("status", "shpo") == (1, "", "kubectl tailrace status: there is no QueryAPI shpo (retail/shop)\n")
