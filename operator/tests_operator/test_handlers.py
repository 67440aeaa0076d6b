"""What kopf is told, and that watching begins anew. (That it leaves nothing on a resource is shown on a real cluster.)"""

import asyncio

import kopf
import pytest
import tailrace_operator.handlers as handlers
from tailrace_operator.handlers import WATCHED, Watching, registry_of, settings_of
from tailrace_operator.manifest import OWNED, POD, SECRET, Object
from tailrace_operator.observe import Event, Observation


def test_kopf_has_handlers_of_raw_events_and_nothing_that_would_write() -> None:
    registry = registry_of(lambda kind, change, body: None, has_kubeconfig=False)
    assert len(registry._watching.get_all_handlers()) == len(WATCHED)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    settings = settings_of()
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.watching.server_timeout is not None
    assert settings.watching.client_timeout is not None


def test_everything_that_is_owned_is_watched_and_of_others_only_by_label() -> None:
    assert set(OWNED) <= set(WATCHED)
    assert all(WATCHED[kind] for kind in (*OWNED, POD))
    assert WATCHED[SECRET] == "app.kubernetes.io/managed-by=tailrace-operator"
    assert len(settings_of().watching.label_selectors) == len([labels for labels in WATCHED.values() if labels])


async def test_an_event_goes_to_the_callers_loop() -> None:
    seen: list[tuple[str, str | None]] = []
    arrived = asyncio.Event()

    def deliver(kind: object, change: str | None, body: Object) -> None:
        seen.append((body["name"], change))
        arrived.set()

    async def listed() -> None:
        return None

    watching = Watching(deliver, listed, lambda each: None)
    await asyncio.to_thread(watching._pass_on, POD, "ADDED", {"name": "p"})
    await asyncio.wait_for(arrived.wait(), 30)
    assert seen == [("p", "ADDED")]


async def test_when_kopf_ends_it_begins_anew_after_everything_could_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "AGAIN_S", 0.01)
    steps: list[str] = []
    thrice, told = asyncio.Event(), list[Observation]()
    loop = asyncio.get_running_loop()

    async def operator(**_: object) -> None:
        steps.append("watch")
        if steps.count("watch") >= 3:
            loop.call_soon_threadsafe(thrice.set)
        raise RuntimeError("a list was forbidden")

    async def listed() -> None:
        steps.append("list")

    monkeypatch.setattr(kopf, "operator", operator)
    watching = Watching(lambda kind, change, body: None, listed, told.append)
    watching.start()
    await asyncio.wait_for(thrice.wait(), 30)
    await watching.stop(30)
    assert steps[:6] == ["list", "watch"] * 3
    assert {(each.event, each.fields["error"]) for each in told} == {(Event.WATCHING_ENDED, "RuntimeError")}


async def test_it_can_be_stopped_while_nothing_can_be_listed() -> None:
    asked = asyncio.Event()

    async def listed() -> None:
        asked.set()
        await asyncio.sleep(3600)

    watching = Watching(lambda kind, change, body: None, listed, lambda each: None)
    watching.start()
    await asyncio.wait_for(asked.wait(), 30)
    await watching.stop(30)
    assert not watching._thread.is_alive()
