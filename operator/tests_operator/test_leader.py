"""The Lease: who leads, and what happens to one who no longer does."""

import asyncio
from datetime import UTC, datetime

import pytest
from tailrace_operator.errors import Conflict
from tailrace_operator.leader import LEASE_S, Leader, next_step
from tailrace_operator.manifest import LEASE, ObjectRef
from tailrace_operator.observe import Event, Observation

from .fake_cluster import FakeCluster

REF = ObjectRef(LEASE, "tailrace", "tailrace-operator")
WALL = datetime(2026, 1, 1, tzinfo=UTC)


async def test_the_first_takes_it_and_the_second_waits_until_it_ran_out() -> None:
    cluster = FakeCluster()
    first = next_step(None, None, REF, "a", 0, WALL)
    assert first.leads
    assert first.body is not None
    await cluster.create(first.body)
    live = await cluster.get(REF)
    standby = next_step(live, None, REF, "b", 100, WALL)
    assert (standby.leads, standby.body) == (False, None)
    still = next_step(live, standby.seen, REF, "b", 100 + LEASE_S, WALL)
    assert not still.leads
    over = next_step(live, still.seen, REF, "b", 100.1 + LEASE_S, WALL)
    assert over.leads
    assert over.body is not None
    assert over.body["spec"]["leaseTransitions"] == 1
    await cluster.replace(over.body)
    with pytest.raises(Conflict):
        await cluster.replace({**(live or {}), "spec": {}})


async def test_a_renewal_seen_by_the_standby_begins_the_wait_anew_whatever_the_clocks_say() -> None:
    cluster = FakeCluster()
    await cluster.create(next_step(None, None, REF, "a", 0, WALL).body or {})
    live = await cluster.get(REF)
    seen = next_step(live, None, REF, "b", 0, WALL).seen
    renewed = next_step(live, None, REF, "a", 5, datetime(1999, 1, 1, tzinfo=UTC))
    assert renewed.leads
    await cluster.replace(renewed.body or {})
    live = await cluster.get(REF)
    assert not next_step(live, seen, REF, "b", LEASE_S + 1, WALL).leads


async def test_a_lease_that_was_given_up_is_taken_at_once() -> None:
    cluster, seen = FakeCluster(), list[Event]()
    leader = Leader(cluster, "tailrace", "tailrace-operator", "a", lambda each: seen.append(each.event))
    await leader.acquire()
    await leader.release()
    assert next_step(await cluster.get(REF), None, REF, "b", 0, WALL).leads
    assert seen == [Event.LEADING]


class Died(BaseException):
    """The process ended."""


async def lost(cluster: FakeCluster, hang: bool = False) -> list[Observation]:
    told: list[Observation] = []
    died = asyncio.Event()

    def die(status: int) -> None:
        assert status == 1
        died.set()
        raise asyncio.CancelledError

    leader = Leader(cluster, "tailrace", "tailrace-operator", "a", told.append, die, renew_s=0.01, give_up_s=0.3)
    await leader.acquire()
    task = asyncio.create_task(leader.keep())
    if hang:
        cluster.get = lambda ref: asyncio.sleep(3600)  # type: ignore[method-assign, assignment, return-value]
    else:
        cluster.is_away = True
    await asyncio.wait_for(died.wait(), 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return told


@pytest.mark.parametrize("hang", [False, True])
async def test_a_lease_that_cannot_be_renewed_ends_the_process(hang: bool) -> None:
    told = await lost(FakeCluster(), hang)
    assert told[-1].event is Event.LEASE_LOST


async def test_another_holder_ends_the_process() -> None:
    cluster, died = FakeCluster(), asyncio.Event()

    def die(status: int) -> None:
        died.set()
        raise asyncio.CancelledError

    leader = Leader(cluster, "tailrace", "tailrace-operator", "a", lambda each: None, die, renew_s=0.01, give_up_s=30)
    await leader.acquire()
    cluster.edit(REF, lambda live: live["spec"].update(holderIdentity="b"))
    task = asyncio.create_task(leader.keep())
    await asyncio.wait_for(died.wait(), 30)
    await asyncio.gather(task, return_exceptions=True)


async def test_standing_by_outlasts_an_api_server_that_is_away() -> None:
    cluster, told = FakeCluster(), list[Event]()
    cluster.is_away = True
    leader = Leader(cluster, "tailrace", "tailrace-operator", "a", lambda each: told.append(each.event), renew_s=0.01)
    task = asyncio.create_task(leader.acquire())
    while not told:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    cluster.is_away = False
    await asyncio.wait_for(task, 30)
    assert told == [Event.LEASE_FAILED, Event.LEADING]
