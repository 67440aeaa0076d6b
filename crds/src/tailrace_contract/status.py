"""What the operator says about the three kinds: the `status` of each. Models only; who fills which field is in docs/contract-kubernetes.md.

A reader takes a status of a newer operator: fields that it does not know are left out. Docstrings become the CRDs' descriptions.
"""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tailrace_contract.ids import Namespace

Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[str, Field(pattern="^[0-9]+/[0-9]+$", max_length=21)]
"""`2/3`: how many of how many pods."""

REFUSED_SHOWN = 20
NAMESPACES_SHOWN = 256
REVOCATIONS_SHOWN = 20
KEYS_HELD = 4
CONDITIONS_HELD = 16
"""Most entries of the lists below."""


class Observed(BaseModel):
    """Base of everything in a status: frozen, camelCase in YAML, no coercion of types; unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Condition(Observed):
    """One thing that is so, is not so, or is not known yet."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """What it is about. Unique."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    observed_generation: Annotated[int, Field(ge=-1, le=2**53)] = -1
    """Generation of the spec that it is about."""
    last_transition_time: AwareDatetime
    """When `status` last changed. RFC 3339."""
    reason: Annotated[str, Field(pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", min_length=1, max_length=1024)]
    """Why, as one word for programs."""
    message: Annotated[str, Field(max_length=32_768)]
    """Why, for people. It never holds a secret or a value."""


class Status(Observed):
    """What every status begins with."""

    observed_generation: Annotated[int, Field(ge=-1, le=2**53)] = -1
    """Generation of the spec that this status is about; -1: none yet."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=CONDITIONS_HELD)] = ()
    """What is so. Reconciling and Stalled are there only while they are true."""


class RefusedQuery(Observed):
    """A query that is not served."""

    name: Word
    """Name of the query."""
    role: Word = ""
    """The role that it is refused to; empty: to all."""
    code: Word
    """Why, as one word (docs/errors.md)."""
    message: Text
    """Why, and what mends it."""


class QueriesStatus(Observed):
    """How many queries there are and are served."""

    total: Count
    """In the spec and its ConfigMaps."""
    served: Count
    """With a plan for every role that they are granted to."""
    coalesced: Count = 0
    """Whose waiting callers share statements; `kubectl tailrace explain` says why the others don't."""
    refused: Annotated[tuple[RefusedQuery, ...], Field(max_length=REFUSED_SHOWN)] = ()
    """Those that are not; the first 20."""


class AdmittedNamespace(Observed):
    """A namespace whose ApiKeys are admitted now."""

    name: Namespace
    """Name of the namespace."""
    entry: Annotated[str, Field(pattern="^[0-9a-f]{16}$", max_length=16)]
    """Fingerprint of the entry of allowKeysFrom that admits it (`fingerprints.entry_fingerprint`). A namespace stands here once for each such entry."""
    bind: dict[Annotated[str, Field(max_length=50)], Annotated[str, Field(max_length=63)]] = Field({}, max_length=16)
    """Parameters that its keys are bound to, from the namespace's labels."""


class Revocation(Observed):
    """A deleted ApiKey and who has dropped it."""

    key: Annotated[str, Field(max_length=128)]
    """NAMESPACE/NAME of the ApiKey."""
    resource_version: Word
    """Of its deletion."""
    confirmed_by: Share
    """Ready pods that have dropped it, of ready pods."""


class QueryAPIStatus(Status):
    """What is so."""

    url: Text | None = None
    """Where the API answers within the cluster."""
    replicas: Count = 0
    """Pods of the Deployment."""
    selector: Text | None = None
    """Selects the pods: for the scale subresource."""
    loaded_by: Share | None = None
    """Ready pods that have acknowledged this generation, of ready pods."""
    queries: QueriesStatus | None = None
    """How many queries there are and are served."""
    keys: Count | None = None
    """Key texts that the pods serve."""
    namespaces: Annotated[tuple[AdmittedNamespace, ...], Field(max_length=NAMESPACES_SHOWN)] = ()
    """Other namespaces whose ApiKeys are admitted now; at most 256."""
    revocation: Annotated[tuple[Revocation, ...], Field(max_length=REVOCATIONS_SHOWN)] = ()
    """The last deleted keys, newest first."""


class KeyDigest(Observed):
    """A key text that is valid, as its digest."""

    id: Word
    """May be shown anywhere: the text between the first two underscores of a minted key; of any other the first 8 digits of `sha256`."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$", max_length=64)]
    """SHA-256 of the text, hex."""
    not_before: AwareDatetime
    """When it became valid, by the operator's clock; pods admit it as soon as it stands here. RFC 3339."""
    not_after: AwareDatetime | None = None
    """When it stops being valid: only while it is being replaced. RFC 3339."""


class ApiKeyStatus(Status):
    """What is so."""

    keys: Annotated[tuple[KeyDigest, ...], Field(max_length=KEYS_HELD)] = ()
    """Key texts that are valid, the newest last. Whoever may write this may make keys."""
    loaded_by: Share | None = None
    """Ready pods that have acknowledged this key as it is, of ready pods."""
    revoked_on: Share | None = None
    """Of a suspended, expired or no longer admitted key: ready pods that have dropped it, of ready pods."""
    url: Text | None = None
    """Where the API answers within the cluster."""


class RunStoreStatus(Status):
    """What is so."""

    backend: Literal["embedded", "postgres"] | None = None
    """What keeps the runs."""
