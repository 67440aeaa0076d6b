"""Calls every pod of a shop without a pause, with one key after the other, and says when each pod stopped admitting it. IO: kubectl.

The calls are made in a pod of its own, as a caller's are (in one of the shop's pods they would take the gateway's CPU), and timed by its clock, so what is compared with moments seen here holds where the node has the same clock,
as the testbed's has.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from tailrace_e2e.kubectl import CommandFailed, Object
from tailrace_e2e.shop import Shop

NAME = "probe"
"""Of its pod."""
AFTERWARDS_S = 1.0
"""How long a key is still tried after its first refusal."""

_PROBE = f"""
import http.client, json, sys, threading, time

def probe(address, text, up, result):
    connection, refused, admitted, calls, again, failed = None, None, 0.0, 0, 0, 0
    end = time.time() + 60
    while time.time() < end and (refused is None or time.time() - refused < {AFTERWARDS_S}):
        began = time.time()
        try:
            connection = connection or http.client.HTTPConnection(address, 8080, timeout=10)
            connection.request("GET", "/q/customer_by_id?id=1", headers={{"X-API-Key": text}})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            connection, failed = None, failed + 1
            continue
        calls += 1
        if response.status == 200:
            admitted, again = began, again + (refused is not None)
        elif response.status == 401:
            refused = refused or time.time()
        else:
            failed += 1
        if calls == 1:
            up.wait()
    result[address] = {{"admitted": admitted, "refused": refused, "calls": calls, "again": again, "failed": failed}}

for line in sys.stdin:
    addresses, text = json.loads(line)
    up, result = threading.Barrier(len(addresses) + 1), {{}}
    threads = [threading.Thread(target=probe, args=(address, text, up, result)) for address in addresses]
    for thread in threads:
        thread.start()
    up.wait()
    print("up", flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps(result), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one pod did with one key. Moments are seconds since 1970."""

    admitted: float
    """When the last call that was answered began."""
    refused: float | None
    """When the first call was refused."""
    calls: int
    again: int
    """Calls that were answered after one had been refused."""
    failed: int
    """Calls that ended in anything else."""


class Probe:
    """Calls pods with one key at a time."""

    def __init__(self, out: IO[str], into: IO[str], addresses: list[str]) -> None:
        self._out = out
        self._into = into
        self._addresses = addresses

    def begin(self, text: str) -> None:
        """Begins to call; returns when every pod has been called once."""
        self._into.write(json.dumps([self._addresses, text]) + "\n")
        self._into.flush()
        if self._out.readline().strip() != "up":
            raise CommandFailed("the probe ended")

    def end(self) -> list[Seen]:
        """What each pod did, once all have refused the key and a second has passed (or a minute without a refusal)."""
        return [Seen(**each) for each in json.loads(self._out.readline()).values()]


@contextmanager
def probing(shop: Shop) -> Iterator[Probe]:
    """A probe of all pods of the shop that are ready now, in a pod beside them."""
    pods = shop.space.list("pod", "tailrace.dev/queryapi=shop")
    image = next(each["image"] for each in pods[0]["spec"]["containers"] if each["name"] == "gateway")
    shop.space.apply(_pod(image))
    shop.space("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=120s", timeout_s=140)
    words = ["kubectl", "--namespace", shop.space.namespace, "exec", "--stdin", NAME, "--", "python", "-c", _PROBE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Probe(process.stdout, process.stdin, shop.pods())
        finally:
            process.stdin.close()
            process.terminate()
            shop.space.delete("pod", NAME, "--wait=false", "--grace-period=0", "--force")


def _pod(image: str) -> Object:
    """A pod that waits, with Python in it."""
    safe = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.pause()"],
        "resources": {"requests": {"cpu": "100m"}},
        "securityContext": safe,
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": security, "automountServiceAccountToken": False, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}
