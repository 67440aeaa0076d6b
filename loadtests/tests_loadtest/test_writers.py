"""What the fault gate says of writes: each kind of fault is seen, and a table as it should be has none."""

import pytest
from tailrace_loadtest.writers import Writer, stored_faults


def writers() -> list[Writer]:
    return [Writer(1, "k", 1, acknowledged=[1, 2]), Writer(1, "k", 10, acknowledged=[10], open_=11)]


@pytest.mark.parametrize("stored", [{1: 1, 2: 1, 10: 1}, {1: 1, 2: 1, 10: 1, 11: 1}])
def test_each_acknowledged_number_once_and_an_open_one_at_most_once(stored: dict[int, int]) -> None:
    assert stored_faults(stored, writers()) == []


@pytest.mark.parametrize(
    ("stored", "fault"),
    [
        ({1: 1, 10: 1}, "2 was acknowledged and is not there"),
        ({1: 1, 2: 2, 10: 1}, "2 was written 2 times"),
        ({1: 1, 2: 1, 10: 1, 11: 2}, "11 was written 2 times"),
        ({1: 1, 2: 1, 3: 1, 10: 1}, "3 is there and was never asked for"),
    ],
)
def test_every_other_table_is_at_fault(stored: dict[int, int], fault: str) -> None:
    assert stored_faults(stored, writers()) == [fault]
