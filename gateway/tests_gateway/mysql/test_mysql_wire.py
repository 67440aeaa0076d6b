"""The binary protocol: golden vectors that Rust reads too, and nothing but Malformed for any bytes."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.plan import Encoding, MysqlPlace, StatementPlan
from tailrace_gateway.serve.floats import single_text
from tailrace_gateway.serve.mysql.wire import Column, Reader, Type, column_of, execution, parameter, row_of
from tailrace_gateway.serve.values import Malformed

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "crds/golden/vectors/mysql_values.json").read_text())


def column(case: dict[str, Any]) -> Column:
    return Column("d", "t", "t", "c", "c", case["charset"], case["length"], case["type"], case["flags"])


def packet(case: dict[str, Any]) -> bytes:
    return b"\0\0" + bytes.fromhex(case["hex"])


@pytest.mark.parametrize("case", VECTORS["columns"], ids=lambda case: f"{case['type']}:{case['hex'][:30]}")
def test_values(case: dict[str, Any]) -> None:
    shown = column(case)
    assert row_of(packet(case), [shown]) == [case["text"].encode()]
    assert row_of(b"\0\4", [shown]) == [None]
    assert (shown.encoding, shown.type_oid) == (case["encoding"], case["typeOid"])


@pytest.mark.parametrize("case", VECTORS["malformed"], ids=lambda case: f"{case['type']}:{case['hex']}")
def test_malformed_values(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        row_of(packet(case), [column(case)])


@pytest.mark.parametrize("case", VECTORS["parameters"], ids=lambda case: f"{case['place']}:{case['text'][:40]}")
def test_parameters(case: dict[str, Any]) -> None:
    kind, data = parameter(case["place"], case["text"].encode())
    assert (kind & 0xFF, bool(kind & 0x8000), data.hex()) == (case["type"], case["unsigned"], case["hex"])


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: f"{case['place']}:{case['text']}")
def test_refused_parameters(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parameter(case["place"], case["text"].encode())


def test_singles_are_postgresqls() -> None:
    for case in VECTORS["singles"]:
        (value,) = struct.unpack(">f", bytes.fromhex(case["bits"]))
        assert single_text(value) == case["text"], case


def test_what_fits() -> None:
    for case in VECTORS["fits"]:
        shown = column(case)
        assert [each.value for each in Encoding if not each.value.startswith("storage") and shown.fits(each)] == sorted(
            case["encodings"], key=[each.value for each in Encoding].index
        )


def test_origins() -> None:
    for case in VECTORS["tables"]:
        assert Column(case["schema"], "x", case["orgTable"], "y", case["orgName"], 63, 1, 8, 0).table_oid == case["tableOid"]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=300)), max_size=20))
def test_rows_of_any_bytes_arrive(values: list[bytes | None]) -> None:
    columns = [Column("", "", "", "c", "", 45, 1, Type.VAR_STRING, 0)] * len(values)
    nulls = bytearray((len(values) + 9) // 8)
    body = b""
    for n, value in enumerate(values):
        if value is None:
            nulls[(n + 2) >> 3] |= 1 << ((n + 2) & 7)
        else:
            body += parameter(MysqlPlace.TEXT, value)[1]
    assert row_of(b"\0" + bytes(nulls) + body, columns) == values


KINDS = st.sampled_from([*Type, 14, 99])


@given(st.binary(max_size=40), st.lists(KINDS, max_size=4))
def test_any_packet_is_read_or_malformed(data: bytes, kinds: list[int]) -> None:
    columns = [Column("", "", "", "c", "", 63, 1, kind, 0) for kind in kinds]
    for read in (lambda: row_of(data, columns), lambda: column_of(data), lambda: Reader(data).length()):
        try:
            read()
        except Malformed:
            continue


@given(st.lists(st.tuples(st.sampled_from([MysqlPlace.TEXT, MysqlPlace.DATE]), st.one_of(st.none(), st.binary(max_size=20))), max_size=12))
def test_an_execution_has_a_type_for_each_place(places: list[tuple[MysqlPlace, bytes | None]]) -> None:
    statement = StatementPlan(sql="", oids=tuple(place for place, _ in places))
    body = execution(7, statement, [value for _, value in places])
    assert body[:9] == b"\7\0\0\0\0\1\0\0\0"
    if places:
        nulls = body[9 : 9 + (len(places) + 7) // 8]
        assert [bool(nulls[n >> 3] >> (n & 7) & 1) for n in range(len(places))] == [value is None for _, value in places]
        assert body[9 + len(nulls)] == 1
    with pytest.raises(Malformed):
        execution(7, statement, [value for _, value in places] + [None])
