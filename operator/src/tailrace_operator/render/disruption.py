"""The PodDisruptionBudget: a drain takes one pod at a time. Pure."""

from tailrace_contract.queryapi import QueryAPI

from tailrace_operator.manifest import DISRUPTION_BUDGET, Manifest
from tailrace_operator.render.names import metadata, selector


def render(api: QueryAPI, uid: str) -> tuple[Manifest, ...]:
    """None below two replicas: a budget for a single pod would block every drain of its node.

    Pods that aren't ready may always go: they serve nobody, and could hold up a drain for ever.
    """
    if api.spec.replicas < 2:
        return ()
    return (
        {
            "apiVersion": DISRUPTION_BUDGET.api_version,
            "kind": DISRUPTION_BUDGET.kind,
            "metadata": metadata(api, uid, api.metadata.name),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selector(uid)},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
    )
