"""Least privilege, from what the API server was asked during all tests before: nothing is missing, nothing is there for nothing."""

from pathlib import Path

import yaml
from tailrace_e2e.installation import NAMESPACE, OPERATOR, Installation
from tailrace_e2e.kubectl import Kubectl
from tailrace_e2e.rights import forbidden, granted, used
from tailrace_e2e.testbed import Bed

UNUSED: dict[str, str] = yaml.safe_load((Path(__file__).parents[1] / "rights-unused.yaml").read_text()) or {}
USER = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"


def test_the_operator_uses_no_right_that_it_lacks(bed: Bed, installation: Installation, session_began: str) -> None:
    """the operator was never forbidden anything"""
    assert not forbidden(bed.requests(session_began), USER, installation.away)


def test_the_operator_has_no_right_for_nothing(bed: Bed, cluster: Kubectl, installation: Installation, session_began: str) -> None:
    """each of the operator's rights was used, or is listed with its reason"""
    roles = [cluster.get("clusterrole", name) for name in (OPERATOR, f"{OPERATOR}-namespaces")]
    roles.append(Kubectl(NAMESPACE).get("role", f"{OPERATOR}-lease"))
    has = granted(roles)
    needless = {str(right) for right in has - used(bed.requests(session_began), USER)} - set(UNUSED)
    assert not needless
    assert set(UNUSED) <= {str(right) for right in has}, "rights-unused.yaml lists what is not granted"
    assert all(UNUSED.values())


def test_gateways_read_and_nothing_else(bed: Bed, session_began: str) -> None:
    """gateways have asked for nothing but QueryAPIs and ApiKeys, to read them"""
    asked = {
        (each.resource, each.verb)
        for each in bed.requests(session_began)
        if each.user.startswith("system:serviceaccount:") and each.user.endswith("-gateway") and each.resource
    }
    assert asked, "no gateway has asked for anything"
    assert {resource for resource, _ in asked} <= {"queryapis", "apikeys"}
    assert {verb for _, verb in asked} <= {"get", "list", "watch"}
