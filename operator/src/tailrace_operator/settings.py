"""What the operator is told, from its environment, parsed once into one frozen value. No IO.

Rejects with `SettingsError`, which lists all faults together. docs/contract-kubernetes.md has the table of variables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace_contract.ids import SECRET_NAME_PATTERN

from tailrace_operator.errors import SettingsError
from tailrace_operator.observe import Level

LEASE_NAME = "tailrace-operator"
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings."""

    gateway_image: str
    """Image of the pods' gateway container."""
    data_plane_image: str
    """Image of the pods' dataplane container."""
    namespace: str
    """Where the operator runs: its Lease is there."""
    image_pull_policy: str | None = None
    """Of both containers; None: what the API server makes of the tag."""
    watch_namespaces: tuple[str, ...] = ()
    """Where resources are served; none given: everywhere."""
    lease_name: str = LEASE_NAME
    identity: str = "operator"
    """Who holds the Lease: unique among the operators, so the pod's name."""
    listen_host: str = "0.0.0.0"  # noqa: S104 - probes and Prometheus come from the node and other pods
    listen_port: int = 8080
    """Where /livez, /readyz and /metrics are."""
    log_level: Level = Level.INFO
    kubeconfig: str | None = None
    """A kubeconfig file to use instead of the pod's service account."""


VARIABLES: dict[str, str] = {
    "TAILRACE_GATEWAY_IMAGE": "required",
    "TAILRACE_DATA_PLANE_IMAGE": "required",
    "TAILRACE_NAMESPACE": "required",
    "TAILRACE_IMAGE_PULL_POLICY": "",
    "TAILRACE_WATCH_NAMESPACES": "",
    "TAILRACE_LEASE_NAME": "",
    "TAILRACE_IDENTITY": "",
    "TAILRACE_LISTEN": "",
    "TAILRACE_LOG_LEVEL": "",
}
"""Every variable of ours. Another that begins with TAILRACE_ is refused, so that a mistyped one is not lost."""

_FOREIGN = re.compile("TAILRACE_[A-Z0-9_]*_(SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")
"""Variables that Kubernetes itself makes from Services named tailrace-…"""


def parse_settings(environment: Mapping[str, str], hostname: str = "operator") -> Settings:
    """Reads the environment; SettingsError with every fault. `hostname` identifies the operator unless TAILRACE_IDENTITY does."""
    faults = [f"{name} is required" for name, need in VARIABLES.items() if need and not environment.get(name)]
    faults += [
        f"there is no variable {name}"
        for name in sorted(environment)
        if name.startswith("TAILRACE_") and name not in VARIABLES and _FOREIGN.fullmatch(name) is None
    ]

    def text(name: str, default: str = "") -> str:
        return environment.get(name) or default

    policy = text("TAILRACE_IMAGE_PULL_POLICY") or None
    if policy is not None and policy not in PULL_POLICIES:
        faults.append(f"TAILRACE_IMAGE_PULL_POLICY must be one of {', '.join(PULL_POLICIES)}")
    namespaces = tuple(sorted({part.strip() for part in text("TAILRACE_WATCH_NAMESPACES").split(",") if part.strip()}))
    for name in (*namespaces, *filter(None, [text("TAILRACE_NAMESPACE")])):
        if re.fullmatch(SECRET_NAME_PATTERN, name) is None:
            faults.append("TAILRACE_WATCH_NAMESPACES and TAILRACE_NAMESPACE must be names of namespaces")
            break
    host, _, port = text("TAILRACE_LISTEN", "0.0.0.0:8080").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        faults.append("TAILRACE_LISTEN must be HOST:PORT")
        port = "0"
    level = text("TAILRACE_LOG_LEVEL", "info").upper()
    if level not in Level.__members__:
        faults.append(f"TAILRACE_LOG_LEVEL must be one of {', '.join(each.name.lower() for each in Level)}")
        level = "INFO"
    if faults:
        raise SettingsError(tuple(faults))
    return Settings(
        gateway_image=text("TAILRACE_GATEWAY_IMAGE"),
        data_plane_image=text("TAILRACE_DATA_PLANE_IMAGE"),
        namespace=text("TAILRACE_NAMESPACE"),
        image_pull_policy=policy,
        watch_namespaces=namespaces,
        lease_name=text("TAILRACE_LEASE_NAME", LEASE_NAME),
        identity=text("TAILRACE_IDENTITY", hostname),
        listen_host=host.removeprefix("[").removesuffix("]"),
        listen_port=int(port),
        log_level=Level[level],
        kubeconfig=environment.get("KUBECONFIG") or None,
    )
