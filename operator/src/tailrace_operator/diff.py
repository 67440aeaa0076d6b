"""What has to be written so that the live objects are as wanted. Pure; refuses with `Foreign` what belongs to somebody else.

Comparison is by subset: a field that is not wanted and was not applied by us is nobody's business here, so the API server's defaults and other
writers' fields are no drift. Lists that Kubernetes merges by key are compared by that key, in any order; other lists whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace_operator.errors import Foreign
from tailrace_operator.manifest import (
    DEPLOYMENT,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    OWNED,
    QUERY_API_UID_LABEL,
    Kind,
    Manifest,
    ObjectRef,
    controller_uid,
    is_going,
    labels_of,
    ref_of,
    uid_of,
)
from tailrace_operator.ownership import is_posted, unwanted
from tailrace_operator.quantity import same_quantity

MERGED: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "conditions": ("type",),
    "imagePullSecrets": ("name",),
}
"""Lists that the API server merges by key, by the field's name, with the key's fields."""

PORTS: dict[str, tuple[str, ...]] = {"containers": ("containerPort", "protocol"), "spec": ("port", "protocol")}
"""The same for `ports`, by what they stand in: a container's or a Service's. A NetworkPolicy's are one whole list."""

_DEFAULTS = {"protocol": "TCP"}
"""What the API server fills in for a part of a key that was left out."""


@dataclass(frozen=True, slots=True)
class Create:
    """POST it: nothing of this name is there."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Take:
    """Our POST still owns its fields: turn that into ownership by apply, or fields could never be removed."""

    live: Manifest
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply it to the object with this UID. `reason`: the first field that differs."""

    manifest: Manifest
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Write its scale."""

    ref: ObjectRef
    uid: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete it: it is ours and no longer wanted."""

    ref: ObjectRef
    uid: str


Action = Create | Take | Apply | Scale | Prune


def key_of_list(path: Sequence[str]) -> tuple[str, ...] | None:
    """The fields by which entries of the list at this path are told apart; None when it is compared whole."""
    if path and path[-1] == "ports":
        return PORTS.get(path[-2]) if len(path) > 1 and "ingress" not in path and "egress" not in path else None
    return MERGED.get(path[-1]) if path else None


def drift(wanted: Any, live: Any, path: tuple[str, ...] = ()) -> str | None:
    """The place of the first difference that an apply would mend (`spec.template.…`), or None. Values are never part of it."""
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            return None if not wanted and live is None else _place(path)
        for name, value in wanted.items():
            if (found := drift(value, live.get(name), (*path, name))) is not None:
                return found
        return None
    if isinstance(wanted, list | tuple):
        return _list_drift(wanted, live, path)
    if wanted == live and isinstance(wanted, bool) == isinstance(live, bool):
        return None
    if live is None and wanted in (False, 0, "", None):
        return None  # The API server leaves such values out.
    if _is_quantity(path) and same_quantity(wanted, live):
        return None
    return _place(path)


def _list_drift(wanted: Sequence[Any], live: Any, path: tuple[str, ...]) -> str | None:
    if live is None:
        return _place(path) if wanted else None
    if not isinstance(live, list):
        return _place(path)
    keys = key_of_list(path)
    if keys is None:
        if len(wanted) != len(live):
            return _place(path)
        pairs: Iterable[tuple[Any, Any]] = zip(wanted, live, strict=True)
    else:
        known = {_key(item, keys): item for item in live}
        pairs = ((item, known.get(_key(item, keys))) for item in wanted)
    for item, found in pairs:
        if (place := drift(item, found, path)) is not None:
            return place
    return None


def _key(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)


def _is_quantity(path: tuple[str, ...]) -> bool:
    return bool({"limits", "requests", "sizeLimit"} & set(path[-2:]))


def _place(path: tuple[str, ...]) -> str:
    return ".".join(path) or "object"


def applied(manifest: Manifest) -> Manifest:
    """A manifest as it is applied: a Deployment's without replicas, for scale has its own writer."""
    if ref_of(manifest).kind != DEPLOYMENT:
        return manifest
    return {**manifest, "spec": {name: value for name, value in manifest["spec"].items() if name != "replicas"}}


def is_ours(live: Manifest, owner_uid: str, home: str) -> bool:
    """Whether the resource with this UID owns it: as its controller or, in another namespace than `home`, where no owner can be, by label."""
    if live["metadata"].get("namespace") == home:
        return controller_uid(live) == owner_uid
    labels = labels_of(live)
    return controller_uid(live) is None and labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER and labels.get(QUERY_API_UID_LABEL) == owner_uid


def strangers(desired: Sequence[Manifest], live: Sequence[Manifest], owner_uid: str, home: str) -> tuple[ObjectRef, ...]:
    """Wanted names in other namespaces than `home` that belong to somebody else. Whoever rules there may take a name, and must not stop the
    owner's own objects by it: these are left out of what is wanted."""
    there = {ref_of(each): each for each in live}
    refs = (ref for ref in map(ref_of, desired) if ref.namespace != home)
    return tuple(sorted(ref for ref in refs if ref in there and not is_ours(there[ref], owner_uid, home)))


def diff(
    desired: Sequence[Manifest],
    live: Sequence[Manifest],
    owner_uid: str,
    home: str,
    kinds: Sequence[Kind] = OWNED,
) -> tuple[Action, ...]:
    """The writes, in order: create, take and apply in the order of `kinds`, then scale, then prune in the reverse order.

    `live` has every object that is wanted by name or is labelled as the owner's; `home`: the owner's namespace.
    Raises `Foreign` before anything is written when a wanted name is taken by an object that the owner does not control.
    An object that is on its way out is left alone: its name is free at the next look.
    """
    there = {ref_of(each): each for each in live}
    wanted = sorted(desired, key=lambda manifest: (kinds.index(ref_of(manifest).kind), ref_of(manifest)))
    for manifest in wanted:
        found = there.get(ref_of(manifest))
        if found is not None and not is_ours(found, owner_uid, home):
            raise Foreign(str(ref_of(manifest)))
    actions: list[Action] = []
    scales: list[Action] = []
    for manifest in wanted:
        ref = ref_of(manifest)
        found = there.get(ref)
        if found is None:
            actions.append(Create(manifest))
            continue
        if is_going(found):
            continue
        body = applied(manifest)
        if is_posted(found):
            actions.append(Take(found, body))
        if (reason := drift(body, found) or unwanted(found, body)) is not None:
            actions.append(Apply(body, uid_of(found), reason))
        replicas = manifest["spec"].get("replicas") if ref.kind == DEPLOYMENT else None
        if replicas is not None and replicas != found["spec"].get("replicas"):
            scales.append(Scale(ref, uid_of(found), replicas))
    names = {ref_of(manifest) for manifest in wanted}
    extra = [each for ref, each in there.items() if ref not in names and is_ours(each, owner_uid, home) and not is_going(each)]
    extra.sort(key=lambda each: (-kinds.index(ref_of(each).kind), ref_of(each)))
    return (*actions, *scales, *(Prune(ref_of(each), uid_of(each)) for each in extra))
