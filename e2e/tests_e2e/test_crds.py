"""The API server holds the rules of the three kinds: what it takes, what it refuses, and what it says then."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tailrace_e2e.kubectl import CommandFailed, Kubectl, Object

ROOT = Path(__file__).resolve().parents[2]
VALID = sorted((ROOT / "crds/golden/valid").glob("*.yaml"))
INVALID = sorted((ROOT / "crds/golden/invalid").glob("*.yaml"))
LEFT: dict[str, str] = yaml.safe_load((ROOT / "crds/golden/left-to-the-operator.yaml").read_text())
KINDS = {"QueryAPI": ("queryapis", "qapi"), "ApiKey": ("apikeys", "akey"), "RunStore": ("runstores", "rstore")}
pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture(scope="module")
def room(cluster: Kubectl) -> Iterator[Kubectl]:
    """One namespace for all that is only asked of the server, never stored."""
    cluster("create", "namespace", "e2e-rules", check=False)
    yield Kubectl("e2e-rules")
    cluster("delete", "namespace", "e2e-rules", "--wait=false")


def ask(room: Kubectl, document: Object) -> str:
    """What the server says to a document, without storing it; empty when it takes it."""
    document = {**document, "metadata": {**document.get("metadata", {}), "namespace": room.namespace}}
    done = room("create", "--dry-run=server", "--validate=strict", "--output", "name", "--filename", "-",
                given=json.dumps(document), check=False)  # fmt: skip
    return "" if re.fullmatch(r"\S+/\S+\n", done) else done


def documents(file: Path) -> list[Object]:
    """All documents of a file."""
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def schema_names(node: Any) -> set[str]:
    """All property names of a schema."""
    found: set[str] = set()
    if isinstance(node, dict):
        found |= set(node.get("properties", {}))
        for each in node.values():
            found |= schema_names(each)
    elif isinstance(node, list):
        for each in node:
            found |= schema_names(each)
    return found


@pytest.fixture(scope="module")
def fields() -> set[str]:
    """Every field's name of the three kinds."""
    names = {"name", "kind", "apiVersion"}
    for plural, _ in KINDS.values():
        names |= schema_names(yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text()))
    return names


def test_valid_documents_are_taken(room: Kubectl) -> None:
    """the API server takes every valid document"""
    refused = {file.name: told for file in VALID for document in documents(file) if (told := ask(room, document))}
    assert not refused
    assert len(VALID) >= 5


def test_invalid_documents_are_refused_by_field(room: Kubectl, fields: set[str]) -> None:
    """the API server refuses every invalid document with a message that names the field"""
    wrong = {}
    for file in INVALID:
        wanted = [line.partition(": ")[2] for line in file.read_text().splitlines() if line.startswith("# ")]
        told = ask(room, documents(file)[0])
        if file.stem in LEFT:
            if told:
                wrong[file.stem] = f"is refused by now, so it needs no line in left-to-the-operator.yaml: {told}"
            continue
        words = [word for word in re.findall(r"[A-Za-z0-9_]+", re.sub(r"\[\d+\]", "", wanted[0])) if word in fields]
        unmapped = words[-1] in ("kind", "apiVersion") and "no matches for kind" in told
        if not told:
            wrong[file.stem] = "is taken"
        elif words[-1] not in told and not unmapped:
            wrong[file.stem] = f"does not name {words[-1]}: {told}"
    assert not wrong
    assert set(LEFT) <= {file.stem for file in INVALID}
    assert len(INVALID) >= 60


def test_rules_say_the_fix(room: Kubectl) -> None:
    """a rule's message says what to do about it"""
    text = (ROOT / "crds/golden/invalid/key-with-two-sources.yaml").read_text()
    assert "secretName, keyFrom: give exactly one; secretName for a new key, keyFrom for one that you bring" in ask(
        room, yaml.safe_load(text)
    )


def test_unknown_fields_are_refused(room: Kubectl) -> None:
    """a misspelt field is refused by kubectl's strict validation, with its place"""
    told = ask(room, documents(ROOT / "crds/golden/invalid/unknown-field.yaml")[0])
    assert 'unknown field "spec.connections[0].maxConections"' in told


def test_what_may_not_change(space: Kubectl) -> None:
    """an ApiKey can't be moved to another API"""
    key = documents(ROOT / "crds/golden/valid/key-smallest.yaml")[0]
    key["metadata"] = {"name": "desk", "namespace": space.namespace}
    space.apply(key)
    with pytest.raises(CommandFailed, match="queryApiRef"):
        space.patch("akey", "desk", {"spec": {"queryApiRef": {"name": "other"}}})
    assert "akey" not in space.patch("akey", "desk", {"spec": {"suspended": True}})


def test_a_backend_stays(space: Kubectl) -> None:
    """a RunStore can't be given another backend, but another Secret for the one that it has"""
    store = documents(ROOT / "crds/golden/valid/store-postgres.yaml")[0]
    store["metadata"] = {"name": "runs", "namespace": space.namespace}
    space.apply(store)
    with pytest.raises(CommandFailed, match="the backend can't be changed; make another RunStore"):
        space.patch("rstore", "runs", {"spec": {"postgres": None, "embedded": {}}})
    space.patch("rstore", "runs", {"spec": {"postgres": {"urlFrom": {"secretKeyRef": {"name": "other", "key": "url"}}}}})


def test_scale(space: Kubectl) -> None:
    """a QueryAPI asks for 2 pods when it says nothing, and kubectl scale changes that"""
    api = documents(ROOT / "crds/golden/valid/api-smallest.yaml")[0]
    api["metadata"] = {"name": "shop", "namespace": space.namespace, "annotations": {"tailrace.dev/paused": "true"}}
    space.apply(api)
    live = space.get("qapi", "shop")
    assert live["spec"]["replicas"] == 2
    assert live["status"]["observedGeneration"] <= live["metadata"]["generation"]
    space("scale", "qapi", "shop", "--replicas=5")
    assert space.get("qapi", "shop")["spec"]["replicas"] == 5


def test_the_largest_documents(room: Kubectl) -> None:
    """the rules' cost fits documents of a megabyte: 1,000 queries, and every list as long as it may be"""
    api = documents(ROOT / "crds/golden/valid/api-smallest.yaml")[0]
    connection, spec = api["spec"]["connections"][0], api["spec"]
    text = {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a"}
    spec["connections"] = [{**connection, "name": f"c{n}"} for n in range(32)]
    spec["queries"] = [
        {"name": f"query_{n}", "connection": "c31", "sql": "SELECT :a0", "params": {f"a{m}": text for m in range(10)}} for n in range(1000)
    ]
    masks = [{"column": f"t.c{m}", "with": "hash"} for m in range(64)]
    spec["roles"] = [{"name": f"r{n}", "queries": ["*"], "masks": masks} for n in range(64)]
    bind = {f"p{n}": {"namespaceLabel": "example.org/label"} for n in range(16)}
    entry = {"namespaces": {"matchLabels": {f"example.org/l{n}": "x" for n in range(16)}}, "roles": [f"r{63 - n}" for n in range(16)]}
    spec["allowKeysFrom"] = [{**entry, "bind": bind} for _ in range(32)]
    spec["queriesFrom"] = [{"configMapRef": {"name": f"queries-{n}"}} for n in range(16)]
    assert len(json.dumps(api)) > 900_000
    assert not ask(room, api)


@pytest.mark.parametrize("kind", KINDS)
def test_explain(cluster: Kubectl, kind: str) -> None:
    """kubectl explain describes every top field of the spec"""
    plural = KINDS[kind][0]
    schema = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    told = cluster("explain", f"{plural}.spec")
    for field in schema["properties"]["spec"]["properties"]:
        assert re.search(rf"^  {field}\t", told, re.MULTILINE), field
    assert "<no description>" not in told


def test_names_to_type(cluster: Kubectl) -> None:
    """short names qapi, akey, rstore and the category tailrace work"""
    told = cluster("api-resources", "--api-group", "tailrace.dev", "--output", "wide", "--no-headers").splitlines()
    rows = {row.split()[0]: row.split() for row in told}
    assert {plural: row[1] for plural, row in rows.items()} == dict(KINDS.values())
    assert all(row[-1] == "tailrace" for row in rows.values())
    cluster("get", "tailrace", "--all-namespaces")
