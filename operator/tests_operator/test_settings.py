"""The operator's environment."""

import re
from pathlib import Path

import pytest
from tailrace_operator.errors import SettingsError
from tailrace_operator.observe import Level
from tailrace_operator.settings import VARIABLES, parse_settings

LEAST = {"TAILRACE_GATEWAY_IMAGE": "g:1", "TAILRACE_DATA_PLANE_IMAGE": "d:1", "TAILRACE_NAMESPACE": "tailrace"}


def test_the_least_that_must_be_said() -> None:
    settings = parse_settings(LEAST, "pod-1")
    assert (settings.identity, settings.listen_host, settings.listen_port) == ("pod-1", "0.0.0.0", 8080)
    assert settings.watch_namespaces == ()
    assert settings.image_pull_policy is None


def test_everything_said() -> None:
    settings = parse_settings(
        {
            **LEAST,
            "TAILRACE_IMAGE_PULL_POLICY": "Never",
            "TAILRACE_WATCH_NAMESPACES": "b, a,b",
            "TAILRACE_LEASE_NAME": "lease",
            "TAILRACE_IDENTITY": "me",
            "TAILRACE_LISTEN": "[::1]:9",
            "TAILRACE_LOG_LEVEL": "debug",
            "KUBECONFIG": "file",
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.listen_host, settings.listen_port, settings.log_level) == ("::1", 9, Level.DEBUG)
    assert (settings.identity, settings.lease_name, settings.kubeconfig) == ("me", "lease", "file")


def test_all_faults_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(
            {
                "TAILRACE_NAMESPACE": "Not A Name",
                "TAILRACE_LISTEN": "8080",
                "TAILRACE_LOG_LEVEL": "loud",
                "TAILRACE_IMAGE_PULL_POLICY": "Maybe",
                "TAILRACE_GATEWAY_IMGE": "x",
            }
        )
    assert len(caught.value.faults) == 7


def test_variables_that_kubernetes_makes_from_services_are_no_fault() -> None:
    parse_settings(
        {**LEAST, "TAILRACE_OPERATOR_SERVICE_HOST": "1", "TAILRACE_OPERATOR_PORT_8080_TCP_ADDR": "2", "TAILRACE_OPERATOR_PORT": "3"}
    )


def test_the_page_has_every_variable_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contract-kubernetes.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `TAILRACE_")]
    assert {name for row in rows for name in re.findall(r"`(TAILRACE_[A-Z_]+)`", row)} == set(VARIABLES)
