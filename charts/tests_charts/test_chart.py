"""The chart without a cluster: it lints, renders what is committed, refuses wrong values. Needs helm, on PATH or the testbed's.

After a change of the chart: `TAILRACE_WRITE_GOLDEN=1 pytest charts`, then read the difference.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[1] / "tailrace"
GOLDEN = Path(__file__).parents[1] / "golden"
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": (),
    "two-namespaces": ("--set", "watchNamespaces={retail,teama}", "--set", "rbac.aggregate=false", "--set", "crds.install=false"),
    "monitored": ("--set", "podMonitor.enabled=true", "--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--set", "replicas=1",
                  "--set", "image.tag=9.9.9", "--set", "imagePullSecrets[0].name=registry"),
}  # fmt: skip
WRONG = {
    "replicas=many": "replicas", "replicas=9": "replicas", "repliccas=1": "repliccas", "dataPlane.image.tag=latest": "tag", "logLevel=loud": "logLevel",
    "gateway.image.tag=": "tag", "watchNamespaces={Retail}": "watchNamespaces", "pullPolicy=Sometimes": "pullPolicy", "image.repository=a:1": "repository",
    "podMonitor.interval=30": "interval",
}  # fmt: skip


@pytest.fixture(scope="module")
def helm() -> str:
    """The program."""
    place = Path(os.environ.get("TAILRACE_TESTBED", "/var/tmp/tailrace-testbed")) / "bin" / "helm"
    found = shutil.which("helm") or (str(place) if place.exists() else None)
    if found is None:
        pytest.skip("no helm here: make e2e brings the testbed's, which runs these tests too")
    return found


def run(helm: str, *words: str) -> subprocess.CompletedProcess[str]:
    """helm, without a cluster."""
    environment = {**os.environ, "KUBECONFIG": "/nowhere"}
    return subprocess.run([helm, *words], capture_output=True, text=True, check=False, env=environment)


def rendered(helm: str, *options: str) -> str:
    """The chart as text."""
    done = run(helm, "template", "tailrace", str(CHART), "--namespace", "tailrace-system", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """Its objects."""
    return [each for each in yaml.safe_load_all(text) if each]


def containers(objects: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(pod spec, container) of everything that runs."""
    specs = [each["spec"]["template"]["spec"] if each["kind"] == "Deployment" else each["spec"] for each in objects if each["kind"] in ("Deployment", "Pod")]  # fmt: skip
    return [(spec, container) for spec in specs for container in spec["containers"]]


def test_it_lints(helm: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_renders_what_is_committed(helm: str, variant: str) -> None:
    text = rendered(helm, *VARIANTS[variant])
    text = re.sub(r"(?s)---\n# Source: tailrace/templates/crds\.yaml\n.*?(?=---\n# Source: (?!tailrace/templates/crds\.yaml))", "", text)
    file = GOLDEN / f"{variant}.yaml"
    if os.environ.get("TAILRACE_WRITE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text


def test_the_types_are_the_generated_ones_and_stay_on_uninstall(helm: str) -> None:
    found = {each["metadata"]["name"]: each for each in documents(rendered(helm)) if each["kind"] == "CustomResourceDefinition"}
    assert len(found) == 3
    for name, crd in found.items():
        generated = yaml.safe_load((CHART.parents[1] / "crds" / f"{name.partition('.')[0]}.yaml").read_text())
        assert crd["spec"] == generated["spec"]
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = [each for each in documents(rendered(helm, "--set", "crds.keep=false")) if each["kind"] == "CustomResourceDefinition"]
    assert len(gone) == 3
    assert not any(each["metadata"].get("annotations") for each in gone)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_by_name(helm: str, wrong: str) -> None:
    done = run(helm, "template", "tailrace", str(CHART), "--set", wrong)
    assert done.returncode != 0
    assert WRONG[wrong] in done.stderr


def test_every_value_is_in_the_schema_and_used(helm: str) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(file.read_text() for file in (CHART / "templates").rglob("*.*"))
    for name, value in values.items():
        assert f".Values.{name}" in templates, name
        if isinstance(value, dict) and name not in ("resources", "nodeSelector", "affinity", "podAnnotations"):
            for inner, below in value.items():
                assert f".Values.{name}.{inner}" in templates, f"{name}.{inner}"
                if inner == "image":
                    assert all(f".Values.{name}.image.{part}" in templates for part in below)


def test_everything_that_runs_is_restricted(helm: str) -> None:
    found = containers(documents(rendered(helm)))
    assert len(found) == 2
    for spec, container in found:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}  # fmt: skip
        assert spec["enableServiceLinks"] is False


def test_an_upgrade_of_the_operator_keeps_the_pods_images(helm: str) -> None:
    def images(*options: str) -> set[str]:
        environment = containers(each for each in documents(rendered(helm, *options)) if each["kind"] == "Deployment")[0][1]["env"]
        return {each["value"] for each in environment if each["name"].endswith("_IMAGE")}

    assert images() == images("--set", "image.tag=9.9.9") == {"tailrace/gateway:0.1.0", "tailrace/dataplane:0.1.0"}
    assert "tailrace/dataplane:v2" in images("--set", "dataPlane.image.tag=v2")


def test_watching_some_namespaces_gives_no_right_in_others(helm: str) -> None:
    objects = documents(rendered(helm, *VARIANTS["two-namespaces"]))
    everywhere = {each["roleRef"]["name"] for each in objects if each["kind"] == "ClusterRoleBinding"}
    assert everywhere == {"tailrace-operator-namespaces"}
    inside = {each["metadata"]["namespace"] for each in objects if each["kind"] == "RoleBinding" and each["roleRef"]["kind"] == "ClusterRole"}  # fmt: skip
    assert inside == {"retail", "teama"}


def test_no_right_is_a_wildcard(helm: str) -> None:
    roles = [each for each in documents(rendered(helm)) if each["kind"] in ("Role", "ClusterRole")]
    assert len(roles) == 6
    assert "*" not in {word for role in roles for rule in role["rules"] for words in rule.values() for word in words}


def test_names_follow_the_release(helm: str) -> None:
    text = run(helm, "template", "blue", str(CHART), "--namespace", "x").stdout
    names = {each["metadata"]["name"] for each in documents(text) if each["kind"] not in ("CustomResourceDefinition",)}
    assert {name for name in names if not name.startswith("blue-tailrace-operator")} == {"tailrace-gateway-reader"}
