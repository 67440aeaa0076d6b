"""Very many resources: how long until all are Ready, what they cost the API server then, and the operator's memory. Asked for by TAILRACE_MANY=1."""

import json
import os
import time
from collections.abc import Iterator

import pytest
from tailrace_e2e.installation import NAMESPACE, OPERATOR, Installation, moment
from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually, kept
from tailrace_e2e.testbed import Bed

pytestmark = pytest.mark.skipif(not os.environ.get("TAILRACE_MANY"), reason="takes minutes: TAILRACE_MANY=1 runs it")
APIS, KEYS = 200, 5
REST_S = 60
USER = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"


@pytest.fixture
def many(cluster: Kubectl, installation: Installation) -> Iterator[Kubectl]:
    """A namespace for them."""
    space = Kubectl("e2e-many")
    cluster("create", "namespace", space.namespace)
    yield space
    if not kept():
        cluster.delete("namespace", space.namespace, "--wait=false")


def documents() -> Iterator[Object]:
    """QueryAPIs scaled to zero (a small node has no room for their pods), each with its keys."""
    ours = "tailrace.dev/v1alpha1"
    url = "postgresql://app:x@127.0.0.1:1/x"
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": {"url": url}}
    yield {"apiVersion": ours, "kind": "RunStore", "metadata": {"name": "runs"}, "spec": {"embedded": {}}}
    for api in range(APIS):
        spec = {
            "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
            "queries": [{"name": f"q{number}", "connection": "db", "sql": f"SELECT {number} AS x"} for number in range(5)],
            "roles": [{"name": "all", "queries": ["*"]}],
            "runStoreRef": {"name": "runs"},
            "replicas": 0,
        }
        yield {"apiVersion": ours, "kind": "QueryAPI", "metadata": {"name": f"api{api}"}, "spec": spec}
        for key in range(KEYS):
            name = f"api{api}-k{key}"
            wanted = {"queryApiRef": {"name": f"api{api}"}, "role": "all", "secretName": name}
            yield {"apiVersion": ours, "kind": "ApiKey", "metadata": {"name": name}, "spec": wanted}


def are_done(space: Kubectl) -> bool:
    """Whether each QueryAPI is Ready and each key has its digest."""
    found = json.loads(space("get", "queryapis,apikeys", "--output", "json"))["items"]
    apis = [each for each in found if each["kind"] == "QueryAPI"]
    keys = [each for each in found if each["kind"] == "ApiKey"]
    return all(condition(each, "Ready").get("status") == "True" for each in apis) and all(
        each.get("status", {}).get("keys") for each in keys
    )


def memory_mb(system: Kubectl, holder: str) -> int:
    """The most that the operator's process had at once, in MB."""
    text = system("exec", holder, "--", "python", "-c", "print(open('/proc/1/status').read())")
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


@pytest.mark.timeout(1200)
def test_two_hundred_apis_with_a_thousand_keys(many: Kubectl, bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    """200 QueryAPIs with 5 keys each are Ready, and at rest cost the API server no write and few reads"""
    began = time.monotonic()
    many.apply(*documents())
    eventually("all are Ready", lambda: are_done(many), within_s=900, every_s=3)
    took_s = time.monotonic() - began
    eventually("it is quiet", lambda: is_quiet(bed), within_s=200)
    since = moment()
    time.sleep(REST_S)
    at_rest = list(asked(bed, since))
    system = Kubectl(NAMESPACE)
    holder = system.get("lease", OPERATOR)["spec"]["holderIdentity"]
    with capsys.disabled():
        print(
            f"\n      all Ready after {took_s:.0f} s; at rest {len(at_rest) / REST_S:.1f} requests/s; operator {memory_mb(system, holder)} MB"
        )
    assert [each for each in at_rest if each[0] in ("create", "update", "patch", "delete") and not each[1].startswith("leases")] == []
    assert len(at_rest) / REST_S < 40
    restarts = [each["status"]["containerStatuses"][0]["restartCount"] for each in system.list("pod", f"app.kubernetes.io/name={OPERATOR}")]
    assert set(restarts) == {0}


def asked(bed: Bed, since: str) -> Iterator[tuple[str, str]]:
    """What the operator asked of the API server: verb and resource."""
    return ((each.verb, each.resource) for each in bed.requests(since) if each.user == USER)


def is_quiet(bed: Bed) -> bool:
    """Whether nothing was written for ten seconds."""
    since = moment()
    time.sleep(10)
    return not any(verb in ("create", "patch", "delete") and resource != "leases" for verb, resource in asked(bed, since))
