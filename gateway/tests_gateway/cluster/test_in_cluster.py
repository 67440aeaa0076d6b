"""A pod's two programs against a stand-in for the API server: the real data plane, the real worker, every acknowledgement as the operator reads it."""

import asyncio
import json
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tailrace_contract import keys
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_gateway import worker as worker_module
from tailrace_gateway.dataplane import find_data_plane
from tailrace_gateway.observe import Event, Metrics, Observation
from tailrace_gateway.resources.apiserver import Access
from tailrace_gateway.settings import parse_settings
from tailrace_gateway.worker import Worker
from tailrace_loadtest.servers.postgres import free_port

pytestmark = pytest.mark.dataplane
BINARY = find_data_plane(None)
FIRST, SECOND, THIRD = (f"key-number-{n}-of-some-length" for n in range(3))


def spec(**more: Any) -> dict[str, Any]:
    return {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": [
            {"name": "item", "connection": "db", "sql": "SELECT id, label FROM items WHERE id = :id", "params": {"id": {"type": "integer", "required": True}}, "returns": "one"},
            {"name": "broken", "connection": "db", "sql": "SELECT nothing FROM nowhere"},
        ],
        "roles": [{"name": "all", "queries": ["*"]}, {"name": "admin", "queries": ["*"]}],
        "runStoreRef": {"name": "runs"},
        **more,
    }  # fmt: skip


def digests(*texts: str, **more: Any) -> dict[str, Any]:
    return {"keys": [{"id": "x", "sha256": keys.digest(text), "notBefore": "2026-01-01T00:00:00Z", **more} for text in texts]}


class Pod:
    def __init__(self, api: Any, folder: Path) -> None:
        self.api = api
        self.data = folder / "data"
        self.port, self.admin = free_port(), free_port()
        self.secret = folder / "gateway-secret"
        self.secret.write_text("07" * 32)
        with closing(sqlite3.connect(folder / "items.db")) as connection:
            connection.executescript(
                "CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT); INSERT INTO items VALUES (1, 'lamp'), (2, 'chair');"
            )
        url = folder / "secrets" / "retail" / "db" / "url"
        url.parent.mkdir(parents=True)
        url.write_text(f"sqlite:///{folder / 'items.db'}")
        names = ["--secrets", str(folder / "secrets"), "--configs", str(folder / "configs"), "--secret", str(self.secret)]
        self.settings = parse_settings(["--data", str(self.data), "--kubernetes", "--api", "retail/shop", *names])
        listen = ["--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"]
        self.log = (folder / "log").open("wb")
        argv = [str(BINARY), *listen, "--data", str(self.data), "--secret", str(self.secret), "--threads", "1", "--lame-duck", "0s"]
        self.plane = subprocess.Popen(argv, stdout=self.log, stderr=self.log)
        self.seen: list[Observation] = []
        self.task: asyncio.Task[None] | None = None
        self.http = httpx.AsyncClient(timeout=30)

    def start(self) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / "run").mkdir(exist_ok=True, mode=0o700)
        self.task = asyncio.create_task(Worker(self.settings, self.seen.append, Metrics()).run(asyncio.Event()))

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def end(self) -> None:
        if self.task is not None:
            await self.stop()
        self.plane.kill()
        self.plane.wait()
        self.log.close()
        await self.http.aclose()

    async def call(self, key: str, path: str = "/q/item?id=1") -> int:
        return (await self.http.get(f"http://127.0.0.1:{self.port}{path}", headers={"X-API-Key": key})).status_code

    async def ready(self) -> int:
        try:
            return (await self.http.get(f"http://127.0.0.1:{self.admin}/readyz")).status_code
        except httpx.ConnectError:
            return 0

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"http://127.0.0.1:{self.admin}/status")).json()
        return found

    async def source(self, kind: str, namespace: str = "retail") -> dict[str, Any]:
        snapshot = (await self.status())["snapshot"]
        sources = snapshot["sources"] if snapshot is not None else []
        return next(
            (each for each in sources if (each["kind"], each["namespace"]) == (kind, namespace)),
            {"resourceVersion": "-1", "generation": -1},
        )

    async def acknowledged(self, version: int, namespace: str = "retail") -> None:
        async def check() -> bool:
            return int((await self.source("ApiKeys", namespace))["resourceVersion"]) >= version

        await eventually(check, f"{namespace} {version}")

    def key(self, name: str, text: str, namespace: str = "retail", status: dict[str, Any] | None = None, **more: Any) -> int:
        wanted = {"queryApiRef": {"name": "shop", "namespace": "retail"}, "role": "all", "secretName": "k", **more}
        return int(self.api.put("apikeys", namespace, name, wanted, status or digests(text)))


async def eventually(check: Callable[[], Any], what: str = "it did not happen") -> None:
    try:
        async with asyncio.timeout(60):
            while not await check():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(what) from None


@pytest.fixture
async def pod(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pod]:
    if BINARY is None:
        told = "the data plane is not built: cargo build --release -p tailrace-dataplane"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    monkeypatch.setenv("TAILRACE_RUN_STORE", json.dumps({"name": "runs", "spec": {"embedded": {}}}))
    monkeypatch.setattr(worker_module, "in_cluster", lambda: Access(api.url))
    made = Pod(api, tmp_path)
    yield made
    print((tmp_path / "log").read_text(), *made.seen, sep="\n")
    await made.end()
    assert not [each for each in made.seen if each.event in (Event.SNAPSHOT_REFUSED, Event.PLANS_REFUSED, Event.COMPILE_FAILED)]


async def test_everything_a_key_goes_through_is_acknowledged(api: Any, pod: Pod) -> None:
    async def unready() -> bool:
        return await pod.ready() == 503

    async def ready() -> bool:
        return await pod.ready() == 200

    await eventually(unready)
    assert (await pod.status())["gatewayUp"] is False
    pod.start()
    assert await pod.ready() == 503, "no API, no snapshot"
    api.put("queryapis", "retail", "shop", spec())
    at = pod.key("desk", FIRST)
    await eventually(ready)
    await pod.acknowledged(at)
    assert await pod.call(FIRST) == 200
    status = await pod.status()
    assert status["gatewayUp"] is True
    assert status["gateway"]["queries"] | {"refused": []} == {"total": 2, "served": 1, "coalesced": 0, "stopped": [], "refused": []}
    assert {(each["name"], each["role"]) for each in status["gateway"]["queries"]["refused"]} == {("broken", "")}
    assert (status["gateway"]["keys"], status["gateway"]["stale"]) == (1, False)
    source = await pod.source("QueryAPI")
    assert (source["uid"], source["generation"]) == ("uid-shop", 1)

    # What is only seen moves no plan.
    version = status["snapshot"]["version"]
    at = api.bookmark()
    await pod.acknowledged(at)
    assert (await pod.status())["snapshot"]["version"] == version

    # Replacing a key: both texts work, then only the new one.
    at = pod.key("desk", "", status=digests(FIRST, SECOND))
    await pod.acknowledged(at)
    assert [await pod.call(FIRST), await pod.call(SECOND)] == [200, 200]
    over = {"keys": [*digests(FIRST, notAfter="2026-01-02T00:00:00Z")["keys"], *digests(SECOND)["keys"]]}
    at = pod.key("desk", "", status=over)
    await pod.acknowledged(at)
    assert [await pod.call(FIRST), await pod.call(SECOND)] == [401, 200]

    at = pod.key("desk", SECOND, suspended=True)
    await pod.acknowledged(at)
    assert await pod.call(SECOND) == 401
    at = pod.key("desk", SECOND)
    await pod.acknowledged(at)
    assert await pod.call(SECOND) == 200
    at = api.delete("apikeys", "retail", "desk")
    await pod.acknowledged(at)
    assert await pod.call(SECOND) == 401

    api.put("queryapis", "retail", "shop", spec(queries=spec()["queries"][:1]))

    async def second_generation() -> bool:
        return (await pod.source("QueryAPI"))["generation"] == 2 and (await pod.status())["gateway"] is not None

    await eventually(second_generation)
    assert (await pod.status())["gateway"]["queries"] == {"total": 1, "served": 1, "coalesced": 0, "stopped": [], "refused": []}


async def test_keys_of_other_namespaces_keep_below_their_ceiling(api: Any, pod: Pod) -> None:
    entry = {"namespaces": {"matchLabels": {"team": "yes"}}, "roles": ["all"], "bind": {"id": {"namespaceLabel": "tenant"}}}
    there = {"name": "teama", "entry": entry_fingerprint({"team": "yes"}, {"id": "tenant"}), "bind": {"id": "2"}}
    api.put("queryapis", "retail", "shop", spec(allowKeysFrom=[entry]), {"namespaces": [there]})
    pod.key("bot", FIRST, "teama")
    pod.key("greedy", SECOND, "teama", role="admin")
    pod.key("liar", THIRD, "teama", bind={"id": 1})
    pod.start()

    async def works() -> bool:
        return await pod.ready() == 200 and await pod.call(FIRST, "/q/item") == 200

    await eventually(works)
    assert [await pod.call(SECOND, "/q/item"), await pod.call(THIRD, "/q/item")] == [401, 401]
    answer = await pod.http.get(f"http://127.0.0.1:{pod.port}/q/item", headers={"X-API-Key": FIRST})
    assert answer.json() == {"id": 2, "label": "chair"}
    assert await pod.call(FIRST, "/q/item?id=1") == 422
    api.put("queryapis", "retail", "shop", spec(allowKeysFrom=[entry]), {"namespaces": []})

    async def gone() -> bool:
        return await pod.call(FIRST, "/q/item") == 401

    await eventually(gone)


async def test_calls_go_on_without_the_server_and_without_the_worker(api: Any, pod: Pod) -> None:
    api.put("queryapis", "retail", "shop", spec())
    at = pod.key("desk", FIRST)
    pod.start()

    async def works() -> bool:
        return await pod.ready() == 200 and await pod.call(FIRST) == 200

    await eventually(works)
    await pod.acknowledged(at)
    await api.stop()
    assert await pod.call(FIRST) == 200
    await pod.stop()

    async def down() -> bool:
        return not (await pod.status())["gatewayUp"]

    await eventually(down)
    assert [await pod.ready(), await pod.call(FIRST)] == [200, 200]
    pod.start()

    async def up() -> bool:
        return bool((await pod.status())["gatewayUp"])

    await eventually(up)
    assert [await pod.ready(), await pod.call(FIRST)] == [200, 200], "a worker that knows nothing yet takes nothing away"
    at = api.delete("apikeys", "retail", "desk")
    await api.start()
    await pod.acknowledged(at)
    assert await pod.call(FIRST) == 401
