"""A stand-in for the Kubernetes API server: list (with pages), watch, bookmarks, and everything that can go wrong with them."""

import asyncio
import copy
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

PREFIX = "/apis/tailrace.dev/v1alpha1/namespaces/{namespace}/{plural}"


@dataclass(eq=False)
class Stream:
    """One watch that is open."""

    place: tuple[str, str]
    name: str
    queue: deque[dict[str, Any] | None] = field(default_factory=deque)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: dict[str, Any] | None) -> None:
        self.queue.append(event)
        self.woken.set()


class FakeApi:
    """Objects by (plural, namespace) and name; `faults`: status, or `hang`, by (plural, namespace) for lists and watches."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self.events: list[tuple[int, tuple[str, str], dict[str, Any]]] = []
        self.oldest = 0
        self.faults: dict[tuple[str, str], int | str] = {}
        self.fault: int | str | None = None
        """Of everything."""
        self.silent = False
        """Watches get nothing, not even an end."""
        self.page = 500
        self.token = ""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.streams: set[Stream] = set()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(PREFIX, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def put(self, plural: str, namespace: str, name: str, spec: Any, status: Any = None, **metadata: Any) -> int:
        """Creates or replaces an object; its resourceVersion."""
        place = (plural, namespace)
        self.version += 1
        before = self.objects.setdefault(place, {}).get(name)
        generation = 1 if before is None else before["metadata"]["generation"] + (before["spec"] != spec)
        uid = f"uid-{name}" if before is None else before["metadata"]["uid"]
        fixed = {"name": name, "namespace": namespace, "uid": uid, "generation": generation, "resourceVersion": str(self.version)}
        item = {
            "metadata": {**fixed, "managedFields": [{"manager": "x"}], **metadata},
            "spec": spec,
            "status": status or {"observedGeneration": -1},
        }
        self.objects[place][name] = item
        self._say(place, "ADDED" if before is None else "MODIFIED", item)
        return self.version

    def delete(self, plural: str, namespace: str, name: str) -> int:
        place = (plural, namespace)
        self.version += 1
        item = copy.deepcopy(self.objects[place].pop(name))
        item["metadata"]["resourceVersion"] = str(self.version)
        self._say(place, "DELETED", item)
        return self.version

    def bookmark(self) -> int:
        self.version += 1
        for stream in self.streams:
            stream.put({"type": "BOOKMARK", "object": {"kind": "x", "metadata": {"resourceVersion": str(self.version)}}})
        return self.version

    def compact(self) -> None:
        """Forgets what was before."""
        self.version += 1
        self.oldest = self.version
        self.events.clear()

    def cut(self) -> None:
        """Ends every watch, in order."""
        for stream in list(self.streams):
            stream.put(None)

    def say(self, event: dict[str, Any]) -> None:
        """The same to every watch, whatever it is."""
        for stream in self.streams:
            stream.put(event)

    def asked(self, plural: str, namespace: str, *, watch: bool) -> int:
        return sum((p, n, "watch" in params) == (plural, namespace, watch) for p, n, params in self.requests)

    def _say(self, place: tuple[str, str], kind: str, item: dict[str, Any]) -> None:
        event = {"type": kind, "object": copy.deepcopy(item)}
        self.events.append((self.version, place, event))
        for stream in self.streams:
            if stream.place == place and stream.name in ("", item["metadata"]["name"]):
                stream.put(event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = (request.match_info["plural"], request.match_info["namespace"])
        params = dict(request.query)
        self.requests.append((*place, params))
        fault = self.fault or self.faults.get(place)
        if fault == "hang":
            await asyncio.sleep(3600)
        if isinstance(fault, int):
            return web.json_response({"kind": "Status", "code": fault, "message": "hunter2"}, status=fault)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        name = params.get("fieldSelector", "").removeprefix("metadata.name=")
        if "watch" in params:
            return await self._watch(request, place, name, params)
        items = [item for own, item in sorted(self.objects.get(place, {}).items()) if name in ("", own)]
        start = int(params.get("continue", "0"))
        size = min(self.page, int(params["limit"]))
        metadata = {"resourceVersion": str(self.version)} | ({"continue": str(start + size)} if len(items) > start + size else {})
        return web.json_response({"metadata": metadata, "items": items[start : start + size]})

    async def _watch(self, request: web.Request, place: tuple[str, str], name: str, params: dict[str, str]) -> web.StreamResponse:
        since = int(params["resourceVersion"])
        if since < self.oldest:
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        stream = Stream(place, name)
        if not self.silent:
            for version, where, event in self.events:
                if version > since and where == place and name in ("", event["object"]["metadata"]["name"]):
                    stream.put(event)
        self.streams.add(stream)
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            async with asyncio.timeout(None if self.silent else float(params["timeoutSeconds"])):
                while True:
                    while stream.queue and not self.silent:
                        event = stream.queue.popleft()
                        if event is None:
                            return response
                        line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
                        await response.write(line[:7])
                        await response.write(line[7:])
                    stream.woken.clear()
                    await stream.woken.wait()
        except TimeoutError:
            return response
        finally:
            self.streams.discard(stream)
            with suppress(ConnectionError):
                await response.write_eof()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    server = FakeApi()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
