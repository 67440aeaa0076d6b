"""Which resources an event may concern: what to look at again. Pure state, no IO; decides nothing else.

What is kept here comes from events and lists and may be stale or incomplete. It only says whom to wake: every decision reads the API
server anew, and each re-list repairs it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind as Custom

from tailrace_operator.manifest import (
    CUSTOM,
    NAMESPACE,
    POD,
    QUERY_API_LABEL,
    QUERY_API_UID_LABEL,
    ROLE_BINDING,
    Kind,
    Object,
    labels_of,
    uid_of,
)

_BY_KIND = {kind: custom for custom, kind in CUSTOM.items()}
_GROUP = {custom.value: custom for custom in Custom}


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One resource of ours: what the queue works on."""

    kind: Custom
    namespace: str
    name: str

    @property
    def ref(self) -> Ref:
        """Namespace and name."""
        return Ref(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """What is kept of one resource."""

    uid: str
    fingerprint: object
    run_store: Ref | None = None
    """Of a QueryAPI."""
    api: Ref | None = None
    """Of an ApiKey."""
    loaded_by: str | None = None
    """What an ApiKey's status says."""
    admits_others: bool = False
    """Whether a QueryAPI depends on the labels of namespaces."""


@dataclass(slots=True)
class Wakeups:
    """Says for each event whom to wake."""

    _known: dict[Key, Resource] = field(default_factory=dict)
    _labels: dict[str, object] = field(default_factory=dict)

    def seen(self, kind: Kind, change: str | None, body: Object) -> tuple[Key, ...]:
        """Whom an event wakes. `change`: ADDED, MODIFIED, DELETED, or None for an object of a list."""
        if kind in _BY_KIND:
            return self._resource(_BY_KIND[kind], change, body)
        if kind == NAMESPACE:
            return self._namespace(change, body)
        return self._child(kind, body)

    def relisted(self, bodies: Mapping[Custom, Iterable[Object]]) -> tuple[Key, ...]:
        """Takes whole lists instead of what was known; everything in them is woken, and what they no longer have too."""
        before = set(self._known)
        self._known = {}
        for custom, items in bodies.items():
            for body in items:
                self._known[_key(custom, body)] = _resource(custom, body)
        return tuple(sorted(before | set(self._known)))

    def known(self) -> dict[Key, Ref | None]:
        """All resources that are known, each with the QueryAPI that it names (an ApiKey does)."""
        return {key: known.api for key, known in self._known.items()}

    def keys_of(self, api: Ref) -> tuple[Key, ...]:
        """The ApiKeys that name a QueryAPI."""
        return tuple(sorted(key for key, known in self._known.items() if known.api == api))

    def keys_behind(self, api: Ref, loaded_by: str) -> tuple[Key, ...]:
        """Those whose status says another count of pods than the QueryAPI's does."""
        return tuple(key for key in self.keys_of(api) if self._known[key].loaded_by not in (None, loaded_by))

    def apis_of(self, run_store: Ref) -> tuple[Key, ...]:
        """The QueryAPIs that name a RunStore."""
        return tuple(sorted(key for key, known in self._known.items() if known.run_store == run_store))

    def api_of(self, key: Key) -> Ref | None:
        """The QueryAPI that an ApiKey names."""
        known = self._known.get(key)
        return known.api if known is not None else None

    def _resource(self, custom: Custom, change: str | None, body: Object) -> tuple[Key, ...]:
        key = _key(custom, body)
        before, after = self._known.get(key), _resource(custom, body)
        if change == "DELETED":
            self._known.pop(key, None)
        else:
            self._known[key] = after
            if change == "MODIFIED" and before is not None and before.fingerprint == after.fingerprint:
                return ()  # Nothing but its status was written, and that by us.
        if custom is Custom.QUERY_API:
            return (key, *self.keys_of(key.ref))
        if custom is Custom.RUN_STORE:
            return (key, *self.apis_of(key.ref))
        gone = (Key(Custom.QUERY_API, after.api.namespace, after.api.name),) if change == "DELETED" and after.api else ()
        return (key, *gone)

    def _namespace(self, change: str | None, body: Object) -> tuple[Key, ...]:
        name, labels = str(body["metadata"]["name"]), tuple(sorted(labels_of(body).items()))
        if change == "DELETED":
            self._labels.pop(name, None)
        elif self._labels.get(name) == labels:
            return ()
        else:
            self._labels[name] = labels
        return tuple(sorted(key for key, known in self._known.items() if known.admits_others))

    def _child(self, kind: Kind, body: Object) -> tuple[Key, ...]:
        namespace = str(body["metadata"].get("namespace", ""))
        if kind == POD:
            name = labels_of(body).get(QUERY_API_LABEL)
            return (Key(Custom.QUERY_API, namespace, name),) if name else ()
        for owner in body["metadata"].get("ownerReferences") or ():
            custom = _GROUP.get(owner.get("kind", ""))
            if custom is not None and owner.get("controller") and str(owner.get("apiVersion", "")).startswith("tailrace.dev/"):
                return (Key(custom, namespace, str(owner["name"])),)
        if kind == ROLE_BINDING:
            uid = labels_of(body).get(QUERY_API_UID_LABEL)
            return tuple(key for key, known in self._known.items() if known.uid == uid)
        return ()


def _key(custom: Custom, body: Object) -> Key:
    return Key(custom, str(body["metadata"]["namespace"]), str(body["metadata"]["name"]))


def _resource(custom: Custom, body: Object) -> Resource:
    """What of a body matters here. Specs are not trusted to have their form: the CRD may be older than this program."""
    metadata = body["metadata"]
    fingerprint = (
        uid_of(body),
        metadata.get("generation"),
        tuple(sorted(labels_of(body).items())),
        tuple(sorted((metadata.get("annotations") or {}).items())),
        metadata.get("deletionTimestamp"),
    )
    spec = body.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    if custom is Custom.QUERY_API:
        store = _named(spec.get("runStoreRef"), metadata["namespace"])
        return Resource(uid_of(body), fingerprint, run_store=store, admits_others=bool(spec.get("allowKeysFrom")))
    if custom is Custom.API_KEY:
        status = body.get("status")
        said = status.get("loadedBy") if isinstance(status, dict) else None
        api = _named(spec.get("queryApiRef"), metadata["namespace"])
        return Resource(uid_of(body), fingerprint, api=api, loaded_by=said if isinstance(said, str) else None)
    return Resource(uid_of(body), fingerprint)


def _named(reference: object, namespace: str) -> Ref | None:
    if not isinstance(reference, dict) or not isinstance(reference.get("name"), str):
        return None
    elsewhere = reference.get("namespace")
    return Ref(elsewhere if isinstance(elsewhere, str) and elsewhere else namespace, reference["name"])
