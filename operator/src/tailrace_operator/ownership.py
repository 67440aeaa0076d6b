"""Which fields of a live object are ours, by its `managedFields`. Pure.

Server-side apply removes a field that we applied and no longer do, but only when we apply again: so what we own and don't want is drift.
A POST owns its fields as an update, defaults included; that is cut down to what was wanted and turned into an apply's ownership, or a
field could never be removed and a later apply would reset `spec.replicas`.
"""

import json
from collections.abc import Mapping
from typing import Any

from tailrace_operator.manifest import FIELD_MANAGER, Manifest, Object

_DEFAULTS = {"protocol": "TCP"}
"""What the API server fills in for a part of a list's key that was left out."""

_NEVER_OURS = ("f:apiVersion", "f:kind", "f:status")


def is_posted(live: Manifest) -> bool:
    """Whether a POST of ours still owns fields of it."""
    return any(_is_update(entry) for entry in live["metadata"].get("managedFields") or ())


def applied_fields(live: Manifest, wanted: Manifest) -> list[Object]:
    """`managedFields` in which our POST owns what an apply of `wanted` would own. Others' entries stay as they are."""
    return [
        {**entry, "operation": "Apply", "fieldsV1": _kept(entry.get("fieldsV1") or {}, wanted)} if _is_update(entry) else entry
        for entry in live["metadata"].get("managedFields") or ()
    ]


def unwanted(live: Manifest, wanted: Manifest) -> str | None:
    """The place of the first field that we applied and don't want any more, or None."""
    for entry in live["metadata"].get("managedFields") or ():
        ours = entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")
        if ours and (place := _beyond(entry.get("fieldsV1") or {}, wanted, ())) is not None:
            return place
    return None


def _is_update(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Update" and not entry.get("subresource")


def _kept(fields: Mapping[str, Any], wanted: Any) -> Object:
    kept: Object = {}
    for name, below in fields.items():
        found, value = _at(name, wanted)
        if found and name not in _NEVER_OURS:
            kept[name] = _kept(below, value) if below else {}
    return kept


def _beyond(fields: Mapping[str, Any], wanted: Any, path: tuple[str, ...]) -> str | None:
    for name, below in fields.items():
        if name in _NEVER_OURS:
            continue
        found, value = _at(name, wanted)
        here = (*path, name.partition(":")[2]) if name.startswith("f:") else path
        if not found:
            return ".".join(here) or "object"
        if below and (place := _beyond(below, value, here)) is not None:
            return place
    return None


def _at(name: str, wanted: Any) -> tuple[bool, Any]:
    """What `wanted` has at a step of `fieldsV1`: `f:FIELD`, `k:{KEY}` of a list, `v:VALUE` of a set, `.` for the place itself."""
    if name == ".":
        return True, wanted
    form, _, text = name.partition(":")
    if form == "f" and isinstance(wanted, Mapping):
        return text in wanted, wanted.get(text)
    if not isinstance(wanted, list | tuple) or form not in ("k", "v"):
        return False, None
    sought = json.loads(text)
    for item in wanted:
        if form == "v" and item == sought:
            return True, item
        if form == "k" and isinstance(item, Mapping) and all(item.get(key, _DEFAULTS.get(key)) == value for key, value in sought.items()):
            return True, item
    return False, None
