"""Ranges over rounds and what they say of a bar. Pure; rejects a range of nothing (ValueError).

A figure is the median of its rounds with the lowest and highest beside it. Two servers differ only when their ranges don't overlap.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """What some rounds gave: lowest, median, highest."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> "Range":
        """Of at least one value."""
        found = sorted(values)
        if not found:
            raise ValueError("no round gave a figure")
        return Range(found[0], statistics.median(found), found[-1])

    def is_below(self, other: "Range") -> bool:
        """Lower in every round of both."""
        return self.high < other.low

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" ({number(self.low)}–{number(self.high)})"
        return f"{number(self.median)}{spread}"

    def to_json(self) -> dict[str, float]:
        """For the file of results."""
        return {"low": self.low, "median": self.median, "high": self.high}


def number(value: float) -> str:
    """Three significant digits, or whole thousands with commas."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Range:
    """Ours by theirs, round by round: drift of the machine meets both alike. A round in which theirs is 0 counts as nothing."""
    return Range.of(one / two for one, two in zip(ours, theirs, strict=True) if two)


@dataclass(frozen=True, slots=True)
class ToGoal:
    """A figure by its goal: 1 is the goal, more is better whichever way the figure counts. `what` is its unit or whom it is beside."""

    what: str
    ratio: Range

    def to_json(self) -> dict[str, Any]:
        """For the file of results."""
        return {"what": self.what, **self.ratio.to_json()}


def _more(value: Range, goal: float, what: str) -> tuple[ToGoal, ...]:
    return (ToGoal(what, Range(value.low / goal, value.median / goal, value.high / goal)),) if goal else ()


def _less(value: Range, goal: float, what: str) -> tuple[ToGoal, ...]:
    """Nothing for a figure of 0 or less, which has no ratio."""
    return (ToGoal(what, Range(goal / value.high, goal / value.median, goal / value.low)),) if goal and value.low > 0 else ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row: its id, what came out, what was wanted, whether it holds, and figures for the file of results.

    `note` says what a reader must know beside it, as that the ranges overlap.
    """

    bar: str
    value: str
    goal: str
    met: bool
    note: str = ""
    reference: str = ""
    details: Any = None
    to_goal: tuple["ToGoal", ...] = field(default=(), kw_only=True)
    """Each figure of the row by its goal; empty when it has none, or when it is 0."""

    def line(self) -> str:
        """The row's last word."""
        return f"bar {self.bar}: {self.value} goal {self.goal} {'met' if self.met else 'short'}{f' ({self.note})' if self.note else ''}"

    def to_json(self) -> dict[str, Any]:
        """For the file of results."""
        found = {"value": self.value, "goal": self.goal, "met": self.met, "note": self.note, "reference": self.reference}
        return found | {"details": self.details, "to_goal": [part.to_json() for part in self.to_goal]}


def at_least(bar: str, value: Range, goal: float, unit: str, **more: Any) -> Verdict:
    """Met when the median reaches the goal."""
    note = f"the goal is within the rounds' range {value}" if value.low < goal <= value.high else ""
    return Verdict(
        bar, f"{value} {unit}".rstrip(), f"≥ {number(goal)}", value.median >= goal, note, to_goal=_more(value, goal, unit), **more
    )


def at_most(bar: str, value: Range, goal: float, unit: str, **more: Any) -> Verdict:
    """Met when the median is no higher than the goal."""
    note = f"the goal is within the rounds' range {value}" if value.low <= goal < value.high else ""
    return Verdict(
        bar, f"{value} {unit}".rstrip(), f"≤ {number(goal)}", value.median <= goal, note, to_goal=_less(value, goal, unit), **more
    )


def times(bar: str, ours: Sequence[float], theirs: Sequence[float], goal: float, whose: str, **more: Any) -> Verdict:
    """Met when the median ratio reaches the goal; a goal above 1 also needs ranges that don't overlap."""
    ratio = ratios(ours, theirs)
    apart = Range.of(theirs).is_below(Range.of(ours))
    met = ratio.median >= goal and (apart or goal <= 1)
    note = "" if apart or goal <= 1 or ratio.median < goal else "the ranges overlap: no difference"
    return Verdict(bar, f"{ratio} × {whose}", f"≥ {number(goal)}", met, note, to_goal=_more(ratio, goal, f"× {whose}"), **more)


def lowest(bar: str, ours: Range, others: dict[str, Range], unit: str, **more: Any) -> Verdict:
    """Met when ours is below every other's, in every round."""
    not_above = [name for name, other in others.items() if not ours.is_below(other)]
    best = min(others.items(), key=lambda item: item[1].median, default=None)
    beside = f", best other {best[0]} {best[1]}" if best else ", no other server ran"
    note = f"not below {', '.join(not_above)} in every round" if not_above else ""
    against = _less(ours, best[1].median, f"{unit}, best other {best[0]}") if best else ()
    return Verdict(bar, f"{ours} {unit}{beside}", "the lowest", bool(others) and not not_above, note, to_goal=against, **more)


def combined(bar: str, parts: Sequence[Verdict], reference: str = "") -> Verdict:
    """One row of several figures: met when all are."""
    notes = "; ".join(part.note for part in parts if part.note)
    value, goal = " · ".join(part.value for part in parts), " · ".join(part.goal for part in parts)
    met, against = bool(parts) and all(part.met for part in parts), tuple(each for part in parts for each in part.to_goal)
    return Verdict(bar, value, goal, met, notes, reference, [part.details for part in parts], to_goal=against)
