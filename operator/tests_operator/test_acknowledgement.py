"""Asking pods, and what their answers allow to claim."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tailrace_contract.ids import Ref
from tailrace_operator.acknowledgement import (
    BODY_LIMIT,
    Answer,
    Deletion,
    Deletions,
    PodState,
    Poller,
    Versions,
    address_of,
    confirmed_keys,
)
from tailrace_operator.manifest import Object
from tailrace_operator.observe import silent
from tailrace_operator.reports import GatewayReport, PodReport, QueriesStatus

SAID = GatewayReport(QueriesStatus(total=1, served=1), 1, False)
BODY = {
    "gatewayUp": True,
    "snapshot": {
        "sources": [{"kind": "ApiKeys", "namespace": "retail", "resourceVersion": "99"}, {"kind": "QueryAPI", "uid": "u", "generation": 3}]
    },
    "gateway": {"queries": {"total": 1, "served": 1, "refused": []}, "keys": 1, "stale": False},
}


def state(
    *, uid: str = "api", ready: bool = True, going: bool = False, runs: bool = True, answer: Answer = Answer.REPORT, **keys: int
) -> PodState:
    report = PodReport(uid, 1, dict(keys), {}, True, SAID) if answer is Answer.REPORT else None
    return PodState("pod", ready, going, runs, answer, report)


@pytest.mark.parametrize(
    ("pods", "share", "complete"),
    [
        ([], "0/0", True),
        ([state(retail=10)], "1/1", True),
        ([state(retail=9)], "0/1", False),
        ([state(retail=100)], "1/1", True),
        ([state(retail=10), state(retail=9)], "1/2", False),
        ([state(answer=Answer.SILENT)], "0/1", False),
        ([state(answer=Answer.GONE)], "0/1", False),
        ([state(uid="another", retail=99)], "0/1", False),
        ([state(teama=1)], "1/1", True),
        ([state(ready=False, going=True, retail=9)], "0/1", False),
        ([state(ready=False, going=True, answer=Answer.SILENT)], "0/1", False),
        ([state(ready=False, going=True, answer=Answer.GONE)], "0/0", True),
        ([state(ready=False, runs=False, answer=Answer.SILENT)], "0/0", True),
        ([state(ready=False, uid="")], "0/0", True),
    ],
    ids=[
        "nobody", "exactly", "behind", "numbers not texts", "one behind", "ready and silent", "ready and gone", "of another api",
        "does not read the namespace", "going and behind", "going and silent", "going and gone", "never ran", "never had a plan",
    ],
)  # fmt: skip
def test_who_has_dropped_a_key(pods: list[PodState], share: str, complete: bool) -> None:
    found = confirmed_keys(pods, "api", "retail", 10)
    assert (str(found), found.is_complete) == (share, complete)


def test_from_which_version_on_an_object_is_as_it_is() -> None:
    versions = Versions()
    assert versions.since("u", "a", "100") == 100
    assert versions.since("u", "a", "105") == 100, "a status of ours changed nothing for the pods"
    assert versions.since("u", "b", "110") == 110
    assert versions.since("u", "a", "120") == 120
    versions.forget("u")
    assert versions.since("u", "a", "130") == 130


def test_deletions_are_bounded_and_each_is_there_once() -> None:
    deletions, api = Deletions(2), Ref("retail", "shop")
    for number in (3, 1, 2, 2):
        deletions.add(api, Deletion(Ref("retail", "k"), number))
    assert [each.resource_version for each in deletions.of(api)] == [3, 2]
    deletions.forget(api)
    assert deletions.of(api) == ()


def pod(ip: str | None = "127.0.0.1", uid: str = "p") -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid, "name": uid, "namespace": "retail"}, "status": {"podIP": ip}}


def test_addresses() -> None:
    assert address_of(pod("10.0.0.1")) == "http://10.0.0.1:9090/status"
    assert address_of(pod("fd00::1")) == "http://[fd00::1]:9090/status"
    assert address_of(pod(None)) is None


class Server:
    """A pod's admin port."""

    def __init__(self) -> None:
        self.body: bytes = json.dumps(BODY).encode()
        self.hang = False
        self.status = 200
        self.port = 0

    async def answer(self, _: web.Request) -> web.StreamResponse:
        if self.hang:
            await asyncio.sleep(3600)
        return web.Response(body=self.body, status=self.status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    played = Server()
    application = web.Application()
    application.router.add_get("/status", played.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    played.port = runner.addresses[0][1]
    yield played
    await runner.cleanup()


async def ask(server: Server, deadline_s: float = 20.0) -> PodState:
    poller = Poller(silent, server.port, deadline_s)
    (found,) = await poller.ask([pod()])
    await poller.close()
    return found


async def test_a_pod_that_answers(server: Server) -> None:
    found = await ask(server)
    assert found.answer is Answer.REPORT
    assert found.report is not None
    assert found.report.has_keys("u", "retail", 99)


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"snapshot": 3}', b" " * (BODY_LIMIT + 1)], ids=["empty", "text", "list", "form", "huge"]
)
async def test_an_answer_that_cannot_be_read_is_silence(server: Server, body: bytes) -> None:
    server.body = body
    assert (await ask(server)).answer is Answer.SILENT


async def test_an_error_is_silence_and_so_is_a_pod_that_hangs(server: Server) -> None:
    server.status = 500
    assert (await ask(server)).answer is Answer.SILENT
    server.status, server.hang = 200, True
    assert (await ask(server, 0.2)).answer is Answer.SILENT


async def test_a_port_where_nobody_listens_and_a_pod_without_address_are_gone(server: Server) -> None:
    poller = Poller(silent, 1)
    found = await poller.ask([pod(), pod(None)])
    await poller.close()
    assert [each.answer for each in found] == [Answer.GONE, Answer.GONE]
