"""Live keys → their plans; what is wrong with one refuses it alone. Pure."""

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace_contract.plan import Engine, KeyPlan

from tailrace_gateway.compile.grants import Params
from tailrace_gateway.compile.spec import KeySpec
from tailrace_gateway.serve.params import Faulty, Param

_HEX_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key's plan, or why it has none (`fault`), with everything that this was decided from."""

    spec: KeySpec
    role: int | None
    shared: bool
    """Whether another key has one of its digests."""
    params: Params | None
    """Those of the role; None for a key that binds nothing."""
    plan: KeyPlan | None
    fault: str


def plan_keys(
    keys: Sequence[KeySpec], roles: Mapping[str, int], params: Sequence[Params], before: Mapping[int, PlannedKey]
) -> dict[int, PlannedKey]:
    """Every key by its spec's identity. `roles`: positions by name; `params` by position. A key stays as it was if its spec is the same object and
    all else that it depends on is the same."""
    owners = Counter(digest for key in keys for digest in dict.fromkeys(key.sha256))
    checked: dict[tuple[int, str], str] = {}
    found: dict[int, PlannedKey] = {}
    for key in keys:
        role = roles.get(key.role)
        shared = any(owners[digest] > 1 for digest in key.sha256)
        bound = params[role] if role is not None and key.bind else None
        last = before.get(id(key))
        if last is not None and last.spec is key and last.role == role and last.shared == shared and last.params is bound:
            found[id(key)] = last
            continue
        fault = _fault(key, role, shared=shared)
        if not fault and role is not None and bound is not None:
            what = (role, json.dumps(key.bind, sort_keys=True))
            if what not in checked:
                checked[what] = _bind_fault(key, bound)
            fault = checked[what]
        plan = _plan(key, role) if not fault and role is not None else None
        found[id(key)] = PlannedKey(key, role, shared, bound, plan, fault)
    return found


def _plan(key: KeySpec, role: int) -> KeyPlan:
    return KeyPlan(
        id=key.id,
        sha256=key.sha256,
        role=role,
        bind=key.bind,
        not_before_us=key.not_before_us,
        not_after_us=key.not_after_us,
        cidrs=key.cidrs,
    )


def _fault(key: KeySpec, role: int | None, *, shared: bool) -> str:
    if role is None:
        return f"the API has no role `{key.role}`"
    if not key.sha256 or not all(_HEX_DIGEST.fullmatch(digest) for digest in key.sha256):
        return "it has no digest yet"
    if shared:
        return "another ApiKey has the same key text: mint or bring a new one"
    for cidr in key.cidrs:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            return f"`{cidr}` is no CIDR"
    return ""


def _bind_fault(key: KeySpec, params: Params) -> str:
    for name, value in key.bind.items():
        for param in params.get(name, {}).values():
            try:
                Param(param, Engine.POSTGRES).fixed(value)
            except Faulty as faulty:
                return f"the bound value of `{name}` is not acceptable ({faulty.fault.value})"
    return ""
