"""What `render` is given beside the QueryAPI itself: the installation's settings and what was found in the cluster. Pure values."""

import hashlib
from dataclasses import dataclass

from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.runstore import RunStoreSpec


@dataclass(frozen=True, slots=True)
class Installation:
    """What is the same for every QueryAPI of a cluster."""

    gateway_image: str
    data_plane_image: str
    image_pull_policy: str | None
    """None: what the API server makes of the image's tag."""
    namespace: str
    """Where the operator runs: from there it asks pods for their status."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cluster holds that the manifests depend on."""

    uid: str
    """The QueryAPI's."""
    run_store: RunStoreSpec
    """Of the RunStore that the QueryAPI names, as it is or, while it is gone, as the pods last had it."""
    gateway_secret: str
    """Fingerprint of the Secret NAME-gateway (see `fingerprint`)."""
    namespaces: tuple[str, ...] = ()
    """Other namespaces whose ApiKeys are admitted now."""


def fingerprint(gateway_secret: bytes) -> str:
    """Sixteen hex digits that change with the gateway's own secret. It is 256 random bits, so they tell nothing of it."""
    return hashlib.sha256(b"tailrace gateway secret fingerprint v1\n" + gateway_secret).hexdigest()[:16]


def needs_one_pod(api: QueryAPI, run_store: RunStoreSpec) -> bool:
    """Whether the RunStore forbids the replicas that the QueryAPI wants: each pod would keep runs that the others don't see."""
    return run_store.embedded is not None and api.spec.replicas > 1
