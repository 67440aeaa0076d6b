"""The URI grammar: golden vectors that Rust reads too, round trips, and nothing but UriError for any text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.postgres_uri import PARAMETERS, Files, PostgresUri, UriError, parse

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "crds/golden/vectors/postgres_uri.json").read_text())


def normal(uri: PostgresUri) -> dict[str, Any]:
    return asdict(uri) | {"hosts": [[host.name, host.port] for host in uri.hosts]}


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["uri"])
def test_vectors(case: dict[str, Any]) -> None:
    files = Files(**case.get("files", {}))
    if "error" in case:
        with pytest.raises(UriError) as caught:
            parse(case["uri"], files)
        assert [caught.value.parameter, caught.value.problem.value] == case["error"]
    else:
        assert normal(parse(case["uri"], files)) == VECTORS["defaults"] | case["normal"]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(user=TEXT, password=TEXT, dbname=TEXT, options=TEXT, port=st.integers(1, 65535))
def test_round_trip(user: str, password: str, dbname: str, options: str, port: int) -> None:
    def enc(text: str) -> str:
        return quote(text, safe="")

    uri = parse(f"postgresql://{enc(user)}:{enc(password)}@h:{port}/{enc(dbname)}?options={enc(options)}")
    assert (uri.user, uri.password, uri.dbname, uri.options, uri.hosts[0].port) == (user, password, dbname, options, port)


@given(st.text(st.sampled_from("postgres://u:p@h/d?=&%20,[]#ü\0sslmode"), max_size=40))
def test_only_uri_errors(text: str) -> None:
    for candidate in (text, f"postgres://{text}", f"postgres://u@h?{text}"):
        try:
            uri = parse(candidate)
        except UriError:
            continue
        assert uri.hosts
        assert uri.user


@pytest.mark.parametrize("case", [case for case in VECTORS["cases"] if "normal" in case], ids=lambda case: case["uri"])
def test_libpq_knows_the_keywords(case: dict[str, Any]) -> None:
    keywords = parse(case["uri"], Files(**case.get("files", {}))).keywords()
    assert psycopg.conninfo.conninfo_to_dict(psycopg.conninfo.make_conninfo(**keywords)) == keywords


def test_shows_nothing() -> None:
    uri = parse("postgres://someone:secret@inside/db")
    assert repr(uri) == "PostgresUri()"
    with pytest.raises(UriError) as caught:
        parse("postgres://someone:secret@inside/db?port=secret")
    assert "secret" not in str(caught.value)


def test_the_documentation_lists_every_parameter() -> None:
    page = (Path(__file__).parents[2] / "docs/postgres.md").read_text()
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert listed == list(PARAMETERS)
