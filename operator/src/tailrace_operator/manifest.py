"""Kubernetes objects as JSON, the kinds that the operator touches, and what it reads of their metadata. Pure.

Objects stay plain JSON on purpose: they are compared and sent field by field, and most of their fields belong to somebody else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace_contract.ids import Ref
from tailrace_contract.resource import API_VERSION
from tailrace_contract.resource import Kind as Custom

Object = dict[str, Any]
"""One Kubernetes object, as the API server's JSON has it."""

Manifest = Mapping[str, Any]
"""An object that is wanted: what `render` makes. Never changed in place."""

FIELD_MANAGER = "tailrace-operator"
"""Who applies, in `managedFields`."""

SCALE_MANAGER = "tailrace-operator-scale"
"""Who writes a Deployment's scale, in `managedFields`: never the one who applies, so that an apply cannot reset replicas."""

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
QUERY_API_LABEL = "tailrace.dev/queryapi"
QUERY_API_UID_LABEL = "tailrace.dev/queryapi-uid"
API_KEY_UID_LABEL = "tailrace.dev/apikey-uid"
PAUSED_ANNOTATION = "tailrace.dev/paused"


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One kind of the Kubernetes API: how it is named and where its path is."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path below the API server's address. No namespace: every namespace (lists), or a kind that has none."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace is not None else ""
        return root + where + f"/{self.plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")


QUERY_API = Kind(API_VERSION, Custom.QUERY_API, "queryapis")
API_KEY = Kind(API_VERSION, Custom.API_KEY, "apikeys")
RUN_STORE = Kind(API_VERSION, Custom.RUN_STORE, "runstores")
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
POD = Kind("v1", "Pod", "pods")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
EVENT = Kind("v1", "Event", "events")

KINDS: tuple[Kind, ...] = (
    QUERY_API, API_KEY, RUN_STORE, NAMESPACE, SECRET, CONFIG_MAP, SERVICE, SERVICE_ACCOUNT, POD, DEPLOYMENT, REPLICA_SET,
    DISRUPTION_BUDGET, NETWORK_POLICY, ROLE, ROLE_BINDING, LEASE, EVENT,
)  # fmt: skip
"""Every kind that the operator may name."""

OWNED: tuple[Kind, ...] = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SECRET, SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, DEPLOYMENT)
"""Kinds of what a QueryAPI owns, in the order of writing: the Deployment last, so that its pods find the rest. Pruned in reverse."""

CUSTOM: dict[Custom, Kind] = {Custom.QUERY_API: QUERY_API, Custom.API_KEY: API_KEY, Custom.RUN_STORE: RUN_STORE}
"""The three resources' kinds."""

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """Which object: kind, namespace ("" for a kind that has none) and name."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The object's path."""
        return self.kind.path(self.namespace or None, self.name)

    @property
    def ref(self) -> Ref:
        """Namespace and name."""
        return Ref(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.kind} {self.name}"


def kind_of(manifest: Manifest) -> Kind:
    """The kind that an object names; KeyError for one that the operator has no business with."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def ref_of(manifest: Manifest) -> ObjectRef:
    """Which object it is."""
    kind = kind_of(manifest)
    return ObjectRef(kind, manifest["metadata"].get("namespace", "") if kind.namespaced else "", manifest["metadata"]["name"])


def uid_of(live: Manifest) -> str:
    """The API server's identity of the object; "" for one that was never there."""
    return str(live["metadata"].get("uid", ""))


def version_of(live: Manifest) -> str:
    """The object's resourceVersion."""
    return str(live["metadata"].get("resourceVersion", ""))


def labels_of(live: Manifest) -> Mapping[str, str]:
    """The object's labels."""
    return live["metadata"].get("labels") or {}


def annotations_of(live: Manifest) -> Mapping[str, str]:
    """The object's annotations."""
    return live["metadata"].get("annotations") or {}


def is_paused(live: Manifest) -> bool:
    """Whether its owner asked that nothing but its status be written."""
    return annotations_of(live).get(PAUSED_ANNOTATION) == "true"


def is_going(live: Manifest) -> bool:
    """Whether it is being deleted."""
    return bool(live["metadata"].get("deletionTimestamp"))


def controller_uid(live: Manifest) -> str | None:
    """UID of the object that controls it, if one does."""
    for owner in live["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def owner_reference(owner: Manifest) -> Object:
    """The owner reference to a custom resource: garbage collection takes what it owns, and nothing waits for it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
