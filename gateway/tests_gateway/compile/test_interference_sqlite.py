"""Random statements on SQLite: no plan of the strict role answers differently after a change of what the role must not see."""

import os
import sqlite3
from pathlib import Path

from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec
from tailrace_gateway.compile.sqlite.database import SqliteDatabase
from tailrace_gateway.compile.sqlite.session import Session

from .random_statements import Maker
from .test_corpus_sqlite import CHANGES, FOLDER, STRICT, answer, facts_of, verdict

ROUNDS = int(os.environ.get("TAILRACE_FUZZ", "500"))


def test_no_plan_tells_what_its_role_must_not_see(tmp_path: Path) -> None:
    caller = sqlite3.connect(tmp_path / "random.db", isolation_level=None)
    caller.executescript((FOLDER / "sqlite.sql").read_text())
    database = SqliteDatabase(Session(f"sqlite:///{tmp_path}/random.db"), ConnectionSpec("main", ""))
    seed = int(os.environ.get("TAILRACE_SEED", "20261130"))
    allowed = refused = 0
    for n in range(ROUNDS):
        sql = Maker(seed + n).statement()
        try:
            facts = facts_of(database, sql, {})
        except RefusedError:
            continue
        decided = verdict(database, facts, STRICT)
        if decided.refused is not None:
            refused += 1
            continue
        allowed += 1
        before = answer(caller, facts.statement.sql, [], masks=decided.masks)
        for change in CHANGES:
            after = answer(caller, facts.statement.sql, [], change, decided.masks)
            assert (after[0], sorted(after[1], key=repr)) == (before[0], sorted(before[1], key=repr)), sql
    database.close()
    caller.close()
    assert min(allowed, refused) * 20 >= ROUNDS, (allowed, refused)
