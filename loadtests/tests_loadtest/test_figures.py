"""What the docs show of a run."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from tailrace_loadtest.bench import chart, figures
from tailrace_loadtest.bench.verdict import Range, Verdict, at_least, at_most

SVG = "{http://www.w3.org/2000/svg}"


def run(commit: str, *verdicts: Verdict, servers: tuple[str, ...] = ("tailrace", "nginx")) -> dict[str, Any]:
    """A bench.json, as far as the docs look at it."""
    span = {"low": 90.0, "median": 100.0, "high": 110.0}
    machine = {"commit": commit, "cpu": "a cpu", "cores": 2, "kernel": "6", "load_average": [0.5, 0.5, 0.5]}
    return {
        "machine": machine, "rounds": 3, "seconds": 2.0, "rows": 1000, "bars": {each.bar: each.to_json() for each in verdicts},
        "loads": [{"load": "user", "server": name, "calls_per_server_cpu_s": span, "p99_ms": {"median": float("inf")}} for name in servers],
    }  # fmt: skip


FAST, SLOW = at_least("own", Range.of([2.0]), 1.0, "calls"), at_most("p99", Range.of([4.0]), 1.0, "ms|p99")
CURVE = Verdict("curve-distance", "1", "none", True, details=[{"x": x, "per_cpu": {"median": 5.0}} for x in (0, 0.5)])


def page_in(folder: Path) -> Path:
    """A page with a place for pictures."""
    path = folder / "performance.md"
    path.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    return path


def written(folder: Path, name: str, results: dict[str, Any]) -> Path:
    """A results file."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(results))
    return path


def test_a_run_becomes_pictures_and_a_table(tmp_path: Path) -> None:
    folder, text = tmp_path / "figures", page_in(tmp_path)
    made = figures.update(folder, text, [written(tmp_path, "a", run("abc", FAST, SLOW, CURVE))], check=False)
    assert made == ["README.md", "curve-distance.svg", "goals.svg", "load-user.svg", "performance.md"]
    lines = text.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("before", "after", False)
    assert lines[4] == "![goals.svg](figures/goals.svg)", "the one of all bars is the first"
    goals = ET.fromstring((folder / "goals.svg").read_text())
    assert [dot.attrib["fill"] for dot in goals.iter(f"{SVG}circle")] == [chart.MET, chart.SHORT]
    page = (folder / "README.md").read_text()
    assert "| `own` | 2 calls | ≥ 1 | met | abc | 3 × 2 | 0.5 |" in page
    assert "ms\\|p99" in page, "a bar in a text is no column"
    for name in made[1:-1]:
        assert f"]({name})" in page
    curve = ET.fromstring((folder / "curve-distance.svg").read_text())
    texts = [text.text for text in curve.iter(f"{SVG}text")]
    assert "0" in texts, "a point at 0 has a place of its own"
    assert "ms of round trip" in texts


def test_a_later_run_replaces_what_it_measured_anew(tmp_path: Path) -> None:
    folder, text = tmp_path / "figures", page_in(tmp_path)
    figures.update(folder, text, [written(tmp_path, "a", run("abc", FAST, SLOW))], check=False)
    better = at_most("p99", Range.of([0.5]), 1.0, "ms")
    figures.update(folder, text, [folder / "bench.json", written(tmp_path, "b", run("def", better, servers=("nginx",)))], check=False)
    found = json.loads((folder / "bench.json").read_text())
    assert {name: (bar["taken"]["commit"], bar["met"]) for name, bar in found["bars"].items()} == {
        "own": ("abc", True),
        "p99": ("def", True),
    }
    assert [(row["server"], row["taken"]["commit"]) for row in found["loads"]] == [("tailrace", "abc"), ("nginx", "def")]


def test_a_drawing_that_does_not_follow_is_found(tmp_path: Path) -> None:
    assert figures.update(tmp_path / "none", tmp_path / "none.md", [], check=True) == [], "nothing was published yet"
    folder, text = tmp_path / "figures", page_in(tmp_path)
    figures.update(folder, text, [written(tmp_path, "a", run("abc", FAST))], check=False)
    assert figures.update(folder, text, [], check=True) == []
    (folder / "goals.svg").write_text("edited")
    (folder / "old.svg").write_text("of a row that is gone")
    (folder / "README.md").unlink()
    text = page_in(tmp_path)
    assert figures.update(folder, text, [], check=True) == ["README.md", "goals.svg", "old.svg", "performance.md"]
    figures.update(folder, text, [], check=False)
    assert figures.update(folder, text, [], check=True) == []
    assert not (folder / "old.svg").exists()


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        figures.shown("no marks", ["a.svg"])


def test_what_is_committed_is_up_to_date() -> None:
    assert figures.update(figures.FOLDER, figures.PAGE, [], check=True) == []
