"""An API server in memory, for tests: uids, resourceVersions, generations, conflicts, server-side apply, defaults, garbage collection.

Every write is logged; any can be made to fail, or to be the last that the process makes (`Killed`). What it simplifies: only our own
fields are in managedFields, and status of kinds that are not ours is written by the tests (`outside`).
"""

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace_operator.cluster import Listing
from tailrace_operator.diff import key_of_list
from tailrace_operator.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from tailrace_operator.manifest import (
    CUSTOM,
    DEPLOYMENT,
    FIELD_MANAGER,
    SCALE_MANAGER,
    Kind,
    Manifest,
    Object,
    ObjectRef,
    labels_of,
    ref_of,
    uid_of,
    version_of,
)
from tailrace_operator.ownership import applied_fields


class Killed(BaseException):
    """The operator's process ended here."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write that reached the API server."""

    verb: str
    ref: ObjectRef
    subresource: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.ref}" + (f"/{self.subresource}" if self.subresource else "")


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """One Event on an object."""

    regarding: ObjectRef
    reason: str
    message: str
    is_warning: bool


class FakeCluster:
    """`Cluster` in memory."""

    def __init__(self) -> None:
        self.objects: dict[ObjectRef, Object] = {}
        self.writes: list[Write] = []
        self.events: list[PublishedEvent] = []
        self.reads = 0
        self.is_away = False
        self.fail: Callable[[Write], ClusterError | None] = lambda write: None
        """Says which error a write gets; it then leaves no trace."""
        self.lives_for: int | None = None
        """After so many more writes the process is killed: the write is made, its answer never arrives."""
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    # What others do

    def outside(self, manifest: Manifest) -> Object:
        """Somebody else creates or replaces an object whole, status included. Not logged."""
        ref = ref_of(manifest)
        before = self.objects.get(ref)
        made: Object = copy.deepcopy(dict(manifest))
        made["metadata"] = {
            **made["metadata"],
            "uid": uid_of(before) if before else made["metadata"].get("uid") or f"uid-{next(self._uids)}",
        }
        if before is not None:
            made["metadata"].setdefault("managedFields", before["metadata"].get("managedFields", []))
        return copy.deepcopy(self._store(ref, made, before))

    def edit(self, ref: ObjectRef, change: Callable[[Object], None]) -> Object:
        """Somebody else edits an object. Not logged."""
        edited = copy.deepcopy(self.objects[ref])
        change(edited)
        return self.outside(edited)

    def remove(self, ref: ObjectRef) -> None:
        """Somebody else deletes an object, and the garbage collector what it owned. Not logged."""
        gone = self.objects.pop(ref)
        next(self._versions)
        for other, live in list(self.objects.items()):
            owners = live["metadata"].get("ownerReferences") or ()
            if other in self.objects and any(owner["uid"] == uid_of(gone) for owner in owners):
                self.remove(other)

    def written(self) -> list[str]:
        """The log of writes as text, and empties it."""
        text = [str(write) for write in self.writes]
        self.writes.clear()
        return text

    # What the operator does

    async def get(self, ref: ObjectRef) -> Object | None:
        self._read()
        return copy.deepcopy(self.objects.get(ref))

    async def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        self._read()
        found = [
            copy.deepcopy(live)
            for ref, live in sorted(self.objects.items(), key=lambda item: item[0])
            if ref.kind == kind
            and (namespace is None or ref.namespace == namespace)
            and all(labels_of(live).get(name) == value for name, value in (labels or {}).items())
        ]
        return Listing(tuple(found), str(next(self._versions)))

    async def create(self, manifest: Manifest) -> Object:
        ref = ref_of(manifest)
        finish = self._write(Write("create", ref))
        if ref in self.objects:
            raise AlreadyExists(f"{ref} exists", 409)
        made: Object = copy.deepcopy(dict(manifest))
        made["metadata"] = {
            **made["metadata"],
            "uid": f"uid-{next(self._uids)}",
        }
        with_defaults(ref.kind, made)
        made["metadata"]["managedFields"] = [{"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": fields_of(made)}]
        return finish(self._store(ref, made, None))

    async def apply(self, manifest: Manifest, uid: str) -> Object:
        ref = ref_of(manifest)
        finish = self._write(Write("apply", ref))
        before = self._exactly(ref, uid)
        applied: Object = copy.deepcopy(dict(manifest))
        entries = before["metadata"].get("managedFields", [])
        posted = [entry["fieldsV1"] for entry in entries if entry["manager"] == FIELD_MANAGER and entry["operation"] == "Update"]
        owned = next((entry["fieldsV1"] for entry in entries if _is_apply(entry)), {})
        merged = _merged(copy.deepcopy(before), applied, owned, posted[0] if posted else {}, ())
        merged["metadata"]["managedFields"] = [entry for entry in entries if not _is_apply(entry)] + [
            {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of(applied)}
        ]
        return finish(self._store(ref, merged, before))

    async def take_fields(self, live: Manifest, wanted: Manifest) -> Object:
        ref = ref_of(live)
        finish = self._write(Write("take", ref))
        before = self._exactly(ref, uid_of(live), version_of(live))
        after = copy.deepcopy(before)
        after["metadata"]["managedFields"] = applied_fields(live, wanted)
        return finish(self._store(ref, after, before))

    async def patch_scale(self, ref: ObjectRef, uid: str, replicas: int) -> None:
        finish = self._write(Write("scale", ref, SCALE_MANAGER))
        before = self._exactly(ref, uid)
        after = copy.deepcopy(before)
        after["spec"]["replicas"] = replicas
        finish(self._store(ref, after, before))

    async def replace(self, live: Manifest) -> Object:
        ref = ref_of(live)
        finish = self._write(Write("replace", ref))
        before = self._exactly(ref, uid_of(live), version_of(live))
        return finish(self._store(ref, copy.deepcopy(dict(live)), before))

    async def delete(self, ref: ObjectRef, uid: str) -> None:
        finish = self._write(Write("delete", ref))
        if ref in self.objects:
            self.remove(ref_of(self._exactly(ref, uid)))
        finish({})

    async def patch_status(self, live: Manifest, status: Mapping[str, Any], *, unchanged: bool = False) -> Object:
        ref = ref_of(live)
        finish = self._write(Write("status", ref))
        before = self._exactly(ref, uid_of(live), version_of(live) if unchanged else None)
        after = {**copy.deepcopy(before), "status": copy.deepcopy(dict(status))}
        return finish(self._store(ref, after, before))

    async def event(self, regarding: Manifest, reason: str, message: str, *, is_warning: bool = False) -> None:
        told = PublishedEvent(ref_of(regarding), reason, message, is_warning)
        if told not in self.events:
            self.events.append(told)

    def _read(self) -> None:
        self.reads += 1
        if self.is_away:
            raise Unavailable("away")

    def _write(self, write: Write) -> Callable[[Object], Object]:
        if self.is_away:
            raise Unavailable("away")
        error = self.fail(write)
        if error is not None:
            raise error

        def finish(result: Object) -> Object:
            self.writes.append(write)
            if self.lives_for is not None:
                self.lives_for -= 1
                if self.lives_for <= 0:
                    self.lives_for = None
                    raise Killed(str(write))
            return copy.deepcopy(result)

        return finish

    def _exactly(self, ref: ObjectRef, uid: str, version: str | None = None) -> Object:
        live = self.objects.get(ref)
        if live is None:
            raise NotFound(f"{ref} is not there", 404)
        if uid_of(live) != uid or version not in (None, version_of(live)):
            raise Conflict(f"{ref} is another one", 409)
        return live

    def _store(self, ref: ObjectRef, made: Object, before: Object | None) -> Object:
        with_defaults(ref.kind, made)
        changed = before is None or _content(before) != _content(made)
        if before is not None and not changed and before.get("status") == made.get("status") and before["metadata"] == made["metadata"]:
            return before
        generation = (before["metadata"].get("generation", 1) if before else 0) + (1 if changed else 0)
        made["metadata"] = {**made["metadata"], "resourceVersion": str(next(self._versions)), "generation": max(1, generation)}
        if ref.kind in CUSTOM.values():
            made.setdefault("status", {"observedGeneration": -1})
        self.objects[ref] = made
        return made


def with_defaults(kind: Kind, made: Object) -> None:
    """What an API server adds to objects (a part of it): none of this may be read as drift."""
    if kind == DEPLOYMENT:
        spec = made["spec"]
        spec.setdefault("replicas", 1)
        spec.setdefault("progressDeadlineSeconds", 600)
        pod = spec.setdefault("template", {}).setdefault("spec", {})
        pod.setdefault("dnsPolicy", "ClusterFirst")
        pod.setdefault("schedulerName", "default-scheduler")
        for container in pod.get("containers", []):
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            for port in container.get("ports", []):
                port.setdefault("protocol", "TCP")
    if kind.kind == "Service":
        made["spec"].setdefault("clusterIP", "10.96.0.7")
        made["spec"].setdefault("sessionAffinity", "None")
        for port in made["spec"].get("ports", []):
            port.setdefault("protocol", "TCP")


def _content(live: Object) -> Object:
    return {name: value for name, value in live.items() if name not in ("metadata", "status")}


def _is_apply(entry: Object) -> bool:
    return entry["manager"] == FIELD_MANAGER and entry["operation"] == "Apply"


def fields_of(body: Any, path: tuple[str, ...] = ()) -> Object:
    """`fieldsV1` of everything in a body but what the API server itself writes."""
    fields: Object = {}
    if isinstance(body, dict):
        for name, value in body.items():
            if path or name not in ("apiVersion", "kind", "status"):
                if path == ("metadata",) and name not in ("labels", "annotations", "ownerReferences"):
                    continue
                fields[f"f:{name}"] = fields_of(value, (*path, name))
    elif isinstance(body, list | tuple) and (keys := key_of_list(path)) is not None:
        for item in body:
            mark = {key: item.get(key, "TCP") for key in keys}
            fields["k:" + json.dumps(mark)] = {".": {}, **fields_of(item, path)}
    return fields


def _merged(live: Any, applied: Any, owned: Any, posted: Any, path: tuple[str, ...]) -> Any:
    """`applied` laid over `live`; what we applied before and no longer do goes, unless our POST owns it too."""
    if isinstance(live, dict) and isinstance(applied, dict):
        result = {name: value for name, value in live.items() if name in applied or f"f:{name}" not in owned or f"f:{name}" in posted}
        for name, value in applied.items():
            mark = f"f:{name}"
            below = (owned.get(mark, {}), posted.get(mark, {}))
            result[name] = _merged(live[name], value, *below, (*path, name)) if name in live else value
        return result
    if isinstance(live, list) and isinstance(applied, list | tuple):
        keys = key_of_list(path)
        if keys is None:
            return list(applied)

        def mark_of(item: Any) -> str:
            return "k:" + json.dumps({key: item.get(key, "TCP") for key in keys})

        here, wanted = {mark_of(item): item for item in live}, {mark_of(item): item for item in applied}
        kept = [
            _merged(item, wanted[mark], owned.get(mark, {}), posted.get(mark, {}), path) if mark in wanted else item
            for mark, item in here.items()
            if mark in wanted or mark not in owned or mark in posted
        ]
        return kept + [item for mark, item in wanted.items() if mark not in here]
    return applied
