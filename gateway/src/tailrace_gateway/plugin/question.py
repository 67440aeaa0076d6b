"""What `kubectl tailrace explain` asks a pod: documents as small as the question, with keys that stand for all of their kind. Pure.

A key's text has no part in what it may see: keys of one role and the same bindings are asked for once, under a made-up text that opens nothing. The
answer is told for the real keys again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.ids import Ref, glob_matches
from tailrace_contract.queryapi import Query, QueryAPI
from tailrace_contract.resource import API_VERSION
from tailrace_contract.status import AdmittedNamespace

from tailrace_gateway.ceilings import Ceilings

SECRET = "tailrace-explain"


@dataclass(frozen=True, slots=True)
class Group:
    """Keys that see the same. `keys` empty: nobody has the role yet."""

    role: str
    bind: Mapping[str, JsonValue]
    keys: tuple[Ref, ...]

    @property
    def who(self) -> str:
        """For people."""
        names = ", ".join(str(key) for key in self.keys[:5]) + (", …" if len(self.keys) > 5 else "")
        return names or "(none yet)"


@dataclass(frozen=True, slots=True)
class Groups:
    """All of them, and keys that see nothing with the reason."""

    groups: tuple[Group, ...]
    refused: tuple[tuple[Ref, str], ...]


def groups_of(api: QueryAPI, keys: Sequence[ApiKey], admitted: Sequence[AdmittedNamespace], role: str | None) -> Groups:
    """Keys by what they see; `role`: only of this one."""
    ceilings = Ceilings(api, admitted)
    found: dict[tuple[str, str], tuple[Mapping[str, JsonValue], list[Ref]]] = {}
    refused: list[tuple[Ref, str]] = []
    roles = [each.name for each in api.spec.roles if role in (None, each.name)]
    for key in sorted(keys, key=lambda each: each.ref):
        if role not in (None, key.spec.role):
            continue
        given = ceilings.admit(key)
        why = (
            given.refused
            or ("it is suspended" if key.spec.suspended else "")
            or ("" if key.spec.role in roles else "its role is not there")
        )
        if why:
            refused.append((key.ref, why))
            continue
        which = key.spec.role, json.dumps(given.bind, sort_keys=True)
        found.setdefault(which, (given.bind, []))[1].append(key.ref)
    groups = [Group(name, bind, tuple(refs)) for (name, _), (bind, refs) in found.items()]
    groups += [Group(name, {}, ()) for name in roles if not any(group.role == name for group in groups)]
    return Groups(tuple(sorted(groups, key=lambda group: (roles.index(group.role), group.keys))), tuple(refused))


def queries_for(api: QueryAPI, queries: Sequence[Query], groups: Groups, query: str | None) -> tuple[Query, ...]:
    """Those that are asked about: of this name, or all that a role names."""
    named = {group.role for group in groups.groups}
    globs = [glob for role in api.spec.roles if role.name in named for glob in role.queries]
    return tuple(each for each in queries if query in (None, each.name) and any(glob_matches(glob, each.name) for glob in globs))


def documents(api: QueryAPI, queries: Sequence[Query], groups: Groups, text: Callable[[], str]) -> str:
    """What the pod is to explain, as one text. `text`: another made-up key each time."""
    named = {group.role for group in groups.groups}
    spec = api.spec.model_copy(
        update={
            "queries": tuple(queries),
            "queries_from": (),
            "allow_keys_from": (),
            "roles": tuple(role for role in api.spec.roles if role.name in named),
        }
    )
    namespace = api.ref.namespace
    found: list[JsonValue] = [
        json.loads(api.model_copy(update={"spec": spec}).model_dump_json(by_alias=True, exclude_unset=True, exclude={"status"}))
    ]
    found.append(_document("RunStore", api.spec.run_store_ref.name, namespace, {"embedded": {}}))
    found.append(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": namespace},
            "stringData": {name_of(n): text() for n in range(len(groups.groups))},
        }
    )
    for n, group in enumerate(groups.groups):
        source: JsonValue = {"secretKeyRef": {"name": SECRET, "key": name_of(n)}}
        key: JsonValue = {"queryApiRef": {"name": api.ref.name}, "role": group.role, "bind": dict(group.bind), "keyFrom": source}
        found.append(_document("ApiKey", name_of(n), namespace, key))
    return "\n---\n".join(json.dumps(each, ensure_ascii=False) for each in found)


def name_of(position: int) -> str:
    """The made-up key of a group."""
    return f"k{position}"


def _document(kind: str, name: str, namespace: str, spec: JsonValue) -> JsonValue:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
