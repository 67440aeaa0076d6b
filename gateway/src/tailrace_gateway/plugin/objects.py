"""What `kubectl tailrace` knows of a cluster: objects as JSON to frozen values, and what a pod's `/status` says. Pure.

Lenient: an object of a newer version, or one that is wrong, is shown as far as it can be read.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind
from tailrace_contract.status import ApiKeyStatus, Condition, QueryAPIStatus, RunStoreStatus, Status

from tailrace_gateway.plugin.kubectl import Object

S = TypeVar("S", bound=Status)


@dataclass(frozen=True, slots=True)
class ApiObject:
    """A QueryAPI."""

    ref: Ref
    uid: str
    generation: int
    store: str
    """Name of its RunStore."""
    document: Object = field(repr=False)
    status: QueryAPIStatus = field(default=QueryAPIStatus())


@dataclass(frozen=True, slots=True)
class KeyObject:
    """An ApiKey."""

    ref: Ref
    api: Ref
    role: str
    resource_version: str
    secret: tuple[str, str] | None
    """Name of the Secret and the key in it that hold the text."""
    document: Object = field(repr=False)
    status: ApiKeyStatus = field(default=ApiKeyStatus())


@dataclass(frozen=True, slots=True)
class StoreObject:
    """A RunStore."""

    ref: Ref
    backend: str
    document: Object = field(repr=False)
    status: RunStoreStatus = field(default=RunStoreStatus())


@dataclass(frozen=True, slots=True)
class Objects:
    """Everything of our kinds that was read, each by namespace and name."""

    apis: tuple[ApiObject, ...] = ()
    keys: tuple[KeyObject, ...] = ()
    stores: tuple[StoreObject, ...] = ()

    def keys_of(self, api: Ref) -> list[KeyObject]:
        """Those that name an API."""
        return [key for key in self.keys if key.api == api]


@dataclass(frozen=True, slots=True)
class PodObject:
    """A pod of an API."""

    name: str
    api: Ref
    uid: str
    """Of the QueryAPI that it was made for."""
    ready: bool
    going: bool
    """Being deleted."""
    why: str
    """Its phase, or why a container waits."""


class Seen(BaseModel):
    """Base of what a pod says: fields that are not known here are left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class SourceSeen(Seen):
    """What the pod has acknowledged of one kind."""

    kind: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""


class SnapshotSeen(Seen):
    """The plan in force."""

    version: int
    age_seconds: int
    queries: int
    keys: int
    refused: int
    sources: tuple[SourceSeen, ...] = ()


class RunsSeen(Seen):
    """Runs that are not in the store yet."""

    waiting: int = 0
    failing: bool = False


class StoppedSeen(Seen):
    """A query whose callers don't share statements any more."""

    name: str
    reason: str = ""


class QueriesSeen(Seen):
    """What became of the queries."""

    stopped: tuple[StoppedSeen, ...] = ()


class GatewaySeen(Seen):
    """The gateway's report."""

    queries: Annotated[QueriesSeen, Field(default_factory=QueriesSeen)]


class PodStatus(Seen):
    """The data plane's `/status`."""

    version: str
    started: str
    draining: bool = False
    gateway_up: bool
    gateway: GatewaySeen | None = None
    snapshot: SnapshotSeen | None = None
    runs: Annotated[RunsSeen, Field(default_factory=RunsSeen)]


def objects(items: Iterable[Object]) -> Objects:
    """Our kinds among these; others are left out."""
    apis, keys, stores = list[ApiObject](), list[KeyObject](), list[StoreObject]()
    for item in items:
        metadata, spec = _map(item, "metadata"), _map(item, "spec")
        ref = Ref(_text(metadata, "namespace"), _text(metadata, "name"))
        match item.get("kind"):
            case Kind.QUERY_API:
                generation, store = metadata.get("generation"), _text(_map(spec, "runStoreRef"), "name")
                uid = _text(metadata, "uid")
                apis.append(
                    ApiObject(ref, uid, generation if isinstance(generation, int) else 0, store, item, _status(item, QueryAPIStatus))
                )
            case Kind.API_KEY:
                names = _map(spec, "queryApiRef")
                api = Ref(_text(names, "namespace") or ref.namespace, _text(names, "name"))
                version = _text(metadata, "resourceVersion")
                keys.append(KeyObject(ref, api, _text(spec, "role"), version, _secret(spec), item, _status(item, ApiKeyStatus)))
            case Kind.RUN_STORE:
                backend = next((name for name in ("postgres", "embedded") if name in spec), "")
                stores.append(StoreObject(ref, backend, item, _status(item, RunStoreStatus)))
    order: Callable[[ApiObject | KeyObject | StoreObject], Ref] = lambda each: each.ref  # noqa: E731
    return Objects(tuple(sorted(apis, key=order)), tuple(sorted(keys, key=order)), tuple(sorted(stores, key=order)))


def pods(items: Iterable[Object]) -> list[PodObject]:
    """Pods with our labels, by name."""
    found = []
    for item in items:
        metadata, status = _map(item, "metadata"), _map(item, "status")
        labels = _map(metadata, "labels")
        conditions = status.get("conditions")
        ready = any(
            isinstance(each, dict) and each.get("type") == "Ready" and each.get("status") == "True"
            for each in (conditions if isinstance(conditions, list) else [])
        )
        found.append(
            PodObject(
                _text(metadata, "name"),
                Ref(_text(metadata, "namespace"), _text(labels, "tailrace.dev/queryapi")),
                _text(labels, "tailrace.dev/queryapi-uid"),
                ready,
                bool(metadata.get("deletionTimestamp")),
                _why(status),
            )
        )
    return sorted(found, key=lambda pod: (pod.api, pod.name))


def pod_status(text: str | bytes) -> PodStatus | None:
    """What a pod said; None when it is not that."""
    try:
        return PodStatus.model_validate_json(text)
    except ValidationError:
        return None


def condition(status: Status, kind: str) -> Condition | None:
    """One condition, if it is there."""
    return next((each for each in status.conditions if each.type == kind), None)


def _why(status: Object) -> str:
    containers = status.get("containerStatuses")
    for each in containers if isinstance(containers, list) else []:
        if isinstance(each, dict) and (reason := _text(_map(_map(each, "state"), "waiting"), "reason")):
            return reason
    return _text(status, "phase")


def _secret(spec: Object) -> tuple[str, str] | None:
    if name := _text(spec, "secretName"):
        return name, "key"
    ref = _map(_map(spec, "keyFrom"), "secretKeyRef")
    name, key = _text(ref, "name"), _text(ref, "key")
    return (name, key) if name and key else None


def _status(item: Object, model: type[S]) -> S:
    try:
        return model.model_validate_json(json.dumps(item.get("status") or {}))
    except ValidationError:
        return model()


def _map(value: Object, name: str) -> Object:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Object, name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""
