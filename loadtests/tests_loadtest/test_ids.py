"""Sets of run ids."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.run import STORE_DDL, run_id
from tailrace_loadtest import ids

IDS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5000)), max_size=60)


def filled(pairs: list[tuple[int, int]]) -> ids.RunIds:
    return ids.of_lines(run_id(*pair) + "\n" for pair in pairs)


@given(IDS, IDS)
def test_they_are_sets(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    left, right = filled(one), filled(two)
    assert (len(left), left.doubled) == (len(set(one)), len(one) - len(set(one)))
    assert left.without(right) == len(set(one) - set(two))
    assert set(left.only_here(right, 1000)) == {run_id(*pair) for pair in set(one) - set(two)}
    highest = {epoch: max(sequence for each, sequence in one if each == epoch) for epoch, _ in one}
    assert left.gaps() == sum(highest.values()) - len(set(one))


def test_what_is_no_run_id_is_refused() -> None:
    for line in ("", "x", "0000000000000001-000000000000", "0000000000000001-ffffffffffff", "0000000000000001-000000000001 "):
        with pytest.raises(ValueError, match="run id"):
            ids.of_lines([line])


def test_a_store_is_read(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "runs.sqlite")
    connection.executescript(STORE_DDL)
    for sequence in (1, 2, 4):
        connection.execute("INSERT INTO runs VALUES (7, ?, 0,0,0,0, 0,0,0,0, 200,0,0,0,1, NULL, 0, 0, NULL)", (sequence,))
    connection.commit()
    connection.close()
    stored = ids.of_store(tmp_path / "runs.sqlite")
    assert (len(stored), stored.gaps(), filled([(7, 4), (7, 5)]).without(stored)) == (3, 1, 1)
