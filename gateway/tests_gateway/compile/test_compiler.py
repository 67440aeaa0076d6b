"""Whole APIs against live databases: snapshots, refusals that stay with their unit, databases that come and go."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tailrace_contract.plan import ApiPlan, BigNumbers, ParamType, Returns
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.postgres import Postgres

API = ApiPlan(namespace="retail", name="shop")
ID = (ParamSpec("id", ParamType.INTEGER, required=True),)


@pytest.mark.postgres
def test_a_look_up_on_postgres(postgres: Postgres, url_file: Path) -> None:
    postgres.psql("CREATE TABLE thin (id int PRIMARY KEY, name text)")
    spec = ApiSpec(
        API,
        (ConnectionSpec("main", str(url_file)),),
        (
            QuerySpec("by_id", "main", "SELECT id, name FROM thin WHERE id = :id", ID, Returns.ONE),
            QuerySpec("bad", "main", "SELECT nothing FROM nowhere", (), Returns.ONE),
        ),
        (RoleSpec("all"),),
        (KeySpec("retail/k", ("a" * 64,), "all", {"id": 3}), KeySpec("retail/l", ("b" * 64,), "all", {"id": "x"})),
    )
    compiled = Compiler().compile(spec, 7)
    snapshot = compiled.assembled.snapshot
    assert snapshot.version == 7
    good, bad = snapshot.queries
    assert good.statement.sql == "SELECT id, name FROM thin WHERE id =  $1 "
    assert good.statement.oids == (20,)
    assert [column.encoding for column in good.columns] == ["raw", "string"]
    assert bad.refused == "database_refused"
    assert bad.statement.sql == ""
    assert [key.id for key in snapshot.keys] == ["retail/k"]
    assert {(unit.unit, unit.name, unit.code) for unit in compiled.refusals} == {
        ("query", "bad", "database_refused"),
        ("key", "retail/l", "invalid_key"),
    }


def test_a_look_up_on_sqlite(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE thin (id INTEGER PRIMARY KEY, name TEXT)")
    connection.close()
    (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/shop.db\n")
    spec = ApiSpec(
        API,
        (ConnectionSpec("main", str(tmp_path / "url")),),
        (QuerySpec("by_id", "main", "SELECT id, name FROM thin WHERE id = :id", ID, Returns.ONE),),
        (RoleSpec("all"),),
    )
    compiled = Compiler().compile(spec, 1)
    assert compiled.refusals == ()
    plan = compiled.assembled.snapshot.queries[0]
    assert plan.statement.sql == "SELECT id, name FROM thin WHERE id =  ?1 "
    assert [column.encoding for column in plan.columns] == ["storage", "storage"]
    texts = Compiler().compile(replace(spec, api=API.model_copy(update={"big_numbers": BigNumbers.STRING})), 1)
    assert [column.encoding for column in texts.assembled.snapshot.queries[0].columns] == ["storagequoted", "storagequoted"]
