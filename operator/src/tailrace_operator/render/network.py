"""The NetworkPolicy: who reaches which port. Pure.

Port 8080 is open to everybody: every call needs a key there. The admin and metrics ports need none and show what is loaded, so only the
operator's namespace and namespaces labelled `tailrace.dev/metrics: "true"` reach them. The kubelet's probes come from the pod's own node,
which a NetworkPolicy never stops. Egress stays open: the databases' addresses are in Secrets, may be names whose addresses change,
and a policy can't name them.
"""

from tailrace_contract.queryapi import QueryAPI

from tailrace_operator.manifest import NETWORK_POLICY, Manifest
from tailrace_operator.render.names import metadata, selector

METRICS_LABEL = "tailrace.dev/metrics"
"""On a namespace, "true": its pods (Prometheus) may reach the admin and metrics ports."""


def render(api: QueryAPI, uid: str, operator_namespace: str) -> Manifest:
    """The policy for the QueryAPI's pods."""
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": metadata(api, uid, api.metadata.name),
        "spec": {
            "podSelector": {"matchLabels": selector(uid)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": "http", "protocol": "TCP"}]},
                {
                    "from": [
                        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}},
                        {"namespaceSelector": {"matchLabels": {METRICS_LABEL: "true"}}},
                    ],
                    "ports": [{"port": "admin", "protocol": "TCP"}, {"port": "metrics", "protocol": "TCP"}],
                },
            ],
        },
    }
