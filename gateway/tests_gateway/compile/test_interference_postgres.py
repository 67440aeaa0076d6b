"""Random statements: whatever has a plan for the strict role answers the same before and after a change of what the role must not see."""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec
from tailrace_loadtest.servers.postgres import Postgres

from .corpus_postgres import CHANGES, FOLDER, STRICT, Case, answer, facts_of, verdict
from .random_statements import Maker

pytestmark = pytest.mark.postgres
SETTLE = "CLUSTER customers USING customers_pkey"
"""An update moves rows in the heap; where they lie is no value of theirs."""
ROUNDS = int(os.environ.get("TAILRACE_FUZZ", "400"))
"""Statements that are tried; more in a long run."""


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[PostgresDatabase]:
    postgres.psql("CREATE DATABASE interference")
    postgres.psql((FOLDER / "schema.sql").read_text(), "interference")
    opened = PostgresDatabase(Session(postgres.url("interference")), ConnectionSpec("main", ""))
    yield opened
    opened.close()


def test_no_plan_tells_what_its_role_must_not_see(postgres: Postgres, database: PostgresDatabase) -> None:
    seed = int(os.environ.get("TAILRACE_SEED", "20261130"))
    allowed = refused = invalid = 0
    with psycopg.connect(postgres.url("interference"), autocommit=True) as caller:
        caller.execute("SET statement_timeout = '5s'")
        for n in range(ROUNDS):
            sql = Maker(seed + n).statement()
            case = Case("random", sql, "", "")
            try:
                facts = facts_of(database, case)
            except RefusedError:
                invalid += 1
                continue
            decided = verdict(database, facts, STRICT)
            if decided.refused is not None:
                refused += 1
                continue
            allowed += 1
            _same(caller, sql, facts.statement.sql, decided.masks)
    assert min(allowed, refused) * 10 >= ROUNDS, (allowed, refused, invalid)


def _same(caller: psycopg.Connection[Any], text: str, sql: str, masks: Any) -> None:
    before = _unordered(answer(caller, sql, [], masks=masks))
    for change in CHANGES:
        assert _unordered(answer(caller, sql, [], change, masks, SETTLE)) == before, text


def _unordered(found: tuple[str, list[tuple[object, ...]]]) -> tuple[str, list[tuple[object, ...]]]:
    """Rows that compare equal in the ORDER BY come in any order: an update moves rows in the heap."""
    return found[0], sorted(found[1], key=repr)
