"""One declared parameter: what its texts must be, and what is bound. Pure.

Rejects declarations with `DeclarationError` and values with `Faulty`. The Rust twin is `dataplane-rs/src/params/param.rs`.
"""

import struct
from collections.abc import Iterable
from typing import Protocol

import re2
from pydantic import JsonValue
from tailrace_contract.codes import Fault
from tailrace_contract.pattern import PatternError, portable
from tailrace_contract.plan import Engine, ParamPlan, ParamType
from tailrace_gateway.serve.floats import float_text
from tailrace_gateway.serve.grammar import compare_decimals, is_number, normalised
from tailrace_gateway.serve.json_scan import Item, Kind, elements, own_text
from tailrace_gateway.serve.values import json_string

Bindable = bytes | None
"""What is bound: for PostgreSQL and MySQL its text, for SQLite a storage tag and bytes (`values.untag`). None is NULL."""


class DeclarationError(ValueError):
    """A declaration that cannot be compiled; the message names the parameter."""


class Faulty(ValueError):
    """A value that is not acceptable."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


class _Regex(Protocol):
    """What RE2 compiled; it matches in time linear in the text."""

    def search(self, text: str) -> object | None:
        """A match anywhere, or None."""


_NUMERIC = (ParamType.INTEGER, ParamType.NUMBER)
_BARE = (*_NUMERIC, ParamType.BOOLEAN, ParamType.JSON)
"""What stands in a JSON list without quotes."""
_ORDER = {fault: n for n, fault in enumerate(Fault)}


class Param:
    """A compiled declaration."""

    def __init__(self, plan: ParamPlan, engine: Engine) -> None:
        self.plan = plan
        self.name = plan.name
        self._engine = engine
        self._check()
        self._pattern = None if plan.pattern is None else self._compiled(plan.pattern)
        self._allowed: list[str] | None = None
        if plan.enum is not None:
            if plan.type is ParamType.JSON:
                raise self._wrong("enum cannot be of json")
            self._allowed = [self._allowed_value(value) for value in plan.enum]
        self.default: Bindable = None
        if plan.default is not None:
            try:
                self.default = self.fixed(plan.default)
            except Faulty as faulty:
                raise self._wrong(f"the default is not acceptable ({faulty.fault.value})") from faulty

    def _wrong(self, what: str) -> DeclarationError:
        return DeclarationError(f"parameter {self.name}: {what}")

    def _check(self) -> None:
        plan = self.plan
        for bound in (plan.minimum, plan.maximum):
            if bound is not None and (plan.type not in _NUMERIC or not is_number(bound)):
                raise self._wrong("minimum and maximum are decimals, of integer and number")
        if plan.type is not ParamType.STRING and (plan.min_length, plan.max_length, plan.pattern) != (None, None, None):
            raise self._wrong("minLength, maxLength and pattern are of string")

    def _compiled(self, pattern: str) -> "_Regex":
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        try:
            regex: _Regex = re2.compile(portable(pattern), options)
        except (PatternError, re2.error) as error:
            raise self._wrong(f"the pattern {error}") from error
        return regex

    def _allowed_value(self, value: JsonValue) -> str:
        text = None if value is None else literal(self.plan.type, value)
        allowed = None if text is None else normalised(self.plan.type, text)
        if allowed is None:
            raise self._wrong("a value of enum has another type")
        return allowed

    def fixed(self, value: JsonValue) -> Bindable:
        """A value that the plan holds (a default, a key binding)."""
        if value is None:
            self._check_null()
            return None
        if not self.plan.array:
            return self._scalar(literal(self.plan.type, value))
        if not isinstance(value, list):
            raise Faulty(Fault.TYPE)
        return self._list(None if element is None else literal(self.plan.type, element) for element in value)

    def url(self, text: str) -> Bindable:
        """A value of the URL, decoded."""
        if self.plan.array:
            return self._list(text.split(",") if text else [])
        return self._scalar(text)

    def json(self, item: Item) -> Bindable:
        """A value of the body."""
        if item.kind is Kind.NULL:
            self._check_null()
            return None
        if not self.plan.array:
            return self._scalar(self._token(item))
        if item.kind is not Kind.ARRAY:
            raise Faulty(Fault.TYPE)
        return self._list(self._token(element) for element in elements(item))

    def _check_null(self) -> None:
        if not self.plan.nullable:
            raise Faulty(Fault.NULL)

    def _token(self, item: Item) -> str | None:
        """The text that a JSON token stands for, None if it has another type."""
        match self.plan.type, item.kind:
            case _, Kind.NULL:
                return None  # inside a list
            case ParamType.JSON, _:
                return None if item.nul else item.text
            case ((ParamType.INTEGER | ParamType.NUMBER), Kind.NUMBER):
                return item.text
            case ParamType.BOOLEAN, Kind.BOOLEAN:
                return item.text
            case ((ParamType.INTEGER | ParamType.NUMBER | ParamType.BOOLEAN), _):
                return None
            case _, Kind.STRING:
                return None if item.nul else own_text(item.text)
        return None

    def _scalar(self, text: str | None) -> Bindable:
        bound = None if text is None else normalised(self.plan.type, text)
        if bound is None:
            raise Faulty(Fault.TYPE)
        fault = self._constraints(bound)
        if fault is not None:
            raise Faulty(fault)
        return bound.encode() if self._engine is not Engine.SQLITE else self._stored(bound)

    def _list(self, texts: Iterable[str | None]) -> Bindable:
        bound: list[str] = []
        faults: set[Fault] = set()
        for text in texts:
            element = None if text is None else normalised(self.plan.type, text)
            if element is None:
                raise Faulty(Fault.TYPE)
            fault = self._constraints(element)
            if fault is not None:
                faults.add(fault)
            bound.append(element)
        if faults:
            raise Faulty(min(faults, key=_ORDER.__getitem__))
        if self._engine is not Engine.POSTGRES:
            quote = str if self.plan.type in _BARE else json_string
            return f"{'t' if self._engine is Engine.SQLITE else ''}[{','.join(map(quote, bound))}]".encode()
        return ("{" + ",".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in bound) + "}").encode()

    def _constraints(self, text: str) -> Fault | None:
        """The first thing that is wrong with a text of the right type, in the order of `Fault`."""
        plan = self.plan
        if self._allowed is not None:
            numeric = plan.type in _NUMERIC
            if not (any(compare_decimals(text, value) == 0 for value in self._allowed) if numeric else text in self._allowed):
                return Fault.ENUM
        if plan.minimum is not None and compare_decimals(text, plan.minimum) < 0:
            return Fault.MINIMUM
        if plan.maximum is not None and compare_decimals(text, plan.maximum) > 0:
            return Fault.MAXIMUM
        if plan.min_length is not None and len(text) < plan.min_length:
            return Fault.MIN_LENGTH
        if plan.max_length is not None and len(text) > plan.max_length:
            return Fault.MAX_LENGTH
        if self._pattern is not None and self._pattern.search(text) is None:
            return Fault.PATTERN
        return None

    def _stored(self, text: str) -> bytes:
        """The storage class that SQLite binds."""
        match self.plan.type:
            case ParamType.INTEGER:
                return b"i" + text.encode()
            case ParamType.BOOLEAN:
                return b"i1" if text == "true" else b"i0"
            case ParamType.NUMBER:
                if not set(".eE") & set(text) and len(text) <= 20 and -(2**63) <= int(text) < 2**63:
                    return b"i%d" % int(text)
                return b"r" + struct.pack(">d", float(text))
            case _:
                return b"t" + text.encode()


def literal(kind: ParamType, value: JsonValue) -> str | None:
    """The text of a plan's value that is not null, as a caller would write it; None for another type.

    Numbers may stand as strings, so that no reader rounds them; JSON numbers with a fraction or exponent, or beyond 64 bits, are doubles.
    """
    match kind, value:
        case ParamType.JSON, _:
            return _json(value)
        case ParamType.BOOLEAN, bool():
            return "true" if value else "false"
        case (_, bool()) | (ParamType.BOOLEAN, _):
            return None
        case ((ParamType.INTEGER | ParamType.NUMBER), (int() | float())):
            return _number(value)
        case _, str():
            return value
        case _:
            return None


def _number(value: int | float) -> str:
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return str(value)
    try:
        return float_text(float(value))
    except OverflowError:
        return "Infinity"  # of no grammar


def _json(value: JsonValue) -> str:
    """Compact JSON, members in the order of their names."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _number(value)
        case str():
            return json_string(value)
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
        case dict():
            return "{" + ",".join(f"{json_string(name)}:{_json(value[name])}" for name in sorted(value)) + "}"
