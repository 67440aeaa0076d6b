"""The adversarial corpus on a real PostgreSQL: what leaks is refused and shown to leak, what is legitimate has a plan that tells nothing."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec
from tailrace_loadtest.servers.postgres import Postgres

from .corpus_postgres import CHANGES, FILTERING, FOLDER, STRICT, Case, answer, cases, facts_of, values_of, verdict

pytestmark = pytest.mark.postgres
DATABASE = "corpus"


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    postgres.psql(f"CREATE DATABASE {DATABASE}")
    postgres.psql((FOLDER / "schema.sql").read_text() + "CREATE SEQUENCE s;", DATABASE)
    return postgres


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(Session(server.url(DATABASE)), ConnectionSpec("main", ""))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def caller(server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.url(DATABASE), autocommit=True) as connection:
        yield connection


def chosen(*proofs: str) -> list[Any]:
    return [pytest.param(case, id=case.label) for case in cases() if case.proof in proofs]


def test_the_corpus_is_large_and_mixed() -> None:
    assert len(cases()) >= 200
    assert len({case.kind for case in cases()}) >= 25
    assert sum(case.expect == "allowed" for case in cases()) * 3 >= len(cases())
    assert len({(case.sql, str(case.params)) for case in cases()}) == len(cases())


@pytest.mark.parametrize("case", chosen("leaks"))
def test_a_leak_is_refused_and_is_one(case: Case, database: PostgresDatabase, caller: psycopg.Connection[Any]) -> None:
    facts = facts_of(database, case)
    assert verdict(database, facts, STRICT).refused == "mask_leak"
    masked = verdict(database, facts, FILTERING)
    assert masked.refused is None
    values = values_of(case, facts)
    before = answer(caller, facts.statement.sql, values, masks=masked.masks)
    after = (answer(caller, facts.statement.sql, values, change, masked.masks) for change in CHANGES)
    assert any(each != before for each in after), "no change of a masked value shows: it is no leak"


@pytest.mark.parametrize("case", chosen("allowed"))
def test_a_legitimate_statement_has_a_plan_that_tells_nothing(
    case: Case, server: Postgres, database: PostgresDatabase, caller: psycopg.Connection[Any]
) -> None:
    facts = facts_of(database, case)
    decided = verdict(database, facts, STRICT)
    assert decided.refused is None, decided.hint
    values = values_of(case, facts)
    before = answer(caller, facts.statement.sql, values, masks=decided.masks)
    assert before[0] == ""
    for change in CHANGES:
        assert answer(caller, facts.statement.sql, values, change, decided.masks) == before
    # The database's own client gives the same rows for the text as its author wrote it.
    options = [word for name, value in case.params.items() for word in ("-v", f"{name}={_literal(value)}")]
    shown = server.psql(case.sql, DATABASE, *options, "-R", "\x1e", "-F", "\x1f", "-P", "null=<null>")
    rows = [tuple(row.split("\x1f")) for row in shown.removesuffix("\n").split("\x1e")] if shown else []
    hidden = {mask.column for mask in decided.masks}
    visible = [tuple(None if n in hidden else _shown(value) for n, value in enumerate(row)) for row in before[1]]
    expected = [tuple(None if n in hidden else value for n, value in enumerate(row)) for row in rows]
    assert sorted(visible, key=repr) == sorted(expected, key=repr)


def refusal(database: PostgresDatabase, case: Case) -> str | None:
    try:
        facts = facts_of(database, case)
    except RefusedError as error:
        return error.code
    return verdict(database, facts, STRICT).refused


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"ARRAY[{','.join(_literal(each) for each in value)}]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _shown(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else "<null>"


@pytest.mark.parametrize("case", chosen("tells", "silent", "acts", "refused"))
def test_what_is_outside_is_refused(case: Case, database: PostgresDatabase) -> None:
    assert refusal(database, case) == case.expect


@pytest.mark.parametrize("case", chosen("tells"))
def test_what_tells_does_tell(case: Case, caller: psycopg.Connection[Any]) -> None:
    before = answer(caller, case.sql, [])
    assert any(answer(caller, case.sql, [], change) != before for change in CHANGES)


@pytest.mark.parametrize("case", chosen("acts"))
def test_what_acts_does_act(case: Case, server: Postgres) -> None:
    with psycopg.connect(server.url(DATABASE), autocommit=True) as connection, connection.transaction(force_rollback=True):
        before = connection.execute(case.check.encode()).fetchall()
        connection.execute(case.sql.encode())
        assert connection.execute(case.check.encode()).fetchall() != before
