"""References of a QueryAPI and what is told when they lead nowhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tailrace_contract.document import read
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.runstore import RunStoreSpec
from tailrace_operator.problems import Problem, Secrets, invalid_spec, of_secrets
from tailrace_operator.references import References, SecretKey, of_query_api, of_run_store

GOLDEN = Path(__file__).parent / "golden" / "render"
VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "crds/golden/vectors/postgres_uri.json").read_text())
POSTGRES = RunStoreSpec.model_validate_json('{"postgres":{"urlFrom":{"secretKeyRef":{"name":"runs-db","key":"dsn"}}}}')
GOOD = b"postgresql://me:pw@db/shop\n"
ONE = References((SecretKey("db", "url", "connection orders", is_url=True),))


def api() -> QueryAPI:
    found = read(next(iter(yaml.safe_load_all((GOLDEN / "full.in.yaml").read_text()))))
    assert isinstance(found, QueryAPI)
    return found


def test_all_references_of_an_api_and_its_store() -> None:
    found = of_query_api(api(), POSTGRES)
    long = "a-name-as-long-as-secrets-may-have-but-volumes-in-a-pod-may-not-have"
    assert [(each.secret, each.key, each.is_url) for each in found.keys] == [
        (long, "url", True),
        ("corporate.ca", "ca.pem", False),
        ("orders-client", "tls.crt", False),
        ("orders-client", "tls.key", False),
        ("orders-db", "url", True),
        ("runs-db", "dsn", True),
    ]
    assert found.secrets == (long, "corporate.ca", "orders-client", "orders-db", "runs-db")
    assert found.config_maps == ("more.queries", "shop-queries")
    assert of_query_api(api(), None).secrets == (long, "corporate.ca", "orders-client", "orders-db")


def test_references_of_a_store() -> None:
    assert of_run_store(POSTGRES).keys == (SecretKey("runs-db", "dsn", "postgres", is_url=True),)
    assert of_run_store(RunStoreSpec.model_validate_json('{"embedded":{}}')).keys == ()


@pytest.mark.parametrize(
    ("secrets", "reason", "words", "is_stalled"),
    [
        ({"db": {"url": GOOD}}, None, "", False),
        ({}, "SecretNotFound", "Secret db (connection orders) is not there", False),
        ({"db": None}, "SecretNotFound", "Secret db (connection orders) is not there", False),
        ({"db": {"URL": GOOD}}, "SecretKeyNotFound", "Secret db has no key url (connection orders)", False),
        ({"db": {"url": b"sqlite:///shop.db"}}, "SqliteInCluster", "for local use only", True),
        ({"db": {"url": b""}}, "InvalidUrl", "not a database's URL", True),
        ({"db": {"url": b"oracle://me@db/shop"}}, "InvalidUrl", "not a database's URL", True),
        ({"db": {"url": b"mysql://me@db/shop?ssl-mode=required"}}, None, "", False),
        ({"db": {"url": b"mysql://me@db"}}, "InvalidUrl", "database: missing", True),
        ({"db": {"url": b"\xff\xfe"}}, "InvalidUrl", "not a database's URL", True),
        ({"db": {"url": b"postgresql://me@db/" + b"x" * 20_000}}, "InvalidUrl", "not a database's URL", True),
        ({"db": {"url": b"postgresql:me@db"}}, "InvalidUrl", "url: malformed", True),
        ({"db": {"url": b"postgresql://db/shop"}}, "InvalidUrl", "user: missing", True),
        ({"db": {"url": b"postgresql://me@db/shop?sslmode=maybe"}}, "InvalidUrl", "sslmode: malformed", True),
    ],
)
def test_secrets(secrets: Secrets, reason: str | None, words: str, is_stalled: bool) -> None:
    found = of_secrets(ONE, secrets)
    assert [each.reason for each in found] == ([] if reason is None else [reason])
    for each in found:
        assert words in each.message
        assert each.is_stalled is is_stalled


def test_a_missing_secret_is_told_once_and_each_missing_key() -> None:
    keys = tuple(SecretKey("client", key, "tls") for key in ("tls.crt", "tls.key"))
    assert len(of_secrets(References(keys), {})) == 1
    assert [each.message for each in of_secrets(References(keys), {"client": {}})] == [
        "Secret client has no key tls.crt (tls)",
        "Secret client has no key tls.key (tls)",
    ]


def test_certificates_of_the_spec_stand_for_those_of_the_url() -> None:
    url = {"db": {"url": b"postgresql://me@db/shop?sslmode=verify-full"}}
    assert [each.message.rsplit(": ", 2)[1:] for each in of_secrets(ONE, url)] == [["sslrootcert", "missing"]]
    assert of_secrets(References((SecretKey("db", "url", "x", is_url=True, has_ca=True),)), url) == ()
    assert of_secrets(References((SecretKey("db", "url", "x", is_url=True, has_ca=True, has_certificate=True),)), url) == ()
    uses = [(each.secret, each.has_ca, each.has_certificate) for each in of_query_api(api(), None).keys if each.is_url]
    assert uses[-1] == ("orders-db", True, True)
    assert uses[0][1:] == (False, False)


def test_the_gateways_verdict_on_every_url() -> None:
    """Whatever the vectors say of a URL, so says the operator."""
    checked = 0
    for case in VECTORS["cases"]:
        if "files" in case:
            continue
        found: tuple[Problem, ...] = of_secrets(ONE, {"db": {"url": case["uri"].encode()}})
        assert bool(found) == ("normal" not in case), case
        checked += 1
    assert checked > 50


def test_findings_are_told_with_place_and_remedy() -> None:
    document = next(iter(yaml.safe_load_all((GOLDEN / "full.in.yaml").read_text())))
    document["spec"]["queries"][0]["params"]["id"]["minimum"] = "x"
    findings = read(document)
    assert isinstance(findings, list)
    problem = invalid_spec(findings)
    assert problem.message.startswith("spec.queries[0].params.id.minimum: ")
    assert problem.is_stalled
