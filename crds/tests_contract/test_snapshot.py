"""Golden snapshots: the data plane's tests read the same files (`dataplane-rs/src/plan/snapshot.rs`)."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from tailrace_contract.golden import FOLDER
from tailrace_contract.plan import Snapshot

VALID = sorted(FOLDER.glob("valid/snapshot-*.json"))
INVALID = sorted(FOLDER.glob("invalid/snapshot-*.json"))


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_a_valid_snapshot_is_read_and_written_as_it_was(file: Path) -> None:
    content = file.read_bytes()
    assert Snapshot.model_validate_json(content).to_json() + b"\n" == content


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_an_invalid_snapshot_is_refused(file: Path) -> None:
    vector = json.loads(file.read_text())
    assert vector["reason"]
    with pytest.raises(ValidationError):
        Snapshot.model_validate_json(json.dumps(vector["snapshot"]))


def test_the_full_snapshot_uses_every_field() -> None:
    """So that a field added to the contract gets into the golden file, and with it before the data plane."""
    full = json.loads((FOLDER / "valid" / "snapshot-full.json").read_text())
    unused: list[str] = []

    def look(schema: dict[str, object], values: list[object], place: str) -> None:
        properties = schema.get("properties")
        assert isinstance(properties, dict)
        for name in properties:
            found = [value[name] for value in values if isinstance(value, dict) and name in value]
            if not any(value not in (None, [], {}, "", 0, False) for value in found):
                unused.append(f"{place}.{name}")

    schema = Snapshot.model_json_schema(by_alias=True)
    kinds = schema["$defs"]
    queries, pages = full["queries"], [query["page"] for query in full["queries"] if query["page"]]
    places = {
        "ConnectionPlan": full["connections"],
        "QueryPlan": queries,
        "ParamPlan": [param for query in queries for param in query["params"]],
        "ColumnPlan": [column for query in queries for column in query["columns"]],
        "StatementPlan": [query["statement"] for query in queries],
        "CoalescePlan": [query["coalesce"] for query in queries if query["coalesce"]],
        "PagePlan": pages,
        "PageKeyPlan": [key for page in pages for key in page["keys"]],
        "RolePlan": full["roles"],
        "Grant": [grant for role in full["roles"] for grant in role["grants"]],
        "MaskPlan": [mask for role in full["roles"] for grant in role["grants"] for mask in grant["masks"]],
        "KeyPlan": full["keys"],
        "ApiPlan": [full["api"]],
        "TlsPlan": [full["api"]["tls"]],
        "Source": full["sources"],
        "PostgresStorePlan": [full["api"]["runStore"]],
        "PostgresTarget": [full["api"]["runStore"]["postgres"]],
    }
    # The other form of `runStore` stands in the minimal snapshot.
    assert set(places) | {"EmbeddedStorePlan", "Nothing"} == {name for name, kind in kinds.items() if kind.get("type") == "object"}
    look(schema, [full], "Snapshot")
    for name, values in places.items():
        look(kinds[name], values, name)
    assert not unused
