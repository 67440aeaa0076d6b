"""docs/values.md against the golden vectors: every row of its tables is one of them, and every encoding and mask has a row."""

import re
import sqlite3
import struct
from typing import Any

import pytest
from tailrace_contract.golden import FOLDER, raw, vectors
from tailrace_contract.plan import ColumnPlan, Encoding, Mask
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.rows import RowWriter
from tailrace_loadtest.servers.postgres import Postgres

PAGE = (FOLDER.parents[1] / "docs" / "values.md").read_text()


def tables() -> list[list[list[str]]]:
    """Cells of each table, without its two head lines."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [[[cell.strip() for cell in line[2:-1].split(" | ")] for line in table.splitlines()[2:]] for table in found]


def code(cell: str) -> str:
    """What stands in a cell."""
    assert re.fullmatch(r"`[^`]+`|\*\(nothing\)\*", cell), cell
    return cell[1:-1] if cell[0] == "`" else ""


def sqlite_literal(vector: dict[str, Any]) -> str:
    """The value as one writes it in SQL."""
    kind, rest = raw(vector)[:1], raw(vector)[1:]
    match kind:
        case b"i":
            return rest.decode()
        case b"r":
            (real,) = struct.unpack(">d", rest)
            return {"inf": "9e999", "-inf": "-9e999"}.get(repr(real), repr(real))
        case b"t":
            return f"'{rest.decode()}'"
        case _:
            return f"x'{rest.hex()}'"


def test_every_row_of_the_page_is_a_vector() -> None:
    postgres, sqlite, masks = tables()
    values = [vector for vector in vectors("values.json") if not vector.get("malformed")]
    known = {
        (vector["type"], vector["encoding"] + "[]" * vector.get("array", False), vector.get("text"), vector["json"], vector["csv"])
        for vector in values
    }
    for type_, encoding, text, json_text, csv in postgres:
        assert (type_, encoding, code(text), code(json_text), code(csv)) in known
    stored = {
        (vector["type"], vector["encoding"], sqlite_literal(vector), vector["json"], vector["csv"])
        for vector in values
        if vector["encoding"].startswith("storage")
    }
    for type_, encoding, value, json_text, csv in sqlite:
        assert (type_, encoding, code(value), code(json_text), code(csv)) in stored
    covered = {(vector["mask"], vector["value"], vector["covered"]) for vector in vectors("masks.json")["cases"]}
    for mask, value, shown in masks:
        assert (mask, code(value), code(shown)) in covered


def test_every_encoding_and_mask_has_a_row() -> None:
    postgres, sqlite, masks = tables()
    assert {row[1].removesuffix("[]") for row in postgres + sqlite} == {encoding.value for encoding in Encoding}
    assert {row[0] for row in masks} == {mask.value for mask in Mask}


PINS = "SET TimeZone='UTC'; SET DateStyle='ISO'; SET IntervalStyle='iso_8601'; SET bytea_output='hex'; SET extra_float_digits=1; SET lc_monetary='C';"
HAND_MADE = {"composite"}
"""Rows whose type is no type's name."""


@pytest.mark.postgres
def test_postgresql_writes_what_the_page_says() -> None:
    rows = [(type_.partition(" ")[0], code(text)) for type_, _, text, _, _ in tables()[0] if type_ not in HAND_MADE]
    with Postgres() as server:
        for type_, text in rows:
            quoted = "'" + text.replace("'", "''") + "'"
            # A cast to text takes char(n)'s blanks off; format() calls the type's output function.
            printed = server.psql(f"SET standard_conforming_strings=on; {PINS} SELECT format('%s', {quoted}::{type_})")
            assert printed == text + "\n", type_


def test_sqlite_gives_what_the_page_says() -> None:
    connection = sqlite3.connect(":memory:")
    for _, encoding, literal, json_text, csv in tables()[1]:
        (value,) = connection.execute(f"SELECT {code(literal)}").fetchone()
        writer = RowWriter([ColumnPlan(name="v", encoding=Encoding(encoding))], [], None)
        assert writer.row(Format.JSON, [value]).decode() == f'{{"v":{code(json_text)}}}'
        assert writer.row(Format.CSV, [value]).decode() == code(csv) + "\r\n"
    connection.close()
