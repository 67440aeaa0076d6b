"""Whether a QueryAPI admits an ApiKey, as the gateways will judge it too. Pure; what it says only becomes status: gateways refuse by themselves.

A key of another namespace needs an entry of `allowKeysFrom`, as the spec is now, under whose fingerprint its namespace stands in the
QueryAPI's status, with its role among the entry's and no binding that says otherwise than the entry's.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_contract.status import QueryAPIStatus

from tailrace_operator.admission import entries_of
from tailrace_operator.conditions import Type, read_status
from tailrace_operator.manifest import Manifest
from tailrace_operator.problems import Problem

NOT_ADMITTED = "NotAdmitted"


def of_api(api: Manifest | None, key: ApiKey) -> Problem | None:
    """What the QueryAPI (the live object: its spec may be wrong) has against the key."""
    if api is None:
        return Problem(Type.RESOLVED_REFS, "QueryAPINotFound", f"QueryAPI {key.api_ref} is not there", False)
    if key.metadata.namespace != key.api_ref.namespace and (why := _not_admitted(api, key)):
        return Problem(Type.ACCEPTED, NOT_ADMITTED, why, True)
    roles = [each["name"] for each in _items(api, "roles") if isinstance(each.get("name"), str)]
    if key.spec.role not in roles:
        known = ", ".join(roles[:10]) + (", …" if len(roles) > 10 else "")
        return Problem(Type.ACCEPTED, "RoleNotFound", f"QueryAPI {key.api_ref} has no role {key.spec.role}: its roles are {known}", True)
    return None


def _not_admitted(api: Manifest, key: ApiKey) -> str:
    """Why not, "" if it is."""
    namespace = key.metadata.namespace
    entries = {
        entry_fingerprint(entry.namespaces.match_labels, {name: label.namespace_label for name, label in entry.bind.items()}): entry
        for entry in entries_of(api.get("spec") or {})
        if key.spec.role in entry.roles
    }
    admitted = [each for each in read_status(QueryAPIStatus, api).namespaces if each.name == namespace and each.entry in entries]
    if not admitted:
        return f"no entry of allowKeysFrom of QueryAPI {key.api_ref} admits keys of namespace {namespace} with role {key.spec.role}"
    wrong = [_other(key.spec.bind, each.bind) for each in admitted]
    if all(wrong):
        return f"bind: {wrong[0]} is bound to another value than the label of namespace {namespace} says"
    return ""


def _other(mine: Mapping[str, JsonValue], theirs: Mapping[str, str]) -> str:
    return next((name for name, text in theirs.items() if name in mine and _text(mine[name]) != text), "")


def _text(value: JsonValue) -> str | None:
    """A bound value as a label would say it; None when none could."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None


def _items(api: Manifest, field: str) -> list[Mapping[str, Any]]:
    found = (api.get("spec") or {}).get(field)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
