"""What the operator does to a cluster, seen from outside: orders of applying, edits, other operators, the end of a namespace."""

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually, kept

pytest.importorskip("tailrace_e2e.installation", reason="the chart is not installed by the tests yet")
NAMESPACE, OPERATOR = "tailrace-system", "tailrace-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
WRITES = ("create", "update", "patch", "delete")


def api(**spec: object) -> Object:
    """A QueryAPI on a database that nobody has: all that is tested here comes before the first call."""
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "QueryAPI",
        "metadata": {"name": "shop"},
        "spec": {
            "connections": [{"name": "orders", "urlFrom": {"secretKeyRef": {"name": "orders-db", "key": "url"}}}],
            "queries": [{"name": "one", "connection": "orders", "sql": "SELECT 1 AS one", "returns": "one"}],
            "roles": [{"name": "support", "queries": ["*"], "tables": {"allow": []}}],
            "runStoreRef": {"name": "runs"},
            "replicas": 1,
            # The test's node is small, and other tests have pods on it.
            "gateway": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
            "dataPlane": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
            **spec,
        },
    }


def secret(text: str = "postgresql://app:x@127.0.0.1:1/orders") -> Object:
    """The Secret that it refers to."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "orders-db"}, "stringData": {"url": text}}


def store() -> Object:
    """The RunStore that it refers to."""
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "RunStore", "metadata": {"name": "runs"}, "spec": {"embedded": {}}}


def stamp() -> str:
    """Now, as the audit log writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def written(bed: Any, space: Kubectl, since: str) -> list[str]:
    """What the operator wrote in a namespace."""
    return [
        f"{each.verb} {each.resource} {each.name}"
        for each in bed.requests(since)
        if each.user == USER and each.namespace == space.namespace and each.verb in WRITES and each.resource != "events"
    ]


def is_begun(space: Kubectl) -> bool:
    """Whether the Deployment is there and everything that the spec refers to was found."""
    found = space.get("qapi", "shop")
    return condition(found, "ResolvedRefs")["status"] == "True" and space.find("deployment", "shop") is not None


@pytest.fixture
def begun(space: Kubectl, installation: Any) -> Kubectl:
    """A namespace with the QueryAPI `shop`, its objects there."""
    space.apply(secret(), store(), api())
    eventually("the Deployment is there", lambda: is_begun(space))
    return space


@pytest.mark.parametrize("order", list(itertools.permutations(("api", "store", "secret"))), ids="-".join)
def test_every_order_of_applying(space: Kubectl, installation: Any, order: tuple[str, ...]) -> None:
    """QueryAPI, RunStore and Secret applied in any order end in the same"""
    parts = {"api": api(), "store": store(), "secret": secret()}
    for name in order:
        space.apply(parts[name])
        if name == "api" and order[-1] != "api":
            eventually("the status says what is missing", lambda: condition(space.get("qapi", "shop"), "ResolvedRefs")["status"] == "False")
    eventually("the Deployment is there", lambda: is_begun(space), within_s=60)


def test_what_is_taken_away_by_hand_is_put_back(begun: Kubectl) -> None:
    """A deleted Service and a removed label are put back"""
    begun.delete("service", "shop")
    begun("label", "networkpolicy", "shop", "tailrace.dev/queryapi-uid-")

    def is_back() -> bool:
        label = begun.get("networkpolicy", "shop")["metadata"]["labels"].get("tailrace.dev/queryapi-uid")
        return begun.find("service", "shop") is not None and bool(label)

    eventually("both are back", is_back, within_s=60)


def test_a_limit_that_is_taken_out_goes(begun: Kubectl) -> None:
    """A CPU limit comes with an edit and goes with the next one, and replicas stay as scaled"""

    def limits() -> Object:
        found: Object = begun.get("deployment", "shop")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return found

    begun.patch("qapi", "shop", {"spec": {"dataPlane": {"resources": {"limits": {"cpu": "2"}}}}})
    eventually("the limit is there", lambda: limits().get("cpu") == "2")
    begun.patch("qapi", "shop", {"spec": {"dataPlane": {"resources": {"limits": {"cpu": None}}}}})
    eventually("the limit is gone", lambda: "cpu" not in limits())
    assert begun.get("deployment", "shop")["spec"]["replicas"] == 1


@pytest.mark.parametrize("kind", ["Secret", "Deployment"])
def test_a_strangers_object_is_never_adopted(space: Kubectl, installation: Any, kind: str) -> None:
    """A stranger's object of a name that is needed is not touched, and the status says so"""
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "x", "image": "none:1", "command": ["x"]}]}}
    strangers: dict[str, Object] = {
        "Secret": {"apiVersion": "v1", "stringData": {"mine": "yes"}},
        "Deployment": {"apiVersion": "apps/v1", "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": pod}},
    }
    name = "shop-gateway" if kind == "Secret" else "shop"
    space.apply({**strangers[kind], "kind": kind, "metadata": {"name": name}}, secret(), store())
    before = space.get(kind, name)
    space.apply(api())
    eventually("the status names it", lambda: condition(space.get("qapi", "shop"), "Stalled").get("reason") == "ForeignObject")
    after = space.get(kind, name)
    assert (after["metadata"]["uid"], after["metadata"].get("ownerReferences")) == (before["metadata"]["uid"], None)
    assert after.get("spec") == before.get("spec")
    assert after.get("data") == before.get("data")
    space.delete(kind, name)
    eventually("it goes on", lambda: is_begun(space), within_s=90)


def test_a_second_look_writes_nothing(begun: Kubectl, bed: Any) -> None:
    """A second look at an unchanged QueryAPI writes nothing, by the API server's audit log"""
    eventually("it is quiet", lambda: is_quiet(begun, bed), within_s=120)
    since = stamp()
    begun("annotate", "qapi", "shop", "e2e/touched=yes")
    eventually("it was looked at", lambda: any(each.user == USER and each.verb == "get" and each.resource == "queryapis"
                                               and each.namespace == begun.namespace for each in bed.requests(since)))  # fmt: skip
    time.sleep(3)
    assert written(bed, begun, since) == []


def is_quiet(space: Kubectl, bed: Any) -> bool:
    """Whether the operator has written nothing for ten seconds."""
    since = stamp()
    time.sleep(10)
    return written(bed, space, since) == []


def test_ten_edits_a_second(begun: Kubectl, bed: Any) -> None:
    """A QueryAPI edited many times a second ends at the last edit, without a write for each"""
    since, edits = stamp(), 40
    for number in range(edits):
        begun.patch("qapi", "shop", {"spec": {"queries": [{"name": "one", "connection": "orders", "sql": f"SELECT {number} AS one"}]}})
    generation = begun.get("qapi", "shop")["metadata"]["generation"]
    eventually("the status is of the last edit", lambda: begun.get("qapi", "shop")["status"]["observedGeneration"] == generation)
    assert len(written(bed, begun, since)) <= edits + 5
    assert begun.get("deployment", "shop")["metadata"]["generation"] == 1, "a query rolls no pod"


@pytest.fixture
def second(installation: Any) -> Iterator[str]:
    """Another operator that leads beside the first, by a Lease of its own."""
    system = Kubectl(NAMESPACE)
    deployment = system.get("deployment", OPERATOR)
    name = f"{OPERATOR}-second"
    spec = deployment["spec"]
    spec["replicas"] = 1
    labels = {"app.kubernetes.io/name": name}
    spec["selector"], spec["template"]["metadata"]["labels"] = {"matchLabels": labels}, labels
    for variable in spec["template"]["spec"]["containers"][0]["env"]:
        if variable["name"] == "TAILRACE_LEASE_NAME":
            variable["value"] = name
    role = system.get("role", f"{OPERATOR}-lease")
    rules = [{**rule, **({"resourceNames": [name]} if "resourceNames" in rule else {})} for rule in role["rules"]]
    account = [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}]
    rbac = "rbac.authorization.k8s.io"
    system.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": account,
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec},
    )
    eventually("it leads", lambda: (found := system.find("lease", name)) is not None and bool(found["spec"]["holderIdentity"]))
    yield name
    if not kept():
        for kind in ("deployment", "rolebinding", "role", "lease"):
            system.delete(kind, name, "--wait=false")


def test_two_operators_at_once(space: Kubectl, second: str, bed: Any) -> None:
    """Two operators that both lead end in the same objects and then write nothing"""
    space.apply(secret(), store(), api())
    eventually("the Deployment is there", lambda: is_begun(space))
    eventually("both are quiet", lambda: is_quiet(space, bed), within_s=120)
    assert condition(space.get("qapi", "shop"), "Programmed")["reason"] not in ("ForeignObject", "Contested")


def test_an_operator_that_goes_is_followed_by_the_other(begun: Kubectl, installation: Any) -> None:
    """The leading operator's pod is deleted by force: the other one leads and goes on"""
    system = Kubectl(NAMESPACE)
    holder = system.get("lease", OPERATOR)["spec"]["holderIdentity"]
    system.delete("pod", holder, "--force", "--grace-period=0")
    begun.patch("qapi", "shop", {"spec": {"replicas": 0}})
    eventually("the edit was applied", lambda: begun.get("deployment", "shop")["spec"]["replicas"] == 0, within_s=90)
    assert system.get("lease", OPERATOR)["spec"]["holderIdentity"] != holder


def test_a_namespace_goes_with_everything_in_it(begun: Kubectl, cluster: Kubectl) -> None:
    """kubectl delete namespace with everything in it leaves nothing stuck"""
    cluster("delete", "namespace", begun.namespace, "--timeout=150s", timeout_s=200)
    assert cluster.find("namespace", begun.namespace) is None
