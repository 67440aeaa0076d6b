"""A write's Idempotency-Key on MySQL: key and outcome commit in the write's own transaction (`tailrace_contract.idempotency`).

A named lock keeps a second write with the same key out. IO: through `Session`. Rejects with `StatementFailed`.
"""

import time

from tailrace_contract.idempotency import MYSQL_INSERT, MYSQL_LOOKUP, lock_name
from tailrace_contract.plan import MysqlPlace, StatementPlan
from tailrace_gateway.serve.engine import Ask, Failure, Idempotency, StatementFailed
from tailrace_gateway.serve.mysql.session import Session
from tailrace_gateway.serve.outcome import Outcome, packed, unpacked

_RELEASE_S = 2.0


def _kept(ask: Ask) -> tuple[str, Idempotency]:
    if ask.idempotency is None or ask.connection.idempotency_table is None:
        raise StatementFailed(Failure.REFUSED)
    return ask.connection.idempotency_table, ask.idempotency


def claim(session: Session, ask: Ask) -> Outcome | None:
    """Takes the key until `release`; the first answer when there is one.

    StatementFailed: IDEMPOTENCY_RUNNING while another session holds it, IDEMPOTENCY_MISMATCH when it stands for other arguments.
    """
    table, key = _kept(ask)
    if session.run(f"SELECT GET_LOCK('{lock_name(key.caller, key.key)}', 0)", ask.deadline_s) != [("1",)]:
        raise StatementFailed(Failure.IDEMPOTENCY_RUNNING)
    text = MysqlPlace.TEXT
    statement = StatementPlan(sql=MYSQL_LOOKUP.replace("{table}", table), oids=(text, text))
    session.execute(statement, (key.caller.encode(), key.key.encode()), None, ask.deadline_s)
    found = session.chunk(2, ask.deadline_s)
    if not found:
        return None
    arguments, affected, more, count, result = (value if isinstance(value, bytes) else b"" for value in found[0])
    if arguments.decode() != key.arguments:
        raise StatementFailed(Failure.IDEMPOTENCY_MISMATCH)
    rows = unpacked(bytes.fromhex(result.decode("ascii").removeprefix("\\x")), int(count), len(ask.columns))
    return Outcome(int(affected), more == b"1", list(rows))


def keep(session: Session, ask: Ask, outcome: Outcome) -> None:
    """Stores the outcome in the same transaction."""
    table, key = _kept(ask)
    data = packed([[value if isinstance(value, bytes) else None for value in row] for row in outcome.rows])
    values = (
        key.caller.encode(),
        key.key.encode(),
        key.query.encode(),
        key.arguments.encode(),
        str(outcome.affected).encode(),
        b"%d" % outcome.more,
        str(len(outcome.rows)).encode(),
        b"\\x" + data.hex().encode(),
    )
    text, integer = MysqlPlace.TEXT, MysqlPlace.INTEGER
    places = (text, text, text, text, integer, MysqlPlace.BOOLEAN, integer, MysqlPlace.BYTES)
    try:
        session.execute(StatementPlan(sql=MYSQL_INSERT.replace("{table}", table), oids=places), values, None, ask.deadline_s)
    except StatementFailed as failed:
        if failed.failure is Failure.CONSTRAINT:
            raise StatementFailed(Failure.IDEMPOTENCY_RUNNING) from None
        raise


def release(session: Session, ask: Ask) -> None:
    """Gives the key back once the transaction has ended; a connection that breaks gives it back by itself."""
    _, key = _kept(ask)
    if session.broken:
        return
    try:
        session.run(f"DO RELEASE_LOCK('{lock_name(key.caller, key.key)}')", time.monotonic() + _RELEASE_S)
    except StatementFailed:
        session.broken = True
