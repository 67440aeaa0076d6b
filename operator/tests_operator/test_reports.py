"""What a pod says, read with suspicion."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.report import GatewayReport as Written
from tailrace_contract.report import QueriesReport, RefusedReport, StoppedReport
from tailrace_operator.reports import GatewayReport, PodReport, merged, read_report

FULL: dict[str, Any] = {
    "version": "0.1.0",
    "ready": True,
    "gatewayUp": True,
    "snapshot": {
        "version": 9,
        "refused": 0,
        "sources": [
            {"kind": "QueryAPI", "namespace": "retail", "name": "shop", "uid": "6f1f", "generation": 7, "resourceVersion": "800"},
            {"kind": "ApiKeys", "namespace": "retail", "name": "", "uid": "", "generation": 0, "resourceVersion": "812"},
            {"kind": "ApiKeys", "namespace": "team-a", "resourceVersion": "9007199254740993"},
            {"kind": "Config", "namespace": "", "name": "retail/queries", "resourceVersion": "f00"},
            {"kind": "Later", "namespace": "retail", "name": "x"},
        ],
    },
    "gateway": {
        "queries": {"total": 6, "served": 5, "refused": [{"name": "orders", "role": None, "code": "unknown_table", "message": "no table"}]},
        "keys": 2,
        "stale": False,
    },
    "spool": {"bytes": 0},
}


def said(**changes: Any) -> PodReport:
    return read_report(json.dumps({**FULL, **changes}).encode())


def test_all_of_it() -> None:
    report = said()
    assert (report.uid, report.generation, report.is_gateway_up) == ("6f1f", 7, True)
    assert report.api_keys == {"retail": 812, "team-a": 9007199254740993}
    assert report.configs == {"retail/queries": "f00"}
    assert report.gateway is not None
    assert (report.gateway.queries.total, report.gateway.queries.served, report.gateway.keys) == (6, 5, 2)
    assert [(each.name, each.role, each.message) for each in report.gateway.queries.refused] == [("orders", "", "no table")]
    assert not report.gateway.is_stale


def test_what_the_gateway_writes_is_read() -> None:
    """The gateway's own type, through the data plane's `/status`."""
    refused = RefusedReport(name="orders", code="unknown_table", message="no table")
    gateway = Written(
        queries=QueriesReport(total=6, served=5, coalesced=3, refused=(refused,), stopped=(StoppedReport(name="a", reason="unequal"),)),
        keys=2,
        stale=True,
    )
    found = said(gateway=json.loads(gateway.model_dump_json(by_alias=True))).gateway
    assert found is not None
    assert (found.queries.total, found.queries.served, found.keys, found.is_stale) == (6, 5, 2, True)
    assert (found.queries.coalesced, found.stopped) == (3, {("a", "unequal")})
    assert [(each.name, each.role, each.code, each.message) for each in found.queries.refused] == [
        ("orders", "", "unknown_table", "no table")
    ]


def test_before_the_first_plan_nothing_is_acknowledged() -> None:
    report = said(snapshot=None, gateway=None, gatewayUp=False)
    assert report == PodReport()
    assert not report.has_generation("", -1, {})
    assert not report.has_keys("", "retail", -1)


@pytest.mark.parametrize(
    ("uid", "generation", "configs", "expected"),
    [
        ("6f1f", 7, {}, True),
        ("6f1f", 6, {}, True),
        ("6f1f", 8, {}, False),
        ("other", 7, {}, False),
        ("6f1f", 7, {"retail/queries": "f00"}, True),
        ("6f1f", 7, {"retail/queries": "f01"}, False),
        ("6f1f", 7, {"retail/more": "f00"}, False),
    ],
)
def test_generations(uid: str, generation: int, configs: dict[str, str], expected: bool) -> None:
    assert said().has_generation(uid, generation, configs) is expected
    assert not said(gateway=None).has_generation(uid, generation, configs)


@pytest.mark.parametrize(
    ("namespace", "version", "expected"),
    [
        ("retail", 812, True),
        ("retail", 99, True),
        ("retail", 813, False),
        ("team-a", 9007199254740993, True),
        ("team-a", 9007199254740994, False),
        ("x", 0, False),
    ],
)
def test_keys_compare_as_integers(namespace: str, version: int, expected: bool) -> None:
    assert said().has_keys("6f1f", namespace, version) is expected
    assert not said().has_keys("other", namespace, version)
    assert not said(gateway=None).has_keys("6f1f", namespace, version)


@pytest.mark.parametrize("version", ["", "-1", "1.5", "x", "١", "9" * 30])
def test_a_version_that_is_none_acknowledges_nothing(version: str) -> None:
    sources = [FULL["snapshot"]["sources"][0], {"kind": "ApiKeys", "namespace": "retail", "resourceVersion": version}]
    assert not said(snapshot={"sources": sources}).has_keys("6f1f", "retail", 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"snapshot": 1}',
        b'{"snapshot": {"sources": [1]}}',
        b'{"gateway": {"keys": -1}}',
        b'{"gatewayUp": "yes"}',
    ],
)
def test_what_is_no_report(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a data plane's status"):
        read_report(body)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["snapshot", "gateway", "sources", "keys", "queries", "kind"]), inner)))  # fmt: skip
def test_anything_is_a_report_or_refused(body: object) -> None:
    try:
        read_report(json.dumps(body).encode())
    except ValueError as error:
        assert "not a data plane's status" in str(error)  # noqa: PT017 - either is right


def test_texts_are_bounded() -> None:
    refused = [{"name": "n" * 3000, "role": "r" * 3000, "code": "c", "message": "m" * 3000}]
    report = said(gateway={"queries": {"total": 1, "served": 0, "refused": refused}, "keys": 0, "stale": True})
    assert report.gateway is not None
    assert report.gateway.is_stale
    (one,) = report.gateway.queries.refused
    assert (len(one.name), len(one.role), len(one.message)) == (253, 253, 512)


def test_over_several_pods_the_worst_counts() -> None:
    def gateway(served: int, keys: int, *names: str) -> GatewayReport:
        refused = [{"name": name, "code": "c", "message": "m"} for name in names]
        found = said(gateway={"queries": {"total": 6, "served": served, "refused": refused}, "keys": keys}).gateway
        assert found is not None
        return found

    found = merged((gateway(5, 3, "b"), gateway(4, 2, "c", "a"), gateway(6, 3)), 2)
    assert found is not None
    queries, keys = found
    assert (queries.total, queries.served, keys) == (6, 4, 2)
    assert [each.name for each in queries.refused] == ["a", "b"]
    assert merged((), 2) is None
