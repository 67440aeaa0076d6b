"""Every golden document is what it says; the derived files are structural, bounded and described."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract import document, rules
from tailrace_contract.apikey import ApiKey
from tailrace_contract.containers import DATA_PLANE, GATEWAY, Allotment, DataPlane, Gateway, Resources, allotment
from tailrace_contract.document import MODELS, RULES
from tailrace_contract.findings import Finding, format_path
from tailrace_contract.generate import crds, yaml_text
from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind

GOLDEN = Path(__file__).parent.parent / "golden"
VALID = sorted(GOLDEN.glob("valid/*.yaml"))
INVALID = sorted(GOLDEN.glob("invalid/*.yaml"))


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_a_valid_document_is_read_and_reads_back(file: Path) -> None:
    resource = document.read(yaml.safe_load(file.read_text()))
    assert not isinstance(resource, list), resource
    again = document.read(yaml.safe_load(resource.model_dump_json(by_alias=True, exclude_unset=True)))
    assert again == resource


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_an_invalid_document_says_where_what_and_how_to_mend_it(file: Path) -> None:
    text = file.read_text()
    wanted = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("# ")]
    found = document.read(yaml.safe_load(text))
    assert isinstance(found, list)
    assert [part for finding in found for part in (finding.place, finding.message, finding.hint)] == wanted
    assert all(wanted), "every finding has a place, a message and a fix"


def test_every_rule_of_python_and_cel_has_a_golden_document_that_breaks_it() -> None:
    told = "\n".join(file.read_text() for file in INVALID)
    for each in RULES.values():
        for rule in each:
            assert f"# message: {rule.message.partition('; ')[0]}\n" in told, rule.message


def test_everything_wrong_is_told_at_once() -> None:
    api = yaml.safe_load((GOLDEN / "valid" / "api-smallest.yaml").read_text())
    api["spec"]["queries"][0] |= {"connection": "other", "timeout": 5, "sqll": 1, "returns": "none"}
    api["spec"]["roles"][0]["queries"] = []
    del api["spec"]["runStoreRef"]
    found = document.read(api)
    assert isinstance(found, list)
    assert {finding.place for finding in found} == {
        "spec.queries[0].connection", "spec.queries[0].timeout", "spec.queries[0].sqll", "spec.queries[0].returns",
        "spec.roles[0].queries", "spec.runStoreRef",
    }  # fmt: skip


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "integer", "array", "one"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "spec", "type", "items", "enum", "page"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.sampled_from(VALID), st.data())
def test_no_change_of_a_document_makes_the_reader_fail(file: Path, data: st.DataObject) -> None:
    """Whatever stands at any place: a resource or findings with places, never an exception."""
    root = yaml.safe_load(file.read_text())
    node: Any = root
    for _ in range(data.draw(st.integers(0, 5))):
        children = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        if not children:
            break
        key = data.draw(st.sampled_from(children))
        if not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            node[key] = data.draw(json_values)
            break
        node = node[key]
    found = document.read(root)
    if isinstance(found, list):
        assert found
        assert all(isinstance(finding, Finding) and finding.message for finding in found)


def _nodes(node: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
    found = [(path, node)]
    for name, each in node.get("properties", {}).items():
        found += _nodes(each, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(node.get(name), dict):
            found += _nodes(node[name], f"{path}.{name}")
    return found


@pytest.mark.parametrize("kind", Kind)
def test_a_crd_is_structural_bounded_and_described(kind: Kind) -> None:
    properties = crds.schema(kind)["properties"]
    for path, node in _nodes(properties["spec"], "spec") + _nodes(properties["status"], "status"):
        open_type = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-int-or-string")
        assert open_type or node.get("type") in ("object", "array", "string", "integer", "boolean"), path
        assert not {"$ref", "anyOf", "const", "title", "nullable", "patternProperties", "propertyNames"} & node.keys(), path
        assert not ({"properties", "additionalProperties"} <= node.keys()), path
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node or node.get("format") == "date-time", path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum"} <= node.keys(), path
        if not path.endswith((".items", ".additionalProperties")):
            assert node.get("description"), path


def test_durations_and_sizes_say_that_they_have_a_unit() -> None:
    for kind in Kind:
        for path, node in _nodes(crds.schema(kind)["properties"]["spec"], "spec"):
            if "(ms|s|m|h|d)" in node.get("pattern", ""):
                assert "duration" in node["description"], path
            if "(Ki|Mi|Gi|Ti)" in node.get("pattern", ""):
                assert "size" in node["description"], path


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-zA-Z][a-zA-Z0-9]{0,5}", fullmatch=True), inner, max_size=3)))  # fmt: skip
def test_generated_yaml_reads_back(value: object) -> None:
    assert yaml.safe_load(yaml_text.dump(value)) == value


def test_a_moved_key_is_a_finding() -> None:
    assert rules.moved(Ref("a", "a"), Ref("a", "a")) is None
    finding = rules.moved(Ref("a", "a"), Ref("b", "a"))
    assert finding is not None
    assert finding.hint
    assert f"{finding.message}; {finding.hint}" == rules.KEY_MOVED
    assert MODELS.keys() == set(Kind)


def test_paths_are_written_as_people_do() -> None:
    assert format_path(("spec", "queries", 2, "params", "id")) == "spec.queries[2].params.id"
    assert format_path(("spec", "session", "app.tenant")) == 'spec.session["app.tenant"]'
    assert format_path(()) == ""


def test_a_changed_backend_is_a_finding() -> None:
    assert rules.backend_changed(True, True) is None
    finding = rules.backend_changed(True, False)
    assert finding is not None
    assert f"{finding.message}; {finding.hint}" == rules.BACKEND_CHANGED


@pytest.mark.parametrize("kind", Kind)
def test_an_object_that_nobody_has_reconciled_does_not_read_as_current(kind: Kind) -> None:
    """kstatus and Argo CD compare generations: without the default a fresh object would look finished."""
    schema = crds.schema(kind)
    assert schema["properties"]["status"]["default"] == {"observedGeneration": -1}
    conditions = schema["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    version = crds.render(kind)["spec"]["versions"][0]
    assert version["subresources"]["status"] == {}
    assert ("scale" in version["subresources"]) == (kind is Kind.QUERY_API)
    for column in version["additionalPrinterColumns"]:
        node = schema
        for part in column["jsonPath"].partition("[")[0].strip(".").split("."):
            node = node["properties"][part] if part != "creationTimestamp" else {}
            if node.get("type") == "object" and not node.get("properties"):
                break  # metadata, which the API server describes.


def test_a_live_object_reads_with_its_status_and_one_of_a_newer_operator() -> None:
    live = yaml.safe_load((GOLDEN / "valid" / "key-smallest.yaml").read_text())
    live["metadata"] |= {"uid": "u", "generation": 2, "resourceVersion": "812", "managedFields": []}
    live["status"] = {
        "observedGeneration": 2,
        "later": {"x": 1},
        "conditions": [
            {"type": "Ready", "status": "True", "observedGeneration": 2, "lastTransitionTime": "2026-11-30T12:00:00Z", "reason": "Loaded", "message": ""}
        ],
        "keys": [{"id": "3fK9Qm2x", "sha256": "0" * 64, "notBefore": "2026-11-30T12:00:00Z", "notAfter": "2026-12-01T12:00:00.5Z"}],
        "loadedBy": "3/3",
    }  # fmt: skip
    key = document.read(live)
    assert isinstance(key, ApiKey)
    assert key.status.keys[0].not_after is not None
    assert key.status.loaded_by == "3/3"
    assert key.status.conditions[0].status == "True"


def test_a_container_gets_what_is_given_and_a_default_that_fits_it() -> None:
    given = Resources.model_validate_json('{"requests": {"cpu": 2}, "limits": {"memory": "100Mi"}}')
    assert allotment(given, DATA_PLANE) == Allotment(2000, 100 << 20, 100 << 20)
    given = Resources.model_validate_json('{"requests": {"memory": "2Gi"}, "limits": {"cpu": "0.05"}}')
    assert allotment(given, GATEWAY) == Allotment(50, 2 << 30, 2 << 30, 50)
    assert allotment(Resources(), GATEWAY) == GATEWAY
    text = f"requests of {GATEWAY.cpu_request_millis}m and {GATEWAY.memory_request_bytes >> 20}Mi, a memory limit of {GATEWAY.memory_limit_bytes >> 30}Gi"
    assert text in str(Gateway.model_fields["resources"].description)
    text = f"requests of {DATA_PLANE.cpu_request_millis}m and {DATA_PLANE.memory_request_bytes >> 20}Mi, a memory limit of {DATA_PLANE.memory_limit_bytes >> 20}Mi"
    assert text in str(DataPlane.model_fields["resources"].description)
