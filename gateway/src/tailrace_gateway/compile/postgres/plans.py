"""Query plans as EXPLAIN shows them, and whether a batch's plan still looks up one caller after the other. Pure.

Rejects (`NotCoalescedError`): a scan of a whole table that one caller's plan has not, more than `COST_RATIO` times the cost, what is not
cheap for one caller already. What a LIMIT may save is not believed: it hopes that rows come early, which they don't if there are few.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace_gateway.compile.postgres.batch import RESERVED, NotCoalescedError

COST_RATIO = 4.0
COST_MOST = 500.0
"""In the planner's units, of which one is a page read in order: what one caller may cost, about two milliseconds."""
FEW_PAGES = 25.0
"""A scan that the planner thinks as cheap as this counts for no scan: some 1,000 rows."""

_Plan = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """What counts of one plan. `peak`: its most expensive part, run to its end; `scans`: how often it reads which table from end to end."""

    peak: float
    scans: Counter[str]


def single(plan: _Plan) -> Cost:
    """Of one caller's plan."""
    return Cost(_peak(plan), _scans(plan))


def batch(plan: _Plan) -> Cost:
    """Of a batch's plan, for each caller: a nested loop whose outer side are the callers."""
    sides: Sequence[_Plan] = plan.get("Plans", ())
    outer = [side for side in sides if side.get("Parent Relationship") == "Outer"]
    inner = [side for side in sides if side.get("Parent Relationship") == "Inner"]
    if plan["Node Type"] != "Nested Loop" or len(outer) != 1 or len(inner) != 1:
        raise NotCoalescedError("plan_shape")
    if outer[0]["Node Type"] != "Function Scan" or outer[0].get("Alias") != RESERVED:
        raise NotCoalescedError("plan_shape")
    others = [side for side in sides if side is not outer[0]]
    return Cost(max(map(_peak, others)), _scans(plan))


def check_no_worse(alone: Sequence[Cost], together: Cost) -> None:
    """`alone`: plans of one caller, whichever the server would use. The least of each counts."""
    scans = alone[0].scans
    for cost in alone[1:]:
        scans = scans & cost.scans
    if together.scans - scans:
        raise NotCoalescedError("sequential_scan")
    least = min(cost.peak for cost in alone)
    if together.peak > COST_RATIO * max(least, 1.0):
        raise NotCoalescedError("cost")
    if least > COST_MOST:
        raise NotCoalescedError("expensive")


def _peak(plan: _Plan) -> float:
    return max(float(node["Total Cost"]) for node in _nodes(plan))


def _scans(plan: _Plan) -> Counter[str]:
    """But for those of a few pages, where a scan is as cheap as an index."""
    return Counter(
        str(node.get("Relation Name", "?"))
        for node in _nodes(plan)
        if node["Node Type"] in ("Seq Scan", "Sample Scan", "Foreign Scan") and float(node["Total Cost"]) > FEW_PAGES
    )


def _nodes(plan: _Plan) -> Iterator[_Plan]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)
