"""What a QueryAPI becomes: its manifests. Pure, deterministic and sorted by the order of writing; rejects nothing and does no IO.

Nothing in the pod template depends on queries, roles, keys, limits, the spec's generation or the operator's version: changing those
rolls no pod. What does roll pods: images, resources, the RunStore's spec, a new gateway secret, and another *name* of a Secret or
ConfigMap (their contents don't).

    tailrace_operator.references ─► facts ─► deployment, service, access, disruption, network
"""

from tailrace_contract.queryapi import QueryAPI

from tailrace_operator.manifest import OWNED, Manifest, kind_of
from tailrace_operator.render import access, deployment, disruption, network, service
from tailrace_operator.render.facts import Facts, Installation

__all__ = ["Facts", "Installation", "render"]


def render(api: QueryAPI, facts: Facts, installation: Installation) -> tuple[Manifest, ...]:
    """All that should exist for it but the gateway's Secret, which is minted. RoleBindings in other namespaces are among it, without an owner.

    The Deployment's replicas are for its creation and its scale; an apply leaves them out (`diff`).
    """
    manifests = [
        *access.render(api, facts),
        service.render(api, facts.uid),
        network.render(api, facts.uid, installation.namespace),
        *disruption.render(api, facts.uid),
        deployment.render(api, facts, installation),
    ]
    return tuple(sorted(manifests, key=_order))


def _order(manifest: Manifest) -> tuple[int, str, str]:
    return OWNED.index(kind_of(manifest)), manifest["metadata"]["namespace"], manifest["metadata"]["name"]
