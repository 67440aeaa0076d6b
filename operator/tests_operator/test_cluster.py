"""Errors of the client as errors of ours, and the fields that a POST of ours owns."""

import json
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from tailrace_operator.cluster import event_body, selector, translated
from tailrace_operator.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from tailrace_operator.manifest import DEPLOYMENT, NAMESPACE, SECRET, Kind


def refused(status: int, **body: Any) -> ApiException:
    error = ApiException(status=status, reason="said shortly")
    error.body = json.dumps(body)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "retry"),
    [
        (refused(404), NotFound, True),
        (refused(409, reason="AlreadyExists"), AlreadyExists, True),
        (refused(409, reason="Conflict"), Conflict, True),
        (refused(403, message="exceeded quota"), Forbidden, True),
        (refused(401), Forbidden, True),
        (refused(422), Invalid, False),
        (refused(400), Invalid, False),
        (refused(429), Unavailable, True),
        (refused(500), Unavailable, True),
        (refused(410), Unavailable, True),
        (ApiException(status=0, reason="SSL"), Unavailable, True),
        (ConnectionResetError("x"), Unavailable, True),
        (TimeoutError(), Unavailable, True),
    ],
)
def test_each_refusal_is_one_of_a_small_set(error: Exception, kind: type[ClusterError], retry: bool) -> None:
    mapped = translated(error, DEPLOYMENT, "apply")
    assert type(mapped) is kind
    assert mapped.is_retryable is retry


def test_a_namespace_that_goes_is_told_apart() -> None:
    gone = translated(refused(403, details={"causes": [{"reason": "NamespaceTerminating"}]}), DEPLOYMENT, "create")
    assert isinstance(gone, Forbidden)
    assert gone.is_terminating
    other = translated(refused(403), DEPLOYMENT, "create")
    assert isinstance(other, Forbidden)
    assert not other.is_terminating


def test_what_the_server_says_of_a_secrets_data_is_dropped() -> None:
    said = refused(422, message='Secret "x" is invalid: data[key]: Invalid value: "tlr_hidden"')
    assert "tlr_hidden" not in str(translated(said, SECRET, "apply"))
    body_is_no_json = ApiException(status=500, reason="x")
    body_is_no_json.body = "<html>"
    assert translated(body_is_no_json, SECRET, "get").status == 500


def test_paths_and_selectors() -> None:
    assert DEPLOYMENT.path("retail", "shop") == "/apis/apps/v1/namespaces/retail/deployments/shop"
    assert DEPLOYMENT.path() == "/apis/apps/v1/deployments"
    assert NAMESPACE.path(None, "retail") == "/api/v1/namespaces/retail"
    assert Kind("v1", "Pod", "pods").path("retail", "p", "status") == "/api/v1/namespaces/retail/pods/p/status"
    assert selector({"b": "2", "a": "1"}) == "a=1,b=2"


def test_an_events_message_is_bounded() -> None:
    regarding = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "desk", "namespace": "retail", "uid": "u"}}
    body = event_body(regarding, "Minted", "x" * 5000, False, 0)
    assert len(body["message"]) == 1024
    assert body["firstTimestamp"] == "1970-01-01T00:00:00Z"
    assert body["involvedObject"]["uid"] == "u"
