"""Databases and resources that change: plans die with what they depend on, and units refuse on their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tailrace_contract.plan import ApiPlan, Mask, ParamType, Pooler, QueryPlan, Returns
from tailrace_gateway.compile.compiler import Compiled, Compiler
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.pgbouncer import PgBouncer
from tailrace_loadtest.servers.postgres import Postgres

API = ApiPlan(namespace="retail", name="shop")
pytestmark = pytest.mark.postgres


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Postgres:
    postgres.psql("DROP DATABASE IF EXISTS changing")
    postgres.psql("CREATE DATABASE changing")
    postgres.psql(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, email text);"
        "INSERT INTO customers VALUES (1, 'Ann', 'ann@a.example');"
        "CREATE VIEW contacts AS SELECT id, name FROM customers",
        "changing",
    )
    (tmp_path / "url").write_text(postgres.url("changing"))
    return postgres


def spec(tmp_path: Path, *queries: QuerySpec, **more: Any) -> ApiSpec:
    base = ApiSpec(
        API,
        (ConnectionSpec("main", str(tmp_path / "url")),),
        queries or (QuerySpec("all", "main", "SELECT * FROM customers"), QuerySpec("view", "main", "SELECT * FROM contacts")),
        (RoleSpec("support", masks=(MaskSpec("customers.email", Mask.REDACT),)),),
        (KeySpec("retail/k", ("a" * 64,), "support"),),
    )
    return replace(base, **more)


def shown(compiled: Compiled, name: str) -> dict[str, str]:
    """Columns of a query with the mask of the first role."""
    snapshot = compiled.assembled.snapshot
    position = next(n for n, query in enumerate(snapshot.queries) if query.name == name)
    grant = next(grant for grant in snapshot.roles[0].grants if grant.query == position)
    masks = {mask.column: mask.with_.value for mask in grant.masks}
    return {column.name: masks.get(n, "") for n, column in enumerate(snapshot.queries[position].columns)}


def plan(compiled: Compiled, name: str) -> QueryPlan:
    return next(query for query in compiled.assembled.snapshot.queries if query.name == name)


def refusals(compiled: Compiled) -> set[tuple[str, str, str]]:
    return {(unit.unit, unit.name, unit.code) for unit in compiled.refusals}


def test_a_new_column_under_a_star_is_noticed_and_masked_from_its_first_plan(server: Postgres, tmp_path: Path) -> None:
    compiler, api = Compiler(), spec(tmp_path)
    before = compiler.compile(api, 1)
    assert shown(before, "all") == {"id": "", "name": "", "email": "redact"}
    assert compiler.stale(api) == ()
    server.psql("ALTER TABLE customers RENAME email TO mail; ALTER TABLE customers ADD email text DEFAULT 'secret'", "changing")
    # The shape that the old plan expects is no longer what the server describes: the data plane answers plan_stale, not a row.
    with psycopg.connect(server.url("changing"), autocommit=True) as connection:
        prepared = connection.pgconn.prepare(b"", plan(before, "all").statement.sql.encode())
        assert not prepared.error_message
        described = connection.pgconn.describe_prepared(b"")
        assert described.nfields != len(plan(before, "all").columns)
    assert compiler.stale(api) == ("main",)
    after = compiler.compile(api, 2)
    assert shown(after, "all") == {"id": "", "name": "", "mail": "", "email": "redact"}
    assert plan(after, "all").version != plan(before, "all").version


def test_a_view_that_is_redefined_under_a_mask(server: Postgres, tmp_path: Path) -> None:
    compiler, api = Compiler(), spec(tmp_path)
    before = compiler.compile(api, 1)
    assert shown(before, "view") == {"id": "", "name": ""}
    server.psql("CREATE OR REPLACE VIEW contacts AS SELECT id, email AS name FROM customers", "changing")
    # Same names, types and origins: only the fingerprint tells.
    assert compiler.stale(api) == ("main",)
    after = compiler.compile(api, 2)
    assert shown(after, "view") == {"id": "", "name": "redact"}
    assert plan(after, "view").columns == plan(before, "view").columns
    assert plan(after, "view").version != plan(before, "view").version
    server.psql("CREATE OR REPLACE VIEW contacts AS SELECT id, name FROM customers WHERE email LIKE 'a%'", "changing")
    assert shown(compiler.compile(api, 3), "view") == {"id": "null", "name": "null"}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE customers ALTER email TYPE varchar(99)",
        "ALTER TABLE customers ALTER name SET NOT NULL",
        "CREATE UNIQUE INDEX ON customers (email)",
        "ALTER TABLE customers DROP CONSTRAINT customers_pkey",
        "CREATE TABLE child () INHERITS (customers)",
        "CREATE TYPE mood AS ENUM ('ok')",
        "ALTER ROLE postgres IN DATABASE changing SET search_path = public, other",
        "CREATE SCHEMA postgres; CREATE TABLE postgres.customers (id int)",
        "ALTER TABLE customers RENAME TO people",
    ],
)
def test_every_change_that_plans_depend_on_is_noticed(server: Postgres, tmp_path: Path, change: str) -> None:
    compiler, api = Compiler(), spec(tmp_path)
    compiler.compile(api, 1)
    server.psql(change, "changing")
    assert compiler.stale(api) == ("main",)


def test_one_bad_unit_never_breaks_another(server: Postgres, tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("postgresql://no one@/x")
    (tmp_path / "other").write_text("oracle://x@y/z")
    connections = tuple(
        ConnectionSpec(name, str(tmp_path / file))
        for name, file in (("main", "url"), ("gone", "missing"), ("odd", "nonsense"), ("other", "other"))
    )
    queries = (
        QuerySpec("good", "main", "SELECT id, name FROM customers WHERE id = :id", (ParamSpec("id", ParamType.INTEGER),), Returns.ONE),
        QuerySpec("syntax", "main", "SELECT FROM WHERE"),
        QuerySpec("write", "main", "DELETE FROM customers"),
        QuerySpec("two", "main", "SELECT 1 AS x; SELECT 2 AS y"),
        QuerySpec("open", "main", "SELECT 'x"),
        QuerySpec("default", "main", "SELECT :d AS d", (ParamSpec("d", ParamType.INTEGER, default="x"),)),
        QuerySpec("a", "gone", "SELECT 1 AS x"),
        QuerySpec("b", "odd", "SELECT 1 AS x"),
        QuerySpec("c", "other", "SELECT 1 AS x"),
        QuerySpec("leak", "main", "SELECT id FROM customers ORDER BY email"),
    )
    keys = (
        KeySpec("retail/ok", ("a" * 64,), "support", {"id": 1}),
        KeySpec("retail/type", ("b" * 64,), "support", {"id": "one"}),
        KeySpec("retail/role", ("c" * 64,), "nobody"),
        KeySpec("retail/twin1", ("d" * 64,), "support"),
        KeySpec("retail/twin2", ("d" * 64,), "support"),
        KeySpec("retail/cidr", ("e" * 64,), "support", cidrs=("10.0.0.0/33",)),
        KeySpec("retail/raw", ("key",), "support"),
    )
    compiled = Compiler().compile(spec(tmp_path, *queries, connections=connections, keys=keys), 1)
    assert refusals(compiled) == {
        *(("query", "syntax", "database_refused"), ("query", "write", "not_read_only"), ("query", "two", "several_statements")),
        *(("query", "open", "not_parsed"), ("query", "default", "invalid_parameter"), ("query", "a", "missing_secret")),
        *(("query", "b", "invalid_url"), ("query", "c", "unsupported_engine"), ("grant", "leak", "mask_leak")),
        *(("key", f"retail/{name}", "invalid_key") for name in ("type", "role", "twin1", "twin2", "cidr", "raw")),
    }
    snapshot = compiled.assembled.snapshot
    assert [key.id for key in snapshot.keys] == ["retail/ok"]
    assert [query.name for query in snapshot.queries if query.refused is None] == ["good", "leak"]
    assert all(query.statement.sql == "" for query in snapshot.queries if query.refused is not None)
    text = repr(compiled.refusals) + str(compiled.warnings)
    assert "SELECT FROM" not in text
    assert "127.0.0.1" not in text


def test_an_unreachable_database_keeps_only_what_is_unchanged(server: Postgres, tmp_path: Path) -> None:
    compiler = Compiler()
    api = spec(tmp_path)
    first = compiler.compile(api, 1)
    server.stop()
    try:
        again = compiler.compile(api, 2)
        assert again.unreachable == ("main",)
        assert again.assembled.snapshot.queries == first.assembled.snapshot.queries
        assert again.assembled.snapshot.roles == first.assembled.snapshot.roles
        changed = replace(api, queries=(replace(api.queries[0], sql="SELECT id FROM customers"), api.queries[1]))
        compiled = compiler.compile(changed, 3)
        assert refusals(compiled) == {("query", "all", "database_unreachable")}
        # A narrower role applies although the database is away: its names are resolved from what was read.
        narrower = replace(api, roles=(replace(api.roles[0], tables=("contacts",)),))
        compiled = compiler.compile(narrower, 4)
        assert refusals(compiled) == {("grant", "all", "table_not_allowed")}
        stricter = replace(api, roles=(replace(api.roles[0], masks=(*api.roles[0].masks, MaskSpec("customers.name", Mask.NULL))),))
        assert shown(compiler.compile(stricter, 5), "all") == {"id": "", "name": "null", "email": "redact"}
        assert compiler.stale(api) == ()
    finally:
        server.start()
    assert refusals(compiler.compile(api, 6)) == set()


def test_a_mask_that_no_database_has_refuses_its_role(server: Postgres, tmp_path: Path) -> None:
    roles = (RoleSpec("typo", masks=(MaskSpec("customers.e_mail", Mask.NULL),)), RoleSpec("good"))
    compiled = Compiler().compile(spec(tmp_path, roles=roles, keys=()), 1)
    assert refusals(compiled) == {("grant", "all", "unknown_mask"), ("grant", "view", "unknown_mask")}
    assert [grant.refused for grant in compiled.assembled.snapshot.roles[1].grants] == [None, None]


def test_what_has_not_changed_is_not_asked_twice(server: Postgres, tmp_path: Path) -> None:
    compiler, api = Compiler(), spec(tmp_path)
    compiler.compile(api, 1)
    asked: list[str] = []
    original = psycopg.pq.PGconn.prepare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace_gateway.compile.postgres.session.Session.describe", lambda self, sql, params=(): asked.append(sql))
        compiler.compile(replace(api, roles=(*api.roles, RoleSpec("more"))), 2)
    assert asked == []
    assert original is psycopg.pq.PGconn.prepare


def test_the_version_of_a_query_says_what_its_answers_depend_on(server: Postgres, tmp_path: Path) -> None:
    api = spec(tmp_path)
    one, two = Compiler().compile(api, 1), Compiler().compile(replace(api, roles=(), keys=()), 9)
    assert plan(one, "all").version == plan(two, "all").version
    other = replace(api, queries=(replace(api.queries[0], timeout_ms=77), api.queries[1]))
    three = Compiler().compile(other, 1)
    assert plan(three, "all").version != plan(one, "all").version
    assert plan(three, "view").version == plan(one, "view").version


def test_behind_a_transaction_pooler_no_setting_stays(server: Postgres, tmp_path: Path) -> None:
    compiler = Compiler()
    with PgBouncer(server, pool_size=1) as pooler:
        (tmp_path / "url").write_text(pooler.url("changing"))
        api = spec(tmp_path, QuerySpec("bad", "main", "SELECT nothing"), *spec(tmp_path).queries)
        plain = ConnectionSpec("main", str(tmp_path / "url"), session=(("work_mem", "77MB"),), pooler=Pooler.TRANSACTION)
        compiled = compiler.compile(replace(api, connections=(plain,)), 1)
        assert refusals(compiled) == {("query", "bad", "database_refused")}
        assert shown(compiled, "all") == {"id": "", "name": "", "email": "redact"}
        # The pooler's only server connection is as it was.
        with psycopg.connect(pooler.url("changing"), autocommit=True) as caller:
            for setting in ("work_mem", "search_path", "timezone", "default_transaction_read_only"):
                value = caller.execute("SELECT setting = reset_val FROM pg_settings WHERE lower(name) = %s", (setting,)).fetchone()
                assert value == (True,)
