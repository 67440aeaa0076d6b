"""What of a live object is ours, read from managedFields as a real API server writes them."""

from typing import Any

import pytest
from tailrace_operator.manifest import Object
from tailrace_operator.ownership import applied_fields, is_posted, unwanted

FIELDS: Object = {
    "f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:ownerReferences": {".": {}, 'k:{"uid":"u"}': {}}},
    "f:spec": {
        "f:replicas": {},
        "f:progressDeadlineSeconds": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"gateway"}': {
                        ".": {},
                        "f:args": {},
                        "f:name": {},
                        "f:terminationMessagePath": {},
                        "f:env": {".": {}, 'k:{"name":"STORE"}': {".": {}, "f:name": {}, "f:value": {}}},
                        "f:ports": {
                            ".": {},
                            'k:{"containerPort":9091,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:protocol": {}},
                        },
                    }
                }
            }
        },
    },
}


def wanted(**container: Any) -> Object:
    whole = {
        "name": "gateway",
        "args": ["--x"],
        "env": [{"name": "STORE", "value": "{}"}],
        "ports": [{"containerPort": 9091}],
        **container,
    }
    metadata = {"name": "shop", "labels": {"a": "b"}, "ownerReferences": [{"uid": "u", "kind": "QueryAPI"}]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": {"containers": [whole]}}}}


def live(operation: str, fields: Object = FIELDS, **more: Any) -> Object:
    entry = {"manager": "tailrace-operator", "operation": operation, "fieldsV1": fields, **more}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}}}}
    return {"metadata": {"managedFields": [theirs, entry]}}


def test_what_a_post_owns_becomes_an_applys_without_defaults_and_replicas() -> None:
    assert is_posted(live("Update"))
    assert not is_posted(live("Update", subresource="status"))
    theirs, ours = applied_fields(live("Update"), wanted())
    assert theirs == live("Update")["metadata"]["managedFields"][0]
    assert ours["operation"] == "Apply"
    assert set(ours["fieldsV1"]["f:spec"]) == {"f:template"}
    container = ours["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"gateway"}']
    assert set(container) == {".", "f:args", "f:name", "f:env", "f:ports"}
    assert 'k:{"containerPort":9091,"protocol":"TCP"}' in container["f:ports"]
    after = {"metadata": {"managedFields": [theirs, ours]}}
    assert not is_posted(after)
    assert unwanted(after, wanted()) is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"env": []}, "spec.template.spec.containers.env"),
        ({"env": [{"name": "OTHER", "value": "x"}]}, "spec.template.spec.containers.env"),
        ({"ports": [{"containerPort": 1}]}, "spec.template.spec.containers.ports"),
        ({"name": "another"}, "spec.template.spec.containers"),
        ({"args": []}, None),
    ],
)
def test_what_we_applied_and_no_longer_want_is_found(change: Object, place: str | None) -> None:
    _, ours = applied_fields(live("Update"), wanted())
    assert unwanted({"metadata": {"managedFields": [ours]}}, wanted(**change)) == place


def test_what_others_own_is_nobodys_business_here() -> None:
    assert unwanted(live("Update"), wanted()) is None
    assert unwanted({"metadata": {}}, wanted()) is None
    assert unwanted(live("Apply"), wanted()) == "spec.replicas"


def test_values_of_sets() -> None:
    fields: Object = {"f:metadata": {"f:finalizers": {".": {}, 'v:"a"': {}}}}
    body = {"metadata": {"finalizers": ["a"]}}
    assert unwanted(live("Apply", fields), body) is None
    assert unwanted(live("Apply", fields), {"metadata": {"finalizers": ["b"]}}) == "metadata.finalizers"
