"""`docs/resources.md` and `docs/errors.md`: tables of every field and code. Pure."""

from typing import Any

from tailrace_contract.codes import CODES, FAULT_DETAILS, Refusal
from tailrace_contract.document import RULES
from tailrace_contract.generate import crds
from tailrace_contract.resource import Kind

_GENERATED = "<!-- Generated from tailrace_contract by `make generate`. Do not edit. -->\n"
_INTRO = """# Resources

Three kinds of `tailrace.dev/v1alpha1` say everything. The same YAML is read from files by `tailrace run` and by the Kubernetes API.
A field that is not listed here does not exist: it is refused, with a hint. **Bold** fields are required.

Durations are a number and `ms`, `s`, `m`, `h` or `d`, added up: `500ms`, `1m30s`. Sizes are a whole number and `Ki`, `Mi`, `Gi` or `Ti`.
## In files

`tailrace run -f PATH …` reads files and directories (their `*.yaml`, `*.yml`, `*.json`, not what is below them). Other kinds of other groups are
left alone. The namespace is `default` where none is given.

- A `Secret` document (`stringData` or `data`) becomes private files below `--data DIR/secrets`; whatever mounts a file there itself needs no document.
  A SQLite URL is `sqlite:///PATH`, relative to the working directory, or `sqlite:////PATH`.
- The text of a key with `secretName` is minted into `DIR/keys/NAMESPACE/SECRETNAME` once and kept. To rotate it, delete the file.
- A change is in force within a second. A document that is wrong keeps its last good form (or is absent, if it never had one) and everything else
  goes on changing; a document that is removed is gone at once, and its key with it. A query that doesn't compile refuses alone.

YAML is read strictly: what readers of YAML disagree about (plain `yes`, `010`, `1:30`, duplicate keys, `<<`) is an error with line and fix.
"""


def resources() -> str:
    """The page about the three kinds."""
    parts = [_GENERATED, _INTRO]
    for kind in Kind:
        plural, short = crds.NAMES[kind]
        schema = crds.schema(kind)
        parts.append(
            f"\n## {kind.value}\n\n{schema['description']} (`{plural}`, `{short}`)\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
        )
        parts.append("".join(_rows(schema["properties"]["spec"], "")))
        rules = [rule.message.replace("; ", ": ", 1) for rule in RULES[kind]]
        if rules:
            parts.append("\nRules between fields:\n\n" + "".join(f"- {text}\n" for text in dict.fromkeys(rules)))
    return "".join(parts)


def _rows(node: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    required = node.get("required", [])
    for name, each in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        shown = f"**`{path}`**" if name in required else f"`{path}`"
        default = _default(each.get("default"))
        text = each.get("description", "").replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {shown} | {_type(each)} | {default} | {text} |\n")
        if each.get("type") == "object" and each.get("properties"):
            rows += _rows(each, f"{path}.")
        elif each.get("type") == "array" and each["items"].get("properties"):
            rows += _rows(each["items"], f"{path}[].")
        elif isinstance(each.get("additionalProperties"), dict) and each["additionalProperties"].get("properties"):
            rows += _rows(each["additionalProperties"], f"{path}.NAME.")
    return rows


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(node: dict[str, Any]) -> str:
    if "enum" in node and node["type"] == "string":
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "CPU amount" if "pattern" in node else "integer or decimal text"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "any value"
    kind = str(node["type"])
    if kind == "array":
        return f"list of {_type(node['items'])}, at most {node['maxItems']}" if "maxItems" in node else f"list of {_type(node['items'])}"
    if kind == "object" and "additionalProperties" in node:
        return f"map, at most {node['maxProperties']}"
    low, high = node.get("minimum"), node.get("maximum")
    if kind == "string" and node.get("pattern", "").startswith("^([0-9]+(ms"):
        return "duration"
    if kind == "string" and node.get("pattern", "").startswith("^[1-9][0-9]*(Ki"):
        return "size"
    return (
        kind
        + (f", {low} to {high}" if low is not None and high is not None else "")
        + (f", at most {node['maxLength']} characters" if "maxLength" in node else "")
    )


def errors() -> str:
    """The page about error codes."""
    parts = [
        _GENERATED,
        "# Errors\n\nEvery error of an HTTP call is `application/problem+json` (RFC 9457). `code` is stable; `detail` is always the text below and never\n"
        "carries a value, SQL or a host name. `instance` is the run id.\n\n| status | code | detail | Retry-After |\n|---|---|---|---|\n",
    ]
    parts += [
        f"| {code.status} | `{code.name}` | {code.detail} | {'' if code.retry_after_s is None else f'{code.retry_after_s} s'} |\n"
        for code in CODES
    ]
    parts.append(
        "\n## Bad parameters\n\n`errors[]` of a 422 has a JSON pointer, a code and a detail for each bad parameter.\n\n| code | detail |\n|---|---|\n"
    )
    parts += [f"| `{fault.value}` | {detail} |\n" for fault, detail in FAULT_DETAILS.items()]
    parts.append(
        "\n## Refusals\n\nWhy a query, role or key has no plan. `tailrace check` and `tailrace explain` show them with the fix; callers only see\n"
        "`query_refused`.\n\n"
    )
    parts += [f"- `{refusal.value}`\n" for refusal in Refusal]
    return "".join(parts)
