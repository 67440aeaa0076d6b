"""Rules that hold between fields: once in CEL for the Kubernetes API, once in Python for files, with one message.

A check gets the raw value (JSON) of the object that the rule stands at, after the shapes were checked: whatever has the wrong
shape raises inside the check and is left to the schema's own finding. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_network
from typing import Any

from tailrace_contract.duration import parse_size, read_decimal
from tailrace_contract.findings import Finding, Path

Node = dict[str, Any]
"""An object as JSON has it."""

Check = Callable[[Node], Iterable[Path]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `at` says where: field names from the root, `*` for every element of a list or value of a map.

    `message` names the field and, behind the semicolon, the fix: whole in the CRD, as message and hint of a finding in Python.

    `cel` is empty when CEL can't say it (fields of any type are hidden from it, and it has neither exact decimals nor, before Kubernetes
    1.31, networks): then only Python holds it, before anything is served.
    """

    at: tuple[str, ...]
    message: str
    check: Check
    cel: str = ""


PINNED_SETTINGS = (
    "timezone", "datestyle", "intervalstyle", "bytea_output", "extra_float_digits", "lc_monetary", "client_encoding",
    "default_transaction_read_only", "statement_timeout", "plan_cache_mode", "standard_conforming_strings",
)  # fmt: skip
"""Session settings that the gateway sets itself (serving.md): another value would change answers or lift a guard."""

_NUMERIC = ("integer", "number")


def _missing_connection(spec: Node) -> Iterator[Path]:
    known = {c.get("name") for c in spec["connections"]}
    for position, query in enumerate(spec["queries"]):
        if isinstance(query.get("connection"), str) and query["connection"] not in known:
            yield ("queries", position, "connection")


def _twice(field: str, by: str) -> Check:
    def check(node: Node) -> Iterator[Path]:
        seen = set()
        for position, entry in enumerate(node.get(field, ())):
            if entry[by] in seen:
                yield (field, position, by)
            seen.add(entry[by])

    return check


def _when(field: str, test: Callable[[Node], bool]) -> Check:
    """A finding at `field` when the test says so."""

    def check(node: Node) -> Iterator[Path]:
        if test(node):
            yield (field,)

    return check


def _pinned(connection: Node) -> Iterator[Path]:
    for name in connection.get("session", {}):
        if name in PINNED_SETTINGS:
            yield ("session", name)


def _bounds_of_type(element: Node) -> Iterator[Path]:
    for field in ("minimum", "maximum"):
        if field in element and element["type"] not in _NUMERIC:
            yield (field,)


def _lengths_of_type(element: Node) -> Iterator[Path]:
    for field in ("minLength", "maxLength", "pattern"):
        if field in element and element["type"] != "string":
            yield (field,)


def _decimal(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(read_decimal(value))
    except ValueError:
        return None


def _crossed(element: Node) -> Iterator[Path]:
    low, high = _decimal(element.get("minimum")), _decimal(element.get("maximum"))
    if low is not None and high is not None and low > high:
        yield ("minimum",)


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "date": (str,),
    "time": (str,),
    "timestamp": (str,),
    "uuid": (str,),
    "json": (object,),
}


def _has_type(value: object, name: str) -> bool:
    return isinstance(value, _JSON_TYPES[name]) and (name in ("boolean", "json") or not isinstance(value, bool))


def _wrong_values(parameter: Node) -> Iterator[Path]:
    kind = parameter["type"]
    if kind != "array":
        if parameter.get("default") is not None and not _has_type(parameter["default"], kind):
            yield ("default",)
    elif (default := parameter.get("default")) is not None and not (
        isinstance(default, list) and all(_has_type(each, parameter["items"]["type"]) for each in default)
    ):
        yield ("default",)
    yield from _wrong_enum(parameter)


def _wrong_enum(element: Node) -> Iterator[Path]:
    if element["type"] != "array":
        for position, value in enumerate(element.get("enum", ())):
            if not _has_type(value, element["type"]):
                yield ("enum", position)


def _networks(field: str) -> Check:
    def check(node: Node) -> Iterator[Path]:
        for position, text in enumerate(node.get(field, ())):
            try:
                ip_network(text)
            except ValueError:
                yield (field, position)

    return check


def _zero(field: str) -> Check:
    return _when(field, lambda node: field in node and re.fullmatch("(0+(ms|s|m|h|d))+", node[field]) is not None)


def _small_spool(spool: Node) -> Iterator[Path]:
    if "size" in spool and parse_size(spool["size"]) < SPOOL_MINIMUM_BYTES:
        yield ("size",)


def _one_key(spec: Node) -> Iterator[Path]:
    if ("secretName" in spec) == ("keyFrom" in spec):
        yield ("keyFrom",) if "keyFrom" in spec else ()


_CONNECTION = ("spec", "connections", "*")
_QUERY = ("spec", "queries", "*")
_PARAMETER = (*_QUERY, "params", "*")
_ITEMS = (*_PARAMETER, "items")
_ROLE = ("spec", "roles", "*")
_NAMED_TWICE = "{0}: two entries have this name; rename or remove one"  # In CRDs: list-type map with the key `name`.
_CIDR = "{0}: each must be a network such as 10.0.0.0/8, without host bits; clear the bits behind the prefix"


def _element_rules(at: tuple[str, ...]) -> tuple[Rule, ...]:
    return (
        Rule(at, "minimum, maximum: only for type integer or number; remove them", _bounds_of_type,
             "self.type in ['integer', 'number'] || !(has(self.minimum) || has(self.maximum))"),
        Rule(at, "minLength, maxLength, pattern: only for type string; remove them", _lengths_of_type,
             "self.type == 'string' || !(has(self.minLength) || has(self.maxLength) || has(self.pattern))"),
        Rule(at, "minLength must not exceed maxLength; lower the one or raise the other",
             _when("minLength", lambda e: "minLength" in e and "maxLength" in e and e["minLength"] > e["maxLength"]),
             "!has(self.minLength) || !has(self.maxLength) || self.minLength <= self.maxLength"),
        Rule(at, "minimum must not exceed maximum; lower the one or raise the other", _crossed),
    )  # fmt: skip


QUERY_API: tuple[Rule, ...] = (
    Rule(("spec",), "queries[].connection: no entry of connections has this name; add it there or correct the name", _missing_connection,
         "self.queries.all(q, self.connections.exists(c, c.name == q.connection))"),
    Rule(("spec",), _NAMED_TWICE.format("connections[].name"), _twice("connections", "name")),
    Rule(("spec",), _NAMED_TWICE.format("queries[].name"), _twice("queries", "name")),
    Rule(("spec",), _NAMED_TWICE.format("roles[].name"), _twice("roles", "name")),
    Rule(_CONNECTION, "session: the gateway sets this setting itself (statement_timeout: use statementTimeout); remove it", _pinned,
         f"!has(self.session) || !self.session.exists(s, s in {list(PINNED_SETTINGS)!r})"),
    Rule(_CONNECTION, "statementTimeout: a duration must be longer than 0; write at least 1ms", _zero("statementTimeout"),
         "!self.statementTimeout.matches('^(0+(ms|s|m|h|d))+$')"),
    Rule(_QUERY, "timeout: a duration must be longer than 0; write at least 1ms", _zero("timeout"),
         "!has(self.timeout) || !self.timeout.matches('^(0+(ms|s|m|h|d))+$')"),
    Rule(_QUERY, "page: a write has no pages; remove page, or write: true",
         _when("page", lambda q: q.get("write") is True and "page" in q), "!self.write || !has(self.page)"),
    Rule(_QUERY, "page: only with returns: many; remove page or change returns",
         _when("page", lambda q: "page" in q and q.get("returns", "many") != "many"), "!has(self.page) || self.returns == 'many'"),
    Rule(_QUERY, "returns: none is for writes; set write: true, or returns: one or many",
         _when("returns", lambda q: q.get("returns") == "none" and q.get("write", False) is False), "self.returns != 'none' || self.write"),
    Rule(_QUERY, "missing: only with returns: one; remove missing or change returns",
         _when("missing", lambda q: q.get("missing", "error") != "error" and q.get("returns", "many") != "one"),
         "self.missing == 'error' || self.returns == 'one'"),
    Rule((*_QUERY, "page"), "defaultSize must not exceed maxSize; lower the one or raise the other",
         _when("defaultSize", lambda p: p.get("defaultSize", 50) > p.get("maxSize", 1000)), "self.defaultSize <= self.maxSize"),
    Rule(_PARAMETER, "items: needed by type array, and only there; add items: {type: …}, or remove it",
         _when("items", lambda p: (p["type"] == "array") != ("items" in p)), "(self.type == 'array') == has(self.items)"),
    Rule(_PARAMETER, "enum: of an array it stands under items; move it there",
         _when("enum", lambda p: p["type"] == "array" and "enum" in p)),
    Rule(_PARAMETER, "default: a required parameter has none; remove default or required",
         _when("default", lambda p: p.get("required") is True and "default" in p)),
    *_element_rules(_PARAMETER),
    Rule(_PARAMETER, "default, enum: the values must be of the parameter's type; correct or quote them", _wrong_values),
    *_element_rules(_ITEMS),
    Rule(_ITEMS, "enum: the values must be of the type of items; correct or quote them", _wrong_enum),
    Rule(_ROLE, "masks[].column: masked twice; remove one", _twice("masks", "column")),
    Rule(("spec", "http"), _CIDR.format("trustedProxies"), _networks("trustedProxies")),
)  # fmt: skip

API_KEY: tuple[Rule, ...] = (
    Rule(("spec",), "secretName, keyFrom: give exactly one; secretName for a new key, keyFrom for one that you bring", _one_key,
         "has(self.secretName) != has(self.keyFrom)"),
    Rule(("spec",), _CIDR.format("allowedCIDRs"), _networks("allowedCIDRs")),
)  # fmt: skip

SPOOL_MINIMUM_BYTES = 16 << 20

RUN_STORE: tuple[Rule, ...] = (
    Rule(("spec", "spool"), "size: must be at least 16Mi; raise it", _small_spool,
         "quantity(self.size).compareTo(quantity('16Mi')) >= 0"),
)  # fmt: skip

KEY_MOVED = "queryApiRef can't be changed; make another ApiKey for the other API"
KEY_MOVED_CEL = "self == oldSelf"
"""Stands at spec.queryApiRef of an ApiKey; what keeps it in Python is `moved`."""


def _finding(path: Path, text: str) -> Finding:
    message, _, hint = text.partition("; ")
    return Finding(path, message, hint)


def moved(old_api: str, new_api: str) -> Finding | None:
    """The finding when a change of an ApiKey points it at another QueryAPI."""
    return None if old_api == new_api else _finding(("spec", "queryApiRef"), KEY_MOVED)


def _nodes(node: Any, at: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Node]]:
    if not at:
        if isinstance(node, dict):
            yield path, node
        return
    head, *rest = at
    if head != "*":
        if isinstance(node, dict) and head in node:
            yield from _nodes(node[head], tuple(rest), (*path, head))
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _nodes(value, tuple(rest), (*path, name))
    elif isinstance(node, list):
        for position, value in enumerate(node):
            yield from _nodes(value, tuple(rest), (*path, position))


def broken(rules: Iterable[Rule], document: Node) -> Iterator[Finding]:
    """Every place where a rule does not hold. Places of the wrong shape are skipped: the schema reports those."""
    for rule in rules:
        for path, node in _nodes(document, rule.at, ()):
            try:
                places = list(rule.check(node))
            except (KeyError, TypeError, AttributeError, ValueError):
                continue
            for place in places:
                yield _finding((*path, *place), rule.message)
