"""Asking pods again and again: what is news, and to whom."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest
from tailrace_contract.ids import Ref
from tailrace_operator.acknowledgement import Answer, PodState
from tailrace_operator.manifest import Object
from tailrace_operator.pods import Pods, matters
from tailrace_operator.reports import GatewayReport, PodReport, QueriesStatus

from .fake_cluster import FakeCluster

API = Ref("retail", "shop")
REPORT = PodReport("u", 3, {"retail": 10}, {}, True, GatewayReport(QueriesStatus(total=1, served=1), 1, False))
STATE = PodState("p", True, False, True, Answer.REPORT, REPORT)
READ_ON = replace(STATE, report=replace(REPORT, api_keys={"retail": 11}))
NEXT = replace(STATE, report=replace(REPORT, generation=4))


class Played:
    """Pods that say `states`."""

    def __init__(self) -> None:
        self.states = (STATE,)
        self.asked = 0

    async def ask(self, pods: Iterable[Object]) -> tuple[PodState, ...]:
        self.asked += 1
        return self.states


@pytest.mark.parametrize(
    ("after", "idle", "awaited"),
    [
        (STATE, False, False),
        (READ_ON, False, True),
        (NEXT, True, True),
        (replace(STATE, is_ready=False), True, True),
        (replace(STATE, answer=Answer.SILENT, report=None), True, True),
    ],
)
def test_what_is_news(after: PodState, idle: bool, awaited: bool) -> None:
    assert (matters([STATE], False) != matters([after], False)) is idle
    assert (matters([STATE], True) != matters([after], True)) is awaited


class Loop:
    """A running `Pods`, and what it told."""

    def __init__(self, waiting_s: float, idle_s: float, awaited_s: float = 3600.0) -> None:
        self.played = Played()
        self.told: list[tuple[Ref, bool]] = []
        self.pods = Pods(FakeCluster(), self.played, waiting_s, idle_s, awaited_s)
        self.task = asyncio.create_task(self.pods.run(lambda api, awaited: self.told.append((api, awaited)), 0.01))

    async def until_asked(self, times: int) -> None:
        wanted = self.played.asked + times
        async with asyncio.timeout(30):
            while self.played.asked < wanted:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)


@pytest.fixture
async def quick() -> AsyncIterator[Loop]:
    loop = Loop(0.01, 0.01)
    yield loop
    loop.task.cancel()
    await asyncio.gather(loop.task, return_exceptions=True)


async def test_news_is_told_once(quick: Loop) -> None:
    quick.pods.watch(API, (), (STATE,), is_waiting=False)
    await quick.until_asked(3)
    assert quick.told == []
    quick.played.states = (NEXT,)
    await quick.until_asked(4)
    assert quick.told == [(API, False)]


async def test_how_far_pods_have_read_is_told_only_while_a_key_waits(quick: Loop) -> None:
    quick.pods.watch(API, (), (STATE,), is_waiting=False)
    quick.played.states = (READ_ON,)
    await quick.until_asked(3)
    assert quick.told == []
    quick.pods.awaits(API)
    await quick.until_asked(3)
    assert quick.told == [(API, True)]
    quick.pods.watch(API, (), (READ_ON,), is_waiting=False)
    quick.played.states = (replace(READ_ON, report=replace(REPORT, api_keys={"retail": 12})),)
    await quick.until_asked(3)
    assert quick.told == [(API, True)] * 2, "a reconcile of the API does not end the key's wait"


async def test_an_api_that_is_gone_is_not_asked(quick: Loop) -> None:
    quick.pods.watch(API, (), (STATE,), is_waiting=True)
    await quick.until_asked(1)
    quick.pods.forget(API)
    await asyncio.sleep(0.1)
    asked = quick.played.asked
    await asyncio.sleep(0.2)
    assert quick.played.asked == asked


async def test_waiting_means_often() -> None:
    loop = Loop(0.01, 3600.0)
    loop.pods.watch(API, (), (STATE,), is_waiting=False)
    await asyncio.sleep(0.2)
    assert loop.played.asked == 0
    loop.pods.awaits(API)
    await loop.until_asked(2)
    loop.pods.watch(API, (), (STATE,), is_waiting=True)
    await loop.until_asked(2)
    loop.task.cancel()
    await asyncio.gather(loop.task, return_exceptions=True)
