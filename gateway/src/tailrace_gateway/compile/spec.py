"""What is compiled: one API with its connections, queries, roles and keys, free of YAML and of the resources' shape.

Rejects nothing, does no IO; `tailrace_contract.resource` validates before, `compile.resources` maps to these.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract.plan import ApiPlan, Mask, Missing, ParamType, Pooler, Returns, Source

PlaceOf = Callable[[str, str], str]
"""Where a unit (`query`, `role`, `key`) of a name stands (`shop.yaml:12:7`), for messages. Asked only for a message: the look-up reads text again."""


def nowhere(unit: str, name: str) -> str:
    """The places of what stands in no file."""
    return ""


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """One database. `url_file` names the mounted file with its URL; the URL itself is read where it is used and kept nowhere."""

    name: str
    url_file: str
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    max_connections: int = 8
    statement_timeout_ms: int = 30_000
    session: tuple[tuple[str, str], ...] = ()
    pooler: Pooler = Pooler.NONE
    idempotency_table: str | None = None


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A declared parameter, with the meaning of `ParamPlan`."""

    name: str
    type: ParamType
    array: bool = False
    required: bool = False
    nullable: bool = False
    default: JsonValue = None
    enum: tuple[JsonValue, ...] | None = None
    minimum: str | None = None
    maximum: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class PageSpec:
    """Keyset paging by output columns."""

    key: tuple[str, ...]
    default_size: int = 50
    max_size: int = 1000


@dataclass(frozen=True, slots=True)
class CoalesceSpec:
    """Waiting callers share a statement where that is proven to answer alike."""

    max_batch: int = 256
    max_in_flight: int = 2


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """A saved query as its author wrote it."""

    name: str
    connection: str
    sql: str = field(repr=False)
    params: tuple[ParamSpec, ...] = ()
    returns: Returns = Returns.MANY
    missing: Missing = Missing.ERROR
    write: bool = False
    timeout_ms: int | None = None
    page: PageSpec | None = None
    coalesce: CoalesceSpec | None = CoalesceSpec()
    """None: each call has its own statement."""
    record_params: bool = False
    unbounded: bool = False
    """JSON is a stream of every row."""
    cache_ttl_ms: int | None = None
    """How old an answer may be that is given again. None: each call asks the database."""
    twice: str = ""
    """Why the name is refused: where the others of this name stand. Empty: it is the only one."""


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """`column` as SQL names it: `customers.email`, `shop.customers."E-Mail"`."""

    column: str
    with_: Mask


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """What a key may be given. `tables` None: every table but the system's."""

    name: str
    queries: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] | None = None
    masks: tuple[MaskSpec, ...] = ()
    filter_on_masked: bool = False

    @property
    def rules(self) -> "RoleRules":
        """What verdicts depend on; roles that differ only in name and queries have the same."""
        return RoleRules(self.tables, self.masks, self.filter_on_masked)


@dataclass(frozen=True, slots=True)
class RoleRules:
    """What a role shows of the queries that it grants."""

    tables: tuple[str, ...] | None
    masks: tuple[MaskSpec, ...]
    filter_on_masked: bool


@dataclass(frozen=True, slots=True)
class KeySpec:
    """A live ApiKey: digests only. A suspended one is left out before."""

    id: str
    sha256: tuple[str, ...]
    role: str
    bind: dict[str, JsonValue] = field(default_factory=dict)
    not_before_us: int | None = None
    not_after_us: int | None = None
    cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """A whole API."""

    api: ApiPlan
    connections: tuple[ConnectionSpec, ...] = ()
    queries: tuple[QuerySpec, ...] = ()
    roles: tuple[RoleSpec, ...] = ()
    keys: tuple[KeySpec, ...] = ()
    sources: tuple[Source, ...] = ()
    place_of: PlaceOf = field(default=nowhere, repr=False, compare=False)

    def says_the_same(self, other: "ApiSpec") -> bool:
        """Whether nothing but what was seen, and where it stands, differs. 1, true and 1.0 are equal in Python and differ here."""
        return (
            (self.api, self.connections, self.roles) == (other.api, other.connections, other.roles)
            and len(self.queries) == len(other.queries)
            and len(self.keys) == len(other.keys)
            and all(a is b or (a == b and repr(a) == repr(b)) for a, b in zip(self.queries, other.queries, strict=True))
            and all(a is b or (a == b and repr(a.bind) == repr(b.bind)) for a, b in zip(self.keys, other.keys, strict=True))
        )
