"""Which ApiKeys an API admits, and how far: those of its own namespace as they are, those of others within `allowKeysFrom`. Pure.

The default is refusal. A key of another namespace needs an entry of the spec, as it is now, under whose fingerprint the operator admitted that
namespace; a role that stands in the entry; and bindings that agree with the entry's, which are added to its own. So a key can only narrow what
the entry gives, a namespace that is admitted no more loses its keys at once, and an edited entry gives nothing until the operator has read the
labels for it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_contract.queryapi import KeysFrom, QueryAPI
from tailrace_contract.status import AdmittedNamespace


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a key may be used with: its own bindings and those that the entry adds. `refused`: why not, a sentence without a value."""

    bind: Mapping[str, JsonValue] = field(default_factory=dict)
    refused: str = ""


class Ceilings:
    """Those of one API, as it and its status are now."""

    def __init__(self, api: QueryAPI, admitted: Sequence[AdmittedNamespace]) -> None:
        self._ref = api.ref
        self._entries: dict[str, list[KeysFrom]] = {}
        for entry in api.spec.allow_keys_from:
            self._entries.setdefault(fingerprint(entry), []).append(entry)
        self._namespaces: dict[str, list[AdmittedNamespace]] = {}
        for each in admitted:
            self._namespaces.setdefault(each.name, []).append(each)

    def admit(self, key: ApiKey) -> Admitted:
        """Whether a key that opens this API is admitted."""
        if key.metadata.namespace == self._ref.namespace:
            return Admitted(key.spec.bind)
        found = [(each, entry) for each in self._namespaces.get(key.metadata.namespace, ()) for entry in self._entries.get(each.entry, ())]
        if not found:
            return Admitted(refused="no entry of allowKeysFrom admits its namespace now")
        found = [(each, entry) for each, entry in found if key.spec.role in entry.roles]
        if not found:
            return Admitted(refused=f"allowKeysFrom does not offer the role `{key.spec.role}` to its namespace")
        why = ""
        for each, entry in found:
            if set(each.bind) != set(entry.bind):
                why = why or "its namespace has no value for a parameter that allowKeysFrom binds"
            elif wrong := next(
                (name for name, text in each.bind.items() if name in key.spec.bind and _text(key.spec.bind[name]) != text), ""
            ):
                why = why or f"it binds `{wrong}` to another value than its namespace's label"
            else:
                return Admitted({**key.spec.bind, **each.bind})
        return Admitted(refused=why)


def fingerprint(entry: KeysFrom) -> str:
    """What the operator writes beside a namespace that the entry admits."""
    return entry_fingerprint(entry.namespaces.match_labels, {name: source.namespace_label for name, source in entry.bind.items()})


def _text(value: JsonValue) -> str | None:
    """A bound value as a label would say it; None when none could."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None
