"""What a write did, kept under its Idempotency-Key for repeats, whichever process answers them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace_contract.idempotency import RESULT_LIMIT_BYTES, decode_result, encode_result
from tailrace_gateway.serve.engine import Failure, Row, StatementFailed


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows changed, whether the write returned more rows than are kept, and the rows."""

    affected: int
    more: bool
    rows: list[Row]


def packed(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """Rows as they are stored; StatementFailed(REFUSED) when they are too many to keep."""
    data = encode_result(rows)
    if len(data) > RESULT_LIMIT_BYTES:
        raise StatementFailed(Failure.REFUSED)
    return data


def unpacked(data: bytes, row_count: int, columns: int) -> list[list[bytes | None]]:
    """Stored rows; StatementFailed(REFUSED) when they are not what the query returns."""
    try:
        return decode_result(data, row_count, columns)
    except ValueError:
        raise StatementFailed(Failure.REFUSED) from None
