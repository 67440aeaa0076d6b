"""Many edits and many queries at once, under constant load. LONG=1: ten edits a second for 30 s, 500 queries; else 5 s and 100."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tailrace_e2e.kubectl import Object
from tailrace_e2e.load import LONG
from tailrace_e2e.loaded import Loaded, queries, revised

EDITS_S = 30 if LONG else 5
QUERIES = 500 if LONG else 100
pytestmark = pytest.mark.timeout(900)


@contextmanager
def api_server() -> Iterator[str]:
    """The API server without kubectl's own start-up time."""
    with subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield "http://" + process.stdout.readline().rpartition(" ")[2].strip()
        process.terminate()


def test_ten_edits_a_second(loaded: Loaded) -> None:
    """a QueryAPI edited ten times a second under constant load: no call fails, no pod rolls, the status is of the last edit"""
    loaded.settle()
    lives = loaded.lives()
    with api_server() as server, loaded.unharmed(f"10 edits a second for {EDITS_S} s"):
        url = f"{server}/apis/tailrace.dev/v1alpha1/namespaces/{loaded.shop.space.namespace}/queryapis/shop"
        began = time.monotonic()
        for number in range(10 * EDITS_S):
            body = json.dumps({"spec": {"queries": revised(loaded.root, 5000 + number)}}).encode()
            with urllib.request.urlopen(
                urllib.request.Request(url, body, {"Content-Type": "application/merge-patch+json"}, method="PATCH")
            ):
                pass
            time.sleep(max(0.0, began + (number + 1) / 10 - time.monotonic()))
        print(f"\n{10 * EDITS_S} edits in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        loaded.ready()
        print(f"Ready {time.monotonic() - began:.1f} s after the last")
    assert loaded.loader.call(loaded.text)["revision"] == 5000 + 10 * EDITS_S - 1
    assert loaded.lives() == lives


def test_many_queries(loaded: Loaded) -> None:
    """hundreds of queries in one QueryAPI under constant load: all are served, no call fails, no pod rolls"""
    loaded.settle()
    lives = loaded.lives()
    more: list[Object] = [
        {
            "name": f"customer_{number}",
            "connection": "shop",
            "sql": f"SELECT id, name, {number} AS number FROM customers WHERE id = :id",
            "params": {"id": {"type": "integer", "required": True}},
            "returns": "one",
        }
        for number in range(QUERIES - len(queries(loaded.root)))
    ]
    with loaded.unharmed(f"{QUERIES} queries"):
        began = time.monotonic()
        loaded.shop.space.patch("qapi", "shop", {"spec": {"queries": queries(loaded.root) + more}})
        loaded.ready()
        print(f"\n{QUERIES} queries: Ready after {time.monotonic() - began:.1f} s")
    said = loaded.shop.space.get("qapi", "shop")["status"]["queries"]
    assert (said["total"], said["served"]) == (QUERIES, QUERIES)
    loaded.shop.space.patch("qapi", "shop", {"spec": {"queries": queries(loaded.root)}})
    loaded.ready()
    assert loaded.lives() == lives
