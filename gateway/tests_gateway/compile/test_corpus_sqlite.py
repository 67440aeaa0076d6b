"""The corpus on SQLite, by the same measures as on PostgreSQL."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tailrace_contract.plan import BigNumbers, Mask, MaskPlan, ParamType
from tailrace_gateway.compile.decision import Verdict, decide
from tailrace_gateway.compile.facts import Facts
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, MaskSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_gateway.compile.sqlite.database import SqliteDatabase
from tailrace_gateway.compile.sqlite.session import Session

FOLDER = Path(__file__).parents[1] / "corpus"
TABLES = ("customers", "orders", "contacts", "contacts_again", "rich")
MASKS = tuple(MaskSpec(f"customers.{name}", Mask.NULL) for name in ("email", "salary", "ssn", "profile"))
STRICT = RoleSpec("strict", tables=TABLES, masks=MASKS)
FILTERING = RoleSpec("filtering", tables=TABLES, masks=MASKS, filter_on_masked=True)
CHANGES = (
    "UPDATE customers SET email = CASE id WHEN 1 THEN 'zoe@z.example.com' WHEN 4 THEN 'ann@a.example' ELSE email END",
    "UPDATE customers SET salary = 500 - salary",
    "UPDATE customers SET salary = 100 + id",
    "UPDATE customers SET salary = salary + 100",
    "UPDATE customers SET ssn = '{' || ssn WHERE id = 3",
    "UPDATE customers SET ssn = 'a' WHERE id = 1",
    'UPDATE customers SET profile = \'{"k": 1, "l": 2}\' WHERE id = 2',
    "UPDATE vault SET pin = 'other' WHERE id = 1",
    "DELETE FROM vault WHERE id < 3",
)


def groups(proof: str) -> list[Any]:
    found = []
    for group in yaml.safe_load((FOLDER / "sqlite.yaml").read_text()):
        code = {"leaks": "mask_leak", "allowed": "allowed"}.get(proof) or group.get("code", "")
        for item in group.get(proof, ()):
            sql, params = (item["sql"], item["params"]) if isinstance(item, dict) else (item, {})
            found.append(pytest.param(sql, params, code, id=sql[:80]))
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.db"
    connection = sqlite3.connect(path)
    connection.executescript((FOLDER / "sqlite.sql").read_text())
    connection.close()
    return path


@pytest.fixture(scope="module")
def database(file: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(Session(f"sqlite:///{file}"), ConnectionSpec("main", ""))
    yield opened
    opened.close()


@pytest.fixture
def caller(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file, isolation_level=None)
    yield connection
    connection.close()


def facts_of(database: SqliteDatabase, sql: str, params: Mapping[str, Any]) -> Facts:
    declared = tuple(ParamSpec(name, ParamType.INTEGER if isinstance(value, int) else ParamType.STRING) for name, value in params.items())
    return database.facts(QuerySpec("q", "main", sql, declared), BigNumbers.NUMBER)


def verdict(database: SqliteDatabase, facts: Facts, role: RoleSpec) -> Verdict:
    return decide(facts.lineage, database.role(role).rules, database.system)


def answer(
    caller: sqlite3.Connection, sql: str, values: Sequence[Any], change: str = "", masks: Sequence[MaskPlan] = ()
) -> tuple[str, list[Any]]:
    hidden = {mask.column for mask in masks}
    caller.execute("BEGIN")
    try:
        if change:
            caller.execute(change)
        rows = [tuple(None if n in hidden else value for n, value in enumerate(row)) for row in caller.execute(sql, values)]
        return "", rows if "order by" in sql.lower() else sorted(rows, key=repr)
    except sqlite3.Error as error:
        return type(error).__name__, []
    finally:
        caller.execute("ROLLBACK")


@pytest.mark.parametrize(("sql", "params", "code"), groups("leaks"))
def test_a_leak_is_refused_and_is_one(
    sql: str, params: Mapping[str, Any], code: str, database: SqliteDatabase, caller: sqlite3.Connection
) -> None:
    facts = facts_of(database, sql, params)
    assert verdict(database, facts, STRICT).refused == "mask_leak"
    masked = verdict(database, facts, FILTERING)
    assert masked.refused is None
    values = [list(params.values())[n] for n in facts.statement.params]
    before = answer(caller, facts.statement.sql, values, masks=masked.masks)
    assert any(answer(caller, facts.statement.sql, values, change, masked.masks) != before for change in CHANGES)


@pytest.mark.parametrize(("sql", "params", "code"), groups("allowed"))
def test_a_legitimate_statement_tells_nothing(
    sql: str, params: Mapping[str, Any], code: str, database: SqliteDatabase, caller: sqlite3.Connection
) -> None:
    facts = facts_of(database, sql, params)
    decided = verdict(database, facts, STRICT)
    assert decided.refused is None, decided.hint
    values = [list(params.values())[n] for n in facts.statement.params]
    before = answer(caller, facts.statement.sql, values, masks=decided.masks)
    assert before[0] == ""
    for change in CHANGES:
        assert answer(caller, facts.statement.sql, values, change, decided.masks) == before
    # SQLite itself, given the author's text and named values, answers the same.
    hidden = {mask.column for mask in decided.masks}
    rows = [tuple(None if n in hidden else value for n, value in enumerate(row)) for row in caller.execute(sql, params)]
    assert sorted(rows, key=repr) == sorted(before[1], key=repr)


@pytest.mark.parametrize(("sql", "params", "code"), groups("tells") + groups("silent"))
def test_what_is_outside_is_refused(sql: str, params: Mapping[str, Any], code: str, database: SqliteDatabase) -> None:
    try:
        refused: object = verdict(database, facts_of(database, sql, params), STRICT).refused
    except RefusedError as error:
        refused = error.code
    assert refused == code


@pytest.mark.parametrize(("sql", "params", "code"), groups("tells"))
def test_what_tells_does_tell(sql: str, params: Mapping[str, Any], code: str, caller: sqlite3.Connection) -> None:
    before = answer(caller, sql, [])
    assert any(answer(caller, sql, [], change) != before for change in CHANGES)
