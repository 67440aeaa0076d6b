"""The images: small, without a shell where none is needed, as nobody and on a read-only root."""

import pytest
from tailrace_e2e.kubectl import Kubectl, Object, eventually

TAG = "0.1.0"
LIMIT_MB = 40
READY = {
    "operator": ["python", "-c", "import os, tailrace_operator, tailrace_contract; print('as', os.getuid())"],
    "gateway": ["python", "-c", "import os, tailrace_gateway.cli, tailrace_contract; print('as', os.getuid())"],
    "dataplane": ["/tailrace-dataplane", "--version"],
}
"""What shows that a part's program and libraries are whole."""


def pod(part: str, command: list[str] | None = None, arguments: list[str] | None = None) -> Object:
    """A pod of one of the images, as Pod Security `restricted` wants it, with a read-only root."""
    container: Object = {
        "name": part,
        "image": f"tailrace/{part}:{TAG}",
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/tailrace"}],
    }
    if command:
        container["command"] = command
    if arguments:
        container["args"] = arguments
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": part},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            # No user is given: the image's own must do for runAsNonRoot.
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 65532},
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


@pytest.fixture
def strict(cluster: Kubectl, space: Kubectl) -> Kubectl:
    """A namespace that admits only restricted pods."""
    cluster("label", "namespace", space.namespace, "pod-security.kubernetes.io/enforce=restricted")
    return space


@pytest.mark.parametrize("part", READY)
def test_runs_as_nobody_on_a_read_only_root(strict: Kubectl, part: str) -> None:
    """each image runs as its own user 65532, with a read-only root, where Pod Security is restricted"""
    strict.apply(pod(part, READY[part]))

    def phase() -> bool:
        state = strict.get("pod", part)["status"]
        assert state["phase"] not in ("Failed",), strict("logs", part, check=False)
        return bool(state["phase"] == "Succeeded")

    eventually(f"{part} has run", phase)
    if part != "dataplane":
        assert strict("logs", part).strip() == "as 65532"


def test_the_data_plane_needs_nothing_but_its_data(strict: Kubectl) -> None:
    """the data plane's image starts, waits for plans unready, and has no shell"""
    strict.apply(pod("dataplane", arguments=["--listen", "0.0.0.0:8080", "--admin", "0.0.0.0:9090", "--data", "/var/lib/tailrace"]))
    strict("wait", "--for=condition=Ready", "pod/dataplane", "--timeout=60s")
    told = strict("get", "--raw", f"/api/v1/namespaces/{strict.namespace}/pods/dataplane:9090/proxy/readyz", check=False)
    assert "ServiceUnavailable" in told or "503" in told, told
    told = strict("exec", "dataplane", "--", "sh", "-c", "id", check=False)
    assert '"sh"' in told
    assert "not found" in told or "no such file" in told


def test_the_data_plane_is_small(cluster: Kubectl) -> None:
    """the data plane's image has at most 40 MB"""
    name = f"docker.io/tailrace/dataplane:{TAG}"

    def size() -> float | None:
        images = [each for node in cluster.list("node") for each in node["status"]["images"] if name in (each.get("names") or ())]
        return max((each["sizeBytes"] / 1e6 for each in images), default=None)

    # The node tells of new images within its reporting period.
    assert eventually("the node tells the image's size", size, within_s=330) <= LIMIT_MB
