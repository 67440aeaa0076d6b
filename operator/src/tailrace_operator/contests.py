"""Objects that somebody else changes back again and again. Pure state; time is an argument.

Each of our applies makes an event, and so does the other's: without a brake two writers that want different things keep an API server busy for
ever. The first applies are immediate, then the pauses double. A new generation of the resource, or ten minutes of peace, begins anew.
"""

from dataclasses import dataclass, field

from tailrace_operator.manifest import ObjectRef

FREE = 3
"""Applies in a row that need no pause."""

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
PEACE_S = 600.0
"""After so long without an apply a contest is forgotten."""


@dataclass(slots=True)
class _Contest:
    generation: int
    applies: int
    last: float


@dataclass(slots=True)
class Contests:
    """Counts applies to each object."""

    _known: dict[ObjectRef, _Contest] = field(default_factory=dict)

    def wait_s(self, ref: ObjectRef, generation: int, now: float) -> float:
        """How long to wait before the next apply to an object; 0: not at all. `generation`: of the resource that owns it."""
        self._known = {each: known for each, known in self._known.items() if now - known.last < PEACE_S}
        known = self._known.get(ref)
        if known is None or known.generation != generation or known.applies < FREE:
            return 0.0
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(known.applies - FREE, 20))
        return max(0.0, known.last + pause - now)

    def applied(self, ref: ObjectRef, generation: int, now: float) -> None:
        """Notes an apply."""
        known = self._known.get(ref)
        applies = known.applies + 1 if known is not None and known.generation == generation else 1
        self._known[ref] = _Contest(generation, applies, now)
