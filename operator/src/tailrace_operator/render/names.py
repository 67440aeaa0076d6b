"""Names, labels and owner of what is rendered (docs/contract-kubernetes.md). Pure.

A QueryAPI's name has at most 50 characters, so nothing here is ever shortened.
"""

import hashlib

from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import API_VERSION

from tailrace_operator.manifest import (
    INSTANCE_LABEL,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    QUERY_API,
    QUERY_API_LABEL,
    QUERY_API_UID_LABEL,
    Object,
)

READER_ROLE = "tailrace-gateway-reader"
"""The chart's ClusterRole: gateways read ApiKeys of other namespaces through it."""

_LABEL_LENGTH = 63


def gateway_name(api: QueryAPI) -> str:
    """ServiceAccount, Role, RoleBinding and Secret of the gateway."""
    return f"{api.metadata.name}-gateway"


def reader_name(uid: str) -> str:
    """RoleBindings in other namespaces."""
    return f"tailrace-gateway-{uid}"


def selector(uid: str) -> dict[str, str]:
    """What selects the pods. It never changes: a Deployment's can't."""
    return {QUERY_API_UID_LABEL: uid}


def labels(api: QueryAPI, uid: str) -> dict[str, str]:
    """On everything that is rendered. Nothing in it depends on the operator's version."""
    return {
        NAME_LABEL: "tailrace",
        INSTANCE_LABEL: api.metadata.name,
        MANAGED_BY_LABEL: "tailrace-operator",
        QUERY_API_LABEL: api.metadata.name,
        QUERY_API_UID_LABEL: uid,
    }


def metadata(api: QueryAPI, uid: str, name: str) -> Object:
    """Metadata of an object in the QueryAPI's namespace, which owns it."""
    return {
        "name": name,
        "namespace": api.metadata.namespace,
        "labels": labels(api, uid),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": str(QUERY_API.kind),
                "name": api.metadata.name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def volume_name(kind: str, name: str) -> str:
    """Name of the volume for a Secret or ConfigMap: readable if it may be (no dots, at most 63 characters), else by its digest.

    The two forms begin differently, so they can't meet.
    """
    plain = f"{kind}-{name}"
    if "." not in name and len(plain) <= _LABEL_LENGTH:
        return plain
    return f"hashed-{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
