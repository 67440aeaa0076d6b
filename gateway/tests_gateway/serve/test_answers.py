"""Negotiation, problems and cursors against the golden vectors."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.codes import BY_NAME, Fault
from tailrace_contract.golden import vectors
from tailrace_contract.plan import Engine
from tailrace_contract.run import run_id
from tailrace_gateway.serve.cursor import InvalidCursor, Subject, cursor_key, open_cursor, seal
from tailrace_gateway.serve.etag import etag, matches
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.negotiation import NotAcceptable, negotiate
from tailrace_gateway.serve.problem import problem
from tailrace_gateway.serve.values import Malformed, Value


@pytest.mark.parametrize("vector", vectors("negotiation.json")["formats"], ids=lambda v: "|".join(v["accept"]))
def test_formats_as_the_vectors_say(vector: dict[str, Any]) -> None:
    if vector["format"] is None:
        with pytest.raises(NotAcceptable):
            negotiate(None, vector["accept"])
    else:
        assert negotiate(None, vector["accept"]) == vector["format"]


def test_a_format_argument_wins() -> None:
    assert negotiate(Format.CSV, ["application/json"]) is Format.CSV


def test_problems_as_the_vectors_say() -> None:
    for vector in vectors("problems.json"):
        run = None if vector["run"] is None else run_id(int(vector["run"][0], 16), int(vector["run"][1], 16))
        faults = [(name, Fault(fault)) for name, fault in vector["faults"]]
        assert problem(BY_NAME[vector["code"]], run, faults).decode() == vector["body"]


def subject(vector: dict[str, Any]) -> Subject:
    return Subject(vector["key"], vector["query"], vector["version"])


def value(engine: Engine, text: str) -> Value:
    if engine is Engine.POSTGRES:
        return text.encode()
    match text[0], text[1:]:
        case "i", digits:
            return int(digits)
        case "r", bits:
            return float(struct.unpack(">d", bytes.fromhex(bits[1:]))[0])
        case "b", digits:
            return bytes.fromhex(digits[1:])
        case _, rest:
            return rest


CURSORS = vectors("cursors.json")
KEY = cursor_key(bytes.fromhex(CURSORS["secret"]))


@pytest.mark.parametrize("vector", CURSORS["cases"], ids=lambda v: v["plaintext"])
def test_cursors_as_the_vectors_say(vector: dict[str, Any]) -> None:
    engine = Engine(vector["engine"])
    values = [value(engine, text) for text in vector["values"]]
    assert seal(KEY, subject(vector), values, engine) == vector["cursor"]
    opened = open_cursor(KEY, subject(vector), vector["cursor"], len(values), engine)
    assert opened == values
    assert [type(one) for one in opened] == [type(one) for one in values]
    with pytest.raises(Malformed):
        seal(KEY, subject(vector), [None], engine)


@pytest.mark.parametrize("vector", CURSORS["invalid"], ids=lambda v: v["why"])
def test_what_is_no_cursor(vector: dict[str, Any]) -> None:
    with pytest.raises(InvalidCursor):
        open_cursor(KEY, subject(vector), vector["cursor"], vector["keys"], Engine(vector["engine"]))


@given(st.text(max_size=60))
def test_no_text_is_a_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        open_cursor(KEY, Subject("a/b", "q", "v"), text, 1, Engine.POSTGRES)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (["{}"], True),
        (["W/{}"], True),
        (['"a", {}'], True),
        (['"a,b" ,, W/"c",{} , "d"'], True),
        (['"a"', "{}"], True),
        (["*"], True),
        ([" * "], True),
        ([], False),
        ([""], False),
        (['"a"'], False),
        (["w/{}"], False),
        (['"a" {}'], False),
        (["*, {}"], False),
    ],
)
def test_if_none_match(given: list[str], known: bool) -> None:
    tag = etag(b'{"id":7}')
    assert matches(tag, [text.format(tag).encode() for text in given]) is known


def test_etags_are_those_of_the_data_plane() -> None:
    assert etag(b"") == '"47DEQpj8HBSa-_TImW-5JA"'
