"""Keeps the objects of one path of the Kubernetes API as they are: a list, then a watch from there on. IO: through the API server.

What holds is always whole: until the first list there is nothing, afterwards always what was seen last, however long the server is away. A
watch that ends is begun again where it stood; one whose version is too old, or that reports an error, begins with a new list. Everything has a
deadline, a watch one that lies beyond the end that it asks the server for: if both are silent, that heals it. What fails is tried again
after a back-off with jitter. Rejects nothing; `problem` says why the objects may be old.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tailrace_gateway.resources.apiserver import ApiFailure, ApiServer, Reason

T = TypeVar("T")
PAGE = 500
"""Objects of one page of a list."""
PATIENCE = 2
"""So many rounds in a row may end early for a reason that passes by itself before it is told."""
PASSING = (Reason.UNREACHABLE, Reason.SILENT, Reason.EXPIRED)


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take, in seconds; tests shorten them. `watch_s`: range of what a watch asks the server for."""

    list_s: float = 30.0
    watch_s: tuple[float, float] = (60.0, 90.0)
    beyond_s: float = 10.0
    back_off_s: tuple[float, float] = (0.2, 10.0)
    healthy_s: float = 5.0


class ListWatch(Generic[T]):
    """Objects by name, as `convert` makes them of JSON and of what it made of the one of that name before. `changed` is called after each change, also
    of `resource_version` alone."""

    def __init__(
        self,
        server: ApiServer,
        path: str,
        convert: Callable[[dict[str, Any], T | None], T],
        changed: Callable[[], None],
        *,
        field_selector: str = "",
        times: Times | None = None,
    ) -> None:
        self.objects: dict[str, T] = {}
        self.resource_version = 0
        """The highest that was seen: of a list, an object, a deletion or a bookmark."""
        self.listed = False
        self.problem: Reason | None = None
        self.heard_s = time.monotonic()
        """When the server said something good last."""
        self._server = server
        self._path = path
        self._convert = convert
        self._changed = changed
        self._params = {"fieldSelector": field_selector} if field_selector else {}
        self._times = times or Times()
        self._version: str | None = None
        """Where the next watch begins; None: a list comes first."""

    async def run(self) -> None:
        """For ever, until cancelled."""
        short = 0
        while True:
            began_s = time.monotonic()
            reason, after_s = None, 0.0
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except ApiFailure as failure:
                reason, after_s = failure.reason, failure.retry_after_s
            # A round that lasted is followed by the next at once; one that ended early, however, waits longer each time.
            short = 0 if time.monotonic() - began_s >= self._times.healthy_s else short + 1
            if reason is Reason.EXPIRED:
                self._version = None
            if reason is not None and (not self.listed or short > PATIENCE or reason not in PASSING):
                self._tell(reason)
            await asyncio.sleep(max(self._pause_s(short), after_s))

    def _pause_s(self, short: int) -> float:
        first, last = self._times.back_off_s
        return min(last, first * 2.0 ** min(short - 1, 16)) * (0.5 + random.random() / 2) if short else 0.0  # noqa: S311

    async def _list(self) -> None:
        objects: dict[str, T] = {}
        params = {**self._params, "limit": str(PAGE)}
        while True:
            page = await self._server.get(self._path, params, self._times.list_s)
            metadata = _map(page.get("metadata"))
            items = page.get("items") or []
            if not isinstance(items, list):
                raise ApiFailure(Reason.FAILED)
            for item in items:
                name = _name(_map(item))
                objects[name] = self._convert(item, self.objects.get(name))
            if not (more := metadata.get("continue")):
                break
            params["continue"] = str(more)
            await asyncio.sleep(0)
        version = _version(metadata)
        self.objects, self._version, self.resource_version, self.listed = objects, version, _number(version), True
        self._heard(moved=True)

    async def _watch(self) -> None:
        least, most = self._times.watch_s
        wanted_s = least + (most - least) * random.random()  # noqa: S311
        params = {
            **self._params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(1, round(wanted_s))),
        }
        async with self._server.lines(self._path, params, wanted_s + self._times.beyond_s) as lines, aclosing(lines):
            self._heard()
            async for event in lines:
                try:
                    self._take(event)
                except ApiFailure:
                    self._version = None
                    raise

    def _take(self, event: dict[str, Any]) -> None:
        kind, item = event.get("type"), _map(event.get("object"))
        if kind == "ERROR":
            raise ApiFailure(Reason.EXPIRED if item.get("code") == 410 else Reason.FAILED)
        version = _version(_map(item.get("metadata")))
        if kind in ("ADDED", "MODIFIED"):
            name = _name(item)
            self.objects[name] = self._convert(item, self.objects.get(name))
        elif kind == "DELETED":
            self.objects.pop(_name(item), None)
        elif kind != "BOOKMARK":
            raise ApiFailure(Reason.FAILED)
        self._version, self.resource_version = version, max(self.resource_version, _number(version))
        self._heard(moved=True)

    def _heard(self, *, moved: bool = False) -> None:
        self.heard_s = time.monotonic()
        if self.problem is not None or moved:
            self.problem = None
            self._changed()

    def _tell(self, reason: Reason) -> None:
        if self.problem is not reason:
            self.problem = reason
            self._changed()


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ApiFailure(Reason.FAILED)
    return value


def _name(item: dict[str, Any]) -> str:
    name = _map(item.get("metadata")).get("name")
    if not isinstance(name, str):
        raise ApiFailure(Reason.FAILED)
    return name


def _version(metadata: dict[str, Any]) -> str:
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise ApiFailure(Reason.FAILED)
    return version


def _number(version: str) -> int:
    """Versions compare as integers (the Kubernetes API promises that since 1.35 and has always done so); another text never acknowledges."""
    return int(version) if version.isascii() and version.isdigit() else 0
