"""What may go on being served of the last snapshot while the new resources are still being compiled. Pure.

"A narrowed grant always applies at once": compiling may wait for a slow or silent database, taking a right away may not. The result is never
wider than the last snapshot: no key, grant, address or lifetime is added, and no mask is dropped.
"""

from ipaddress import ip_network

from tailrace_contract.codes import Refusal
from tailrace_contract.ids import glob_matches
from tailrace_contract.plan import ApiPlan, Grant, KeyPlan, RolePlan, Snapshot

from tailrace_gateway.compile.spec import ApiSpec, KeySpec, RoleSpec


def without_revoked(last: Snapshot, after: ApiSpec, version: int) -> Snapshot | None:
    """The last snapshot without the keys and digests that `after` no longer has; None when it has them all.

    Only what nobody may use any more goes, so that this needs no waiting for a compile: a call that is right before and after stays right.
    """
    wanted: dict[str, set[str]] = {}
    for key in after.keys:
        wanted.setdefault(key.id, set()).update(key.sha256)
    kept = []
    for plan in last.keys:
        digests = wanted.get(plan.id, set())
        if digests.issuperset(plan.sha256):
            kept.append(plan)
        elif left := tuple(each for each in plan.sha256 if each in digests):
            kept.append(plan.model_copy(update={"sha256": left}))
    if len(kept) == len(last.keys) and all(a is b for a, b in zip(kept, last.keys, strict=True)):
        return None
    return last.model_copy(update={"version": version, "keys": tuple(kept)})


def narrowed(last: Snapshot, before: ApiSpec, after: ApiSpec, version: int) -> Snapshot:
    """The last snapshot, made from `before`, without anything that `after` no longer gives.

    What can't be compared is taken away: a key with other bindings. A role whose tables or masks may have become stricter answers 503
    until it is compiled.
    """
    roles_before = {role.name: role for role in before.roles}
    roles_after = {role.name: role for role in after.roles}
    queries_after = {query.name for query in after.queries}
    names = [query.name for query in last.queries]

    def narrower(role: RolePlan) -> RolePlan:
        if roles_before.get(role.name) == roles_after.get(role.name) and queries_after.issuperset(names):
            return role
        return role.model_copy(update={"grants": grants(role)})

    def grants(role: RolePlan) -> tuple[Grant, ...]:
        old, new = roles_before.get(role.name), roles_after.get(role.name)
        if old is None or new is None:
            return ()
        waits = {} if _no_stricter(old, new) else {"refused": Refusal.DATABASE_UNREACHABLE.value, "masks": ()}
        return tuple(
            grant.model_copy(update=waits) if waits and grant.refused is None else grant
            for grant in role.grants
            if names[grant.query] in queries_after and any(glob_matches(glob, names[grant.query]) for glob in new.queries)
        )

    keys, keys_before = _by_id(after), _by_id(before)
    role_names = [role.name for role in last.roles]
    kept: list[KeyPlan] = []
    for key in last.keys:
        wanted, had = keys.get(key.id, []), keys_before.get(key.id, [])
        if len(wanted) == len(had) and all(a is b for a, b in zip(wanted, had, strict=True)):
            kept.append(key)
        else:
            kept += [plan for each in wanted if (plan := _key(key, each, role_names[key.role])) is not None]
    return last.model_copy(
        update={
            "version": version,
            "api": _api(last.api, after.api),
            "roles": tuple(map(narrower, last.roles)),
            "keys": tuple(kept),
        }
    )


def _by_id(spec: ApiSpec) -> dict[str, list[KeySpec]]:
    found: dict[str, list[KeySpec]] = {}
    for key in spec.keys:
        found.setdefault(key.id, []).append(key)
    return found


def _no_stricter(old: RoleSpec, new: RoleSpec) -> bool:
    """Whether everything that the old rules showed is still allowed to be shown as it was."""
    if old.filter_on_masked and not new.filter_on_masked and new.masks:
        return False
    if new.tables is not None and (old.tables is None or not set(old.tables) <= set(new.tables)):
        return False
    return set(new.masks) <= set(old.masks)


def _key(last: KeyPlan, wanted: KeySpec, role: str) -> KeyPlan | None:
    if wanted.role != role or dict(wanted.bind) != dict(last.bind):
        return None
    digests = tuple(digest for digest in last.sha256 if digest in wanted.sha256)
    cidrs = _both(last.cidrs, wanted.cidrs)
    if not digests or cidrs is None:
        return None
    starts = [each for each in (last.not_before_us, wanted.not_before_us) if each is not None]
    ends = [each for each in (last.not_after_us, wanted.not_after_us) if each is not None]
    return last.model_copy(
        update={
            "sha256": digests,
            "cidrs": cidrs,
            "not_before_us": max(starts, default=None),
            "not_after_us": min(ends, default=None),
        }
    )


def _both(last: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...] | None:
    """Networks that are in both lists, where no list means every address. None: no address is."""
    if not last or not wanted:
        return last or wanted
    common = []
    for text in last:
        network = ip_network(text, strict=False)
        for other_text in wanted:
            other = ip_network(other_text, strict=False)
            if network.version == other.version and network.overlaps(other):
                common.append(text if network.prefixlen >= other.prefixlen else other_text)
    return tuple(dict.fromkeys(common)) or None


def _api(last: ApiPlan, wanted: ApiPlan) -> ApiPlan:
    """Switches that take something away apply at once; what decides how answers look waits for the compile."""
    return last.model_copy(
        update={
            "hide_forbidden": last.hide_forbidden or wanted.hide_forbidden,
            "trusted_proxies": tuple(each for each in last.trusted_proxies if each in wanted.trusted_proxies),
            "tls": wanted.tls,
        }
    )
