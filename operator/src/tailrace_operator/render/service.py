"""The Service: where callers find the API. Pure."""

from tailrace_contract.queryapi import QueryAPI

from tailrace_operator.manifest import SERVICE, Manifest
from tailrace_operator.render.names import metadata, selector

PORT = 80
TLS_PORT = 443


def render(api: QueryAPI, uid: str) -> Manifest:
    """Port 80, under TLS 443, to the data planes. Address, families and the rest are the API server's to choose."""
    name, port = ("http", PORT) if api.spec.http.tls is None else ("https", TLS_PORT)
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": metadata(api, uid, api.metadata.name),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(uid),
            "ports": [{"name": name, "port": port, "protocol": "TCP", "targetPort": "http", "appProtocol": name}],
        },
    }


def url(api_name: str, namespace: str, api: Manifest | None) -> str:
    """Where the API answers, from within the cluster. `api`: the live QueryAPI, None when it is not there; its spec may be invalid."""
    scheme = "https" if is_tls(api) else "http"
    return f"{scheme}://{api_name}.{namespace}.svc"


def is_tls(api: Manifest | None) -> bool:
    """Whether a live QueryAPI asks for TLS."""
    at: object = api
    for name in ("spec", "http", "tls"):
        at = at.get(name) if isinstance(at, dict) else None
    return at is not None
