"""Nothing is lost while things change: a constant load on the Service, one change after the other, every call's answer and run accounted for.

LONG=1: all of it, with two pods and with one. Else rollout, query changes and a dying worker, with two pods.
"""

import json
import os
import secrets
import signal
import time
from pathlib import Path

import pytest
from tailrace_e2e.installation import NAMESPACE as SYSTEM
from tailrace_e2e.installation import OPERATOR
from tailrace_e2e.kubectl import Kubectl, condition, eventually
from tailrace_e2e.load import LONG
from tailrace_e2e.loaded import Loaded, revised

CHANGES = 30 if LONG else 10
CRASHES_S = 20 if LONG else 8
pytestmark = pytest.mark.timeout(900)
long = pytest.mark.skipif(not LONG, reason="only with LONG=1")

KILL = """
import os, signal, sys, time
end = time.time() + float(sys.argv[1])
while True:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
            parent = open(f"/proc/{name}/stat").read().rpartition(") ")[2].split()[1]
            if parent == "1" and int(name) != os.getpid() and b"worker" in words:
                os.kill(int(name), signal.SIGKILL)
                print("killed", name)
        except OSError:
            pass
    if time.time() > end:
        break
    time.sleep(0.1)
"""
"""Kills the worker in a gateway's container whenever there is one."""


def test_rollout(loaded: Loaded) -> None:
    """kubectl rollout restart under constant load: no call fails"""
    before = loaded.settle()
    with loaded.unharmed("rollout restart"):
        loaded.shop.space("rollout", "restart", "deployment/shop")
        loaded.shop.space("rollout", "status", "deployment/shop", "--timeout=300s", timeout_s=320)
        after = loaded.settle()
    assert not set(before) & set(after)


def test_a_change_a_second(loaded: Loaded) -> None:
    """a query changed once a second under constant load: no call fails, no pod rolls, and the last form is served"""
    loaded.settle()
    lives = loaded.lives()
    with loaded.unharmed(f"{CHANGES} query changes"):
        for number in range(1, CHANGES + 1):
            began = time.monotonic()
            loaded.shop.space.patch("qapi", "shop", {"spec": {"queries": revised(loaded.root, number)}})
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))
        loaded.ready()
    assert loaded.loader.call(loaded.text)["revision"] == CHANGES
    assert loaded.lives() == lives


@long
def test_key_rotation(loaded: Loaded) -> None:
    """a key rotates under constant load: neither who has the old text nor who reads the new one is refused"""
    loaded.shop.key("rotating", rotation={"every": "40s", "overlap": "35s"})
    loaded.shop.ready("rotating")
    old = loaded.shop.text("rotating")
    with loaded.loader.loading(old) as older:
        new = eventually(
            "the Secret has another text", lambda: text if (text := loaded.shop.text("rotating")) != old else None, every_s=0.2
        )
        with loaded.loader.loading(new) as newer:
            time.sleep(10)
    loaded.account("key rotation, the old text", older)
    loaded.account("key rotation, the new text", newer)
    loaded.shop.space.delete("akey", "rotating")


@long
def test_database_password(loaded: Loaded) -> None:
    """the database's password changes in server and Secret under constant load: no call fails, nothing restarts"""
    pods, lives = loaded.settle(), loaded.lives()
    password = secrets.token_hex(12)
    space = loaded.shop.space
    path = f"/etc/tailrace/secrets/{space.namespace}/shop-db/url"

    def has_arrived() -> bool:
        return all(password in space("exec", pod, "-c", "gateway", "--", "cat", path) for pod in pods)

    with loaded.unharmed("password rotation"):
        loaded.admin(f"ALTER ROLE shop PASSWORD '{password}'")
        space.patch("secret", "shop-postgres", {"stringData": {"shop": password}})
        space.patch("secret", "shop-db", {"stringData": {"url": f"postgresql://shop:{password}@shop-postgres/shop?sslmode=disable"}})
        eventually("the mounted files are new", has_arrived, within_s=180, every_s=3)
        time.sleep(5)
    # Every connection from here on needs the new one.
    loaded.admin("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'shop'")
    with loaded.unharmed("on the new password"):
        time.sleep(3)
    assert loaded.lives() == lives


@long
def test_operator_killed(loaded: Loaded) -> None:
    """both operators killed under constant load: no call fails, and another one leads"""
    system = Kubectl(SYSTEM)
    lives = loaded.lives()
    before = set(operators(system))
    with loaded.unharmed("operators killed"):
        for name in before:
            system.delete("pod", name, "--force", "--grace-period=0")
        eventually("another leads", lambda: system.get("lease", OPERATOR)["spec"]["holderIdentity"] not in {*before, ""}, within_s=180)
        loaded.shop.space("annotate", "--overwrite", "qapi", "shop", f"e2e/look={secrets.token_hex(3)}")
        loaded.ready()
    assert loaded.lives() == lives


def operators(system: Kubectl) -> list[str]:
    """Names of the operator's pods."""
    return [each["metadata"]["name"] for each in system.list("pod", f"app.kubernetes.io/name={OPERATOR}")]


def test_worker_killed(loaded: Loaded) -> None:
    """the Python worker of every pod killed, then for as long as it takes to be sure: no call fails, no pod is ever unready"""
    pods, lives = loaded.settle(), loaded.lives()
    for seconds, what in ((0, "workers killed once"), (CRASHES_S, "workers crash-looping")):
        with loaded.unharmed(what):
            for pod in pods:
                told = loaded.shop.space("exec", pod, "-c", "gateway", "--", "python", "-c", KILL, str(seconds))
                assert "killed" in told
            eventually("Python answers again in every pod",
                       lambda: condition(loaded.shop.space.get("qapi", "shop"), "GatewayHealthy")["status"] == "True")  # fmt: skip
    assert loaded.lives() == lives
    loaded.shop.space.patch("qapi", "shop", {"spec": {"queries": revised(loaded.root, 1000)}})
    loaded.ready()
    assert loaded.loader.call(loaded.text)["revision"] == 1000


@long
def test_container_killed(loaded: Loaded) -> None:
    """the Python container's first process killed by the node: no call fails, and the container comes back"""
    loaded.settle()
    wanted = f"{loaded.shop.space.namespace}/shop"
    with loaded.unharmed("Python containers killed"):
        for pid in first_processes(wanted):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0 if loaded.pods == 1 else 8)
        loaded.settle()
        loaded.ready()


def first_processes(api: str) -> list[int]:
    """Process ids, here, of the supervisors of an API's pods: its name is in their command line, and unique."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes().split(b"\0")
                own = (each / "status").read_text().partition("NSpid:")[2].splitlines()[0].split()
            except (OSError, IndexError):
                continue
            if api.encode() in words and own[-1] == "1":
                found.append(int(each.name))
    return found


@long
def test_eviction(loaded: Loaded) -> None:
    """one of two pods evicted by the Eviction API under constant load: no call fails"""
    if loaded.pods == 1:
        pytest.skip("an eviction ends the only pod")
    victim = loaded.settle()[0]
    space = loaded.shop.space
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim, "namespace": space.namespace}}
    with loaded.unharmed("eviction"):
        space("create", "--raw", f"/api/v1/namespaces/{space.namespace}/pods/{victim}/eviction", "--filename", "-", given=json.dumps(body))
        eventually("it has gone", lambda: space.find("pod", victim) is None)
        loaded.settle()
