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

from tailrace_contract.duration import CPU_PATTERN, parse_cpu, parse_duration, parse_size, read_decimal
from tailrace_contract.findings import Finding, Path
from tailrace_contract.ids import Ref

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
    "time_zone", "sql_mode", "autocommit", "character_set_client", "character_set_connection", "character_set_results", "collation_connection",
    "transaction_read_only", "tx_read_only", "max_statement_time", "max_execution_time", "sql_select_limit", "div_precision_increment",
    "lc_time_names", "default_week_format",
)  # fmt: skip
"""Session settings that the gateway sets itself (serving.md): another value would change answers or lift a guard."""

_NUMERIC = ("integer", "number")


def _missing_connection(spec: Node) -> Iterator[Path]:
    known = {c.get("name") for c in spec["connections"]}
    for position, query in enumerate(spec.get("queries", ())):
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
    if name == "number" and isinstance(value, str):
        return _decimal(value) is not None  # In quotes, which no reader rounds.
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


def _no_queries(spec: Node) -> Iterator[Path]:
    if not spec.get("queries", []) and not spec.get("queriesFrom", []):
        yield ("queries",)


def _unknown_role(spec: Node) -> Iterator[Path]:
    known = {role.get("name") for role in spec["roles"]}
    for position, entry in enumerate(spec.get("allowKeysFrom", ())):
        for place, role in enumerate(entry["roles"]):
            if role not in known:
                yield ("allowKeysFrom", position, "roles", place)


def _configs_twice(spec: Node) -> Iterator[Path]:
    seen = set()
    for position, entry in enumerate(spec.get("queriesFrom", ())):
        name = entry["configMapRef"]["name"]
        if name in seen:
            yield ("queriesFrom", position, "configMapRef", "name")
        seen.add(name)


def _read_amount(field: str, value: object) -> int:
    return parse_cpu(str(value)) if field == "cpu" else parse_size(str(value))


def _above_limit(field: str) -> Check:
    def check(resources: Node) -> Iterator[Path]:
        request, limit = resources.get("requests", {}).get(field), resources.get("limits", {}).get(field)
        if request is not None and limit is not None and _read_amount(field, request) > _read_amount(field, limit):
            yield ("requests", field)

    return check


def _cpu_out_of_bounds(amounts: Node) -> Iterator[Path]:
    if "cpu" in amounts and re.fullmatch(CPU_PATTERN, str(amounts["cpu"])):
        try:
            parse_cpu(str(amounts["cpu"]))
        except ValueError:  # The reader says it with the same words.
            yield ("cpu",)


def _memory_out_of_bounds(amounts: Node) -> Iterator[Path]:
    if "memory" in amounts and not MEMORY_MINIMUM_BYTES <= parse_size(amounts["memory"]) <= MEMORY_MAXIMUM_BYTES:
        yield ("memory",)


def _rotation_of_brought(spec: Node) -> Iterator[Path]:
    if "rotation" in spec and "secretName" not in spec:
        yield ("rotation",)


def _milliseconds(field: str) -> str:
    """CEL for the length of a duration. Behind `replace`, no unit's letter occurs in another unit."""
    text = f"self.{field}.replace('ms', 'u')"
    return " + ".join(
        f"{text}.findAll('[0-9]+{unit}').map(p, int(p.replace('{unit}', ''))).sum() * {ms}"
        for unit, ms in (("u", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000))
    )


ROTATION_MINIMUM_MS = 10_000
CACHE_TTL_MS = (100, 3_600_000)
MEMORY_MINIMUM_BYTES = 64 << 20
MEMORY_MAXIMUM_BYTES = 1 << 40

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


def _container_rules(container: str) -> tuple[Rule, ...]:
    at = ("spec", container, "resources")
    return (
        *(Rule((*at, each), "cpu: a CPU amount must be above 0 and at most 256 cores; correct it", _cpu_out_of_bounds,
               "!has(self.cpu) || quantity(string(self.cpu)).isGreaterThan(quantity('0'))"
               " && !quantity(string(self.cpu)).isGreaterThan(quantity('256'))")
          for each in ("requests", "limits")),
        *(Rule((*at, each), "memory: must be between 64Mi and 1Ti; correct it",
               _memory_out_of_bounds,
               "!has(self.memory) || !quantity(self.memory).isLessThan(quantity('64Mi'))"
               " && !quantity(self.memory).isGreaterThan(quantity('1Ti'))")
          for each in ("requests", "limits")),
        Rule(at, "requests.cpu must not exceed limits.cpu; lower the one or raise the other", _above_limit("cpu"),
             "!has(self.requests) || !has(self.limits) || !has(self.requests.cpu) || !has(self.limits.cpu)"
             " || !quantity(string(self.requests.cpu)).isGreaterThan(quantity(string(self.limits.cpu)))"),
        Rule(at, "requests.memory must not exceed limits.memory; lower the one or raise the other", _above_limit("memory"),
             "!has(self.requests) || !has(self.limits) || !has(self.requests.memory) || !has(self.limits.memory)"
             " || !quantity(self.requests.memory).isGreaterThan(quantity(self.limits.memory))"),
    )  # fmt: skip


QUERY_API: tuple[Rule, ...] = (
    Rule(("spec",), "queries[].connection: no entry of connections has this name; add it there or correct the name", _missing_connection,
         "!has(self.queries) || self.queries.all(q, self.connections.exists(c, c.name == q.connection))"),
    Rule(("spec",), "queries, queriesFrom: there are no queries; give at least one, or a ConfigMap with queries", _no_queries,
         "has(self.queries) && self.queries.size() > 0 || has(self.queriesFrom) && self.queriesFrom.size() > 0"),
    Rule(("spec",), "queriesFrom[].configMapRef: named twice; remove one", _configs_twice,
         "!has(self.queriesFrom) || self.queriesFrom.all(f, self.queriesFrom.exists_one(g, g.configMapRef.name == f.configMapRef.name))"),
    Rule(("spec",), "allowKeysFrom[].roles: no entry of roles has this name; add it there or correct the name", _unknown_role,
         "!has(self.allowKeysFrom) || self.allowKeysFrom.all(a, a.roles.all(n, self.roles.exists(r, r.name == n)))"),
    *_container_rules("gateway"),
    *_container_rules("dataPlane"),
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
    Rule(_QUERY, "coalesce: a write is never shared; remove coalesce, or write: true",
         _when("coalesce", lambda q: q.get("write") is True and "coalesce" in q), "!self.write || !has(self.coalesce)"),
    Rule(_QUERY, "cache: a write is never cached; remove cache, or write: true",
         _when("cache", lambda q: q.get("write") is True and "cache" in q), "!self.write || !has(self.cache)"),
    Rule(_QUERY, "unbounded: only with returns: many; remove unbounded or change returns",
         _when("unbounded", lambda q: q.get("unbounded") is True and q.get("returns", "many") != "many"),
         "!self.unbounded || self.returns == 'many'"),
    Rule(_QUERY, "unbounded: a page has a bound; remove unbounded, or page",
         _when("unbounded", lambda q: q.get("unbounded") is True and "page" in q), "!self.unbounded || !has(self.page)"),
    Rule(_QUERY, "unbounded: a write's answer is whole; remove unbounded, or write: true",
         _when("unbounded", lambda q: q.get("unbounded") is True and q.get("write") is True), "!self.unbounded || !self.write"),
    Rule(_QUERY, "unbounded: streams are not cached; remove unbounded, or cache",
         _when("unbounded", lambda q: q.get("unbounded") is True and "cache" in q), "!self.unbounded || !has(self.cache)"),
    Rule((*_QUERY, "cache"), "ttl: an answer is kept for 100ms to 1h; correct it",
         _when("ttl", lambda c: "d" in c["ttl"] or not CACHE_TTL_MS[0] <= parse_duration(c["ttl"]) <= CACHE_TTL_MS[1]),
         "!self.ttl.contains('d') && duration(self.ttl) >= duration('100ms') && duration(self.ttl) <= duration('1h')"),
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
    Rule(("spec",), "rotation: only with secretName, since a key that you bring is yours to replace; remove rotation", _rotation_of_brought,
         "!has(self.rotation) || has(self.secretName)"),
    Rule(("spec", "rotation"), "every: a key must be handed out for at least 10s; raise it",
         _when("every", lambda r: parse_duration(r["every"]) < ROTATION_MINIMUM_MS), f"{_milliseconds('every')} >= {ROTATION_MINIMUM_MS}"),
    Rule(("spec", "rotation"), "overlap: a duration must be longer than 0; write at least 1ms", _zero("overlap"),
         "!self.overlap.matches('^(0+(ms|s|m|h|d))+$')"),
    Rule(("spec", "rotation"), "overlap must be less than every; lower the one or raise the other",
         _when("overlap", lambda r: parse_duration(r["overlap"]) >= parse_duration(r["every"])),
         f"{_milliseconds('overlap')} < {_milliseconds('every')}"),
    Rule(("spec",), _CIDR.format("allowedCIDRs"), _networks("allowedCIDRs")),
)  # fmt: skip

SPOOL_MINIMUM_BYTES = 16 << 20


def _one_backend(spec: Node) -> Iterator[Path]:
    if ("embedded" in spec) == ("postgres" in spec):
        yield ("postgres",) if "postgres" in spec else ()


RUN_STORE: tuple[Rule, ...] = (
    Rule(("spec",), "embedded, postgres: give exactly one; embedded: {} for a single pod, postgres for any number", _one_backend,
         "has(self.embedded) != has(self.postgres)"),
    Rule(("spec", "spool"), "size: must be at least 16Mi; raise it", _small_spool,
         "quantity(self.size).compareTo(quantity('16Mi')) >= 0"),
)  # fmt: skip

BACKEND_CHANGED = "embedded, postgres: the backend can't be changed; make another RunStore"
BACKEND_CHANGED_CEL = "has(self.embedded) == has(oldSelf.embedded)"
"""Stands at spec of a RunStore; what keeps it in Python is `backend_changed`."""

KEY_MOVED = "queryApiRef can't be changed; make another ApiKey for the other API"
KEY_MOVED_CEL = "self == oldSelf"
"""Stands at spec.queryApiRef of an ApiKey; what keeps it in Python is `moved`."""


def _finding(path: Path, text: str) -> Finding:
    message, _, hint = text.partition("; ")
    return Finding(path, message, hint)


def moved(old_api: Ref, new_api: Ref) -> Finding | None:
    """The finding when a change of an ApiKey points it at another QueryAPI."""
    return None if old_api == new_api else _finding(("spec", "queryApiRef"), KEY_MOVED)


def backend_changed(was_embedded: bool, is_embedded: bool) -> Finding | None:
    """The finding when a change of a RunStore gives it another backend."""
    return None if was_embedded == is_embedded else _finding(("spec",), BACKEND_CHANGED)


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
