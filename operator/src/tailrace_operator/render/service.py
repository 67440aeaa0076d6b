"""The Service: where callers find the API. Pure."""

from tailrace_contract.queryapi import QueryAPI

from tailrace_operator.manifest import SERVICE, Manifest
from tailrace_operator.render.names import metadata, selector

PORT = 80


def render(api: QueryAPI, uid: str) -> Manifest:
    """Port 80 to the data planes. Address, families and the rest are the API server's to choose."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": metadata(api, uid, api.metadata.name),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(uid),
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": "http", "appProtocol": "http"}],
        },
    }


def url(api_name: str, namespace: str) -> str:
    """Where the API answers, from within the cluster."""
    return f"http://{api_name}.{namespace}.svc"
