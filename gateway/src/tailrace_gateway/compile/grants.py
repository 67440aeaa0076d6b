"""Roles → grants: a verdict for each (query, role) pair, kept as long as everything that it was decided from is the same. Pure.

Rejects pairs by verdict. A kept verdict rests on two things: the pair's compiled query (the very same object) and the role's basis (equal).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace_contract.plan import Grant, ParamPlan, QueryPlan

from tailrace_gateway.compile.decision import Verdict
from tailrace_gateway.compile.spec import QuerySpec, RoleRules, RoleSpec

Params = Mapping[str, Mapping[str, ParamPlan]]
"""Parameters of the queries that a role may call: by name, then by what they are as JSON text."""


class Judge(Protocol):
    """Decides pairs. `verdict` must depend on nothing but the query's compiled form, its connection, and the role's basis."""

    def basis(self, role: RoleSpec) -> tuple[object, ...]:
        """Everything besides the query that verdicts of this role depend on: its rules on every database, system tables, unknown masks."""

    def verdict(self, query: QuerySpec, role: RoleSpec) -> Verdict:
        """The verdict of a granted pair whose query was compiled."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A query as it is granted: `plan` is a new object whenever it was compiled anew; `params` each with its JSON text."""

    spec: QuerySpec
    plan: QueryPlan
    params: tuple[tuple[str, ParamPlan], ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """One pair. `verdict` None: the query itself is refused."""

    plan: QueryPlan
    grant: Grant
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Granted:
    """What roles with the same patterns and rules are given. `grants` and `params` are the same objects as before if nothing in them changed."""

    basis: tuple[object, ...]
    decided: tuple[Decided, ...]
    grants: tuple[Grant, ...]
    params: Params


Group = tuple[tuple[str, ...], RoleRules]
"""Patterns and rules: roles that have the same are decided once."""


def granted(patterns: Sequence[str], queries: Sequence[QuerySpec]) -> list[int]:
    """Positions of the queries that the patterns name; `*` stands for any characters."""
    exact = {pattern for pattern in patterns if "*" not in pattern}
    globs = [re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL) for pattern in patterns if "*" in pattern]
    return [n for n, query in enumerate(queries) if query.name in exact or any(glob.fullmatch(query.name) for glob in globs)]


def group(role: RoleSpec) -> Group:
    """The group of a role."""
    return role.queries, role.rules


def decide_role(role: RoleSpec, positions: Sequence[int], subjects: Sequence[Subject], judge: Judge, before: Granted | None) -> Granted:
    """Decides every pair of the role, as far as it isn't decided already."""
    basis = judge.basis(role)
    if before is not None and before.basis != basis:
        before = None
    if before is not None and len(before.decided) == len(positions):
        pairs = zip(before.decided, positions, strict=True)
        if all(pair.plan is subjects[n].plan and pair.grant.query == n for pair, n in pairs):
            return before
    kept = {id(pair.plan): pair for pair in before.decided} if before is not None else {}
    decided = []
    for n in positions:
        subject = subjects[n]
        pair = kept.get(id(subject.plan))
        if pair is None:
            verdict = judge.verdict(subject.spec, role) if subject.plan.refused is None else None
            pair = Decided(subject.plan, _grant(n, verdict), verdict)
        elif pair.grant.query != n:
            pair = Decided(subject.plan, _grant(n, pair.verdict), pair.verdict)
        decided.append(pair)
    params = _params(decided, subjects)
    if before is not None and [(name, list(each)) for name, each in params.items()] == [
        (n, list(each)) for n, each in before.params.items()
    ]:
        params = before.params
    return Granted(basis, tuple(decided), tuple(pair.grant for pair in decided), params)


def _grant(query: int, verdict: Verdict | None) -> Grant:
    if verdict is None:
        return Grant(query=query)
    return Grant(query=query, masks=verdict.masks, refused=verdict.refused.value if verdict.refused else None)


def _params(decided: Sequence[Decided], subjects: Sequence[Subject]) -> Params:
    params: dict[str, dict[str, ParamPlan]] = {}
    for pair in decided:
        if pair.verdict is not None and pair.verdict.refused is None:
            for text, param in subjects[pair.grant.query].params:
                params.setdefault(param.name, {})[text] = param
    return params
