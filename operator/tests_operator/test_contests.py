"""Two writers that want different things."""

from tailrace_operator.contests import FREE, LONGEST_PAUSE_S, PEACE_S, Contests
from tailrace_operator.manifest import DEPLOYMENT, ObjectRef
from tailrace_operator.reconcile import CONTESTED

from .test_reconcile import API, DEPLOYED
from .world import a_world, ready

REF = ObjectRef(DEPLOYMENT, "retail", "shop")


def fought(contests: Contests, now: float, seconds: float) -> int:
    """Applies when the other changes it back at once, every half second."""
    applies, end = 0, now + seconds
    while now < end:
        if contests.wait_s(REF, 1, now) == 0:
            contests.applied(REF, 1, now)
            applies += 1
        now += 0.5
    return applies


def test_pauses_grow_and_end_at_five_minutes() -> None:
    contests = Contests()
    assert [contests.wait_s(REF, 1, 0)] * FREE == [0.0] * FREE
    assert fought(contests, 0, 600) <= FREE + 9
    assert 0 < contests.wait_s(REF, 1, 600) <= LONGEST_PAUSE_S


def test_a_new_generation_or_peace_begins_anew() -> None:
    contests = Contests()
    fought(contests, 0, 60)
    assert contests.wait_s(REF, 1, 60) > 0
    assert contests.wait_s(REF, 2, 60) == 0
    assert contests.wait_s(REF, 1, 60 + PEACE_S) == 0


async def test_a_contest_is_told_and_an_edit_of_the_owners_is_applied_at_once() -> None:
    world = a_world()
    await ready(world)
    for _ in range(10):
        world.cluster.edit(DEPLOYED, lambda live: live["spec"].update(minReadySeconds=1))
        await world.reconcile()
    assert [write.verb for write in world.cluster.writes if write.ref == DEPLOYED].count("apply") == FREE
    assert world.condition("Programmed") == ("False", CONTESTED)
    assert world.condition("Reconciling") is not None
    world.cluster.edit(API, lambda live: live["spec"].update(dataPlane={"resources": {"limits": {"memory": "1Gi"}}}))
    await world.settle()
    assert world.cluster.objects[DEPLOYED]["spec"]["minReadySeconds"] == 5
