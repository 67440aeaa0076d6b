"""One statement for many callers: what is coalesced and what is not, and that each caller gets the rows that its own statement gives."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq
from tailrace_contract.plan import BigNumbers, ParamType, Pooler, Returns
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import CoalesceSpec, ConnectionSpec, PageSpec, ParamSpec, QuerySpec
from tailrace_loadtest.servers.postgres import Postgres

pytestmark = pytest.mark.postgres

SCHEMA = """
CREATE TYPE mood AS ENUM ('calm', 'loud');
CREATE DOMAIN code AS varchar(8);
CREATE TABLE people (id int8 PRIMARY KEY, path text NOT NULL UNIQUE, town int NOT NULL, name text, tags int[], mood mood, k code, at timestamptz, doc jsonb);
INSERT INTO people SELECT n, '/p/' || n, n % 500, CASE WHEN n % 7 > 0 THEN 'n"' || n END, ARRAY[n, NULL], CASE WHEN n % 2 = 0 THEN 'calm' ELSE 'loud' END::mood,
  'k' || n % 90, '2026-01-01'::timestamptz + n * interval '1 minute', jsonb_build_object('n', n) FROM generate_series(1, 20000) n;
CREATE INDEX ON people (town, id);
CREATE TABLE towns (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO towns SELECT n, 'town ' || n FROM generate_series(0, 499) n;
CREATE TABLE secret (id int PRIMARY KEY, owner text);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE VIEW over_secret AS SELECT id FROM secret;
CREATE VIEW named AS SELECT p.id, p.name, t.name AS town FROM people p JOIN towns t ON t.id = p.town;
ANALYZE;
"""
INT, S, A = ParamType.INTEGER, ParamType.STRING, True
SPEC = ConnectionSpec("main", "")


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    postgres.psql("CREATE DATABASE coalescing")
    postgres.psql(SCHEMA, "coalescing")
    return postgres


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(Session(server.url("coalescing")), SPEC)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def connection(server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.url("coalescing"), autocommit=True) as opened:
        yield opened


def p(name: str, type_: ParamType = INT, array: bool = False) -> ParamSpec:
    return ParamSpec(name, type_, array)


def facts(database: PostgresDatabase, sql: str, *params: ParamSpec, returns: Returns = Returns.ONE, **more: Any) -> Facts:
    return database.facts(QuerySpec("q", "main", sql, params, returns=returns, timeout_ms=500, **more), BigNumbers.NUMBER)


def why_not(database: PostgresDatabase, sql: str, *params: ParamSpec, **more: Any) -> str:
    found = facts(database, sql, *params, **more)
    assert (found.coalesce is None) == (found.not_coalesced_because != "")
    return found.not_coalesced_because


LOOKUPS = [
    ("SELECT id, name, tags, mood, at, doc FROM people WHERE id = :id", (p("id"),)),
    ("SELECT id, path FROM people WHERE path = :path", (p("path", S),)),
    ("SELECT t.name, count(*) AS n, max(p.id) AS newest FROM people p JOIN towns t ON t.id = p.town WHERE t.id = :town GROUP BY t.name", (p("town"),)),
    ("SELECT * FROM named WHERE id = :id", (p("id"),)),
    ("SELECT name FROM people WHERE id = ANY(:ids) ORDER BY id", (p("ids", INT, A),)),
    ("SELECT coalesce(:s, 'none') AS given, id FROM people WHERE id = :id", (p("s", S), p("id"))),
    ("WITH one AS (SELECT * FROM people WHERE id = :id) SELECT o.id, $$:id$$ AS text, o.id::text AS \"t::x\" -- :id\n FROM one o", (p("id"),)),
    ("SELECT id FROM people WHERE id = :id UNION ALL SELECT town FROM people WHERE id = :other", (p("id"), p("other"))),
    ("SELECT E'it''s \\'q\\' :id' AS text, id, tags[1:1] AS some FROM people WHERE id = :id /* :id */ --", (p("id"),)),
]  # fmt: skip
LISTS = [
    ("SELECT id, name FROM people WHERE town = :town ORDER BY id LIMIT 5", (p("town"),)),
    ("SELECT id FROM people WHERE town = :town AND id > :least ORDER BY id LIMIT 40", (p("town"), p("least"))),
]


@pytest.mark.parametrize(("sql", "params"), LOOKUPS)
def test_look_ups_are_coalesced(database: PostgresDatabase, sql: str, params: tuple[ParamSpec, ...]) -> None:
    found = facts(database, sql, *params, coalesce=CoalesceSpec(64, 3))
    assert found.not_coalesced_because == ""
    assert found.coalesce is not None
    assert (found.coalesce.max_batch, found.coalesce.max_in_flight, found.coalesce.shadow) == (64, 3, 20)
    assert found.coalesce.statement.params == found.statement.params
    assert "LIMIT 2)" in found.coalesce.statement.sql


@pytest.mark.parametrize(("sql", "params"), LISTS)
def test_short_lists_are_coalesced(database: PostgresDatabase, sql: str, params: tuple[ParamSpec, ...]) -> None:
    assert why_not(database, sql, *params, returns=Returns.MANY) == ""


def test_array_types_come_from_the_catalog(database: PostgresDatabase) -> None:
    oids = [
        facts(database, f"SELECT id FROM people WHERE id = :id AND {more}", p("id"), p("x", type_, array)).coalesce
        for more, type_, array in (("path = :x", S, False), ("mood = :x", S, False), ("k = :x", S, False), ("tags = :x", INT, True))
    ]
    mood = next(info for info in database.catalog.types.known.values() if info.name == "mood")
    assert [plan.statement.oids[1] for plan in oids if plan is not None] == [1009, mood.array, 1009, 1009]


@pytest.mark.parametrize(
    ("why", "sql", "params", "more"),
    [
        ("off", "SELECT id FROM people WHERE id = :id", (p("id"),), {"coalesce": None}),
        ("no_parameters", "SELECT count(*) AS n FROM towns", (), {}),
        ("many_rows", "SELECT id FROM people WHERE town = :town LIMIT 101", (p("town"),), {"returns": Returns.MANY}),
        ("exclusive", "SELECT id FROM people WHERE town = :town", (p("town"),), {"returns": Returns.MANY}),
        # Evaluated once for all callers.
        ("exclusive", "SELECT id, random() AS r FROM people WHERE id = :id", (p("id"),), {}),
        ("exclusive", "SELECT id, (SELECT random()) AS r FROM people WHERE id = :id", (p("id"),), {}),
        ("paged", "SELECT id FROM people WHERE town = :town", (p("town"),), {"returns": Returns.MANY, "page": PageSpec(("id",))}),
        ("row_security", "SELECT id FROM secret WHERE id = :id", (p("id"),), {}),
        ("row_security", "SELECT id FROM over_secret WHERE id = :id", (p("id"),), {}),
        # An aggregate whose only argument is a parameter belongs to the outer query there.
        ("not_prepared", "SELECT sum(:n) AS s, max(id) AS m FROM people WHERE id = :id", (p("n"), p("id")), {}),
        # These lose the index as soon as the planner doesn't know the value: 0.4 ms became 608 ms for three callers.
        ("sequential_scan", "SELECT name FROM people WHERE (:id IS NULL OR id = :id)", (p("id"),), {}),
        ("sequential_scan", "SELECT id FROM people WHERE path LIKE :path", (p("path", S),), {}),
    ],
)
def test_what_is_not_coalesced(database: PostgresDatabase, why: str, sql: str, params: tuple[ParamSpec, ...], more: dict[str, Any]) -> None:
    assert why_not(database, sql, *params, **more) == why


def test_behind_a_pooler_nothing_is(server: Postgres) -> None:
    spec = replace(SPEC, pooler=Pooler.TRANSACTION)
    database = PostgresDatabase(Session(server.url("coalescing"), pooled=True), spec)
    assert why_not(database, "SELECT id FROM people WHERE id = :id", p("id")) == "pooler"
    database.close()


def test_a_row_lock_is_not_coalesced(server: Postgres) -> None:
    database = PostgresDatabase(Session(server.url("coalescing")), SPEC)
    try:
        assert why_not(database, "SELECT id FROM people WHERE id = :id FOR SHARE", p("id")) == "locks"
    except RefusedError:
        pass  # a read-only session refuses the lock, and with it the query
    finally:
        database.close()


@pytest.mark.parametrize("name", ["tailrace_batch", "TAILRACE_BATCH_ROWS", '"tailrace_batch_one"'])
def test_our_own_names_are_refused(database: PostgresDatabase, name: str) -> None:
    with pytest.raises(RefusedError):
        facts(database, f"SELECT {name}.id FROM people AS {name} WHERE {name}.id = :id", p("id"))


def test_a_number_against_a_bigint_keeps_its_index(database: PostgresDatabase) -> None:
    """Typed numeric it would be scanned; Describe of the original says int8 for a declared integer."""
    found = facts(database, "SELECT name FROM people WHERE id = :id", p("id", INT))
    assert found.coalesce is not None
    assert found.coalesce.statement.oids == (1016,)


def test_a_small_table_is_not_hashed(database: PostgresDatabase, connection: psycopg.Connection[Any]) -> None:
    found = facts(database, "SELECT name FROM towns WHERE id = :id", p("id"))
    assert found.coalesce is not None
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(f"PREPARE small (int8[]) AS {found.coalesce.statement.sql}".encode())
    plan = "\n".join(row[0] for row in connection.execute("EXPLAIN EXECUTE small (NULL)").fetchall())
    connection.execute("DEALLOCATE small")
    assert "Hash" not in plan
    assert "Index Scan using towns_pkey" in plan


def test_whether_callers_share_changes_no_version(database: PostgresDatabase) -> None:
    """Else a change of the planner's statistics would end every cursor."""
    shared = facts(database, *LOOKUPS[0][:1], *LOOKUPS[0][1])
    alone = facts(database, *LOOKUPS[0][:1], *LOOKUPS[0][1], coalesce=None)
    assert (shared.statement, shared.columns, shared.coalesce is None, alone.coalesce is None) == (
        alone.statement, alone.columns, False, True,
    )  # fmt: skip


Row = tuple[bytes | None, ...]


def rows(connection: psycopg.Connection[Any], sql: str, oids: Sequence[int], values: Sequence[str | None]) -> list[Row]:
    result = connection.pgconn.exec_params(sql.encode(), [None if value is None else value.encode() for value in values], list(oids))
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    return [tuple(result.get_value(n, column) for column in range(result.nfields)) for n in range(result.ntuples)]


def element(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def batched(connection: psycopg.Connection[Any], found: Facts, callers: Sequence[Sequence[str | None]]) -> list[list[Row]]:
    """Each caller's rows, by `ord`."""
    assert found.coalesce is not None
    statement = found.coalesce.statement
    arrays = ["{" + ",".join(element(caller[n]) for caller in callers) + "}" for n in range(len(statement.params))]
    answers: list[list[Row]] = [[] for _ in callers]
    for row in rows(connection, statement.sql, statement.oids, arrays):
        answers[int(row[0] or 0) - 1].append(row[1:])
    return answers


def values(param: ParamSpec) -> st.SearchStrategy[str | None]:
    numbers = st.one_of(st.integers(-2, 30), st.integers(1, 20000), st.just(499))
    if param.array:
        return st.one_of(st.none(), st.lists(numbers.map(str), max_size=4).map(lambda items: "{" + ",".join(items) + "}"))
    if param.type is S:
        return st.one_of(st.none(), numbers.map(lambda n: f"/p/{n}"), st.sampled_from(["", 'a"b', "x\\y", "{1,2}", "NULL", "é,🙂"]))
    return st.one_of(st.none(), numbers.map(str))


@given(data=st.data(), which=st.integers(0, len(LOOKUPS) + len(LISTS) - 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_each_caller_gets_its_own_rows(
    database: PostgresDatabase, connection: psycopg.Connection[Any], data: st.DataObject, which: int
) -> None:
    (sql, params), returns = [*((each, Returns.ONE) for each in LOOKUPS), *((each, Returns.MANY) for each in LISTS)][which]
    found = facts(database, sql, *params, returns=returns)
    drawn = data.draw(st.lists(st.tuples(*(values(params[n]) for n in found.statement.params)), min_size=1, max_size=12))
    cap = 2 if returns is Returns.ONE else 41
    singly = [rows(connection, found.statement.sql, found.statement.oids, caller)[:cap] for caller in drawn]
    assert batched(connection, found, drawn) == singly
