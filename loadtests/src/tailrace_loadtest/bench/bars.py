"""From the rounds of loads to each bar's verdict. Pure. A bar whose servers or queries couldn't be had is short, and says why."""

from collections.abc import Mapping
from dataclasses import replace

from tailrace_loadtest.bench.case import Case, Load
from tailrace_loadtest.bench.rounds import Report, Results
from tailrace_loadtest.bench.session import OURS
from tailrace_loadtest.bench.verdict import Range, Verdict, at_least, at_most, combined, lowest, ratios, times

FLOOR = "nginx"
"""Answers without a database: shown beside latencies, never a competitor for the lowest."""
HELD = 0.99


def absent(case: Case, why: str) -> Verdict:
    """Nothing could be measured."""
    return Verdict(case.id, "not measured", ", ".join(f"{name} {goal:g}" for name, goal in case.goals.items()), False, why, case.reference)


def right(results: Results, load: Load) -> str:
    """What was wrong with our answers; empty: nothing."""
    reports = results.of(load)
    wrong = sum(report["wrong"] + report["other_status"] for report in reports)
    lost = sum(sum(report["errors"].values()) for report in reports)
    unrecorded, void = sum(report["without_run_id"] for report in reports), sum(report["void"] for report in reports)
    counts = ((wrong, "wrong answers"), (lost, "calls without an answer"), (unrecorded, "without a run id"), (void, "rounds not delivered"))
    found = [f"{count} {what}" for count, what in counts if count]
    return ", ".join(found)


def judge(case: Case, results: Results) -> Verdict:
    """The verdict of a bar that consists of loads."""
    for load, _ in case.loads:
        if not results.of(load):
            return absent(case, f"{load.name} did not run")
    found = {"times": _times, "per-cpu": _per_cpu, "database": _database, "cache": _cache, "open": _open, "reference-times": _published,
             "governed": _governed, "write": _write, "p99": _p99}[case.measure](case, results)  # fmt: skip
    faults = "; ".join(text for load, _ in case.loads for text in (right(results, load),) if text)
    if not faults:
        return found
    note = "; ".join(text for text in (faults, found.note) if text)
    return replace(found, met=False, note=note)


def _versus(case: Case, results: Results, load: Load, goals: Mapping[str, float]) -> list[Verdict]:
    ours = results.per_cpu(load)
    parts = []
    for name, goal in goals.items():
        theirs = results.per_cpu(load, name)
        if len(theirs) != len(ours) or not all(theirs):
            parts.append(Verdict(case.id, f"no {name}", f"≥ {goal:g}", False, f"{name} could not be measured"))
        else:
            details = {"ours": Range.of(ours).to_json(), name: Range.of(theirs).to_json(), "ratio": ratios(ours, theirs).to_json()}
            parts.append(times(case.id, ours, theirs, goal, name, details=details))
    return parts


def _times(case: Case, results: Results) -> Verdict:
    return combined(case.id, _versus(case, results, case.loads[0][0], case.goals), case.reference)


def _per_cpu(case: Case, results: Results) -> Verdict:
    value = Range.of(results.per_cpu(case.loads[0][0]))
    return at_least(case.id, value, case.goals["least"], "calls per CPU-second", reference=case.reference, details=value.to_json())


def _database(case: Case, results: Results) -> Verdict:
    value = Range.of(report["cpu"]["database"]["us_per_call"] for report in results.of(case.loads[0][0]))
    return at_most(case.id, value, case.goals["most"], "µs of database CPU a look-up", reference=case.reference, details=value.to_json())


def _cache(case: Case, results: Results) -> Verdict:
    (flat, _), (deep, _) = case.loads
    value = Range.of(results.per_cpu(deep))
    parts = _versus(case, results, flat, {"nginx": case.goals["nginx"]})
    return combined(
        case.id, [*parts, at_least(case.id, value, case.goals["least"], "at 16 a read", details=value.to_json())], case.reference
    )


def _governed(case: Case, results: Results) -> Verdict:
    (plain, _), (masked, _) = case.loads
    ratio = ratios(results.per_cpu(masked), results.per_cpu(plain))
    return at_least(case.id, ratio, case.goals["least"], "× plain", reference=case.reference, details=ratio.to_json())


def _published(case: Case, results: Results) -> Verdict:
    parts = []
    for load, _ in case.loads:
        value = Range.of(each / (case.published or {})[load.query] for each in results.per_cpu(load))
        parts.append(at_least(case.id, value, case.goals[load.query], f"× the published {load.query}", details=value.to_json()))
    return combined(case.id, parts, case.reference)


def _write(case: Case, results: Results) -> Verdict:
    """Per CPU-second of data plane and Python together: a write may be either's."""
    load = case.loads[0][0]
    ours, theirs = results.per_cpu(load, OURS, ("server", "python")), results.per_cpu(load, "fastapi")
    if len(theirs) != len(ours) or not all(theirs):
        return absent(case, "fastapi could not be measured")
    return times(case.id, ours, theirs, case.goals["fastapi"], "fastapi", reference=case.reference,
                 details={"ours": Range.of(ours).to_json(), "fastapi": Range.of(theirs).to_json()})  # fmt: skip


def _others(results: Results, load: Load, beside: tuple[str, ...]) -> dict[str, Range]:
    """p99 of each server that answers look-ups and ran in every round."""
    rounds = len(results.of(load))
    return {name: Range.of(results.latency(load, name)) for name in beside if name != FLOOR and len(results.of(load, name)) == rounds}


def _p99_of(reports: list[Report], what: str) -> Range | None:
    """p99 in ms of one of the generator's histograms; None when a round has none."""
    values = [report[what]["p99"] for report in reports if report[what]]
    return Range.of(values) if values and len(values) == len(reports) else None


def _late(results: Results, load: Load) -> str:
    """How much of our p99 is the generator's own: how late it sent, and p99 of the answers from when they were really sent."""
    late, sent = (_p99_of(results.of(load), what) for what in ("behind_ms", "answered_ms"))
    return f"sent {late or 'nothing'} ms late, {sent or 'nothing'} ms from the send (p99)"


def _sent(results: Results, load: Load, beside: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The same two of every server, for the file of results."""
    found = {}
    for name in (OURS, *beside):
        for what, title in (("behind_ms", "generator late, p99"), ("answered_ms", "from the send, p99")):
            if span := _p99_of(results.of(load, name), what):
                found[f"{name}: {title}"] = span.to_json()
    return found


def _open(case: Case, results: Results) -> Verdict:
    parts = []
    for load, beside in case.loads:
        held = Range.of(report["delivered"] for report in results.of(load))
        best = lowest(case.id, Range.of(results.latency(load)), _others(results, load, beside), "ms p99")
        note = "" if held.low >= HELD else f"only {held.low:.1%} of {load.rate:,.0f}/s was answered"
        notes = "; ".join(text for text in (note, best.note) if text)
        value = f"{load.rate:,.0f}/s {'held' if held.low >= HELD else 'NOT held'} at {best.value}, {_late(results, load)}"
        details = {"delivered": held.to_json(), **_sent(results, load, beside)}
        met = best.met and held.low >= HELD
        parts.append(Verdict(case.id, value, "held, lowest", met, notes, details=details, to_goal=best.to_goal))
    return combined(case.id, parts, case.reference)


def _p99(case: Case, results: Results) -> Verdict:
    load, beside = case.loads[0]
    others = _others(results, load, beside)
    details = {name: value.to_json() for name, value in others.items()}
    if results.of(load, FLOOR):
        details["floor: nginx"] = Range.of(results.latency(load, FLOOR)).to_json()
    ours = Range.of(results.latency(load))
    details |= _sent(results, load, beside) | {OURS: ours.to_json()}
    found = lowest(case.id, ours, others, "ms p99", reference=case.reference, details=details)
    return replace(found, value=f"{found.value}, {_late(results, load)}")
