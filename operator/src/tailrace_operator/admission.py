"""Which other namespaces' ApiKeys a QueryAPI admits now. Pure; an entry that can't be read admits nobody.

Only the owner's `allowKeysFrom` and the namespaces' labels decide. A namespace that lacks a label from which a parameter is bound is not
admitted: without the bound value its keys would see more than the owner offers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_contract.queryapi import KeysFrom
from tailrace_contract.status import NAMESPACES_SHOWN, AdmittedNamespace

from tailrace_operator.manifest import Object, is_going, labels_of


def entries_of(spec: Mapping[str, Any]) -> tuple[KeysFrom, ...]:
    """The entries that can be read, even of a spec that is wrong elsewhere: a namespace must be able to lose its rights at any time."""
    found = []
    raw = spec.get("allowKeysFrom")
    for each in raw if isinstance(raw, list) else ():
        try:
            found.append(KeysFrom.model_validate_json(json.dumps(each)))  # Strict models take lists from JSON only.
        except ValidationError:
            continue
    return tuple(found)


def admitted(entries: Sequence[KeysFrom], namespaces: Sequence[Object], home: str) -> tuple[AdmittedNamespace, ...]:
    """Each namespace once for each entry that admits it, by name; at most 256, and those beyond are not admitted.

    `home`: the QueryAPI's own namespace, whose keys need no entry. A namespace that is being deleted is not admitted.
    """
    result = set[tuple[str, str, tuple[tuple[str, str], ...]]]()
    for entry in entries:
        wanted = entry.namespaces.match_labels
        bind = {parameter: label.namespace_label for parameter, label in entry.bind.items()}
        mark = entry_fingerprint(wanted, bind)
        for namespace in namespaces:
            name, labels = str(namespace["metadata"]["name"]), labels_of(namespace)
            if name == home or is_going(namespace) or any(labels.get(label) != value for label, value in wanted.items()):
                continue
            if any(label not in labels for label in bind.values()):
                continue
            result.add((name, mark, tuple(sorted((parameter, labels[label]) for parameter, label in bind.items()))))
    return tuple(AdmittedNamespace(name=name, entry=mark, bind=dict(bound)) for name, mark, bound in sorted(result)[:NAMESPACES_SHOWN])
