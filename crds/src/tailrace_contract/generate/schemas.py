"""`crds/schema/*.json` (JSON Schema 2020-12) of the resources and the snapshot, for editors and other languages. Pure."""

import json
from typing import Any

from tailrace_contract.document import MODELS
from tailrace_contract.plan import Snapshot
from tailrace_contract.resource import GROUP, VERSION, Kind


def render() -> dict[str, str]:
    """File name → text."""
    files = {f"{kind.value.lower()}.json": _text(kind.value, MODELS[kind].model_json_schema(by_alias=True)) for kind in Kind}
    files["snapshot.json"] = _text("Snapshot", Snapshot.model_json_schema(by_alias=True))
    return files


def _text(name: str, schema: dict[str, Any]) -> str:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{GROUP}:{VERSION}:{name}"}
    required = ["apiVersion", "kind", *schema.get("required", [])] if "kind" in schema["properties"] else schema.get("required", [])
    return json.dumps({**head, **_plain(schema), "required": required}, indent=1, ensure_ascii=False) + "\n"


def _plain(node: Any) -> Any:
    """Without generated titles and the CRDs' own marks. A property may be called `title`: only texts are dropped."""
    if isinstance(node, dict):
        kept = {}
        for key, value in node.items():
            if key.startswith("x-kubernetes-") or (key == "title" and isinstance(value, str)):
                continue
            kept[key] = _plain(value)
        return kept
    return [_plain(each) for each in node] if isinstance(node, list) else node
