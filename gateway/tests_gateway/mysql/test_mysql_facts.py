"""What is decided of one statement on a real MariaDB: columns, lineage, pages, refusals, masks through views."""

from collections.abc import Iterator
from typing import Any

import pytest
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, Encoding, Mask, ParamType, Returns
from tailrace_contract.uri_parts import Files
from tailrace_gateway.compile.decision import decide
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.mysql.database import MysqlDatabase
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, MaskSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.mariadb import Mariadb

SCHEMA = """
CREATE DATABASE facts; CREATE DATABASE facts_other; USE facts;
CREATE TABLE customers (id int PRIMARY KEY, email varchar(80) NOT NULL UNIQUE, nick varchar(20) UNIQUE, name varchar(80) NOT NULL,
    initial char(1) AS (left(name, 1)) STORED, hint varchar(80) AS (concat('at ', email)), f float NOT NULL UNIQUE, e enum('b', 'a') NOT NULL, bits bit(9));
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, placed date NOT NULL, note text, total decimal(10, 2), UNIQUE (placed, customer));
CREATE TABLE `lines` (order_id bigint NOT NULL, line int NOT NULL, sku varchar(10) NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE Mixed (id int PRIMARY KEY);
CREATE TABLE facts_other.stock (sku varchar(10) PRIMARY KEY, level int NOT NULL);
CREATE TABLE facts_other.customers (id int PRIMARY KEY, secret varchar(10));
CREATE VIEW contacts AS SELECT id, name, email FROM customers;
CREATE VIEW by_email AS SELECT c.id, o.placed FROM (customers c JOIN orders o ON o.customer = c.id) WHERE c.email LIKE 'a%';
CREATE VIEW deep AS SELECT id, upper(email) AS loud FROM contacts;
CREATE VIEW outside AS SELECT sku, level FROM facts_other.stock;
CREATE FUNCTION mine(n int) RETURNS int DETERMINISTIC RETURN n;
CREATE FUNCTION regexp_like(a text, b text) RETURNS int DETERMINISTIC RETURN sleep(1);
CREATE FUNCTION json_table(a int) RETURNS int DETERMINISTIC RETURN a;
CREATE FUNCTION any_value() RETURNS int DETERMINISTIC RETURN 1;
CREATE FUNCTION count (n int) RETURNS int DETERMINISTIC RETURN n;
INSERT INTO customers (id, email, name, f, e) SELECT seq, concat('c', seq, '@x.example'), concat('n', seq), seq, 'a' FROM seq_1_to_20;
INSERT INTO orders SELECT seq, 1 + seq % 20, '2026-01-01' + INTERVAL seq DAY, NULL, seq / 3 FROM seq_1_to_100;
"""


@pytest.fixture(scope="module")
def server(mariadb: Mariadb) -> Mariadb:
    mariadb.sql(SCHEMA)
    return mariadb


@pytest.fixture(scope="module")
def database(server: Mariadb) -> Iterator[MysqlDatabase]:
    opened = MysqlDatabase(Session(server.url("facts"), (), Files()), ConnectionSpec("main", ""), None)
    yield opened
    opened.close()


def facts(database: MysqlDatabase, sql: str, **more: Any) -> Facts:
    params = tuple(ParamSpec(name, kind) for name, kind in more.pop("types", {}).items())
    return database.facts(QuerySpec("q", "main", sql, params, **more), BigNumbers.NUMBER)


def test_columns_places_and_types(database: MysqlDatabase) -> None:
    found = facts(
        database,
        "SELECT id, :a AS echo, total, placed FROM orders WHERE id = :id AND placed > :since AND (note = :a OR :a IS NULL)",
        types={"id": ParamType.INTEGER, "a": ParamType.STRING, "since": ParamType.DATE},
        returns=Returns.ONE,
        timeout_ms=500,
    )
    assert found.statement.sql.count("?") == 5
    assert found.statement.params == (1, 0, 2, 1, 1)
    assert found.statement.oids == (253, 8, 10, 253, 253)
    assert [(column.name, column.encoding) for column in found.columns] == [
        ("id", Encoding.RAW),
        ("echo", Encoding.STRING),
        ("total", Encoding.NUMBER),
        ("placed", Encoding.STRING),
    ]
    assert found.columns[0].table_oid
    assert not found.columns[1].table_oid
    assert found.lineage.tables == {"facts.orders"}
    assert found.exclusive_because == ""


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT c.id FROM customers c STRAIGHT_JOIN orders o ON o.customer = c.id", {"facts.customers", "facts.orders"}),
        ("SELECT s.level FROM facts_other.stock s", {"facts_other.stock"}),
        ("WITH customers AS (SELECT * FROM orders) SELECT id FROM customers", {"facts.orders"}),
        ("WITH orders AS (SELECT * FROM orders) SELECT id FROM orders", {"facts.orders"}),
        ("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT i FROM n", set()),
        ("SELECT 1 AS one FROM dual WHERE EXISTS (SELECT 1 FROM `lines`)", {"facts.lines"}),
        ("SELECT id FROM contacts", {"facts.contacts"}),
        ("SELECT j.n FROM JSON_TABLE('[1]', '$[*]' COLUMNS (n int PATH '$')) AS j", set()),
        ("SELECT facts.orders.id FROM facts.orders", {"facts.orders"}),
        ("(SELECT id FROM orders) UNION ALL (SELECT id FROM Mixed)", {"facts.orders", "facts.Mixed"}),
        ("SELECT id, name # the end\nFROM customers -- of it\n", {"facts.customers"}),
        ("SELECT count(*) AS n, date_format(placed, '%Y') AS y FROM orders GROUP BY date_format(placed, '%Y')", {"facts.orders"}),
    ],
)
def test_tables(database: MysqlDatabase, sql: str, tables: set[str]) -> None:
    assert facts(database, sql).lineage.tables == tables


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT sleep(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT load_file('/etc/passwd') AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT benchmark(1000, md5('x')) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT get_lock('x', 1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT user() AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT current_user AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT version() AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT last_insert_id() AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT extractvalue('<a/>', concat('~', (SELECT email FROM customers LIMIT 1))) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT mine(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT mine (1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT facts.mine(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT `mine`(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT count (1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT count/**/(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT facts.count(1) AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT regexp_like('a', 'b') AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT any_value() AS x", Refusal.FUNCTION_NOT_ALLOWED),
        ("SELECT 1 AS one, json_table(1) AS x", (Refusal.FUNCTION_NOT_ALLOWED, Refusal.NOT_PARSED, Refusal.DATABASE_REFUSED)),
        ("SELECT email FROM customers INTO OUTFILE '/tmp/x'", Refusal.NOT_PARSED),
        ("SELECT email INTO @x FROM customers", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT @x := 1 AS x", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT @@hostname AS x", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT id FROM orders WHERE id = ?", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT id FROM orders FOR UPDATE", Refusal.NOT_READ_ONLY),
        ("SELECT id FROM orders LOCK IN SHARE MODE", Refusal.NOT_READ_ONLY),
        ("DELETE FROM orders", Refusal.NOT_READ_ONLY),
        ("SET @x = 1", Refusal.NOT_READ_ONLY),
        ("CALL p()", Refusal.NOT_READ_ONLY),
        ("SHOW TABLES", Refusal.NOT_READ_ONLY),
        ("HANDLER orders OPEN", Refusal.NOT_READ_ONLY),
        ("DO sleep(1)", Refusal.NOT_READ_ONLY),
        ("SELECT 1 AS x; SELECT 2", Refusal.SEVERAL_STATEMENTS),
        ("SELECT /*!50000 sleep(1), */ 1 AS x", Refusal.NOT_PARSED),
        ("SELECT /*M! sleep(1), */ 1 AS x", Refusal.NOT_PARSED),
        ("SELECT /*+ SET_VAR(sql_mode='') */ 1 AS x", Refusal.NOT_PARSED),
        ("SELECT 1 /* /* */ AS x", Refusal.NOT_PARSED),
        ("SELECT 1 --sleep(1)\n AS x", Refusal.NOT_PARSED),
        ("SELECT authentication_string AS x FROM mysql.global_priv", Refusal.DATABASE_REFUSED),
        ("SELECT user AS x FROM mysql.user", Refusal.TABLE_NOT_ALLOWED),
        ("SELECT table_name AS x FROM information_schema.tables", Refusal.TABLE_NOT_ALLOWED),
        ("SELECT id FROM Orders", Refusal.DATABASE_REFUSED),
        ("SELECT id FROM nowhere", Refusal.DATABASE_REFUSED),
        ("SELECT count(*) FROM orders", Refusal.UNNAMED_COLUMN),
        ("SELECT o.id, c.id FROM orders o, customers c", Refusal.DUPLICATE_COLUMN),
        ("SELECT tailrace_page.id FROM orders tailrace_page", Refusal.NOT_PARSED),
        ("SELECT max(bits) AS b FROM customers", Refusal.NOT_PARSED),
        ("SELECT b FROM (SELECT max(bits) AS b FROM customers) AS x", Refusal.NOT_PARSED),
        ("SELECT next value for s AS x", Refusal.NOT_PARSED),
        ("SELECT nextval(s) AS x", Refusal.FUNCTION_NOT_ALLOWED),
    ],
)
def test_refused(database: MysqlDatabase, sql: str, code: Refusal | tuple[Refusal, ...]) -> None:
    with pytest.raises(RefusedError) as refused:
        facts(database, sql)
    assert refused.value.code in (code if isinstance(code, tuple) else (code,)), refused.value.hint


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, name FROM customers", ("id",)),
        ("SELECT email, name FROM customers ORDER BY email DESC", ("email",)),
        ("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer", ("id",)),
        ("SELECT id, placed FROM orders ORDER BY placed DESC", ("placed", "id")),
        ("SELECT line, sku FROM `lines` WHERE order_id = :o", ("line",)),
    ],
)
def test_pages(database: MysqlDatabase, sql: str, key: tuple[str, ...]) -> None:
    types = {"o": ParamType.INTEGER} if ":o" in sql else {}
    found = facts(database, sql, page=PageSpec(key), types=types)
    assert found.page is not None
    assert found.page.next.sql.count("?") == len(found.page.next.oids) == len(types) + len(key) + 1


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT nick, name FROM customers", ("nick",)),
        ("SELECT f, name FROM customers", ("f",)),
        ("SELECT e, id FROM customers", ("e", "id")),
        ("SELECT customer, id FROM orders", ("customer",)),
        ("SELECT s.sku FROM facts_other.stock s JOIN `lines` l ON l.sku = s.sku", ("sku",)),
    ],
)
def test_pages_that_are_not_proven(database: MysqlDatabase, sql: str, key: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError) as refused:
        facts(database, sql, page=PageSpec(key))
    assert refused.value.code is Refusal.PAGE_KEY


EMAIL = RoleSpec("r", masks=(MaskSpec("customers.email", Mask.PARTIAL),))


@pytest.mark.parametrize(
    ("sql", "masks"),
    [
        ("SELECT id, email FROM customers", [(1, Mask.PARTIAL)]),
        ("SELECT id, concat(email, 'x') AS e FROM customers", [(1, Mask.NULL)]),
        ("SELECT id, hint FROM customers", [(1, Mask.NULL)]),
        ("SELECT id, initial FROM customers", []),
        ("SELECT * FROM contacts", [(2, Mask.PARTIAL)]),
        ("SELECT id, loud FROM deep", [(1, Mask.NULL)]),
        ("SELECT id, placed FROM by_email", [(0, Mask.NULL), (1, Mask.NULL)]),
        ("SELECT id, secret FROM facts_other.customers", []),
        ("SELECT e FROM (SELECT email AS e FROM customers UNION ALL SELECT note FROM orders) AS both_", [(0, Mask.PARTIAL)]),
        ("WITH c AS (SELECT email AS x FROM customers) SELECT x FROM c", [(0, Mask.PARTIAL)]),
        ("SELECT (SELECT email FROM customers WHERE id = o.customer) AS e FROM orders o", [(0, Mask.PARTIAL)]),
    ],
)
def test_masks(database: MysqlDatabase, sql: str, masks: list[tuple[int, Mask]]) -> None:
    verdict = decide(facts(database, sql).lineage, database.role(EMAIL).rules, database.system)
    assert verdict.refused is None
    assert [(mask.column, mask.with_) for mask in verdict.masks] == masks


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM customers WHERE email LIKE 'a%'",
        "SELECT id FROM customers ORDER BY email",
        "SELECT count(*) AS n FROM customers GROUP BY email",
        "SELECT DISTINCT email FROM customers",
        "SELECT id FROM customers JOIN contacts USING (email, id)",
        "SELECT email + 1 AS e FROM customers",
        "SELECT json_extract(email, '$') AS e FROM customers",
        "SELECT email FROM customers UNION SELECT note FROM orders",
        "SELECT id FROM customers HAVING max(email) > 'b'",
        "SELECT row_number() OVER (ORDER BY email) AS n FROM customers",
        "SELECT j.n FROM customers c JOIN JSON_TABLE(c.email, '$' COLUMNS (n int PATH '$')) AS j",
        "SELECT CASE WHEN email > 'a' THEN 1 ELSE 2 END AS n FROM customers",
        "SELECT id FROM customers WHERE hint = 'x'",
        "SELECT id FROM deep WHERE loud = 'x'",
    ],
)
def test_masks_that_would_leak(database: MysqlDatabase, sql: str) -> None:
    verdict = decide(facts(database, sql).lineage, database.role(EMAIL).rules, database.system)
    assert verdict.refused is Refusal.MASK_LEAK


def test_an_unknown_mask_and_listed_tables(database: MysqlDatabase) -> None:
    found = database.role(RoleSpec("r", tables=("customers", "facts_other.stock", "mixed"), masks=(MaskSpec("nowhere.x", Mask.NULL),)))
    assert found.unresolved == {"nowhere.x"}
    assert found.rules.tables == {"facts.customers", "facts_other.stock", "facts.Mixed"}


@pytest.mark.parametrize(
    ("sql", "types"),
    [
        ("INSERT INTO orders (id, customer, placed) VALUES (:id, 1, :d)", {"id": ParamType.INTEGER, "d": ParamType.DATE}),
        ("INSERT INTO facts.orders (id, customer, placed) VALUES (:id, 1, now()) RETURNING id", {"id": ParamType.INTEGER}),
        ("INSERT INTO Mixed (id) VALUES (:id) ON DUPLICATE KEY UPDATE id = VALUES(id)", {"id": ParamType.INTEGER}),
        ("UPDATE orders SET note = :n WHERE id = :id", {"n": ParamType.STRING, "id": ParamType.INTEGER}),
        ("DELETE FROM orders WHERE id = :id", {"id": ParamType.INTEGER}),
    ],
)
def test_writes(database: MysqlDatabase, sql: str, types: dict[str, ParamType]) -> None:
    found = facts(database, sql, types=types, write=True, returns=Returns.NONE)
    assert len(found.lineage.written) == 1
    assert found.exclusive_because == "write"
    assert bool(found.columns) == ("RETURNING" in sql)


def test_a_change_of_the_catalog_shows(server: Mariadb) -> None:
    def look() -> str:
        opened = MysqlDatabase(Session(server.url("facts"), (), Files()), ConnectionSpec("main", ""), None)
        opened.close()
        return opened.fingerprint

    before = look()
    assert look() == before
    server.sql("CREATE OR REPLACE VIEW outside AS SELECT sku, level + 1 AS level FROM facts_other.stock", "facts")
    assert look() != before
