"""What a QueryAPI's status says when its owner, the namespace or a stranger stands in its way, and that it goes on when that is mended."""

import base64
from collections.abc import Callable

import pytest
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually

pytest.importorskip("tailrace_e2e.installation", reason="the chart is not installed by the tests yet")
pytestmark = pytest.mark.usefixtures("installation")

GOOD = "postgresql://nobody:hunter2@db.invalid/shop"


def query_api(**spec: object) -> Object:
    """A small QueryAPI. Its database need not be there for what is tested here."""
    whole = {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": [{"name": "one", "connection": "db", "sql": "SELECT 1 AS x", "returns": "one"}],
        "roles": [{"name": "all", "queries": ["*"]}],
        "runStoreRef": {"name": "runs"},
        "replicas": 1,
        # The test's node is small, and other tests have pods on it.
        "gateway": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
        "dataPlane": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
        **spec,
    }
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "shop"}, "spec": whole}


def run_store() -> Object:
    """An embedded one."""
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "RunStore", "metadata": {"name": "runs"}, "spec": {"embedded": {}}}


def secret(key: str, value: str) -> Object:
    """The Secret of the connection."""
    data = {key: base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": data}


def says(space: Kubectl, reason: str, beside: str = "", words: str = "") -> Callable[[], bool]:
    """Whether Ready has this reason, with this condition beside it and these words."""

    def check() -> bool:
        found = space.get("queryapi", "shop")
        ready = condition(found, "Ready")
        extra = {each for each in ("Reconciling", "Stalled") if condition(found, each)}
        assert ready.get("reason") == reason, ready
        assert extra == ({beside} if beside else set())
        assert words in ready["message"]
        assert "hunter2" not in str(found["status"])
        return True

    return check


def has_deployment(space: Kubectl) -> bool:
    """Whether the pods' Deployment is there."""
    return space.find("deployment", "shop") is not None


def test_before_everything_else(space: Kubectl) -> None:
    """A QueryAPI that comes first waits for its RunStore, then its Secret, and names each fault of the URL without showing it"""
    space.apply(query_api())
    eventually("it waits for the RunStore", says(space, "RunStoreNotFound", "Reconciling", "RunStore runs"))
    assert not has_deployment(space)
    space.apply(run_store())
    eventually("it waits for the Secret", says(space, "SecretNotFound", "Reconciling", "Secret db"))
    eventually("the rest is rendered meanwhile", lambda: has_deployment(space))
    space.apply(secret("URL", GOOD))
    eventually("it waits for the key", says(space, "SecretKeyNotFound", "Reconciling", "no key url"))
    for value, reason, words in (
        ("sqlite:///shop.db", "SqliteInCluster", "for local use only"),
        ("hunter2", "InvalidUrl", "not a database's URL"),
        (f"{GOOD}?sslmode=hunter2", "InvalidUrl", "sslmode: malformed"),
    ):
        space.apply(secret("url", value))
        space("annotate", "--overwrite", "queryapi", "shop", f"example.com/look={reason}")  # It would look by itself, every 10 s.
        eventually(f"it is stuck for {reason}", says(space, reason, "Stalled", words))
    space.apply(secret("url", GOOD))
    eventually("its references are found", lambda: condition(space.get("queryapi", "shop"), "ResolvedRefs")["status"] == "True")


def test_what_cel_can_not_check(space: Kubectl) -> None:
    """A spec whose rules only the operator knows is told with place and fix, and an embedded store with two replicas is refused"""
    space.apply(run_store(), secret("url", GOOD), query_api(replicas=2))
    eventually("two pods are refused", says(space, "EmbeddedNeedsOnePod", "Stalled", "RunStore runs is embedded"))
    assert not has_deployment(space)
    query = {"name": "one", "connection": "db", "sql": "SELECT :id AS x", "params": {"id": {"type": "integer", "default": "x"}}}
    space.apply(query_api(queries=[query]))
    eventually("the default is refused", says(space, "InvalidSpec", "Stalled", "spec.queries[0].params.id.default"))
    assert condition(space.get("queryapi", "shop"), "Accepted")["status"] == "False"
    assert not has_deployment(space)
    space.apply(query_api())
    eventually("it goes on", lambda: has_deployment(space))


def test_quota(space: Kubectl) -> None:
    """A quota that stops the pods is told in the quota's own words, and pods come when it goes"""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    space.apply(quota, run_store(), secret("url", GOOD), query_api())
    eventually("the quota is told", says(space, "FailedCreate", "Stalled", "exceeded quota: none"))
    space.delete("resourcequota", "none")
    # The Deployment's own controller backs off; a change of the template makes it try at once.
    space.patch("queryapi", "shop", {"spec": {"dataPlane": {"resources": {"requests": {"cpu": "20m"}}}}})
    eventually("pods come", lambda: bool(space.list("pod", "tailrace.dev/queryapi=shop")))


def test_image_and_hand_made_change(space: Kubectl) -> None:
    """An image that can't be pulled is told in the kubelet's words; a pod template that was changed by hand is put back"""
    space.apply(run_store(), secret("url", GOOD), query_api())
    eventually("the Deployment is there", lambda: has_deployment(space))
    space("annotate", "queryapi", "shop", "tailrace.dev/paused=true")
    image = space.get("deployment", "shop")["spec"]["template"]["spec"]["containers"][1]["image"]
    space("set", "image", "deployment/shop", "gateway=tailrace/no-such-image:1")

    def stuck() -> bool:
        found = space.get("queryapi", "shop")
        assert condition(found, "Ready")["reason"] in ("ErrImagePull", "ImagePullBackOff")
        assert condition(found, "Stalled")["status"] == "True"
        return "container gateway" in condition(found, "Ready")["message"]

    eventually("the kubelet's words are told", stuck, within_s=240)
    space("annotate", "queryapi", "shop", "tailrace.dev/paused-")

    def put_back() -> bool:
        return bool(space.get("deployment", "shop")["spec"]["template"]["spec"]["containers"][1]["image"] == image)

    eventually("the image is put back", put_back)


def test_a_strangers_service(space: Kubectl) -> None:
    """A stranger's Service of the API's name is never touched and is told; when it goes, the API's own comes"""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop"},
        "spec": {"ports": [{"port": 1}], "selector": {"a": "b"}},
    }
    space.apply(service)
    before = space.get("service", "shop")
    space.apply(run_store(), secret("url", GOOD), query_api())
    eventually("the stranger is told", says(space, "ForeignObject", "Stalled", "shop"))
    assert space.get("service", "shop") == before
    space.delete("service", "shop")
    space("annotate", "queryapi", "shop", "example.com/look=again")  # It would look by itself, every 10 s.

    def ours() -> bool:
        found = space.find("service", "shop")
        return found is not None and found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tailrace-operator"

    eventually("its own Service is there", ours)
