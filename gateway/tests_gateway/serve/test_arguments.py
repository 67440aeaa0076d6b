"""Arguments, declarations, bindings and patterns against the golden vectors, and properties of each."""

import json
import string
from contextlib import suppress
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.codes import Fault
from tailrace_contract.golden import vectors
from tailrace_contract.pattern import PatternError, portable
from tailrace_contract.plan import Engine, PageKeyPlan, PagePlan, ParamPlan, StatementPlan
from tailrace_gateway.serve.arguments import (
    ArgumentsRefused,
    BindingError,
    Bound,
    Spec,
    UndeclaredBinding,
    place,
    requested_format,
    without_cursor,
)
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.grammar import compare_decimals, is_number
from tailrace_gateway.serve.json_scan import MalformedJson, scan
from tailrace_gateway.serve.negotiation import NotAcceptable
from tailrace_gateway.serve.params import DeclarationError


def declarations(params: list[dict[str, Any]]) -> list[ParamPlan]:
    return [ParamPlan.model_validate(param) for param in params]


def paging(max_size: int | None) -> PagePlan | None:
    statement = StatementPlan(sql="")
    return None if max_size is None else PagePlan(keys=(PageKeyPlan(column=0),), max_size=max_size, first=statement, next=statement)


def framed(values: list[str | None]) -> list[bytes | None]:
    return [None if text is None else b"r" + bytes.fromhex(text[2:]) if text.startswith("r:") else text.encode() for text in values]


def on_mysql(group: dict[str, Any], case: dict[str, Any]) -> list[str | None] | None:
    """MySQL takes PostgreSQL's text, and of a list SQLite's; None when the vector doesn't say."""
    values, stored = case.get("values"), case.get("sqlite")
    lists = [param.get("array", False) for param in group["params"]]
    if values is None or (stored is None and any(lists)):
        return None
    return [
        stored[n].removeprefix("t") if is_list and value is not None else value
        for n, (is_list, value) in enumerate(zip(lists, values, strict=True))
    ]


CASES = [(group, case) for group in vectors("params.json") for case in group["cases"]]


@pytest.mark.parametrize(("group", "case"), CASES, ids=[f"{g['what']}:{c.get('query', '')}|{c.get('body', '')}"[:70] for g, c in CASES])
def test_calls_as_the_vectors_say(group: dict[str, Any], case: dict[str, Any]) -> None:
    query = case.get("query", "").encode()
    body = bytes.fromhex(case["body_hex"]) if "body_hex" in case else case["body"].encode() if "body" in case else None
    for engine in Engine:
        wanted = on_mysql(group, case) if engine is Engine.MYSQL else case.get("values" if engine is Engine.POSTGRES else "sqlite")
        if wanted is None and "values" in case:
            continue
        spec = Spec(declarations(group["params"]), paging(group.get("maxSize")), engine)
        bound = spec.bound(group.get("bind", {}))
        if wanted is None:
            with pytest.raises(ArgumentsRefused) as refused:
                spec.decode(bound, query, body)
            assert refused.value.code == case.get("code", "invalid_parameters")
            assert [[name, fault.value] for name, fault in refused.value.faults] == case.get("faults", [])
        else:
            given_ = spec.decode(bound, query, body)
            assert given_.values == framed(wanted)
            rest = case.get("given", {})
            assert (given_.page_size, given_.cursor, given_.form) == (rest.get("pageSize"), rest.get("cursor"), rest.get("format"))


DECLARATIONS = vectors("declarations.json")


@pytest.mark.parametrize("case", DECLARATIONS["invalid"], ids=lambda c: c["why"])
def test_declarations_that_do_not_compile(case: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Spec(declarations(case["params"]), None, Engine.POSTGRES)


@pytest.mark.parametrize("case", DECLARATIONS["bind"], ids=lambda c: json.dumps(c["bind"]))
def test_bindings_as_the_vectors_say(case: dict[str, Any]) -> None:
    spec = Spec(declarations(DECLARATIONS["params"]), None, Engine.POSTGRES)
    if "undeclared" in case:
        with pytest.raises(UndeclaredBinding, match=case["undeclared"]):
            spec.bound(case["bind"])
    elif "fault" in case:
        with pytest.raises(BindingError) as error:
            spec.bound(case["bind"])
        assert [error.value.name, error.value.fault.value] == case["fault"]
    else:
        assert spec.decode(spec.bound(case["bind"]), b"", None).values == framed(case["values"])


def compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(portable(pattern), options)


PATTERNS = vectors("patterns.json")


@pytest.mark.parametrize("case", PATTERNS["portable"], ids=lambda c: c["pattern"])
def test_patterns_as_the_vectors_say(case: dict[str, Any]) -> None:
    regex = compiled(case["pattern"])
    for text in case["matches"]:
        assert regex.search(text) is not None, text
    for text in case["not"]:
        assert regex.search(text) is None, text
    if "rewritten" in case:
        assert portable(case["pattern"]) == case["rewritten"]


@pytest.mark.parametrize("pattern", PATTERNS["refused"])
def test_patterns_outside_the_subset(pattern: str) -> None:
    with pytest.raises(PatternError):
        portable(pattern)


@pytest.mark.parametrize("pattern", ["[^a]{1000}", "(?:[^a]{2}){499}", "(?:\\W|\\S){400}", "(x" * 50 + ")" * 50, "[^é]" * 200])
def test_the_largest_patterns_compile(pattern: str) -> None:
    assert compiled(pattern) is not None


@given(st.text(alphabet="ab.^$|?*+(){}[]\\dwsbn-09,:é", max_size=12))
def test_what_is_portable_compiles(pattern: str) -> None:
    try:
        rewritten = portable(pattern)
    except PatternError:
        return
    assert set(rewritten) <= set(string.hexdigits + "\\x{}[]-()?:|*+,Azb0123456789")
    compiled(pattern)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_nesting_is_bounded() -> None:
    spec = Spec(declarations([{"name": "v", "type": "json"}]), None, Engine.POSTGRES)
    assert spec.decode(Bound(), b"", f'{{"v":{nested(128)}}}'.encode()).values == [nested(128).encode()]
    assert spec.decode(Bound(), f"v={nested(128)}".encode(), None).values == [nested(128).encode()]
    for query, body, code in (("", f'{{"v":{nested(129)}}}', "malformed_body"), (f"v={nested(129)}", "", "invalid_parameters")):
        with pytest.raises(ArgumentsRefused, match=code):
            spec.decode(Bound(), query.encode(), body.encode())
    objects = '{"v":' + '{"a":' * 129 + "1" + "}" * 130
    with pytest.raises(ArgumentsRefused, match="malformed_body"):
        spec.decode(Bound(), b"", objects.encode())


def test_thousands_of_parameters_and_long_values() -> None:
    spec = Spec(declarations([{"name": f"p{n}", "type": "string"} for n in range(3000)]), None, Engine.POSTGRES)
    query = "&".join(f"p{n}={n}" for n in reversed(range(3000)))
    assert spec.decode(Bound(), query.encode(), None).values == [str(n).encode() for n in range(3000)]
    with pytest.raises(ArgumentsRefused) as refused:
        spec.decode(Bound(), (query + "".join(f"&u{n}" for n in range(20_000))).encode(), None)
    assert len(refused.value.faults) == 20_000
    body = '{"p7":"' + "\\u00e9" * 170_000 + '"}'
    assert spec.decode(Bound(), b"", body.encode()).values[7] == ("é" * 170_000).encode()
    for broken in ('{"p7":"' + "a" * 1_000_000, '{"p7":"' + "\\u00e9" * 170_000, "[" * 1_000_000):
        with pytest.raises(ArgumentsRefused, match="malformed_body"):
            spec.decode(Bound(), b"", broken.encode())


def test_numbers_have_at_most_400_characters() -> None:
    assert is_number("1" * 400)
    assert not is_number("1" * 401)


def test_places_follow_their_parameters() -> None:
    assert place([b"a", None, b"c"], [2, 0, 2, 1]) == [b"c", b"a", b"c", None]


@pytest.mark.parametrize(
    ("query", "kept"),
    [("", ""), ("a=1&cursor=x&b=%20", "a=1&b=%20"), ("cursor=x", ""), ("&&c%75rsor=x&&a", "a"), ("cursors=1", "cursors=1")],
)
def test_link_arguments_leave_the_cursor_out(query: str, kept: str) -> None:
    assert without_cursor(query.encode()) == kept.encode()


@pytest.mark.parametrize(("query", "form"), [("", None), ("a=%zz&format=csv", Format.CSV), ("form%61t=nd%6Ason&format=x", Format.NDJSON)])
def test_format_is_read_first(query: str, form: Format | None) -> None:
    assert requested_format(query.encode()) is form


@pytest.mark.parametrize("query", ["format=", "format", "format=%zz", "format=xml"])
def test_what_is_no_format(query: str) -> None:
    with pytest.raises(NotAcceptable):
        requested_format(query.encode())


DECIMALS = st.from_regex(r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).filter(str.isascii)


@given(DECIMALS, DECIMALS)
def test_decimals_compare_as_numbers_do(a: str, b: str) -> None:
    assert compare_decimals(a, b) == (Decimal(a) > Decimal(b)) - (Decimal(a) < Decimal(b))


def _constant(text: str) -> Any:
    raise ValueError(text)


@given(
    st.text(alphabet='[]{}:,"\\ a0189eE.+-ntu', max_size=14) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_the_scanner_takes_what_a_json_reader_takes(text: str) -> None:
    try:
        json.loads(text, parse_constant=_constant)
        sound = "\\ud" not in text.lower()
    except ValueError:
        sound = False
    try:
        assert scan(text).text == text.strip(" \t\n\r")
    except MalformedJson:
        assert not sound
    else:
        assert sound or "\\ud" in text.lower()


@given(st.text())
def test_any_text_arrives_as_it_was(text: str) -> None:
    spec = Spec(declarations([{"name": "v", "type": "string"}]), None, Engine.POSTGRES)
    ways = [
        (f"v={quote(text, safe='')}".encode(), None),
        (f"v={quote_plus(text)}".encode(), None),
        (b"", json.dumps({"v": text}).encode()),
        (b"", json.dumps({"v": text}, ensure_ascii=False).encode()),
    ]
    for query, body in ways:
        if "\0" in text:
            with pytest.raises(ArgumentsRefused) as refused:
                spec.decode(Bound(), query, body)
            assert refused.value.faults == (("v", Fault.TYPE),)
        else:
            assert spec.decode(Bound(), query, body).values == [text.encode()]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_anything_is_answered_or_refused(query: bytes, body: bytes) -> None:
    for engine in Engine:
        spec = Spec(declarations([{"name": "a", "type": "json"}, {"name": "b", "type": "number", "array": True}]), None, engine)
        with suppress(ArgumentsRefused):
            assert len(spec.decode(Bound(), query, body).values) == 2
