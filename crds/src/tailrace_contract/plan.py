"""The snapshot that the gateway pushes to the data plane: everything that was decided ahead of the first call.

One direction only: Python writes it, Rust reads it (and Python reads it too, when it serves a call by itself).
No credentials are in it: connections name the mounted files that hold them. Field names are camelCase on the wire.
Anything unknown is refused on both sides.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

SCHEMA_VERSION: Literal[1] = 1
"""Raised with every change that an older reader would misread. A reader refuses any other."""

SNAPSHOT_LIMIT_BYTES = 64 * 1024 * 1024
"""A larger body of `PUT /plans` is refused with 413."""

Index = Annotated[int, Field(ge=0, lt=2**31)]
Oid = Annotated[int, Field(ge=0, lt=2**32)]


class Plan(BaseModel):
    """Base of everything in a snapshot: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Engine(StrEnum):
    """The database protocol of a connection, read from its URL's scheme."""

    POSTGRES = "postgres"
    SQLITE = "sqlite"
    MYSQL = "mysql"
    """MySQL 8 or MariaDB; which one, the server's version says at each connect."""


class Pooler(StrEnum):
    """What stands between us and the server: `transaction` forbids anything that outlives a transaction."""

    NONE = "none"
    TRANSACTION = "transaction"


class ConnectionPlan(Plan):
    """One database as both processes reach it."""

    name: str
    engine: Engine
    url_file: str
    """Path of the mounted file with the URL (libpq URI, `sqlite:///PATH`, or `mysql://…`). Re-read at each connect and when it changes."""
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    """PEM files; they stand for the URI's sslrootcert, sslcert and sslkey."""
    max_connections: Annotated[int, Field(ge=1, le=1000)] = 8
    """Upper bound of connections of one pod to this database, over all threads and both lanes."""
    statement_timeout_ms: Annotated[int, Field(ge=1)] = 30_000
    session: tuple[tuple[str, str], ...] = ()
    """Server settings of every session (name, value), besides those that value encoding pins."""
    pooler: Pooler = Pooler.NONE
    idempotency_table: str | None = None
    """Qualified and quoted as it stands in SQL; None: `Idempotency-Key` is refused."""


class ParamType(StrEnum):
    """How a parameter's text is checked before it is bound."""

    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    JSON = "json"


class ParamPlan(Plan):
    """One declared parameter. Bounds are inclusive; lengths count code points; of a list they hold for each element."""

    name: str
    type: ParamType
    array: bool = False
    required: bool = False
    nullable: bool = False
    """An explicit JSON null is accepted and binds NULL."""
    default: JsonValue = None
    """Bound when the parameter is absent; None binds NULL."""
    enum: tuple[JsonValue, ...] | None = None
    minimum: str | None = None
    maximum: str | None = None
    """Exact decimals, for integer and number only."""
    min_length: Index | None = None
    max_length: Index | None = None
    pattern: str | None = None
    """Unanchored, in the portable subset that `tailrace_contract.pattern` admits (same meaning in Python and Rust)."""


class Encoding(StrEnum):
    """How one column's database text becomes JSON (docs/values.md)."""

    RAW = "raw"
    """Digits as they are: int2, int4, int8."""
    NUMBER = "number"
    """Digits as they are, but NaN and ±Infinity as strings: numeric, float4, float8."""
    QUOTED = "quoted"
    """Digits as a string: int8 and numeric under `http.bigNumbers: string`."""
    BOOLEAN = "boolean"
    STRING = "string"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    BASE64 = "base64"
    """bytea in its hex form."""
    JSON = "json"
    """Embedded as it is, line breaks outside strings removed."""
    STORAGE = "storage"
    """SQLite: by the storage class of each value."""
    STORAGE_QUOTED = "storagequoted"
    """The same, INTEGER as a string: under `http.bigNumbers: string`."""


class ColumnPlan(Plan):
    """One result column as it was when the query was compiled. A Prepare that describes another shape is `plan_stale`."""

    name: str
    encoding: Encoding
    array: bool = False
    """PostgreSQL array of any number of dimensions whose elements have `encoding`."""
    delimiter: str = ","
    """Between array elements (pg_type.typdelim)."""
    type_oid: Oid = 0
    """PostgreSQL's; MySQL: see docs/contract.md."""
    table_oid: Oid = 0
    column_number: int = 0


class MysqlPlace(IntEnum):
    """What a place's text is sent as on MySQL (protocol type codes; docs/contract.md says how each is made of the text)."""

    BOOLEAN = 1
    DOUBLE = 5
    INTEGER = 8
    DATE = 10
    TIME = 11
    TIMESTAMP = 12
    DECIMAL = 246
    BYTES = 252
    TEXT = 253


class StatementPlan(Plan):
    """Text that is sent as it is, with `$1…` (SQLite: `?1…`, MySQL: `?` each time) in the place of parameters."""

    sql: str
    params: tuple[Index, ...] = ()
    """Place n+1 binds `QueryPlan.params[params[n]]`."""
    oids: tuple[Oid, ...] = ()
    """Type of every place, also those that follow `params` in a page statement; empty on SQLite. MySQL: `MysqlPlace`."""


class CoalescePlan(Plan):
    """How callers that wait at the same moment share one statement: only of a `shared` query that has parameters and no page.

    Rows: first column `ord` (int8, 1-based position of the caller in the arrays), then `QueryPlan.columns`; of each caller one row more than is
    ever shown.
    """

    statement: StatementPlan
    """Place n+1 takes an array of what place n+1 of `QueryPlan.statement` takes; `params` are the same. Of a list: text[] of its array literals."""
    max_batch: Annotated[int, Field(ge=2, le=1024)] = 256
    """Callers in one statement."""
    max_in_flight: Annotated[int, Field(ge=1, le=16)] = 2
    """Such statements under way on one thread."""
    shadow: Index = 20
    """Batches of a version that are also asked singly, and compared, before the others."""


class PageKeyPlan(Plan):
    """One column of the keyset order."""

    column: Index
    descending: bool = False


class PagePlan(Plan):
    """Keyset paging. Places of `first`: params, limit. Places of `next`: params, one per key (text of the last row), limit.

    The limit bound is page size + 1; the row beyond the page is never shown, it only says that there is more.
    """

    keys: Annotated[tuple[PageKeyPlan, ...], Field(min_length=1)]
    default_size: Annotated[int, Field(ge=1)] = 50
    max_size: Annotated[int, Field(ge=1)] = 1000
    first: StatementPlan
    next: StatementPlan


class Returns(StrEnum):
    """The shape of an answer: `one` object or 404, `many` as an array, `none` a count."""

    ONE = "one"
    MANY = "many"
    NONE = "none"


class Missing(StrEnum):
    """What `returns: one` says when there is no row."""

    ERROR = "error"
    NULL = "null"


class CoalesceMode(StrEnum):
    """Whether callers may share a statement."""

    AUTO = "auto"
    OFF = "off"


class QueryPlan(Plan):
    """One saved query, compiled once for all roles; what a role sees of it is in its Grant."""

    name: str
    version: str
    """16 hex digits over everything that its answers depend on."""
    connection: Index
    write: bool = False
    returns: Returns
    missing: Missing = Missing.ERROR
    timeout_ms: Annotated[int, Field(ge=1)]
    record_params: bool = False
    params: tuple[ParamPlan, ...] = ()
    columns: tuple[ColumnPlan, ...] = ()
    statement: StatementPlan
    page: PagePlan | None = None
    unbounded: bool = False
    """JSON of `many` without `page` is a stream of every row."""
    shared: bool = False
    """May be promoted to the shared lane: one read-only statement with a bounded answer, nothing volatile, no per-caller session."""
    exclusive_because: str = ""
    """Why `shared` is false, for `explain`; a code, never SQL."""
    coalesce: CoalescePlan | None = None
    not_coalesced_because: str = ""
    """Why `coalesce` is None, for `explain`; a code, never SQL."""
    cache_ttl_ms: Annotated[int, Field(ge=100, le=3_600_000)] | None = None
    """How old an answer may be that is given again (docs/contract.md, "Response cache"). None: each call asks the database."""
    refused: str | None = None
    """The refusal code when no role may call it (not read only, not parsed, database unreachable and never compiled, …).
    Then `statement.sql` is empty."""


class Mask(StrEnum):
    """What a masked value becomes (docs/governance.md)."""

    NULL = "null"
    REDACT = "redact"
    HASH = "hash"
    PARTIAL = "partial"


class MaskPlan(Plan):
    """A result column and what covers it for one role."""

    column: Index
    with_: Annotated[Mask, Field(alias="with")]


class Grant(Plan):
    """A (query, role) pair that was decided. No grant, no answer."""

    query: Index
    masks: tuple[MaskPlan, ...] = ()
    refused: str | None = None
    """The refusal code when this role may name the query but its plan was refused (mask_leak, table_not_allowed, …)."""


class RolePlan(Plan):
    """What the keys of a role may call."""

    name: str
    grants: tuple[Grant, ...] = ()


class KeyPlan(Plan):
    """Key texts of a live ApiKey that are valid for the same time. Suspended ApiKeys are not in a snapshot; expired ones may be, and are refused by
    the clock of each call."""

    id: str
    """`namespace/name` of the ApiKey. Several KeyPlans may have it: while a key is replaced, each of its texts is valid for another time."""
    sha256: Annotated[tuple[str, ...], Field(min_length=1)]
    """Hex digests. No digest occurs twice in a snapshot."""
    role: Index
    bind: dict[str, JsonValue] = {}
    """Parameters fixed by the key. A query that does not declare all of them is refused to this key (403)."""
    not_before_us: int | None = None
    not_after_us: int | None = None
    """Microseconds since 1970; valid while not_before ≤ now < not_after."""
    cidrs: tuple[str, ...] = ()
    """Empty: any address."""


class BigNumbers(StrEnum):
    """How 64-bit integers and decimals are written: JSON numbers, or strings for JavaScript callers."""

    NUMBER = "number"
    STRING = "string"


class OnFull(StrEnum):
    """What happens to calls while the spool is full."""

    REJECT = "reject"
    DROP = "drop"


class Durability(StrEnum):
    """When an answer may leave: `process` once its run is in the kernel, `disk` once it is synced."""

    PROCESS = "process"
    DISK = "disk"


class Nothing(Plan):
    """No settings."""


class EmbeddedStorePlan(Plan):
    """Runs go into a SQLite file below the data directory."""

    embedded: Nothing


class PostgresTarget(Plan):
    """A PostgreSQL database that keeps runs."""

    url_file: str
    """Path of the mounted file with the URL (libpq URI). Re-read at each connect."""


class PostgresStorePlan(Plan):
    """Runs go into a PostgreSQL database."""

    postgres: PostgresTarget


RunStorePlan = EmbeddedStorePlan | PostgresStorePlan
"""`{"embedded": {}}` or `{"postgres": {"urlFile": PATH}}`."""


class TlsPlan(Plan):
    """Callers speak TLS only. Both files are PEM and re-read when they change."""

    certificate_file: str
    """The chain, the server's own certificate first."""
    key_file: str


class ApiPlan(Plan):
    """What holds for the whole API."""

    namespace: str
    name: str
    big_numbers: BigNumbers = BigNumbers.NUMBER
    hide_forbidden: bool = False
    """A valid key without the grant gets 404 instead of 403."""
    trusted_proxies: tuple[str, ...] = ()
    """CIDRs whose X-Forwarded-For counts."""
    tls: TlsPlan | None = None
    """None: plain HTTP."""
    spool_size_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    on_full: OnFull = OnFull.REJECT
    durability: Durability = Durability.PROCESS
    run_store: RunStorePlan = EmbeddedStorePlan(embedded=Nothing())
    """Where runs are shipped to, and read from."""


class SourceKind(StrEnum):
    """What a source is."""

    QUERY_API = "QueryAPI"
    """The API itself: uid, generation, resourceVersion, namespace and name."""
    API_KEYS = "ApiKeys"
    """All ApiKeys of a namespace: resourceVersion is the highest that was seen of them."""
    CONFIG = "Config"
    """A ConfigMap of queriesFrom, `name` NAMESPACE/NAME: resourceVersion is the SHA-256 of its files."""


class Source(Plan):
    """What this snapshot was made from, for acknowledgement (docs/contract-kubernetes.md). What a kind does not have is empty or 0."""

    kind: SourceKind
    namespace: str = ""
    name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""


class Snapshot(Plan):
    """One whole snapshot: `PUT /plans` swaps it in on every thread, or refuses it whole."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = SCHEMA_VERSION
    version: Annotated[int, Field(ge=1)]
    """Strictly increasing within a gateway process (µs since 1970 when it was built)."""
    api: ApiPlan
    sources: tuple[Source, ...] = ()
    connections: tuple[ConnectionPlan, ...] = ()
    queries: tuple[QueryPlan, ...] = ()
    roles: tuple[RolePlan, ...] = ()
    keys: tuple[KeyPlan, ...] = ()

    def to_json(self) -> bytes:
        """Canonical bytes: declared order, camelCase, defaults included, no blanks."""
        return self.model_dump_json(by_alias=True).encode()
