"""`python -m tailrace_loadtest.bench`: each bar of docs/performance.md beside what others do, as a table, JSON and graphs.

Rounds are interleaved; a figure is the median of its rounds with its range. The last lines are `bar ID: VALUE goal GOAL met` or `… short`.
--only picks bars and curves by id; --quick takes about 3 minutes; --small is a look at whether everything runs. Exit 1: a bar is short.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace_loadtest.bench import bars, chart, curves, oha, overload, rounds, singles, stream
from tailrace_loadtest.bench.case import DATABASES, Case
from tailrace_loadtest.bench.case import bars as all_bars
from tailrace_loadtest.bench.session import Session, opened
from tailrace_loadtest.bench.verdict import Verdict
from tailrace_loadtest.generator import ROOT
from tailrace_loadtest.servers.postgres import ServerMissing

QUICK = ("plain", "plain-40k", "deep", "own", "db", "governed", "alone", "recorded")
MORE: Mapping[str, Callable[[Session, argparse.Namespace], Verdict]] = {
    "clients": lambda session, given: curves.clients(session, given.rounds, given.seconds / 2),
    "own-clients": lambda session, given: curves.own(session, given.rounds, given.seconds / 2),
    "queries": lambda session, given: curves.queries(session, given.rounds, given.seconds / 2, given.small),
    "keys": lambda session, given: curves.keys(session, given.rounds, given.seconds / 2, given.small),
    "answer": lambda session, given: curves.answers(session, given.rounds, given.seconds / 2),
    "distance": lambda session, given: curves.distance(session, given.rounds, given.seconds / 2),
    "rows": lambda session, given: curves.rows(session, given.rounds, given.seconds / 2),
    "overload": lambda session, given: overload.overload(session, given.rounds, given.seconds),
    "overload-far": lambda session, given: overload.far(session, given.rounds, given.seconds),
    "bulk": lambda session, given: singles.bulk(session, given.rounds, given.seconds),
    "oha": lambda session, given: oha.oha(session, given.rounds, given.seconds),
    "stream": lambda session, given: stream.stream(session, given.rounds, given.seconds),
}
"""What is measured beside the bars."""


def say(text: str) -> None:
    """One line on stdout."""
    print(text, flush=True)  # noqa: T201


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.machine(),
    )
    return {"commit": commit, "cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load_average": os.getloadavg()}


def shown(value: Any) -> str:
    """A cell: a range as median (low–high), a number with commas."""
    if isinstance(value, dict):
        low, median, high = (float(value[name]) for name in ("low", "median", "high"))
        return f"{median:,.4g}" if low == high else f"{median:,.4g} ({low:,.4g}–{high:,.4g})"
    return "" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Rows as a Markdown table of these columns."""
    lines = ["| " + " | ".join(shown(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *lines])


SHOWN = (
    "load",
    "server",
    "calls_per_s",
    "calls_per_server_cpu_s",
    "server_us",
    "database_us",
    "generator_us",
    "p50_ms",
    "p99_ms",
    "behind_p99_ms",
    "sent_p99_ms",
    "wrong",
)


def told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def single(case: Case, session: Session, options: argparse.Namespace) -> Verdict | None:
    """A bar that is no plain load; None when it is one."""
    match case.measure:
        case "forward":
            return singles.forward(case, session, options.rounds, options.seconds)
        case "poison":
            return singles.poison(case, session, options.rounds, options.seconds)
        case "memory":
            return singles.memory(case, session, options.small)
        case "alone":
            return singles.alone(case, session, options.rounds)
        case "recorded":
            return singles.recorded(case, session, options.seconds)
        case _:
            return None


def judged(cases: Sequence[Case], session: Session, options: argparse.Namespace, results: dict[str, Any]) -> list[Verdict]:
    """All bars of one database, in the file's order; `recorded` last, because it ends the stack."""
    loads = rounds.wanted([case for case in cases if case.loads])
    played = rounds.play(session, loads, options.rounds, options.seconds, say)
    results["loads"] = results.get("loads", []) + rounds.table(played)
    found: dict[str, Verdict] = {}
    for case in sorted(cases, key=lambda case: case.measure == "recorded"):
        try:
            if case.loads:
                found[case.id] = bars.judge(case, played)
            else:
                found[case.id] = single(case, session, options) or bars.absent(case, "nothing measures it")
        except Exception as error:
            # A run takes an hour: what breaks one row is told as its verdict, and the others go on.
            found[case.id] = bars.absent(case, told(error))
        say(found[case.id].line())
    return [found[case.id] for case in cases]


def more(session: Session, options: argparse.Namespace) -> list[Verdict]:
    """Curves and the rest that was chosen. What breaks one of them is told as its verdict, and the others go on."""
    found = []
    for name, measure in MORE.items():
        if name in options.only:
            try:
                found.append(measure(session, options))
            except Exception as error:
                found.append(Verdict(name, "not measured", "a figure", False, told(error)))
            say(found[-1].line())
    return found


def on(kind: str, cases: Sequence[Case], home: Path, options: argparse.Namespace, results: dict[str, Any]) -> list[Verdict]:
    """What was chosen of one database, bars first; a stack that can't be had is told as their verdict."""
    has_more = kind == "postgres" and set(MORE) & set(options.only)
    if not cases and not has_more:
        return []
    folder = home / kind
    folder.mkdir()
    try:
        with opened(options.rows, folder, kind) as session:
            others = more(session, options) if has_more else []
            found = judged(cases, session, options, results)
            results.setdefault("skipped", {}).update(session.missing)
            return found + others
    except (ServerMissing, RuntimeError) as error:
        return [bars.absent(case, told(error)) for case in cases]


def write(folder: Path, results: dict[str, Any]) -> None:
    """bench.json, and what can be drawn of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    spans = [(f"{row['server']}: {row['load']}", row["calls_per_server_cpu_s"]) for row in results.get("loads", [])]
    drawn = sorted(((name, span["low"], span["median"], span["high"]) for name, span in spans), key=lambda row: -row[2])
    if drawn:
        (folder / "bench.svg").write_text(chart.ranges("Calls per CPU-second of the server", "", drawn))
    lines = {name.removeprefix("curve-"): bar["details"] for name, bar in results.get("bars", {}).items() if name.startswith("curve-")}
    for name, points in lines.items():
        line = [(float(point["x"]), float(point["per_cpu"]["median"])) for point in points]
        drawing = chart.curves(f"Work per CPU-second of the data plane by {name}", name, "per CPU-second", {"tailrace": line})
        (folder / f"curve-{name}.svg").write_text(drawing)
    say(f"written to {folder}")


def run(options: argparse.Namespace) -> int:
    """Measures what was chosen; exit code 1 when a bar is short."""
    known = all_bars()
    chosen = [case for case in known if case.id in options.only]
    results: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "seconds": options.seconds, "rows": options.rows}
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir="/var/tmp") as home:
        for kind in DATABASES:
            verdicts += on(kind, [case for case in chosen if case.database == kind], Path(home), options, results)
    if results.get("loads"):
        say(table(results["loads"], SHOWN))
    results["bars"] = {verdict.bar: verdict.to_json() for verdict in verdicts}
    results["machine"]["load_average_after"] = os.getloadavg()
    if options.output:
        write(options.output, results)
    for verdict in verdicts:
        say(verdict.line())
    return int(not all(verdict.met for verdict in verdicts))


def main() -> int:
    """Parses the command line."""
    known = [case.id for case in all_bars()]
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.bench", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--only", nargs="+", metavar="ID", choices=[*known, *MORE], help=f"of {', '.join([*known, *MORE])}")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--seconds", type=float, default=6, help="of one load")
    cli.add_argument("--rows", type=int, default=1_000_000)
    cli.add_argument("--quick", action="store_true", help="2 rounds of 2 s of the rows that need no peer")
    cli.add_argument("--small", action="store_true", help="a small table, a small API, one round of half a second: whether it runs")
    cli.add_argument("--output", type=Path, help="folder for bench.json and the graphs")
    options = cli.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 2.0
        options.only = options.only or list(QUICK)
    if options.small:
        options.rounds, options.seconds, options.rows = 1, 0.5, min(options.rows, 10_000)
    # Whoever has no oha isn't told that a bar is short.
    options.only = options.only or [*known, *(name for name in MORE if name != "oha" or oha.program())]
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
