"""An ApiKey's reconcile: minted and brought keys, rotation, revocation, strangers, refusals, and an end between any two writes."""

import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_contract import keys as key_text
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_operator.acknowledgement import Answer
from tailrace_operator.apikey import ANNOUNCED_S
from tailrace_operator.errors import ClusterError, Conflict, Forbidden, Invalid, Unavailable
from tailrace_operator.manifest import API_KEY_UID_LABEL, SECRET, Object, ObjectRef, ref_of

from .fake_cluster import Write
from .keyworld import LIVE, MINTED, NAMESPACE, ROTATION, SHOP, Pod, World, until_killed


def brought(text: bytes = b"brought-key-of-a-partner\n") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "partner", "namespace": NAMESPACE},
        "data": {"token": b64encode(text).decode()},
    }


PARTNER = ObjectRef(SECRET, NAMESPACE, "partner")
FROM = {"secretKeyRef": {"name": "partner", "key": "token"}}


# Minted


async def test_a_minted_key_goes_into_its_secret_first_and_its_digest_into_the_status() -> None:
    world = World()
    await world.reconcile()
    assert world.cluster.written() == [f"create {MINTED}", f"status {LIVE}"]
    text = world.text() or ""
    assert key_text.is_minted(text)
    assert world.text("url") == "http://shop.retail.svc"
    secret = world.cluster.objects[MINTED]
    assert secret["metadata"]["labels"][API_KEY_UID_LABEL] == world.cluster.objects[LIVE]["metadata"]["uid"]
    assert secret["metadata"]["ownerReferences"][0]["controller"] is True
    assert [each.sha256 for each in world.status.keys] == [key_text.digest(text)]
    assert world.status.loaded_by == "0/2"
    assert world.condition("Ready") == ("Unknown", "WaitingForPods")
    assert world.condition("Reconciling") == ("True", "WaitingForPods")
    assert world.awaited == 1


async def test_it_is_ready_when_the_last_pod_has_it() -> None:
    world = World()
    await world.reconcile()
    world.load(world.pods[0])
    await world.reconcile()
    assert world.status.loaded_by == "1/2"
    assert world.condition("Ready") == ("Unknown", "WaitingForPods")
    world.load(world.pods[1])
    await world.reconcile()
    assert world.status.loaded_by == "2/2"
    assert world.condition("Ready") == ("True", "Loaded")
    assert world.condition("Programmed") == ("True", "Programmed")
    assert world.condition("Reconciling") == ("", "")
    assert all(pod.admits(world.text() or "", world.now) for pod in world.pods)
    assert world.told == ["KeyAdded"]


async def test_who_waits_for_what_events_announce_looks_seldom() -> None:
    """A thousand keys of APIs that are scaled to zero must not keep the API server busy."""
    world = World()
    pods, world.pods = world.pods, []
    await world.settle()
    assert world.condition("Ready") == ("Unknown", "NoPodReady")
    assert await world.reconcile() == ANNOUNCED_S
    world.pods = pods
    again_s = await world.reconcile()
    assert again_s is not None
    assert again_s < ANNOUNCED_S, "pods are there: their answers are waited for"
    world.cluster.remove(ref_of(world.api))
    assert await world.reconcile() == ANNOUNCED_S
    assert world.condition("Ready") == ("False", "QueryAPINotFound")


async def test_a_second_look_writes_nothing_though_its_own_status_moved_on() -> None:
    world = World()
    await world.settle(load=False)
    world.load()
    await world.reconcile()
    world.cluster.written()
    for _ in range(3):
        await world.reconcile()
    world.restart()
    world.load()
    await world.reconcile()
    assert world.cluster.written() == []


async def test_every_order_of_appearance_ends_alike() -> None:
    world = World()
    api = world.cluster.objects.pop(SHOP)
    await world.settle(load=False)
    assert world.condition("ResolvedRefs") == ("False", "QueryAPINotFound")
    assert world.condition("Stalled") == ("", "")
    assert world.text() is not None, "pods of callers can start meanwhile"
    world.cluster.objects[SHOP] = api
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")


async def test_without_a_ready_pod_it_is_neither_ready_nor_refused() -> None:
    world = World(pods=0)
    await world.settle()
    assert world.condition("Ready") == ("Unknown", "NoPodReady")
    assert world.status.loaded_by == "0/0"


async def test_a_role_that_is_not_there_stalls() -> None:
    world = World(role="nobody")
    await world.settle()
    assert world.condition("Accepted") == ("False", "RoleNotFound")
    assert world.condition("Stalled") == ("True", "RoleNotFound")


async def test_a_key_that_pods_refuse_is_not_ready_and_says_why() -> None:
    world = World(rotation=ROTATION)
    world.refused = "another ApiKey has the same key text"
    await world.settle()
    assert world.condition("Ready") == ("False", "KeyRefused")
    assert world.condition("Stalled") == ("True", "KeyRefused")
    assert world.status.loaded_by == "0/2"
    before = world.awaited
    assert await world.reconcile() == 30.0
    assert world.awaited == before, "pods are not asked every second for what they can't mend"
    old = world.text()
    world.after(days=30)
    await world.settle()
    assert world.text() == old, "nothing is handed out that no pod admits"
    world.refused = ""
    await world.settle()
    assert world.condition("Ready")[0] == "True"


async def test_an_invalid_spec_keeps_the_digests_that_pods_keep_too() -> None:
    world = World()
    await world.settle()
    keys = world.status.keys
    world.edit(allowedCIDRs=["10.0.0.1/8"])
    await world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.status.keys == keys
    assert world.status.observed_generation == 2


async def test_a_deleted_secret_is_minted_anew_and_said() -> None:
    world = World()
    await world.settle()
    before = world.text()
    world.cluster.remove(MINTED)
    await world.reconcile()
    assert world.text() not in (None, before)
    assert [each.sha256 for each in world.status.keys] == [key_text.digest(world.text() or "")]
    assert world.condition("ResolvedRefs") == ("True", "KeyReplaced")
    assert world.told == ["KeyAdded", "KeyReplaced"]
    assert world.cluster.events[-1].is_warning
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")
    assert world.condition("ResolvedRefs") == ("True", "KeyReplaced"), "it stays there to be read"
    assert not any(pod.admits(before or "", world.now) for pod in world.pods)


async def test_a_secret_from_which_the_key_was_taken_or_spoilt_is_repaired_and_what_lies_beside_it_stays() -> None:
    world = World()
    await world.settle()

    def spoil(live: Object) -> None:
        live["data"] = {"key": b64encode(b"too short").decode(), "note": "eA==", "url": "eA=="}

    world.cluster.edit(MINTED, spoil)
    await world.settle()
    assert key_text.is_minted(world.text() or "")
    assert world.text("url") == "http://shop.retail.svc"
    assert world.text("note") == "x"
    assert "KeyReplaced" in world.told


# Brought


async def test_a_brought_key_is_only_digested() -> None:
    world = World(keyFrom=FROM)
    assert await world.reconcile() == 10.0, "a user's Secret is not watched: looked for every 10 s"
    assert world.condition("ResolvedRefs") == ("False", "SecretNotFound")
    assert world.status.keys == ()
    world.cluster.outside(brought())
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")
    digest = key_text.digest("brought-key-of-a-partner")
    assert [(each.id, each.sha256) for each in world.status.keys] == [(digest[:8], digest)]
    assert not any(write.ref.kind == SECRET for write in world.cluster.writes)
    assert await world.reconcile() == 60.0
    world.cluster.outside(brought(b"another-key-of-the-partner"))
    await world.settle()
    assert [each.sha256 for each in world.status.keys] == [key_text.digest("another-key-of-the-partner")]
    world.cluster.remove(PARTNER)
    await world.settle()
    assert world.status.keys == (), "without its text nothing is valid"


@pytest.mark.parametrize(
    ("text", "reason", "stalls"),
    [(b"short", "InvalidKey", True), ("ümlaut-ümlaut-ümlaut".encode(), "InvalidKey", True), (None, "SecretKeyNotFound", False)],
)
async def test_a_brought_text_that_nobody_could_send(text: bytes | None, reason: str, stalls: bool) -> None:
    world = World(keyFrom=FROM)
    world.cluster.outside(brought(text) if text is not None else {**brought(), "data": {"other": "eA=="}})
    await world.settle()
    assert world.condition("ResolvedRefs") == ("False", reason)
    assert (world.condition("Stalled")[0] == "True") == stalls
    assert "short" not in json.dumps(world.cluster.objects[LIVE]["status"])


# Rotation


async def rotated(world: World) -> None:
    """Until the next key is handed out; pods load in between."""
    world.after(days=30)
    await world.settle()


async def test_a_rotation_goes_in_the_designed_order() -> None:
    world = World(rotation=ROTATION)
    await world.settle()
    old = world.text() or ""
    assert await world.reconcile() == timedelta(days=1).total_seconds(), "a far time is looked at once a day"
    world.after(days=29, hours=23)
    assert await world.reconcile() == 3600.0
    world.cluster.written()
    world.after(hours=1)
    await world.reconcile()
    assert world.cluster.written() == [f"replace {MINTED}", f"status {LIVE}"]
    new = world.text("key.next") or ""
    assert world.text() == old, "not handed out before the last pod has it"
    assert [each.sha256 for each in world.status.keys] == [key_text.digest(old), key_text.digest(new)]
    assert world.condition("Ready") == ("True", "Rotating")
    assert world.condition("Programmed") == ("Unknown", "WaitingForPods")
    world.load(world.pods[0])
    await world.reconcile()
    assert world.text() == old
    world.load(world.pods[1])
    await world.reconcile()
    assert (world.text(), world.text("key.next")) == (new, None)
    first, second = world.status.keys
    assert (first.sha256, first.not_after) == (key_text.digest(old), world.now + timedelta(hours=24))
    assert (second.sha256, second.not_after) == (key_text.digest(new), None)
    assert world.condition("Ready")[0] == "True", "all pods had it before it was handed out"
    await world.settle()
    assert all(pod.admits(text, world.now) for pod in world.pods for text in (old, new))
    assert await world.reconcile() == timedelta(hours=24).total_seconds()
    world.after(hours=24)
    assert not any(pod.admits(old, world.now) for pod in world.pods)
    await world.settle()
    assert [each.sha256 for each in world.status.keys] == [key_text.digest(new)]
    assert world.told == ["KeyAdded", "KeyRotated"]
    assert all(world.condition(kind)[0] == "True" for kind in ("Ready", "Programmed", "ResolvedRefs", "Accepted"))


async def test_a_pod_that_is_on_its_way_out_is_waited_for_too() -> None:
    """It still admits calls on kept connections, so the next key must not be handed out before it has it."""
    world = World(rotation=ROTATION)
    await world.settle()
    old = world.text()
    world.after(days=30)
    await world.reconcile()
    world.pods[0].is_ready = False
    world.load(world.pods[1])
    await world.reconcile()
    assert world.status.loaded_by == "1/1", "only ready pods are counted there"
    assert world.text() == old
    world.pods[0].answer = Answer.GONE
    await world.reconcile()
    assert world.text() != old


async def test_without_pods_a_rotation_waits_with_the_next_key() -> None:
    world = World(pods=0, rotation=ROTATION)
    await world.settle()
    old = world.text()
    await rotated(world)
    assert world.text() == old
    assert world.text("key.next") is not None
    world.pods.append(Pod("pod-9"))
    await world.settle()
    assert world.text() != old


async def test_a_rotation_that_is_no_longer_wanted_is_undone() -> None:
    world = World(rotation=ROTATION)
    await world.settle()
    old = world.text() or ""
    world.after(days=30)
    await world.reconcile()
    world.edit(rotation=None)
    await world.settle()
    assert (world.text(), world.text("key.next")) == (old, None)
    assert [each.sha256 for each in world.status.keys] == [key_text.digest(old)]


# Revocation


async def test_a_suspended_key_says_when_the_last_pod_dropped_it_and_comes_back() -> None:
    world = World()
    await world.settle()
    text = world.text() or ""
    world.edit(suspended=True)
    await world.reconcile()
    assert world.status.revoked_on == "0/2"
    assert world.status.loaded_by is None
    assert world.condition("Ready") == ("False", "Suspended")
    assert world.condition("Reconciling") == ("True", "Suspended")
    world.load(world.pods[0])
    await world.reconcile()
    assert world.status.revoked_on == "1/2"
    world.load()
    await world.reconcile()
    assert world.status.revoked_on == "2/2"
    assert world.condition("Ready") == ("False", "Suspended")
    assert world.condition("Reconciling") == ("", "")
    assert "KeyRevoked" in world.told
    assert not any(pod.admits(text, world.now) for pod in world.pods)
    world.edit(suspended=False)
    await world.settle()
    assert all(pod.admits(text, world.now) for pod in world.pods)
    assert world.status.revoked_on is None
    assert world.condition("Ready") == ("True", "Loaded")


async def test_a_silent_pod_keeps_a_revocation_open() -> None:
    world = World()
    await world.settle()
    world.edit(suspended=True)
    world.pods[1].answer = Answer.SILENT
    await world.settle()
    assert world.status.revoked_on == "1/2"
    assert world.condition("Reconciling") == ("True", "Suspended")


async def test_a_key_whose_time_is_over_is_taken_from_the_pods_whatever_their_clocks_say() -> None:
    world = World(expiresAt="2026-11-30T13:00:00Z")
    await world.settle()
    assert await world.reconcile() == 3600.0
    world.after(hours=1)
    await world.reconcile()
    assert world.status.keys == ()
    assert world.status.revoked_on == "0/2", "not before they say so"
    assert world.condition("Ready") == ("False", "Expired")
    await world.settle()
    assert world.status.revoked_on == "2/2"
    text = world.text()
    world.edit(expiresAt="2027-11-30T13:00:00Z")
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")
    assert world.text() == text
    assert "KeyReplaced" not in world.told


async def test_a_key_that_is_over_before_it_began_is_not_minted() -> None:
    world = World(expiresAt="2026-11-30T11:00:00Z")
    await world.settle()
    assert MINTED not in world.cluster.objects
    assert world.condition("Ready") == ("False", "Expired")


# Other namespaces

LABELS, BIND = {"tailrace.dev/shop": "true"}, {"tenant": "tailrace.dev/tenant"}


def admit(world: World, *roles: str, tenant: str = "42", named: str | None = None) -> None:
    """The owner offers roles to namespaces by an entry; the status says that it admits `teama`."""

    def change(live: Object) -> None:
        bind = {name: {"namespaceLabel": label} for name, label in BIND.items()}
        live["spec"]["allowKeysFrom"] = [{"namespaces": {"matchLabels": LABELS}, "roles": list(roles), "bind": bind}]
        live["status"] = {
            "observedGeneration": 1,
            "namespaces": [{"name": "teama", "entry": named or entry_fingerprint(LABELS, BIND), "bind": {"tenant": tenant}}],
        }

    world.cluster.edit(SHOP, change)


@pytest.mark.parametrize(
    ("roles", "bind", "named", "is_admitted"),
    [
        (("all",), None, None, True),
        (("all", "few"), {"tenant": 42}, None, True),
        (("all",), {"tenant": "42", "other": 1}, None, True),
        (("all",), {"tenant": 43}, None, False),
        (("few",), None, None, False),
        (("all",), None, "0" * 16, False),
        ((), None, None, False),
    ],
)
async def test_a_key_of_another_namespace_is_valid_only_while_it_is_admitted(
    roles: tuple[str, ...], bind: dict[str, Any] | None, named: str | None, is_admitted: bool
) -> None:
    world = World(namespace="teama", **({"bind": bind} if bind else {}))
    admit(world, *roles, named=named)
    await world.settle()
    assert bool(world.status.keys) == is_admitted
    if is_admitted:
        assert world.condition("Ready") == ("True", "Loaded")
        admit(world, "few")
        await world.reconcile()
        assert world.status.keys == ()
        await world.settle()
    assert world.condition("Accepted") == ("False", "NotAdmitted")
    assert world.condition("Stalled") == ("True", "NotAdmitted")
    assert world.status.revoked_on == "2/2"


# Strangers, refusals, pauses


async def test_a_strangers_secret_is_never_touched_and_said() -> None:
    world = World()
    world.cluster.outside(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "desk-key", "namespace": NAMESPACE}, "data": {"key": "eA=="}}
    )
    assert await world.reconcile() == 10.0 or world.condition("Stalled")
    assert world.condition("Stalled") == ("True", "ForeignObject")
    assert world.text() == "x"
    assert world.status.keys == ()
    assert world.status.loaded_by is None, "there is nothing that pods could have loaded"
    assert world.cluster.written() == [f"status {LIVE}"]
    world.cluster.remove(MINTED)
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")


async def test_the_secret_of_an_earlier_key_of_this_name_is_waited_out() -> None:
    world = World()
    await world.settle()
    old = world.text()
    live = world.cluster.objects.pop(LIVE)
    fresh = {**live, "metadata": {"name": "desk", "namespace": NAMESPACE}, "status": {"observedGeneration": -1}}
    world.cluster.outside(fresh)
    assert await world.reconcile() == 10.0
    assert world.condition("Ready") == ("False", "SecretTerminating")
    assert world.condition("Stalled") == ("", "")
    assert world.text() == old
    world.cluster.remove(MINTED)
    await world.settle()
    assert world.text() not in (None, old)
    assert world.condition("Ready") == ("True", "Loaded")


@pytest.mark.parametrize(
    ("error", "reason"), [(Forbidden("exceeded quota", 403), "Forbidden"), (Invalid("immutable", 422), "RefusedByServer")]
)
async def test_a_write_that_is_refused_for_good_is_told(error: ClusterError, reason: str) -> None:
    world = World()
    world.cluster.fail = lambda write: error if write.ref.kind == SECRET else None
    await world.settle()
    assert world.condition("Programmed") == ("False", reason)
    assert world.condition("Stalled") == ("True", reason)
    world.cluster.fail = lambda write: None
    await world.settle()
    assert world.condition("Ready") == ("True", "Loaded")


@pytest.mark.parametrize("error", [Unavailable("away"), Conflict("changed", 409), Forbidden("namespace", 403, is_terminating=True)])
async def test_a_passing_fault_is_raised_for_the_queue(error: ClusterError) -> None:
    world = World()
    world.cluster.fail = lambda write: error if write.ref.kind == SECRET else None
    with pytest.raises(type(error)):
        await world.reconcile()
    assert world.cluster.written() == []


async def test_a_paused_key_gets_no_secret_and_an_old_one_is_pruned_after_the_pause() -> None:
    world = World()
    await world.settle()
    world.cluster.edit(LIVE, lambda live: live["metadata"].update(annotations={"tailrace.dev/paused": "true"}))
    world.edit(secretName="other")
    await world.settle()
    assert [ref.name for ref in world.cluster.objects if ref.kind == SECRET] == ["desk-key"]
    assert world.condition("Ready") == ("True", "Loaded"), "a pause ends nothing"
    assert world.status.observed_generation == 1
    world.cluster.edit(LIVE, lambda live: live["metadata"].update(annotations={}))
    await world.settle()
    assert [ref.name for ref in world.cluster.objects if ref.kind == SECRET] == ["other"]
    assert world.condition("ResolvedRefs") == ("True", "KeyReplaced")


async def test_a_minted_key_may_become_a_brought_one() -> None:
    world = World()
    await world.settle()
    world.cluster.outside(brought())
    world.edit(secretName=None, keyFrom=FROM)
    await world.settle()
    assert MINTED not in world.cluster.objects
    assert [each.sha256 for each in world.status.keys] == [key_text.digest("brought-key-of-a-partner")]
    assert world.condition("Ready") == ("True", "Loaded")


async def test_a_deleted_key_is_left_to_the_garbage_collector() -> None:
    world = World()
    await world.settle()
    world.cluster.remove(LIVE)
    assert MINTED not in world.cluster.objects
    world.cluster.written()
    assert await world.reconcile() is None
    assert world.cluster.written() == []


async def test_an_owner_who_edits_all_the_time_does_not_keep_the_status_from_being_written() -> None:
    world = World()
    edits = [2]

    def edit(write: Write) -> None:
        if write.ref == LIVE and edits[0] > 0:
            edits[0] -= 1
            world.edit(allowedCIDRs=[f"10.{edits[0]}.0.0/16"])

    world.cluster.fail = edit
    await world.reconcile()
    assert world.status.observed_generation == 1, "of the spec that was read"
    assert world.status.keys
    await world.settle()
    assert world.status.observed_generation == 3
    assert world.condition("Ready") == ("True", "Loaded")


async def test_a_status_that_somebody_else_wrote_is_not_overwritten() -> None:
    world = World(rotation=ROTATION)
    await world.settle()
    world.after(days=30)
    ended = {"observedGeneration": 1, "keys": []}

    def overtake(write: Write) -> None:
        if write.ref == LIVE:
            world.cluster.fail = lambda write: None
            world.cluster.edit(LIVE, lambda live: live.update(status=ended))

    world.cluster.fail = overtake
    with pytest.raises(Conflict):
        await world.reconcile()
    assert world.cluster.objects[LIVE]["status"] == ended
    await world.settle()
    assert world.condition("Ready")[0] == "True"


# An end between any two writes


async def story(world: World, pause: Callable[[], Any]) -> None:
    """A key's life: minted, rotated, its Secret deleted, suspended and back, its Secret renamed. `pause`: what brings everything to rest."""
    await pause()
    world.after(days=30)
    await pause()
    world.after(hours=24)
    await pause()
    if world.secret_ref in world.cluster.objects:
        world.cluster.remove(world.secret_ref)
    await pause()
    world.edit(suspended=True)
    await pause()
    world.edit(suspended=False)
    await pause()
    world.edit(secretName="other")
    await pause()


def outcome(world: World) -> Any:
    """What must be the same whoever did it: shapes, not texts."""
    status = world.status
    secrets = sorted((ref.name, sorted(live["data"])) for ref, live in world.cluster.objects.items() if ref.kind == SECRET)
    return secrets, len(status.keys), status.loaded_by, [(each.type, each.status, each.reason) for each in status.conditions]


async def test_an_end_after_any_write_leads_to_the_same_end() -> None:
    whole = World(rotation=ROTATION)
    await story(whole, whole.settle)
    writes = len(whole.cluster.writes)
    assert writes > 15
    for last in range(1, writes + 1):
        world = World(rotation=ROTATION)
        left = [last]

        async def pause(world: World = world, left: list[int] = left) -> None:
            done = len(world.cluster.writes)
            if left[0] > 0 and await until_killed(world, left[0], world.settle):
                left[0] = 0
                world.restart()
                await world.settle()
            elif left[0] > 0:
                left[0] -= len(world.cluster.writes) - done
            else:
                await world.settle()

        await story(world, pause)
        assert outcome(world) == outcome(whole), f"after write {last}"
        assert world.text(secret=ObjectRef(SECRET, NAMESPACE, "other")) is not None


steps = st.lists(
    st.tuples(st.sampled_from(["reconcile", "kill", "load", "hours", "fail", "restart", "ready"]), st.integers(0, 60)), max_size=50
)


@given(steps)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
async def test_the_text_that_is_handed_out_works_on_every_ready_pod(steps: list[tuple[str, int]]) -> None:
    """Whatever ends, fails or comes late: from the first time that all pods had it, a holder who reads the Secret is admitted everywhere, and
    one who read it before a rotation is so for the overlap."""
    world = World(rotation=ROTATION)
    await world.settle()
    promised: dict[str, Any] = {}
    handed = world.text() or ""
    for what, amount in steps:
        if what == "hours":
            world.after(hours=amount * 8)
        elif what == "load":
            world.load(world.pods[amount % 2])
        elif what == "restart":
            world.restart()
        elif what == "ready":
            pod = world.pods[amount % 2]
            pod.is_ready = not pod.is_ready
            if pod.is_ready:
                world.load(pod)
        else:
            if what == "fail":
                count = [amount % 3]

                def fail(write: Write, count: list[int] = count) -> ClusterError | None:
                    count[0] -= 1
                    return Unavailable("away") if count[0] < 0 else None

                world.cluster.fail = fail
            with suppress(ClusterError):
                await until_killed(world, 1 + amount % 2 if what == "kill" else 10**6, world.reconcile)
            world.cluster.fail = lambda write: None
            if what == "kill":
                world.restart()
        now = world.text() or ""
        if now != handed:
            promised[handed] = world.now + timedelta(hours=24)
            handed = now
        for pod in world.pods:
            assert pod.admits(handed, world.now) or not pod.is_ready, "handed out"
            for text, until in promised.items():
                assert not pod.is_ready or world.now >= until or pod.admits(text, world.now), "overlap"


async def test_no_key_text_leaves_the_secret() -> None:
    world = World(rotation=ROTATION)
    texts: set[str] = set()

    async def pause() -> None:
        for _ in range(12):
            await world.reconcile()
            texts.update(
                text for text in (world.text(), world.text("key.next"), world.text(secret=ObjectRef(SECRET, NAMESPACE, "other"))) if text
            )
            said = [
                world.cluster.objects[LIVE],
                [event.message for event in world.cluster.events],
                [str(each) for each in world.log],
                repr(world.keys),
            ]
            assert not any(text in json.dumps(said, default=str) for text in texts)
            world.load()

    await story(world, pause)
    assert len(texts) >= 4
