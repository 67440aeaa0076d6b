"""The parts of the figures that are pure, and the yardstick's server."""

import os
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from tailrace_contract import document
from tailrace_loadtest.bench import __main__ as bench
from tailrace_loadtest.bench import chart, scale
from tailrace_loadtest.servers.nginx import Nginx
from tailrace_loadtest.servers.postgres import ServerMissing


def test_the_large_api_is_valid_and_an_edition_changes_one_query(tmp_path: Path) -> None:
    made = [scale.api(40, 5), scale.key(7, 5, suspended=True), scale.STORE]
    scale.write(tmp_path / "api.yaml", made)
    for each in yaml.safe_load_all((tmp_path / "api.yaml").read_text()):
        assert not isinstance(document.read(each), list)
    one, two = (scale.api(40, 5, edition)["spec"]["queries"] for edition in (0, 1))
    assert [a["name"] for a, b in zip(one, two, strict=True) if a != b] == ["user_0001"]


def test_bars_are_drawn_to_scale() -> None:
    drawn = ET.fromstring(chart.bars("a < b", "calls", [("one", 10.0), ("two & three", 5.0)]))
    lengths = [float(each.attrib["width"]) for each in drawn.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert lengths[0] == 2 * lengths[1] > 0


def test_a_missed_bar_is_said() -> None:
    good = {"server": "tailrace", "depth": 1, "calls_per_server_cpu_s": 90_000, "wrong": 0, "without_run_id": 0}
    results = {"flat": [good], "alone": {"added_p50_ms": 0.1}, "memory": {"data_plane_rss_mb": 20.0, "keys": 1}}
    assert bench.verdicts(results, False) == []
    bad = {
        "flat": [good | {"calls_per_server_cpu_s": 79_999, "without_run_id": 1}],
        "alone": {"added_p50_ms": 0.16},
        "memory": {"data_plane_rss_mb": 25.1, "keys": 1},
    }
    assert len(bench.verdicts(bad, False)) == 4


def test_nginx_answers() -> None:
    try:
        server = Nginx()
    except ServerMissing as missing:
        pytest.fail(str(missing)) if os.environ.get("CI") else pytest.skip(str(missing))
    with server, urllib.request.urlopen(f"{server.url}/q/user?path=x", timeout=5) as answer:
        assert b'"tier"' in answer.read()
