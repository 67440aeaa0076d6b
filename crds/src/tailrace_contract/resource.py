"""The three resources as YAML and the Kubernetes API hold them: QueryAPI, ApiKey, RunStore (tailrace.dev/v1alpha1).

This module has what they share; the way in is `document.read`. A field is here only when it works: anything else is refused with a hint. Pure. Docstrings below become the CRDs' descriptions.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tailrace_contract.ids import NAME_LENGTH, NAME_PATTERN, Name, Ref, SecretKey, SecretName

GROUP = "tailrace.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["tailrace.dev/v1alpha1"] = "tailrace.dev/v1alpha1"


class Part(BaseModel):
    """Base of everything in a resource: frozen, camelCase in YAML, unknown fields refused, no coercion of types."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Kind(StrEnum):
    """The three kinds."""

    QUERY_API = "QueryAPI"
    API_KEY = "ApiKey"
    RUN_STORE = "RunStore"


class Metadata(BaseModel):
    """Of Kubernetes' metadata only what is used here; the rest (labels, annotations, …) is left alone."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=NAME_PATTERN)]
    """Name of the resource, unique for its kind in its namespace. At most 50 characters."""
    namespace: SecretName = "default"
    """Namespace of the resource."""
    uid: str = ""
    """Set by the Kubernetes API."""
    generation: int = 0
    """Set by the Kubernetes API: counts changes of the spec."""
    resource_version: str = ""
    """Set by the Kubernetes API: changes with every write."""


class Document(Part):
    """What every resource begins with."""

    api_version: Literal["tailrace.dev/v1alpha1"] = API_VERSION
    """Always tailrace.dev/v1alpha1."""
    metadata: Metadata
    """Name and namespace."""

    @property
    def ref(self) -> Ref:
        """Namespace and name."""
        return Ref(self.metadata.namespace, self.metadata.name)


class SecretKeyRef(Part):
    """One key of a Secret in the resource's own namespace."""

    name: SecretName
    """Name of the Secret."""
    key: SecretKey
    """Key within the Secret."""


class SecretKeySource(Part):
    """Where a value comes from that must not stand in the resource itself."""

    secret_key_ref: SecretKeyRef
    """The Secret and its key."""


class ConfigMapRef(Part):
    """A ConfigMap in the resource's own namespace."""

    name: SecretName
    """Name of the ConfigMap."""


class ConfigMapSource(Part):
    """Where queries come from that don't stand in the resource itself."""

    config_map_ref: ConfigMapRef
    """The ConfigMap."""


class SecretRef(Part):
    """A whole Secret in the resource's own namespace."""

    name: SecretName
    """Name of the Secret."""


class ObjectRef(Part):
    """Another resource in the same namespace."""

    name: Name
    """Name of the resource."""
