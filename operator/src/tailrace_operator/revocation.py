"""`status.revocation`: which deleted ApiKeys the pods have dropped. Pure.

What the last status says is the memory: a new operator goes on from there. An entry that is complete is never computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace_contract.status import REVOCATIONS_SHOWN, QueryAPIStatus, Revocation

from tailrace_operator.acknowledgement import Deletion, PodState, confirmed_keys


@dataclass(frozen=True, slots=True)
class Revoked:
    """What is to be said. `completed`: keys (`NAMESPACE/NAME`) of which the last pod was heard just now."""

    entries: tuple[Revocation, ...]
    completed: tuple[str, ...]
    is_waiting: bool


def of(api_uid: str, home: str, previous: QueryAPIStatus, deletions: Iterable[Deletion], pods: Sequence[PodState]) -> Revoked:
    """The last deleted keys, newest first, at most 20. `home`: the QueryAPI's namespace."""
    admitted = {home, *(each.name for each in previous.namespaces)}
    known = {(each.key, each.resource_version): each for each in previous.revocation}
    for deletion in deletions:
        if deletion.key.namespace in admitted:
            mark = (str(deletion.key), str(deletion.resource_version))
            known.setdefault(mark, Revocation(key=mark[0], resource_version=mark[1], confirmed_by="0/1"))
    newest = sorted(known.values(), key=lambda each: -_number(each.resource_version))[:REVOCATIONS_SHOWN]
    entries, completed, is_waiting = [], [], False
    for entry in newest:
        if not _is_complete(entry):
            confirmed = confirmed_keys(pods, api_uid, entry.key.partition("/")[0], _number(entry.resource_version))
            entry = entry.model_copy(update={"confirmed_by": str(confirmed)})
            if confirmed.is_complete:
                completed.append(entry.key)
            is_waiting = is_waiting or not confirmed.is_complete
        entries.append(entry)
    return Revoked(tuple(entries), tuple(completed), is_waiting)


def _is_complete(entry: Revocation) -> bool:
    confirmed, _, of_all = entry.confirmed_by.partition("/")
    return confirmed == of_all


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
