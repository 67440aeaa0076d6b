"""Which namespaces' keys are admitted."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tailrace_contract.status import NAMESPACES_SHOWN
from tailrace_operator.admission import admitted, entries_of
from tailrace_operator.manifest import Object


def entry(labels: dict[str, str], **bind: str) -> Object:
    return {
        "namespaces": {"matchLabels": labels},
        "roles": ["r"],
        "bind": {name: {"namespaceLabel": label} for name, label in bind.items()},
    }


def namespace(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


def names(entries: list[Any], namespaces: list[Object]) -> list[tuple[str, dict[str, str]]]:
    return [(each.name, each.bind) for each in admitted(entries_of({"allowKeysFrom": entries}), namespaces, "home")]


def test_labels_decide_and_a_missing_bound_label_does_not_admit() -> None:
    namespaces = [namespace("b", a="1", t="x"), namespace("a", a="1"), namespace("c", a="2", t="y"), namespace("home", a="1", t="z")]
    assert names([entry({"a": "1"})], namespaces) == [("a", {}), ("b", {})]
    assert names([entry({"a": "1"}, tenant="t")], namespaces) == [("b", {"tenant": "x"})]
    assert names([], namespaces) == []


def test_a_namespace_stands_once_for_each_entry() -> None:
    found = admitted(
        entries_of({"allowKeysFrom": [entry({"a": "1"}), entry({"b": "2"}), entry({"a": "1"})]}), [namespace("x", a="1", b="2")], "home"
    )
    assert [each.name for each in found] == ["x", "x"]
    assert len({each.entry for each in found}) == 2


def test_one_that_goes_is_not_admitted() -> None:
    going = {"metadata": {"name": "x", "labels": {"a": "1"}, "deletionTimestamp": "t"}}
    assert names([entry({"a": "1"})], [going]) == []


def test_entries_that_cannot_be_read_admit_nobody_and_others_stay() -> None:
    broken: list[Any] = [None, 3, {}, {"namespaces": {"matchLabels": {}}, "roles": ["r"]}, {**entry({"a": "1"}), "more": 1}]
    assert names(broken, [namespace("x", a="1")]) == []
    assert names([*broken, entry({"a": "1"})], [namespace("x", a="1")]) == [("x", {})]
    assert entries_of({"allowKeysFrom": "no"}) == ()
    assert entries_of({}) == ()


def test_at_most_256() -> None:
    assert len(names([entry({"a": "1"})], [namespace(f"n{number}", a="1") for number in range(400)])) == NAMESPACES_SHOWN


LABELS = st.dictionaries(st.sampled_from(["a", "b", "t"]), st.sampled_from(["1", "2", ""]))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), min_size=1), st.booleans()), max_size=4),
    st.lists(LABELS, max_size=5),
)
def test_whoever_is_admitted_has_every_label_that_some_entry_asks_for(
    entries: list[tuple[dict[str, str], bool]], labelled: list[dict[str, str]]
) -> None:
    namespaces = [namespace(f"n{number}", **labels) for number, labels in enumerate(labelled)]
    found = names([entry(labels, **({"tenant": "t"} if bound else {})) for labels, bound in entries], namespaces)
    for number, labels in enumerate(labelled):
        expected = any(wanted.items() <= labels.items() and (not bound or "t" in labels) for wanted, bound in entries)
        assert (f"n{number}" in {name for name, _ in found}) is expected
    for name, bind in found:
        assert set(bind.values()) <= {labelled[int(name[1:])].get("t")}
