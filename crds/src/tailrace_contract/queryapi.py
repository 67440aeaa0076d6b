"""QueryAPI: what to serve. Models only; their cross-field rules are in `rules`. Docstrings become the CRD's descriptions."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from tailrace_contract.containers import DataPlane, Gateway
from tailrace_contract.duration import DurationMs, read_decimal
from tailrace_contract.ids import LabelKey, LabelValue, Name, ParameterName, QueryGlob, QueryName, SecretName
from tailrace_contract.plan import BigNumbers, CoalesceMode, Mask, Missing, ParamType, Pooler, Returns
from tailrace_contract.resource import ConfigMapSource, Document, ObjectRef, Part, SecretKeySource, SecretRef
from tailrace_contract.status import QueryAPIStatus

CIDR_PATTERN = "^[0-9a-fA-F:.]+/[0-9]{1,3}$"
COLUMN_PATTERN = r"^.+\..+$"
Cidr = Annotated[str, Field(pattern=CIDR_PATTERN, max_length=49)]
SettingName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$", max_length=63)]
SettingValue = Annotated[str, Field(max_length=1024)]
ColumnName = Annotated[str, Field(min_length=1, max_length=63)]
Decimal = Annotated[
    str,
    BeforeValidator(read_decimal),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 400}], "x-kubernetes-int-or-string": True}),
]
"""An exact number as text: an integer, or a decimal in quotes, which a float would not keep."""
TableName = Annotated[str, Field(min_length=1, max_length=200)]
"""As in SQL: `customers`, `shop.customers`, `"Odd Name"."T"`."""
Values = Annotated[tuple[JsonValue, ...], Field(min_length=1, max_length=256)]


class ServerCertificate(Part):
    """A kubernetes.io/tls Secret: certificate chain under `tls.crt`, private key under `tls.key`, both PEM."""

    secret_ref: SecretRef
    """The Secret."""


class ConnectionTls(Part):
    """Certificates for the connection; whether and how the server is verified is the URL's `sslmode`."""

    ca_from: SecretKeySource | None = None
    """PEM file of the authorities that may sign the server's certificate. Without it the URL's sslrootcert holds."""
    certificate_from: ServerCertificate | None = None
    """Client certificate and its key. Without it the client shows none."""


class Connection(Part):
    """One database."""

    name: Name
    """How queries refer to it. Unique within the API."""
    url_from: SecretKeySource
    """The database's URL: a libpq URI (postgresql://…), mysql://USER:PASSWORD@HOST/DATABASE, or sqlite:///PATH, which is for local use only. It is re-read when it changes."""
    tls: ConnectionTls | None = None
    """Certificates, if the server asks for more than the URL says."""
    max_connections: Annotated[int, Field(ge=1, le=1000)] = 8
    """Most connections that one gateway holds to this database. A number of connections."""
    statement_timeout_ms: Annotated[DurationMs, Field(alias="statementTimeout")] = 30_000
    """Longest that any statement on this connection may run. A duration."""
    session: dict[SettingName, SettingValue] = Field({}, max_length=32)
    """Server settings of every session, such as search_path (PostgreSQL only). Not those that the encoding of values depends on."""
    pooler: Pooler = Pooler.NONE
    """What stands between the gateway and the server: none, or a pooler in transaction mode (PgBouncer and its like)."""
    idempotency_table: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Table that keeps a write's Idempotency-Key and outcome; `tailrace check --print-ddl` prints it. Without it Idempotency-Key is refused."""


class Items(Part):
    """What each element of an array must be."""

    type: ParamType
    """Type of the elements."""
    enum: Values | None = None
    """The only values that an element may have."""
    minimum: Decimal | None = None
    """Smallest element, inclusive; integer and number only. A whole number, or a decimal in quotes ("0.5")."""
    maximum: Decimal | None = None
    """Largest element, inclusive; integer and number only. A whole number, or a decimal in quotes ("0.5")."""
    min_length: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Least length of an element; string only. In code points."""
    max_length: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Greatest length of an element; string only. In code points."""
    pattern: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Regular expression that is found somewhere in each element; string only. Anchor it with ^ and $ to match the whole."""


ParameterType = Literal["integer", "number", "string", "boolean", "date", "time", "timestamp", "uuid", "json", "array"]


class Parameter(Part):
    """One parameter of a query."""

    type: ParameterType
    """How its text is checked and bound. An array needs `items`."""
    items: Items | None = None
    """The elements of an array."""
    required: bool = False
    """Whether a call without it is refused (422)."""
    nullable: bool = False
    """Whether a JSON null is accepted; it binds NULL."""
    default: JsonValue = None
    """Value when the parameter is absent. Without it NULL is bound."""
    enum: Values | None = None
    """The only values that are accepted."""
    minimum: Decimal | None = None
    """Smallest value, inclusive; integer and number only. A whole number, or a decimal in quotes ("0.5")."""
    maximum: Decimal | None = None
    """Largest value, inclusive; integer and number only. A whole number, or a decimal in quotes ("0.5")."""
    min_length: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Least length; string only. In code points."""
    max_length: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Greatest length; string only. In code points."""
    pattern: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Regular expression that is found somewhere in the value; string only. Anchor it with ^ and $ to match the whole."""

    @property
    def array(self) -> bool:
        """Whether it is a list."""
        return self.type == "array"

    @property
    def element(self) -> "Items | Parameter":
        """Where type and bounds stand: the parameter itself, or its items."""
        return self.items if self.items is not None else self

    @property
    def element_type(self) -> ParamType:
        """Type of the value, or of each element of a list."""
        return ParamType(self.element.type)


class Page(Part):
    """Keyset paging of a list."""

    key: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=8)]
    """Result columns that order the list and together are unique, never null and unmasked. Directions come from the query's ORDER BY."""
    default_size: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Rows of a page when the call has no page_size. A number of rows."""
    max_size: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Most rows that page_size may ask for. A number of rows."""


class Coalesce(Part):
    """Whether callers that wait at the same moment share one statement in the database. It changes no answer."""

    mode: CoalesceMode = CoalesceMode.AUTO
    """auto: where the database shows that it is safe and no slower; "off" (in quotes): never."""
    max_batch: Annotated[int, Field(ge=2, le=1024)] = 256
    """Most callers in one statement. A number of callers."""
    max_in_flight: Annotated[int, Field(ge=1, le=16)] = 2
    """Most such statements that one thread has under way. A number of statements."""


class Cache(Part):
    """Answers are kept in each pod and given again to whoever asks the same and sees the same."""

    ttl_ms: Annotated[DurationMs, Field(alias="ttl")]
    """How old an answer may be. A duration from 100ms to 1h."""


class Query(Part):
    """One saved query, served at /q/NAME."""

    name: QueryName
    """Its name in the URL and in roles. Unique within the API."""
    connection: Name
    """Name of an entry of `connections`."""
    sql: Annotated[str, Field(min_length=1, max_length=65_536)]
    """One statement; `:name` stands for a parameter. It is sent as it is written, with only the parameters replaced."""
    params: dict[ParameterName, Parameter] = Field({}, max_length=64)
    """Parameters by name. Each must occur in the SQL."""
    returns: Returns = Returns.MANY
    """Shape of the answer: one (an object, or 404), many (an array), none (a write's count of rows)."""
    missing: Missing = Missing.ERROR
    """What `returns: one` says without a row: error (404) or "null"."""
    write: bool = False
    """Whether it changes data: POST only, Idempotency-Key accepted."""
    timeout_ms: Annotated[DurationMs | None, Field(alias="timeout")] = None
    """Longest that a call may take in the database. A duration. Without it the connection's statementTimeout holds."""
    page: Page | None = None
    """Keyset paging; without it a JSON answer ends after 10,000 rows, unless `unbounded`."""
    unbounded: bool = False
    """Whether JSON is streamed with every row, as NDJSON and CSV are; `returns: many` only, neither paged, nor a write, nor cached."""
    coalesce: Coalesce | None = None
    """How waiting callers share a statement; a read only. Without it: auto."""
    cache: Cache | None = None
    """Answers that are not streams are kept for so long; a read only. Without it each call asks the database."""
    record: Literal["params"] | None = None
    """`params` keeps the parameters of each call in its run. Without it a run never holds values."""


class Tables(Part):
    """What a role's queries may touch."""

    allow: Annotated[tuple[TableName, ...], Field(max_length=256)]
    """Tables and views, named as in SQL in the connection's search path. A query that touches any other is refused. A view counts as itself."""


class MaskedColumn(Part):
    """One column that a role does not see."""

    column: Annotated[str, Field(min_length=3, max_length=200, pattern=COLUMN_PATTERN)]
    """TABLE.COLUMN or SCHEMA.TABLE.COLUMN, named as in SQL."""
    with_: Annotated[Mask, Field(alias="with")]
    """What is shown instead: "null" (in quotes), redact, hash or partial."""


class Role(Part):
    """What a key may be given."""

    name: Name
    """How keys refer to it. Unique within the API."""
    queries: Annotated[tuple[QueryGlob, ...], Field(min_length=1, max_length=256)]
    """Queries that it may call, by name; * stands for any characters."""
    tables: Tables | None = None
    """Allow-list of tables. Without it any table but the system catalogs."""
    masks: Annotated[tuple[MaskedColumn, ...], Field(max_length=256)] = ()
    """Columns that are masked in every answer."""
    filter_on_masked: bool = False
    """Whether queries may filter, join or sort by masked columns, which tells callers something about their values."""


class NamespaceSelector(Part):
    """Namespaces, by their labels."""

    match_labels: dict[LabelKey, LabelValue] = Field(min_length=1, max_length=16)
    """Labels that a namespace must all have. At least one."""


class NamespaceLabel(Part):
    """A value that the namespace of a key has."""

    namespace_label: LabelKey
    """Key of the namespace's label; its value is bound. A namespace without the label is not admitted."""


class KeysFrom(Part):
    """Other namespaces whose ApiKeys may open this API, and how far."""

    namespaces: NamespaceSelector
    """Which namespaces. Whoever may label a namespace decides about this too."""
    roles: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]
    """Roles that these keys may have."""
    bind: dict[ParameterName, NamespaceLabel] = Field({}, max_length=16)
    """Parameters that these keys are bound to, by a label of their namespace. A key's own `bind` can't say otherwise."""


class HttpTls(Part):
    """The API is served over TLS only: 1.2 and later, HTTP/1.1 and HTTP/2 by ALPN."""

    secret_name: SecretName
    """A kubernetes.io/tls Secret: certificate chain under `tls.crt`, private key under `tls.key`, both PEM. Re-read when it changes, without losing a connection."""


class Http(Part):
    """How the API speaks HTTP."""

    big_numbers: BigNumbers = BigNumbers.NUMBER
    """How 64-bit integers and decimals are written: number, or string for JavaScript callers."""
    hide_forbidden: bool = False
    """Whether a query that a key may not call looks as if it did not exist (404 instead of 403)."""
    trusted_proxies: Annotated[tuple[Cidr, ...], Field(max_length=64)] = ()
    """Networks of proxies whose X-Forwarded-For is believed. A list of CIDRs."""
    tls: HttpTls | None = None
    """Serves the API over TLS, by the data plane. Without it callers speak plain HTTP."""


class QueryAPISpec(Part):
    """What is wanted."""

    connections: Annotated[tuple[Connection, ...], Field(min_length=1, max_length=32)]
    """Databases."""
    queries: Annotated[tuple[Query, ...], Field(max_length=1000)] = ()
    """Saved queries. At least one here or in queriesFrom."""
    queries_from: Annotated[tuple[ConfigMapSource, ...], Field(max_length=16)] = ()
    """ConfigMaps with more queries: each key NAME.sql is YAML between two lines of --- (an entry of `queries` without sql; its name is NAME if it says none), then the SQL."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=64)]
    """What keys may be given."""
    allow_keys_from: Annotated[tuple[KeysFrom, ...], Field(max_length=32)] = ()
    """Other namespaces whose ApiKeys may open this API. Those of its own namespace always may. With `tailrace run`, where namespaces have no labels, none is admitted."""
    run_store_ref: ObjectRef
    """The RunStore that keeps every run."""
    http: Http = Http()
    """How the API speaks HTTP."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 2
    """Pods. A number of pods; 0 stops the API. More than one needs a RunStore that is not embedded. Has no effect with `tailrace run`, which is one."""
    gateway: Gateway = Gateway()
    """The gateway's container: Python, which decides. Has no effect with `tailrace run`."""
    data_plane: DataPlane = DataPlane()
    """The data plane's container: Rust, which answers. Has no effect with `tailrace run`."""


class QueryAPI(Document):
    """SQL queries of some databases, served as a governed HTTP API."""

    kind: Literal["QueryAPI"] = "QueryAPI"
    """Always QueryAPI."""
    spec: QueryAPISpec
    """What is wanted."""
    status: QueryAPIStatus = QueryAPIStatus()
    """What the operator says. Files leave it out."""
