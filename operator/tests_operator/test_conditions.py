"""Conditions: when they flip, what they keep, and that an unchanged status is not written."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.status import QueryAPIStatus
from tailrace_operator.conditions import MESSAGE_LENGTH, Type, Verdict, is_changed, listed, read_status, ready, stamped, status_body

NOW = datetime(2026, 11, 30, 22, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
SECOND = NOW.replace(microsecond=0)

verdicts = st.lists(
    st.builds(
        Verdict, st.sampled_from(Type), st.sampled_from(["True", "False", "Unknown"]), st.sampled_from(["A", "B"]), st.text(max_size=3)
    ),
    unique_by=lambda each: each.type,
)


def test_the_time_is_that_of_the_last_flip() -> None:
    first = stamped((), [Verdict(Type.READY, "Unknown", "Applying")], 1, NOW)
    same = stamped(first, [Verdict(Type.READY, "Unknown", "RollingOut", "other words")], 2, LATER)
    flipped = stamped(same, [Verdict(Type.READY, "True", "Ready")], 2, LATER)
    assert [each.last_transition_time for each in (*first, *same, *flipped)] == [SECOND, SECOND, LATER.replace(microsecond=0)]
    assert [each.observed_generation for each in (*first, *same, *flipped)] == [1, 2, 2]


def test_what_has_no_verdict_goes() -> None:
    first = stamped((), ready("Unknown", "Applying", reconciling=True), 1, NOW)
    assert [each.type for each in first] == ["Ready", "Reconciling"]
    assert [each.type for each in stamped(first, ready("True", "Ready"), 1, LATER)] == ["Ready"]


@pytest.mark.parametrize(
    ("reconciling", "stalled", "types"),
    [
        (False, False, ["Ready"]),
        (True, False, ["Ready", "Reconciling"]),
        (False, True, ["Ready", "Stalled"]),
        (True, True, ["Ready", "Stalled"]),
    ],
)
def test_never_both(reconciling: bool, stalled: bool, types: list[str]) -> None:
    found = ready("False", "Why", "words", reconciling=reconciling, stalled=stalled)
    assert [str(each.type) for each in found] == types
    assert {(each.reason, each.message) for each in found} == {("Why", "words")}


@given(verdicts, st.permutations(list(Type)))
def test_nothing_new_is_no_write(found: list[Verdict], order: list[Type]) -> None:
    """Whatever the order in which it was found, and however often it is said again later."""
    status = QueryAPIStatus(observed_generation=3, conditions=stamped((), found, 3, NOW))
    live = {"status": status_body(status)}
    read = read_status(QueryAPIStatus, live)
    assert read == status
    again = stamped(read.conditions, sorted(found, key=lambda each: order.index(each.type)), 3, LATER)
    assert not is_changed(live, status_body(QueryAPIStatus(observed_generation=3, conditions=again)))


@given(verdicts, verdicts)
def test_a_difference_is_a_write(found: list[Verdict], other: list[Verdict]) -> None:
    live = {"status": status_body(QueryAPIStatus(observed_generation=3, conditions=stamped((), found, 3, NOW)))}
    body = status_body(QueryAPIStatus(observed_generation=3, conditions=stamped((), other, 3, NOW)))
    assert is_changed(live, body) == (set(found) != set(other))


@pytest.mark.parametrize("status", [None, {}, {"conditions": "no list"}, {"observedGeneration": -1}, {"observedGeneration": "1"}])
def test_a_status_that_nobody_wrote_counts_as_none(status: object) -> None:
    assert read_status(QueryAPIStatus, {"status": status}) == QueryAPIStatus()


def test_messages_are_bounded() -> None:
    (condition,) = stamped((), [Verdict(Type.READY, "False", "Long", "x" * 10_000)], 1, NOW)
    assert len(condition.message) == MESSAGE_LENGTH
    assert condition.message.endswith("x…")
    assert listed(["a", "b"], 2) == "a; b"
    assert listed(["a", "b", "c", "d"], 2) == "a; b and 2 more"


def test_the_body_has_what_kubectl_reads() -> None:
    status = QueryAPIStatus(observed_generation=1, conditions=stamped((), [Verdict(Type.READY, "True", "Ready", "yes")], 1, NOW))
    assert status_body(status) == {
        "observedGeneration": 1,
        "replicas": 0,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "yes",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-11-30T22:00:00Z",
            }
        ],
    }
