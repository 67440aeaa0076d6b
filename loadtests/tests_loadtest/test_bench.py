"""The parts of the figures that are pure, and the yardstick's server."""

import json
import os
import re
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract import document
from tailrace_loadtest import cases
from tailrace_loadtest.bench import __main__ as program
from tailrace_loadtest.bench import chart, curves, scale
from tailrace_loadtest.bench.bars import judge
from tailrace_loadtest.bench.case import BadCase, Case, Load, parse
from tailrace_loadtest.bench.case import bars as all_bars
from tailrace_loadtest.bench.curves import Point
from tailrace_loadtest.bench.rounds import Results, calls_per_cpu_second, wanted
from tailrace_loadtest.bench.verdict import Range, at_most, lowest, times
from tailrace_loadtest.servers.nginx import Nginx
from tailrace_loadtest.servers.postgres import ServerMissing


def test_the_large_api_is_valid_and_an_edition_changes_one_query(tmp_path: Path) -> None:
    made = [scale.api(40, 5), scale.key(7, 5, suspended=True), scale.STORE]
    scale.write(tmp_path / "api.yaml", made)
    for each in yaml.safe_load_all((tmp_path / "api.yaml").read_text()):
        assert not isinstance(document.read(each), list)
    one, two = (scale.api(40, 5, edition)["spec"]["queries"] for edition in (0, 1))
    assert [a["name"] for a, b in zip(one, two, strict=True) if a != b] == ["user_0001"]


def report(us: float, right: int = 1000, p99: float = 1.0, **more: object) -> dict[str, Any]:
    """A generator's report, as far as the bars look at it."""
    cpu = {name: {"us_per_call": us} for name in ("server", "database", "python")}
    errors = {"refused": 0}
    return {
        "answered": 1000, "right": right, "wrong": 1000 - right, "other_status": 0, "errors": errors, "without_run_id": 0, "cpu": cpu,
        "latency_ms": {"p50": 0.1, "p99": p99, "p999": 9.0}, "behind_ms": {"p50": 0.0, "p99": 0.1}, "answered_ms": {"p50": 0.1, "p99": p99 - 0.1}, "delivered": 1.0, "void": False,
        "achieved_rate": 1000.0, "own_us_per_call": 2.0, **more,
    }  # fmt: skip


def played(case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Results:
    """Every load of the case with these reports."""
    results = Results()
    for load, beside in case.loads:
        results.reports[load, "tailrace"] = ours
        for name in beside:
            results.reports[load, name] = theirs
    return results


CASES = {case.id: case for case in all_bars()}


def test_every_bar_of_the_acceptance_rows_has_a_case() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "acceptance.md").read_text()
    assert set(re.findall(r"^\| FB-(\S+) ", rows, re.MULTILINE)) == set(CASES)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": "a", "measure": "guess", "goals": {"least": 1}},
        {"id": "a", "measure": "times"},
        {"id": "a", "measure": "times", "goals": {"nginx": 1}, "extra": 1},
        {"id": "a", "measure": "times", "goals": {"nginx": 1}, "database": "oracle"},
        {"id": "a", "measure": "times", "goals": {"nginx": 1}, "loads": [{"depth": 1}]},
        {"id": "a", "measure": "times", "goals": {"nginx": 1}, "loads": [{"query": "user", "speed": 1}]},
        {"id": "a", "measure": "times", "goals": {"nginx": 1}, "loads": [{"query": "user", "rate": -1}]},
    ],
)
def test_a_row_that_would_measure_something_else_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(BadCase):
        parse([row])
    good = {"id": "a", "measure": "times", "goals": {"nginx": 1}, "loads": [{"query": "user"}]}
    assert parse([good])[0].loads[0][0] == Load("user")
    with pytest.raises(BadCase, match="twice"):
        parse([good, good])


def test_a_ratio_counts_only_when_the_ranges_do_not_overlap() -> None:
    good = times("a", [120.0, 121.0], [100.0, 101.0], 1.1, "nginx")
    assert good.met
    assert good.line() == "bar a: 1.2 (1.2–1.2) × nginx goal ≥ 1.1 met"
    overlapping = times("a", [120.0, 200.0], [100.0, 150.0], 1.1, "nginx")
    assert not overlapping.met
    assert overlapping.line().endswith("short (the ranges overlap: no difference)")
    assert times("a", [97.0], [100.0], 0.97, "plain").met
    assert not times("a", [96.0], [100.0], 0.97, "plain").met
    assert not lowest("a", Range.of([1, 2]), {"x": Range.of([2, 3])}, "ms").met
    assert lowest("a", Range.of([1, 2]), {"x": Range.of([2.1, 3])}, "ms").met
    assert not lowest("a", Range.of([1, 2]), {}, "ms").met, "alone nobody is the lowest"


@given(st.lists(st.floats(0.001, 1e9), min_size=1, max_size=9))
def test_a_range_encloses_its_median(values: list[float]) -> None:
    found = Range.of(values)
    assert found.low <= found.median <= found.high
    assert not found.is_below(found)


def test_bars_of_loads() -> None:
    fast, slow = [report(5.0), report(5.1)], [report(50.0, p99=5.0), report(51.0, p99=6.0)]
    for name in ("plain", "plain-40k", "peers", "own", "governed", "db", "open", "p99", "page"):
        case = CASES[name]
        assert judge(case, played(case, fast, slow)).met is (name != "peers"), name
    peers = judge(CASES["peers"], played(CASES["peers"], fast, slow))
    assert "10 × dataloader · 10 × mq_bridge" in peers.value
    assert not peers.met
    assert not judge(CASES["plain"], played(CASES["plain"], slow, fast)).met


def test_each_figure_is_also_told_by_its_goal() -> None:
    ours, better = [report(5.0, p99=2.0)], [report(5.0, p99=1.0)]
    plain, p99, db = (judge(CASES[name], played(CASES[name], ours, better)) for name in ("plain", "p99", "db"))
    assert [(part.what, part.ratio.median) for part in plain.to_goal] == [("× nginx", pytest.approx(1 / 1.1))]
    assert p99.to_goal[0].ratio.median == 0.5, "twice the best other's is half the goal"
    assert p99.value.endswith("sent 0.1 ms late, 1.9 ms from the send (p99)")
    assert db.to_goal[0].ratio.median == pytest.approx(6 / 5), "a figure that is to be low is better above 1 as well"
    assert db.to_json()["to_goal"][0]["what"] == "µs of database CPU a look-up"
    assert at_most("a", Range.of([-1.0, 0.0]), 1.0, "ms").to_goal == (), "nothing has no place on a logarithmic scale"
    wrong = judge(CASES["plain"], played(CASES["plain"], [report(5.0, right=999)], better))
    assert not wrong.met
    assert wrong.to_goal


def test_a_curve_collapses_when_it_falls_below_half_of_its_best() -> None:
    def points(*costs: float) -> list[Point]:
        return [Point(10.0**n, [report(us)]) for n, us in enumerate(costs)]

    assert curves.verdict("clients", "calls", points(50.0, 10.0, 19.0)).met
    assert not curves.verdict("clients", "calls", points(50.0, 10.0, 21.0)).met
    assert curves.verdict("clients", "calls", points(10.0, 10.0)).line() == (
        "bar curve-clients: 1: 100,000, 10: 100,000 calls goal none collapses met"
    )
    assert not curves.verdict("clients", "calls", [Point(1, [report(10.0, right=999)])]).met, "wrong answers"
    assert not curves.verdict("clients", "calls", []).met
    assert Point(1, [report(10.0)], each=100).per_cpu.median == 10_000_000


def test_wrong_answers_are_never_met() -> None:
    case = CASES["plain"]
    found = judge(case, played(case, [report(1.0, right=999)], [report(50.0)]))
    assert not found.met
    assert "1 wrong answers" in found.note
    assert calls_per_cpu_second(report(10.0, right=500), ("server",)) == 50_000
    assert not judge(case, Results()).met


def test_a_load_is_played_once_for_all_bars_that_look_at_it() -> None:
    loads = wanted([CASES["plain"], CASES["peers"], CASES["db"]])
    assert list(loads) == [Load("user")]
    assert loads[Load("user")][:3] == ["tailrace", "nginx", "dataloader"]


def test_charts_are_to_scale() -> None:
    drawn = ET.fromstring(
        chart.ranges("a < b", "calls", [("one", 9.0, 10.0, 11.0), ("two & three", 90.0, 100.0, 110.0), ("none", 0, 0, 0)])
    )
    at = [float(each.attrib["cx"]) for each in drawn.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(at) == 2
    one, two = chart.decades(9.0, 110.0)
    width = chart.WIDTH - chart.LEFT - chart.RIGHT
    assert at[1] - at[0] == pytest.approx(width / (two - one), abs=0.2)
    curve = ET.fromstring(chart.curves("c", "clients", "calls/s", {"ours": [(1, 10.0), (64, 1000.0)], "none": []}))
    assert len(list(curve.iter("{http://www.w3.org/2000/svg}circle"))) == 2


def test_what_the_bench_serves_is_valid() -> None:
    for each in yaml.safe_load_all(cases.path("bench.yaml").read_text()):
        assert not isinstance(document.read(each), list)


def test_nginx_answers() -> None:
    try:
        server = Nginx()
    except ServerMissing as missing:
        pytest.fail(str(missing)) if os.environ.get("CI") else pytest.skip(str(missing))
    with server, urllib.request.urlopen(f"{server.url}/q/user?path=x", timeout=5) as answer:
        assert b'"tier"' in answer.read()


@pytest.mark.postgres
@pytest.mark.dataplane
@pytest.mark.timeout(600)
def test_a_small_run_ends_with_a_line_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it all holds together; what it measures on the way is nobody's business."""
    monkeypatch.setattr("sys.argv", ["bench", "--small", "--only", "own", "recorded", "answer", "--output", str(tmp_path)])
    program.main()
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["bar own", "bar recorded", "bar curve-answer"]
    assert "(0 missing, 0 doubled)" in lines[1]
    found = json.loads((tmp_path / "bench.json").read_text())
    assert set(found["bars"]) == {"own", "recorded", "curve-answer"}
    assert found["loads"][0]["wrong"] == 0
    for name in ("bench.svg", "curve-answer.svg"):
        ET.fromstring((tmp_path / name).read_text())
