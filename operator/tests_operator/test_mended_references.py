"""Whatever is wrong with a Secret, its mending is noticed: nobody announces the Secrets of users."""

import pytest
from tailrace_operator.manifest import RUN_STORE, SECRET, ObjectRef
from tailrace_operator.queue import Done

from .world import RUNS, a_world, ready, run_store, secret

GOOD = "postgresql://app@db/orders"


@pytest.mark.parametrize(
    ("data", "reason", "beside"),
    [
        (None, "SecretNotFound", "Reconciling"),
        ({"other": GOOD}, "SecretKeyNotFound", "Reconciling"),
        ({"url": "sqlite:///orders.db"}, "SqliteInCluster", "Stalled"),
        ({"url": "postgresql://app@db/orders?sslmode=maybe"}, "InvalidUrl", "Stalled"),
        ({"url": "no URL"}, "InvalidUrl", "Stalled"),
    ],
)
async def test_a_connections_secret(data: dict[str, str] | None, reason: str, beside: str) -> None:
    world = a_world()
    ref = ObjectRef(SECRET, "retail", "orders-db")
    world.cluster.remove(ref)
    if data is not None:
        world.cluster.outside(secret("orders-db", **data))
    outcome = await world.reconcile()
    assert world.condition("Ready") == ("False", reason)
    assert world.condition("ResolvedRefs") == ("False", reason)
    assert world.condition(beside) == ("True", reason)
    assert isinstance(outcome, Done)
    assert outcome.again_s is not None
    if data is not None:
        world.cluster.remove(ref)
    world.cluster.outside(secret("orders-db", url=GOOD))
    await ready(world)


async def test_a_run_stores_secret() -> None:
    store = run_store(postgres={"urlFrom": {"secretKeyRef": {"name": "runs-db", "key": "url"}}})
    world = a_world(store, secret("runs-db", url="mysql://x"))
    outcome = await world.reconcile(RUNS)
    conditions = world.cluster.objects[ObjectRef(RUN_STORE, "retail", "runs")]["status"]["conditions"]
    assert {each["reason"] for each in conditions if each["type"] in ("Ready", "Stalled", "ResolvedRefs")} == {"InvalidUrl"}
    assert isinstance(outcome, Done)
    assert outcome.again_s is not None
