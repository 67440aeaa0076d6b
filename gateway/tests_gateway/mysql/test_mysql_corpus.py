"""Every statement of the corpora of the other engines, on MariaDB: what is served to a role must not change when what it may not see does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest
import yaml
from tailrace_contract.plan import BigNumbers, Mask, ParamType
from tailrace_contract.uri_parts import Files
from tailrace_gateway.compile.decision import decide
from tailrace_gateway.compile.mysql.database import MysqlDatabase
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, MaskSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.mariadb import Mariadb

FOLDER = Path(__file__).parents[1] / "corpus"
SCHEMA = """
CREATE DATABASE corpus; USE corpus;
CREATE TABLE customers (id int PRIMARY KEY, name varchar(40) NOT NULL, email varchar(80) NOT NULL, salary bigint NOT NULL, ssn varchar(20) NOT NULL,
    profile varchar(80) NOT NULL, manager int, email_domain varchar(80) AS (substr(email, instr(email, '@') + 1)));
INSERT INTO customers (id, name, email, salary, ssn, profile, manager) VALUES
    (1, 'Ann', 'ann@a.example', 100, '11', '{"k": 1}', NULL), (2, 'Bob', 'bob@b.example', 200, '22', '{"k": 2}', 1),
    (3, 'Cid', 'cid@c.example', 300, '33', '{"k": 3}', 1), (4, 'Dee', 'dee@d.example', 400, '44', '{"k": 4}', 2);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL, amount decimal(10, 2) NOT NULL, note varchar(40), salary int NOT NULL, email varchar(80));
INSERT INTO orders SELECT seq, 1 + seq % 4, seq * 1.5, concat('note ', seq), seq * 100, 'ann@a.example' FROM seq_1_to_12;
CREATE TABLE vault (id int PRIMARY KEY, pin varchar(20) NOT NULL, customer_id int NOT NULL);
INSERT INTO vault VALUES (1, 'pin1', 1), (2, 'pin2', 2), (3, 'pin3', 3);
CREATE VIEW contacts AS SELECT id, name, email, lower(email) AS lowered FROM customers;
CREATE VIEW contacts_again AS SELECT id, name AS title, email AS mail FROM contacts;
CREATE VIEW rich AS SELECT id, name FROM customers WHERE salary > 150;
CREATE VIEW pins AS SELECT customer_id, pin FROM vault;
"""
TABLES = ("customers", "orders", "contacts", "contacts_again", "rich")
MASKS = tuple(MaskSpec(f"customers.{name}", Mask.NULL) for name in ("email", "salary", "ssn", "profile"))
STRICT = RoleSpec("strict", tables=TABLES, masks=MASKS)
CHANGES = (
    "UPDATE customers SET email = CASE id WHEN 1 THEN 'zoe@z.example.com' WHEN 4 THEN 'ann@a.example' ELSE email END",
    "UPDATE customers SET salary = 500 - salary",
    "UPDATE customers SET salary = 9223372036854775807 - id",
    "UPDATE customers SET ssn = concat('{', ssn) WHERE id = 3",
    "UPDATE customers SET ssn = 'a' WHERE id = 1",
    'UPDATE customers SET profile = \'{"k": 1, "l": 2}\' WHERE id = 2',
    "UPDATE customers SET profile = '[' WHERE id = 2",
    "UPDATE vault SET pin = 'other' WHERE id = 1",
    "DELETE FROM vault WHERE id < 3",
)
# What the other corpora don't have.
OURS = [
    "SELECT id, email AS e FROM customers HAVING e LIKE 'a%'",
    "SELECT id FROM customers ORDER BY email = 'ann@a.example', id",
    "SELECT max(id) AS m FROM customers GROUP BY left(email, 1)",
    "SELECT group_concat(id ORDER BY salary) AS g FROM customers",
    "SELECT group_concat(DISTINCT ssn) AS g FROM customers",
    "SELECT if(salary > 150, 1, 2) AS n FROM customers",
    "SELECT ifnull(nullif(ssn, '11'), 'x') AS s FROM customers",
    "SELECT salary + 9223372036854775000 AS s FROM customers",
    "SELECT salary * salary AS s FROM customers",
    "SELECT json_extract(profile, '$.k') AS k FROM customers",
    "SELECT json_value(profile, '$.k') AS k FROM customers",
    "SELECT ssn REGEXP concat('[', ssn) AS r FROM customers",
    "SELECT c.id FROM customers c STRAIGHT_JOIN orders o ON o.email = c.email",
    "SELECT id FROM customers c NATURAL JOIN (SELECT id, email FROM orders) o",
    "SELECT id FROM customers WHERE (email, id) IN (SELECT email, id FROM orders)",
    "SELECT id FROM customers WHERE email <=> 'ann@a.example'",
    "SELECT id, row_number() OVER (PARTITION BY ssn ORDER BY id) AS n FROM customers",
    "SELECT id, lag(id) OVER (ORDER BY salary) AS n FROM customers",
    "SELECT j.x FROM customers c JOIN JSON_TABLE(c.profile, '$' COLUMNS (x int PATH '$.k')) AS j",
    "SELECT id FROM customers LIMIT 1 OFFSET 1",
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT max(salary) FROM customers) DIV 100) SELECT count(*) AS c FROM n",
    "SELECT (SELECT pin FROM vault LIMIT 1) AS p",
    "SELECT corpus.vault.pin AS p FROM corpus.vault",
    "SELECT p.pin FROM pins p",
    "SELECT title, mail FROM contacts_again ORDER BY id",
    "SELECT id, lowered FROM contacts",
    "SELECT email_domain AS d FROM customers",
    "SELECT id FROM customers ORDER BY email_domain, id",
    "SELECT count(DISTINCT salary) AS n FROM customers",
    "SELECT sum(salary) AS n FROM customers",
    "SELECT substring(name, 1, salary DIV 100) AS s FROM customers",
    "SELECT elt(salary DIV 100, 'a', 'b') AS s FROM customers",
    "SELECT field(ssn, '11', '22') AS s FROM customers",
    "SELECT date_add('2026-01-01', INTERVAL salary DAY) AS d FROM customers",
    "SELECT CASE ssn WHEN '11' THEN 'a' ELSE 'b' END AS s FROM customers",
    "SELECT id FROM customers WHERE id = (SELECT min(id) FROM customers WHERE ssn > '15')",
    "SELECT id FROM customers a WHERE NOT EXISTS (SELECT 1 FROM customers b WHERE b.salary > a.salary)",
    "SELECT id FROM customers GROUP BY id HAVING max(salary) > 150",
    "SELECT id FROM customers UNION SELECT salary FROM customers",
    "SELECT salary FROM customers EXCEPT SELECT 100",
    "SELECT salary FROM customers INTERSECT SELECT 100",
    "(SELECT salary AS s FROM customers) ORDER BY s LIMIT 1",
    "SELECT id, (SELECT email FROM customers c WHERE c.id = o.customer_id) AS e FROM orders o ORDER BY id",
]


def statements() -> list[tuple[str, dict[str, Any]]]:
    found: dict[str, dict[str, Any]] = {sql: {} for sql in OURS}
    for path in sorted(FOLDER.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text()):
            for proof in ("leaks", "allowed", "tells", "silent"):
                for item in group.get(proof) or ():
                    sql, params = (item["sql"], item.get("params", {})) if isinstance(item, dict) else (item, {})
                    found.setdefault(sql, params or {})
    return list(found.items())


@pytest.fixture(scope="module")
def server(mariadb: Mariadb) -> Mariadb:
    mariadb.sql(SCHEMA)
    return mariadb


@pytest.fixture(scope="module")
def database(server: Mariadb) -> Iterator[MysqlDatabase]:
    opened = MysqlDatabase(Session(server.url("corpus"), (), Files()), ConnectionSpec("main", ""), None)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def caller(server: Mariadb) -> Iterator[pymysql.Connection]:
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", database="corpus", sql_mode="STRICT_TRANS_TABLES")
    yield connection
    connection.close()


def answer(caller: pymysql.Connection, sql: str, values: Sequence[Any], hidden: set[int], change: str = "") -> tuple[str, list[Any]]:
    with caller.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        try:
            if change:
                cursor.execute(change)
            cursor.execute(sql.replace("%", "%%").replace("?", "%s") if values else sql, values or None)
            rows = [tuple(None if n in hidden else value for n, value in enumerate(row)) for row in cursor.fetchall()]
            return "", rows if "order by" in sql.lower() else sorted(rows, key=repr)
        except pymysql.Error as error:
            return str(error.args[0]), []
        finally:
            cursor.execute("ROLLBACK")


# A view over a masked column is covered whole; that it has rows is its owner's matter.
def test_what_is_served_tells_nothing(database: MysqlDatabase, caller: pymysql.Connection) -> None:
    rules, leaks, served, refused = database.role(STRICT).rules, [], 0, 0
    for sql, params in statements():
        declared = tuple(
            ParamSpec(name, ParamType.INTEGER if isinstance(value, int) else ParamType.STRING) for name, value in params.items()
        )
        try:
            found = database.facts(QuerySpec("q", "main", sql, declared), BigNumbers.NUMBER)
        except RefusedError:
            refused += 1
            continue
        verdict = decide(found.lineage, rules, database.system)
        if verdict.refused is not None:
            refused += 1
            continue
        served += 1
        hidden = {mask.column for mask in verdict.masks}
        values = [list(params.values())[n] for n in found.statement.params]
        before = answer(caller, found.statement.sql, values, hidden)
        leaks += [(sql, change) for change in CHANGES if answer(caller, found.statement.sql, values, hidden, change) != before]
    assert not leaks, "\n".join(map(str, leaks))
    assert served >= 40
    assert refused >= 200
