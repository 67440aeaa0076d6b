"""`allowKeysFrom`: the default is refusal, and whatever a key asks for, it gets no more than an entry gives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.apikey import ApiKey
from tailrace_contract.document import read
from tailrace_contract.fingerprints import entry_fingerprint
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.status import AdmittedNamespace
from tailrace_gateway.ceilings import Ceilings


def api(*entries: dict[str, Any]) -> QueryAPI:
    spec = {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": [{"name": "one", "connection": "db", "sql": "SELECT 1 AS x"}],
        "roles": [{"name": role, "queries": ["*"]} for role in ("a", "b", "c")],
        "runStoreRef": {"name": "runs"},
        "allowKeysFrom": list(entries),
    }
    found = read(
        {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "shop", "namespace": "retail"}, "spec": spec}
    )
    assert isinstance(found, QueryAPI), found
    return found


def key(namespace: str, role: str = "a", bind: dict[str, Any] | None = None) -> ApiKey:
    spec = {"queryApiRef": {"name": "shop", "namespace": "retail"}, "role": role, "secretName": "k", "bind": bind or {}}
    found = read({"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "k", "namespace": namespace}, "spec": spec})
    assert isinstance(found, ApiKey), found
    return found


def entry(label: str = "x", roles: tuple[str, ...] = ("a",), bind: dict[str, str] | None = None) -> dict[str, Any]:
    sources = {name: {"namespaceLabel": source} for name, source in (bind or {}).items()}
    return {"namespaces": {"matchLabels": {"team": label}}, "roles": list(roles), "bind": sources}


def admitted(name: str, label: str = "x", bind: dict[str, str] | None = None, values: dict[str, str] | None = None) -> AdmittedNamespace:
    """As the operator writes it for an entry with this label and bind."""
    return AdmittedNamespace(name=name, entry=entry_fingerprint({"team": label}, bind or {}), bind=values or {})


def test_the_own_namespace_always_may() -> None:
    assert Ceilings(api(), ()).admit(key("retail", "c", {"tenant": 1})).bind == {"tenant": 1}


def test_another_namespace_needs_both_the_spec_and_the_status() -> None:
    assert Ceilings(api(entry()), ()).admit(key("teama")).refused
    assert Ceilings(api(), [admitted("teama")]).admit(key("teama")).refused
    assert Ceilings(api(entry()), [admitted("teamb")]).admit(key("teama")).refused
    assert not Ceilings(api(entry()), [admitted("teama")]).admit(key("teama")).refused


def test_roles_are_those_of_the_spec_now() -> None:
    status = [admitted("teama")]
    assert not Ceilings(api(entry(roles=("a", "b"))), status).admit(key("teama", "b")).refused
    assert "role `b`" in Ceilings(api(entry(roles=("a",))), status).admit(key("teama", "b")).refused


def test_an_entry_that_moves_takes_nobody_along() -> None:
    """A new first entry gives admin to another team: whoever was admitted by the old first entry must not get it."""
    before = entry("x", ("a",))
    new = entry("y", ("c",))
    ceilings = Ceilings(api(new, before), [admitted("teama", "x")])
    assert ceilings.admit(key("teama", "c")).refused
    assert not ceilings.admit(key("teama", "a")).refused


def test_an_edited_entry_gives_nothing_until_the_labels_were_read_for_it() -> None:
    status = [admitted("teama", "x", {"tenant": "tenant"}, {"tenant": "42"})]
    assert Ceilings(api(entry("x", bind={"tenant": "tenant"})), status).admit(key("teama")).bind == {"tenant": "42"}
    assert Ceilings(api(entry("x", bind={"tenant": "customer"})), status).admit(key("teama")).refused
    assert Ceilings(api(entry("x", bind={"tenant": "tenant", "region": "r"})), status).admit(key("teama")).refused
    assert Ceilings(api(entry("x")), status).admit(key("teama")).refused


@pytest.mark.parametrize(
    ("own", "fits"), [("42", True), (42, True), (43, False), ("042", False), (None, False), (True, False), (42.0, False), (["42"], False)]
)
def test_a_key_must_not_bind_otherwise(own: Any, fits: bool) -> None:
    ceilings = Ceilings(api(entry(bind={"tenant": "tenant"})), [admitted("teama", "x", {"tenant": "tenant"}, {"tenant": "42"})])
    found = ceilings.admit(key("teama", bind={"tenant": own, "more": 1}))
    assert (not found.refused) == fits
    assert "42" not in found.refused
    assert "43" not in found.refused
    if fits:
        assert found.bind == {"tenant": "42", "more": 1}


labels = st.sampled_from(["x", "y"])
binds = st.dictionaries(st.sampled_from(["tenant", "region"]), st.sampled_from(["l1", "l2"]), max_size=2)
roles = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True).map(tuple)
entries = st.lists(st.tuples(labels, roles, binds), max_size=3)
NAMESPACES = {"teama": {"team": "x", "l1": "1", "l2": "2"}, "teamb": {"team": "y", "l1": "9"}, "teamc": {}}


def operator(listed: list[tuple[str, tuple[str, ...], dict[str, str]]]) -> list[AdmittedNamespace]:
    """What the operator would write: each namespace with the label, for each entry, if it has every label that binds."""
    return [
        admitted(name, label, bind, {param: has[source] for param, source in bind.items()})
        for name, has in NAMESPACES.items()
        for label, _, bind in listed
        if has.get("team") == label and set(bind.values()) <= set(has)
    ]


@given(
    entries,
    entries,
    st.sampled_from(sorted(NAMESPACES)),
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from(["tenant", "region", "z"]), st.sampled_from(["1", "2", 9]), max_size=2),
)
def test_a_key_gets_no_more_than_an_entry_of_now_gives(
    now: list[tuple[str, tuple[str, ...], dict[str, str]]],
    then: list[tuple[str, tuple[str, ...], dict[str, str]]],
    namespace: str,
    role: str,
    own: dict[str, Any],
) -> None:
    """The status may be of an older spec: even then only what an entry of the present spec offers this namespace's labels is given."""
    found = Ceilings(api(*[entry(*each) for each in now]), operator(then)).admit(key(namespace, role, own))
    has = NAMESPACES[namespace]
    offers = [
        {param: has[source] for param, source in bind.items()}
        for label, offered, bind in now
        if has.get("team") == label and role in offered and set(bind.values()) <= set(has)
    ]
    if found.refused:
        return
    fitting = [offer for offer in offers if offer.items() <= dict(found.bind).items()]
    assert fitting
    assert any(all(str(own[name]) == value for name, value in offer.items() if name in own) for offer in fitting)
    assert all(found.bind[name] == value for name, value in own.items() if name not in {n for offer in fitting for n in offer})


@given(entries, st.sampled_from(sorted(NAMESPACES)), st.sampled_from("abc"))
def test_what_is_offered_now_and_was_read_is_given(
    listed: list[tuple[str, tuple[str, ...], dict[str, str]]], namespace: str, role: str
) -> None:
    has = NAMESPACES[namespace]
    offered = any(has.get("team") == label and role in given and set(bind.values()) <= set(has) for label, given, bind in listed)
    found = Ceilings(api(*[entry(*each) for each in listed]), operator(listed)).admit(key(namespace, role))
    assert (not found.refused) == offered
