"""Whole resources + compiled units → one Snapshot and its refusals. Pure, no IO.

Rejects nothing as a whole: a unit that did not compile refuses, the rest stands. What did not change since the last snapshot is the same object
in the next one, so that nobody after us need look at it again. Size grows with queries × roles + keys, time with what changed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import ConnectionPlan, Engine, QueryPlan, RolePlan, Snapshot, StatementPlan

from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.grants import Granted, Group, Judge, Subject, decide_role, granted, group
from tailrace_gateway.compile.live_keys import PlannedKey, plan_keys
from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, QuerySpec


@dataclass(frozen=True, slots=True)
class CompiledConnection:
    """A connection as far as it is known. `session` holds also what the compiler pinned."""

    engine: Engine
    session: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """Facts of a query, or its refusal."""

    facts: Facts | None
    refused: Refusal | None = None
    hint: str = ""
    detail: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query's plan with everything that it was made from."""

    compiled: CompiledQuery
    place: int
    connection: ConnectionPlan
    subject: Subject


@dataclass(frozen=True, slots=True)
class Kept:
    """The parts of one snapshot, for the next one: by name, grants by group, keys by their specs' identity."""

    connections: Mapping[str, ConnectionPlan] = field(default_factory=dict)
    queries: Mapping[str, PlannedQuery] = field(default_factory=dict)
    groups: Mapping[Group, Granted] = field(default_factory=dict)
    roles: Mapping[str, RolePlan] = field(default_factory=dict)
    keys: Mapping[int, PlannedKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The snapshot, what is to be told about it, and its parts."""

    snapshot: Snapshot
    refusals: tuple[RefusedUnit, ...]
    kept: Kept = field(default_factory=Kept, repr=False, compare=False)


def assemble(
    spec: ApiSpec,
    version: int,
    connections: Mapping[str, CompiledConnection],
    queries: Mapping[str, CompiledQuery],
    judge: Judge,
    before: Kept,
) -> Assembled:
    """Puts a snapshot together. A `CompiledQuery` belongs to one text of one query's spec: another text comes with another object."""
    refusals: list[RefusedUnit] = []
    connection_plans = {each.name: _connection(each, connections.get(each.name), before) for each in spec.connections}
    places = {name: n for n, name in enumerate(connection_plans)}
    planned: dict[str, PlannedQuery] = {}
    for query in spec.queries:
        compiled, place, plan = queries[query.name], places[query.connection], connection_plans[query.connection]
        last = before.queries.get(query.name)
        if last is None or last.compiled is not compiled or last.place != place or last.connection is not plan:
            last = PlannedQuery(compiled, place, plan, _subject(query, compiled, place, plan))
        planned[query.name] = last
        if compiled.facts is None:
            code = (compiled.refused or Refusal.NOT_PARSED).value
            where = spec.place_of("query", query.name)
            refusals.append(RefusedUnit("query", query.name, code, compiled.hint, place=where, detail=compiled.detail))
    subjects = [each.subject for each in planned.values()]
    groups: dict[Group, Granted] = {}
    positions: dict[tuple[str, ...], list[int]] = {}
    roles: dict[str, RolePlan] = {}
    for role in spec.roles:
        if role.queries not in positions:
            positions[role.queries] = granted(role.queries, spec.queries)
        mark = group(role)
        if mark not in groups:
            groups[mark] = decide_role(role, positions[role.queries], subjects, judge, before.groups.get(mark))
        given, old = groups[mark], before.roles.get(role.name)
        roles[role.name] = (
            old if old is not None and old.grants is given.grants else RolePlan.model_construct(name=role.name, grants=given.grants)
        )
        for pair in given.decided:
            if pair.verdict is not None and pair.verdict.refused is not None:
                code, hint, where = pair.verdict.refused.value, pair.verdict.hint, spec.place_of("role", role.name)
                refusals.append(RefusedUnit("grant", pair.plan.name, code, hint, role=role.name, place=where))
    role_places = {name: n for n, name in enumerate(roles)}
    keys = plan_keys(spec.keys, role_places, [groups[group(role)].params for role in spec.roles], before.keys)
    for each in keys.values():
        if each.plan is None:
            where = spec.place_of("key", each.spec.id)
            refusals.append(RefusedUnit("key", each.spec.id, Refusal.INVALID_KEY.value, each.fault, role=each.spec.role, place=where))
    snapshot = Snapshot(
        version=version,
        api=spec.api,
        sources=spec.sources,
        connections=tuple(connection_plans.values()),
        queries=tuple(each.plan for each in subjects),
        roles=tuple(roles.values()),
        keys=tuple(each.plan for each in keys.values() if each.plan is not None),
    )
    return Assembled(snapshot, tuple(refusals), Kept(connection_plans, planned, groups, roles, keys))


def _subject(spec: QuerySpec, compiled: CompiledQuery, place: int, connection: ConnectionPlan) -> Subject:
    plan = _query(spec, compiled, place, connection)
    return Subject(spec, plan, tuple((param.model_dump_json(), param) for param in plan.params))


def _connection(spec: ConnectionSpec, compiled: CompiledConnection | None, before: Kept) -> ConnectionPlan:
    plan = ConnectionPlan(
        name=spec.name,
        engine=compiled.engine if compiled is not None else Engine.POSTGRES,
        url_file=spec.url_file,
        ca_file=spec.ca_file,
        certificate_file=spec.certificate_file,
        key_file=spec.key_file,
        max_connections=spec.max_connections,
        statement_timeout_ms=spec.statement_timeout_ms,
        session=compiled.session if compiled is not None else spec.session,
        pooler=spec.pooler,
        idempotency_table=spec.idempotency_table,
    )
    last = before.connections.get(spec.name)
    return last if last == plan else plan


def _query(spec: QuerySpec, compiled: CompiledQuery, place: int, connection: ConnectionPlan) -> QueryPlan:
    timeout_ms = min(spec.timeout_ms or connection.statement_timeout_ms, connection.statement_timeout_ms)
    facts = compiled.facts
    if facts is None:
        refused = (compiled.refused or Refusal.NOT_PARSED).value
        return QueryPlan(
            name=spec.name,
            version="0" * 16,
            connection=place,
            write=spec.write,
            returns=spec.returns,
            missing=spec.missing,
            timeout_ms=timeout_ms,
            statement=StatementPlan(sql=""),
            exclusive_because="refused",
            not_coalesced_because="refused",
            refused=refused,
        )
    plan = QueryPlan(
        name=spec.name,
        version="0" * 16,
        connection=place,
        write=spec.write,
        returns=spec.returns,
        missing=spec.missing,
        timeout_ms=timeout_ms,
        record_params=spec.record_params,
        cache_ttl_ms=spec.cache_ttl_ms,
        params=facts.params,
        columns=facts.columns,
        statement=facts.statement,
        page=facts.page,
        unbounded=spec.unbounded,
        shared=not facts.exclusive_because,
        exclusive_because=facts.exclusive_because,
        coalesce=facts.coalesce,
        not_coalesced_because=facts.not_coalesced_because,
    )
    return plan.model_copy(update={"version": version_of(plan, connection, facts.depends)})


def version_of(plan: QueryPlan, connection: ConnectionPlan, depends: str) -> str:
    """16 hex digits over everything that the answers depend on; where the query stands in the snapshot, who may call it, whether callers
    share a statement and how long answers are kept don't count."""
    apart = {"version", "connection", "coalesce", "not_coalesced_because", "cache_ttl_ms"}
    if not plan.unbounded:
        apart.add("unbounded")  # So that other queries have the versions, and their cursors, that they had before there was the field.
    text = plan.model_dump_json(by_alias=True, exclude=apart)
    where = connection.model_dump_json(by_alias=True, include={"name", "engine", "session"})
    # Which Secret, not where it is mounted: the same resources give the same versions in every data directory.
    where += "\n" + "/".join(connection.url_file.split("/")[-3:])
    return hashlib.sha256(f"{text}\n{where}\n{depends}".encode()).hexdigest()[:16]
