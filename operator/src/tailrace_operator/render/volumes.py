"""Volumes of the pod, and where each container sees them (docs/contract-kubernetes.md). Pure.

Secrets are mounted whole, never by subPath (which is never updated), and optional: one that is missing must not keep the rest from
serving. The service account's token is mounted by hand, so that only the gateway has it.
"""

from tailrace_operator.manifest import Object
from tailrace_operator.references import References
from tailrace_operator.render.names import volume_name

DATA = "/var/lib/tailrace"
SECRETS = "/etc/tailrace/secrets"
CONFIGS = "/etc/tailrace/configs"
GATEWAY = "/etc/tailrace/gateway"
GATEWAY_SECRET = f"{GATEWAY}/secret"
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_S = 3607
"""Seconds that a token lives. Kubernetes' own mounts ask for the same odd number, by which it knows them."""

_READ = 0o440


def render(gateway_secret: str, found: References) -> list[Object]:
    """The volumes, in a fixed order."""
    return [
        {"name": "data", "emptyDir": {}},
        {"name": "gateway", "secret": {"secretName": gateway_secret, "defaultMode": _READ}},
        {
            "name": "token",
            "projected": {
                "defaultMode": _READ,
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "downwardAPI": {
                            "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
                        }
                    },
                ],
            },
        },
        *(
            {"name": volume_name("secret", name), "secret": {"secretName": name, "defaultMode": _READ, "optional": True}}
            for name in found.secrets
        ),
        *(
            {"name": volume_name("config", name), "configMap": {"name": name, "defaultMode": _READ, "optional": True}}
            for name in found.config_maps
        ),
    ]


def mounts(namespace: str, secrets: tuple[str, ...], config_maps: tuple[str, ...] = (), *, token: bool = False) -> list[Object]:
    """Where a container sees them: the file of a Secret's key is SECRETS/NAMESPACE/SECRET/KEY."""
    return [
        {"name": "data", "mountPath": DATA},
        {"name": "gateway", "mountPath": GATEWAY, "readOnly": True},
        *([{"name": "token", "mountPath": _TOKEN, "readOnly": True}] if token else []),
        *({"name": volume_name("secret", name), "mountPath": f"{SECRETS}/{namespace}/{name}", "readOnly": True} for name in secrets),
        *({"name": volume_name("config", name), "mountPath": f"{CONFIGS}/{namespace}/{name}", "readOnly": True} for name in config_maps),
    ]
