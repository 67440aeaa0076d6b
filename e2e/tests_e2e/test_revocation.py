"""How soon a revoked key is refused, and that no call is admitted after the status said so. On the testbed under constant load.

TAILRACE_REVOCATIONS: how many each way (10; 100 with LONG=1).
"""

import json
import os
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tailrace_e2e import testbed
from tailrace_e2e.installation import Installation
from tailrace_e2e.kubectl import Kubectl, kept
from tailrace_e2e.load import LONG, Loader, Outcome
from tailrace_e2e.loaded import queries
from tailrace_e2e.probe import probing
from tailrace_e2e.shop import Shop

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("TAILRACE_REVOCATIONS", "100" if LONG else "10"))


@pytest.fixture
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Shop]:
    """A shop on two pods."""
    name = f"e2e-revoked-{secrets.token_hex(3)}"
    cluster("create", "namespace", name)
    found = Shop(Kubectl(name))
    found.install(ROOT, queries=queries(ROOT))
    yield found
    if not kept():
        cluster("delete", "namespace", name, "--wait=false")


@pytest.fixture
def server() -> Iterator[str]:
    """The API server without kubectl's own start-up time."""
    with subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield "http://" + process.stdout.readline().rpartition(" ")[2].strip()
        process.terminate()


def ask(url: str, method: str = "GET", patch: Any = None) -> Any:
    """One request of the API server."""
    body = None if patch is None else json.dumps(patch).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/merge-patch+json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.fixture
def outcomes(shop: Shop, tmp_path: Path) -> Iterator[list[Outcome]]:
    """A constant load with a key that stays, where the testbed's node can make it; its outcome comes into the list."""
    bed = testbed.found()
    if bed is None:
        yield []
        return
    shop.key("stays")
    shop.ready("stays")
    loader = Loader(bed, tmp_path, shop.space.get("service", "shop")["spec"]["clusterIP"])
    with loader.loading(shop.text("stays")) as found:
        yield found
    print(f"beside it: {found[0]}")
    assert found[0].failed == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["suspended", "deleted"])
def test_no_call_is_admitted_after_the_status_said_so(shop: Shop, outcomes: list[Outcome], server: str, way: str) -> None:
    """no call is admitted after the status said that every pod dropped the key"""
    names = [f"key-{number}" for number in range(COUNT)]
    for name in names:
        shop.key(name)
    shop.space("wait", "--for=condition=Ready", "apikey", "--all", "--timeout=300s", timeout_s=320)
    home = f"{server}/apis/tailrace.dev/v1alpha1/namespaces/{shop.space.namespace}"
    taken_s, asked_s, said_s, calls = [], [], [], 0
    with probing(shop) as probe:
        for name in names:
            probe.begin(shop.text(name))
            began = time.time()
            if way == "suspended":
                ask(f"{home}/apikeys/{name}", "PATCH", {"spec": {"suspended": True}})
                accepted = time.time()
                while ask(f"{home}/apikeys/{name}")["status"].get("revokedOn") != "2/2":
                    time.sleep(0.05)
            else:
                ask(f"{home}/apikeys/{name}", "DELETE")
                accepted = time.time()
                wanted = {"key": f"{shop.space.namespace}/{name}", "confirmedBy": "2/2"}
                while not any(wanted.items() <= each.items() for each in ask(f"{home}/queryapis/shop")["status"].get("revocation", [])):
                    time.sleep(0.05)
            said = time.time()
            found = probe.end()
            for seen in found:
                assert seen.refused is not None, f"{name} is admitted for ever"
                assert seen.admitted < said, f"{name} was admitted {seen.admitted - said:.3f} s after its status said that no pod does"
                assert seen.again == 0, f"{name} came back"
                assert seen.failed == 0
                calls += seen.calls
            last = max(seen.admitted for seen in found)
            taken_s.append(max(last - accepted, 0.0))
            asked_s.append(last - began)
            said_s.append(said - accepted)
    print(
        f"\n{way}: {COUNT} revocations on 2 pods, {calls} calls; the last call admitted anywhere began {spread(taken_s)} after the API server's "
        f"answer ({spread(asked_s)} after it was asked); said after {spread(said_s)}"
    )


def spread(times_s: list[float]) -> str:
    """Median, 99th percentile and longest."""
    ordered = sorted(times_s)
    return ", ".join(
        f"{ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1000:.0f} ms ({name})"
        for part, name in ((0.5, "median"), (0.99, "p99"), (1, "longest"))
    )
