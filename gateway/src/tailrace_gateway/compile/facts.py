"""What is known of one saved query once its database was asked: everything but who may see it. Pure data, the same for every engine."""

from dataclasses import dataclass
from typing import Protocol

from tailrace_contract.plan import BigNumbers, CoalescePlan, ColumnPlan, Engine, PagePlan, ParamPlan, StatementPlan

from tailrace_gateway.compile.decision import Rules
from tailrace_gateway.compile.lineage import Lineage, Origin
from tailrace_gateway.compile.spec import ParamSpec, QuerySpec, RoleSpec


@dataclass(frozen=True, slots=True)
class Facts:
    """One compiled statement.

    `exclusive_because` is empty when it may run in the shared lane, `not_coalesced_because` when waiting callers share a statement. `depends` is a digest over definitions that answers depend on and that the
    plan doesn't show (views). `page_columns` are positions of page keys in `columns`.
    """

    params: tuple[ParamPlan, ...]
    columns: tuple[ColumnPlan, ...]
    statement: StatementPlan
    page: PagePlan | None
    lineage: Lineage
    exclusive_because: str
    coalesce: CoalescePlan | None = None
    not_coalesced_because: str = "engine"
    depends: str = ""

    @property
    def page_columns(self) -> tuple[int, ...]:
        """Positions of the page keys."""
        return tuple(key.column for key in self.page.keys) if self.page is not None else ()


@dataclass(frozen=True, slots=True)
class RoleOnDatabase:
    """A role's rules as one database understands them. `unresolved` are masked columns that it has not."""

    rules: Rules
    unresolved: frozenset[str] = frozenset()


class Database(Protocol):
    """One connection's live database, during one compile."""

    @property
    def engine(self) -> Engine:
        """Its protocol."""

    @property
    def fingerprint(self) -> str:
        """Changes when anything changes that plans depend on."""

    @property
    def session(self) -> tuple[tuple[str, str], ...]:
        """Settings that serving sessions must have so that names mean the same."""

    @property
    def system(self) -> frozenset[int | str]:
        """Tables that count only when listed."""

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """Compiles one query; RefusedError, or Unreachable of the engine's session."""

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """Resolves a role's tables and masks."""

    def table_name(self, table: int | str) -> str:
        """For people."""

    def column_name(self, origin: Origin) -> str:
        """For people."""

    def warnings(self) -> tuple[str, ...]:
        """What `check` says of the connection's database role."""

    def close(self) -> None:
        """Ends its session."""


def param_plan(param: ParamSpec) -> ParamPlan:
    """A declaration as the plan has it, where the database has no say in it."""
    return ParamPlan(
        name=param.name,
        type=param.type,
        array=param.array,
        required=param.required,
        nullable=param.nullable,
        default=param.default,
        enum=param.enum,
        minimum=param.minimum,
        maximum=param.maximum,
        min_length=param.min_length,
        max_length=param.max_length,
        pattern=param.pattern,
    )
