"""`python -m tailrace_loadtest.differential --calls 50000 --seed S`: starts everything, asks both sides, compares answers and records.

The last line is `differences: D of N (forwarded F, 2xx P%)`; exit 1 when D or F is above 0, a run is missing, or too little was covered.
"""

import argparse
import contextlib
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tailrace_contract import idempotency
from tailrace_contract.run import Run, ServedBy

from tailrace_loadtest import cases
from tailrace_loadtest.differential import api as api_module
from tailrace_loadtest.differential import certificate, compare, store
from tailrace_loadtest.differential.calls import FORMATS, times
from tailrace_loadtest.differential.coverage import Coverage, engine
from tailrace_loadtest.differential.drive import Comparison, Outcome
from tailrace_loadtest.differential.generator import Generator
from tailrace_loadtest.differential.transports import TRANSPORTS, has_http2
from tailrace_loadtest.servers import chinook, six
from tailrace_loadtest.servers.mariadb import Mariadb
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Identity, Tailrace

SHOWN = 10
LEAST_GOOD = 60.0
SIDES = ("left", "right")

ORDERED = {"chinook": ("notes_of_track",), "types": (), "batches": (), "mariadb": ("notes_of_edge",), "six": ("statement",), "crowds": ()}
"""Queries that read what calls write."""
BURSTS = ("batches", "crowds")
"""APIs that are also asked in bursts: those named `alone_…` must not share statements, and at least half of the others must have.
A database that is slow for a moment, or callers who fail, keep the rest from it."""
OTHERS, MYSQL = ("chinook", "types", "batches"), ("mariadb", "six", "crowds")
APIS = {"others": OTHERS, "mysql": MYSQL, "all": (*OTHERS, *MYSQL)}
OVER_TLS = ("types", "six")
"""APIs that the data plane serves over TLS."""


def say(text: str) -> None:
    """One line on stdout."""
    print(text, flush=True)  # noqa: T201


def make_postgres(server: Postgres) -> None:
    """One database each side, copies of one template, so that even object ids are equal."""
    chinook.load_postgres(server, "chinook_template")
    server.psql(cases.path("chinook.sql").read_text(), "chinook_template")
    server.psql("CREATE DATABASE types_template")
    server.psql(cases.path("types.sql").read_text(), "types_template")
    server.psql(idempotency.ddl("tailrace_idempotency"), "chinook_template")
    for side in SIDES:
        for name in ("chinook", "types"):
            server.psql(f"CREATE DATABASE {name}_{side} TEMPLATE {name}_template")


def make_mariadb(server: Mariadb) -> None:
    """One server each side: databases are named in the statements, and both sides write."""
    server.sql("CREATE DATABASE maria")
    server.sql("SET sql_mode = '';" + cases.path("mariadb.sql").read_text() + idempotency.ddl("tailrace_idempotency", "mysql"), "maria")
    six.load(server)


def make_sqlite(folder: Path, side: str) -> None:
    """One file each side."""
    chinook.load_sqlite(folder / f"chinook_{side}.db")
    for name, script in (("chinook", "chinook_sqlite.sql"), ("types", "types_sqlite.sql")):
        with contextlib.closing(sqlite3.connect(folder / f"{name}_{side}.db")) as connection:
            connection.executescript(cases.path(script).read_text())


def urls(server: Postgres, marias: Mapping[str, Mariadb], folder: Path, side: str) -> dict[str, str]:
    """Database URLs by Secret."""
    maria = marias.get(side)
    more = {"maria-db": maria.url("maria"), "six-db": maria.url("crm", "six", "six")} if maria is not None else {}
    return more | {
        "shop-db": server.url(f"chinook_{side}"),
        "types-db": server.url(f"types_{side}"),
        "lite-db": f"sqlite:///{folder}/chinook_{side}.db",
        "storage-db": f"sqlite:///{folder}/types_{side}.db",
    }


def compare_records(outcome: Outcome, left: Path, right: Path, coverage: Coverage, engines: Mapping[str, str]) -> Counter[str]:
    """Compares the records of every pair of answers; returns who served the left side. `engines`: by the connection's name."""
    records: list[dict[str, Run]] = [{run.id: run for run in store.runs(path)} for path in (left, right)]
    served: Counter[str] = Counter()
    for call, broken, one, two in outcome.pairs:
        a, b = records[0].get(one), records[1].get(two)
        differences = compare.runs(call, broken, a, b)
        if a is not None:
            served[a.served_by.value] += 1
            coverage.recorded(a, engines)
            if a.served_by is not ServedBy.DATA_PLANE:
                say(f"not by the data plane: {call.method} {call.target[:200]}")
        if b is not None and b.served_by is not ServedBy.GATEWAY:
            differences.append(compare.Difference(call, "run served_by", "", b.served_by.value))
        outcome.found(differences)
    return served


@contextlib.contextmanager
def stacks(name: str, server: Postgres, marias: Mapping[str, Mariadb], folder: Path) -> Iterator[tuple[Tailrace, Tailrace, Path | None]]:
    """The data plane with its gateway, and Python alone: same files, same keys, each with its own databases. The file that trusts the first, if it has TLS."""
    files = [cases.path(f"{name}.yaml")]
    identity = Identity(files)
    shown = certificate.make(folder) if name in OVER_TLS else None
    theirs = files if shown is None else [certificate.served(each, folder) for each in files]
    edge = None if shown is None else {certificate.SECRET: shown.secret()}
    authority = None if shown is None else shown.chain
    wanted = {
        "chinook": ("shop-db", "lite-db"),
        "types": ("types-db", "storage-db"),
        "batches": ("shop-db", "types-db"),
        "mariadb": ("maria-db",),
        "six": ("six-db",),
        "crowds": ("six-db", "maria-db"),
    }[name]
    made = [{secret: url for secret, url in urls(server, marias, folder, side).items() if secret in wanted} for side in SIDES]
    with (
        Tailrace(theirs, made[0], identity=identity, secrets=edge, authority=authority) as left,
        Tailrace(files, made[1], identity=identity, data_plane=False) as right,
    ):
        yield left, right, authority


def uncovered(outcome: Outcome, asked: api_module.Api, least: int) -> list[str]:
    """Combinations of query, format and role that were asked too seldom."""
    wanted = [(query.name, form, role) for query in asked.queries for form in FORMATS for role in asked.roles]
    return [" ".join(each) for each in wanted if outcome.combinations[each] < least]


def expected(asked: api_module.Api, engines: Mapping[str, str], name: str, transports: Sequence[str]) -> Iterator[str]:
    """What must have been asked of one API."""
    yield from (f"{way} over TLS" if name in OVER_TLS else way for way in transports)
    yield "in bulk"
    if any(query.cached for query in asked.queries):
        yield from ("kept answers", "not modified")
    yield from engines.values()
    if name in BURSTS:
        yield from (f"shared on {each}" for each in engines.values())


def run(options: argparse.Namespace) -> int:
    """The whole gate; returns the exit code."""
    total, served, covered, coverage = Outcome(), Counter[str](), True, Coverage()
    began = time.monotonic()
    least = times(options.calls)
    names = (options.only,) if options.only else APIS[options.engine]
    shares = {name: options.calls // len(names) + (n < options.calls % len(names)) for n, name in enumerate(names)}
    with Postgres() as server, sqlite_folder() as folder, contextlib.ExitStack() as opened:
        marias: dict[str, Mariadb] = {}
        if set(names) & set(APIS["mysql"]):
            marias = {side: opened.enter_context(Mariadb()) for side in SIDES}
            for maria in marias.values():
                make_mariadb(maria)
        make_postgres(server)
        for side in SIDES:
            make_sqlite(folder, side)
        for name, share in shares.items():
            described = api_module.read(cases.path(f"{name}.yaml"), ORDERED[name])
            with stacks(name, server, marias, folder) as (left, right, authority):
                generator = Generator(described, options.seed)
                comparison = Comparison(left.port, right.port, left.keys, options.workers, options.transports, authority)
                bursts = share // 2 if name in BURSTS else 0
                outcome = comparison.run(generator, share - bursts, least)
                if bursts:
                    outcome = comparison.at_once(generator.bursts(bursts))
                if options.keep:
                    say(f"{name}: data plane {left.url}, Python alone {right.url}; keys in {left.data}/keys; Ctrl-C ends")
                    with contextlib.suppress(KeyboardInterrupt):
                        time.sleep(86_400)
                left.stop()
                right.stop()
                databases = urls(server, marias, folder, SIDES[0])
                engines = {connection: engine(databases[secret]) for connection, secret in described.secrets.items()}
                served += compare_records(outcome, left.data / "runs.sqlite", right.data / "runs.sqlite", coverage, engines)
                coverage.asked(outcome.ways, outcome.parts, is_tls=authority is not None)
                coverage.expect(expected(described, engines, name, options.transports))
            missing = uncovered(outcome, described, least)
            able = [query.name for query in described.queries if name in BURSTS and not query.name.startswith("alone_")]
            alone = [query for query in able if not outcome.batched[query]]
            together = [query for query in outcome.batched if query.startswith("alone_") and outcome.batched[query]]
            covered &= not missing and len(alone) <= len(able) // 2 and not together
            if outcome.batched.total():
                say(f"{name}: {outcome.batched.total()} answers of statements for several callers")
            if alone or together:
                say(f"never shared a statement: {'; '.join(alone) or 'none'}; shared one and must not: {'; '.join(together) or 'none'}")
            say(f"{name}: {outcome.asked} calls, {dict(sorted(outcome.statuses.items()))}, kinds {dict(outcome.kinds)}")
            if missing:
                say(f"asked fewer than {least} times: {'; '.join(missing[:20])}{' …' if len(missing) > 20 else ''}")
            for group, count in outcome.groups.most_common(options.groups):
                say(f"{count:6} × {group}")
            shown: set[str] = set()
            for difference in outcome.differences:
                kind = f"{difference.where} {difference.call.kind}" if options.spread else str(len(shown))
                if kind not in shown and len(shown) < options.show:
                    shown.add(kind)
                    say(compare.described(difference, (left.url, right.url)))
            total.asked += outcome.asked
            total.good += outcome.good
            total.differing += outcome.differing
    percent = 100 * total.good / max(1, total.asked)
    forwarded = served[ServedBy.FORWARDED.value]
    say(f"{time.monotonic() - began:.0f} s, seed {options.seed}, served by {dict(served)}")
    say(f"of the data plane's answers: {coverage.described()}")
    if coverage.missing():
        say(f"never was: {', '.join(coverage.missing())}")
    say(f"differences: {total.differing} of {total.asked} (forwarded {forwarded}, 2xx {percent:.0f}%)")
    return 0 if total.differing == 0 and forwarded == 0 and covered and not coverage.missing() and percent >= LEAST_GOOD else 1


@contextlib.contextmanager
def sqlite_folder() -> Iterator[Path]:
    """A folder for the SQLite files."""
    with tempfile.TemporaryDirectory(prefix="tailrace-differential-", dir="/var/tmp") as folder:
        yield Path(folder)


def transports(text: str) -> tuple[str, ...]:
    """Names of transports, separated by commas. ArgumentTypeError."""
    names = tuple(text.split(","))
    for name in names:
        if name not in TRANSPORTS:
            raise argparse.ArgumentTypeError(f"{name}: not one of {', '.join(TRANSPORTS)}")
        if name == "http2" and not has_http2():
            raise argparse.ArgumentTypeError("http2 needs the package h2 (make venv)")
    return names


def main() -> int:
    """Parses the command line."""
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.differential", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--calls", type=int, default=5000, help="in all; 50000 for the full gate")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--engine", choices=tuple(APIS), default="others", help="APIs on MySQL, on the other engines, or all")
    cli.add_argument("--only", choices=tuple(ORDERED), help="one of the APIs")
    cli.add_argument("--workers", type=int, default=6, help="threads that ask")
    ways = tuple(name for name in TRANSPORTS if name != "http2" or has_http2())
    cli.add_argument("--transports", type=transports, default=ways, help="how the data plane is asked, in turn: " + ",".join(TRANSPORTS))
    cli.add_argument("--show", type=int, default=SHOWN, help="differences shown, with the command lines that repeat them")
    cli.add_argument("--spread", action="store_true", help="show one difference of each kind")
    cli.add_argument("--groups", type=int, default=40, help="groups of differences shown")
    cli.add_argument("--keep", action="store_true", help="leave both sides running after the calls, until Ctrl-C")
    return run(cli.parse_args())


if __name__ == "__main__":
    sys.exit(main())
