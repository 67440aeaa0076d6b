"""A MariaDB that changes, goes away and comes back, under the compiler of whole APIs."""

from pathlib import Path

import pytest
from tailrace_contract.plan import ApiPlan, Engine, Mask, ParamType, Returns
from tailrace_gateway.compile.compiler import Compiled, Compiler
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.mariadb import Mariadb

TABLES = """
DROP DATABASE IF EXISTS life; CREATE DATABASE life; USE life;
CREATE TABLE customers (id int PRIMARY KEY, email varchar(80) NOT NULL, name varchar(80) NOT NULL);
CREATE VIEW shown AS SELECT id, name AS label FROM customers;
CREATE USER IF NOT EXISTS blind@'%' IDENTIFIED BY 'b'; GRANT SELECT ON life.* TO blind@'%';
"""
QUERIES = (
    QuerySpec(
        "one", "main", "SELECT id, email FROM customers WHERE id = :id", (ParamSpec("id", ParamType.INTEGER),), Returns.ONE, timeout_ms=500
    ),
    QuerySpec("labels", "main", "SELECT id, label FROM shown"),
    QuerySpec("broken", "main", "SELECT sleep(1) AS x"),
)


@pytest.fixture
def server(mariadb: Mariadb) -> Mariadb:
    mariadb.sql(TABLES)
    return mariadb


def spec(path: Path) -> ApiSpec:
    return ApiSpec(
        api=ApiPlan(namespace="n", name="a"),
        connections=(ConnectionSpec("main", str(path)),),
        queries=QUERIES,
        roles=(RoleSpec("r", masks=(MaskSpec("customers.email", Mask.REDACT),)),),
        keys=(KeySpec("n/k", ("a" * 64,), "r"),),
    )


def masks(compiled: Compiled) -> dict[str, list[int]]:
    snapshot = compiled.assembled.snapshot
    return {snapshot.queries[grant.query].name: [mask.column for mask in grant.masks] for grant in snapshot.roles[0].grants}


def versions(compiled: Compiled) -> dict[str, str]:
    return {query.name: query.version for query in compiled.assembled.snapshot.queries}


def test_a_view_that_is_redefined_under_a_mask(server: Mariadb, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(server.url("life"))
    compiler = Compiler()
    first = compiler.compile(spec(path), 1)
    assert first.assembled.snapshot.connections[0].engine is Engine.MYSQL
    assert masks(first) == {"one": [1], "labels": [], "broken": []}
    assert [(unit.name, unit.code) for unit in first.refusals] == [("broken", "function_not_allowed")]
    assert compiler.tables(QUERIES[1]) == ("life.shown",)
    assert compiler.stale(spec(path)) == ()
    server.sql("CREATE OR REPLACE VIEW shown AS SELECT id, email AS label FROM customers", "life")
    assert compiler.stale(spec(path)) == ("main",)
    second = compiler.compile(spec(path), 2)
    assert masks(second) == {"one": [1], "labels": [1], "broken": []}
    assert versions(first)["labels"] != versions(second)["labels"]
    assert versions(first)["one"] == versions(second)["one"]


def test_a_view_that_our_user_may_not_look_into_is_covered_whole(server: Mariadb, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(server.url("life", "blind", "b"))
    assert masks(Compiler().compile(spec(path), 1))["labels"] == [0, 1]


def test_a_server_that_goes_away_keeps_its_plans(server: Mariadb, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(server.url("life"))
    compiler = Compiler()
    before = versions(compiler.compile(spec(path), 1))
    server.stop()
    try:
        away = compiler.compile(spec(path), 2)
        assert away.unreachable == ("main",)
        assert {name: version for name, version in versions(away).items() if name != "broken"} == {
            name: version for name, version in before.items() if name != "broken"
        }
    finally:
        server.start()
    assert versions(compiler.compile(spec(path), 3)) == before


@pytest.mark.parametrize("url", ["mysql://u@h", "mysql://u@h/d?nope=1", "mariadb://u@h/d"])
def test_urls_that_can_not_be_read(url: str, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(url)
    codes = {unit.code for unit in Compiler().compile(spec(path), 1).refusals}
    assert codes == {"unsupported_engine" if url.startswith("mariadb") else "invalid_url"}


def test_a_superuser_is_warned_of(server: Mariadb, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(server.url("life"))
    assert Compiler().compile(spec(path), 1).warnings
    path.write_text(server.url("life", "blind", "b"))
    assert not Compiler().compile(spec(path), 1).warnings
