"""How cost grows with the work: clients, queries, keys, rows, size of answers, distance of the database. IO: starts servers, runs loads.

Each curve is a list of points; none may collapse: behind its best point no other falls below half of it, per CPU-second of the data plane.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace_loadtest import generator
from tailrace_loadtest.bench import scale
from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.rounds import calls_per_cpu_second
from tailrace_loadtest.bench.session import OTHER_CPU, OURS, SERVER_CPU, Session, opened, pin
from tailrace_loadtest.bench.verdict import Range, Verdict, number
from tailrace_loadtest.servers.delay import Delay
from tailrace_loadtest.servers.tailrace import Tailrace
from tailrace_loadtest.servers.users import DATABASE

KEPT = 0.5
"""Share of the best point that every later one must keep."""
PLACES = (1, 64, 1024, 4096)
OWN = (1, 16, 64)
SIZES = (1, 10, 100, 1000)
KEYS = (1, 100, 10_000)
ANSWERS = (1, 10, 100)
DISTANCES_US = (0, 500)
RAISED_ROWS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a curve: the reports of its rounds. `each` is what one call stands for, as rows."""

    x: float
    reports: Sequence[dict[str, Any]]
    each: int = 1

    @property
    def per_cpu(self) -> Range:
        """Work per CPU-second of the data plane."""
        return Range.of(self.each * calls_per_cpu_second(report, ("server",)) for report in self.reports)

    @property
    def wrong(self) -> int:
        """Answers that were not right, or none."""
        return sum(report["wrong"] + report["other_status"] + sum(report["errors"].values()) for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """For the file of results."""
        rate = Range.of(self.each * report["achieved_rate"] for report in self.reports)
        found: dict[str, Any] = {"x": self.x, "per_cpu": self.per_cpu.to_json(), "per_s": rate.to_json(), "wrong": self.wrong}
        for quantile in ("p50", "p99"):
            values = [report["latency_ms"][quantile] for report in self.reports if report["latency_ms"]]
            found[f"{quantile}_ms"] = Range.of(values).to_json() if values else None
        return found


def verdict(name: str, unit: str, points: Sequence[Point]) -> Verdict:
    """Whether it collapses behind its best point, and its points."""
    values = [point.per_cpu.median for point in points]
    best = max(range(len(values)), key=values.__getitem__, default=0)
    least = min(values[best:], default=0.0)
    wrong = sum(point.wrong for point in points)
    text = ", ".join(f"{number(point.x)}: {number(value)}" for point, value in zip(points, values, strict=True))
    note = f"{wrong} calls not answered right" if wrong else ""
    met = bool(values) and least >= KEPT * values[best] and values[best] > 0 and not wrong
    return Verdict(f"curve-{name}", f"{text} {unit}", "none collapses", met, note, details=[point.to_json() for point in points])


def _loads(rounds: int, url: str, options: Mapping[str, object], watched: Mapping[str, int]) -> list[dict[str, Any]]:
    """The same load, a round after the other."""
    return [generator.run(url, {**options, "seed": number + 1}, watched, OTHER_CPU) for number in range(rounds)]


def _ours(session: Session, load: Load, seconds: float, rounds: int, extra: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    """The session's own stack under a load."""
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    options = target.options(load, session.rows, seconds, 1, None)
    return _loads(rounds, target.url, {**options, **(extra or {})}, target.watched)


def clients(session: Session, rounds: int, seconds: float) -> Verdict:
    """So many connections, each with one call at a time."""
    points = [Point(count, _ours(session, Load("user", connections=count), seconds, rounds)) for count in PLACES]
    return verdict("clients", "calls per CPU-second", points)


def own(session: Session, rounds: int, seconds: float) -> Verdict:
    """So many connections whose calls have a statement each, pipelined on few connections to the database."""
    points = [Point(count, _ours(session, Load("user_alone", connections=count), seconds, rounds)) for count in OWN]
    return verdict("own", "calls per CPU-second", points)


def answers(session: Session, rounds: int, seconds: float) -> Verdict:
    """Pages of so many rows; rows per CPU-second."""
    points = [Point(size, _ours(session, Load("users"), seconds, rounds, {"path": f"/q/users?page_size={size}"}), size) for size in ANSWERS]
    return verdict("answer", "rows per CPU-second", points)


@contextmanager
def _many(session: Session, queries: int, keys: int) -> Iterator[tuple[Tailrace, dict[str, object]]]:
    """A stack with so many queries and keys, and the options of a load over all look-ups and keys of it."""
    specs, key_file, plan, texts = (session.folder / name for name in ("many.yaml", "many-keys.yaml", "many.json", "many.keys"))
    made = scale.api(queries, 1)
    scale.write(specs, [made, scale.STORE])
    scale.write(key_file, [scale.key(number, 1) for number in range(keys)])
    names = [query["name"] for query in made["spec"]["queries"] if query.get("returns") == "one" and "path" in query["params"]]
    requests = [
        {"name": name, "path": f"/q/{name}?path=/users/{{}}", "keys": f"1..{session.rows}", "expect": {"contains": '"path":"/users/{}"'}}
        for name in names
    ]
    plan.write_text(json.dumps({"requests": requests}))
    stack = Tailrace([specs, key_file], {"users-db": session.url}, threads=1, taskset=str(SERVER_CPU), ready_s=scale.PATIENCE_S)
    with stack:
        pin(stack.pid("gateway"), OTHER_CPU)
        texts.write_text("\n".join(stack.keys.values()) + "\n")
        yield stack, {"plan": plan, "api-keys": texts, "connections": 64}


def _grown(session: Session, name: str, sizes: Sequence[int], is_keys: bool, rounds: int, seconds: float) -> Verdict:
    points = []
    for size in sizes:
        with _many(session, 1 if is_keys else size, size if is_keys else 1) as (stack, options):
            watched = {"server": stack.pid("dataplane"), "database": session.server.pid}
            # Each query shows first that it is fast.
            warm = {"duration": "3s", "warm-up": "0s"}
            generator.run(stack.url, options | warm, watched, OTHER_CPU)
            timed = options | {"duration": f"{int(seconds * 1000) + 500}ms", "warm-up": "500ms"}
            points.append(Point(size, _loads(rounds, stack.url, timed, watched)))
    return verdict(name, "calls per CPU-second", points)


def queries(session: Session, rounds: int, seconds: float, small: bool) -> Verdict:
    """The look-ups (two of four) of an API of so many queries, all at once, 64 callers."""
    return _grown(session, "queries", SIZES[:2] if small else SIZES, False, rounds, seconds)


def keys(session: Session, rounds: int, seconds: float, small: bool) -> Verdict:
    """So many keys in turn, 64 callers."""
    return _grown(session, "keys", KEYS[:2] if small else KEYS, True, rounds, seconds)


def distance(session: Session, rounds: int, seconds: float) -> Verdict:
    """The database some round trip away, 64 callers."""
    points = []
    for away_us in DISTANCES_US:
        with Delay(session.server.port, away_us // 2, OTHER_CPU) as delay:
            url = f"postgresql://postgres@127.0.0.1:{delay.port}/{DATABASE}"
            stack = Tailrace([session.specs()], {"users-db": url}, threads=1, taskset=str(SERVER_CPU))
            with stack:
                pin(stack.pid("gateway"), OTHER_CPU)
                texts = session.folder / "distance.keys"
                texts.write_text(stack.keys["app-key"] + "\n")
                load, watched = Load("user"), {"server": stack.pid("dataplane"), "database": session.server.pid}
                target = session.target(OURS, load)
                assert target is not None, "ours is always there"
                options = target.options(load, session.rows, seconds, 1, None) | {"api-keys": texts}
                options.pop("run-ids")
                options.pop("run-ids-append")
                _loads(1, stack.url, options, watched)
                points.append(Point(away_us / 1000, _loads(rounds, stack.url, options, watched)))
    return verdict("distance", "calls per CPU-second by ms of round trip", points)


def rows(session: Session, rounds: int, seconds: float) -> Verdict:
    """The table, and one of ten times its rows."""

    def measured(at: Session) -> Point:
        _ours(at, Load("user"), min(2.0, seconds), 1)
        return Point(at.rows, _ours(at, Load("user"), seconds, rounds))

    points = [measured(session)]
    folder = session.folder / "raised"
    folder.mkdir()
    with opened(session.rows * RAISED_ROWS, Path(folder)) as raised:
        points.append(measured(raised))
    return verdict("rows", "calls per CPU-second", points)
