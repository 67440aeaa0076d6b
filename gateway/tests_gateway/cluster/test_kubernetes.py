"""The Kubernetes source: what is a whole state, what holds, who is waited for and who is not."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_contract.fingerprints import config_fingerprint
from tailrace_contract.ids import Ref
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.resources import kubernetes
from tailrace_gateway.resources.apiserver import Access, ApiServer
from tailrace_gateway.resources.kubernetes import KubernetesSource, run_store
from tailrace_gateway.resources.listwatch import Times
from tailrace_gateway.resources.state import Digest, ResourceState

QUICK = Times(list_s=20, watch_s=(60, 60), beyond_s=20, back_off_s=(0.01, 0.05), healthy_s=0.5)
STORE = json.dumps({"name": "runs", "spec": {"postgres": {"urlFrom": {"secretKeyRef": {"name": "runs-db", "key": "url"}}}}})
SHA = "ab" * 32


def spec(sql: str = "SELECT 1 AS x", **more: Any) -> dict[str, Any]:
    return {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": [{"name": "one", "connection": "db", "sql": sql}],
        "roles": [{"name": "all", "queries": ["*"]}],
        "runStoreRef": {"name": "runs"},
        **more,
    }


def key_spec(**more: Any) -> dict[str, Any]:
    return {"queryApiRef": {"name": "shop"}, "role": "all", "secretName": "k", **more}


def key_status(sha: str = SHA, **more: Any) -> dict[str, Any]:
    return {"observedGeneration": 1, "keys": [{"id": "x", "sha256": sha, "notBefore": "2026-01-01T00:00:00Z", **more}]}


def admits(*names: str) -> dict[str, Any]:
    return {"observedGeneration": 1, "namespaces": [{"name": name, "entry": "0" * 16, "bind": {}} for name in names]}


class Bench:
    def __init__(self, api: Any, folder: Path) -> None:
        self.api = api
        self.seen: list[Observation] = []
        self.server = ApiServer(Access(api.url))
        (folder / "secrets").mkdir(exist_ok=True)
        self.secrets = folder / "secrets"
        self.source = KubernetesSource(
            self.server, Ref("retail", "shop"), run_store(STORE, "retail"), self.secrets, folder / "configs", self.seen.append, times=QUICK
        )
        self.state: ResourceState | None = None
        self.states = 0
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for state in self.source.states():
            self.state = state
            self.states += 1

    async def until(self, check: Callable[[ResourceState], object]) -> ResourceState:
        async with asyncio.timeout(60):
            while self.state is None or not check(self.state):
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.01)
        return self.state

    def told(self, event: Event) -> list[tuple[object, ...]]:
        return [tuple(each.fields.values()) for each in self.seen if each.event is event]


@pytest.fixture
async def bench(api: Any, tmp_path: Path) -> AsyncIterator[Callable[[], Bench]]:
    made: list[Bench] = []

    def start() -> Bench:
        made.append(Bench(api, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.task.cancel()
        await asyncio.gather(each.task, return_exceptions=True)
        await each.server.close()


def version(state: ResourceState, namespace: str = "retail") -> int:
    return next((int(each.resource_version) for each in state.sources if each.namespace == namespace), -1)


async def test_a_whole_state_and_its_sources(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("queryapis", "retail", "other", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status(notAfter="2026-01-02T00:00:00Z"))
    api.put("apikeys", "retail", "fresh", key_spec())
    api.put("apikeys", "retail", "foreign", key_spec(queryApiRef={"name": "other"}), key_status("cd" * 32))
    b = bench()
    state = await b.until(lambda state: True)
    assert list(state.query_apis) == [Ref("retail", "shop")]
    assert set(state.api_keys) == {Ref("retail", "desk"), Ref("retail", "fresh")}
    assert state.digests == {Ref("retail", "desk"): (Digest(SHA, None, 1767312000000000),)}
    assert set(state.keyless) == {Ref("retail", "fresh")}
    assert set(state.run_stores) == {Ref("retail", "runs")}
    assert [(each.kind.value, each.namespace) for each in state.sources] == [("ApiKeys", "retail")]
    assert version(state) == api.version
    assert state.query_apis[Ref("retail", "shop")].metadata.uid == "uid-shop"
    assert not state.findings


async def test_changes_and_deletions_arrive_with_their_version(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    b = bench()
    await b.until(lambda state: state.digests)
    at = api.put("apikeys", "retail", "desk", key_spec(suspended=True), key_status())
    state = await b.until(lambda state: version(state) >= at)
    assert state.api_keys[Ref("retail", "desk")].spec.suspended
    at = api.delete("apikeys", "retail", "desk")
    state = await b.until(lambda state: version(state) >= at)
    assert not state.api_keys
    assert not state.digests
    at = api.bookmark()
    await b.until(lambda state: version(state) >= at)
    api.put("queryapis", "retail", "shop", spec("SELECT 2 AS x"))
    state = await b.until(lambda state: "SELECT 2" in str(state.query_apis))
    assert state.query_apis[Ref("retail", "shop")].metadata.generation == 2
    api.delete("queryapis", "retail", "shop")
    await b.until(lambda state: not state.query_apis)


async def test_a_key_that_a_finalizer_holds_opens_nothing(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    b = bench()
    await b.until(lambda state: state.digests)
    asked = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/slow"]}
    at = api.put("apikeys", "retail", "desk", key_spec(), key_status(), **asked)
    state = await b.until(lambda state: version(state) >= at)
    assert not state.api_keys
    assert not state.digests


async def test_a_bad_object_is_alone_and_its_last_good_form_holds(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    b = bench()
    await b.until(lambda state: state.digests)
    api.put("queryapis", "retail", "shop", spec(roles=[{"name": "all", "queries": ["*"]}, {"name": "all", "queries": ["*"]}]))
    api.put("apikeys", "retail", "odd", key_spec(role=7), key_status("cd" * 32))
    api.put("apikeys", "retail", "desk", key_spec(role="All!"), key_status("ef" * 32))
    state = await b.until(lambda state: len({each.unit for each in state.findings}) == 3)
    assert len(state.query_apis[Ref("retail", "shop")].spec.roles) == 1
    assert set(state.api_keys) == {Ref("retail", "desk")}
    assert state.digests[Ref("retail", "desk")][0].sha256 == "ef" * 32
    assert state.stale
    assert {each.unit for each in state.findings} == {"QueryAPI retail/shop", "ApiKey retail/odd", "ApiKey retail/desk"}
    api.put("queryapis", "retail", "shop", spec())
    api.delete("apikeys", "retail", "odd")
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    await b.until(lambda state: not state.findings)


async def test_a_pod_that_starts_without_the_server_gives_nothing_until_it_is_back(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.fault = 503
    b = bench()
    async with asyncio.timeout(60):
        while len(b.told(Event.SOURCE_AWAY)) < 2:
            await asyncio.sleep(0.01)
    assert b.state is None
    assert b.source.age_s() > 0
    api.fault = None
    await b.until(lambda state: state.query_apis)
    async with asyncio.timeout(60):
        while len(b.told(Event.SOURCE_BACK)) < 2:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("half", ["queryapis", "apikeys"])
async def test_half_of_it_is_no_state(api: Any, bench: Callable[[], Bench], half: str) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    api.faults[half, "retail"] = 403
    b = bench()
    async with asyncio.timeout(60):
        while not b.told(Event.SOURCE_AWAY):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert b.state is None
    api.faults.clear()
    state = await b.until(lambda state: True)
    assert state.query_apis
    assert state.digests


async def test_what_was_read_last_holds_while_the_server_is_away(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    b = bench()
    before = await b.until(lambda state: state.digests)
    await api.stop()
    async with asyncio.timeout(60):
        while len(b.told(Event.SOURCE_AWAY)) < 2:
            await asyncio.sleep(0.01)
    assert b.state == before
    api.delete("apikeys", "retail", "desk")
    await api.start()
    await b.until(lambda state: not state.api_keys)
    assert "hunter2" not in repr(b.seen)


async def test_namespaces_come_and_go_with_the_status(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec(), admits("teama"))
    there = {"queryApiRef": {"name": "shop", "namespace": "retail"}}
    api.put("apikeys", "teama", "bot", key_spec(**there), key_status())
    api.put("apikeys", "teama", "own", key_spec(), key_status("cd" * 32))
    api.put("apikeys", "teamb", "bot", key_spec(**there), key_status("ef" * 32))
    b = bench()
    state = await b.until(lambda state: True)
    assert set(state.api_keys) == {Ref("teama", "bot")}, "a key without a namespace means its own"
    assert [each.name for each in state.admitted] == ["teama"]
    api.put("queryapis", "retail", "shop", spec(), admits("teama", "teamb"))
    await b.until(lambda state: set(state.api_keys) == {Ref("teama", "bot"), Ref("teamb", "bot")})
    api.put("queryapis", "retail", "shop", spec(), admits("teamb"))
    state = await b.until(lambda state: set(state.api_keys) == {Ref("teamb", "bot")})
    assert {each.namespace for each in state.sources} == {"retail", "teamb"}
    assert {stream.place[1] for stream in api.streams} >= {"retail", "teamb"}
    async with asyncio.timeout(60):
        while ("apikeys", "teama") in {stream.place for stream in api.streams}:
            api.say({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(api.version)}}})
            await asyncio.sleep(0.01)


async def test_a_forbidden_namespace_holds_nobody_up_and_comes_later(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec(), admits("teama", "teamb"))
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    there = {"queryApiRef": {"name": "shop", "namespace": "retail"}}
    api.put("apikeys", "teama", "bot", key_spec(**there), key_status("cd" * 32))
    api.put("apikeys", "teamb", "bot", key_spec(**there), key_status("ef" * 32))
    api.faults["apikeys", "teama"] = 403
    b = bench()
    state = await b.until(lambda state: True)
    assert set(state.digests) == {Ref("retail", "desk"), Ref("teamb", "bot")}
    assert ("ApiKeys teama", "forbidden") in b.told(Event.SOURCE_AWAY)
    api.faults.clear()
    await b.until(lambda state: Ref("teama", "bot") in state.digests)


async def test_a_silent_namespace_is_waited_for_a_moment_only(
    api: Any, bench: Callable[[], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE_S", 0.5)
    api.put("queryapis", "retail", "shop", spec(), admits("teama"))
    api.faults["apikeys", "teama"] = "hang"
    b = bench()
    state = await b.until(lambda state: True)
    assert version(state, "teama") == -1, "nothing of it is acknowledged"


async def test_a_mounted_secret_that_changes_is_another_state(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    b = bench()
    before = await b.until(lambda state: True)
    (b.secrets / "retail" / "db").mkdir(parents=True)
    (b.secrets / "retail" / "db" / "url").write_text("postgres://hunter2")
    after = await b.until(lambda state: state.secrets != before.secrets)
    assert "hunter2" not in repr(after)


async def test_queries_of_mounted_config_maps_and_their_fingerprint(api: Any, bench: Callable[[], Bench], tmp_path: Path) -> None:
    folder = tmp_path / "configs" / "retail" / "sql"
    (folder / "..1").mkdir(parents=True)
    (folder / "..1" / "two.sql").write_text("---\nconnection: db\n---\nSELECT 2 AS x")
    (folder / "..data").symlink_to("..1")
    api.put("queryapis", "retail", "shop", spec(queriesFrom=[{"configMapRef": {"name": "sql"}}]))
    b = bench()
    state = await b.until(lambda state: True)
    shop = state.query_apis[Ref("retail", "shop")]
    assert [each.name for each in state.queries_of(shop)] == ["one", "two"]

    def config(state: ResourceState) -> str:
        return next(each.resource_version for each in state.sources if (each.kind.value, each.name) == ("Config", "retail/sql"))

    assert config(state) == config_fingerprint({"two.sql": b"---\nconnection: db\n---\nSELECT 2 AS x"})
    (folder / "..2").mkdir()
    (folder / "..2" / "three.sql").write_text("---\nconnection: db\n---\nSELECT 3 AS x")
    (folder / "..new").symlink_to("..2")
    (folder / "..new").rename(folder / "..data")
    after = await b.until(lambda state: config(state) == config_fingerprint({"three.sql": b"---\nconnection: db\n---\nSELECT 3 AS x"}))
    assert [each.name for each in after.queries_of(shop)] == ["one", "three"]


async def test_a_status_that_makes_no_sense_admits_nobody(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec(), {"namespaces": [{"name": "teama"}]})
    api.put("apikeys", "retail", "desk", key_spec(), {"keys": [{"id": "x", "sha256": "short", "notBefore": "yesterday"}]})
    b = bench()
    state = await b.until(lambda state: True)
    assert state.admitted == ()
    assert not state.digests
    assert set(state.keyless) == {Ref("retail", "desk")}
    assert not state.findings


async def test_a_status_that_is_written_reads_no_spec_again(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    api.put("apikeys", "retail", "desk", key_spec(), key_status())
    b = bench()
    before = await b.until(lambda state: state.digests)
    api.put("queryapis", "retail", "shop", spec(), {"observedGeneration": 1, "keys": 1})
    at = api.put("apikeys", "retail", "desk", key_spec(), key_status("cd" * 32))
    after = await b.until(lambda state: version(state) >= at)
    assert after.query_apis[Ref("retail", "shop")] is before.query_apis[Ref("retail", "shop")]
    assert after.api_keys[Ref("retail", "desk")] is before.api_keys[Ref("retail", "desk")]
    assert after.digests[Ref("retail", "desk")][0].sha256 == "cd" * 32
    api.delete("apikeys", "retail", "desk")
    await b.until(lambda state: not state.api_keys)
    api.put("apikeys", "retail", "desk", key_spec(role="other"), key_status(), uid="another")
    state = await b.until(lambda state: state.api_keys)
    assert state.api_keys[Ref("retail", "desk")].spec.role == "other"


async def test_nothing_new_says_nothing(api: Any, bench: Callable[[], Bench]) -> None:
    api.put("queryapis", "retail", "shop", spec())
    b = bench()
    await b.until(lambda state: True)
    api.cut()
    await asyncio.sleep(1.5)
    assert b.states == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "namespace", "queryApiRef", "role", "bind", "keys", "sha256", "connections", "queries", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(values, values, st.sampled_from(["spec", "spec.queryApiRef", "spec.bind", "spec.expiresAt", "spec.queries", "metadata"]))
@settings(suppress_health_check=list(HealthCheck), deadline=None)
def test_no_object_keeps_the_others_from_being_read(value: Any, status: Any, place: str) -> None:
    """Whatever an author of ApiKeys gets past the API server: it is one finding, or one key."""
    for base, see in ((key_spec(), lambda item: kubernetes.see_key(item, Ref("retail", "shop"))), (spec(), kubernetes.see_api)):
        item: dict[str, Any] = {
            "metadata": {"name": "a", "namespace": "retail", "uid": "u", "generation": 1},
            "spec": base,
            "status": status,
        }
        *path, last = place.split(".")
        (item[path[0]] if path else item)[last] = value
        seen = see(item)
        assert seen is None or seen.held is not None or seen.findings
    for name in ("metadata", "spec", "status"):
        assert kubernetes.see_api({name: value}).findings


def test_a_defect_of_ours_is_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(document: object) -> object:
        raise RecursionError("hunter2")

    monkeypatch.setattr(kubernetes, "read", broken)
    seen = kubernetes.see_api({"metadata": {"name": "shop", "namespace": "retail"}, "spec": spec()})
    assert seen.held is None
    assert "hunter2" not in repr(seen)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": "runs"}', '{"name": "runs", "spec": {"hunter2": 1}}', '{"name": 7, "spec": {"embedded": {}}}']
)
def test_a_run_store_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="TAILRACE_RUN_STORE") as caught:
        run_store(text, "retail")
    assert "postgres://" not in str(caught.value)
