"""ApiKey: who may call. Models only; their cross-field rules are in `rules`. Docstrings become the CRD's descriptions."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue

from tailrace_contract.duration import DurationMs
from tailrace_contract.ids import Name, Namespace, ParameterName, Ref, SecretName
from tailrace_contract.queryapi import Cidr
from tailrace_contract.resource import Document, Part, SecretKeySource
from tailrace_contract.status import ApiKeyStatus


class QueryApiRef(Part):
    """A QueryAPI, here or in another namespace."""

    name: Name
    """Name of the QueryAPI."""
    namespace: Namespace | None = None
    """Its namespace, if it is another one than the key's: then an entry of its allowKeysFrom must admit this namespace (in a cluster only)."""


class Rotation(Part):
    """Replacing a minted key from time to time."""

    every_ms: Annotated[DurationMs, Field(alias="every")]
    """How long a key is handed out before the next one takes its place in the Secret. A duration, at least 10s."""
    overlap_ms: Annotated[DurationMs, Field(alias="overlap")]
    """How long the old key works on after that. A duration, less than `every`. Leave holders the time to read the Secret again."""


class ApiKeySpec(Part):
    """What is wanted."""

    query_api_ref: QueryApiRef
    """The QueryAPI that the key opens. It can't be changed later."""
    role: Name
    """Name of one of the API's roles."""
    bind: dict[ParameterName, JsonValue] = Field({}, max_length=32)
    """Parameters that the key fixes: callers can't send them, and a query that lacks one is refused to this key."""
    allowed_cidrs: Annotated[tuple[Cidr, ...], Field(alias="allowedCIDRs", max_length=64)] = ()
    """Networks that may use the key. A list of CIDRs. Empty: any address."""
    expires_at: AwareDatetime | None = None
    """When the key stops working. RFC 3339 with a zone. Without it never."""
    suspended: bool = False
    """Whether the key is refused for now."""
    secret_name: SecretName | None = None
    """Name of the Secret that a minted key is written into, under `key`; in a cluster the API's URL too, under `url`. Exactly one of secretName and keyFrom."""
    key_from: SecretKeySource | None = None
    """A key that exists already; only its digest is kept. Exactly one of secretName and keyFrom."""
    rotation: Rotation | None = None
    """Replaces a minted key from time to time. Only with secretName. Without it a key stays until its Secret is deleted. Has no effect with `tailrace run`."""


class ApiKey(Document):
    """A key of a QueryAPI. It can only narrow what its role may do."""

    kind: Literal["ApiKey"] = "ApiKey"
    """Always ApiKey."""
    spec: ApiKeySpec
    """What is wanted."""
    status: ApiKeyStatus = ApiKeyStatus()
    """What the operator says. Files leave it out."""

    @property
    def api_ref(self) -> Ref:
        """The QueryAPI that the key opens."""
        return Ref(self.spec.query_api_ref.namespace or self.metadata.namespace, self.spec.query_api_ref.name)
