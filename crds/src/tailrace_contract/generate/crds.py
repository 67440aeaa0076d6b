"""`crds/*.yaml` from the resources' models: structural schemas with bounds, defaults, CEL rules, printer columns. Pure."""

from typing import Any

from tailrace_contract.document import MODELS, RULES
from tailrace_contract.duration import PATTERN as DURATION_PATTERN
from tailrace_contract.duration import format_duration, format_size
from tailrace_contract.ids import NAME_LENGTH, NAME_PATTERN
from tailrace_contract.resource import GROUP, VERSION, Kind
from tailrace_contract.rules import BACKEND_CHANGED, BACKEND_CHANGED_CEL, KEY_MOVED, KEY_MOVED_CEL, Rule

Schema = dict[str, Any]

NAMES = {Kind.QUERY_API: ("queryapis", "qapi"), Kind.API_KEY: ("apikeys", "akey"), Kind.RUN_STORE: ("runstores", "rstore")}
_READY = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether it works as it is written")
COLUMNS: dict[Kind, tuple[tuple[str, str, str, str], ...]] = {
    Kind.QUERY_API: (
        _READY,
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why, or why not"),
        ("Loaded", "string", ".status.loadedBy", "Ready pods that have acknowledged this generation"),
        ("Replicas", "integer", ".status.replicas", "Pods"),
        ("URL", "string", ".status.url", "Where it answers within the cluster"),
    ),
    Kind.API_KEY: (
        ("API", "string", ".spec.queryApiRef.name", "The QueryAPI that it opens"),
        ("Role", "string", ".spec.role", "What it may do"),
        _READY,
        ("Loaded", "string", ".status.loadedBy", "Ready pods that have acknowledged it as it is"),
        ("Expires", "string", ".spec.expiresAt", "When it stops working"),
    ),
    Kind.RUN_STORE: (("Backend", "string", ".status.backend", "What keeps the runs"), _READY),
}
LIST_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("spec", "connections"): ("name",),
    ("spec", "queries"): ("name",),
    ("spec", "roles"): ("name",),
    ("spec", "roles", "*", "masks"): ("column",),
    ("status", "conditions"): ("type",),
    ("status", "namespaces"): ("name", "entry"),
}
"""Lists whose elements are known by fields: the API server keeps it unique, and merges by it."""
SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}
NEVER_OBSERVED = {"observedGeneration": -1}
"""Status of an object that no operator has seen yet: without it a fresh object would read as current."""

_KEPT = (
    "type",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "pattern",
    "format",
)
NAME_RULE = (
    f"self.metadata.name.size() <= {NAME_LENGTH} && self.metadata.name.matches('{NAME_PATTERN}')",
    f"metadata.name: at most {NAME_LENGTH} characters, lower-case letters, digits and -, beginning with a letter; choose such a name",
)


def render(kind: Kind) -> Schema:
    """The CustomResourceDefinition of a kind, as JSON values in the order they are written in."""
    plural, short = NAMES[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "categories": ["tailrace"],
                "kind": kind.value,
                "listKind": f"{kind.value}List",
                "plural": plural,
                "shortNames": [short],
                "singular": kind.value.lower(),
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema(kind)},
                    "subresources": {"status": {}, **({"scale": SCALE} if kind is Kind.QUERY_API else {})},
                    "additionalPrinterColumns": [
                        *(
                            {"name": name, "type": kind_, "jsonPath": path, "description": text}
                            for name, kind_, path, text in COLUMNS[kind]
                        ),
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                }
            ],
        },
    }


def schema(kind: Kind) -> Schema:
    """The structural schema of a kind."""
    raw = MODELS[kind].model_json_schema(by_alias=True)
    root = _structural(raw, raw["$defs"], ())
    root["properties"]["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        root["properties"][name] = {"type": "string", "description": root["properties"][name]["description"]}
    root["properties"]["status"]["default"] = NEVER_OBSERVED
    root["required"] = ["spec"]
    root["x-kubernetes-validations"] = [{"rule": NAME_RULE[0], "message": NAME_RULE[1]}]
    for rule in RULES[kind]:
        if rule.cel:
            _add(root, rule)
    if kind is Kind.API_KEY:
        reference = root["properties"]["spec"]["properties"]["queryApiRef"]
        reference["x-kubernetes-validations"] = [{"rule": KEY_MOVED_CEL, "message": KEY_MOVED}]
    if kind is Kind.RUN_STORE:
        root["properties"]["spec"]["x-kubernetes-validations"].append({"rule": BACKEND_CHANGED_CEL, "message": BACKEND_CHANGED})
    return root


def _add(root: Schema, rule: Rule) -> None:
    node = root
    for part in rule.at:
        node = node["properties"][part] if part != "*" else node.get("items") or node["additionalProperties"]
    node.setdefault("x-kubernetes-validations", []).append({"rule": rule.cel, "message": rule.message})


def _structural(node: Schema, definitions: dict[str, Schema], path: tuple[str, ...]) -> Schema:
    """One node without references, unions with null, titles and `additionalProperties: false`, which structural schemas lack."""
    node, description = _resolved(node, definitions)
    if node.get("x-kubernetes-int-or-string"):
        kept: Schema = {key: node[key] for key in ("pattern", "maxLength") if key in node}
        return {"x-kubernetes-int-or-string": True, "description": description, **kept}
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if description:
        result["description"] = description
    if "const" in node:
        result["enum"] = [node["const"]]
        result["type"] = "string"
    if not node.get("type") and "const" not in node:
        return {"description": description, "x-kubernetes-preserve-unknown-fields": True}
    if "default" in node and node["default"] not in (None, "", [], ()):
        result["default"] = _default(node)
    if node.get("type") == "object":
        _object(node, definitions, path, result)
    elif node.get("type") == "array":
        result["items"] = _structural(node["items"], definitions, (*path, "*"))
        if path in LIST_KEYS:
            result["x-kubernetes-list-type"] = "map"
            result["x-kubernetes-list-map-keys"] = list(LIST_KEYS[path])
    return result


def _default(node: Schema) -> Any:
    """As it is written in YAML: models hold durations and sizes as numbers."""
    value = node["default"]
    if node.get("type") == "string" and isinstance(value, int):
        return format_duration(value) if node["pattern"] == DURATION_PATTERN else format_size(value)
    return _given(value)


def _given(value: Any) -> Any:
    """Without what is absent: a default of null is none."""
    return {name: _given(each) for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def _object(node: Schema, definitions: dict[str, Schema], path: tuple[str, ...], result: Schema) -> None:
    values = node.get("additionalProperties")
    patterns = node.get("patternProperties")
    if node.get("properties"):
        result["properties"] = {name: _structural(each, definitions, (*path, name)) for name, each in node["properties"].items()}
        if node.get("required"):
            result["required"] = node["required"]
    elif patterns or isinstance(values, dict) or values is True:
        inner = next(iter(patterns.values())) if patterns else values
        inner = _structural(inner if isinstance(inner, dict) else {}, definitions, (*path, "*"))
        if inner.get("description") == "":
            del inner["description"]
        result["additionalProperties"] = inner
        if "maxProperties" in node:
            result["maxProperties"] = node["maxProperties"]
        names = node.get("propertyNames", {})
        pattern = next(iter(patterns), None) if patterns else names.get("pattern")
        if pattern and path[0] != "status" and not inner.get("x-kubernetes-preserve-unknown-fields"):
            # Names of map entries can't be bounded by a structural schema, so a rule does it; CEL sees no map of untyped values.
            longest = names.get("maxLength", 63)
            result["x-kubernetes-validations"] = [
                {
                    "rule": f"self.all(name, name.size() <= {longest} && name.matches('{pattern.replace(chr(92), chr(92) * 2)}'))",
                    "message": f"{path[-1]}: names must match {pattern} and have at most {longest} characters; rename",
                }
            ]


def _resolved(node: Schema, definitions: dict[str, Schema]) -> tuple[Schema, str]:
    """A node with its reference and its union with null taken away; the field's own description wins."""
    description = node.get("description", "")
    outer = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "title")}
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        arms = [each for each in node["anyOf"] if each.get("type") != "null"]
        if len(arms) != 1:
            raise ValueError(f"a union that has no structural form: {arms}")
        inner, below = _resolved(arms[0], definitions)
        return {**inner, **outer}, description or below
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name == "JsonValue":
            return outer, description
        inner, below = _resolved(definitions[name], definitions)
        return {**inner, **outer}, description or below
    return node, description
