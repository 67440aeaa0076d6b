"""Turns events into work and work into outcomes: the one place where queue, wake-ups, reconcilers and pods meet. IO: through them.

Errors of the API server and of reconcilers end here, as a log line and a retry. Nothing is remembered that a restart would miss: what
is kept in memory only saves calls or wakes somebody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind as Custom

from tailrace_operator.acknowledgement import Deletion, Deletions
from tailrace_operator.cluster import Cluster
from tailrace_operator.errors import ClusterError, Conflict, Forbidden, OperatorError
from tailrace_operator.health import Health
from tailrace_operator.manifest import (
    API_KEY,
    CUSTOM,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    QUERY_API,
    QUERY_API_UID_LABEL,
    ROLE_BINDING,
    Kind,
    Object,
    ObjectRef,
    controller_uid,
    labels_of,
    ref_of,
    uid_of,
    version_of,
)
from tailrace_operator.observe import Event, Observer, observation
from tailrace_operator.pods import Pods
from tailrace_operator.queue import Done, Failed, Outcome, Queue
from tailrace_operator.wakeups import Key, Wakeups

RELIST_S = 600.0
"""Between two lists of everything."""

SPREAD_S = 60.0
"""What a list wakes without any need is spread over this time."""

RELIST_RETRY_S = 15.0
"""The same while listing fails."""

RACES = 3
"""Conflicts in a row that are nothing but others being faster."""

REVOCATIONS = 20
"""Deleted keys that are remembered per QueryAPI."""


Reconcile = Callable[[Key, Object | None], Awaitable[Outcome]]
"""Brings the world in line with one resource; None: it is gone."""


class Engine:
    """One operator, leading."""

    def __init__(
        self,
        cluster: Cluster,
        queue: Queue[Key],
        wakeups: Wakeups,
        pods: Pods,
        deletions: Deletions,
        observer: Observer,
        health: Health,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._wakeups = wakeups
        self._pods = pods
        self._deletions = deletions
        self._observer = observer
        self._health = health
        self._namespaces = namespaces
        self.reconcilers: dict[Custom, Reconcile] = {}

    def deliver(self, kind: Kind, change: str | None, body: Object) -> None:
        """Takes an event."""
        if kind == API_KEY and change == "DELETED":
            self._note_deletion(body)
        for key in self._wakeups.seen(kind, change, body):
            self._queue.add(key)

    def pods_changed(self, api: Ref, is_awaited: bool) -> None:
        """Pods say something else: their API is looked at again, and its keys if any waits for it."""
        self._queue.add(Key(Custom.QUERY_API, api.namespace, api.name))
        if is_awaited:
            self.wake_keys(api)

    def wake_keys(self, api: Ref) -> None:
        """Looks at the ApiKeys of a QueryAPI again."""
        for key in self._wakeups.keys_of(api):
            self._queue.add(key)

    def wake_keys_behind(self, api: Ref, loaded_by: str) -> None:
        """Looks again at the ApiKeys that tell another count of pods: some have come or gone since, which none of them waits for."""
        for key in self._wakeups.keys_behind(api, loaded_by):
            self._queue.add(key)

    async def work(self, key: Key) -> Outcome:
        """Reconciles one resource; tells how it went."""
        began = asyncio.get_running_loop().time()
        try:
            live = await self._cluster.get(ObjectRef(CUSTOM[key.kind], key.namespace, key.name))
            if live is None:
                self._forget(key)
            reconcile = self.reconcilers.get(key.kind)
            outcome = await reconcile(key, live) if reconcile is not None else Done()
        except Forbidden as error:
            if error.is_terminating:
                return Done()  # Its namespace goes, and everything in it.
            return self._failed(key, error.code, error.message)
        except Conflict as error:
            if self._queue.failures(key) >= RACES:
                return self._failed(key, error.code, error.message)
            names = {"kind": key.kind, "namespace": key.namespace, "name": key.name}
            self._observer(observation(Event.RECONCILE_RACED, detail=error.message, **names))
            return Failed()
        except OperatorError as error:
            return self._failed(key, error.code, error.message)
        except Exception as error:
            # A defect of ours in one resource must not stop the others. Only the type is told: a text might quote the resource.
            return self._failed(key, "internal", f"{type(error).__name__} at {place_of(error)}")
        again = outcome.again_s if isinstance(outcome, Done) else None
        self._observer(
            observation(
                Event.RECONCILED,
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                again_s=again,
                duration_s=asyncio.get_running_loop().time() - began,
            )
        )
        return outcome

    async def relist(self, spread_s: float = 0.0) -> None:
        """Lists everything once: wakes all, evenly over `spread_s`, and removes what a deleted QueryAPI left in other namespaces."""
        listings = {custom: await self._list(kind) for custom, kind in CUSTOM.items()}
        bodies = {custom: items for custom, (items, _) in listings.items()}
        before = self._wakeups.known()
        woken = self._wakeups.relisted(bodies)
        for number, key in enumerate(woken):
            self._queue.add(key, spread_s * number / len(woken))
        for key in before.keys() - self._wakeups.known().keys():
            await self._vanished(key, before[key], listings[key.kind][1])
        await self._sweep({uid_of(body) for body in bodies[Custom.QUERY_API]})
        self._health.last_list = asyncio.get_running_loop().time()
        self._observer(observation(Event.RELISTED, resources=sum(len(items) for items in bodies.values())))

    async def listed(self, spread_s: float = 0.0, retry_s: float = RELIST_RETRY_S) -> None:
        """Returns when everything was listed: the API server may be away, and the CRDs not there yet."""
        while True:
            try:
                return await self.relist(spread_s)
            except ClusterError as error:
                self._observer(observation(Event.RELIST_FAILED, reason=error.code, detail=error.message))
                await asyncio.sleep(retry_s)

    async def keep_relisting(self, period_s: float = RELIST_S) -> None:
        """Lists everything now and then until cancelled. The first time is not now: that is when watching begins."""
        while True:
            await asyncio.sleep(period_s)
            await self.listed(SPREAD_S)

    async def _list(self, kind: Kind, labels: Mapping[str, str] | None = None) -> tuple[tuple[Object, ...], int]:
        """All of them that are served, and a resourceVersion that the list is not older than."""
        found: list[Object] = []
        versions: list[int] = []
        for namespace in self._namespaces or (None,):
            listing = await self._cluster.list(kind, namespace, labels)
            found += listing.items
            versions.append(int(listing.resource_version) if listing.resource_version.isdigit() else 0)
        return tuple(found), max(versions)

    async def _vanished(self, key: Key, api: Ref | None, version: int) -> None:
        """A resource that was known and is not in the list: it was made since, or it was deleted without an event (a gap in a watch)."""
        live = await self._cluster.get(ObjectRef(CUSTOM[key.kind], key.namespace, key.name))
        if live is not None:
            self._wakeups.seen(CUSTOM[key.kind], None, live)
        elif key.kind is Custom.API_KEY and api is not None:
            self._deletions.add(api, Deletion(key.ref, version))
            self._queue.add(Key(Custom.QUERY_API, api.namespace, api.name))

    async def _sweep(self, uids: set[str]) -> None:
        """RoleBindings in other namespaces have no owner whose end would take them along."""
        for binding in (await self._list(ROLE_BINDING, {MANAGED_BY_LABEL: FIELD_MANAGER}))[0]:
            uid = labels_of(binding).get(QUERY_API_UID_LABEL)
            if uid is None or uid in uids or controller_uid(binding) is not None or not self._is_served(binding):
                continue
            # The list of QueryAPIs is older than this one: one that was made in between must not lose its binding.
            if any(uid_of(api) == uid for api in (await self._list(QUERY_API))[0]):
                continue
            ref = ref_of(binding)
            await self._cluster.delete(ref, uid_of(binding))
            self._observer(
                observation(
                    Event.WROTE, action="sweep", kind=ref.kind.kind, namespace=ref.namespace, name=ref.name, reason="its QueryAPI is gone"
                )
            )

    def _is_served(self, binding: Object) -> bool:
        """Whether its QueryAPI is in a namespace that this operator watches: of others' QueryAPIs it can't know whether they are gone."""
        homes = {str(each.get("namespace", "")) for each in binding.get("subjects") or ()}
        return not self._namespaces or (bool(homes) and homes <= set(self._namespaces))

    def _note_deletion(self, body: Object) -> None:
        key = Key(Custom.API_KEY, str(body["metadata"]["namespace"]), str(body["metadata"]["name"]))
        api = self._wakeups.api_of(key)
        if api is not None and version_of(body).isdigit():
            self._deletions.add(api, Deletion(key.ref, int(version_of(body))))

    def _forget(self, key: Key) -> None:
        """It is gone: whoever names it is looked at again."""
        if key.kind is Custom.QUERY_API:
            self._pods.forget(key.ref)
            self._deletions.forget(key.ref)
            self.wake_keys(key.ref)

    def _failed(self, key: Key, reason: str, detail: str) -> Outcome:
        self._observer(
            observation(
                Event.RECONCILE_FAILED,
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                reason=reason,
                detail=detail,
                failures=self._queue.failures(key) + 1,
            )
        )
        return Failed()


def place_of(error: Exception) -> str:
    """Where in our code it came from: `file.py:12`. Its text might quote a resource."""
    trace = error.__traceback__
    place = "?"
    while trace is not None:
        code = trace.tb_frame.f_code
        if "tailrace_" in code.co_filename:
            place = f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
