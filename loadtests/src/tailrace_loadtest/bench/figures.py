"""`python -m tailrace_loadtest.bench.figures`: what docs/performance.md shows of a run, from its JSON. IO: reads and writes docs/figures and
the pictures' place in docs/performance.md.

`--from A B …` takes results of runs into docs/figures/bench.json (a bar or load of a later file replaces an earlier one's; each says where it was
taken; the committed file is kept by naming it first), then draws. Without it what is committed is drawn again; `--check` writes nothing and
fails (exit 1) when a drawing isn't what bench.json gives.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace_loadtest.bench import chart
from tailrace_loadtest.generator import ROOT

FOLDER = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by make bench-figures -->", "<!-- /figures -->"
KEPT, GOALS = "bench.json", "goals.svg"
CURVE = "curve-"
UNITS = {"rows": "rows", "answer": "rows a page", "distance": "ms of round trip"}
Results = dict[str, Any]


def _taken(results: Mapping[str, Any]) -> dict[str, Any]:
    """Where and how a run was taken, beside each of its figures."""
    machine = results["machine"]
    return {
        "commit": machine["commit"], "cpu": machine["cpu"], "cores": machine["cores"], "kernel": machine["kernel"],
        "load_average": machine["load_average"][0], "rounds": results["rounds"], "seconds": results["seconds"], "rows": results["rows"],
    }  # fmt: skip


def _finite(value: Any) -> Any:
    """JSON has no infinity: p99 of a round that nothing came of is nothing."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reduced(results: Mapping[str, Any]) -> Results:
    """What the docs need of a run. Of a file that was reduced before it is the same again."""
    if "machine" not in results:
        return {"bars": dict(results["bars"]), "loads": list(results["loads"])}
    results = _finite(results)
    taken = _taken(results)
    bars = {
        name: {key: bar[key] for key in ("value", "goal", "met", "note")}
        | {"to_goal": [part for part in bar["to_goal"] if None not in part.values()]}
        | ({"points": bar["details"]} if name.startswith(CURVE) else {})
        | {"taken": taken}
        for name, bar in results["bars"].items()
    }
    return {"bars": bars, "loads": [{**row, "taken": taken} for row in results.get("loads", [])]}


def merged(runs: Sequence[Results]) -> Results:
    """Later ones replace what they measured anew."""
    bars: dict[str, Any] = {}
    loads: dict[tuple[str, str], Any] = {}
    for run in runs:
        bars |= run["bars"]
        loads |= {(row["load"], row["server"]): row for row in run["loads"]}
    return {"bars": bars, "loads": list(loads.values())}


def _goals(bars: Mapping[str, Any]) -> str:
    rows = [(f"{name}: {part['what']}", part["low"], part["median"], part["high"]) for name, bar in bars.items() for part in bar["to_goal"]]
    return chart.ranges("Each bar by its goal (log scale; right of the line is better than it)", "×", rows, goal=1.0)


def _loads(loads: Sequence[Mapping[str, Any]], name: str) -> str:
    spans = [(row["server"], row["calls_per_server_cpu_s"]) for row in loads if row["load"] == name]
    rows = sorted(((server, span["low"], span["median"], span["high"]) for server, span in spans), key=lambda row: -row[2])
    return chart.ranges(f"Calls per CPU-second of the server: {name} (log scale)", "", rows)


def drawings(found: Results) -> dict[str, str]:
    """Every file that follows from the results, by name."""
    made = {}
    if any(bar["to_goal"] for bar in found["bars"].values()):
        made[GOALS] = _goals(found["bars"])
    beside: dict[str, set[str]] = {}
    for row in found["loads"]:
        beside.setdefault(row["load"], set()).add(row["server"])
    for name in (name for name, servers in beside.items() if len(servers) > 1):
        made[f"load-{''.join(each if each.isalnum() else '-' for each in name)}.svg"] = _loads(found["loads"], name)
    for name, bar in found["bars"].items():
        if name.startswith(CURVE) and bar["points"]:
            what = name.removeprefix(CURVE)
            line = [(float(point["x"]), float(point["per_cpu"]["median"])) for point in bar["points"]]
            title = f"Work per CPU-second of the data plane by {what} (log scale)"
            made[f"{name}.svg"] = chart.curves(title, UNITS.get(what, what), "per CPU-second", {"tailrace": line})
    made["README.md"] = page(found, sorted(name for name in made if name.endswith(".svg")))
    return made


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def page(found: Results, pictures: Sequence[str]) -> str:
    """The table and the pictures, as Markdown."""
    lines = [
        "# Figures of `make bench`",
        "",
        "Drawn from [bench.json](bench.json) by `make bench-figures`; not edited by hand. How it is measured and what it means: "
        "[performance.md](../performance.md).",
        "",
        "| bar | what came out | goal | | at | rounds × s | load before |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, bar in found["bars"].items():
        taken = bar["taken"]
        said = f"{'met' if bar['met'] else 'short'}{': ' + bar['note'] if bar['note'] else ''}"
        cells = (f"`{name}`", bar["value"], bar["goal"], said, taken["commit"], f"{taken['rounds']} × {taken['seconds']:g}",
                 f"{taken['load_average']:.1f}")  # fmt: skip
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join([*lines, "", *(f"![{name.removesuffix('.svg')}]({name})\n" for name in pictures)]).rstrip("\n") + "\n"


def shown(text: str, pictures: Sequence[str]) -> str:
    """The page of performance with these pictures between its marks (ValueError: it has none)."""
    head, begin, rest = text.partition(BEGIN + "\n")
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    lines = ["The table that these are drawn from: [figures](figures/README.md).", "", *(f"![{each}](figures/{each})" for each in pictures)]
    return head + begin + ("\n".join(lines) + "\n" if pictures else "") + end + tail


def stale(folder: Path, made: Mapping[str, str]) -> list[str]:
    """Names whose file isn't there, isn't this, or follows from nothing any more."""
    there = {path.name for path in folder.iterdir() if path.suffix in (".svg", ".md")}
    return sorted(
        name for name in there | made.keys() if name not in made or name not in there or (folder / name).read_text() != made[name]
    )


def update(folder: Path, text: Path, sources: Sequence[Path], check: bool) -> list[str]:
    """Takes in, then writes or checks; names of files that were or are not up to date, `text` (the page) among them.

    A folder without results has none.
    """
    kept = folder / KEPT
    if sources:
        found = merged([reduced(json.loads(source.read_text())) for source in sources])
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    elif not kept.exists():
        return []
    made = drawings(json.loads(kept.read_text()))
    names = stale(folder, made)
    now = text.read_text()
    wanted = shown(now, sorted((name for name in made if name.endswith(".svg")), key=lambda name: (name != GOALS, name)))
    if not check:
        text.write_text(wanted)
        for name in names:
            if name in made:
                (folder / name).write_text(made[name])
            else:
                (folder / name).unlink()
    return names + [text.name] * (wanted != now)


def main() -> int:
    """Parses the command line."""
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.bench.figures", description=(__doc__ or "").splitlines()[0])
    cli.add_argument(
        "--from", dest="sources", nargs="+", type=Path, default=[], metavar="JSON", help="results to take in, e.g. .bench/bench.json"
    )
    cli.add_argument("--check", action="store_true", help="write nothing; exit 1 when a drawing is not what bench.json gives")
    given = cli.parse_args()
    if given.check and given.sources:
        cli.error("--check takes nothing in")
    names = update(FOLDER, PAGE, given.sources, given.check)
    for name in names:
        print(f"{'not up to date' if given.check else 'written'}: {name}")  # noqa: T201
    return int(given.check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
