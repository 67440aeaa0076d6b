"""The corpus where no probe can be made: the text alone decides, and may only be stricter."""

from collections.abc import Iterator

import pytest
from tailrace_contract.codes import Refusal
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.postgres.probe import available
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, PageSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.postgres import Postgres

from .corpus_postgres import FOLDER, STRICT, BigNumbers, Case, cases, facts_of, verdict

pytestmark = pytest.mark.postgres
DATABASE = "parsed"


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    """The corpus' schema without its own operators and casts, which the text alone could never see, and a role without TEMP."""
    text = (FOLDER / "schema.sql").read_text() + "CREATE SEQUENCE s;"
    kept = [line for line in text.splitlines() if not line.startswith(("CREATE OPERATOR", "CREATE CAST"))]
    postgres.psql(f"CREATE DATABASE {DATABASE}; CREATE ROLE untemporary LOGIN; REVOKE TEMP ON DATABASE {DATABASE} FROM PUBLIC")
    postgres.psql("\n".join(kept) + "GRANT SELECT ON ALL TABLES IN SCHEMA public TO untemporary", DATABASE)
    return postgres


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[PostgresDatabase]:
    session = Session(server.url(DATABASE, "untemporary"))
    assert not available(session)
    opened = PostgresDatabase(session, ConnectionSpec("main", ""))
    yield opened
    opened.close()


def decided(database: PostgresDatabase, case: Case) -> Refusal | None:
    try:
        return verdict(database, facts_of(database, case), STRICT).refused
    except RefusedError as error:
        return error.code


@pytest.mark.parametrize("case", [pytest.param(case, id=case.label) for case in cases() if case.expect != "allowed"])
def test_what_is_refused_by_the_tree_is_refused_by_the_text(case: Case, database: PostgresDatabase) -> None:
    assert decided(database, case) is not None


def test_everyday_statements_are_still_allowed(database: PostgresDatabase) -> None:
    allowed = [case for case in cases() if case.expect == "allowed"]
    passed = [case for case in allowed if decided(database, case) is None]
    assert len(passed) * 3 >= len(allowed)
    # What the text shows masks at least what the tree shows.
    for case in passed:
        facts = facts_of(database, case)
        masked = {mask.column for mask in verdict(database, facts, STRICT).masks}
        plain = {
            n for n, column in enumerate(facts.columns) if (column.table_oid, column.column_number) in database.role(STRICT).rules.masks
        }
        assert plain <= masked


def test_writes_pages_and_own_operators_need_the_probe(server: Postgres, database: PostgresDatabase) -> None:
    for query in (
        QuerySpec("q", "main", "SELECT id FROM orders", page=PageSpec(("id",))),
        QuerySpec("q", "main", "DELETE FROM orders", write=True),
    ):
        with pytest.raises(RefusedError):
            database.facts(query, BigNumbers.NUMBER)
    server.psql("CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)", DATABASE)
    with Session(server.url(DATABASE, "untemporary")) as session:
        other = PostgresDatabase(session, ConnectionSpec("main", ""))
        with pytest.raises(RefusedError):
            other.facts(QuerySpec("q", "main", "SELECT id FROM orders"), BigNumbers.NUMBER)


def test_an_open_role_sees_what_it_asks_for(database: PostgresDatabase) -> None:
    found = database.facts(QuerySpec("q", "main", "SELECT id, email FROM customers ORDER BY email"), BigNumbers.NUMBER)
    assert verdict(database, found, RoleSpec("open")).refused is None
