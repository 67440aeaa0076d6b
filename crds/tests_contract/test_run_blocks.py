"""Blocks of runs, as both languages read them."""

import json
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract import run_block
from tailrace_contract.run_block import BlockRow, BlockUnreadable, PackedRun, pack, unpack

VECTORS = json.loads((Path(__file__).parents[1] / "golden/vectors/run_blocks.json").read_text())


def block_of(vector: dict[str, Any]) -> BlockRow:
    stored = {field.name: vector[field.name] for field in fields(BlockRow)}
    return BlockRow(**{name: bytes.fromhex(value) if isinstance(value, str) else value for name, value in stored.items()})


def runs_of(vector: dict[str, Any]) -> list[PackedRun]:
    return [
        PackedRun(**{**run, "query": tuple(run["query"]), "trace": run["trace"] and bytes.fromhex(run["trace"])}) for run in vector["runs"]
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_blocks_are_as_the_vectors_say(vector: dict[str, Any]) -> None:
    assert unpack(block_of(vector)) == runs_of(vector)
    assert pack(runs_of(vector)) == block_of(vector)


sizes = st.integers(0, 300) | st.integers(0, 2**32) | st.integers(0, 2**63 - 1)
names = st.integers(0, 5)
many = st.lists(
    st.builds(
        PackedRun,
        seq=st.integers(1, 2**62),
        time_us=st.integers(0, 2**62),
        **dict.fromkeys(("duration_us", "queue_us", "database_us", "rows", "bytes"), sizes),
        **dict.fromkeys(("key", "code", "client", "served_by"), names),
        query=st.tuples(names, names, names),
        status=st.integers(0, 999),
        batch=st.integers(0, 65_535),
        trace=st.none() | st.binary(min_size=16, max_size=16),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda run: run.seq,
)


@given(many)
def test_what_is_packed_comes_back(runs: list[PackedRun]) -> None:
    runs.sort(key=lambda run: run.seq)
    assert unpack(pack(runs)) == runs


@given(many, st.data())
def test_what_is_damaged_is_refused_or_read(runs: list[PackedRun], data: st.DataObject) -> None:
    runs.sort(key=lambda run: run.seq)
    row = asdict(pack(runs))
    body = row.pop("body")
    cut = data.draw(st.integers(0, len(body) - 1))
    for damaged in (body[:cut], body + b"\0"):
        with pytest.raises(BlockUnreadable):
            unpack(BlockRow(body=damaged, **row))
    with suppress(BlockUnreadable):
        unpack(BlockRow(body=body[:cut] + bytes([data.draw(st.integers(0, 255))]) + body[cut + 1 :], **row))


def test_a_block_holds_no_more_than_is_said() -> None:
    (vector, *_) = VECTORS
    row = asdict(block_of(vector))
    for count in (0, -1, run_block.RUNS_MOST + 1):
        with pytest.raises(BlockUnreadable):
            unpack(BlockRow(**{**row, "count": count}))
