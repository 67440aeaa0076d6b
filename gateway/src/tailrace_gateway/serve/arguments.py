"""A call's arguments → values to bind, by the declarations of one query (docs/contract.md, "A call" and "Parameter grammar"). Pure.

Rejects everything a caller can get wrong, as `ArgumentsRefused`. The Rust twin is `dataplane-rs/src/params/`; both read
`crds/golden/vectors/params.json` and `declarations.json`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from pydantic import JsonValue
from tailrace_contract.codes import Fault
from tailrace_contract.plan import Engine, PagePlan, ParamPlan
from tailrace_gateway.serve.formats import Format, parse_format
from tailrace_gateway.serve.grammar import is_integer
from tailrace_gateway.serve.json_scan import Item, Kind, MalformedJson, members, own_text
from tailrace_gateway.serve.negotiation import NotAcceptable
from tailrace_gateway.serve.params import Bindable, DeclarationError, Faulty, Param

RESERVED = ("page_size", "cursor", "format")
"""Names with a meaning of their own."""


class ArgumentsRefused(ValueError):
    """`code`: malformed_body, malformed_arguments, not_acceptable, bound_parameter or invalid_parameters (these two with `faults`)."""

    def __init__(self, code: str, faults: Sequence[tuple[str, Fault]] = ()) -> None:
        super().__init__(code)
        self.code = code
        self.faults = tuple(faults)


class UndeclaredBinding(ValueError):
    """The query lacks a parameter that the key fixes: the key may not call it (403)."""


class BindingError(ValueError):
    """A fixed value is not acceptable: the key is refused."""

    def __init__(self, name: str, fault: Fault) -> None:
        super().__init__(f"the binding of {name} is not acceptable ({fault.value})")
        self.name = name
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Bound:
    """A key's fixed values for one query, by parameter name."""

    values: Mapping[str, Bindable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """What a call said.

    `values`: one per declared parameter. `page_size`: rows of a page, within 1…maxSize. `cursor`: as sent, not opened. `form`: `format` of
    the URL or the body.
    """

    values: list[Bindable]
    page_size: int | None = None
    cursor: str | None = None
    form: Format | None = None


@dataclass(slots=True)
class _Slot:
    """Where one name was given first (decoded text of the URL, or an item of the body), and whether it was given again."""

    source: str | Item
    duplicate: bool = False


class Spec:
    """The declarations of one query, compiled. DeclarationError when one cannot be: refuse the query."""

    def __init__(self, params: Sequence[ParamPlan], page: PagePlan | None, engine: Engine) -> None:
        self._params = [Param(plan, engine) for plan in params]
        self._max_size = None if page is None else page.max_size
        names = [plan.name for plan in params]
        for name in names:
            if name in RESERVED:
                raise DeclarationError(f"parameter {name}: the name is reserved")
        if len(set(names)) != len(names):
            raise DeclarationError(f"parameter {next(name for name in names if names.count(name) > 1)}: is declared twice")

    def declares(self, name: str) -> bool:
        """There is a parameter of this name."""
        return any(param.name == name for param in self._params)

    def bound(self, bind: Mapping[str, JsonValue]) -> Bound:
        """A key's bindings, checked like a caller's values. UndeclaredBinding, BindingError."""
        params = {param.name: param for param in self._params}
        values: dict[str, Bindable] = {}
        for name, value in bind.items():
            if name not in params:
                raise UndeclaredBinding(name)
            try:
                values[name] = params[name].fixed(value)
            except Faulty as faulty:
                raise BindingError(name, faulty.fault) from faulty
        return Bound(values)

    def decode(self, bound: Bound, query: bytes, body: bytes | None) -> Given:
        """Values of a call. `query`: the URL's arguments as they stand; `body`: None without one, and may be empty."""
        slots, malformed = _arguments(query)
        if body:
            _body(body, slots)
        if malformed:
            raise ArgumentsRefused("malformed_arguments")
        form = _format(slots.get("format"))
        values: list[Bindable] = []
        faults: list[tuple[str, Fault]] = []
        for param in self._params:
            try:
                values.append(self._value(param, slots.pop(param.name, None), bound))
            except Faulty as faulty:
                faults.append((param.name, faulty.fault))
        page_size, cursor, format_slot = (slots.pop(name, None) for name in RESERVED)
        size: int | None = None
        text: str | None = None
        try:
            size = self._page_size(page_size)
        except Faulty as faulty:
            faults.append(("page_size", faulty.fault))
        try:
            text = self._cursor(cursor)
        except Faulty as faulty:
            faults.append(("cursor", faulty.fault))
        if format_slot is not None and format_slot.duplicate:
            faults.append(("format", Fault.DUPLICATE))
        faults += [(name, Fault.UNKNOWN) for name in slots]
        if faults:
            bound_too = any(fault is Fault.BOUND for _, fault in faults)
            raise ArgumentsRefused("bound_parameter" if bound_too else "invalid_parameters", faults)
        return Given(values, size, text, form)

    @staticmethod
    def _value(param: Param, slot: _Slot | None, bound: Bound) -> Bindable:
        if slot is None:
            if param.name in bound.values:
                return bound.values[param.name]
            if param.plan.required:
                raise Faulty(Fault.MISSING)
            return param.default
        if slot.duplicate:
            raise Faulty(Fault.DUPLICATE)
        if param.name in bound.values:
            raise Faulty(Fault.BOUND)
        return param.url(slot.source) if isinstance(slot.source, str) else param.json(slot.source)

    def _reserved(self, slot: _Slot) -> str | Item:
        if self._max_size is None:
            raise Faulty(Fault.UNKNOWN)
        if slot.duplicate:
            raise Faulty(Fault.DUPLICATE)
        if isinstance(slot.source, Item) and slot.source.kind is Kind.NULL:
            raise Faulty(Fault.NULL)
        return slot.source

    def _page_size(self, slot: _Slot | None) -> int | None:
        if slot is None:
            return None
        source = self._reserved(slot)
        if isinstance(source, Item) and source.kind is not Kind.NUMBER:
            raise Faulty(Fault.TYPE)
        text = source if isinstance(source, str) else source.text
        if not is_integer(text):
            raise Faulty(Fault.TYPE)
        if int(text) < 1:
            raise Faulty(Fault.MINIMUM)
        if int(text) > (self._max_size or 0):
            raise Faulty(Fault.MAXIMUM)
        return int(text)

    def _cursor(self, slot: _Slot | None) -> str | None:
        if slot is None:
            return None
        source = self._reserved(slot)
        if isinstance(source, str):
            return source
        if source.kind is not Kind.STRING:
            raise Faulty(Fault.TYPE)
        return own_text(source.text)


def requested_format(query: bytes) -> Format | None:
    """The first `format=` of the arguments, which is read before everything else about them. NotAcceptable."""
    for name, value in _pairs(query):
        if _decoded(name) == "format":
            form = parse_format(_decoded(value) or "")
            if form is None:
                raise NotAcceptable
            return form
    return None


def without_cursor(query: bytes) -> bytes:
    """The caller's arguments without `cursor`, byte for byte in their order, `&` only between (for `Link`)."""
    return b"&".join(pair for pair in query.split(b"&") if pair and _decoded(pair.partition(b"=")[0]) != "cursor")


def place(values: Sequence[Bindable], params: Sequence[int]) -> list[Bindable]:
    """The values of a statement's places: `values` holds one per declared parameter, `params` names one per place."""
    return [values[param] for param in params]


def _pairs(query: bytes) -> Iterator[tuple[bytes, bytes]]:
    for pair in query.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            yield name, value


_BROKEN_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")


def _decoded(piece: bytes) -> str | None:
    """What a piece stands for, None if that is nothing."""
    if _BROKEN_ESCAPE.search(piece):
        return None
    try:
        return unquote_to_bytes(piece.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def _arguments(query: bytes) -> tuple[dict[str, _Slot], bool]:
    """Every name with where it was given, in order of appearance; and whether anything was malformed."""
    slots: dict[str, _Slot] = {}
    malformed = False
    for raw_name, raw_value in _pairs(query):
        name, value = _decoded(raw_name), _decoded(raw_value)
        if name is None or value is None:
            malformed = True
        else:
            _give(slots, name, value)
    return slots, malformed


def _body(body: bytes, slots: dict[str, _Slot]) -> None:
    try:
        for name, item in members(body.decode()):
            _give(slots, name, item)
    except (MalformedJson, UnicodeDecodeError) as error:
        raise ArgumentsRefused("malformed_body") from error


def _give(slots: dict[str, _Slot], name: str, source: str | Item) -> None:
    if name in slots:
        slots[name].duplicate = True
    else:
        slots[name] = _Slot(source)


def _format(slot: _Slot | None) -> Format | None:
    """The word of `format`, wherever it stands; anything but a format is not acceptable."""
    if slot is None:
        return None
    source = slot.source
    word = source if isinstance(source, str) else own_text(source.text) if source.kind is Kind.STRING else ""
    form = parse_format(word)
    if form is None:
        raise ArgumentsRefused("not_acceptable")
    return form
