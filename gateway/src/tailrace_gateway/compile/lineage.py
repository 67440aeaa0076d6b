"""Where each column of a statement goes: the one thing that masks are decided from, whatever the engine.

Pure data. It holds for every role: which columns are masked comes in only at `decision`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Origin = tuple[int | str, int | str]
"""A stored column: (table OID, attribute number) on PostgreSQL, (table, column) in lower case on SQLite."""

NOTHING: frozenset[Origin] = frozenset()


@dataclass(frozen=True, slots=True)
class Flow:
    """What one expression is made of. `plain`: it is that column's own value (several: of that many arms); `computed`: anything else."""

    plain: frozenset[Origin] = NOTHING
    computed: frozenset[Origin] = NOTHING

    @property
    def origins(self) -> frozenset[Origin]:
        """Every column in it."""
        return self.plain | self.computed

    def opaque(self) -> "Flow":
        """The same columns, once something was done to them."""
        return Flow(NOTHING, self.origins)

    def either(self, other: "Flow") -> "Flow":
        """A value that comes from the one or the other, unchanged."""
        return Flow(self.plain | other.plain, self.computed | other.computed)


EMPTY = Flow()


def computed(flows: Iterable[Flow]) -> Flow:
    """What a function makes of its arguments."""
    return Flow(NOTHING, NOTHING.union(*(flow.origins for flow in flows)))


@dataclass(frozen=True, slots=True)
class Lineage:
    """A whole statement.

    `columns`: flow of each result column, by position. `consumed`: columns that stand anywhere else than in a select list that reaches the
    result, or in a computation that can fail: they tell values by order, number of rows or errors.
    `tables` read, `written` changed: table keys as in `Origin`.
    """

    columns: tuple[Flow, ...]
    consumed: frozenset[Origin]
    tables: frozenset[int | str]
    written: frozenset[int | str] = frozenset()
