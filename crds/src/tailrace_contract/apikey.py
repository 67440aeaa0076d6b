"""ApiKey: who may call. Models only; their cross-field rules are in `rules`. Docstrings become the CRD's descriptions."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue

from tailrace_contract.ids import Name, ParameterName, SecretName
from tailrace_contract.queryapi import Cidr
from tailrace_contract.resource import Document, ObjectRef, Part, SecretKeySource


class ApiKeySpec(Part):
    """What is wanted."""

    query_api_ref: ObjectRef
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
    """Name of the Secret that a minted key is written into, under `key`. Exactly one of secretName and keyFrom."""
    key_from: SecretKeySource | None = None
    """A key that exists already; only its digest is kept. Exactly one of secretName and keyFrom."""


class ApiKey(Document):
    """A key of a QueryAPI. It can only narrow what its role may do."""

    kind: Literal["ApiKey"] = "ApiKey"
    """Always ApiKey."""
    spec: ApiKeySpec
    """What is wanted."""
