"""Databases as the serving side sees them: one way in (`Ask`), one way out (an async stream of `Rows`, then `Done`), whatever the engine.

The twin of `dataplane-rs/src/engine/mod.rs`. Values of rows are PostgreSQL's text form (bytes), or what SQLite's driver gives by storage
class (int, float, str, bytes); None is NULL. No IO here.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tailrace_contract.plan import ColumnPlan, ConnectionPlan, StatementPlan

Value = bytes | None
"""What is bound to a place; None is NULL."""

Row = Sequence[bytes | int | float | str | None]
"""The columns of one row."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A write's Idempotency-Key: who sent it (`caller`, the ApiKey's id), for which query, and the hex SHA-256 of its arguments."""

    caller: str
    key: str
    query: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One statement.

    `values`: one per place of the statement: PostgreSQL's text form, or on SQLite a storage tag and bytes (`serve.values.untag`). `limit`: rows after which to stop, None for all. `deadline_s`: on the event loop's clock, queueing included.
    `trace`: a strictly checked traceparent of a sampled call.
    """

    connection: ConnectionPlan
    version: str
    statement: StatementPlan
    columns: tuple[ColumnPlan, ...]
    values: tuple[Value, ...]
    limit: int | None
    deadline_s: float
    write: bool = False
    idempotency: Idempotency | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Some whole rows, in order."""

    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Done:
    """The end. For a write: it is committed.

    `affected`: rows changed. `more`: stopped at `limit` (there may be more). `repeated`: the first answer of a repeated write was
    replayed and nothing ran. Times in µs.
    """

    affected: int = 0
    more: bool = False
    queue_us: int = 0
    database_us: int = 0
    repeated: bool = False


class Failure(StrEnum):
    """Why a statement has no answer; the value is the error code that the caller gets."""

    POOL_FULL = "pool_full"
    UNAVAILABLE = "database_unavailable"
    TIMEOUT = "query_timeout"
    STALE = "plan_stale"
    CONSTRAINT = "constraint_violation"
    REFUSED = "database_error"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    IDEMPOTENCY_RUNNING = "idempotency_in_progress"


class StatementFailed(Exception):
    """No answer, or none that is whole. `queue_us` and `database_us` as far as it came."""

    def __init__(self, failure: Failure, sqlstate: str = "", queue_us: int = 0, database_us: int = 0) -> None:
        super().__init__(failure)
        self.failure = failure
        self.sqlstate = sqlstate
        self.queue_us = queue_us
        self.database_us = database_us


class Executor(Protocol):
    """Runs statements. Closing the stream before its end cancels the statement in the database."""

    def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        """Any number of `Rows`, then one `Done`; StatementFailed at any point instead."""
        ...
