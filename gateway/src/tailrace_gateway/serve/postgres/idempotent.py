"""A write's Idempotency-Key on PostgreSQL: key and outcome commit in the write's own transaction (`tailrace_contract.idempotency`).

IO: through `Session`. Rejects with `StatementFailed`.
"""

from typing import cast

from tailrace_contract.idempotency import INSERT, LOOKUP, lock_id, statement
from tailrace_gateway.serve.engine import Ask, Failure, Idempotency, StatementFailed
from tailrace_gateway.serve.outcome import Outcome, packed, unpacked
from tailrace_gateway.serve.postgres.session import Session

_BOOL, _BYTEA, _INT8, _INT4, _TEXT = 16, 17, 20, 23, 25
_UNIQUE_VIOLATION = "23505"


def _kept(ask: Ask) -> tuple[str, Idempotency]:
    if ask.idempotency is None or ask.connection.idempotency_table is None:
        raise StatementFailed(Failure.REFUSED)
    return ask.connection.idempotency_table, ask.idempotency


async def claim(session: Session, ask: Ask) -> Outcome | None:
    """Takes the key for this transaction; the first answer when there is one.

    StatementFailed: IDEMPOTENCY_RUNNING while another transaction holds it, IDEMPOTENCY_MISMATCH when it stands for other arguments.
    """
    table, key = _kept(ask)
    lock = str(lock_id(key.caller, key.key)).encode()
    held = await session.ask("SELECT pg_try_advisory_xact_lock($1)", [lock], [_INT8], ask.deadline_s)
    if held.get_value(0, 0) != b"t":
        raise StatementFailed(Failure.IDEMPOTENCY_RUNNING)
    values = [key.caller.encode(), key.key.encode()]
    found = await session.ask(statement(LOOKUP, table), values, [_TEXT, _TEXT], ask.deadline_s)
    if not found.ntuples:
        return None
    arguments, affected, more, count, result = (found.get_value(0, n) or b"" for n in range(5))
    if arguments.decode() != key.arguments:
        raise StatementFailed(Failure.IDEMPOTENCY_MISMATCH)
    rows = unpacked(bytes.fromhex(result.decode("ascii").removeprefix("\\x")), int(count), len(ask.columns))
    return Outcome(int(affected), more == b"t", list(rows))


async def keep(session: Session, ask: Ask, outcome: Outcome) -> None:
    """Stores the outcome in the same transaction."""
    table, key = _kept(ask)
    data = packed([cast("list[bytes | None]", row) for row in outcome.rows])
    values: list[bytes | None] = [
        key.caller.encode(),
        key.key.encode(),
        key.query.encode(),
        key.arguments.encode(),
        str(outcome.affected).encode(),
        b"t" if outcome.more else b"f",
        str(len(outcome.rows)).encode(),
        b"\\x" + data.hex().encode(),
    ]
    try:
        await session.ask(statement(INSERT, table), values, [_TEXT, _TEXT, _TEXT, _TEXT, _INT8, _BOOL, _INT4, _BYTEA], ask.deadline_s)
    except StatementFailed as failed:
        if failed.sqlstate == _UNIQUE_VIOLATION:
            raise StatementFailed(Failure.IDEMPOTENCY_RUNNING) from None
        raise
