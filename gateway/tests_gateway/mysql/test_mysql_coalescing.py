"""Batches on a real MariaDB: what is rewritten and what is not, and that a batch answers what its singles do, for random data."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tailrace_contract.plan import BigNumbers, MysqlPlace, ParamType, Returns, StatementPlan
from tailrace_contract.uri_parts import Files
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.mysql.database import MysqlDatabase
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.spec import CoalesceSpec, ConnectionSpec, PageSpec, ParamSpec, QuerySpec
from tailrace_gateway.serve.mysql.connect import Connection
from tailrace_loadtest.servers.mariadb import Mariadb

SCHEMA = """
CREATE DATABASE batches; USE batches;
CREATE TABLE users (path varchar(64) COLLATE utf8mb4_bin PRIMARY KEY, id bigint NOT NULL UNIQUE, name varchar(40) NOT NULL, tier varchar(12));
CREATE TABLE people (name varchar(40) PRIMARY KEY, latin varchar(20) CHARACTER SET latin1 UNIQUE, born date, score double);
CREATE TABLE orders (district int, number int, customer bigint NOT NULL, note varchar(20), PRIMARY KEY (district, number), KEY (customer, number));
CREATE TABLE order_lines (district int, order_number int, number tinyint, item int NOT NULL, amount decimal(8, 2), PRIMARY KEY (district, order_number, number));
INSERT INTO users SELECT concat('/users/', seq), seq, concat('User ', seq), elt(1 + seq % 4, 'free', 'pro', NULL, 'é') FROM seq_1_to_2000;
INSERT INTO people SELECT concat('Name ', seq), concat('l', seq), '2000-01-01' + INTERVAL seq DAY, seq / 7 FROM seq_1_to_500;
INSERT INTO people VALUES ('Straße', NULL, NULL, NULL), ('𝄞', 'x', NULL, 1), ('', 'y', NULL, 2), ('ÀÉ', 'z', NULL, 3), ('back\\\\slash "q"', 'w', NULL, 4);
INSERT INTO orders SELECT 1 + seq % 20, 1 + seq DIV 20, 1 + seq % 700, if(seq % 3, 'n', NULL) FROM seq_0_to_1999;
INSERT INTO order_lines SELECT o.district, o.number, s.seq, s.seq * 3 + o.customer % 11, s.seq * 1.5 FROM orders o JOIN seq_1_to_5 s;
CREATE TABLE traps (id int PRIMARY KEY, tailrace_batch_p1 int);
ANALYZE TABLE users, people, orders, order_lines;
"""
INT, STR = ParamType.INTEGER, ParamType.STRING


@pytest.fixture(scope="module")
def server(mariadb: Mariadb) -> Mariadb:
    mariadb.sql(SCHEMA)
    return mariadb


@pytest.fixture(scope="module")
def database(server: Mariadb) -> Iterator[MysqlDatabase]:
    opened = MysqlDatabase(Session(server.url("batches"), (), Files()), ConnectionSpec("main", ""), None)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def connection(server: Mariadb) -> Iterator[Connection]:
    opened = Connection(server.url("batches"), Files(), time.monotonic() + 10)
    opened.pin((), 10_000, time.monotonic() + 10)
    yield opened
    opened.close()


def facts(database: MysqlDatabase, sql: str, types: dict[str, ParamType], returns: Returns = Returns.ONE, **more: Any) -> Facts:
    params = tuple(ParamSpec(name, kind, max_length=80 if kind is STR else None) for name, kind in types.items())
    return database.facts(QuerySpec("q", "main", sql, params, returns=returns, timeout_ms=500, **more), BigNumbers.NUMBER)


def element(value: str | None, place: int) -> Any:
    if value is None:
        return None
    return int(value) if place in (MysqlPlace.INTEGER, MysqlPlace.BOOLEAN) else value


def asked(connection: Connection, statement: StatementPlan, values: list[bytes | None], *, one: bool = False) -> list[list[bytes | None]]:
    until_s = time.monotonic() + 30
    prepared = connection.prepare(statement.sql, until_s)
    typed = StatementPlan(sql=statement.sql, oids=(MysqlPlace.TEXT,)) if one else statement
    result = connection.execute(prepared, typed, values, until_s)
    rows = [row for row, _ in connection.rows(result.columns, until_s)]
    connection.forget(prepared)
    return rows


COALESCED: list[tuple[str, dict[str, ParamType], Returns]] = [
    ("SELECT path, id, name, tier FROM users WHERE path = :p", {"p": STR}, Returns.ONE),
    ("SELECT * FROM users WHERE id = :i", {"i": INT}, Returns.ONE),
    ("SELECT u.*, :i + 1 AS next, (SELECT count(*) FROM orders o WHERE o.customer = :i AND o.number > :m) AS n FROM users u WHERE id = :i", {"i": INT, "m": INT}, Returns.ONE),
    ("SELECT name, score FROM people WHERE name = :n -- by name", {"n": STR}, Returns.ONE),
    ("SELECT p.name, u.tier FROM people p LEFT JOIN users u ON u.id = :i WHERE p.name = :n", {"n": STR, "i": INT}, Returns.ONE),
    ("SELECT o.note, l.item, l.amount FROM orders o JOIN order_lines l ON l.district = o.district AND l.order_number = o.number"
     " WHERE o.district = :d AND o.number = :o AND l.number = :l", {"d": INT, "o": INT, "l": INT}, Returns.ONE),
    ("SELECT number, item FROM order_lines WHERE district = :d AND order_number = :o ORDER BY number DESC LIMIT 3", {"d": INT, "o": INT}, Returns.MANY),
    ("SELECT o.number, l.number AS line, l.item FROM orders o JOIN order_lines l ON l.district = o.district AND l.order_number = o.number"
     " WHERE o.customer = :c AND o.district = 5 AND o.number = (SELECT max(m.number) FROM orders m WHERE m.customer = o.customer AND m.district = o.district)"
     " ORDER BY l.number LIMIT 20", {"c": INT}, Returns.MANY),
    ("SELECT district, number, note FROM orders WHERE customer = :c ORDER BY number, district LIMIT 100", {"c": INT}, Returns.MANY),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "types", "returns"), COALESCED, ids=[sql[:60] for sql, _, _ in COALESCED])
def test_a_batch_answers_what_its_singles_do(
    sql: str, types: dict[str, ParamType], returns: Returns, database: MysqlDatabase, connection: Connection
) -> None:
    found = facts(database, sql, types, returns)
    assert found.coalesce is not None, found.not_coalesced_because
    statement = found.coalesce.statement
    assert statement.sql.count("?") == 1
    assert (statement.params, statement.oids) == (found.statement.params, found.statement.oids)
    rnd = random.Random(sql)
    texts = ["", "Straße", "STRASSE", "𝄞", "àé", "Name 7 ", "name 7", 'back\\slash "q"', "';--", "x\ty", None]
    texts += [f"/users/{rnd.randrange(2200)}" for _ in range(20)] + [f"Name {rnd.randrange(600)}" for _ in range(20)]
    names = list(types)
    for size in (1, 2, 7, 64, 256):
        callers = [
            [
                rnd.choice(texts)
                if types[name] is STR
                else rnd.choice([None, "-1", str(2**63 - 1), *[str(rnd.randrange(25)) for _ in range(30)]])
                for name in names
            ]
            for _ in range(size)
        ]
        values = [[caller[param] for param in statement.params] for caller in callers]
        body = json.dumps([[element(v, place) for v, place in zip(row, statement.oids, strict=True)] for row in values], ensure_ascii=False)
        rows = asked(connection, statement, [body.encode()], one=True)
        for n, row in enumerate(values, 1):
            single = asked(connection, found.statement, [None if v is None else v.encode() for v in row])
            assert [r[1:] for r in rows if r[0] == b"%d" % n] == single, (row, n)


@pytest.mark.parametrize(
    ("sql", "types", "returns", "code"),
    [
        ("SELECT id, name FROM users WHERE tier = :t", {"t": STR}, Returns.ONE, "many_rows"),
        ("SELECT id, name FROM users WHERE tier = :t ORDER BY name LIMIT 10", {"t": STR}, Returns.MANY, "order_not_total"),
        ("SELECT id, name FROM users WHERE tier = :t ORDER BY id LIMIT 10", {"t": STR}, Returns.MANY, "sequential_scan"),
        ("SELECT count(*) AS n FROM users WHERE id = :i", {"i": INT}, Returns.ONE, "shape"),
        ("SELECT id FROM users WHERE id = :i UNION ALL SELECT 1", {"i": INT}, Returns.ONE, "shape"),
        ("WITH u AS (SELECT * FROM users) SELECT id FROM u WHERE id = :i", {"i": INT}, Returns.ONE, "shape"),
        ("SELECT u.id FROM users u JOIN (SELECT customer FROM orders WHERE number = :i) o ON o.customer = u.id WHERE u.id = 3", {"i": INT}, Returns.ONE, "join"),
        ("SELECT u.id FROM people p RIGHT JOIN users u ON p.name = u.name WHERE u.id = :i", {"i": INT}, Returns.ONE, "join"),
        ("SELECT u.id FROM users u WHERE u.id = :i LIMIT 0", {"i": INT}, Returns.ONE, "limit"),
        ("SELECT id FROM users WHERE id = (SELECT o.customer FROM orders o WHERE o.number = 1 ORDER BY o.district LIMIT :i)", {"i": INT}, Returns.ONE, "parameter_use"),
        ("SELECT name FROM people WHERE latin = :l", {"l": STR}, Returns.ONE, "collation"),
        ("SELECT name FROM people WHERE name LIKE :l", {"l": STR}, Returns.ONE, "parameter_use"),
        ("SELECT id, :s AS s FROM users WHERE id = 3", {"s": STR}, Returns.ONE, "parameter_use"),
        ("SELECT name FROM people WHERE name = 'x' AND born = :d", {"d": ParamType.DATE}, Returns.ONE, "parameter_type"),
        ("SELECT id FROM users WHERE id = :i OR id = :j", {"i": INT, "j": INT}, Returns.ONE, "many_rows"),
        ("SELECT id FROM users WHERE (:i IS NULL OR id = :i) ORDER BY id LIMIT 5", {"i": INT}, Returns.MANY, "sequential_scan"),
        ("SELECT u.id, (SELECT count(*) FROM orders o JOIN order_lines l ON l.district = o.district WHERE o.district = u.id AND l.order_number > :m) AS n"
         " FROM users u WHERE u.id = :i", {"i": INT, "m": INT}, Returns.ONE, ""),
        ("SELECT id FROM traps WHERE id = :i", {"i": INT}, Returns.ONE, "not_proven"),
        ("SELECT id, rand() AS r FROM users WHERE id = :i", {"i": INT}, Returns.ONE, "exclusive"),
        ("SELECT id FROM users WHERE id = 3", {}, Returns.ONE, "no_parameters"),
    ],
)  # fmt: skip
def test_what_keeps_its_own_statement(sql: str, types: dict[str, ParamType], returns: Returns, code: str, database: MysqlDatabase) -> None:
    found = facts(database, sql, types, returns)
    if code:
        assert (found.coalesce, found.not_coalesced_because) == (None, code)
    else:
        assert (found.coalesce is None) == bool(found.not_coalesced_because)


def test_off_paged_and_unbounded_texts(database: MysqlDatabase) -> None:
    look_up = "SELECT id FROM users WHERE id = :i"
    assert facts(database, look_up, {"i": INT}, coalesce=None).not_coalesced_because == "off"
    assert facts(database, look_up, {"i": INT}, Returns.MANY, page=PageSpec(("id",))).not_coalesced_because == "paged"
    params = (ParamSpec("p", STR),)
    query = QuerySpec("q", "main", "SELECT id FROM users WHERE path = :p", params, returns=Returns.ONE, timeout_ms=500)
    assert database.facts(query, BigNumbers.NUMBER).not_coalesced_because == "parameter_length"
    wide = facts(database, look_up, {"i": INT}, coalesce=CoalesceSpec(16, 1)).coalesce
    assert wide is not None
    assert (wide.max_batch, wide.max_in_flight) == (16, 1)
