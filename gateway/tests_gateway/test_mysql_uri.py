"""The URL grammar of MySQL: golden vectors that Rust reads too, round trips, and nothing but UriError for any text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.mysql_uri import parse
from tailrace_contract.uri_parts import Files, UriError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "crds/golden/vectors/mysql_uri.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["uri"])
def test_vectors(case: dict[str, Any]) -> None:
    files = Files(**case.get("files", {}))
    if "error" in case:
        with pytest.raises(UriError) as caught:
            parse(case["uri"], files)
        assert [caught.value.parameter, caught.value.problem.value] == case["error"]
    else:
        assert asdict(parse(case["uri"], files)) == VECTORS["defaults"] | case["normal"]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(user=TEXT, password=TEXT, database=TEXT, port=st.integers(1, 65535))
def test_round_trip(user: str, password: str, database: str, port: int) -> None:
    def enc(text: str) -> str:
        return quote(text, safe="")

    uri = parse(f"mysql://{enc(user)}:{enc(password)}@h:{port}/{enc(database)}")
    assert (uri.user, uri.password, uri.database, uri.port) == (user, password, database, port)
    assert repr(uri) == "MysqlUri()"


@given(st.text(st.sampled_from("mysql://u:p@h/d?=&%20,[]#ü\0ssl-mode"), max_size=40))
def test_only_uri_errors(text: str) -> None:
    for candidate in (text, f"mysql://{text}", f"mysql://u@h/d?{text}"):
        try:
            uri = parse(candidate)
        except UriError:
            continue
        assert uri.host
        assert uri.user
