"""Brings the cluster in line with one QueryAPI: read everything, decide, write, ask the pods, say so. IO: the API server and the pods.

    GET live objects → render → diff → writes in order → RoleBindings elsewhere → status.namespaces → prune → status

Safe to end after any write. A namespace is named in the status only after its RoleBinding is there, and the RoleBinding goes only after
the namespace no longer is: gateways read both, and either alone must admit nobody.
"""

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.status import AdmittedNamespace, QueryAPIStatus

from tailrace_operator import observed, problems, revocation
from tailrace_operator.acknowledgement import Deletions, reports_of
from tailrace_operator.cluster import Cluster
from tailrace_operator.conditions import Type, is_changed, read_status, status_body
from tailrace_operator.contests import Contests
from tailrace_operator.diff import Action, Apply, Create, Prune, diff, is_ours, strangers
from tailrace_operator.engine import Engine
from tailrace_operator.errors import ClusterError, Conflict, Forbidden, Foreign, NotFound
from tailrace_operator.manifest import (
    DEPLOYMENT,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    QUERY_API_LABEL,
    ROLE_BINDING,
    SECRET,
    Manifest,
    Object,
    ObjectRef,
    controller_uid,
    is_going,
    is_paused,
    ref_of,
    uid_of,
)
from tailrace_operator.observe import Observer
from tailrace_operator.pods import Pods
from tailrace_operator.problems import Problem
from tailrace_operator.queue import Done, Failed, Outcome
from tailrace_operator.references import of_query_api
from tailrace_operator.render import Facts, Installation, render
from tailrace_operator.render.deployment import remembered_run_store
from tailrace_operator.render.facts import fingerprint, needs_one_pod
from tailrace_operator.render.names import gateway_name, metadata
from tailrace_operator.reports import stopped
from tailrace_operator.status import Observed, query_api_status
from tailrace_operator.wakeups import Key
from tailrace_operator.writing import Writer, target

MISSING_S = 10.0
"""Between two looks while a Secret, ConfigMap or RunStore is missing or of no use: Secrets of users are not watched."""

BLOCKED_S = 10.0
"""Between two looks while a stranger's object is in the way, or a write is refused for good: neither is watched."""

WAITING_S = 30.0
"""Between two looks while pods are waited for. Their events and answers come sooner; this is for one that was lost."""

CONTESTED = "Contested"

NOT_ADMITTED = "NamespaceNotAdmitted"
"""Reason of the Event that tells why a namespace that allowKeysFrom names is not admitted."""

COALESCING_STOPPED = "CoalescingStopped"
"""Reason of the Event that tells that a data plane gave up the batches of a query."""

SECRET_KEY = "secret"
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be, and what speaks against it."""

    api: QueryAPI | None
    manifests: tuple[Manifest, ...] | None
    """None: nothing can be decided now; what is there stays."""
    problems: tuple[Problem, ...]
    configs: dict[str, str]
    is_missing: bool
    """Whether something that nobody announces is waited for."""


class QueryAPIs:
    """Reconciles QueryAPIs."""

    def __init__(
        self,
        cluster: Cluster,
        engine: Engine,
        pods: Pods,
        deletions: Deletions,
        installation: Installation,
        watched: tuple[str, ...],
        observer: Observer,
    ) -> None:
        self._cluster = cluster
        self._engine = engine
        self._pods = pods
        self._deletions = deletions
        self._installation = installation
        self._watched = watched
        self._observer = observer
        self._contests = Contests()

    async def reconcile(self, key: Key, live: Object | None) -> Outcome:
        """One QueryAPI. Errors of reads are raised; refused writes are told in the status and tried again."""
        if live is None:
            await self._release(key.ref)
            return Done()
        if is_going(live):
            return Done()
        previous = read_status(QueryAPIStatus, live)
        admitted = await observed.admitted_of(self._cluster, live, self._watched)
        elsewhere = bool(admitted or previous.namespaces or (live.get("spec") or {}).get("allowKeysFrom"))
        owned = await observed.owned_of(self._cluster, live, elsewhere=elsewhere, watched=self._watched)
        paused = is_paused(live)
        writer = Writer(self._cluster, self._observer, str(key), owned)
        found, elsewhere_found = list[Problem](), list[Problem]()
        error: Exception | None = None
        later: list[Action] = []
        is_applied = False
        wanted = await self._wanted(live, admitted, owned, paused=paused)
        try:
            if wanted.manifests is not None:
                owned.update(await observed.named_of(self._cluster, wanted.manifests, owned))
                taken = strangers(wanted.manifests, tuple(owned.values()), uid_of(live), key.namespace)
                elsewhere_found += (problems.foreign(Foreign(str(ref))) for ref in taken)
                mine = tuple(each for each in wanted.manifests if ref_of(each) not in taken)
                differing = diff(mine, tuple(owned.values()), uid_of(live), key.namespace)
                is_applied = not any(
                    isinstance(action, Apply | Create) and target(action).namespace == key.namespace for action in differing
                )
                actions = self._peaceful(differing, int(live["metadata"]["generation"]), key.namespace, paused, found, elsewhere_found)
                if not paused:
                    later = [action for action in actions if isinstance(action, Prune) and target(action).namespace != key.namespace]
                    await self._write(writer, [action for action in actions if action not in later], key.namespace, elsewhere_found)
                    is_applied = not any(each.reason == CONTESTED for each in found)
        except (ClusterError, Foreign) as refused:
            if isinstance(refused, Conflict) or (isinstance(refused, Forbidden) and refused.is_terminating):
                raise  # Somebody was faster, or everything here goes: not worth a word in the status.
            error = refused
            found.append(problems.foreign(refused) if isinstance(refused, Foreign) else problems.write_failed(refused))
        bound = {ref.namespace for ref, each in owned.items() if ref.kind == ROLE_BINDING and is_ours(each, uid_of(live), key.namespace)}
        namespaces = tuple(each for each in admitted if each.name in bound)
        pods, states = await self._pods.of(key.ref, uid_of(live))
        revoked = revocation.of(uid_of(live), key.namespace, previous, self._deletions.of(key.ref), states)
        looks_at = Observed(
            deployment=owned.get(ObjectRef(DEPLOYMENT, key.namespace, key.name)),
            pods=pods,
            reports=reports_of(states),
            problems=(*wanted.problems, *found),
            is_applied=is_applied,
            is_paused=paused,
            configs=wanted.configs,
            namespaces=namespaces,
            revocation=revoked.entries,
        )
        status = query_api_status(live, looks_at, previous, datetime.now(UTC))
        await self._say(live, status)
        for name in revoked.completed:
            await self._cluster.event(live, "KeyRevoked", f"ApiKey {name} was deleted: no pod serves it any more")
        for query, why in stopped(looks_at.reports.values()):
            message = f"callers of query {query} no longer share statements on every pod ({why}); each call has its own"
            await self._cluster.event(live, COALESCING_STOPPED, message, is_warning=True)
        # Keys that wait for a first pod look only now and then by themselves.
        if namespaces != previous.namespaces or (_has_no_pod(previous) and not _has_no_pod(status)):
            self._engine.wake_keys(key.ref)
        elif status.loaded_by is not None and any(each.type == Type.READY and each.status == "True" for each in status.conditions):
            self._engine.wake_keys_behind(key.ref, status.loaded_by)
        for action in later:
            await self._elsewhere(writer, action, elsewhere_found)
        for problem in elsewhere_found:
            await self._cluster.event(live, NOT_ADMITTED, problem.message, is_warning=True)
        is_waiting = revoked.is_waiting or any(each.type == Type.RECONCILING for each in status.conditions)
        self._pods.watch(key.ref, pods, states, is_waiting=is_waiting)
        return _outcome(error, wanted, [*found, *elsewhere_found], is_waiting=is_waiting)

    def _peaceful(
        self, actions: Sequence[Action], generation: int, home: str, paused: bool, found: list[Problem], elsewhere: list[Problem]
    ) -> list[Action]:
        """The actions without applies to objects that somebody else has just changed back several times."""
        now, peaceful = asyncio.get_running_loop().time(), list[Action]()
        for action in actions:
            ref = target(action)
            if isinstance(action, Apply) and not paused:
                if self._contests.wait_s(ref, generation, now) > 0:
                    text = f"{ref}: somebody else keeps changing {action.reason}; it is put back at longer and longer intervals"
                    (found if ref.namespace == home else elsewhere).append(Problem(Type.PROGRAMMED, CONTESTED, text, False))
                    continue
                self._contests.applied(ref, generation, now)
            peaceful.append(action)
        return peaceful

    async def _wanted(
        self, live: Object, admitted: Sequence[AdmittedNamespace], owned: dict[ObjectRef, Object], *, paused: bool
    ) -> _Wanted:
        api = observed.read_query_api(live)
        if not isinstance(api, QueryAPI):
            return _Wanted(None, None, (problems.invalid_spec(api),), {}, False)
        namespace, store_name = api.metadata.namespace, api.spec.run_store_ref.name
        store = await observed.store_of(self._cluster, namespace, store_name)
        found = list[Problem]()
        if store.spec is None:
            found.append(problems.run_store_invalid(store_name) if store.is_there else problems.run_store_missing(store_name))
        references = of_query_api(api, store.spec)
        found += problems.of_secrets(references, await observed.secrets_of(self._cluster, namespace, references.secrets))
        configs = await observed.configs_of(self._cluster, namespace, references.config_maps)
        found += problems.config_maps_missing(name for name, mark in configs.items() if mark is None)
        is_missing = any(each.type == Type.RESOLVED_REFS for each in found)
        marks = {f"{namespace}/{name}": mark for name, mark in configs.items() if mark is not None}
        deployment = owned.get(ObjectRef(DEPLOYMENT, namespace, api.metadata.name))
        run_store = store.spec or (remembered_run_store(deployment, store_name) if deployment is not None else None)
        if run_store is None:
            return _Wanted(api, None, tuple(found), marks, is_missing)
        if needs_one_pod(api, run_store):
            found.append(problems.embedded_needs_one_pod(store_name, api.spec.replicas))
            return _Wanted(api, None, tuple(found), marks, is_missing)
        try:
            secret = await self._secret(api, uid_of(live), paused=paused)
        except Foreign as error:
            return _Wanted(api, None, (*found, problems.foreign(error)), marks, True)
        if secret is None:
            return _Wanted(api, None, tuple(found), marks, is_missing)
        facts = Facts(uid_of(live), run_store, fingerprint(secret), tuple(sorted({each.name for each in admitted})))
        return _Wanted(api, render(api, facts, self._installation), tuple(found), marks, is_missing)

    async def _secret(self, api: QueryAPI, uid: str, *, paused: bool) -> bytes | None:
        """The gateway's own secret, minted when it is not there. None: it is not, and nothing may be written."""
        ref = ObjectRef(SECRET, api.metadata.namespace, gateway_name(api))
        live = await self._cluster.get(ref)
        if live is not None and not is_ours(live, uid, ref.namespace):
            raise Foreign(str(ref))
        value = (observed.data_of(live) or {}).get(SECRET_KEY)
        if value is not None and _is_hex(value):
            return value
        if paused or (live is not None and is_going(live)):
            return None
        value = secrets.token_hex(SECRET_BYTES).encode()
        manifest = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": metadata(api, uid, ref.name),
            "type": "Opaque",
            "data": {SECRET_KEY: base64.b64encode(value).decode()},
        }
        writer = Writer(self._cluster, self._observer, f"QueryAPI {api.ref}", {})
        await writer.carry_out(Create(manifest) if live is None else Apply(manifest, uid_of(live), "its data are damaged"))
        return value

    async def _write(self, writer: Writer, actions: Sequence[Action], home: str, found: list[Problem]) -> None:
        for action in actions:
            if target(action).namespace == home:
                await writer.carry_out(action)
            else:
                await self._elsewhere(writer, action, found)

    async def _elsewhere(self, writer: Writer, action: Action, found: list[Problem]) -> None:
        """A write in another namespace: whatever is wrong there must not hold up the QueryAPI, and leaves that namespace not admitted.

        Who rules there (a quota, an object of that name) is not trusted by the owner, so it is told as an Event and changes no condition.
        """
        ref = target(action)
        try:
            await writer.carry_out(action)
        except NotFound:
            writer.live.pop(ref, None)
        except Foreign as error:
            writer.live.pop(ref, None)
            found.append(problems.foreign(error))
        except ClusterError as error:
            if isinstance(action, Create | Apply):
                writer.live.pop(ref, None)
            if not (isinstance(error, Forbidden) and error.is_terminating):
                problem = problems.write_failed(error)
                found.append(replace(problem, message=f"namespace {ref.namespace}: {problem.message}"))

    async def _say(self, live: Object, status: QueryAPIStatus) -> None:
        body = status_body(status)
        if is_changed(live, body):
            await self._cluster.patch_status(live, body)

    async def _release(self, api: Ref) -> None:
        """Removes the RoleBindings that a deleted QueryAPI had in other namespaces; the garbage collector takes the rest."""
        labels = {MANAGED_BY_LABEL: FIELD_MANAGER, QUERY_API_LABEL: api.name}
        for namespace in self._watched or (None,):
            for binding in (await self._cluster.list(ROLE_BINDING, namespace, labels)).items:
                subjects = binding.get("subjects") or ()
                is_its = any(each.get("namespace") == api.namespace for each in subjects)
                if is_its and controller_uid(binding) is None and ref_of(binding).namespace != api.namespace:
                    await self._cluster.delete(ref_of(binding), uid_of(binding))


def _has_no_pod(status: QueryAPIStatus) -> bool:
    """Whether no pod was ready."""
    return status.loaded_by is None or status.loaded_by.endswith("/0")


def _is_hex(value: bytes) -> bool:
    return len(value) == 2 * SECRET_BYTES and all(byte in b"0123456789abcdef" for byte in value)


def _outcome(error: Exception | None, wanted: _Wanted, found: Sequence[Problem], *, is_waiting: bool) -> Outcome:
    if isinstance(error, ClusterError) and error.is_retryable and not isinstance(error, Forbidden):
        return Failed()
    if error is not None or found:
        return Done(BLOCKED_S)
    if wanted.is_missing:
        return Done(MISSING_S)
    return Done(WAITING_S if is_waiting else None)
