"""docs/mysql.md against the code and a real MariaDB: its parameters, and what its values become."""

import re
import time
from pathlib import Path

from tailrace_contract.mysql_uri import PARAMETERS
from tailrace_contract.plan import BigNumbers
from tailrace_contract.uri_parts import Files
from tailrace_gateway.compile.mysql.database import MysqlDatabase
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.mysql.connect import Connection
from tailrace_gateway.serve.rows import RowWriter
from tailrace_loadtest.servers.mariadb import Mariadb

PAGE = (Path(__file__).parents[3] / "docs" / "mysql.md").read_text()
TABLE = """
CREATE DATABASE page; USE page; SET sql_mode = '';
CREATE TABLE v (b1 bit(1), b9 bit(9), f float, ts timestamp(3) NULL, zero date, e enum('red', 'blue green'), s set('a', 'b'));
SET time_zone = '+00:00'; INSERT INTO v VALUES (1, 257, 1.1, '2026-01-31 09:30:00.500', '0000-00-00', 'blue green', 'a,b');
"""


def tables() -> list[list[list[str]]]:
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [[[cell.strip() for cell in line[2:-1].split(" | ")] for line in table.splitlines()[2:]] for table in found]


def test_every_parameter_has_a_row() -> None:
    assert tuple(row[0].strip("`") for row in tables()[0]) == PARAMETERS


def test_values_become_what_the_page_says(mariadb: Mariadb) -> None:
    mariadb.sql(TABLE)
    until_s = time.monotonic() + 60
    database = MysqlDatabase(Session(mariadb.url("page"), (), Files()), ConnectionSpec("main", ""), None)
    connection = Connection(mariadb.url("page"), Files(), until_s)
    connection.pin((), 10_000, until_s)
    for _, sql, shown in tables()[1]:
        found = database.facts(QuerySpec("q", "main", f"SELECT {sql.strip('`')} AS v FROM v"), BigNumbers.NUMBER)
        result = connection.execute(connection.prepare(found.statement.sql, until_s), found.statement, (), until_s)
        (row,) = (row for row, _ in connection.rows(result.columns, until_s))
        assert RowWriter(found.columns, [], None).row(Format.JSON, row).decode() == f'{{"v":{shown.strip("`")}}}'
    connection.close()
    database.close()
