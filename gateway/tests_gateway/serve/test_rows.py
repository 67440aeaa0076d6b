"""Values, masks and bodies against the golden vectors, and properties of each."""

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.golden import raw, vectors
from tailrace_contract.plan import ColumnPlan, Encoding, Mask, MaskPlan, Returns
from tailrace_gateway.serve.floats import float_text
from tailrace_gateway.serve.formats import Format, affected
from tailrace_gateway.serve.masks import cover, mask_key
from tailrace_gateway.serve.rows import RowWriter, join_row, split_row
from tailrace_gateway.serve.values import Malformed, Value, tag, untag


def column(vector: dict[str, Any]) -> ColumnPlan:
    return ColumnPlan(
        name=vector.get("name", "v"),
        encoding=Encoding(vector["encoding"]),
        array=vector.get("array", False),
        delimiter=vector.get("delimiter", ","),
    )


def value_of(vector: dict[str, Any]) -> Value:
    return untag(raw(vector)) if vector["encoding"].startswith("storage") else raw(vector)


@pytest.mark.parametrize("vector", vectors("values.json"), ids=lambda v: f"{v['type']}:{v.get('text', v.get('hex'))}"[:60])
def test_values_as_the_vectors_say(vector: dict[str, Any]) -> None:
    writer = RowWriter([column(vector)], [], None)
    if vector.get("malformed"):
        for form in (Format.JSON, Format.CSV):
            with pytest.raises(Malformed):
                writer.row(form, [value_of(vector)])
        return
    assert writer.row(Format.JSON, [value_of(vector)]).decode() == f'{{"v":{vector["json"]}}}'
    assert writer.row(Format.NDJSON, [value_of(vector)]).decode() == f'{{"v":{vector["json"]}}}\n'
    assert writer.row(Format.CSV, [value_of(vector)]).decode() == vector["csv"] + "\r\n"


def test_doubles_as_postgresql_writes_them() -> None:
    for vector in vectors("floats.json"):
        (real,) = struct.unpack(">d", bytes.fromhex(vector["bits"]))
        assert float_text(real) == vector["text"]


def test_masks_as_the_vectors_say() -> None:
    file = vectors("masks.json")
    key = mask_key(bytes.fromhex(file["secret"]))
    for vector in file["cases"]:
        assert cover(Mask(vector["mask"]), key, vector["value"]) == vector["covered"], vector


def test_bodies_as_the_vectors_say() -> None:
    file = vectors("rows.json")
    masks = [MaskPlan.model_validate(mask) for mask in file["masks"]]
    writer = RowWriter([column(c) for c in file["columns"]], masks, None)
    rows = [[None if value is None else value.encode() for value in row] for row in file["rows"]]
    for vector in file["bodies"]:
        form, returns = Format(vector["format"]), Returns(vector["returns"])
        count = vector["rows"]
        body = writer.begin(form, returns)
        body += writer.separator(form).join(writer.row(form, row) for row in rows[:count])
        body += writer.end(form, returns, count, vector.get("truncated", False))
        assert body.decode() == vector["body"]
    for vector in file["affected"]:
        assert affected(Format(vector["format"]), vector["count"]).decode() == vector["body"]


def test_what_cannot_be_masked_is_refused() -> None:
    plan = [ColumnPlan(name="v", encoding=Encoding.STRING)]

    def mask(number: int, with_: Mask) -> MaskPlan:
        return MaskPlan(column=number, with_=with_)

    for masks in ([mask(1, Mask.NULL)], [mask(0, Mask.NULL), mask(0, Mask.REDACT)], [mask(0, Mask.HASH)]):
        with pytest.raises(ValueError, match="mask"):
            RowWriter(plan, masks, None)
    for bad in (
        ColumnPlan(name="v", encoding=Encoding.STORAGE, array=True),
        ColumnPlan(name="v", encoding=Encoding.RAW, array=True, delimiter=""),
    ):
        with pytest.raises(ValueError, match="array"):
            RowWriter([bad], [], None)


@given(st.lists(st.none() | st.binary(max_size=20), max_size=6), st.binary(max_size=3))
def test_rows_split_as_they_were_joined(row: list[bytes | None], behind: bytes) -> None:
    joined = join_row(row)
    assert split_row(joined + behind, len(row)) == (row, len(joined))
    with pytest.raises(Malformed):
        split_row(joined, len(row) + 1)


@given(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary())
def test_sqlite_values_keep_their_class(value: Value) -> None:
    assert untag(tag(value)) == value
    assert type(untag(tag(value))) is type(value)


@given(st.text())
def test_strings_read_back_as_they_were(text: str) -> None:
    row = RowWriter([ColumnPlan(name="v", encoding=Encoding.STRING)], [], None).row(Format.JSON, [text.encode()])
    assert json.loads(row) == {"v": text}


@given(st.binary(max_size=2000))
def test_bytes_are_base64(value: bytes) -> None:
    writer = RowWriter([ColumnPlan(name="v", encoding=Encoding.BASE64)], [], None)
    assert writer.row(Format.CSV, [b"\\x" + value.hex().encode()]) == (base64.b64encode(value) or b'""') + b"\r\n"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back_as_they_were(real: float) -> None:
    assert struct.pack(">d", float(float_text(real))) == struct.pack(">d", real)
