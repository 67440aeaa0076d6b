"""Whole resources + compiled units → one Snapshot, its refusals, and the lineage that `explain` prints. Pure, no IO.

Rejects nothing as a whole: a unit that did not compile refuses, the rest stands. Size and time grow with queries × roles + keys.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import (
    ConnectionPlan,
    Engine,
    Grant,
    KeyPlan,
    ParamPlan,
    QueryPlan,
    RolePlan,
    Snapshot,
    StatementPlan,
)

from tailrace_gateway.compile.decision import Verdict
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, QuerySpec, RoleSpec
from tailrace_gateway.serve.params import Faulty, Param

_HEX_DIGEST = re.compile("[0-9a-f]{64}")


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
class Assembled:
    """The snapshot and what is to be told about it."""

    snapshot: Snapshot
    refusals: tuple[RefusedUnit, ...]


def granted(role: RoleSpec, queries: Sequence[QuerySpec]) -> list[int]:
    """Positions of the queries that a role names; `*` stands for any characters."""
    exact = {pattern for pattern in role.queries if "*" not in pattern}
    globs = [re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL) for pattern in role.queries if "*" in pattern]
    return [n for n, query in enumerate(queries) if query.name in exact or any(glob.fullmatch(query.name) for glob in globs)]


def assemble(
    spec: ApiSpec,
    version: int,
    connections: Mapping[str, CompiledConnection],
    queries: Mapping[str, CompiledQuery],
    verdict: Callable[[QuerySpec, RoleSpec], Verdict],
) -> Assembled:
    """Puts a snapshot together. `verdict` decides a granted pair whose query has facts."""
    refusals: list[RefusedUnit] = []
    places = {connection.name: n for n, connection in enumerate(spec.connections)}
    connection_plans = tuple(_connection(connection, connections.get(connection.name)) for connection in spec.connections)
    plans: list[QueryPlan] = []
    for query in spec.queries:
        compiled = queries[query.name]
        plans.append(_query(query, compiled, places[query.connection], connection_plans[places[query.connection]]))
        if compiled.facts is None:
            code = (compiled.refused or Refusal.NOT_PARSED).value
            refusals.append(RefusedUnit("query", query.name, code, compiled.hint, place=query.place, detail=compiled.detail))
    roles: list[RolePlan] = []
    granted_params: list[dict[str, dict[str, ParamPlan]]] = []
    declared = [[(param.name, param.model_dump_json(), param) for param in plan.params] for plan in plans]
    for role in spec.roles:
        grants = []
        params: dict[str, dict[str, ParamPlan]] = {}
        for n in granted(role, spec.queries):
            query = spec.queries[n]
            if plans[n].refused is not None:
                grants.append(Grant(query=n))
                continue
            decided = verdict(query, role)
            grants.append(Grant(query=n, masks=decided.masks, refused=decided.refused.value if decided.refused else None))
            if decided.refused is not None:
                refusals.append(RefusedUnit("grant", query.name, decided.refused.value, decided.hint, role=role.name, place=role.place))
                continue
            for name, text, param in declared[n]:
                params.setdefault(name, {})[text] = param
        roles.append(RolePlan(name=role.name, grants=tuple(grants)))
        granted_params.append(params)
    keys = _keys(spec, granted_params, refusals)
    snapshot = Snapshot(
        version=version,
        api=spec.api,
        sources=spec.sources,
        connections=connection_plans,
        queries=tuple(plans),
        roles=tuple(roles),
        keys=tuple(keys),
    )
    return Assembled(snapshot, tuple(refusals))


def _connection(spec: ConnectionSpec, compiled: CompiledConnection | None) -> ConnectionPlan:
    return ConnectionPlan(
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
        params=facts.params,
        columns=facts.columns,
        statement=facts.statement,
        page=facts.page,
        shared=not facts.exclusive_because,
        exclusive_because=facts.exclusive_because,
    )
    return plan.model_copy(update={"version": version_of(plan, connection, facts.depends)})


def version_of(plan: QueryPlan, connection: ConnectionPlan, depends: str) -> str:
    """16 hex digits over everything that the answers depend on; where the query stands in the snapshot and who may call it don't count."""
    text = plan.model_dump_json(by_alias=True, exclude={"version", "connection"})
    where = connection.model_dump_json(by_alias=True, include={"name", "engine", "session"})
    # Which Secret, not where it is mounted: the same resources give the same versions in every data directory.
    where += "\n" + "/".join(connection.url_file.split("/")[-3:])
    return hashlib.sha256(f"{text}\n{where}\n{depends}".encode()).hexdigest()[:16]


def _keys(spec: ApiSpec, params: Sequence[Mapping[str, Mapping[str, ParamPlan]]], refusals: list[RefusedUnit]) -> list[KeyPlan]:
    roles = {role.name: n for n, role in enumerate(spec.roles)}
    owners: dict[str, int] = {}
    for key in spec.keys:
        for digest in set(key.sha256):
            owners[digest] = owners.get(digest, 0) + 1
    checked: dict[tuple[int, str], str | None] = {}
    plans = []
    for key in spec.keys:
        reason = _key_fault(key, roles, owners)
        if reason is None and key.bind:
            role = roles[key.role]
            what = (role, json.dumps(key.bind, sort_keys=True))
            if what not in checked:
                checked[what] = _bind_fault(key, params[role])
            reason = checked[what]
        if reason is not None:
            refusals.append(RefusedUnit("key", key.id, Refusal.INVALID_KEY.value, reason, role=key.role, place=key.place))
            continue
        plans.append(
            KeyPlan(
                id=key.id,
                sha256=key.sha256,
                role=roles[key.role],
                bind=key.bind,
                not_before_us=key.not_before_us,
                not_after_us=key.not_after_us,
                cidrs=key.cidrs,
            )
        )
    return plans


def _key_fault(key: KeySpec, roles: Mapping[str, int], owners: Mapping[str, int]) -> str | None:
    if key.role not in roles:
        return f"the API has no role `{key.role}`"
    if not key.sha256 or not all(_HEX_DIGEST.fullmatch(digest) for digest in key.sha256):
        return "it has no digest yet"
    if any(owners[digest] > 1 for digest in key.sha256):
        return "another ApiKey has the same key text: mint or bring a new one"
    for cidr in key.cidrs:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            return f"`{cidr}` is no CIDR"
    return None


def _bind_fault(key: KeySpec, params: Mapping[str, Mapping[str, ParamPlan]]) -> str | None:
    for name, value in key.bind.items():
        for param in params.get(name, {}).values():
            try:
                Param(param, Engine.POSTGRES).fixed(value)
            except Faulty as faulty:
                return f"the bound value of `{name}` is not acceptable ({faulty.fault.value})"
    return None
