"""Every read query of chinook.yaml, answered by the data plane and by Python alone, beside what the databases' own clients return."""

import base64
import csv
import io
import json
import re
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
import yaml
from tailrace_loadtest import cases
from tailrace_loadtest.differential import api
from tailrace_loadtest.differential.calls import fits_url
from tailrace_loadtest.differential.generator import Generator
from tailrace_loadtest.servers import chinook
from tailrace_loadtest.servers.pgbouncer import PgBouncer
from tailrace_loadtest.servers.postgres import Postgres
from tailrace_loadtest.servers.tailrace import Tailrace

NULL = "␀"
ROUNDS = 3
PLACE = re.compile(r"(?<![:\w]):([a-z_]+)")
SPEC: dict[str, Any] = next(
    each["spec"] for each in yaml.safe_load_all(cases.path("chinook.yaml").read_text()) if each["kind"] == "QueryAPI"
)
READS = [query for query in SPEC["queries"] if not query.get("write")]
DESCRIBED = {query.name: query for query in api.read(cases.path("chinook.yaml")).queries}


@dataclass
class Running:
    stack: Tailrace
    server: Postgres
    lite: Path
    pooled: bool


WAYS = {
    "python alone": (False, False),
    "data plane": (True, False),
    "python alone, pooled": (False, True),
    "data plane, pooled": (True, True),
}
"""With the data plane; through PgBouncer in transaction mode."""


@pytest.fixture(scope="module", params=list(WAYS.values()), ids=list(WAYS))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    lite = tmp_path_factory.mktemp("lite") / "chinook.db"
    chinook.load_sqlite(lite)
    with closing(sqlite3.connect(lite)) as connection:
        connection.executescript(cases.path("chinook_sqlite.sql").read_text())
    data_plane, pooled = request.param
    file = tmp_path_factory.mktemp("api") / "chinook.yaml"
    text = cases.path("chinook.yaml").read_text()
    file.write_text(text.replace("      maxConnections: 12\n", "      maxConnections: 12\n      pooler: transaction\n") if pooled else text)
    with ExitStack() as opened:
        server = opened.enter_context(Postgres())
        chinook.load_postgres(server)
        server.psql(cases.path("chinook.sql").read_text(), "chinook")
        url = opened.enter_context(PgBouncer(server, pool_size=4)).url("chinook") if pooled else server.url("chinook")
        stack = opened.enter_context(Tailrace([file], {"shop-db": url, "lite-db": f"sqlite:///{lite}"}, data_plane=data_plane))
        yield Running(stack, server, lite, pooled)


def drawn(name: str, random: Random) -> dict[str, Any]:
    """Good values for every parameter, such as a URL can say."""
    generator = Generator(api.read(cases.path("chinook.yaml")), random.randrange(1 << 30))
    query = DESCRIBED[name]
    found: dict[str, Any] = {}
    for param in query.params:
        value = generator.value(query, param)
        while not fits_url(value):
            value = generator.value(query, param)
        found[param.name] = value
    return found


def asked(running: Running, query: dict[str, Any], values: dict[str, Any], form: str) -> tuple[int, str]:
    pairs = {name: ",".join(value) if isinstance(value, list) else value for name, value in values.items()}
    if "page" in query:
        pairs["page_size"] = str(query["page"].get("maxSize", 1000))
    url = f"{running.stack.url}/q/{query['name']}?{urllib.parse.urlencode(pairs)}"
    request = urllib.request.Request(url, headers={"X-API-Key": running.stack.keys["manager-key"], "Accept": form})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def literal(value: Any) -> str:
    """A value as an untyped SQL literal."""
    if isinstance(value, list):
        value = "{" + ",".join('"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in value) + "}"
    return "'" + value.replace("'", "''") + "'"


def by_psql(running: Running, query: dict[str, Any], values: dict[str, Any]) -> list[list[str]]:
    """Rows as psql prints them, header first."""
    names = list(dict.fromkeys(PLACE.findall(query["sql"])))
    sql = PLACE.sub(lambda found: f"${names.index(found[1]) + 1}", query["sql"])
    arguments = f"({', '.join(literal(values[name]) for name in names)})" if names else ""
    printed = running.server.psql(
        f"SET timezone = 'UTC'; PREPARE q AS {sql}; EXECUTE q{arguments};",
        "chinook",
        "--csv",
        "-P",
        "tuples_only=off",
        "-P",
        f"null={NULL}",
    )
    return list(csv.reader(io.StringIO(printed)))


def same(ours: str, theirs: str) -> bool:
    """One value of our CSV beside psql's."""
    if theirs == NULL:
        return ours == ""
    if theirs in ("t", "f"):
        return ours in (theirs, {"t": "true", "f": "false"}[theirs])
    return ours == theirs or ours == theirs.replace(" ", "T", 1)


@pytest.mark.postgres
@pytest.mark.parametrize("query", [query for query in READS if query["connection"] == "shop"], ids=lambda query: str(query["name"]))
def test_postgres_says_the_same(running: Running, query: dict[str, Any]) -> None:
    random = Random(query["name"])
    answered = 0
    for _ in range(ROUNDS):
        values = drawn(query["name"], random)
        status, body = asked(running, query, values, "text/csv")
        header, *expected = by_psql(running, query, values)
        if status == 404:
            assert expected == [], values
            continue
        assert status == 200, body
        rows = list(csv.reader(io.StringIO(body)))
        if expected == [] and query.get("returns") == "one":
            continue
        limit = 1 if query.get("returns") == "one" else query["page"].get("maxSize", 1000) if "page" in query else len(expected)
        assert rows[0] == header
        assert len(rows) - 1 == min(limit, len(expected)), values
        for ours, theirs in zip(rows[1:], expected, strict=False):
            assert all(same(one, two) for one, two in zip(ours, theirs, strict=True)), (values, ours, theirs)
        answered += 1
    assert answered > 0


def encoded(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("query", [query for query in READS if query["connection"] == "lite"], ids=lambda query: str(query["name"]))
def test_sqlite_says_the_same(running: Running, query: dict[str, Any]) -> None:
    random = Random(query["name"])
    if running.pooled:
        pytest.skip("nothing is pooled in front of SQLite")
    with closing(apsw.Connection(str(running.lite), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        for _ in range(ROUNDS):
            values = drawn(query["name"], random)
            kinds = {name: param["type"] for name, param in query.get("params", {}).items()}
            bound = {
                name: json.dumps([int(each) for each in value])
                if isinstance(value, list)
                else int(value)
                if kinds[name] == "integer"
                else float(value)
                for name, value in values.items()
            }
            described: list[Any] = []
            cursor = connection.cursor()
            cursor.exec_trace = lambda cursor, sql, bindings: bool(described.extend(cursor.get_description()) or True)  # noqa: B023
            cursor.execute(query["sql"], bound)
            rows = cursor.fetchall()
            names = [column[0] for column in described]
            expected = [dict(zip(names, map(encoded, row), strict=True)) for row in rows]
            status, body = asked(running, query, values, "application/json")
            if status == 404:
                assert expected == [], values
                continue
            assert status == 200, body
            got = json.loads(body)
            if query.get("returns") == "one":
                assert got == (expected[0] if expected else None), values
            else:
                limit = query["page"]["maxSize"] if "page" in query else len(expected)
                assert got == expected[:limit], values
