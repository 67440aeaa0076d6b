"""The API server as the operator sees it: `Cluster`, and `KubernetesCluster` over the kubernetes client. IO: the API server.

Rejects with one of `errors.ClusterError`'s kinds. Every call has a timeout and none is retried here: the queue does that. Watching is
kopf's. Kinds are known beforehand, so nothing is discovered and nothing is cached on disk.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from tailrace_operator.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from tailrace_operator.manifest import (
    EVENT,
    FIELD_MANAGER,
    SCALE_MANAGER,
    SECRET,
    Kind,
    Manifest,
    Object,
    ObjectRef,
    ref_of,
    uid_of,
    version_of,
)
from tailrace_operator.observe import Event, Observer, observation
from tailrace_operator.ownership import applied_fields

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 10.0
PAGE = 500
"""Objects in one answer to a list."""

MESSAGE_LENGTH = 500
"""Characters of the API server's message that are kept."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list gave, and the resourceVersion that it is of."""

    items: tuple[Object, ...]
    resource_version: str


class Cluster(Protocol):
    """Reads and writes objects. Each method raises a `ClusterError`; the ones named are those that callers treat apart."""

    async def get(self, ref: ObjectRef) -> Object | None:
        """The object as it is now, from the store itself and no cache; None when there is none."""

    async def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        """All objects of a kind, in a namespace or everywhere, that carry these labels. A page that went stale begins anew."""

    async def create(self, manifest: Manifest) -> Object:
        """Creates by POST. AlreadyExists when the name is taken: nothing is ever adopted."""

    async def apply(self, manifest: Manifest, uid: str) -> Object:
        """Server-side apply to exactly the object with this UID. Conflict when it is another one (or gone and replaced)."""

    async def take_fields(self, live: Manifest, wanted: Manifest) -> Object:
        """Turns what a POST of ours owns into what an apply of `wanted` owns (see `ownership`).

        Needed once after `create`. Conflict when the object changed since it was read.
        """

    async def patch_scale(self, ref: ObjectRef, uid: str, replicas: int) -> None:
        """Writes the scale subresource of exactly the object with this UID."""

    async def replace(self, live: Manifest) -> Object:
        """PUT of an object as read and changed. Conflict when it changed meanwhile."""

    async def delete(self, ref: ObjectRef, uid: str) -> None:
        """Deletes exactly the object with this UID, what it owns in the background. One that is gone already is no error."""

    async def patch_status(self, live: Manifest, status: Mapping[str, Any], *, unchanged: bool = False) -> Object:
        """Replaces the status that we hold of exactly this object (by UID). `unchanged`: Conflict when it was written since `live` was read."""

    async def event(self, regarding: Manifest, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Publishes an Event on an object. Best effort: a failure is counted and never raised; the same one only once in ten minutes."""


def selector(labels: Mapping[str, str]) -> str:
    """A label selector's text."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def connect(kubeconfig: str | None = None, threads: int = 12) -> DynamicClient:
    """A client from a kubeconfig file, or from the pod's service account (its token is read again when it changes).

    No discovery and no cache: `DynamicClient` is used for its transport alone.
    """
    settings = client.Configuration()
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        config.load_kube_config(config_file=kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]
    settings.retries = 0
    settings.connection_pool_maxsize = threads
    return DynamicClient(client.ApiClient(settings), discoverer=lambda _client, _cache: None)  # type: ignore[no-untyped-call]


class KubernetesCluster:
    """`Cluster` over the real API server. Calls block threads of a pool of their own: `threads` at once."""

    def __init__(self, dynamic: DynamicClient, observer: Observer, *, threads: int = 12, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._dynamic = dynamic
        self._observer = observer
        self._timeout = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="cluster")
        self._published = _Once(600.0)

    async def close(self) -> None:
        """Waits for the calls under way, each of which ends at its timeout: nothing of ours arrives after that."""
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def get(self, ref: ObjectRef) -> Object | None:
        """See `Cluster`."""
        try:
            return await self._call("get", ref.kind, ref.path)
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        """See `Cluster`."""
        for _ in range(3):
            items: list[Object] = []
            following: str | None = None
            try:
                while True:
                    page = await self._call(
                        "list",
                        kind,
                        kind.path(namespace),
                        label_selector=selector(labels) if labels else None,
                        limit=PAGE,
                        _continue=following,
                    )
                    items += ({"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page.get("items") or ())
                    following = page["metadata"].get("continue") or None
                    if following is None:
                        return Listing(tuple(items), str(page["metadata"].get("resourceVersion", "")))
            except ClusterError as error:
                if error.status != 410:
                    raise
        raise Unavailable(f"the list of {kind.plural} kept expiring", 410)

    async def create(self, manifest: Manifest) -> Object:
        """See `Cluster`."""
        ref = ref_of(manifest)
        return await self._call("create", ref.kind, ref.kind.path(ref.namespace or None), body=dict(manifest), field_manager=FIELD_MANAGER)

    async def apply(self, manifest: Manifest, uid: str) -> Object:
        """See `Cluster`."""
        ref = ref_of(manifest)
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        return await self._apply(ref.kind, ref.path, body)

    async def take_fields(self, live: Manifest, wanted: Manifest) -> Object:
        """See `Cluster`."""
        ref = ref_of(live)
        patch = [
            {"op": "replace", "path": "/metadata/managedFields", "value": applied_fields(live, wanted)},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version_of(live)},
        ]
        return await self._call(
            "patch", ref.kind, ref.path, body=patch, content_type="application/json-patch+json", field_manager=FIELD_MANAGER
        )

    async def patch_scale(self, ref: ObjectRef, uid: str, replicas: int) -> None:
        """See `Cluster`."""
        body = {"metadata": {"uid": uid}, "spec": {"replicas": replicas}}
        await self._call(
            "patch",
            ref.kind,
            f"{ref.path}/scale",
            subresource="scale",
            body=body,
            content_type="application/merge-patch+json",
            field_manager=SCALE_MANAGER,
        )

    async def replace(self, live: Manifest) -> Object:
        """See `Cluster`."""
        ref = ref_of(live)
        return await self._call("update", ref.kind, ref.path, body=dict(live), field_manager=FIELD_MANAGER)

    async def delete(self, ref: ObjectRef, uid: str) -> None:
        """See `Cluster`."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("delete", ref.kind, ref.path, body=body)
        except NotFound:
            return

    async def patch_status(self, live: Manifest, status: Mapping[str, Any], *, unchanged: bool = False) -> Object:
        """See `Cluster`."""
        ref = ref_of(live)
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": uid_of(live)}
        if unchanged:
            metadata["resourceVersion"] = version_of(live)
        body = {"apiVersion": ref.kind.api_version, "kind": ref.kind.kind, "metadata": metadata, "status": dict(status)}
        return await self._apply(ref.kind, f"{ref.path}/status", body, "status")

    async def event(self, regarding: Manifest, reason: str, message: str, *, is_warning: bool = False) -> None:
        """See `Cluster`."""
        ref = ref_of(regarding)
        if not self._published.is_new((uid_of(regarding), reason, message), time.monotonic()):
            return
        try:
            await self._call(
                "create", EVENT, EVENT.path(ref.namespace), body=event_body(regarding, reason, message, is_warning, time.time())
            )
        except ClusterError as error:
            self._observer(observation(Event.EVENT_FAILED, kind=ref.kind.kind, reason=error.code))

    async def _apply(self, kind: Kind, path: str, body: Object, subresource: str = "") -> Object:
        return await self._call(
            "apply",
            kind,
            path,
            subresource=subresource,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=FIELD_MANAGER,
            force_conflicts=True,
        )

    async def _call(self, verb: str, kind: Kind, path: str, *, subresource: str = "", **options: Any) -> Object:
        method = {"get": "get", "list": "get", "create": "post", "update": "put", "delete": "delete"}.get(verb, "patch")
        began = time.monotonic()

        def send() -> Object:
            response = self._dynamic.request(method, path, serialize=False, _request_timeout=self._timeout, **options)
            found: Object = json.loads(response.data)
            return found

        outcome = "ok"
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, send)
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError, RuntimeError) as error:
            mapped = translated(error, kind, verb)
            outcome = mapped.code
            raise mapped from None
        finally:
            resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
            self._observer(
                observation(Event.API_CALLED, verb=verb, resource=resource, outcome=outcome, duration_s=time.monotonic() - began)
            )


class _Once:
    """Says of each thing once in `period_s` that it is new. Bounded: what is past its time is forgotten, 4096 at most are known."""

    def __init__(self, period_s: float) -> None:
        self._period = period_s
        self._seen: dict[object, float] = {}

    def is_new(self, thing: object, now: float) -> bool:
        self._seen = {each: since for each, since in self._seen.items() if now - since < self._period}
        if thing in self._seen:
            return False
        if len(self._seen) < 4096:
            self._seen[thing] = now
        return True


def translated(error: Exception, kind: Kind, verb: str) -> ClusterError:
    """The client's error as one of ours. What the server said about a Secret is dropped: it may quote a value."""
    what = f"{verb} {kind.plural}"
    if not isinstance(error, ApiException) or not error.status:
        return Unavailable(f"{what}: the API server did not answer ({type(error).__name__})")
    status = int(error.status)
    try:
        said = json.loads(error.body or "{}")
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or error.reason or "")[:MESSAGE_LENGTH]
    if kind == SECRET and status == 422:
        message = "the API server holds the Secret for wrong"
    text = f"{what}: {message}"
    if status == 404:
        return NotFound(text, status)
    if status == 409:
        return (AlreadyExists if said.get("reason") == "AlreadyExists" else Conflict)(text, status)
    if status in (401, 403):
        causes = (said.get("details") or {}).get("causes") or ()
        return Forbidden(text, status, is_terminating=any(cause.get("reason") == "NamespaceTerminating" for cause in causes))
    if status in (400, 405, 413, 415, 422):
        return Invalid(text, status)
    return Unavailable(text, status)


def event_body(regarding: Manifest, reason: str, message: str, is_warning: bool, now: float) -> Object:
    """An Event of ours on an object. `now`: seconds since 1970."""
    ref = ref_of(regarding)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{ref.name}.", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": ref.kind.api_version,
            "kind": ref.kind.kind,
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": uid_of(regarding),
            "resourceVersion": version_of(regarding),
        },
        "reason": reason,
        "message": message[:1024],
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": "",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
