"""Rows of one query as one role sees them, in every format. Pure. Rejects (`Malformed`) rows without the plan's form.

The Rust twin is `dataplane-rs/src/encode/rows.rs`; both read `crds/golden/vectors/rows.json`.
"""

import struct
from collections.abc import Callable, Sequence

from tailrace_contract.plan import ColumnPlan, Mask, MaskPlan, Returns
from tailrace_gateway.serve.formats import Format, completion
from tailrace_gateway.serve.masks import MaskKey, cover, own_text
from tailrace_gateway.serve.values import Malformed, Value, encoder, json_string

Row = Sequence[Value | None]
"""The columns of one row as the database gave them; None is NULL."""


class RowWriter:
    """Everything that does not depend on the row is made once. ValueError when masks or arrays cannot be applied: refuse the unit."""

    def __init__(self, columns: Sequence[ColumnPlan], masks: Sequence[MaskPlan], key: MaskKey | None) -> None:
        covered = {mask.column: mask.with_ for mask in masks}
        if len(covered) != len(masks) or any(column >= len(columns) for column in covered):
            raise ValueError("a mask does not name exactly one column")
        if key is None and Mask.HASH in covered.values():
            raise ValueError("a hash mask needs the mask key")
        self._columns = [(json_string(column.name), _encode(column, covered.get(n), key)) for n, column in enumerate(columns)]
        self._header = ",".join(quote_field(column.name) for column in columns) + "\r\n"

    def begin(self, form: Format, returns: Returns) -> bytes:
        """What stands before the first row."""
        if form is Format.JSON and returns is Returns.MANY:
            return b"["
        if form is Format.CSV and returns is not Returns.NONE:
            return self._header.encode()
        return b""

    def separator(self, form: Format) -> bytes:
        """What stands between two rows (NDJSON and CSV rows end their own line)."""
        return b"," if form is Format.JSON else b""

    def end(self, form: Format, returns: Returns, rows: int, truncated: bool) -> bytes:
        """What stands behind the last row. `one` without a row (`missing: null`) is `null` in JSON, no row in the others."""
        if form is Format.JSON and returns is Returns.MANY:
            return b"]"
        if form is Format.JSON and returns is Returns.ONE and not rows:
            return b"null"
        if form is Format.NDJSON and returns is not Returns.NONE:
            return completion(rows, truncated).encode()
        return b""

    def row(self, form: Format, row: Row) -> bytes:
        """One row; NDJSON and CSV with their line end."""
        if len(row) != len(self._columns):
            raise Malformed("not as many columns as the plan has")
        cells = [None if value is None else encode(value) for value, (_, encode) in zip(row, self._columns, strict=True)]
        if form is Format.CSV:
            return (",".join(map(_field, cells)) + "\r\n").encode()
        pairs = (f"{name}:{'null' if cell is None else cell}" for cell, (name, _) in zip(cells, self._columns, strict=True))
        return ("{" + ",".join(pairs) + ("}\n" if form is Format.NDJSON else "}")).encode()


def _encode(column: ColumnPlan, mask: Mask | None, key: MaskKey | None) -> Callable[[Value], str | None]:
    plain = encoder(column)
    if mask is None:
        return plain

    def masked(value: Value) -> str | None:
        text = cover(mask, key, plain(value))
        return None if text == "null" else text

    return masked


def _field(cell: str | None) -> str:
    """A JSON string's own text, anything else as it is; NULL is nothing. A string that stands for no text stays JSON."""
    if cell is None:
        return ""
    own = own_text(cell)
    return quote_field(cell if own is None else own)


def quote_field(text: str) -> str:
    """Quotes what holds `"`, `,`, CR, LF or nothing."""
    if text and not any(special in text for special in '",\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def join_row(row: Sequence[bytes | None]) -> bytes:
    """DataRow form: for each column an i32 length (big endian, -1 for NULL) and that many bytes."""
    return b"".join(b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value for value in row)


def split_row(data: bytes, columns: int, at: int = 0) -> tuple[list[bytes | None], int]:
    """The row in DataRow form at `at`, and where the next one begins."""
    row: list[bytes | None] = []
    for _ in range(columns):
        if len(data) < at + 4:
            raise Malformed("unfinished row")
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if length == -1:
            row.append(None)
            continue
        if length < 0 or len(data) < at + length:
            raise Malformed("unfinished row")
        row.append(data[at : at + length])
        at += length
    return row, at
