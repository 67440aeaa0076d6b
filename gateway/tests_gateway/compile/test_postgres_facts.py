"""Types, encodings, lanes, pages and masks against a real PostgreSQL."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, Encoding, Mask, ParamType, Returns
from tailrace_gateway.compile.decision import decide
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError, queries, read
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, MaskSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.postgres import Postgres

pytestmark = pytest.mark.postgres

SCHEMA = """
CREATE SCHEMA shop;
CREATE TYPE shop.tier AS ENUM ('basic', 'gold');
CREATE DOMAIN shop.code AS varchar(8) CHECK (VALUE <> '');
CREATE TYPE shop.pair AS (a int, b text);
CREATE TABLE shop.t (
    id int8 PRIMARY KEY, small int2 NOT NULL, middle int4, n numeric(40, 3), f float8, b bool, s text, v varchar(10), c char(3), k shop.code, e shop.tier,
    u uuid, d date, ti time, ts timestamp, tz timestamptz, j json, jb jsonb, y bytea, ia int4[], ta text[], ea shop.tier[], bx box[], p shop.pair, r int4range,
    ip inet, iv interval, m money, o oid, tt timetz, bi bit(3)
);
CREATE TABLE shop.customers (id int PRIMARY KEY, email text NOT NULL UNIQUE, nick text UNIQUE, name text NOT NULL);
CREATE TABLE shop.orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES shop.customers, placed timestamptz NOT NULL, note text);
CREATE UNIQUE INDEX ON shop.orders (placed, customer);
CREATE UNIQUE INDEX part ON shop.orders (note) WHERE note <> '';
CREATE TABLE shop.lines (order_id int NOT NULL REFERENCES shop.orders, line int NOT NULL, sku text NOT NULL, PRIMARY KEY (order_id, line));
CREATE VIEW shop.order_view AS SELECT o.id, o.placed, c.name FROM shop.orders o JOIN shop.customers c ON c.id = o.customer;
CREATE TABLE shop.parent (id int PRIMARY KEY);
CREATE TABLE shop.child () INHERITS (shop.parent);
INSERT INTO shop.customers SELECT n, 'c' || n || '@x.example', NULL, 'n' || n FROM generate_series(1, 20) n;
INSERT INTO shop.orders SELECT n, 1 + n % 20, '2026-01-01'::timestamptz + (n % 7) * interval '1 hour', NULL FROM generate_series(1, 100) n;
INSERT INTO shop.lines SELECT o, l, 'sku' || l FROM generate_series(1, 100) o, generate_series(1, 3) l;
CREATE ROLE reader LOGIN;
GRANT USAGE ON SCHEMA shop TO reader;
GRANT SELECT ON ALL TABLES IN SCHEMA shop TO reader;
CREATE ROLE owner_of_one LOGIN;
CREATE SCHEMA mine AUTHORIZATION owner_of_one;
"""


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    postgres.psql("CREATE DATABASE facts")
    postgres.psql(SCHEMA, "facts")
    return postgres


SPEC = ConnectionSpec("main", "", session=(("search_path", "shop, public"),))


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(Session(server.url("facts"), SPEC.session), SPEC)
    yield opened
    opened.close()


def facts(
    database: PostgresDatabase, sql: str, *params: ParamSpec, page: PageSpec | None = None, big: BigNumbers = BigNumbers.NUMBER, **more: Any
) -> Facts:
    return database.facts(QuerySpec("q", "main", sql, params, page=page, **more), big)


def refusal(database: PostgresDatabase, sql: str, *params: ParamSpec, **more: Any) -> Refusal:
    with pytest.raises(RefusedError) as refused:
        facts(database, sql, *params, **more)
    assert sql not in refused.value.hint
    return refused.value.code


@pytest.mark.parametrize(
    ("column", "encoding", "array"),
    [
        *(("id", "raw", False), ("small", "raw", False), ("middle", "raw", False), ("n", "number", False), ("f", "number", False)),
        *(("b", "boolean", False), ("s", "string", False), ("v", "string", False), ("c", "string", False), ("k", "string", False)),
        *(("e", "string", False), ("u", "string", False), ("d", "string", False), ("ti", "string", False), ("ts", "timestamp", False)),
        *(("tz", "timestamptz", False), ("j", "json", False), ("jb", "json", False), ("y", "base64", False), ("ia", "raw", True)),
        *(("ta", "string", True), ("ea", "string", True), ("bx", "string", True), ("p", "string", False), ("r", "string", False)),
        *(("ip", "string", False), ("iv", "string", False), ("m", "string", False), ("o", "string", False), ("tt", "string", False)),
        ("bi", "string", False),
    ],
)
def test_encoding_of_each_type(database: PostgresDatabase, column: str, encoding: str, array: bool) -> None:
    plan = facts(database, f"SELECT {column} FROM t").columns[0]
    assert (plan.encoding, plan.array, plan.delimiter) == (encoding, array, ";" if column == "bx" else ",")
    assert plan.table_oid
    assert plan.column_number


def test_big_numbers_are_strings_when_asked_for(database: PostgresDatabase) -> None:
    columns = facts(database, "SELECT id, n, middle, f, array_agg(id) AS ids FROM t GROUP BY 1, 2, 3, 4", big=BigNumbers.STRING).columns
    assert [column.encoding for column in columns] == [Encoding.QUOTED, Encoding.QUOTED, Encoding.RAW, Encoding.NUMBER, Encoding.QUOTED]


W, N, S, B = ParamType.INTEGER, ParamType.NUMBER, ParamType.STRING, ParamType.BOOLEAN


@pytest.mark.parametrize(
    ("sql", "param", "oid"),
    [
        ("SELECT id FROM t WHERE id = :x", ParamSpec("x", W), 20),
        ("SELECT id FROM t WHERE small = :x", ParamSpec("x", W), 20),
        ("SELECT left(s, :x) AS l FROM t", ParamSpec("x", W), 23),
        ("SELECT id FROM t LIMIT :x", ParamSpec("x", W), 20),
        ("SELECT id FROM t WHERE middle = ANY (:x)", ParamSpec("x", W, array=True), 1016),
        ("SELECT :x AS x", ParamSpec("x", W), 20),
        ("SELECT id FROM t WHERE n > :x", ParamSpec("x", N), 1700),
        ("SELECT id FROM t WHERE f > :x", ParamSpec("x", N), 701),
        ("SELECT id FROM t WHERE middle > :x", ParamSpec("x", N), 1700),
        ("SELECT id FROM t WHERE s = :x", ParamSpec("x", S), 25),
        ("SELECT id FROM t WHERE v = :x", ParamSpec("x", S), 25),
        ("SELECT id FROM t WHERE ip << :x", ParamSpec("x", S), 869),
        ("SELECT id FROM t WHERE u = :x", ParamSpec("x", ParamType.UUID), 2950),
        ("SELECT id FROM t WHERE d = :x", ParamSpec("x", ParamType.DATE), 1082),
        ("SELECT id FROM t WHERE tz > :x", ParamSpec("x", ParamType.TIMESTAMP), 1184),
        ("SELECT id FROM t WHERE ts > :x", ParamSpec("x", ParamType.TIMESTAMP), 1114),
        ("SELECT id FROM t WHERE b = :x", ParamSpec("x", B), 16),
        ("SELECT id FROM t WHERE jb @> :x", ParamSpec("x", ParamType.JSON), 3802),
        ("SELECT id FROM t WHERE s = ANY (:x)", ParamSpec("x", S, array=True), 1009),
        ("SELECT :x AS x", ParamSpec("x", B), 16),
        ("SELECT id FROM t WHERE :x IS NULL OR s = :x", ParamSpec("x", S, nullable=True), 25),
    ],
)
def test_types_of_parameters(database: PostgresDatabase, sql: str, param: ParamSpec, oid: int) -> None:
    assert facts(database, sql, param).statement.oids == (oid,)


def test_an_integer_that_cannot_be_wide_is_narrowed(database: PostgresDatabase) -> None:
    plan = facts(database, "SELECT left(s, :x) AS l FROM t", ParamSpec("x", W, minimum="-5")).params[0]
    assert (plan.minimum, plan.maximum) == ("-5", "2147483647")
    plan = facts(
        database, "SELECT left(s, :x) AS l FROM t WHERE id = :y", ParamSpec("y", W), ParamSpec("x", W, maximum="9999999999")
    ).params[1]
    assert (plan.name, plan.minimum, plan.maximum) == ("x", "-2147483648", "2147483647")


@pytest.mark.parametrize(
    ("sql", "param"),
    [
        ("SELECT id FROM t WHERE id = :x", ParamSpec("x", S)),
        ("SELECT id FROM t WHERE b = :x", ParamSpec("x", W)),
        ("SELECT id FROM t WHERE d = :x", ParamSpec("x", B)),
        ("SELECT id FROM t WHERE jb @> :x", ParamSpec("x", ParamType.UUID)),
        ("SELECT id FROM t WHERE id = ANY (:x)", ParamSpec("x", W)),
    ],
)
def test_a_parameter_of_another_type_is_refused(database: PostgresDatabase, sql: str, param: ParamSpec) -> None:
    assert refusal(database, sql, param) is Refusal.DATABASE_REFUSED


@pytest.mark.parametrize(
    ("sql", "more", "because"),
    [
        ("SELECT s FROM t WHERE id = 1", {"returns": Returns.ONE, "timeout_ms": 500}, ""),
        ("SELECT s FROM t WHERE id = 1", {"returns": Returns.ONE, "timeout_ms": 60_000}, ""),
        ("SELECT s FROM t WHERE id = 1", {"returns": Returns.ONE}, ""),
        ("SELECT s FROM t", {"timeout_ms": 500}, "unbounded_rows"),
        ("SELECT s FROM t LIMIT 1000", {"timeout_ms": 500}, ""),
        ("SELECT s FROM t LIMIT 1001", {"timeout_ms": 500}, "unbounded_rows"),
        ("SELECT random() AS r", {"returns": Returns.ONE, "timeout_ms": 500}, "volatile_function"),
        ("SELECT id FROM t TABLESAMPLE SYSTEM (1)", {"returns": Returns.ONE, "timeout_ms": 500}, "volatile_function"),
        ("DELETE FROM t", {"returns": Returns.NONE, "timeout_ms": 500, "write": True}, "write"),
    ],
)
def test_lanes(database: PostgresDatabase, sql: str, more: dict[str, Any], because: str) -> None:
    assert facts(database, sql, **more).exclusive_because == because


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, name FROM customers", ("id",)),
        ("SELECT email, name FROM customers", ("email",)),
        ("SELECT id, name FROM customers", ("name", "id")),
        ("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer", ("id",)),
        ("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer", ("id",)),
        ("SELECT o.id, c.name FROM customers c RIGHT JOIN orders o ON c.id = o.customer", ("id",)),
        ("SELECT o.id, l.line, l.sku FROM orders o, lines l WHERE l.order_id = o.id", ("id", "line")),
        ("SELECT order_id, line FROM lines", ("order_id", "line")),
        ("SELECT line, sku FROM lines WHERE order_id = 5", ("line",)),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", ("customer",)),
        ("SELECT DISTINCT customer FROM orders", ("customer",)),
        ("WITH x AS (SELECT * FROM orders) SELECT id, note FROM x", ("id",)),
        ("SELECT x.id FROM (SELECT id FROM orders WHERE note IS NULL) x", ("id",)),
        ("SELECT id, name FROM order_view", ("id",)),
        ("SELECT id, placed FROM orders ORDER BY placed DESC", ("placed", "id")),
        ("SELECT id, placed FROM orders ORDER BY placed DESC, id DESC", ("placed", "id")),
        ("SELECT customer AS c, placed AS p FROM orders -- the end", ("p", "c")),
        ("SELECT id, note FROM orders WHERE customer IN (SELECT id FROM customers)", ("id",)),
        ("SELECT o.id FROM orders o JOIN customers c USING (id)", ("id",)),
    ],
)
def test_pages_show_every_row_once(server: Postgres, database: PostgresDatabase, sql: str, key: tuple[str, ...]) -> None:
    found = facts(database, sql, page=PageSpec(key, 7, 100))
    page = found.page
    assert page is not None
    assert len(page.first.oids) == 1
    assert len(page.next.oids) == len(key) + 1
    with psycopg.connect(server.url("facts"), autocommit=True, options="-csearch_path=shop") as connection:
        raw = connection.pgconn
        every = [raw.exec_params(sql.encode(), None)]
        rows = [tuple(every[0].get_value(n, c) for c in range(every[0].nfields)) for n in range(every[0].ntuples)]
        seen: list[tuple[bytes | None, ...]] = []
        last: tuple[bytes | None, ...] | None = None
        while True:
            statement = page.first if last is None else page.next
            keys = [] if last is None else [last[each.column] for each in page.keys]
            result = raw.exec_params(statement.sql.encode(), [*keys, b"7"], param_types=statement.oids)
            assert not result.error_message
            assert [result.ftable(n) for n in range(result.nfields)] == [column.table_oid for column in found.columns]
            got = [tuple(result.get_value(n, c) for c in range(result.nfields)) for n in range(result.ntuples)]
            if not got:
                break
            seen += got
            last = got[-1]
        assert len(seen) == len(rows)
        assert sorted(seen, key=repr) == sorted(rows, key=repr)
        if "ORDER BY placed DESC" in sql:
            assert [row[1] for row in seen] == sorted((row[1] for row in seen), reverse=True)


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, name FROM customers", ("name",)),
        ("SELECT id, nick FROM customers", ("nick",)),
        ("SELECT id, nick FROM customers", ("missing",)),
        ("SELECT id, name FROM customers", ("id", "id")),
        ("SELECT note, customer FROM orders", ("note",)),
        ("SELECT c.id, o.note FROM customers c JOIN orders o ON o.customer = c.id", ("id",)),
        ("SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer = c.id", ("id", "o")),
        ("SELECT a.id FROM customers a FULL JOIN customers b ON a.id = b.id", ("id",)),
        ("SELECT a.id FROM customers a, customers b", ("id",)),
        ("SELECT id FROM customers UNION ALL SELECT id FROM orders", ("id",)),
        ("SELECT id, generate_series(1, 2) AS g FROM customers", ("id",)),
        ("SELECT id FROM parent", ("id",)),
        ("SELECT id + 0 AS id FROM customers", ("id",)),
        ("SELECT line, sku FROM lines WHERE order_id > 5", ("line",)),
        ("SELECT customer, note, count(*) AS n FROM orders GROUP BY customer, note", ("customer",)),
        ("SELECT customer FROM orders GROUP BY GROUPING SETS ((customer), ())", ("customer",)),
        ("SELECT id, name FROM customers ORDER BY name", ("id",)),
        ("SELECT id, name FROM customers ORDER BY id, name DESC", ("name", "id")),
        ("SELECT g AS id FROM generate_series(1, 3) g", ("id",)),
        ("SELECT t.id FROM customers t JOIN customers u ON lower(t.email) = u.email", ("id",)),
    ],
)
def test_keys_that_are_not_proven_are_refused(database: PostgresDatabase, sql: str, key: tuple[str, ...]) -> None:
    assert refusal(database, sql, page=PageSpec(key)) is Refusal.PAGE_KEY


def test_a_masked_page_key_refuses_the_role(database: PostgresDatabase) -> None:
    found = facts(database, "SELECT id, email FROM customers", page=PageSpec(("email",)))
    role = database.role(RoleSpec("r", masks=(MaskSpec("customers.email", Mask.HASH),), filter_on_masked=True))
    assert decide(found.lineage, role.rules, database.system, found.page_columns).refused is Refusal.PAGE_KEY
    paged = facts(database, "SELECT id, email FROM customers", page=PageSpec(("id",)))
    assert decide(paged.lineage, role.rules, database.system, paged.page_columns).refused is None


def masks(database: PostgresDatabase, sql: str, *specs: tuple[str, Mask], **more: Any) -> dict[str, str] | str:
    found = facts(database, sql)
    role = database.role(RoleSpec("r", masks=tuple(MaskSpec(column, mask) for column, mask in specs), **more))
    verdict = decide(found.lineage, role.rules, database.system)
    if verdict.refused is not None:
        return verdict.refused.value
    return {found.columns[mask.column].name: mask.with_.value for mask in verdict.masks}


EMAIL = ("customers.email", Mask.PARTIAL)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id, email FROM customers", {"email": "partial"}),
        ("SELECT * FROM customers", {"email": "partial", "name": "hash"}),
        ("SELECT email AS a, lower(email) AS b, 'x' AS c FROM customers", {"a": "partial", "b": "null"}),
        ("SELECT email::varchar AS a FROM customers", {"a": "partial"}),
        ("SELECT email AS x FROM customers UNION ALL SELECT note FROM orders", {"x": "partial"}),
        ("SELECT note AS x FROM orders UNION ALL SELECT email FROM customers", {"x": "partial"}),
        ("SELECT upper(email) AS x FROM customers UNION ALL SELECT email FROM customers", {"x": "null"}),
        ("SELECT email AS x FROM customers UNION ALL SELECT name FROM customers", {"x": "null"}),
        ("SELECT c AS x FROM customers c", {"x": "null"}),
        ("SELECT (SELECT email FROM customers WHERE id = 1) AS x", {"x": "partial"}),
        ("SELECT name FROM order_view", {"name": "hash"}),
        ("SELECT id FROM orders", {}),
    ],
)
def test_which_mask_a_column_gets(database: PostgresDatabase, sql: str, expected: dict[str, str]) -> None:
    assert masks(database, sql, EMAIL, ("shop.customers.name", Mask.HASH)) == expected


def test_filtering_on_masked_columns_is_a_choice(database: PostgresDatabase) -> None:
    sql = "SELECT id, email FROM customers WHERE email LIKE 'a%' ORDER BY email"
    assert masks(database, sql, EMAIL) == "mask_leak"
    assert masks(database, sql, EMAIL, filter_on_masked=True) == {"email": "partial"}


def test_names_of_rules_resolve_as_in_sql(database: PostgresDatabase) -> None:
    role = database.role(
        RoleSpec(
            "r",
            tables=("Customers", 'shop."orders"', "nowhere", '"Orders"'),
            masks=(MaskSpec('"customers"."E"', Mask.NULL), MaskSpec("CUSTOMERS.EMAIL", Mask.NULL)),
        )
    )
    names = {database.table_name(table) for table in role.rules.tables or ()}
    assert names == {"shop.customers", "shop.orders"}
    assert role.unresolved == {'"customers"."E"'}
    assert {database.column_name(origin) for origin in role.rules.masks} == {"shop.customers.email"}


def test_writes_are_decided_by_the_same_rules(server: Postgres, database: PostgresDatabase) -> None:
    def decided(sql: str, **more: Any) -> tuple[str | None, dict[str, str]]:
        found = facts(database, sql, write=True)
        role = database.role(RoleSpec("r", masks=(MaskSpec(*EMAIL),), **more))
        verdict = decide(found.lineage, role.rules, database.system)
        return verdict.refused, {found.columns[mask.column].name: mask.with_.value for mask in verdict.masks}

    assert decided("INSERT INTO customers VALUES (99, 'e', 'n', 'x') RETURNING id, email") == (None, {"email": "partial"})
    assert decided("UPDATE customers SET email = 'x' WHERE id = 1 RETURNING email, lower(email) AS l") == (
        None,
        {"email": "partial", "l": "null"},
    )
    assert decided("UPDATE customers SET email = 'x' WHERE id = 1") == (None, {})
    assert decided("UPDATE customers SET name = email")[0] == "mask_leak"
    assert decided("UPDATE customers SET name = 'x' WHERE email = 'a'")[0] == "mask_leak"
    assert decided("DELETE FROM orders USING customers c WHERE c.id = customer AND c.email = 'a'")[0] == "mask_leak"
    assert decided("INSERT INTO orders SELECT id, id, now(), email FROM customers")[0] == "mask_leak"
    assert decided("INSERT INTO customers VALUES (1, 'e', 'n', 'x') ON CONFLICT (id) DO UPDATE SET email = excluded.email") == (None, {})
    assert decided("INSERT INTO customers VALUES (1, 'e', 'n', 'x') ON CONFLICT (email) DO NOTHING")[0] == "mask_leak"
    assert decided("DELETE FROM orders WHERE id = 1", tables=("orders",)) == (None, {})
    assert decided("DELETE FROM orders WHERE id = 1", tables=("customers",))[0] == "table_not_allowed"
    assert decided("DELETE FROM orders WHERE customer IN (SELECT id FROM customers)", tables=("orders",))[0] == "table_not_allowed"
    assert decided("UPDATE orders SET note = 'x' WHERE id IN (SELECT id FROM orders LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id") == (
        None,
        {},
    )
    for sql in (
        "SELECT 1 AS x",
        "WITH x AS (DELETE FROM orders RETURNING id) INSERT INTO customers SELECT id, '', '', '' FROM x",
        "CREATE TABLE x (y int)",
    ):
        assert refusal(database, sql, write=True) in (Refusal.NOT_READ_ONLY, Refusal.NOT_PARSED)
    assert server.psql("SELECT count(*) FROM shop.customers", "facts") == "20\n"


def test_warnings_of_the_databases_role(server: Postgres) -> None:
    def warnings(user: str) -> tuple[str, ...]:
        with Session(server.url("facts", user), SPEC.session) as session:
            return PostgresDatabase(session, SPEC).warnings()

    assert "superuser" in warnings("postgres")[0]
    assert warnings("reader") == ()
    server.psql("CREATE TABLE mine.own (id int)", "facts", user="owner_of_one")
    assert "owns tables" in warnings("owner_of_one")[0]


def test_settings_that_answers_depend_on_are_pinned(server: Postgres) -> None:
    spec = replace(SPEC, session=(("timezone", "Europe/Rome"),))
    with Session(server.url("facts"), spec.session) as session, pytest.raises(RefusedError):
        PostgresDatabase(session, spec)


def test_the_search_path_begins_and_ends_with_the_systems(database: PostgresDatabase) -> None:
    assert dict(database.session)["search_path"] == 'pg_catalog, "shop", "public", pg_temp'
    assert database.catalog.search_path[0] == "pg_catalog"


ATOM = st.one_of(st.integers(-5, 99).map(str), st.text("abc:;<>\\ (){}\"'é", min_size=1, max_size=8))


def _escaped(text: str) -> str:
    """Every character behind a backslash, which outToken does where it must."""
    return "".join("\\" + c for c in text)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.from_regex("[a-z]{1,6}", fullmatch=True), ATOM, min_size=1, max_size=5))
def test_node_trees_keep_every_value(values: dict[str, str]) -> None:
    text = "{NODE " + " ".join(f":{name} {_escaped(value)}" for name, value in values.items()) + "}"
    node = read(text)
    assert isinstance(node, Node)
    assert node.fields == values


@given(st.text('{}()<>: abQUERY\\"[]1', max_size=40))
def test_broken_trees_are_refused_and_never_crash(text: str) -> None:
    try:
        read(text)
    except NotATreeError:
        return


def test_a_tree_must_be_a_query() -> None:
    with pytest.raises(NotATreeError):
        queries("({CONST :x 1})")
