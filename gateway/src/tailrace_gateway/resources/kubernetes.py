"""Resources from the Kubernetes API, watched: one QueryAPI, the ApiKeys of its namespace and of each that its status admits. IO: through `ListWatch`, mounted files.

Nothing is given before the API and its own namespace's keys were listed: a pod that has seen half of the keys would refuse the other half.
Other namespaces are waited for a moment, and never when the server forbids them (their RoleBinding may come later): they hold nobody up. While
the API server is away what was read last holds. A document that is wrong is a finding, and its last good form holds on; everything else
applies at once. Digests come from `status.keys`; the RunStore is given from outside.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tailrace_contract.document import Resource, read
from tailrace_contract.findings import Finding
from tailrace_contract.fingerprints import config_fingerprint
from tailrace_contract.ids import Ref
from tailrace_contract.plan import Source, SourceKind
from tailrace_contract.resource import API_VERSION, GROUP, VERSION, Kind
from tailrace_contract.runstore import RunStore
from tailrace_contract.status import AdmittedNamespace, ApiKeyStatus, QueryAPIStatus

from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.resources.apiserver import ApiServer, Reason
from tailrace_gateway.resources.configdoc import Config
from tailrace_gateway.resources.listwatch import ListWatch, Times
from tailrace_gateway.resources.mounted import MountedConfigs
from tailrace_gateway.resources.queryfiles import Place, QueryFiles
from tailrace_gateway.resources.state import Digest, FileQuery, Held, Located, Origin, ResourceState
from tailrace_gateway.resources.vault import Vault

RUN_STORE_VARIABLE = "TAILRACE_RUN_STORE"
PATIENCE_S = 5.0
"""At the start other namespaces may keep the first state waiting for so long."""
GATHER_S = 0.01
"""Changes that come together are one state."""
FILES_S = 1.0
"""How often mounted files are looked at."""
ANSWERED = (Reason.FORBIDDEN, Reason.NOT_FOUND)
"""Reasons that say something about one namespace, not about the server."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One object: its resource or what is wrong with it, and what its status says. Made once for each version: of 10,000 keys one changes."""

    identity: str
    ref: Ref
    held: Held | None
    findings: tuple[Located, ...] = ()
    keys: tuple[Digest, ...] = ()
    namespaces: tuple[AdmittedNamespace, ...] = ()


def run_store(text: str, namespace: str) -> RunStore:
    """The RunStore in TAILRACE_RUN_STORE (`{"name": …, "spec": …}`); ValueError with everything that is wrong, without values."""
    try:
        given = json.loads(text)
    except ValueError:
        raise ValueError(f"{RUN_STORE_VARIABLE} is not JSON") from None
    if not isinstance(given, dict) or set(given) != {"name", "spec"}:
        raise ValueError(f"{RUN_STORE_VARIABLE} must have name and spec")
    metadata = {"name": given["name"], "namespace": namespace}
    found = read({"apiVersion": API_VERSION, "kind": str(Kind.RUN_STORE), "metadata": metadata, "spec": given["spec"]})
    if isinstance(found, list):
        raise ValueError(f"{RUN_STORE_VARIABLE}: " + "; ".join(finding.message for finding in found))
    assert isinstance(found, RunStore)
    return found


def see_api(item: dict[str, Any], last: Seen | None = None) -> Seen:
    """A QueryAPI as the API server gives it; `last`: as it was before."""
    try:
        namespaces = QueryAPIStatus.model_validate_json(json.dumps(item.get("status") or {})).namespaces
    except ValidationError:
        namespaces = ()  # Nobody of another namespace, then.
    return _seen(_document(item, Kind.QUERY_API), Kind.QUERY_API, last, (), namespaces)


def see_key(item: dict[str, Any], wanted: Ref, last: Seen | None = None) -> Seen | None:
    """An ApiKey as the API server gives it; None when it opens another API, or nothing any more: one whose deletion was asked for may stand there
    for as long as somebody's finalizer holds it. `last`: as it was before."""
    if _is_going(item):
        return None
    document = _document(item, Kind.API_KEY)
    spec = document["spec"]
    ref = spec.get("queryApiRef") if isinstance(spec, dict) else None
    if isinstance(ref, dict) and (ref.get("namespace") or document["metadata"].get("namespace"), ref.get("name")) != (
        wanted.namespace,
        wanted.name,
    ):
        return None
    try:
        status = ApiKeyStatus.model_validate_json(json.dumps(item.get("status") or {}))
    except ValidationError:
        status = ApiKeyStatus()  # No digest: the key is refused.
    keys = tuple(
        # Valid from when it stands there: `notBefore` is by the operator's clock, and a node's may be behind it.
        Digest(each.sha256, None, round(each.not_after.timestamp() * 1e6) if each.not_after else None)
        for each in status.keys
    )
    return _seen(document, Kind.API_KEY, last, keys, ())


def _is_going(item: dict[str, Any]) -> bool:
    metadata = item.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


def _seen(
    document: dict[str, Any], kind: Kind, last: Seen | None, keys: tuple[Digest, ...], namespaces: tuple[AdmittedNamespace, ...]
) -> Seen:
    """Reads the document; the very resource that was read before stays when its spec is the same.

    A status is written often, and to read a large API again takes a while. The resourceVersion is then the one that it was read at;
    acknowledgement goes by uid and generation.
    """
    metadata = document["metadata"]
    if last is not None and last.held is not None:
        was = last.held.resource.metadata
        if was.uid and was.generation and (was.uid, was.generation) == (metadata.get("uid"), metadata.get("generation")):
            return replace(last, keys=keys, namespaces=namespaces)
    ref = Ref(str(metadata.get("namespace")), str(metadata.get("name")))
    identity = f"{kind} {ref}"
    try:
        found: Resource | list[Finding] = read(document)
    except Exception:
        # Whoever may write an ApiKey must not be able to stop the others from being read, not by a defect of ours either.
        found = [Finding((), "it cannot be read", "compare it with the fields of its kind")]
    if isinstance(found, list):
        findings = tuple(Located(identity, 1, 1, finding, identity) for finding in found)
        return Seen(identity, ref, None, findings, keys, namespaces)
    return Seen(identity, ref, Held(found, Origin(identity)), (), keys, namespaces)


def _document(item: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """What is ours of an object; the rest of its metadata is long and nobody's business."""
    metadata: Any = item.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "generation", "resourceVersion") if name in metadata}
    return {"apiVersion": API_VERSION, "kind": str(kind), "metadata": kept, "spec": item.get("spec")}


class KubernetesSource:
    """A `ResourceSource` over one API server. `store`: the RunStore in force; `secrets`, `configs`: the folders with NAMESPACE/NAME/KEY."""

    def __init__(
        self,
        server: ApiServer,
        wanted: Ref,
        store: RunStore,
        secrets: Path,
        configs: Path,
        observe: Observer,
        *,
        times: Times | None = None,
    ) -> None:
        self._server = server
        self._wanted = wanted
        self._store = store
        self._vault = Vault(secrets.parent, secrets=secrets)
        self._configs = MountedConfigs(configs)
        self._query_files = QueryFiles()
        self._observe = observe
        self._times = times or Times()
        self._changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._keys: dict[str, ListWatch[Seen | None]] = {}
        self._api = self._watch_api()
        self._good: Mapping[str, Held] = {}
        self._told: dict[str, Reason] = {}
        self._since_s: float | None = None
        self._given = False

    def age_s(self) -> float:
        """Seconds since the API server was heard last, of the watch that was heard longest ago. Between two bookmarks a minute or so passes."""
        oldest_s = min([self._api.heard_s, *(watch.heard_s for watch in self._keys.values())])
        return time.monotonic() - oldest_s

    async def states(self) -> AsyncIterator[ResourceState]:
        """Each state as soon as it is known, once the server has been read."""
        self._run("", self._api)
        self._watch_keys(self._wanted.namespace)
        last: ResourceState | None = None
        try:
            while True:
                # Not wait_for: until Python 3.12 it forgets a cancellation that comes together with what it waits for.
                with suppress(TimeoutError):
                    async with asyncio.timeout(FILES_S):
                        await self._changed.wait()
                await asyncio.sleep(GATHER_S)
                self._changed.clear()
                self._tell()
                self._follow()
                if not self._complete():
                    continue
                state = await asyncio.to_thread(self._mounted, self._state())
                if state != last:
                    last, self._given = state, True
                    yield state
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            self._keys.clear()

    def _watch_api(self) -> ListWatch[Seen]:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self._wanted.namespace}/queryapis"
        selector = f"metadata.name={self._wanted.name}"
        return ListWatch(self._server, path, see_api, self._changed.set, field_selector=selector, times=self._times)

    def _watch_keys(self, namespace: str) -> None:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/apikeys"
        self._keys[namespace] = ListWatch(
            self._server, path, lambda item, last: see_key(item, self._wanted, last), self._changed.set, times=self._times
        )
        self._run(namespace, self._keys[namespace])

    def _run(self, name: str, watch: ListWatch[Any]) -> None:
        self._tasks[name] = asyncio.create_task(self._keep(name, watch))

    async def _keep(self, name: str, watch: ListWatch[Any]) -> None:
        """A watch never ends by itself; a defect of ours must not leave its objects old for ever, nor without a word."""
        while True:
            try:
                await watch.run()
            except Exception as error:
                self._observe(observation(Event.SOURCE_AWAY, what=f"watch {name}".strip(), reason=type(error).__name__))
            await asyncio.sleep(self._times.back_off_s[1])

    def _follow(self) -> None:
        """Watches come and go with the namespaces that the status admits."""
        if not self._api.listed:
            return
        wanted = {self._wanted.namespace} | {each.name for seen in self._api.objects.values() for each in seen.namespaces}
        for namespace in wanted - set(self._keys):
            self._watch_keys(namespace)
        for namespace in set(self._keys) - wanted:
            self._tasks.pop(namespace).cancel()
            del self._keys[namespace]

    def _complete(self) -> bool:
        """Whether enough was read to serve by."""
        if self._given:
            return True
        if not (self._api.listed and self._keys[self._wanted.namespace].listed):
            return False
        self._since_s = self._since_s if self._since_s is not None else time.monotonic()
        waiting = any(not each.listed and each.problem not in ANSWERED for each in self._keys.values())
        return not waiting or time.monotonic() - self._since_s > PATIENCE_S

    def _state(self) -> ResourceState:
        held: dict[str, Held] = {f"{Kind.RUN_STORE} {self._store.ref}": Held(self._store, Origin(RUN_STORE_VARIABLE))}
        findings: list[Located] = []
        digests: dict[Ref, tuple[Digest, ...]] = {}
        keyless: dict[Ref, str] = {}
        for seen in self._api.objects.values():
            self._hold(seen, held, findings)
        for _, watch in sorted(self._keys.items()):
            for key in watch.objects.values():
                if key is None:
                    continue
                self._hold(key, held, findings)
                if key.keys:
                    digests[key.ref] = key.keys
                elif key.identity in held:
                    keyless[key.ref] = "its digest does not stand in its status yet: the operator writes it there"
        self._good = held
        sources = tuple(
            Source(kind=SourceKind.API_KEYS, namespace=namespace, resource_version=str(watch.resource_version))
            for namespace, watch in sorted(self._keys.items())
            if watch.listed
        )
        admitted = tuple(each for seen in self._api.objects.values() for each in seen.namespaces)
        return ResourceState(held, tuple(findings), digests, keyless, files=len(held), sources=sources, admitted=admitted)

    def _hold(self, seen: Seen, held: dict[str, Held], findings: list[Located]) -> None:
        last = seen.held if seen.held is not None else self._good.get(seen.identity)
        findings += seen.findings
        if last is not None:
            held[seen.identity] = last

    def _mounted(self, state: ResourceState) -> ResourceState:
        """With what mounted files say: queries of ConfigMaps, and whether a Secret is another. Blocking."""
        findings, sources = list(state.findings), list(state.sources)
        queries: dict[Ref, tuple[FileQuery, ...]] = {}
        for ref, api in state.query_apis.items():
            configs: dict[Ref, tuple[Config, Place]] = {}
            for source in api.spec.queries_from:
                config = self._configs.read(Ref(ref.namespace, source.config_map_ref.name))
                if config is not None:
                    configs[config.ref] = (config, Place())
                    version = config_fingerprint(config.files)
                    sources.append(Source(kind=SourceKind.CONFIG, name=str(config.ref), resource_version=version))
            if api.spec.queries_from:
                queries[ref], found = self._query_files.of(api, configs)
                findings += found
        secrets = self._vault.fingerprint(state.query_apis.values(), ())
        return replace(state, findings=tuple(findings), sources=tuple(sources), queries=queries, secrets=secrets)

    def _tell(self) -> None:
        """Says once when a watch can't read, and once when it can again."""
        watches: dict[str, ListWatch[Any]] = {f"QueryAPI {self._wanted}": self._api}
        watches |= {f"ApiKeys {namespace}": watch for namespace, watch in self._keys.items()}
        for what, watch in watches.items():
            told = self._told.get(what)
            if watch.problem is not None and watch.problem is not told:
                self._told[what] = watch.problem
                self._observe(observation(Event.SOURCE_AWAY, what=what, reason=watch.problem.value))
            elif watch.problem is None and told is not None:
                del self._told[what]
                self._observe(observation(Event.SOURCE_BACK, what=what))
        self._told = {what: told for what, told in self._told.items() if what in watches}
