"""The chart on a real cluster: its own test, its metrics, its rights."""

import json
from pathlib import Path

import pytest
from tailrace_e2e.installation import NAMESPACE, RELEASE, Installation
from tailrace_e2e.kubectl import Kubectl, command

ROOT = Path(__file__).resolve().parents[2]


def may(cluster: Kubectl, user: str, verb: str, what: str, *words: str) -> bool:
    """Whether a user may do something, as the API server says it."""
    return cluster("auth", "can-i", verb, what, "--as", user, *words, check=False).split()[0] == "yes"


def test_helm_test_passes(installation: Installation) -> None:
    """helm test passes: the operator answers through its Service, with metrics"""
    assert "Phase:" in command("helm", "test", RELEASE, "--namespace", NAMESPACE, "--timeout", "2m").stdout


def test_the_notes_say_what_to_do_next(installation: Installation) -> None:
    """helm's notes say the next command"""
    told = command("helm", "get", "notes", RELEASE, "--namespace", NAMESPACE).stdout
    assert "kubectl apply -k docs/examples/shop/cluster" in told


def test_the_operators_pods_are_restricted(cluster: Kubectl, installation: Installation) -> None:
    """the operator's pods pass Pod Security restricted"""
    done = command(
        "kubectl", "label", "--dry-run=server", "--overwrite", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted"
    )
    assert "labeled" in done.stdout
    assert "violate" not in done.stderr, done.stderr  # The server warns of pods that are there and would not be admitted.


def test_roles_of_the_cluster_learn_the_kinds(cluster: Kubectl, installation: Installation, space: Kubectl) -> None:
    """the cluster's edit role may write the three kinds, its view role may read them, and neither may write a status"""
    for role in ("view", "edit"):
        space("create", "serviceaccount", role)
        space("create", "rolebinding", role, f"--clusterrole={role}", f"--serviceaccount={space.namespace}:{role}")
    viewer, editor = (f"system:serviceaccount:{space.namespace}:{role}" for role in ("view", "edit"))
    for kind in ("queryapis", "apikeys", "runstores"):
        what = f"{kind}.tailrace.dev"
        assert may(space, viewer, "list", what)
        assert not may(space, viewer, "create", what)
        assert may(space, editor, "create", what)
        assert not may(space, editor, "patch", what, "--subresource=status"), "who writes a key's status mints keys"


def test_the_reader_role_is_narrow(cluster: Kubectl, installation: Installation) -> None:
    """a gateway's reader role reads ApiKeys and nothing else"""
    role = cluster.get("clusterrole", "tailrace-gateway-reader")
    assert [(rule["resources"], sorted(rule["verbs"])) for rule in role["rules"]] == [(["apikeys"], ["get", "list", "watch"])]


@pytest.mark.parametrize("wrong", ["replicas=nine", "dataPlane.image.tag=latest"])
def test_wrong_values_are_refused(installation: Installation, wrong: str) -> None:
    """helm refuses a wrong value by its name"""
    done = command(
        "helm", "upgrade", RELEASE, str(ROOT / "charts/tailrace"), "--namespace", NAMESPACE, "--dry-run=server", "--set", wrong, check=False
    )
    assert done.returncode != 0
    assert wrong.partition("=")[0].rpartition(".")[2] in done.stderr


def test_the_release_is_whole(installation: Installation) -> None:
    """helm says that the release is deployed"""
    assert (
        json.loads(command("helm", "status", RELEASE, "--namespace", NAMESPACE, "--output", "json").stdout)["info"]["status"] == "deployed"
    )
