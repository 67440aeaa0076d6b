"""Interleaved rounds: in each, every server gets every load in turn, so that drift of a shared machine meets all alike. IO: runs loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench.case import Case, Load
from tailrace_loadtest.bench.session import OURS, Session
from tailrace_loadtest.bench.verdict import Range

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """Reports of each load on each server, a round after the other."""

    reports: dict[tuple[Load, str], list[Report]] = field(default_factory=dict)

    def of(self, load: Load, name: str = OURS) -> list[Report]:
        """Its reports; empty when it didn't run."""
        return self.reports.get((load, name), [])

    def per_cpu(self, load: Load, name: str = OURS, processes: Sequence[str] = ("server",)) -> list[float]:
        """Calls per CPU-second of these processes together, by round."""
        return [calls_per_cpu_second(report, processes) for report in self.of(load, name)]

    def latency(self, load: Load, name: str = OURS, quantile: str = "p99") -> list[float]:
        """ms from the intended send time, by round; nothing came is infinite."""
        return [float(report["latency_ms"][quantile]) if report["latency_ms"] else float("inf") for report in self.of(load, name)]


def calls_per_cpu_second(report: Mapping[str, Any], processes: Sequence[str]) -> float:
    """Of a report that watched them; right answers only, so that a fast refusal gains nothing."""
    spent_us = sum(float((report["cpu"].get(name) or {}).get("us_per_call") or 0) for name in processes)
    share = report["right"] / report["answered"] if report["answered"] else 0
    return share * 1e6 / spent_us if spent_us else 0.0


def wanted(cases: Sequence[Case]) -> dict[Load, list[str]]:
    """Each load once, with all servers that any bar wants there; ours first."""
    found: dict[Load, list[str]] = {}
    for case in cases:
        for load, beside in case.loads:
            names = found.setdefault(load, [OURS])
            names += [name for name in beside if name not in names]
    return found


def play(session: Session, loads: Mapping[Load, Sequence[str]], rounds: int, seconds: float, say: Callable[[str], None]) -> Results:
    """All rounds. A load whose rate is a share gets that share of what the same server did flat out just before."""
    results = Results()
    for query, name in {(load.query, name): None for load, names in loads.items() for name in names}:
        # Not counted: connections are opened, statements prepared, a query shows that it is fast.
        warm = Load(query)
        if target := session.target(name, warm):
            session.run(target, warm, min(2.0, seconds), 0)
    for number in range(rounds):
        for load, names in loads.items():
            for name in names:
                target = session.target(name, load)
                if target is None:
                    continue
                try:
                    rate = load.rate
                    if rate is not None and rate < 1:
                        flat = session.run(target, replace(load, rate=None), seconds / 2, number + 1)
                        rate = max(1.0, flat["achieved_rate"] * rate)
                    report = session.run(target, load, seconds, number + 1, rate)
                except (generator.LoadFailed, OSError) as error:
                    # One server's trouble costs its own figure and no other.
                    say(f"round {number + 1}: {name} · {load.name}: FAILED: {error}")
                    continue
                results.reports.setdefault((load, name), []).append(report)
                say(f"round {number + 1}: {line(load, name, report)}")
    return results


def line(load: Load, name: str, report: Mapping[str, Any]) -> str:
    """One run, for people who watch."""
    latency = report["latency_ms"] or {"p50": None, "p99": None}
    wrong = report["wrong"] + report["other_status"] + sum(report["errors"].values())
    void = ", NOT DELIVERED" if report["void"] else ""
    return (
        f"{name} · {load.name}: {report['achieved_rate']:,.0f}/s, {calls_per_cpu_second(report, ('server',)):,.0f} per server CPU-second,"
        f" p50 {latency['p50']} p99 {latency['p99']} ms, {wrong} not right{void}"
    )


def table(results: Results) -> list[dict[str, Any]]:
    """A row a load and server: ranges over the rounds, for the file and the page."""
    rows = []
    for (load, name), reports in results.reports.items():

        def spread(get: Callable[[Report], float | None], among: list[Report] = reports) -> dict[str, float] | None:
            values = [value for value in map(get, among) if value is not None]
            return Range.of(values).to_json() if values else None

        def us(process: str) -> Callable[[Report], float | None]:
            return lambda each: (each["cpu"].get(process) or {}).get("us_per_call")

        rows.append({
            "load": load.name, "server": name, "rounds": len(reports), "calls_per_s": spread(lambda report: report["achieved_rate"]),
            "calls_per_server_cpu_s": Range.of(results.per_cpu(load, name)).to_json(), "server_us": spread(us("server")),
            "database_us": spread(us("database")), "python_us": spread(us("python")), "generator_us": spread(lambda report: report["own_us_per_call"]),
            "p50_ms": spread(lambda report: (report["latency_ms"] or {}).get("p50")), "p99_ms": spread(lambda report: (report["latency_ms"] or {}).get("p99")),
            "p999_ms": spread(lambda report: (report["latency_ms"] or {}).get("p999")), "behind_p99_ms": spread(lambda report: (report["behind_ms"] or {}).get("p99")),
            "sent_p99_ms": spread(lambda report: (report["answered_ms"] or {}).get("p99")),
            "delivered": spread(lambda report: report["delivered"]), "wrong": sum(report["wrong"] + report["other_status"] for report in reports),
            "errors": sum(sum(report["errors"].values()) for report in reports), "without_run_id": sum(report["without_run_id"] for report in reports) if name == OURS else None,
        })  # fmt: skip
    return rows
