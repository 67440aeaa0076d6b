"""A compiler that has seen many editions says what one says that sees the last edition only, byte for byte; and what didn't change is kept."""

import itertools
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar

import pytest
from tailrace_contract.plan import ApiPlan, BigNumbers, Mask, ParamType, Returns
from tailrace_gateway.compile.compiler import Compiled, Compiler
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.postgres import Postgres

SCHEMA = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, salary INTEGER)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, person INTEGER NOT NULL, note TEXT, UNIQUE (person))",
    "CREATE VIEW contacts AS SELECT id, name AS label FROM people",
)
STATEMENTS = (
    "SELECT * FROM people",
    "SELECT id, email FROM people",
    "SELECT id, label FROM contacts",
    "SELECT p.id, p.name, o.note FROM people p JOIN orders o ON o.person = p.id",
    "SELECT id FROM people WHERE email = 'x'",
    "SELECT count(*) AS n FROM orders",
    "SELECT lower(email) AS e, id FROM people",
    "SELECT max(salary) AS top FROM people",
    "SELECT id, note FROM other.orders",
    "SELECT id, extra FROM people",
    "SELECT wrong FROM nowhere",
    "SELECT shout(name) AS s FROM people",
)
TABLES = ("people", "orders", "contacts", "other.orders", "nothing")
COLUMNS = ("people.email", "people.salary", "people.extra", "orders.note", "contacts.label", "other.orders.note", "people.misspelt")
VIEWS = (
    "SELECT id, name AS label FROM people",
    "SELECT id, email AS label FROM people",
    "SELECT id, name AS label FROM people WHERE salary > 1",
)
PARAMS = (
    (),
    (ParamSpec("x", ParamType.NUMBER, default=1),),
    (ParamSpec("x", ParamType.NUMBER, default=1.0),),
    (ParamSpec("x", ParamType.JSON, default=True),),
    (ParamSpec("x", ParamType.JSON, default=1),),
    (ParamSpec("x", ParamType.INTEGER, required=True, maximum="5"),),
)
BINDS: tuple[dict[str, object], ...] = ({}, {"x": 1}, {"x": True}, {"x": 1.0}, {"x": 7}, {"y": 1})


Unit = TypeVar("Unit", QuerySpec, RoleSpec, KeySpec)


@dataclass
class World:
    """An API and its databases, edited at random. `alter` runs one statement on one of the two databases; what it refuses didn't happen."""

    random: random.Random
    urls: tuple[str, str]
    alter: Callable[[int, str], None]
    files: tuple[Path, Path]
    changes: tuple[str, ...]
    spec: ApiSpec = field(init=False)

    def __post_init__(self) -> None:
        for file, url in zip(self.files, self.urls, strict=True):
            file.write_text(url)
        self.spec = ApiSpec(
            ApiPlan(namespace="n", name="a"),
            tuple(ConnectionSpec(name, str(file)) for name, file in zip("ab", self.files, strict=True)),
            tuple(self.query(f"q{n}") for n in range(4)),
            tuple(self.role(f"r{n}") for n in range(3)),
            tuple(self.key(n) for n in range(3)),
            place_of=lambda unit, name: f"{unit} {name}",
        )

    def query(self, name: str) -> QuerySpec:
        params = self.random.choice(PARAMS) if self.random.random() < 0.4 else ()
        sql = self.random.choice(STATEMENTS)
        if params:
            sql = "SELECT CAST(:x AS text) AS x FROM people"
        page = PageSpec(("id",), max_size=self.random.choice((10, 2000))) if self.random.random() < 0.3 else None
        returns = Returns.MANY if page else self.random.choice((Returns.MANY, Returns.ONE))
        return QuerySpec(name, self.random.choice("ab"), sql, params, returns, timeout_ms=self.random.choice((None, 500)), page=page)

    def role(self, name: str) -> RoleSpec:
        masks = {
            column: MaskSpec(column, self.random.choice(list(Mask))) for column in self.random.sample(COLUMNS, self.random.randrange(3))
        }
        tables = None if self.random.random() < 0.5 else tuple(self.random.sample(TABLES, 3))
        patterns = self.random.choice((("*",), ("q1", "q2"), ("q*",), ("q0",)))
        return RoleSpec(name, patterns, tables, tuple(masks.values()), self.random.random() < 0.3)

    def key(self, number: int) -> KeySpec:
        digest = self.random.choice("abc") * 64 if self.random.random() < 0.5 else f"{number:064}"
        cidrs = self.random.choice(((), ("10.0.0.0/8",), ("no",)))
        return KeySpec(f"n/k{number}", (digest,), f"r{self.random.randrange(4)}", self.random.choice(BINDS), cidrs=cidrs)  # type: ignore[arg-type]

    def swapped(self, units: tuple[Unit, ...], n: int, other: Unit) -> tuple[Unit, ...]:
        """The units with one of them changed: in one field only, most of the time."""
        name = self.random.choice([each.name for each in fields(other)])
        changed = replace(units[n], **{name: getattr(other, name)}) if self.random.random() < 0.8 else other
        return (*units[:n], changed, *units[n + 1 :])

    def edit(self) -> None:
        """One random change of the spec, the databases, or which database is meant."""
        spec, pick = self.spec, self.random.randrange(12)
        if pick == 0:
            n = self.random.randrange(len(spec.queries))
            self.spec = replace(spec, queries=self.swapped(spec.queries, n, self.query(spec.queries[n].name)))
        elif pick == 1:
            names = [f"q{n}" for n in range(6)]
            kept = {query.name: query for query in spec.queries}
            chosen = self.random.sample(names, self.random.randrange(2, 6))
            self.spec = replace(spec, queries=tuple(kept.get(name) or self.query(name) for name in chosen))
        elif pick == 2:
            n = self.random.randrange(len(spec.roles))
            self.spec = replace(spec, roles=self.swapped(spec.roles, n, self.role(spec.roles[n].name)))
        elif pick == 3:
            chosen = self.random.sample([f"r{n}" for n in range(4)], self.random.randrange(1, 4))
            held = {role.name: role for role in spec.roles}
            self.spec = replace(spec, roles=tuple(held.get(name) or self.role(name) for name in chosen))
        elif pick == 4 and spec.keys:
            n = self.random.randrange(len(spec.keys))
            self.spec = replace(spec, keys=self.swapped(spec.keys, n, self.key(int(spec.keys[n].id[-1]))))
        elif pick in (4, 5):
            keys = {key.id: key for key in spec.keys}
            for number in self.random.sample(range(5), 2):
                if keys.pop(f"n/k{number}", None) is None or self.random.random() < 0.7:
                    keys[f"n/k{number}"] = self.key(number)
            self.spec = replace(spec, keys=tuple(keys.values()))
        elif pick == 6:
            a, b = spec.connections
            swapped = (b, a) if self.random.random() < 0.3 else (a, b)
            timeout_ms = self.random.choice((400, 30_000))
            self.spec = replace(spec, connections=(replace(swapped[0], statement_timeout_ms=timeout_ms), swapped[1]))
        elif pick == 7:
            self.random.choice(self.files).write_text(self.random.choice(self.urls))
        elif pick == 8:
            big = self.random.choice(list(BigNumbers))
            self.spec = replace(spec, api=spec.api.model_copy(update={"big_numbers": big}))
        else:
            self.alter(self.random.randrange(2), self.random.choice(self.changes))


def same(kept: Compiled, fresh: Compiled) -> None:
    assert kept.assembled.snapshot.to_json() == fresh.assembled.snapshot.to_json()
    assert kept.refusals == fresh.refusals
    assert [unit.detail for unit in kept.refusals] == [unit.detail for unit in fresh.refusals]
    assert (kept.warnings, kept.unreachable) == (fresh.warnings, fresh.unreachable)


def compare(world: World, steps: int) -> None:
    compiler = Compiler()
    last = compiler.compile(world.spec, 1)
    for _ in range(steps):
        world.edit()
        now = compiler.compile(world.spec, 1)
        same(now, Compiler().compile(world.spec, 1))
        last = now
        if now.unreachable:
            continue
        again = compiler.compile(world.spec, 1).assembled.snapshot
        assert all(a is b for a, b in zip(again.queries, now.assembled.snapshot.queries, strict=True))
        assert all(a is b for a, b in zip(again.roles, now.assembled.snapshot.roles, strict=True))
        assert all(a is b for a, b in zip(again.keys, now.assembled.snapshot.keys, strict=True))
    assert last.assembled.snapshot.queries


def sweep(world: World) -> None:
    """Every value of every field that verdicts depend on, one change at a time; most of them must show."""
    compiler = Compiler()
    shown = set()
    spec = replace(
        world.spec,
        queries=(
            *(QuerySpec(f"q{n}", "a", statement) for n, statement in enumerate(STATEMENTS)),
            QuerySpec("x", "a", "SELECT CAST(:x AS text) AS x FROM people", PARAMS[1]),
        ),
        roles=(RoleSpec("r0", masks=(MaskSpec("people.email", Mask.HASH),)), RoleSpec("r1", ("x",))),
        keys=(KeySpec("n/k0", ("a" * 64,), "r0"), KeySpec("n/k1", ("b" * 64,), "r1")),
    )

    def check(base: ApiSpec, edited: ApiSpec, name: str) -> None:
        before = compiler.compile(base, 1).assembled.snapshot.to_json()
        now = compiler.compile(edited, 1)
        same(now, Compiler().compile(edited, 1))
        if now.assembled.snapshot.to_json() != before:
            shown.add(name)

    masks = [(MaskSpec(column, mask),) for column in COLUMNS for mask in (Mask.HASH, Mask.NULL)]
    roles = {
        "filter_on_masked": (True, False),
        "tables": (None, *((table,) for table in TABLES)),
        "masks": ((), *masks),
        "queries": (("*",), ("q1",)),
    }
    keys = {"bind": BINDS, "cidrs": ((), ("10.0.0.0/8",), ("no",)), "sha256": (("b" * 64,), ("c" * 64,)), "role": ("r0", "r1", "none")}
    pages = (None, PageSpec(("id",)), PageSpec(("id",), max_size=2000), PageSpec(("email",)))
    queries = {"connection": ("b", "a"), "page": pages, "timeout_ms": (None, 5, 60_000), "returns": tuple(Returns)[:2], "sql": STATEMENTS}
    sides: tuple[tuple[str, int, dict[str, tuple[object, ...]]], ...] = (
        ("roles", 0, roles),
        ("keys", 1, keys),
        ("queries", 1, queries),
        ("queries", len(STATEMENTS), {"params": PARAMS[1:]}),
    )
    for unit, n, choices in sides:
        units = getattr(spec, unit)
        for name, values in choices.items():
            for first, value in itertools.pairwise((*values, values[0])):
                base, edited = (
                    replace(spec, **{unit: (*units[:n], replace(units[n], **{name: each}), *units[n + 1 :])}) for each in (first, value)
                )
                check(base, edited, name)
    for big in BigNumbers:
        check(spec, replace(spec, api=spec.api.model_copy(update={"big_numbers": big})), "big_numbers")
    assert shown == {*roles, *keys, *queries, "params", "big_numbers"}


CHANGES = (
    "ALTER TABLE people ADD COLUMN extra TEXT",
    "ALTER TABLE people DROP COLUMN extra",
    "ALTER TABLE orders RENAME COLUMN note TO remark",
    "ALTER TABLE orders RENAME COLUMN remark TO note",
    *(f"DROP VIEW contacts; CREATE VIEW contacts AS {view}" for view in VIEWS),
)


@pytest.mark.parametrize("seed", range(3))
def test_sqlite_after_any_edits(tmp_path: Path, seed: int) -> None:
    paths = tuple(tmp_path / f"{name}.db" for name in "ab")

    def alter(which: int, sql: str) -> None:
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(paths[which])
            connection.executescript(sql)
            connection.close()

    for which in range(2):
        for statement in SCHEMA[which:]:
            alter(which, statement)
    a, b = paths
    world = World(random.Random(seed), (f"sqlite:///{a}", f"sqlite:///{b}"), alter, (tmp_path / "ua", tmp_path / "ub"), CHANGES)
    if seed == 0:
        sweep(world)
    compare(world, 60)


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_postgres_after_any_edits(postgres: Postgres, tmp_path: Path) -> None:
    names = ("kept_a", "kept_b")
    postgres.psql("DROP ROLE IF EXISTS keeper; CREATE ROLE keeper LOGIN")
    for which, name in enumerate(names):
        postgres.psql(f"CREATE DATABASE {name}")
        statements = ";".join(SCHEMA[which:] if which == 0 else SCHEMA[1:2])
        postgres.psql(f"{statements}; CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY, note text)", name)

    def alter(which: int, sql: str) -> None:
        with suppress(RuntimeError):
            postgres.psql(sql.replace("@db", names[which]), names[which])

    changes = (
        *CHANGES,
        *(f"CREATE OR REPLACE VIEW contacts AS {view}" for view in VIEWS),
        "GRANT USAGE ON SCHEMA other TO keeper",
        "REVOKE USAGE ON SCHEMA other FROM keeper",
        "REVOKE TEMP ON DATABASE @db FROM PUBLIC",
        "GRANT TEMP ON DATABASE @db TO PUBLIC",
        "ALTER ROLE keeper SET search_path = other, public",
        "ALTER ROLE keeper RESET search_path",
        "CREATE OR REPLACE FUNCTION shout(text) RETURNS text LANGUAGE sql AS 'SELECT upper($1)'",
        "CREATE OR REPLACE FUNCTION lower(text) RETURNS text LANGUAGE sql AS 'SELECT upper($1)'",
        "ALTER ROLE keeper SUPERUSER",
        "ALTER ROLE keeper NOSUPERUSER",
        "ALTER TABLE people ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE people DROP CONSTRAINT people_pkey CASCADE",
        "ALTER TABLE people ADD PRIMARY KEY (id)",
        "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
    )
    urls = (postgres.url(names[0], "keeper"), postgres.url(names[1], "keeper"))
    world = World(random.Random(1), urls, alter, (tmp_path / "ua", tmp_path / "ub"), changes)
    # Every change of the database by itself, under every statement.
    queries = tuple(QuerySpec(f"s{n}", "a", statement) for n, statement in enumerate(STATEMENTS))
    paged = tuple(replace(query, name=f"p{n}", page=PageSpec(("id",))) for n, query in enumerate(queries))
    roles = (RoleSpec("masked", masks=(MaskSpec("people.email", Mask.HASH),)), RoleSpec("listed", tables=("people", "other.orders")))
    whole = replace(world.spec, queries=queries + paged, roles=roles)
    compiler = Compiler()
    noticed = 0
    for change in changes:
        before = compiler.compile(whole, 1).assembled.snapshot.to_json()
        alter(world.urls.index(world.files[0].read_text()), change)
        now = compiler.compile(whole, 1)
        same(now, Compiler().compile(whole, 1))
        noticed += now.assembled.snapshot.to_json() != before
    assert noticed > len(changes) / 3
    compare(world, 20)
