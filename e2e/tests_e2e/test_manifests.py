"""The objects that the operator renders, put to a real API server. No operator and no image is needed: nothing is created."""

import json
from pathlib import Path

import pytest
import yaml
from tailrace_e2e.kubectl import Kubectl, Object, command
from tailrace_operator.diff import applied, drift

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "operator" / "tests_operator" / "golden" / "render"
CASES = sorted(path.name.removesuffix(".out.yaml") for path in GOLDEN.glob("*.out.yaml"))


def documents(case: str, namespace: str) -> list[Object]:
    """The manifests of a case, moved into a namespace."""
    found: list[Object] = list(yaml.safe_load_all((GOLDEN / f"{case}.out.yaml").read_text()))
    return [{**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in found]


@pytest.mark.parametrize("case", CASES)
def test_manifests(space: Kubectl, case: str) -> None:
    """What is rendered is accepted without a warning under Pod Security restricted, and the API server's defaults are no drift"""
    for level in ("enforce", "warn"):
        command("kubectl", "label", "namespace", space.namespace, f"pod-security.kubernetes.io/{level}=restricted")
    for manifest in documents(case, space.namespace):
        words = ("kubectl", "create", "--dry-run=server", "--validate=strict", "--output", "json", "--filename", "-")
        done = command(*words, given=json.dumps(manifest))
        assert not done.stderr, done.stderr
        wanted = applied(manifest)
        assert drift(wanted, json.loads(done.stdout)) is None


@pytest.mark.usefixtures("crds")
def test_kustomize_example(space: Kubectl) -> None:
    """The kustomize example, queries as *.sql files, is accepted"""
    text = command("kubectl", "kustomize", str(ROOT / "docs" / "gitops" / "kustomize")).stdout
    found = [each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"]
    assert [each["kind"] for each in found] == ["ConfigMap", "ApiKey", "QueryAPI", "RunStore"]
    for each in found:
        moved = {**each, "metadata": {**each["metadata"], "namespace": space.namespace}}
        space("create", "--dry-run=server", "--validate=strict", "--filename", "-", given=json.dumps(moved))
