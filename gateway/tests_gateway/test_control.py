"""The control loop: last good, or refuse; taking away never waits; databases that come back are noticed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tailrace_contract.codes import Refusal
from tailrace_contract.ids import Ref
from tailrace_contract.plan import Grant, KeyPlan, QueryPlan, RolePlan, Snapshot, Source, SourceKind, StatementPlan
from tailrace_gateway import control
from tailrace_gateway.compile.compiler import Compiled
from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.compile.snapshot import Assembled
from tailrace_gateway.compile.spec import ApiSpec
from tailrace_gateway.control import ControlLoop
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.resources.merging import Good, merge, read_file
from tailrace_gateway.resources.state import Digest, ResourceState
from tailrace_gateway.served import Published, report, status_file

STORE = "\n---\napiVersion: tailrace.dev/v1alpha1\nkind: RunStore\nmetadata: {name: runs}\nspec: {embedded: {}}\n"


def api(name: str = "shop", value: int = 1, roles: str = '[{name: all, queries: ["*"]}]') -> str:
    return f"""
---
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {{name: {name}}}
spec:
  connections: [{{name: db, urlFrom: {{secretKeyRef: {{name: db, key: url}}}}}}]
  queries: [{{name: one, connection: db, sql: SELECT {value} AS x}}]
  roles: {roles}
  runStoreRef: {{name: runs}}
"""


def key(name: str = "k", suspended: bool = False) -> str:
    return f"""
---
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {{name: {name}}}
spec: {{queryApiRef: {{name: shop}}, role: all, suspended: {str(suspended).lower()}, secretName: {name}}}
"""


def state(text: str) -> ResourceState:
    good, findings = merge(Good(), [read_file("f.yaml", text)[0]])
    found = ResourceState(good.resources, findings)
    return ResourceState(good.resources, findings, {ref: (Digest("0" * 63 + str(n)),) for n, ref in enumerate(sorted(found.api_keys))})


@dataclass
class Feed:
    queue: asyncio.Queue[ResourceState] = field(default_factory=asyncio.Queue)

    async def states(self) -> AsyncIterator[ResourceState]:
        while True:
            yield await self.queue.get()

    def put(self, text: str, seen: int = 0) -> None:
        """`seen`: what a cluster's watch has seen of ApiKeys."""
        sources = (Source(kind=SourceKind.API_KEYS, namespace="default", resource_version=str(seen)),) if seen else ()
        self.queue.put_nowait(replace(state(text), sources=sources))


@dataclass
class FakeCompiler:
    """Gives every query to every role; can be slow, away, changed or broken."""

    go_on: threading.Event = field(default_factory=threading.Event)
    away: bool = False
    broken: bool = False
    changed: bool = False
    compiled: int = 0

    def compile(self, spec: ApiSpec, version: int) -> Compiled:
        self.compiled += 1
        assert self.go_on.wait(30)
        if self.broken:
            raise RuntimeError("hunter2")
        queries = tuple(
            QueryPlan(name=q.name, version="0" * 16, connection=0, returns=q.returns, timeout_ms=1, statement=StatementPlan(sql=q.sql), refused="database_unreachable" if self.away else None)
            for q in spec.queries
        )  # fmt: skip
        names = [role.name for role in spec.roles]
        snapshot = Snapshot(
            version=version,
            api=spec.api,
            sources=spec.sources,
            queries=queries,
            roles=tuple(RolePlan(name=name, grants=tuple(Grant(query=n) for n in range(len(queries)))) for name in names),
            keys=tuple(KeyPlan(id=k.id, sha256=k.sha256, role=names.index(k.role)) for k in spec.keys),
        )
        refusals = (RefusedUnit("query", "one", "database_unreachable", ""),) if self.away else ()
        return Compiled(Assembled(snapshot, refusals), (), ("db",) if self.away else ())

    def stale(self, spec: ApiSpec) -> tuple[str, ...]:
        changed, self.changed = self.changed, False
        return ("db",) if changed else ()


class Bench:
    """A loop, what it is fed and what it says."""

    def __init__(self, data: Path, wanted: Ref | None) -> None:
        self.source = Feed()
        self.compiler = FakeCompiler()
        self.compiler.go_on.set()
        self.seen: list[Observation] = []
        self.data = data
        self.loop = ControlLoop(self.source, self.compiler, data, self.seen.append, wanted=wanted)  # type: ignore[arg-type]
        self.snapshots = self.loop.snapshots()

    async def next(self) -> Published:
        return await asyncio.wait_for(anext(self.snapshots), 20)

    async def failed(self) -> None:
        """Waits for a compile that fails, while somebody waits for what comes next."""
        async with asyncio.timeout(60):
            while Event.COMPILE_FAILED not in [each.event for each in self.seen]:
                await asyncio.sleep(0.01)

    async def keys(self) -> list[str]:
        snapshot = (await self.next()).snapshot
        assert snapshot is not None
        return [each.id for each in snapshot.keys]


@asynccontextmanager
async def bench(data: Path, wanted: Ref | None = None) -> AsyncIterator[Bench]:
    made = Bench(data, wanted)
    try:
        yield made
    finally:
        made.compiler.go_on.set()
        await made.snapshots.aclose()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(control, "PATIENCE_S", 0.05)
    monkeypatch.setattr(control, "RETRY_S", (0.01, 0.05))
    monkeypatch.setattr(control, "CATALOG_S", 0.05)
    return


async def test_versions_rise_and_unchanged_states_say_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        first = await b.next()
        b.source.put("# a comment\n" + api() + key() + STORE)
        b.source.put(api(value=2) + key() + STORE)
        second = await b.next()
        assert first.snapshot is not None
        assert second.snapshot is not None
        assert second.snapshot.version > first.snapshot.version
        assert second.snapshot.queries[0].statement.sql == "SELECT 2 AS x"


async def test_a_suspended_key_goes_at_once_although_the_database_keeps_the_compile_waiting(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key("a") + key("b") + STORE)
        assert await b.keys() == ["default/a", "default/b"]
        b.compiler.go_on.clear()
        b.source.put(api(value=2) + key("a") + key("b", suspended=True) + STORE)
        bridge = await b.next()
        assert bridge.snapshot is not None
        assert [each.id for each in bridge.snapshot.keys] == ["default/a"]
        assert bridge.snapshot.queries[0].statement.sql == "SELECT 1 AS x"
        b.compiler.go_on.set()
        after = await b.next()
        assert after.snapshot is not None
        assert after.snapshot.queries[0].statement.sql == "SELECT 2 AS x"
        assert after.snapshot.version > bridge.snapshot.version


async def test_a_broken_compiler_serves_the_last_good_without_what_was_taken_away(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key("a") + key("b") + STORE)
        await b.next()
        b.compiler.broken = True
        b.source.put(api() + key("a") + STORE)
        assert await b.keys() == ["default/a"]
        after = asyncio.create_task(b.keys())
        await b.failed()
        b.compiler.broken = False
        b.source.put(api() + key("a") + key("c") + STORE)
        assert await after == ["default/a", "default/c"]
        assert "hunter2" not in repr(b.seen)


async def test_an_unreachable_database_is_tried_again_until_it_is_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.compiler.away = True
        b.source.put(api() + key() + STORE)
        first = await b.next()
        assert first.unreachable == ("db",)
        assert [unit.code for unit in first.refusals] == ["database_unreachable"]
        b.compiler.away = False
        assert not (await b.next()).refusals


async def test_a_changed_catalog_compiles_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        await b.next()
        waiting = asyncio.create_task(b.next())
        before = b.compiler.compiled
        b.compiler.changed = True
        for _ in range(500):
            if b.compiler.compiled > before:
                break
            await asyncio.sleep(0.01)
        assert b.compiler.compiled > before
        b.compiler.broken, b.compiler.changed = False, False
        b.source.put(api(value=9) + key() + STORE)
        assert (await waiting).snapshot is not None


async def test_a_deleted_api_takes_every_key_with_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        assert await b.keys() == ["default/k"]
        b.source.put(key() + STORE)
        published = await b.next()
        assert published.snapshot is not None
        assert not published.snapshot.keys
        assert published.findings[0].finding.message == "there is no QueryAPI"


async def test_a_second_api_or_a_lost_store_does_not_stop_the_first(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        await b.next()
        b.source.put(api() + api("other") + key())
        published = await b.next()
        assert published.snapshot is not None
        assert published.snapshot.api.name == "shop"
        assert len(published.snapshot.keys) == 1
        messages = [each.finding.message for each in published.findings]
        assert messages == ["there are 2 QueryAPIs: default/other, default/shop", "runStoreRef: there is no RunStore default/runs"]
        assert published.findings[1].where == "f.yaml:10:17"


@pytest.mark.parametrize("text", ["", api(), api() + api("other") + STORE, "a: [", api("x" * 64) + STORE])
async def test_without_one_whole_api_nothing_is_served_and_the_reason_is_said(tmp_path: Path, text: str) -> None:
    async with bench(tmp_path) as b:
        b.source.put(text)
        published = await b.next()
        assert published.snapshot is None
        assert published.findings
        assert published.findings[0].finding.hint


async def test_one_of_several_apis_can_be_chosen_and_the_status_file_tells(tmp_path: Path) -> None:
    async with bench(tmp_path, Ref("default", "other")) as b:
        b.source.put(api() + api("other") + key() + STORE)
        published = await b.next()
        assert published.snapshot is not None
        assert published.snapshot.api.name == "other"
        b.source.put(api() + api("other", value=3) + key() + STORE)
        await b.next()
        text = status_file(tmp_path).read_text()
        assert json.loads(text)["api"] == "default/other"
        assert "SELECT" not in text
        assert "0" * 63 not in text


def seen_by(published: Published) -> int:
    assert published.snapshot is not None
    return max(int(each.resource_version or 0) for each in published.snapshot.sources if each.kind is SourceKind.API_KEYS)


async def test_what_was_only_seen_moves_the_sources_and_compiles_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE, seen=1)
        first = await b.next()
        compiled = b.compiler.compiled
        b.source.put(api() + key() + STORE, seen=2)
        second = await b.next()
        assert b.compiler.compiled == compiled
        assert first.snapshot is not None
        assert second.snapshot is not None
        assert second.snapshot.version == first.snapshot.version
        assert (seen_by(first), seen_by(second)) == (1, 2)
        b.source.put(api() + key("k", suspended=True) + STORE, seen=3)
        third = await b.next()
        assert third.snapshot is not None
        assert third.snapshot.version > second.snapshot.version
        assert not third.snapshot.keys
        assert seen_by(third) == 2
        fourth = await b.next()
        assert fourth.snapshot is not None
        assert fourth.snapshot.version == third.snapshot.version
        assert seen_by(fourth) == 3
        b.source.put(api() + key("k", suspended=True) + STORE, seen=4)
        fifth = await b.next()
        assert fifth.snapshot is not None
        assert fifth.snapshot.version == third.snapshot.version
        assert seen_by(fifth) == 4
        assert b.compiler.compiled == compiled + 1


@pytest.mark.parametrize("way", ["deleted", "suspended"])
async def test_a_revoked_key_goes_before_anything_is_asked_of_the_database(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 60)
    async with bench(tmp_path) as b:
        b.source.put(api() + key("a") + key("b") + STORE)
        first = await b.next()
        b.compiler.go_on.clear()
        b.source.put(api() + key("a") + (key("b", suspended=True) if way == "suspended" else "") + STORE)
        assert await b.keys() == ["default/a"]
        b.compiler.go_on.set()
        b.source.put(api(value=2) + key("a") + STORE)
        after = await b.next()
        assert first.snapshot is not None
        assert after.snapshot is not None
        assert after.snapshot.queries[0].statement.sql == "SELECT 2 AS x"
        assert [each.id for each in after.snapshot.keys] == ["default/a"]


async def test_less_than_was_asked_for_acknowledges_nothing_and_is_not_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key("a") + STORE, seen=1)
        await b.next()
        b.compiler.broken = True
        b.source.put(api() + STORE, seen=2)
        less = await b.next()
        assert less.snapshot is not None
        assert not less.snapshot.keys
        assert seen_by(less) == 1
        waiting = asyncio.create_task(b.next())
        await b.failed()
        b.compiler.broken = False
        b.source.put(api() + key("a") + STORE, seen=3)
        again = await waiting
        assert again.snapshot is not None
        assert len(again.snapshot.keys) == 1
        assert seen_by(again) == 3


async def test_a_later_state_takes_away_at_once_and_what_is_compiled_meanwhile_does_not_bring_it_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key("a") + key("b") + STORE, seen=1)
        await b.next()
        b.compiler.go_on.clear()
        b.source.put(api(value=2) + key("a") + key("b") + STORE, seen=2)
        waiting = asyncio.create_task(b.next())
        async with asyncio.timeout(60):
            while b.compiler.compiled < 2:
                await asyncio.sleep(0.01)
        b.source.put(api(value=2) + key("a") + STORE, seen=3)
        bridge = await waiting
        while bridge.snapshot is not None and len(bridge.snapshot.keys) == 2:
            bridge = await b.next()
        assert bridge.snapshot is not None
        assert [each.id for each in bridge.snapshot.keys] == ["default/a"]
        assert bridge.snapshot.queries[0].statement.sql == "SELECT 1 AS x"
        b.compiler.go_on.set()
        after = await b.next()
        assert after.snapshot is not None
        assert after.snapshot.queries[0].statement.sql == "SELECT 2 AS x"
        assert [each.id for each in after.snapshot.keys] == ["default/a"]
        assert seen_by(after) == 2
        last = await b.next()
        assert seen_by(last) == 3
        assert last.snapshot is not None
        assert [each.id for each in last.snapshot.keys] == ["default/a"]


async def test_an_api_that_goes_while_it_is_compiled_stays_away(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        await b.next()
        b.compiler.go_on.clear()
        b.source.put(api(value=2) + key() + STORE)
        waiting = asyncio.create_task(b.next())
        async with asyncio.timeout(60):
            while b.compiler.compiled < 2:
                await asyncio.sleep(0.01)
        b.source.put(key() + STORE)
        gone = await waiting
        while gone.snapshot is not None and gone.snapshot.keys:
            gone = await b.next()
        b.compiler.go_on.set()
        b.source.put(api(value=3) + key() + STORE)
        back = await b.next()
        assert back.snapshot is not None
        assert back.snapshot.queries[0].statement.sql == "SELECT 3 AS x"


async def test_a_fault_that_changes_no_plan_is_reported_of_the_snapshot_in_force(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        first = report(await b.next())
        b.source.put(api() + key() + STORE + api("x" * 60))
        second = report(await b.next())
        assert first is not None
        assert second is not None
        assert (first.gateway.stale, second.gateway.stale) == (False, True)
        assert second.version == first.version
        assert (second.gateway.queries.total, second.gateway.queries.served, second.gateway.keys) == (1, 1, 1)


async def test_somebodys_broken_key_does_not_speak_against_the_api(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE + key("x" * 60))
        published = await b.next()
        found = report(published)
        assert published.findings
        assert found is not None
        assert not found.gateway.stale


async def test_refused_queries_are_reported_with_their_reason(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.compiler.away = True
        b.source.put(api() + key() + STORE)
        told = report(await b.next())
        assert told is not None
        assert (told.gateway.queries.total, told.gateway.queries.served) == (1, 0)
        assert [(each.name, each.role, each.code) for each in told.gateway.queries.refused] == [("one", "", "database_unreachable")]


async def test_keys_that_only_compiling_refuses_are_reported(tmp_path: Path) -> None:
    """One that is served, or has no digest yet, is told elsewhere."""
    async with bench(tmp_path) as b:
        b.source.put(api() + key() + STORE)
        published = await b.next()
        units = [("z", Refusal.INVALID_KEY), ("k", Refusal.INVALID_KEY), ("fresh", Refusal.MISSING_SECRET)]
        refusals = tuple(RefusedUnit("key", f"default/{name}", code, "the API has no role `x`") for name, code in units)
        told = report(replace(published, refusals=refusals))
        assert told is not None
        assert [(each.id, each.message) for each in told.gateway.refused_keys] == [("default/z", "the API has no role `x`")]
        assert told.gateway.queries.refused == ()
