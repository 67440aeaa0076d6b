"""Whatever changes, the snapshot that bridges a slow compile never gives more than the last one, nor more than the new resources."""

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.ids import glob_matches
from tailrace_contract.plan import ApiPlan, Grant, KeyPlan, Mask, QueryPlan, Returns, RolePlan, Snapshot, StatementPlan
from tailrace_gateway.compile.spec import ApiSpec, KeySpec, MaskSpec, QuerySpec, RoleSpec
from tailrace_gateway.narrowing import narrowed, without_revoked

QUERIES = ("aa", "ab", "b")
DIGESTS = tuple(letter * 64 for letter in "0123")
NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16", "fd00::/8")

roles = st.builds(
    RoleSpec,
    name=st.sampled_from(["r", "s"]),
    queries=st.lists(st.sampled_from(["*", "a*", "aa", "b"]), min_size=1, max_size=2).map(tuple),
    tables=st.none() | st.sets(st.sampled_from(["t", "u"])).map(tuple),
    masks=st.sets(st.sampled_from([MaskSpec("t.a", Mask.NULL), MaskSpec("t.b", Mask.HASH)])).map(tuple),
    filter_on_masked=st.booleans(),
)
keys = st.builds(
    KeySpec,
    id=st.sampled_from(["n/a", "n/b", "n/c"]),
    sha256=st.sampled_from(DIGESTS).map(lambda digest: (digest,)),
    role=st.sampled_from(["r", "s"]),
    bind=st.sampled_from([{}, {"x": 1}, {"x": 2}]),
    not_after_us=st.none() | st.integers(1, 3),
    cidrs=st.lists(st.sampled_from(NETWORKS), max_size=2).map(tuple),
)
specs = st.builds(
    lambda names, roles, keys, hide, proxies: ApiSpec(
        ApiPlan(namespace="n", name="a", hide_forbidden=hide, trusted_proxies=proxies),
        queries=tuple(QuerySpec(name, "c", "SELECT 1") for name in names),
        roles=tuple(roles),
        keys=tuple(keys),
    ),
    st.sets(st.sampled_from(QUERIES), min_size=1).map(sorted),
    st.lists(roles, min_size=1, max_size=2, unique_by=lambda role: role.name),
    st.lists(keys, max_size=3, unique_by=lambda key: key.sha256),
    st.booleans(),
    st.lists(st.sampled_from(NETWORKS), max_size=2).map(tuple),
)


def compiled(spec: ApiSpec) -> Snapshot:
    """A snapshot that gives exactly what the spec says."""
    names = [role.name for role in spec.roles]
    return Snapshot(
        version=1,
        api=spec.api,
        queries=tuple(
            QueryPlan(name=q.name, version="0" * 16, connection=0, returns=Returns.MANY, timeout_ms=1, statement=StatementPlan(sql="x")) for q in spec.queries
        ),
        roles=tuple(
            RolePlan(name=role.name, grants=tuple(Grant(query=n) for n, q in enumerate(spec.queries) if any(glob_matches(g, q.name) for g in role.queries)))
            for role in spec.roles
        ),
        keys=tuple(
            KeyPlan(id=k.id, sha256=k.sha256, role=names.index(k.role), bind=k.bind, not_after_us=k.not_after_us, cidrs=k.cidrs) for k in spec.keys if k.role in names
        ),
    )  # fmt: skip


ADDRESSES = [ip_address(text) for text in ("10.1.2.3", "10.9.9.9", "192.168.1.1", "172.16.0.1", "fd00::1", "fe80::1")]


def admitted(snapshot: Snapshot) -> set[tuple[object, ...]]:
    """Every (digest, address, time, query, binding) that is answered."""
    return {
        (digest, address, now, snapshot.queries[grant.query].name, tuple(sorted(key.bind.items())))
        for key in snapshot.keys
        for digest in key.sha256
        for address in ADDRESSES
        if not key.cidrs or any(address in ip_network(cidr) for cidr in key.cidrs)
        for now in range(4)
        if key.not_after_us is None or now < key.not_after_us
        for grant in snapshot.roles[key.role].grants
        if grant.refused is None
    }


@given(specs, specs)
def test_nothing_is_given_that_either_side_does_not_give(before: ApiSpec, after: ApiSpec) -> None:
    bridge = narrowed(compiled(before), before, after, 2)
    assert admitted(bridge) <= admitted(compiled(before)) & admitted(compiled(after))
    assert bridge.version == 2
    assert bridge.api.hide_forbidden == (before.api.hide_forbidden or after.api.hide_forbidden)
    assert set(bridge.api.trusted_proxies) == set(before.api.trusted_proxies) & set(after.api.trusted_proxies)


@given(specs, specs)
def test_a_role_that_may_show_less_waits(before: ApiSpec, after: ApiSpec) -> None:
    bridge = narrowed(compiled(before), before, after, 2)
    new = {role.name: role for role in after.roles}
    old = {role.name: role for role in before.roles}
    for role in bridge.roles:
        if any(grant.refused is None for grant in role.grants):
            assert set(new[role.name].masks) <= set(old[role.name].masks)
            tables = new[role.name].tables
            was = old[role.name].tables
            assert tables is None or (was is not None and set(was) <= set(tables))


@given(specs)
def test_what_did_not_change_goes_on(spec: ApiSpec) -> None:
    assert admitted(narrowed(compiled(spec), spec, spec, 2)) == admitted(compiled(spec))


@given(specs, specs)
def test_revoked_digests_go_and_nothing_else_does(before: ApiSpec, after: ApiSpec) -> None:
    last = compiled(before)
    kept = {(key.id, digest) for key in after.keys for digest in key.sha256}
    had = {(key.id, digest) for key in last.keys for digest in key.sha256}
    found = without_revoked(last, after, 2)
    if found is None:
        assert had <= kept
        return
    assert {(key.id, digest) for key in found.keys for digest in key.sha256} == had & kept != had
    before_by_id = {(key.id, digest): key for key in last.keys for digest in key.sha256}
    for key in found.keys:
        assert key == before_by_id[key.id, key.sha256[0]].model_copy(update={"sha256": key.sha256})
    assert found == last.model_copy(update={"version": 2, "keys": found.keys})
