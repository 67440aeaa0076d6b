"""The gateway's source of resources against the API server itself: what the stand-in of its tests was made after."""

import asyncio
import base64
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tailrace_contract.ids import Ref
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.resources.apiserver import Access, ApiServer
from tailrace_gateway.resources.kubernetes import KubernetesSource, run_store
from tailrace_gateway.resources.listwatch import Times
from tailrace_gateway.resources.state import ResourceState

pytestmark = pytest.mark.usefixtures("crds")
STORE = json.dumps({"name": "runs", "spec": {"embedded": {}}})
SHA = "ab" * 32
RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [tailrace.dev], resources: [queryapis, apikeys], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: gateway, namespace: HOME}]
"""
API = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: shop, annotations: {tailrace.dev/paused: "true"}}
spec:
  connections: [{name: db, urlFrom: {secretKeyRef: {name: db, key: url}}}]
  queries: [{name: one, connection: db, sql: SELECT VALUE AS x}]
  roles: [{name: all, queries: ["*"]}]
  runStoreRef: {name: runs}
"""
KEY = """
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {name: NAME, annotations: {tailrace.dev/paused: "true"}}
spec: {queryApiRef: {name: shop, namespace: HOME}, role: all, secretName: NAME}
"""


def kubectl(*words: str, text: str | None = None) -> str:
    return subprocess.run(["kubectl", *words], input=text, text=True, capture_output=True, check=True, timeout=120).stdout


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    home, away = (f"gateway-source-{secrets.token_hex(4)}" for _ in range(2))
    try:
        for each in (home, away):
            kubectl("create", "namespace", each)
        kubectl("-n", home, "create", "serviceaccount", "gateway")
        yield home, away
    finally:
        kubectl("delete", "namespace", home, away, "--wait=false", "--ignore-not-found")


def access(home: str, folder: Path) -> Access:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    cluster = config["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (folder / "token").write_text(kubectl("-n", home, "create", "token", "gateway"))
    return Access(cluster["server"], folder / "token", folder / "ca.crt")


async def test_the_gateways_source(namespaces: tuple[str, str], tmp_path: Path) -> None:
    """A gateway reads its API and keys with rights of two namespaces only, waits for rights, and sees every change and deletion."""
    home, away = namespaces
    seen: list[Observation] = []
    server = ApiServer(access(home, tmp_path))
    times = Times(watch_s=(3, 3), beyond_s=20, back_off_s=(0.1, 1.0), healthy_s=1)
    source = KubernetesSource(
        server, Ref(home, "shop"), run_store(STORE, home), tmp_path / "secrets", tmp_path / "configs", seen.append, times=times
    )
    states: list[ResourceState] = []

    async def follow() -> None:
        async for state in source.states():
            states.append(state)

    async def run(*words: str, text: str | None = None) -> str:
        return await asyncio.to_thread(kubectl, *words, text=text)

    async def until(check: Callable[[ResourceState], object]) -> ResourceState:
        async with asyncio.timeout(60):
            while not states or not check(states[-1]):
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
        return states[-1]

    def version(state: ResourceState, namespace: str) -> int:
        return next((int(each.resource_version) for each in state.sources if each.namespace == namespace), -1)

    async def status(namespace: str, name: str, value: dict[str, Any]) -> None:
        await run("-n", namespace, "patch", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": value}))

    task = asyncio.create_task(follow())
    try:
        # No rights yet: nothing is given, and it is said why.
        async with asyncio.timeout(60):
            while not any(each.event is Event.SOURCE_AWAY and each.fields["reason"] == "forbidden" for each in seen):
                await asyncio.sleep(0.02)
        assert not states
        await run("-n", home, "apply", "-f", "-", text=RIGHTS.replace("HOME", home))
        assert not (await until(lambda state: True)).query_apis

        await run("-n", home, "apply", "-f", "-", text=API.replace("VALUE", "1"))
        await until(lambda state: state.query_apis)
        await run("-n", home, "apply", "-f", "-", text=KEY.replace("NAME", "desk").replace("HOME", home))
        await status(home, "apikey/desk", {"keys": [{"id": "x", "sha256": SHA, "notBefore": "2026-01-01T00:00:00Z"}]})
        state = await until(lambda state: state.digests)
        assert state.digests[Ref(home, "desk")][0].sha256 == SHA
        await run("-n", home, "apply", "-f", "-", text=API.replace("VALUE", "2"))
        state = await until(lambda state: "SELECT 2" in str(state.query_apis))
        assert state.query_apis[Ref(home, "shop")].metadata.generation == 2

        # Another namespace is admitted before the rights are there, and does not hold up this one.
        await status(home, "queryapi/shop", {"namespaces": [{"name": away, "entry": "0" * 16, "bind": {}}]})
        await run("-n", away, "apply", "-f", "-", text=KEY.replace("NAME", "bot").replace("HOME", home))
        await run("-n", home, "patch", "apikey/desk", "--type=merge", "-p", '{"spec":{"suspended":true}}')
        await until(lambda state: state.api_keys[Ref(home, "desk")].spec.suspended)
        await run("-n", away, "apply", "-f", "-", text=RIGHTS.replace("HOME", home))
        await until(lambda state: Ref(away, "bot") in state.api_keys)

        # A deletion is seen at its own version or later, and watches end and go on all the while.
        before = int(json.loads(await run("-n", home, "get", "apikey/desk", "-o", "json"))["metadata"]["resourceVersion"])
        await run("-n", home, "delete", "apikey/desk")
        state = await until(lambda state: Ref(home, "desk") not in state.api_keys)
        assert version(state, home) > before
        await asyncio.sleep(4)
        assert source.age_s() < 60
        await run("-n", home, "delete", "queryapi/shop")
        await until(lambda state: not state.query_apis)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()
