"""The idempotency table: its form on SQLite, and how rows are kept."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.idempotency import INSERT, LOOKUP, ddl, decode_result, encode_result, lock_id, statement


def test_sqlite_takes_all_of_it() -> None:
    db = sqlite3.connect(":memory:")
    for _ in range(2):
        db.execute(ddl('"some table"', "sqlite"))
    insert = statement(INSERT, '"some table"', "?")
    values = ("ns/key", "k", "q", "ab", 1, 0, 1, b"\0\0\0\1x")
    db.execute(insert, values)
    found = db.execute(statement(LOOKUP, '"some table"', "?"), ("ns/key", "k")).fetchall()
    assert found == [("ab", 1, 0, 1, b"\0\0\0\1x")]
    with pytest.raises(sqlite3.IntegrityError):
        db.execute(insert, values)
    db.close()


def test_lock_id_is_fixed() -> None:
    # The data plane computes the same (engine/postgres/idempotency.rs).
    assert lock_id("ns/key", "k") == -5438441015119046580


@given(st.integers(0, 4).flatmap(lambda n: st.lists(st.lists(st.none() | st.binary(max_size=9), min_size=n, max_size=n), max_size=5)))
def test_rows_round_trip(rows: list[list[bytes | None]]) -> None:
    columns = len(rows[0]) if rows else 2
    data = encode_result(rows)
    assert decode_result(data, len(rows), columns) == rows
    with pytest.raises(ValueError, match="stored"):
        decode_result(data + b"\0", len(rows), columns)
