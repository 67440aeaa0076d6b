"""Pages, writes, masks and changes of a SQLite file."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import ApiPlan, BigNumbers, Mask, Returns
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.compile.decision import decide
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, MaskSpec, PageSpec, QuerySpec, RoleSpec
from tailrace_gateway.compile.sqlite.database import SqliteDatabase
from tailrace_gateway.compile.sqlite.session import Session

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, nick TEXT UNIQUE, name TEXT NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, placed TEXT NOT NULL, note TEXT, UNIQUE (placed, customer));
CREATE TABLE lines (order_id INTEGER NOT NULL, line INTEGER NOT NULL, sku TEXT NOT NULL, PRIMARY KEY (order_id, line)) WITHOUT ROWID;
CREATE TABLE loose (code TEXT PRIMARY KEY, x);
CREATE VIEW contacts AS SELECT id, name FROM customers;
CREATE VIRTUAL TABLE docs USING fts5(body);
INSERT INTO customers WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20) SELECT i, 'c' || i, NULL, 'n' || i FROM n;
INSERT INTO orders WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100)
    SELECT i, 1 + i % 20, '2026-01-0' || (1 + i % 7), NULL FROM n;
INSERT INTO lines SELECT o.id, l.id, 'sku' || l.id FROM orders o, customers l WHERE l.id < 4;
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(SCHEMA)
    connection.close()
    (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/shop.db")
    return tmp_path / "shop.db"


@pytest.fixture
def database(file: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(Session(f"sqlite:///{file}"), ConnectionSpec("main", ""))
    yield opened
    opened.close()


def facts(database: SqliteDatabase, sql: str, **more: Any) -> Facts:
    return database.facts(QuerySpec("q", "main", sql, **more), BigNumbers.NUMBER)


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, name FROM customers", ("id",)),
        ("SELECT rowid AS id, name FROM customers", ("id",)),
        ("SELECT email, name FROM customers", ("email",)),
        ("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer", ("id",)),
        ("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer", ("id",)),
        ("SELECT l.order_id, l.line, o.placed FROM orders o JOIN lines l ON l.order_id = o.id", ("order_id", "line")),
        ("SELECT line, sku FROM lines WHERE order_id = 5", ("line",)),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", ("customer",)),
        ("SELECT id, placed FROM orders ORDER BY placed DESC", ("placed", "id")),
        ("SELECT id, placed FROM orders ORDER BY placed DESC, id DESC -- the end", ("placed", "id")),
        ("SELECT placed, customer FROM orders", ("placed", "customer")),
        ("SELECT * FROM orders ORDER BY 1 DESC", ("id",)),
    ],
)
def test_pages_show_every_row_once(file: Path, database: SqliteDatabase, sql: str, key: tuple[str, ...]) -> None:
    page = facts(database, sql, page=PageSpec(key, 7, 100)).page
    assert page is not None
    caller = sqlite3.connect(file)
    rows = caller.execute(sql).fetchall()
    seen: list[tuple[Any, ...]] = []
    while True:
        # Keys are bound as text, as they come out of a cursor.
        keys = [str(seen[-1][each.column]) for each in page.keys] if seen else []
        got = caller.execute(page.next.sql if seen else page.first.sql, [*keys, 7]).fetchall()
        if not got:
            break
        seen += got
    caller.close()
    assert len(seen) == len(rows)
    assert set(seen) == set(rows)


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, name FROM customers", ("name",)),
        ("SELECT id, nick FROM customers", ("nick",)),
        ("SELECT code, x FROM loose", ("code",)),
        ("SELECT c.id, o.note FROM customers c JOIN orders o ON o.customer = c.id", ("id",)),
        ("SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer = c.id", ("id", "o")),
        ("SELECT id FROM customers UNION ALL SELECT id FROM orders", ("id",)),
        ("SELECT id FROM contacts", ("id",)),
        ("SELECT id + 0 AS id FROM customers", ("id",)),
        ("SELECT id, name FROM customers ORDER BY name", ("id",)),
        ("SELECT max(id) AS id FROM customers", ("id",)),
        ("SELECT value AS id FROM json_each('[1]')", ("id",)),
    ],
)
def test_keys_that_are_not_proven_are_refused(database: SqliteDatabase, sql: str, key: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError) as refused:
        facts(database, sql, page=PageSpec(key))
    assert refused.value.code is Refusal.PAGE_KEY


def test_writes_are_decided_by_the_same_rules(database: SqliteDatabase) -> None:
    def decided(sql: str, **more: Any) -> tuple[str | None, dict[str, str]]:
        found = facts(database, sql, write=True)
        role = database.role(RoleSpec("r", masks=(MaskSpec("customers.email", Mask.PARTIAL),), **more))
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
    assert decided("INSERT INTO orders SELECT id, id, email, NULL FROM customers")[0] == "mask_leak"
    assert decided("INSERT INTO customers VALUES (1, 'e', 'n', 'x') ON CONFLICT (id) DO UPDATE SET email = excluded.email") == (None, {})
    assert decided("INSERT INTO customers VALUES (1, 'e', 'n', 'x') ON CONFLICT (email) DO NOTHING")[0] == "mask_leak"
    assert decided("DELETE FROM orders WHERE id = 1", tables=("orders",)) == (None, {})
    assert decided("DELETE FROM orders WHERE id = 1", tables=("customers",))[0] == "table_not_allowed"
    assert decided("DELETE FROM orders WHERE customer IN (SELECT id FROM customers)", tables=("orders",))[0] == "table_not_allowed"


def test_virtual_tables_count_only_when_listed(database: SqliteDatabase) -> None:
    found = facts(database, "SELECT body FROM docs")
    assert decide(found.lineage, database.role(RoleSpec("r")).rules, database.system).refused is Refusal.TABLE_NOT_ALLOWED
    assert decide(found.lineage, database.role(RoleSpec("r", tables=("docs",))).rules, database.system).refused is None


def test_a_changed_schema_is_noticed(file: Path) -> None:
    api = ApiSpec(
        ApiPlan(namespace="n", name="a"),
        (ConnectionSpec("main", str(file.parent / "url")),),
        (QuerySpec("q", "main", "SELECT * FROM contacts", (), Returns.MANY),),
        (RoleSpec("r", masks=(MaskSpec("customers.email", Mask.REDACT),)),),
    )
    compiler = Compiler()
    before = compiler.compile(api, 1).assembled.snapshot
    assert before.roles[0].grants[0].masks == ()
    assert compiler.stale(api) == ()
    connection = sqlite3.connect(file)
    connection.executescript("DROP VIEW contacts; CREATE VIEW contacts AS SELECT id, email AS name FROM customers")
    connection.close()
    assert compiler.stale(api) == ("main",)
    after = compiler.compile(api, 2).assembled.snapshot
    assert [(mask.column, mask.with_.value) for mask in after.roles[0].grants[0].masks] == [(1, "redact")]
    assert after.queries[0].version != before.queries[0].version
    file.unlink()
    gone = compiler.compile(api, 3)
    assert gone.unreachable == ("main",)
    assert gone.assembled.snapshot.queries == after.queries
    changed = compiler.compile(replace(api, queries=(replace(api.queries[0], sql="SELECT id FROM contacts"),)), 4)
    assert [unit.code for unit in changed.refusals] == ["database_unreachable"]
