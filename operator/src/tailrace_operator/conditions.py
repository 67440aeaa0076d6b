"""Conditions of a status: what is so, is not so, or is not known yet. Pure.

`lastTransitionTime` moves only when a condition's status flips, and an unchanged status is equal to the last one, so that nothing is
written twice. `Reconciling` and `Stalled` stand there only while they are true (kstatus).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from tailrace_contract.status import Condition, Status

Truth = Literal["True", "False", "Unknown"]
S = TypeVar("S", bound=Status)

MESSAGE_LENGTH = 1024
"""Characters of a message that are kept."""


class Type(StrEnum):
    """Every type of condition, in the order in which they are shown."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    ACCEPTED = "Accepted"
    RESOLVED_REFS = "ResolvedRefs"
    PROGRAMMED = "Programmed"
    GATEWAY_HEALTHY = "GatewayHealthy"


_ORDER = {kind: number for number, kind in enumerate(Type)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is found of one type now. `reason` is one word for programs, `message` is for people; neither holds a secret or a value."""

    type: Type
    status: Truth
    reason: str
    message: str = ""

    @property
    def is_true(self) -> bool:
        """Whether it is so."""
        return self.status == "True"


def ready(status: Truth, reason: str, message: str = "", *, reconciling: bool = False, stalled: bool = False) -> tuple[Verdict, ...]:
    """`Ready`, with `Reconciling` beside it while the operator works on or waits for something, or `Stalled` while only somebody else can help.

    Never both: kstatus would take Reconciling for the whole truth.
    """
    verdicts = [Verdict(Type.READY, status, reason, message)]
    if stalled:
        verdicts.append(Verdict(Type.STALLED, "True", reason, message))
    elif reconciling:
        verdicts.append(Verdict(Type.RECONCILING, "True", reason, message))
    return tuple(verdicts)


def stamped(previous: Iterable[Condition], verdicts: Iterable[Verdict], generation: int, now: datetime) -> tuple[Condition, ...]:
    """The verdicts as conditions of this generation, each with the time at which its status last changed. Types that have no verdict go."""
    before = {condition.type: condition for condition in previous}
    second = now.astimezone(UTC).replace(microsecond=0)
    conditions = []
    for verdict in sorted(verdicts, key=lambda each: _ORDER[each.type]):
        last = before.get(verdict.type)
        conditions.append(
            Condition(
                type=str(verdict.type),
                status=verdict.status,
                observed_generation=generation,
                last_transition_time=last.last_transition_time if last is not None and last.status == verdict.status else second,
                reason=verdict.reason,
                message=bounded(verdict.message),
            )
        )
    return tuple(conditions)


def bounded(text: str, length: int = MESSAGE_LENGTH) -> str:
    """A text cut to a length, which an ellipsis shows."""
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(parts: Sequence[str], most: int = 5) -> str:
    """`a; b; c and 4 more`: what of a list a message shows."""
    more = len(parts) - most
    return "; ".join(parts[:most]) + (f" and {more} more" if more > 0 else "")


def read_status(model: type[S], live: Mapping[str, Any]) -> S:
    """The status that an object has. One that no operator wrote counts as none."""
    try:
        return model.model_validate_json(json.dumps(live.get("status") or {}))
    except ValidationError:
        return model()


def status_body(status: Status) -> dict[str, Any]:
    """The status as it is written. What is not known and empty lists are left out."""
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: value for name, value in body.items() if value != []}


def is_changed(live: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether the object's status differs from the one to be written."""
    return bool((live.get("status") or {}) != body)
