"""A write's Idempotency-Key on SQLite: key and outcome commit in the write's own transaction."""

from dataclasses import dataclass

from tailrace_gateway.serve.engine import Ask, Failure, Row, StatementFailed
from tailrace_gateway.serve.sqlite.session import Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a write did: rows changed, whether it returned more rows than are kept, and the rows."""

    affected: int
    more: bool
    rows: list[Row]


def claim(session: Session, ask: Ask) -> Outcome | None:
    """The first answer when there is one. Fails closed until the table's form is fixed."""
    raise StatementFailed(Failure.REFUSED)


def keep(session: Session, ask: Ask, outcome: Outcome) -> None:
    """Stores the outcome in the same transaction. Fails closed until the table's form is fixed."""
    raise StatementFailed(Failure.REFUSED)
