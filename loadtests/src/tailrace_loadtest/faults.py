"""`python -m tailrace_loadtest.faults --rounds 20`: kill -9 under flat-out load, then sets of run ids compared.

Each round loads the data plane flat out, kills it, Python or both at a random moment (sometimes again while it comes back), and keeps
the run ids of all complete answers. The last line is `answered A stored S missing M doubled D unanswered U`: A ids that the generator
holds, S ids in the store, M = in A and not in S, U = in S and not in A. Exit 1 when M or D is above 0, when U is above the calls under
way at the kills, when a call failed though only Python was killed, or when A is below --least. Meanwhile callers write with an
Idempotency-Key and ask again until they are answered: `writes W acknowledged, L not there, D more than once`; L or D above 0 fails too.
--engine sqlite does the same on a SQLite file.
"""

import argparse
import contextlib
import json
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tailrace_contract.idempotency import ddl
from tailrace_contract.run import parse_run_id

from tailrace_loadtest import cases, generator, ids
from tailrace_loadtest.servers import users
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace
from tailrace_loadtest.writers import Writer, stored_faults

ROWS = 100_000
ROUND_S = 2.5
WRITERS = 4
GIVE_UP_S = 60.0
"""How long the writers may ask for their last number once the last round is over."""
NOTES = "CREATE TABLE notes (number bigint NOT NULL)"
COUNTS = "SELECT number, count(*) FROM notes GROUP BY number"
PLAN = {
    "requests": [
        {
            "name": "user",
            "weight": 300,
            "path": "/q/user?path=/users/{}",
            "keys": f"1..{ROWS}",
            "expect": {"contains": '"path":"/users/{}"'},
        },
        {
            "name": "stream",
            "weight": 2,
            "path": "/q/users_of_tier?tier=pro&below=3000&format=ndjson",
            "expect": {"contains": '{"$complete":{"rows":1000,'},
        },
        {"name": "forwarded", "weight": 1, "path": "/catalog", "expect": {"contains": "user"}},
    ]
}
TOLERATED = (502, 503)
"""While one of the two is away: a problem with a run id like any other answer."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    killed: tuple[str, ...]
    report: dict[str, Any]

    @property
    def lost(self) -> int:
        """Calls that were under way when their connection was lost."""
        return int(self.report["lost"])


def say(text: str) -> None:
    """One line on stdout."""
    print(text, flush=True)  # noqa: T201


def play(stack: Tailrace, random: Random, number: int, options: dict[str, object]) -> Round:
    """One round: load, kill, wait for the load's end."""
    victims = random.choices((("dataplane",), ("gateway",), ("dataplane", "gateway")), (6, 2, 2))[0]
    load = generator.start(stack.url, options | {"seed": number + 1})
    delay = random.uniform(0.15, ROUND_S - 0.6)
    time.sleep(delay)
    killed = list(victims)
    for name in victims:
        stack.kill(name)
    if random.random() < 0.3:
        # Again while it starts, perhaps while it replays its spool.
        again = random.uniform(0.03, 0.4)
        time.sleep(again)
        stack.kill(victims[0])
        killed.append(victims[0])
    report = generator.finish(load)
    errors = {name: count for name, count in report["errors"].items() if count}
    say(
        f"round {number + 1}: kill -9 {', '.join(killed)} after {delay * 1e3:.0f} ms: {report['run_ids']} answers, {report['lost']} lost, {errors}, {report['statuses']}"
    )
    return Round(tuple(killed), report)


@dataclass(frozen=True, slots=True)
class Tables:
    """The database under load: its URL, and how often each written number is in it."""

    url: str
    counts: Callable[[], dict[int, int]]


@contextlib.contextmanager
def database(engine: str, folder: Path) -> Iterator[Tables]:
    """`users`, an empty `notes`, and the table of idempotency keys."""
    table = ddl("tailrace_idempotency", engine)
    if engine == "sqlite":
        path = folder / "users.db"
        with contextlib.closing(sqlite3.connect(path)) as file:
            rows = ((f"/users/{n}", n, f"User {n}", users.TIERS[n % 3]) for n in range(1, ROWS + 1))
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("CREATE TABLE users (path TEXT PRIMARY KEY, id INTEGER NOT NULL UNIQUE, name TEXT NOT NULL, tier TEXT NOT NULL)")
            file.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", rows)
            file.execute(NOTES)
            file.execute(table)
            file.commit()

        def of_file() -> dict[int, int]:
            with contextlib.closing(sqlite3.connect(path)) as file:
                return dict(file.execute(COUNTS))

        yield Tables(f"sqlite:///{path}", of_file)
        return
    with Postgres() as server:
        url = users.load(server, ROWS)
        server.psql(f"{NOTES}; {table}", users.DATABASE)

        def of_server() -> dict[int, int]:
            lines = server.psql(COUNTS, users.DATABASE).split()
            return {int(number): int(times) for number, _, times in (line.partition("|") for line in lines)}

        yield Tables(url, of_server)


@contextlib.contextmanager
def writing(stack: Tailrace) -> Iterator[list[Writer]]:
    """Writers beside the load; behind it each has its last number answered, or was given up."""
    writers = [Writer(stack.port, stack.keys["app-key"], 1 + n * 10_000_000) for n in range(WRITERS)]
    stopping, give_up = threading.Event(), threading.Event()
    threads = [threading.Thread(target=writer.run, args=(stopping, give_up)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        stopping.set()
        end = time.monotonic() + GIVE_UP_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        give_up.set()
        for thread in threads:
            thread.join()


def run(rounds: int, seed: int, least: int, connections: int, engine: str) -> int:
    """The whole gate; returns the exit code."""
    random = Random(seed)  # noqa: S311
    played: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-faults-", dir="/var/tmp") as folder, database(engine, Path(folder)) as tables:
        log, plan, keys = (Path(folder) / name for name in ("ids", "plan.json", "keys"))
        plan.write_text(json.dumps(PLAN))
        with Tailrace([cases.path("faults.yaml")], {"users-db": tables.url}) as stack:
            keys.write_text(stack.keys["app-key"] + "\n")
            options: dict[str, object] = {
                "plan": plan, "api-keys": keys, "connections": connections, "duration": f"{ROUND_S * 1000:.0f}ms",
                "run-ids": log, "run-ids-append": True, "tolerate": list(TOLERATED), "timeout": "10s",
            }  # fmt: skip
            with writing(stack) as writers:
                for number in range(rounds):
                    stack.wait_ready()
                    played.append(play(stack, random, number, options))
                stack.wait_ready()
            restarts, probes, unheard = stack.restarts, stack.probes, stack.unheard
            stack.stop()
            with log.open() as lines:
                answered = ids.of_lines(lines)
            stored = ids.of_store(stack.data / "runs.sqlite")
            counts = tables.counts()
    probes += [run_id for writer in writers for run_id in writer.run_ids]
    unheard += sum(writer.unheard for writer in writers)
    acknowledged = {number for writer in writers for number in writer.acknowledged}
    unkept = stored_faults(counts, writers) + [text for writer in writers for text in writer.wrong]
    for probe in probes:
        # Our own questions whether it is ready, and the writers' calls.
        answered.add(*parse_run_id(probe))
    missing, unanswered = answered.without(stored), stored.without(answered)
    doubled = answered.doubled + stored.doubled
    lost = sum(each.lost for each in played) + unheard
    wrong = sum(each.report["wrong"] + each.report["other_status"] for each in played)
    calm = [each for each in played if "dataplane" not in each.killed]
    faults = [
        (missing > 0, f"missing in the store: {', '.join(answered.only_here(stored))}"),
        (doubled > 0, f"{doubled} ids were given twice"),
        (unanswered > lost, f"{unanswered} stored runs were not answered, but only {lost} calls were under way at the kills"),
        (wrong > 0, f"{wrong} wrong answers: {[each.report['wrong_samples'][:2] for each in played if each.report['wrong_samples']][:3]}"),
        (len(answered) < least, f"only {len(answered)} answers: the load was too small to tell"),
        (restarts < len(played), f"{restarts} restarts after {len(played)} rounds"),
        (bool(unkept), f"writes: {unkept[:5]}"),
        (not acknowledged, "nothing was written: the run says nothing of writes"),
        (any(each.lost for each in calm), "calls were lost though only Python was killed"),
    ]
    for holds, text in faults:
        if holds:
            say(f"FAILED: {text}")
    good = sum(each.report["statuses"].get("200", 0) for each in played)
    say(f"{good} answers were 200, the others problems while one of the two was away")
    say(
        f"{len(played)} rounds, {sum(len(each.killed) for each in played)} kills, {restarts} restarts, {lost} calls under way at the kills, {stored.gaps()} gaps in the store, seed {seed}"
    )
    say(
        f"writes {len(acknowledged)} acknowledged, {len(acknowledged - counts.keys())} not there, {sum(times > 1 for times in counts.values())} more than once"
        f" ({sum(writer.repeats for writer in writers)} asked again)"
    )
    say(f"answered {len(answered)} stored {len(stored)} missing {missing} doubled {doubled} unanswered {unanswered}")
    return int(any(holds for holds, _ in faults))


def main() -> int:
    """Parses the command line."""
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.faults", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--rounds", type=int, default=20)
    cli.add_argument("--seed", type=int, default=int(time.time()), help="of kills and calls; default: the time")
    cli.add_argument("--least", type=int, default=100_000, help="complete answers below which the run says nothing")
    cli.add_argument("--connections", type=int, default=64)
    cli.add_argument("--engine", choices=("postgres", "sqlite"), default="postgres")
    options = cli.parse_args()
    return run(options.rounds, options.seed, options.least, options.connections, options.engine)


if __name__ == "__main__":
    sys.exit(main())
