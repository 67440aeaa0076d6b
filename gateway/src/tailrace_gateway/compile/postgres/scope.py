"""Query nodes of a parse tree as they stand inside each other: range tables, WITH queries. Rejects (`NotATreeError`) what is missing. Pure."""

from dataclasses import dataclass, field

from tailrace_gateway.compile.lineage import Flow
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError

RELATION, SUBQUERY, JOIN, FUNCTION, TABLEFUNC, VALUES, CTE, TUPLESTORE, RESULT = range(9)
"""Kinds of range table entries (RTEKind in parsenodes.h)."""


@dataclass(slots=True)
class Cte:
    """A WITH query. `flows` None until analysed; of a recursive one they grow until nothing changes."""

    node: Node
    scope: "Scope"
    flows: list[Flow] | None = None
    busy: bool = False


@dataclass(slots=True)
class Scope:
    """One Query node: its range table, and the query around it."""

    query: Node
    parent: "Scope | None"
    entries: list[Node]
    ctes: dict[str, Cte] = field(default_factory=dict)
    columns: dict[int, list[Flow] | Flow] = field(default_factory=dict)
    """By position in the range table: flows of its columns, or one flow for all of them."""
    excluded: int = 0
    """Position of ON CONFLICT's EXCLUDED, whose values come from the statement itself."""

    def up(self, levels: int) -> "Scope":
        """So many queries further out; NotATreeError beyond the outermost."""
        scope: Scope = self
        for _ in range(levels):
            if scope.parent is None:
                raise NotATreeError("a level above the outermost query")
            scope = scope.parent
        return scope


def there(node: Node | None) -> Node:
    """The node; NotATreeError when it is missing."""
    if node is None:
        raise NotATreeError("a node is missing")
    return node


def listed(value: object) -> list[object]:
    """The list; NotATreeError when it is missing."""
    if not isinstance(value, list):
        raise NotATreeError("a list is missing")
    return value
