"""Statements on a real SQLite file: storage classes, limits, deadlines, staleness, writes, what is refused."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from tailrace_contract.idempotency import ddl
from tailrace_contract.plan import ColumnPlan, ConnectionPlan, Encoding, Engine, StatementPlan
from tailrace_gateway.serve.engine import Ask, Done, Failure, Idempotency, Row, StatementFailed
from tailrace_gateway.serve.sqlite.execute import SqliteExecutor
from tailrace_gateway.serve.sqlite.location import database_path, driver_uri

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop #1?.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        connection.executemany("INSERT INTO things VALUES (?, ?)", [(n, f"n{n}") for n in range(1, 1001)])
    connection.close()
    return path


@pytest.fixture
def plan(database: Path, tmp_path: Path) -> ConnectionPlan:
    file = tmp_path / "url"
    file.write_text("sqlite:///" + str(database).replace("#", "%23").replace("?", "%3F").replace(" ", "%20") + "\n")
    return ConnectionPlan(name="main", engine=Engine.SQLITE, url_file=str(file), max_connections=2)


@pytest.fixture
async def executor() -> AsyncIterator[SqliteExecutor]:
    made = SqliteExecutor()
    yield made
    await made.close()


def ask(plan: ConnectionPlan, sql: str, names: str, *values: bytes | None, seconds: float = 10, **more: object) -> Ask:
    made = Ask(
        connection=plan,
        version="0123456789abcdef",
        statement=StatementPlan(sql=sql, params=tuple(range(len(values)))),
        columns=tuple(ColumnPlan(name=name, encoding=Encoding.STORAGE) for name in names.split()),
        values=values,
        limit=None,
        deadline_s=asyncio.get_running_loop().time() + seconds,
    )
    return replace(made, **more)  # type: ignore[arg-type]


async def answer(executor: SqliteExecutor, asked: Ask) -> tuple[list[Row], Done]:
    rows: list[Row] = []
    async with aclosing(executor.stream(asked)) as events:
        async for event in events:
            if isinstance(event, Done):
                return rows, event
            rows += event.rows
    raise AssertionError("no end")


async def failure(executor: SqliteExecutor, asked: Ask) -> Failure:
    with pytest.raises(StatementFailed) as caught:
        await answer(executor, asked)
    return caught.value.failure


async def test_storage_classes_and_binding(executor: SqliteExecutor, plan: ConnectionPlan) -> None:
    sql = "SELECT ?1 AS i, ?2 AS r, ?3 AS t, x'00ff' AS b, NULL AS n, typeof(?1) || typeof(?2) || typeof(?3) AS types, ?4 AS missing"
    rows, _ = await answer(
        executor, ask(plan, sql, "i r t b n types missing", b"i9223372036854775807", b"r\x3f\xf8" + bytes(6), b"t'\";--", None)
    )
    assert [tuple(row) for row in rows] == [(9223372036854775807, 1.5, "'\";--", b"\x00\xff", None, "integerrealtext", None)]


@pytest.mark.parametrize(
    ("limit", "count", "more"),
    [(None, 1000, False), (999, 999, True), (1001, 1000, False), (1000, 1000, True), (1, 1, True), (64, 64, True), (128, 128, True)],
)
async def test_stops_at_the_limit(executor: SqliteExecutor, plan: ConnectionPlan, limit: int | None, count: int, more: bool) -> None:
    rows, done = await answer(executor, ask(plan, "SELECT id FROM things ORDER BY id", "id", limit=limit))
    assert [row[0] for row in rows] == list(range(1, count + 1))
    assert done.more is more


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM things",
        "ATTACH 'x.db' AS x",
        "PRAGMA query_only = OFF",
        "SELECT * FROM pragma_table_info('things')",
        "CREATE TEMP TABLE t (a)",
        "nonsense",
    ],
)
async def test_a_read_session_does_nothing_else(executor: SqliteExecutor, plan: ConnectionPlan, sql: str, database: Path) -> None:
    names = "cid name type notnull dflt_value pk" if "pragma" in sql else ""
    assert await failure(executor, ask(plan, sql, names)) is Failure.REFUSED
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM things").fetchone() == (1000,)
    connection.close()


async def test_deadline_interrupts(executor: SqliteExecutor, plan: ConnectionPlan) -> None:
    assert await failure(executor, ask(plan, ENDLESS, "c", seconds=0.2)) is Failure.TIMEOUT
    assert (await answer(executor, ask(plan, "SELECT 1 AS n", "n")))[0] == [(1,)]


async def test_callers_leave_and_all_places_come_back(executor: SqliteExecutor, plan: ConnectionPlan) -> None:
    for _ in range(5):
        tasks = [asyncio.create_task(answer(executor, ask(plan, ENDLESS, "c", seconds=300))) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await failure(executor, ask(plan, "SELECT 1 AS n", "n", seconds=0.05)) is Failure.POOL_FULL
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        answers = await asyncio.gather(*(answer(executor, ask(plan, "SELECT 1 AS n", "n")) for _ in range(6)))
        assert all(rows == [(1,)] for rows, _ in answers)


async def test_a_stream_left_early_gives_its_place_back(executor: SqliteExecutor, plan: ConnectionPlan) -> None:
    for _ in range(6):
        async with aclosing(executor.stream(ask(plan, "SELECT a.id FROM things a, things b, things c", "id"))) as events:
            async for _ in events:
                break
    assert (await answer(executor, ask(plan, "SELECT 1 AS n", "n")))[0] == [(1,)]


async def test_changed_columns_are_stale(executor: SqliteExecutor, plan: ConnectionPlan, database: Path) -> None:
    assert len((await answer(executor, ask(plan, "SELECT * FROM things", "id name")))[0]) == 1000
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE things ADD COLUMN secret TEXT")
    connection.close()
    assert await failure(executor, ask(plan, "SELECT * FROM things", "id name")) is Failure.STALE


async def test_text_that_is_not_utf8(executor: SqliteExecutor, plan: ConnectionPlan) -> None:
    assert await failure(executor, ask(plan, "SELECT CAST(x'ff' AS TEXT) AS t", "t")) is Failure.REFUSED
    assert (await answer(executor, ask(plan, "SELECT 'é' AS t", "t")))[0] == [("é",)]


async def test_a_file_that_is_not_there_is_never_created(executor: SqliteExecutor, plan: ConnectionPlan, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    Path(plan.url_file).write_text(f"sqlite:///{missing}")
    for write in (False, True):
        assert await failure(executor, ask(plan, "SELECT 1 AS n", "n", write=write)) is Failure.UNAVAILABLE
    assert not missing.exists()
    missing.write_text("this is not a database, whatever its name says" * 100)
    assert await failure(executor, ask(plan, "SELECT 1 AS n", "n")) is Failure.UNAVAILABLE


async def test_a_replaced_file_is_opened_anew(executor: SqliteExecutor, plan: ConnectionPlan, database: Path, tmp_path: Path) -> None:
    await answer(executor, ask(plan, "SELECT 1 AS n", "n"))
    fresh = tmp_path / "fresh.db"
    with sqlite3.connect(fresh) as connection:
        connection.execute("CREATE TABLE things AS SELECT 7 AS id")
    connection.close()
    fresh.replace(database)
    assert (await answer(executor, ask(plan, "SELECT id FROM things", "id")))[0] == [(7,)]


async def test_writes_commit_or_roll_back(executor: SqliteExecutor, plan: ConnectionPlan, database: Path) -> None:
    def count() -> int:
        with sqlite3.connect(database) as connection:
            found = int(connection.execute("SELECT count(*) FROM things").fetchone()[0])
        connection.close()
        return found

    sql = "INSERT INTO things (id, name) SELECT id + ?1, name FROM things WHERE id <= 100 RETURNING id"
    rows, done = await answer(executor, ask(plan, sql, "id", b"i1000", write=True, limit=10))
    assert (len(rows), done.affected, done.more, count()) == (10, 100, True, 1100)
    assert await failure(executor, ask(plan, sql, "id", b"i1000", write=True)) is Failure.CONSTRAINT
    assert await failure(executor, ask(plan, sql, "other", b"i5000", write=True)) is Failure.STALE
    assert count() == 1100
    _, done = await answer(executor, ask(plan, "DELETE FROM things WHERE id > 1050", "", write=True))
    assert (done.affected, count()) == (50, 1050)
    left = asyncio.create_task(
        answer(executor, ask(plan, "INSERT INTO things SELECT a.id + 5000, 'x' FROM things a, things b, things c", "", write=True))
    )
    await asyncio.sleep(0.05)
    left.cancel()
    await asyncio.wait([left])
    assert left.cancelled()
    assert (await answer(executor, ask(plan, "DELETE FROM things WHERE id = 1", "", write=True)))[1].affected == 1
    assert count() == 1049


async def test_foreign_keys_hold(executor: SqliteExecutor, plan: ConnectionPlan, database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE parts (id INTEGER PRIMARY KEY, thing INTEGER NOT NULL REFERENCES things (id))")
    connection.close()
    sql = "INSERT INTO parts (thing) VALUES (?1)"
    assert (await answer(executor, ask(plan, sql, "", b"i1", write=True)))[1].affected == 1
    assert await failure(executor, ask(plan, sql, "", b"i99999", write=True)) is Failure.CONSTRAINT


async def test_a_locked_database_times_out(executor: SqliteExecutor, plan: ConnectionPlan, database: Path) -> None:
    other = apsw.Connection(str(database))  # locks of two SQLite libraries in one process do not see each other
    other.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    assert await failure(executor, ask(plan, "SELECT id FROM things", "id", seconds=0.3)) is Failure.TIMEOUT
    assert await failure(executor, ask(plan, "DELETE FROM things", "", seconds=0.3, write=True)) is Failure.TIMEOUT
    assert time.monotonic() - began < 30
    other.execute("ROLLBACK")
    other.close()
    assert len((await answer(executor, ask(plan, "SELECT id FROM things", "id")))[0]) == 1000


def test_locations_as_the_vectors_say() -> None:
    vectors = Path(__file__).parents[2] / "crds" / "golden" / "vectors" / "sqlite_url.json"
    for case in json.loads(vectors.read_text()):
        try:
            found: str | None = str(database_path(case["url"]))
        except ValueError:
            found = None
        assert found == case["path"], case["url"]
    assert driver_uri(Path("/a/b ?#.db"), "ro") == "file:/a/b%20%3F%23.db?mode=ro"


async def test_idempotency(executor: SqliteExecutor, plan: ConnectionPlan, database: Path) -> None:
    kept = plan.model_copy(update={"idempotency_table": "tailrace_idempotency"})
    with sqlite3.connect(database) as connection:
        connection.executescript(ddl("tailrace_idempotency", "sqlite"))
    connection.close()
    sql = "INSERT INTO things (name) VALUES (?1) RETURNING id, name, x'00ff' AS b, 1.5 AS r, NULL AS n"
    key = Idempotency("ns/a", "k1", "add", "00" * 32)

    def again(key: Idempotency, name: bytes = b"tnew") -> Ask:
        return ask(kept, sql, "id name b r n", name, write=True, idempotency=key)

    first, done = await answer(executor, again(key))
    assert (done.repeated, done.affected) == (False, 1)
    for _ in range(3):
        rows, done = await answer(executor, again(key))
        assert [tuple(row) for row in rows] == [tuple(row) for row in first]
        assert (done.repeated, done.affected) == (True, 1)
    assert await failure(executor, again(replace(key, arguments="11" * 32))) is Failure.IDEMPOTENCY_MISMATCH
    other, _ = await answer(executor, again(replace(key, caller="ns/b")))
    assert other != first
    together = await asyncio.gather(*(answer(executor, again(replace(key, key="k2"))) for _ in range(20)))
    assert len({tuple(rows[0]) for rows, _ in together}) == 1
    assert sum(not done.repeated for _, done in together) == 1
