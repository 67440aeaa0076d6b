"""List and watch against a server that pages, bookmarks, forgets, hangs, refuses, cuts and lies."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tailrace_gateway.resources.apiserver import Access, ApiServer, Reason, in_cluster
from tailrace_gateway.resources.listwatch import ListWatch, Times

QUICK = Times(list_s=20, watch_s=(60, 60), beyond_s=20, back_off_s=(0.01, 0.05), healthy_s=0.5)
PATH = "/apis/tailrace.dev/v1alpha1/namespaces/shop/apikeys"


async def eventually(check: Callable[[], object], what: str = "it did not happen") -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.01)


class Bench:
    def __init__(self, api: Any, times: Times, access: Access | None = None, selector: str = "") -> None:
        self.api = api
        self.changes = 0
        self.server = ApiServer(access or Access(api.url))
        self.watch = ListWatch(self.server, PATH, lambda item, last: item["spec"], self._changed, field_selector=selector, times=times)
        self.task = asyncio.create_task(self.watch.run())

    def _changed(self) -> None:
        self.changes += 1

    def put(self, name: str, spec: Any) -> int:
        return int(self.api.put("apikeys", "shop", name, spec))

    def delete(self, name: str) -> int:
        return int(self.api.delete("apikeys", "shop", name))

    async def holds(self, **objects: Any) -> None:
        await eventually(lambda: self.watch.listed and self.watch.objects == objects)

    async def watching(self) -> None:
        await eventually(lambda: self.api.streams)

    def lists(self) -> int:
        return int(self.api.asked("apikeys", "shop", watch=False))


@pytest.fixture
async def bench(api: Any) -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def start(times: Times = QUICK, access: Access | None = None, selector: str = "") -> Bench:
        made.append(Bench(api, times, access, selector))
        return made[-1]

    yield start
    for each in made:
        each.task.cancel()
        await asyncio.gather(each.task, return_exceptions=True)
        await each.server.close()


async def test_it_lists_page_by_page_and_follows(api: Any, bench: Callable[..., Bench]) -> None:
    api.page = 2
    for n in range(5):
        api.put("apikeys", "shop", f"k{n}", n)
    api.put("apikeys", "other", "k9", 9)
    b = bench()
    await b.holds(k0=0, k1=1, k2=2, k3=3, k4=4)
    assert b.lists() == 3
    await b.watching()
    b.put("k0", "a\u0085b\u2028c")
    gone = b.delete("k1")
    await b.holds(k0="a\u0085b\u2028c", k2=2, k3=3, k4=4)
    assert b.watch.resource_version == gone
    mark = api.bookmark()
    await eventually(lambda: b.watch.resource_version == mark)
    assert b.lists() == 3
    assert b.watch.problem is None


async def test_one_object_is_chosen_by_field_selector(api: Any, bench: Callable[..., Bench]) -> None:
    api.put("apikeys", "shop", "a", 1)
    api.put("apikeys", "shop", "b", 2)
    b = bench(selector="metadata.name=b")
    await b.holds(b=2)
    await b.watching()
    b.put("a", 5)
    b.put("b", 3)
    await b.holds(b=3)


async def test_a_watch_that_is_cut_goes_on_where_it_stood(api: Any, bench: Callable[..., Bench]) -> None:
    b = bench()
    await b.watching()
    for n in range(5):
        api.cut()
        b.put("k", n)
        await b.holds(k=n)
        await b.watching()
    assert b.lists() == 1


@pytest.mark.parametrize("how", ["status", "event"])
async def test_what_was_forgotten_is_listed_again(api: Any, bench: Callable[..., Bench], how: str) -> None:
    api.put("apikeys", "shop", "old", 1)
    b = bench()
    await b.watching()
    stream = next(iter(api.streams))
    api.streams.clear()
    b.delete("old")
    b.put("new", 2)
    api.compact()
    stream.put({"type": "ERROR", "object": {"kind": "Status", "code": 410}} if how == "event" else None)
    await b.holds(new=2)
    assert b.lists() == 2


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": {"kind": "Status", "code": 500}},
        {"type": "MODIFIED", "object": {"metadata": {"name": "k"}, "spec": 6}},
        {"type": "ADDED", "object": "text"},
        {"type": "SURPRISE", "object": {"metadata": {"name": "k", "resourceVersion": "9"}}},
        {"no": "type"},
    ],
)
async def test_an_event_that_makes_no_sense_means_a_new_list(api: Any, bench: Callable[..., Bench], event: dict[str, Any]) -> None:
    api.put("apikeys", "shop", "k", 1)
    b = bench()
    await b.watching()
    api.say(event)
    await eventually(lambda: b.lists() == 2)
    b.put("k", 2)
    await b.holds(k=2)


async def test_a_silent_watch_heals(api: Any, bench: Callable[..., Bench]) -> None:
    api.silent = True
    b = bench(replace(QUICK, watch_s=(0.2, 0.2), beyond_s=0.3))
    await b.watching()
    b.put("k", 1)
    api.silent = False
    await b.holds(k=1)


async def test_a_silent_list_is_tried_again(api: Any, bench: Callable[..., Bench]) -> None:
    api.put("apikeys", "shop", "k", 1)
    api.fault = "hang"
    b = bench(replace(QUICK, list_s=0.2))
    await eventually(lambda: b.watch.problem is Reason.SILENT)
    assert not b.watch.listed
    api.fault = None
    await b.holds(k=1)
    assert b.watch.problem is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.UNAUTHORIZED),
        (403, Reason.FORBIDDEN),
        (404, Reason.NOT_FOUND),
        (429, Reason.THROTTLED),
        (500, Reason.FAILED),
        (503, Reason.FAILED),
    ],
)
async def test_a_refusal_is_told_and_tried_again(api: Any, bench: Callable[..., Bench], status: int, reason: Reason) -> None:
    api.put("apikeys", "shop", "k", 1)
    api.faults["apikeys", "shop"] = status
    b = bench()
    await eventually(lambda: b.watch.problem is reason)
    api.faults.clear()
    await b.holds(k=1)
    await eventually(lambda: b.watch.problem is None)


async def test_the_last_good_objects_hold_while_the_server_is_away(api: Any, bench: Callable[..., Bench]) -> None:
    api.put("apikeys", "shop", "k", 1)
    b = bench()
    await b.watching()
    await api.stop()
    await eventually(lambda: b.watch.problem is Reason.UNREACHABLE)
    assert b.watch.objects == {"k": 1}
    heard_s = b.watch.heard_s
    b.put("k", 2)
    await api.start()
    await b.holds(k=2)
    assert b.watch.problem is None
    assert b.watch.heard_s > heard_s
    assert b.lists() == 1


async def test_back_off_keeps_a_broken_server_from_being_flooded(api: Any, bench: Callable[..., Bench]) -> None:
    api.fault = 500
    b = bench(replace(QUICK, back_off_s=(0.05, 60)))
    await eventually(lambda: b.watch.problem is Reason.FAILED)
    await asyncio.sleep(1)
    assert b.lists() < 10


async def test_the_token_is_read_for_each_request(api: Any, bench: Callable[..., Bench], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api.token = "first"
    api.put("apikeys", "shop", "k", 1)
    b = bench(access=Access(api.url, token))
    await b.holds(k=1)
    await b.watching()
    api.token = "second"
    api.cut()
    await eventually(lambda: b.watch.problem is Reason.UNAUTHORIZED)
    token.write_text("second")
    await eventually(lambda: b.watch.problem is None)
    token.unlink()
    api.cut()
    await eventually(lambda: b.watch.problem is Reason.UNAUTHORIZED)


def test_where_a_pod_finds_it(tmp_path: Path) -> None:
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert access == Access("https://[fd00::1]:6443", tmp_path / "token", tmp_path / "ca.crt")
    with pytest.raises(ValueError, match="in a pod only"):
        in_cluster({}, tmp_path)


async def test_a_server_that_is_not_trusted_is_not_asked(api: Any, bench: Callable[..., Bench], tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    b = bench(access=Access(api.url, None, tmp_path / "ca.crt"))
    await eventually(lambda: b.watch.problem is Reason.UNAUTHORIZED)
    assert ssl.create_default_context().check_hostname
    assert not api.requests
