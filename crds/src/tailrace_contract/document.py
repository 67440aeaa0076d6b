"""From one document (JSON values, as YAML or the Kubernetes API give it) to a resource, or to every finding at once. Pure."""

import difflib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from tailrace_contract import ids, queryapi, rules
from tailrace_contract.apikey import ApiKey
from tailrace_contract.findings import Finding, Path
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import API_VERSION, GROUP, Kind
from tailrace_contract.runstore import RunStore

Resource = QueryAPI | ApiKey | RunStore

MODELS: dict[Kind, type[QueryAPI] | type[ApiKey] | type[RunStore]] = {
    Kind.QUERY_API: QueryAPI,
    Kind.API_KEY: ApiKey,
    Kind.RUN_STORE: RunStore,
}
RULES: dict[Kind, tuple[rules.Rule, ...]] = {Kind.QUERY_API: rules.QUERY_API, Kind.API_KEY: rules.API_KEY, Kind.RUN_STORE: rules.RUN_STORE}

LATER = (
    "limits", "rateLimit", "quota", "maxConcurrent", "autoscaling", "clickhouse", "retention", "historySampleRate",
    "batch", "connectionBudget", "cors",
)  # fmt: skip
"""Fields that the design has and this version does not: their hint says so instead of guessing another name."""

_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}", "raise it"),
    "less_than_equal": ("le", "must be at most {}", "lower it"),
    "string_too_short": ("min_length", "must have at least {} characters", "write more"),
    "string_too_long": ("max_length", "must have at most {} characters", "shorten it"),
    "too_short": ("min_length", "must have at least {} entries", "add what is missing"),
    "too_long": ("max_length", "must have at most {} entries", "remove some"),
}
_TYPES = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "dict_type": "must be a map of names to values",
    "model_type": "must be a map of fields",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}
_PATTERN_HINTS = {
    ids.NAME_PATTERN: "begin with a letter; lower-case letters, digits and - may follow",
    ids.QUERY_PATTERN: "begin with a letter; lower-case letters, digits, _ and - may follow",
    ids.PARAMETER_PATTERN: "letters, digits and _, not beginning with a digit",
    ids.GLOB_PATTERN: "a query's name, in which * stands for any characters",
    queryapi.CIDR_PATTERN: "write a network such as 10.0.0.0/8",
    queryapi.COLUMN_PATTERN: "write TABLE.COLUMN",
}


def read(document: JsonValue) -> Resource | list[Finding]:
    """The resource, or all that is wrong with it, in the document's order as far as it has one."""
    if not isinstance(document, dict):
        return [Finding((), "a resource must be a map of fields", f"begin with apiVersion: {API_VERSION}")]
    kind = _kind(document)
    if isinstance(kind, Finding):
        return [kind]
    findings = list(rules.broken(RULES[kind], document))
    try:
        resource = MODELS[kind].model_validate_json(json.dumps(document))
    except ValidationError as error:
        findings += _translated(error, kind)
    else:
        if not findings:
            return resource
    return _unique(findings)


def _kind(document: dict[str, JsonValue]) -> Kind | Finding:
    version, kind = document.get("apiVersion"), document.get("kind")
    if kind not in tuple(Kind):
        known = ", ".join(Kind)
        close = difflib.get_close_matches(str(kind), list(Kind), 1)
        return Finding(("kind",), f"kind: must be one of {known}", f"did you mean {close[0]}?" if close else "")
    if version != API_VERSION:
        wrong = isinstance(version, str) and version.startswith(f"{GROUP}/")
        return Finding(
            ("apiVersion",),
            f"apiVersion: must be {API_VERSION}",
            "this program reads no other version" if wrong else f"write {API_VERSION}",
        )
    return Kind(str(kind))


def _unique(findings: list[Finding]) -> list[Finding]:
    """Each once, in a steady order; a duration of zero is told by its rule and by its reader."""
    return sorted(set(findings), key=lambda finding: ([str(part).rjust(8, "0") for part in finding.path], finding.message))


def _translated(error: ValidationError, kind: Kind) -> Iterator[Finding]:
    errors = error.errors(include_url=False, include_input=True)
    for each in errors:
        if each["type"] == "too_short" and any(other["loc"][: len(each["loc"])] == each["loc"] for other in errors if other is not each):
            continue  # The list only looks short because some of its entries are at fault.
        path, model = _located(each["loc"], MODELS[kind])
        yield _finding(each["type"], path, each.get("ctx", {}), each["msg"], each["input"], model)


def _located(loc: tuple[str | int, ...], model: type[BaseModel]) -> tuple[Path, type[BaseModel] | None]:
    """The place without pydantic's own steps (union members, `[key]`), and the model whose field is at fault."""
    path: list[str | int] = []
    here: type[BaseModel] | None = model
    for part in loc:
        if part != "[key]":
            path.append(part)
    for part in path[:-1]:
        here = _below(here, part) or here
    return tuple(path), here


def _below(model: type[BaseModel] | None, part: str | int) -> type[BaseModel] | None:
    for name, field in (model.model_fields if model is not None else {}).items():
        if part in (name, field.alias):
            return _model_in(field.annotation)
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in getattr(annotation, "__args__", ()) if (found := _model_in(each)) is not None), None)


def _finding(kind: str, path: Path, context: dict[str, Any], message: str, value: object, model: type[BaseModel] | None) -> Finding:
    field = next((part for part in reversed(path) if isinstance(part, str)), "document")
    if kind == "extra_forbidden":
        return Finding(path, f"{field}: there is no such field here", _unknown_hint(field, model))
    if kind == "missing":
        return Finding(path, f"{field}: is required", "add it")
    if kind in _BOUNDS:
        limit, text, hint = _BOUNDS[kind]
        return Finding(path, f"{field}: {text.format(context[limit])}", hint)
    if kind in ("enum", "literal_error"):
        hint = "choose one of them"
        if value is None and "null" in str(context):
            hint = 'write "null" in quotes: without them YAML reads nothing'
        if value is False and "off" in str(context):
            hint = 'write "off" in quotes: without them YAML reads false'
        return Finding(path, f"{field}: must be one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}", hint)
    if kind == "string_pattern_mismatch":
        return Finding(path, f"{field}: has the wrong form", _PATTERN_HINTS.get(context["pattern"], f"it must match {context['pattern']}"))
    if kind == "value_error":
        problem, _, hint = str(context["error"]).partition(": ")
        return Finding(path, f"{field}: {problem}", hint or "correct it")
    if kind in ("timezone_aware", "timezone_naive", "datetime_parsing", "datetime_from_date_parsing", "datetime_type"):
        return Finding(path, f"{field}: must be a time with its zone", "write it like 2027-01-31T00:00:00Z")
    return Finding(path, f"{field}: {_TYPES.get(kind, message[:1].lower() + message[1:])}", _type_hint(kind, value))


def _type_hint(kind: str, value: object) -> str:
    if kind == "string_type" and value is not None and not isinstance(value, dict | list):
        return "put it in quotes"
    return "remove the field or give it a value" if value is None else "correct it"


def _unknown_hint(field: str, model: type[BaseModel] | None) -> str:
    if field in LATER:
        return "this version does not have it yet: remove it"
    known = [each.alias or name for name, each in (model.model_fields if model is not None else {}).items()]
    close = difflib.get_close_matches(field, known, 1, 0.6) or difflib.get_close_matches(field.lower(), known, 1, 0.6)
    return f"did you mean {close[0]}?" if close else f"the fields here are {', '.join(known)}" if known else "remove it"
