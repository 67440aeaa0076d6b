"""That the gate tells which ways it took, and fails for one that it never took; its certificate."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_loadtest import cases
from tailrace_loadtest.differential import api, certificate
from tailrace_loadtest.differential.__main__ import APIS, BURSTS, ORDERED, OVER_TLS, expected
from tailrace_loadtest.differential.coverage import Coverage, engine

RUN = Run(
    Epoch(1), Sequence(1), 1, 1, 1, 1, "q", "v", "k", "shop", 200, "", 1, 3, 1, "", ClientClass.LOOPBACK, ServedBy.DATA_PLANE, None
)  # fmt: skip
ENGINES = {"shop": "PostgreSQL", "lite": "SQLite"}


def test_what_is_expected_and_never_was_is_told() -> None:
    coverage = Coverage()
    coverage.expect(("http1", "http2 over TLS", "shared on PostgreSQL", "kept answers", "not modified", "in bulk", "SQLite"))
    assert coverage.missing() == list(coverage.expected)
    coverage.asked({"http1": 3}, 2, is_tls=False)
    coverage.asked({"http2": 4}, 0, is_tls=True)
    coverage.recorded(replace(RUN, batch=7), ENGINES)
    coverage.recorded(replace(RUN, batch=0), ENGINES)
    coverage.recorded(replace(RUN, batch=0, status=304), ENGINES)
    assert coverage.missing() == ["SQLite"]
    coverage.recorded(replace(RUN, connection="lite", status=404), ENGINES)
    assert coverage.missing() == ["SQLite"], "a failure shows nothing of an engine"
    coverage.recorded(replace(RUN, connection="lite"), ENGINES)
    assert coverage.missing() == []
    assert "http1 3" in coverage.described()
    assert "http2 over TLS 4" in coverage.described()
    assert "shared on PostgreSQL 1" in coverage.described()


def test_both_halves_of_the_gate_expect_every_way() -> None:
    urls = {
        "shop": "postgresql://a",
        "types": "postgresql://a",
        "lite": "sqlite:///a",
        "storage": "sqlite:///a",
        "maria": "mysql://a",
        "six": "mysql://a",
    }
    for half, engines in (("others", {"PostgreSQL", "SQLite"}), ("mysql", {"MySQL"})):
        names: set[str] = set()
        for name in APIS[half]:
            described = api.read(cases.path(f"{name}.yaml"), ORDERED[name])
            kinds = {each: engine(urls[secret.removesuffix("-db")]) for each, secret in described.secrets.items()}
            names |= set(expected(described, kinds, name, ("http1", "pipelined", "http2")))
        ways = {"http1", "pipelined", "http2"}
        assert names >= ways | {f"{way} over TLS" for way in ways} | {"in bulk", "kept answers", "not modified"} | engines
        assert any(name.startswith("shared on ") for name in names)
    assert set(BURSTS) | set(OVER_TLS) <= set(APIS["all"])


def test_the_certificate_is_trusted_and_only_tls_is_added(tmp_path: Path) -> None:
    made = certificate.make(tmp_path)
    assert set(made.secret()) == {"tls.crt", "tls.key"}
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.chain, made.key)
    ssl.create_default_context(cafile=made.chain)
    served = certificate.served(cases.path("six.yaml"), tmp_path).read_text()
    assert served.replace(f"\n  http: {{tls: {{secretName: {certificate.SECRET}}}}}", "") == cases.path("six.yaml").read_text()
    assert certificate.SECRET in served
    with pytest.raises(ValueError, match="run store"):
        certificate.served(tmp_path / "six.yaml", tmp_path)
