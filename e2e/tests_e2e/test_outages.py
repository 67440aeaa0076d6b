"""Callers under constant load notice neither an operator that is gone nor an API server that is silent. LONG=1: two minutes of each, else seconds."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tailrace_e2e.installation import NAMESPACE as SYSTEM
from tailrace_e2e.installation import OPERATOR
from tailrace_e2e.kubectl import Kubectl, condition, eventually
from tailrace_e2e.load import LONG
from tailrace_e2e.loaded import Loaded, revised
from tailrace_e2e.testbed import Bed

AWAY_S = 120 if LONG else 15
LEASE = timedelta(seconds=12)
"""A node renews its Lease every 10 s."""
pytestmark = pytest.mark.timeout(900)


def heals(loaded: Loaded) -> None:
    """An edit and a new key arrive, without anybody's help."""
    number = secrets.randbelow(1_000_000)
    name = f"healed-{secrets.token_hex(3)}"
    loaded.shop.space.patch("qapi", "shop", {"spec": {"queries": revised(loaded.root, number)}})
    loaded.shop.key(name)
    loaded.ready()
    loaded.shop.space("wait", "--for=condition=Ready", f"apikey/{name}", "--timeout=240s", timeout_s=260)
    assert loaded.loader.call(loaded.shop.text(name))["revision"] == number


def calm(loaded: Loaded, since: datetime) -> bool:
    """The node has renewed its Lease more than once since then, and the database's pod is Ready."""
    lease = Kubectl("kube-node-lease").list("lease")
    renewed = [datetime.fromisoformat(each["spec"]["renewTime"]) for each in lease]
    pods = loaded.shop.space.list("pod", "app=shop-postgres")
    assert renewed
    assert pods
    return all(each > since + LEASE for each in renewed) and all(condition(each, "Ready").get("status") == "True" for each in pods)


def test_operator_gone(loaded: Loaded) -> None:
    """the operator scaled to 0 under constant load: no call fails, nothing of a pod changes, and it heals when it is back"""
    system = Kubectl(SYSTEM)
    loaded.settle()
    lives = loaded.lives()
    with loaded.unharmed(f"operator gone for {AWAY_S} s"):
        system("scale", "deployment", OPERATOR, "--replicas=0")
        try:
            eventually("it is gone", lambda: not system.list("pod", f"app.kubernetes.io/name={OPERATOR}"))
            time.sleep(AWAY_S)
            assert loaded.lives() == lives
        finally:
            system("scale", "deployment", OPERATOR, "--replicas=2")
        heals(loaded)
    assert loaded.lives() == lives


def test_api_server_silent(loaded: Loaded, bed: Bed) -> None:
    """the API server silent under constant load: no call fails, no data plane starts again, and everything heals when it is back"""
    loaded.settle()
    with loaded.unharmed(f"API server silent for {AWAY_S} s"):
        with silent(bed):
            time.sleep(AWAY_S)
        back = datetime.now(UTC)
        eventually("the API server answers", lambda: Kubectl()("get", "--raw", "/readyz"))
        # Kubernetes itself takes pods whose node could not renew its Lease out of their Services for some seconds now, the database's too:
        # whoever holds its connections notices nothing, and an edited query would need new ones.
        eventually("the database's pod is in its Service", lambda: calm(loaded, back))
        heals(loaded)
    restarts = [
        status["restartCount"]
        for each in loaded.shop.space.list("pod", "tailrace.dev/queryapi=shop")
        for status in each["status"]["containerStatuses"]
        if status["name"] == "dataplane"
    ]
    assert set(restarts) == {0}


@contextmanager
def silent(bed: Bed) -> Iterator[None]:
    """Stops the testbed's API server where it stands: connections stay open and nothing answers."""
    outer = int((bed.run / "kube-apiserver.pid").read_text())
    (inner,) = map(int, Path(f"/proc/{outer}/task/{outer}/children").read_text().split())
    os.kill(inner, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(inner, signal.SIGCONT)
