"""Differences between states: nobody gains anything without a word, and nothing breaks silently."""

import json

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tailrace_contract.apikey import ApiKey
from tailrace_contract.document import read
from tailrace_contract.ids import glob_matches
from tailrace_contract.queryapi import QueryAPI
from tailrace_gateway.diff import Change, Effect, differences
from tailrace_gateway.resources.state import Held, Origin, ResourceState

NAMES = ("aa", "ab", "b")
COLUMNS = ("t.a", "t.b")

params = st.fixed_dictionaries(
    {"type": st.just("integer")},
    optional={"required": st.just(True), "nullable": st.just(True), "minimum": st.integers(0, 3), "maximum": st.integers(5, 8), "enum": st.sampled_from([[5], [5, 6]])},
)  # fmt: skip
queries = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(NAMES), "connection": st.just("db"), "sql": st.sampled_from(["SELECT 1 AS x", "SELECT 2 AS x"])},
        optional={"returns": st.just("one"), "params": st.dictionaries(st.sampled_from(["p", "q"]), params, max_size=2)},
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda query: query["name"],
)
roles = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["r", "s"]), "queries": st.lists(st.sampled_from(["*", "a*", "aa", "b"]), min_size=1, max_size=2)},
        optional={
            "tables": st.sets(st.sampled_from(["t", "u"])).map(lambda names: {"allow": sorted(names)}),
            "masks": st.dictionaries(st.sampled_from(COLUMNS), st.sampled_from(["null", "redact", "hash", "partial"])).map(
                lambda masks: [{"column": column, "with": mask} for column, mask in masks.items()]
            ),
            "filterOnMasked": st.just(True),
        },
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda role: role["name"],
)
keys = st.dictionaries(
    st.sampled_from(["k", "l"]),
    st.fixed_dictionaries(
        {"queryApiRef": st.just({"name": "shop"}), "role": st.sampled_from(["r", "s"]), "secretName": st.just("x")},
        optional={
            "bind": st.dictionaries(st.sampled_from(["p", "q"]), st.integers(5, 6), max_size=1),
            "allowedCIDRs": st.lists(st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"]), min_size=1, max_size=2),
            "expiresAt": st.sampled_from(["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
            "suspended": st.just(True),
        },
    ),
)


def state(queries: object, roles: object, keys: dict[str, object]) -> ResourceState:
    spec = {"connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "d", "key": "u"}}}], "queries": queries, "roles": roles, "runStoreRef": {"name": "runs"}}  # fmt: skip
    documents = [{"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "shop"}, "spec": spec}]
    documents += [
        {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": name}, "spec": key} for name, key in keys.items()
    ]
    held = {}
    for document in documents:
        resource = read(document)  # type: ignore[arg-type]
        assert not isinstance(resource, list), resource
        held[f"{resource.kind} {resource.ref}"] = Held(resource, Origin("f"))
    return ResourceState(held)


states = st.builds(state, queries, roles, keys)


def only_api(found: ResourceState) -> QueryAPI:
    return next(iter(found.query_apis.values()))


def calls(found: ResourceState) -> set[tuple[str, str]]:
    """Every (key, query) that is answered, as far as grants go."""
    api = only_api(found)
    roles = {role.name: role for role in api.spec.roles}
    return {
        (str(ref), query.name)
        for ref, key in found.api_keys.items()
        if not key.spec.suspended and key.spec.role in roles
        for query in api.spec.queries
        if any(glob_matches(glob, query.name) for glob in roles[key.spec.role].queries)
    }


def told(changes: list[Change], effects: set[Effect], who: str, subjects: tuple[str, ...]) -> bool:
    return any(change.effect in effects and who in change.who and change.subject in subjects for change in changes)


def subjects(key: str, query: str, found: ResourceState, other: ResourceState) -> tuple[str, ...]:
    roles = {each.spec.role for state_ in (found, other) for ref, each in state_.api_keys.items() if str(ref) == key}
    return f"query {query}", f"key {key}", *(f"role {role}" for role in roles)


@settings(max_examples=40)
@given(states)
def test_nothing_changed_says_nothing(found: ResourceState) -> None:
    assert differences(found, found) == []


@settings(max_examples=40)
@given(states, states)
def test_whoever_may_call_more_is_told_as_widening(old: ResourceState, new: ResourceState) -> None:
    changes = differences(old, new)
    for key, query in calls(new) - calls(old):
        assert told(changes, {Effect.WIDENS}, key, subjects(key, query, new, old))


@settings(max_examples=40)
@given(states, states)
def test_whoever_may_call_less_is_told_as_breaking(old: ResourceState, new: ResourceState) -> None:
    changes = differences(old, new)
    for key, query in calls(old) - calls(new):
        role = {str(ref): each.spec.role for ref, each in old.api_keys.items()}[key]
        gone = any(change.effect is Effect.BREAKS and change.subject == f"role {role}" for change in changes)
        assert told(changes, {Effect.BREAKS}, key, subjects(key, query, new, old)) or gone


def _shown(found: ResourceState, key: ApiKey) -> dict[str, str]:
    role = next((role for role in only_api(found).spec.roles if role.name == key.spec.role), None)
    return {} if role is None else {mask.column: mask.with_.value for mask in role.masks}


@settings(max_examples=40)
@given(states, states)
def test_a_mask_that_goes_is_told_to_the_key_it_covered(old: ResourceState, new: ResourceState) -> None:
    changes = differences(old, new)
    for ref, key in old.api_keys.items():
        after = new.api_keys.get(ref)
        if after is None or key.spec.suspended or after.spec.suspended or key.spec.role != after.spec.role:
            continue
        if not any(who == str(ref) for who, _ in calls(old)) or not any(who == str(ref) for who, _ in calls(new)):
            continue
        for column in _shown(old, key).keys() - _shown(new, after).keys():
            assert any(c.effect is Effect.WIDENS and column in c.message and str(ref) in c.who for c in changes)


@settings(max_examples=40)
@given(states, states)
def test_a_change_back_undoes_who_gains(old: ResourceState, new: ResourceState) -> None:
    """What widens one way narrows or breaks the other way, for the same callers: nothing is told in one direction only."""
    forward, back = differences(old, new), differences(new, old)
    assert bool(forward) == bool(back)


@settings(max_examples=40)
@given(states, st.data())
def test_a_suspended_key_loses_and_a_resumed_one_gains(found: ResourceState, data: st.DataObject) -> None:
    assume(found.api_keys)
    ref = data.draw(st.sampled_from(sorted(found.api_keys)))
    identity = f"ApiKey {ref}"

    def with_suspended(value: bool) -> ResourceState:
        key = found.api_keys[ref]
        changed = key.model_copy(update={"spec": key.spec.model_copy(update={"suspended": value})})
        return ResourceState({**found.held, identity: Held(changed, Origin("f"))})

    on, off = with_suspended(False), with_suspended(True)
    assert Change(Effect.BREAKS, f"key {ref}", "is not in force any more", (str(ref),)) in differences(on, off)
    assert any(change.effect is Effect.WIDENS and change.subject == f"key {ref}" for change in differences(off, on))


LABELS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), min_size=1, max_size=2)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"namespaces": st.fixed_dictionaries({"matchLabels": LABELS}), "roles": st.lists(st.sampled_from(["r", "s"]), min_size=1, max_size=2, unique=True)},
        optional={"bind": st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from(["a", "b"]).map(lambda label: {"namespaceLabel": label}), max_size=2)},
    ),
    max_size=3,
)  # fmt: skip


def admitting(entries: list[dict[str, object]]) -> ResourceState:
    """A state whose API admits keys by these entries."""
    empty = state([{"name": "aa", "connection": "db", "sql": "SELECT 1 AS x"}], [{"name": "r", "queries": ["*"]}], {})
    (held,) = (each for each in empty.held.values() if isinstance(each.resource, QueryAPI))
    document = held.resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["spec"]["allowKeysFrom"] = entries
    api = QueryAPI.model_validate_json(json.dumps(document))
    return ResourceState({f"QueryAPI {api.ref}": Held(api, Origin(""))})


def admits(entries: list[dict[str, object]], labels: dict[str, str], role: str, fixed: frozenset[tuple[str, str]]) -> bool:
    """Whether a key of a namespace with these labels may have a role with at most these parameters fixed by these labels."""
    return any(
        role in entry["roles"]
        and entry["namespaces"]["matchLabels"].items() <= labels.items()
        and {(name, source["namespaceLabel"]) for name, source in entry.get("bind", {}).items()} <= fixed
        for entry in entries
    )


@given(
    ENTRIES,
    ENTRIES,
    LABELS,
    st.sampled_from(["r", "s"]),
    st.frozensets(st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(["a", "b"]))),
)
def test_no_namespace_is_let_in_or_out_without_a_word(old, new, labels, role, fixed) -> None:
    effects = {change.effect for change in differences(admitting(old), admitting(new))}
    before, after = admits(old, labels, role, fixed), admits(new, labels, role, fixed)
    assert Effect.WIDENS in effects or not after or before
    assert Effect.BREAKS in effects or not before or after


def test_an_entry_that_is_as_wide_as_before_is_no_change() -> None:
    entry = {"namespaces": {"matchLabels": {"a": "1"}}, "roles": ["r", "s"], "bind": {"p": {"namespaceLabel": "b"}}}
    split = [{**entry, "roles": ["s"]}, {**entry, "roles": ["r"]}]
    assert differences(admitting([entry]), admitting(split)) == []
    (change,) = differences(admitting([entry]), admitting([{**entry, "roles": ["r"]}]))
    assert (change.effect, change.message) == (
        Effect.BREAKS,
        "allowKeysFrom: no longer that keys of namespaces with a=1 may have role s, with p fixed",
    )
