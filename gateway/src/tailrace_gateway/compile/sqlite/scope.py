"""What an expression's names may mean: tables in FROM, WITH queries, result names, and the query around. Rejects nothing but by `undecided`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp
from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import Flow
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.sqlite.catalog import Table

Columns = list[tuple[str, Flow]]
"""Name in lower case and flow, in order."""


@dataclass(slots=True)
class Source:
    """One table in FROM. `hidden`: columns that a later USING or NATURAL join shows only once."""

    alias: str
    columns: Columns
    table: Table | None = None
    hidden: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Scope:
    """Names that an expression may mean: tables in FROM, result names, and what is around."""

    sources: list[Source]
    ctes: Mapping[str, "Cte"]
    parent: "Scope | None" = None
    aliases: dict[str, Flow] = field(default_factory=dict)
    windows: Mapping[str, exp.Expr] = field(default_factory=dict)


@dataclass(slots=True)
class Cte:
    """A WITH query; of a recursive one the columns grow until nothing changes."""

    node: exp.Expr
    names: list[str]
    ctes: dict[str, "Cte"]
    parent: Scope | None
    columns: Columns | None = None
    busy: bool = False


def undecided(why: str) -> RefusedError:
    """The refusal of what cannot be decided."""
    return RefusedError(Refusal.NOT_PARSED, f"the statement cannot be decided: {why}")


def lower(node: object) -> str:
    """A node's name in lower case, empty for what has none."""
    return node.name.lower() if isinstance(node, exp.Expr) else ""
