"""The loop that decides what is served: resource states and catalogs in, snapshots out.

Compiles off the serving path, one compile at a time. "Last good, or refuse": what doesn't compile refuses by unit; what is taken away applies
at once, even while a database keeps a compile waiting, also what a state takes away that comes meanwhile; an unreachable database is tried
again with back-off, and every catalog is looked at every 10 s. A state that changes nothing but what was seen keeps the snapshot, with its
version, and only its sources move. Nothing that happens here ends the loop. IO: through the source, the compiler and the status file.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tailrace_contract.codes import Refusal
from tailrace_contract.findings import Finding
from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import Kind
from tailrace_contract.runstore import RunStore

from tailrace_gateway.ceilings import Ceilings
from tailrace_gateway.compile.compiler import Compiled, Compiler
from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.compile.resources import Mapped, ServedKey, api_spec
from tailrace_gateway.compile.spec import ApiSpec
from tailrace_gateway.narrowing import narrowed, without_revoked
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.resources.places import Places
from tailrace_gateway.resources.state import Located, ResourceSource, ResourceState
from tailrace_gateway.served import Published, write_status

PATIENCE_S = 0.3
"""After so long a compile is overtaken once more by what only takes away: by then a newer state may be there."""
CATALOG_S = 10.0
RETRY_S = (0.5, 10.0)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The API that is served, with its store; or why there is none."""

    api: QueryAPI | None = None
    store: RunStore | None = None
    findings: tuple[Located, ...] = ()


def choose(state: ResourceState, wanted: Ref | None, served: Ref | None = None, last_store: RunStore | None = None) -> Chosen:
    """Picks the one QueryAPI and its RunStore. When the choice becomes unclear, `served` goes on; so does `last_store` without its document."""
    apis = state.query_apis
    unclear: tuple[Located, ...] = ()
    if wanted is None and len(apis) > 1:
        names = ", ".join(sorted(map(str, apis)))
        unclear = (_nowhere(f"there are {len(apis)} QueryAPIs: {names}", "choose one with --api NAMESPACE/NAME"),)
        if served not in apis:
            return Chosen(findings=unclear)
    ref = wanted or (served if unclear else next(iter(apis), None))
    api = apis.get(ref) if ref is not None else None
    if ref is None or api is None:
        if any(located.unit.startswith("QueryAPI ") for located in state.findings):
            return Chosen()  # There is one, but faulty, which is told already.
        return Chosen(findings=(_nowhere("there is no QueryAPI" + (f" {wanted}" if wanted else ""), "add one to the files behind -f"),))
    store_ref = Ref(ref.namespace, api.spec.run_store_ref.name)
    store = state.run_stores.get(store_ref)
    if store is not None:
        return Chosen(api, store, unclear)
    origin = state.origin(Kind.QUERY_API, ref)
    line, column = origin.place(("spec", "runStoreRef", "name"))
    finding = Finding(("spec", "runStoreRef", "name"), f"runStoreRef: there is no RunStore {store_ref}", "add it, or correct the name")
    located = Located(origin.file, line, column, finding, f"QueryAPI {ref}")
    return Chosen(api if last_store is not None else None, last_store, (*unclear, located))


def _nowhere(message: str, hint: str) -> Located:
    return Located("-f", 1, 1, Finding((), message, hint))


def keys_of(state: ResourceState, api: QueryAPI) -> tuple[tuple[ServedKey, ...], tuple[RefusedUnit, ...]]:
    """Keys of the API that may be served, and those that may not: without a usable text, or not admitted by `allowKeysFrom`."""
    ceilings = Ceilings(api, state.admitted)
    served: list[ServedKey] = []
    refused: list[RefusedUnit] = []
    for ref, key in state.api_keys.items():
        if key.api_ref != api.ref:
            continue
        admitted = ceilings.admit(key)
        if not admitted.refused and ref in state.digests:
            served.append(ServedKey(key, admitted.bind, state.digests[ref]))
            continue
        code = Refusal.INVALID_KEY if admitted.refused else Refusal.MISSING_SECRET
        why = admitted.refused or state.keyless.get(ref, "it has no digest")
        origin = state.origin(Kind.API_KEY, ref)
        refused.append(RefusedUnit("key", str(ref), code.value, why, role=key.spec.role, place=f"{origin.file}:{origin.first_line}:1"))
    return tuple(served), tuple(refused)


def specified(
    state: ResourceState, chosen: Chosen, secrets: Path, mapped: Mapped | None = None
) -> tuple[ApiSpec | None, tuple[RefusedUnit, ...]]:
    """What to compile, and refused keys. `secrets`: the folder with NAMESPACE/SECRET/KEY; `mapped` as in `api_spec`."""
    if chosen.api is None:
        return None, ()
    keys, refused = keys_of(state, chosen.api)
    files = state.queries.get(chosen.api.ref, ())
    return api_spec(chosen.api, chosen.store, keys, secrets.absolute(), Places(state, chosen.api), state.sources, mapped, files), refused


@dataclass(slots=True)
class _Last:
    """What the loop remembers."""

    published: Published | None = None
    spec: ApiSpec | None = None
    served: Ref | None = None
    store: RunStore | None = None
    version: int = 0
    failures: int = 0
    whole: int = 0
    """Version of the snapshot that was compiled from `spec`; what was published since may be less."""
    refusals: tuple[RefusedUnit, ...] = ()
    """Of that compile."""
    mapped: Mapped = field(default_factory=Mapped)


class ControlLoop:
    """Makes snapshots out of a source of resources. `wanted`: which QueryAPI, when the source has several; `secrets`: where they are mounted."""

    def __init__(
        self,
        source: ResourceSource,
        compiler: Compiler,
        data: Path,
        observe: Observer,
        *,
        wanted: Ref | None = None,
        secrets: Path | None = None,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._source = source
        self._compiler = compiler
        self._data = data
        self._observe = observe
        self._wanted = wanted
        self._secrets = secrets if secrets is not None else data / "secrets"
        self._clock_us = clock_us
        self._state: ResourceState | None = None
        self._changed = asyncio.Event()
        self._newer = asyncio.Event()
        """Since the last state that was looked at; `_changed`: since the last that was taken to be compiled."""
        self._forced = False
        """The next compile is due to a database, whatever the resources say."""
        self._last = _Last()

    async def snapshots(self) -> AsyncIterator[Published]:
        """Everything that is to be served, one after the other; ends only when it is closed."""
        reader = asyncio.create_task(self._read())
        try:
            while True:
                if not await self._due():
                    continue
                state = self._state
                assert state is not None
                self._newer.clear()
                async for published in self._compiled(state):
                    if not published.says_the_same(self._last.published):
                        before, self._last.published = self._last.published, published
                        self._tell(published, before)
                        yield published
                        if not published.tells_the_same(before):
                            await asyncio.to_thread(write_status, self._data, published)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self) -> None:
        """Keeps only the newest state: a source that changes often never makes a queue."""
        while True:
            try:
                async for state in self._source.states():
                    self._state = state
                    self._changed.set()
                    self._newer.set()
            except Exception as error:
                self._observe(observation(Event.COMPILE_FAILED, error=type(error).__name__))
            await asyncio.sleep(1)

    async def _due(self) -> bool:
        """Waits for a new state, a retry or a changed catalog; whether to compile."""
        last = self._last
        away = last.failures or (last.published is not None and last.published.unreachable)
        wait_s = min(RETRY_S[0] * 2 ** min(last.failures, 8), RETRY_S[1]) if away else CATALOG_S
        # Not wait_for: until Python 3.12 it forgets a cancellation that comes together with what it waits for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._state is None else wait_s):
                await self._changed.wait()
        self._forced = False
        if self._changed.is_set():
            self._changed.clear()
            last.failures = 0
            return True
        self._forced = True
        if away:
            last.failures += 1
            return True
        if last.spec is None:
            return False
        try:
            return bool(await asyncio.to_thread(self._compiler.stale, last.spec))
        except Exception as error:
            self._observe(observation(Event.COMPILE_FAILED, error=type(error).__name__))
            return False

    async def _compiled(self, state: ResourceState) -> AsyncIterator[Published]:
        """A snapshot of this state; before it, if that takes long, one without what this state or a later one takes away."""
        last = self._last
        began = time.monotonic()
        chosen, spec, refused = await asyncio.to_thread(self._specified, state)
        findings = state.findings + chosen.findings
        if spec is None or chosen.api is None:
            yield self._nothing(state, findings)
            return
        if (moved := self._moved(spec, refused, state, findings)) is not None:
            yield moved
            return
        # Whatever the database is doing: a compile opens a session there, which takes long while it is busy.
        if (revoked := self._revoked(spec, state)) is not None:
            yield revoked
        compiling = asyncio.create_task(asyncio.to_thread(self._compiler.compile, spec, self._version()))
        await asyncio.wait({compiling}, timeout=PATIENCE_S)
        if not compiling.done() and (less := self._less(spec, state, findings)) is not None:
            yield less
        newest: ApiSpec | None = spec
        while not compiling.done():
            if (later := await self._later(compiling)) is None:
                continue
            newest = later[2]
            told = later[0].findings + later[1].findings
            taken = self._nothing(later[0], told) if newest is None else self._less(newest, later[0], told)
            if taken is not None:
                yield taken
        try:
            compiled: Compiled = compiling.result()
        except Exception as error:
            last.failures += 1
            self._observe(observation(Event.COMPILE_FAILED, error=type(error).__name__))
            if newest is not None and (less := self._less(newest, state, findings)) is not None:
                yield less
            return
        last.spec, last.served, last.store = spec, chosen.api.ref, chosen.store
        if not compiled.unreachable:
            last.failures = 0
        # A snapshot that only takes away was numbered later than this compile began.
        snapshot = compiled.assembled.snapshot.model_copy(update={"version": self._version()})
        last.whole, last.refusals = snapshot.version, compiled.refusals
        if newest is None:
            return  # The API is gone, which is told already.
        if newest is not spec:
            # What a later state takes away must not come back until that state is compiled.
            snapshot, last.whole = narrowed(snapshot, spec, newest, snapshot.version), 0
        took_ms = round((time.monotonic() - began) * 1000)
        found = Published(snapshot, state, compiled.refusals + refused, findings, compiled.warnings, compiled.unreachable, took_ms)
        if newest is spec and (served := last.published) is not None and served.snapshot is not None and found.serves_the_same(served):
            # What took something away was all that changed: it is in force already, and is whole now.
            last.whole = served.snapshot.version
            found = replace(found, snapshot=served.snapshot.model_copy(update={"sources": snapshot.sources}))
        yield found

    def _specified(self, state: ResourceState) -> tuple[Chosen, ApiSpec | None, tuple[RefusedUnit, ...]]:
        """What is chosen of a state, what is to be compiled of it, and its refused keys."""
        chosen = choose(state, self._wanted, self._last.served, self._last.store)
        return chosen, *specified(state, chosen, self._secrets, self._last.mapped)

    async def _later(self, compiling: "asyncio.Task[Compiled]") -> tuple[ResourceState, Chosen, ApiSpec | None] | None:
        """Waits for the compile, or for a state that comes meanwhile and what it says; it stays due."""
        newer = asyncio.create_task(self._newer.wait())
        await asyncio.wait({compiling, newer}, return_when=asyncio.FIRST_COMPLETED)
        newer.cancel()
        state = self._state
        if not self._newer.is_set() or state is None:
            return None
        self._newer.clear()
        chosen, spec, _ = await asyncio.to_thread(self._specified, state)
        return state, chosen, spec

    def _moved(
        self, spec: ApiSpec, refused: tuple[RefusedUnit, ...], state: ResourceState, findings: tuple[Located, ...]
    ) -> Published | None:
        """What is served already, when it says all that this state does: only what was seen is newer. None: it must be compiled."""
        last, published = self._last, self._last.published
        if self._forced or last.spec is None or published is None or published.snapshot is None or published.unreachable:
            return None
        if published.snapshot.version != last.whole or published.state.secrets != state.secrets:
            return None
        if not spec.says_the_same(last.spec):
            return None
        snapshot = published.snapshot.model_copy(update={"sources": spec.sources})
        return replace(published, snapshot=snapshot, state=state, refusals=last.refusals + refused, findings=findings)

    def _revoked(self, spec: ApiSpec, state: ResourceState) -> Published | None:
        """What is served, without keys that are gone; None when there are none."""
        published = self._last.published
        if published is None or published.snapshot is None:
            return None
        snapshot = without_revoked(published.snapshot, spec, self._version())
        return replace(published, snapshot=snapshot, state=state) if snapshot is not None else None

    def _less(self, spec: ApiSpec, state: ResourceState, findings: tuple[Located, ...]) -> Published | None:
        """What was served last, without what the new resources take away."""
        last = self._last
        if last.published is None or last.published.snapshot is None or last.spec is None:
            return None
        snapshot = narrowed(last.published.snapshot, last.spec, spec, self._version())
        return replace(last.published, snapshot=snapshot, state=state, findings=findings)

    def _nothing(self, state: ResourceState, findings: tuple[Located, ...]) -> Published:
        """The API is gone, or was never there. What was served holds only while its document is there but wrong."""
        last = self._last.published
        if last is None or last.snapshot is None:
            return Published(None, state, findings=findings)
        empty = last.snapshot.model_copy(update={"version": self._version(), "keys": (), "roles": ()})
        return Published(empty, state, findings=findings)

    def _version(self) -> int:
        self._last.version = max(self._clock_us(), self._last.version + 1)
        return self._last.version

    def _tell(self, published: Published, before: Published | None) -> None:
        stale = published.findings[0] if published.findings else None
        if stale is not None and (before is None or before.findings != published.findings):
            self._observe(observation(Event.SOURCE_STALE, reason=stale.finding.message, file=stale.file, line=stale.line))
        if stale is None and before is not None and before.findings:
            self._observe(observation(Event.SOURCE_RECOVERED))
        known = {unit.what for unit in before.refusals} if before is not None else set()
        for unit in published.refusals:
            if unit.what not in known:
                self._observe(observation(Event.UNIT_REFUSED, unit=unit.unit, name=unit.name, role=unit.role, reason=unit.code))
