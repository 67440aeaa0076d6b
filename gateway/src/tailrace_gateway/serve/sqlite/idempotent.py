"""A write's Idempotency-Key on SQLite: key and outcome commit in the write's own transaction (`tailrace_contract.idempotency`).

The transaction began IMMEDIATE, which is the lock. Rejects with `StatementFailed`.
"""

from tailrace_contract.idempotency import INSERT, LOOKUP, statement
from tailrace_gateway.serve.engine import Ask, Failure, Idempotency, Row, StatementFailed
from tailrace_gateway.serve.outcome import Outcome, packed, unpacked
from tailrace_gateway.serve.sqlite.session import Session
from tailrace_gateway.serve.values import Malformed, tag, untag


def _kept(ask: Ask) -> tuple[str, Idempotency]:
    if ask.idempotency is None or ask.connection.idempotency_table is None:
        raise StatementFailed(Failure.REFUSED)
    return ask.connection.idempotency_table, ask.idempotency


def _text(text: str) -> bytes:
    return b"t" + text.encode()


def claim(session: Session, ask: Ask) -> Outcome | None:
    """The first answer when there is one; StatementFailed(IDEMPOTENCY_MISMATCH) when the key stands for other arguments."""
    table, key = _kept(ask)
    found = session.run(statement(LOOKUP, table, "?"), ask.deadline_s, (_text(key.caller), _text(key.key)))
    if not found:
        return None
    arguments, affected, more, count, result = found[0]
    if arguments != key.arguments:
        raise StatementFailed(Failure.IDEMPOTENCY_MISMATCH)
    if not (isinstance(affected, int) and isinstance(count, int) and isinstance(result, bytes)):
        raise StatementFailed(Failure.REFUSED)
    try:
        rows: list[Row] = [[None if value is None else untag(value) for value in row] for row in unpacked(result, count, len(ask.columns))]
    except Malformed:
        raise StatementFailed(Failure.REFUSED) from None
    return Outcome(affected, bool(more), rows)


def keep(session: Session, ask: Ask, outcome: Outcome) -> None:
    """Stores the outcome in the same transaction."""
    table, key = _kept(ask)
    data = packed([[None if value is None else tag(value) for value in row] for row in outcome.rows])
    values = (
        _text(key.caller),
        _text(key.key),
        _text(key.query),
        _text(key.arguments),
        b"i%d" % outcome.affected,
        b"i%d" % outcome.more,
        b"i%d" % len(outcome.rows),
        b"b" + data,
    )
    session.run(statement(INSERT, table, "?"), ask.deadline_s, values)
