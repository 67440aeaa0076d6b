"""Statements on a real MariaDB: values, limits, deadlines, staleness, cancellation, restarts, writes, idempotency."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from tailrace_contract.idempotency import ddl
from tailrace_contract.plan import BigNumbers, ConnectionPlan, Engine, MysqlPlace, ParamType, Returns
from tailrace_contract.uri_parts import Files
from tailrace_gateway.compile.mysql.database import MysqlDatabase
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.spec import ConnectionSpec, ParamSpec, QuerySpec
from tailrace_gateway.observe import Observation
from tailrace_gateway.serve.engine import Ask, Done, Failure, Idempotency, Row, StatementFailed
from tailrace_gateway.serve.mysql.execute import MysqlExecutor
from tailrace_loadtest.servers.mariadb import Mariadb

TABLES = """
CREATE DATABASE IF NOT EXISTS execute_; USE execute_;
CREATE TABLE IF NOT EXISTS execute_.things (id int PRIMARY KEY, name varchar(20) NOT NULL);
TRUNCATE execute_.things;
INSERT INTO execute_.things SELECT seq, concat('n', seq) FROM seq_1_to_1000;
CREATE TABLE IF NOT EXISTS execute_.notes (id int AUTO_INCREMENT PRIMARY KEY, note varchar(20) NOT NULL UNIQUE);
TRUNCATE execute_.notes;
CREATE USER IF NOT EXISTS reader@'%' IDENTIFIED BY 'pass word';
GRANT ALL ON execute_.* TO reader@'%';
"""


@pytest.fixture
def server(mariadb: Mariadb) -> Mariadb:
    mariadb.sql(TABLES + ddl("execute_.kept", "mysql"))
    return mariadb


@pytest.fixture
def plan(server: Mariadb, tmp_path: Path) -> ConnectionPlan:
    file = tmp_path / "url"
    file.write_text(server.url("execute_", "reader", "pass%20word") + "\n")
    return ConnectionPlan(
        name="main",
        engine=Engine.MYSQL,
        url_file=str(file),
        max_connections=2,
        idempotency_table="execute_.kept",
        statement_timeout_ms=20_000,
    )


@pytest.fixture
async def executor() -> AsyncIterator[MysqlExecutor]:
    made = MysqlExecutor(lambda _: None)
    yield made
    await made.close()


def asked(
    plan: ConnectionPlan, sql: str, *values: bytes | None, types: Sequence[ParamType] = (), seconds: float = 20, **more: object
) -> Ask:
    """An ask whose plan is compiled on the spot."""
    url = Path(plan.url_file).read_text().strip()
    database = MysqlDatabase(Session(url, (), Files()), ConnectionSpec("main", ""), None)
    try:
        write = bool(more.get("write"))
        params = tuple(ParamSpec(f"p{n}", kind) for n, kind in enumerate(types))
        found = database.facts(QuerySpec("q", "main", sql, params, returns=Returns.MANY, write=write), BigNumbers.NUMBER)
    finally:
        database.close()
    made = Ask(
        connection=plan,
        version="0123456789abcdef",
        statement=found.statement,
        columns=found.columns,
        values=tuple(values[n] for n in found.statement.params),
        limit=None,
        deadline_s=asyncio.get_running_loop().time() + seconds,
    )
    return replace(made, **more)  # type: ignore[arg-type]


async def answer(executor: MysqlExecutor, ask: Ask) -> tuple[list[Row], Done]:
    rows: list[Row] = []
    async with aclosing(executor.stream(ask)) as events:
        async for event in events:
            if isinstance(event, Done):
                return rows, event
            rows += event.rows
    raise AssertionError("no end")


async def failure(executor: MysqlExecutor, ask: Ask) -> Failure:
    with pytest.raises(StatementFailed) as caught:
        await answer(executor, ask)
    return caught.value.failure


async def test_parameters_of_every_type(executor: MysqlExecutor, plan: ConnectionPlan) -> None:
    names = list(ParamType)
    values = [
        b"-7",
        b"1.50",
        "é'\";--".encode(),
        b"true",
        b"2026-01-31",
        b"09:30:00",
        b"2026-01-31T09:30:00.5+02:00",
        b"a" * 36,
        b'{"a":1}',
    ]
    sql = "SELECT " + ", ".join(f":p{n} AS c{n}" for n in range(len(names)))
    rows, _ = await answer(executor, asked(plan, sql, *values, types=names))
    assert rows == [
        [b"-7", b"1.50", "é'\";--".encode(), b"1", b"2026-01-31", b"09:30:00", b"2026-01-31 07:30:00.5", b"a" * 36, b'{"a":1}'],
    ]
    rows, _ = await answer(executor, asked(plan, sql, *[None] * len(names), types=names))
    assert rows == [[None] * len(names)]


@pytest.mark.parametrize(
    ("limit", "count", "more"),
    [(None, 1000, False), (999, 999, True), (1001, 1000, False), (1000, 1000, True), (1, 1, True), (64, 64, True)],
)
async def test_stops_at_the_limit(executor: MysqlExecutor, plan: ConnectionPlan, limit: int | None, count: int, more: bool) -> None:
    ask = asked(plan, "SELECT id FROM things ORDER BY id", limit=limit)
    for _ in range(3):
        rows, done = await answer(executor, ask)
        assert [row[0] for row in rows] == [b"%d" % n for n in range(1, count + 1)]
        assert done.more is more


async def test_a_result_too_long_to_read_on_costs_its_connection_only(
    executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb
) -> None:
    ask = asked(plan, "SELECT repeat('x', 1000) AS x FROM things a JOIN things b", limit=1)
    for _ in range(4):
        rows, done = await answer(executor, ask)
        assert len(rows) == 1
        assert done.more
    assert await idle(server)


async def idle(server: Mariadb) -> bool:
    """Whether no statement of ours runs any more, soon."""
    for _ in range(200):
        running = "SELECT count(*) FROM information_schema.processlist WHERE user = 'reader' AND command NOT IN ('Sleep', 'Killed')"
        if server.sql(running) == "0\n":
            return True
        await asyncio.sleep(0.05)
    return False


SLOW = "SELECT count(*) AS c FROM things a JOIN things b JOIN things c WHERE concat(a.name, b.name, c.name) LIKE '%z%'"


async def test_a_deadline_ends_the_statement_in_the_server(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    assert await failure(executor, asked(plan, SLOW, seconds=0.5)) is Failure.TIMEOUT
    assert await idle(server)


async def test_the_servers_own_timeout(executor: MysqlExecutor, plan: ConnectionPlan) -> None:
    quick = plan.model_copy(update={"statement_timeout_ms": 100})
    assert await failure(executor, asked(quick, SLOW)) is Failure.TIMEOUT


async def test_a_caller_who_leaves_ends_the_statement(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    task = asyncio.ensure_future(answer(executor, asked(plan, SLOW)))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await idle(server)
    rows, _ = await answer(executor, asked(plan, "SELECT name FROM things WHERE id = 7"))
    assert rows == [[b"n7"]]


def raw(server: Mariadb) -> "pymysql.Connection[Any]":
    """A connection of the same account that is none of ours."""
    return pymysql.connect(host="127.0.0.1", port=server.port, user="reader", password="pass word")


def numbers_from(server: Mariadb, least: int) -> None:
    """The server's next connections have at least this number."""
    reached = 0
    while reached < least:
        connection = raw(server)
        reached = connection.thread_id() + 1
        connection.close()


async def test_behind_an_address_of_two_servers_nobody_elses_statement_is_killed(
    executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb, tmp_path: Path
) -> None:
    slow = asked(plan, SLOW)
    with Mariadb() as other:
        other.sql(TABLES)
        probe = raw(server)
        numbers_from(other, probe.thread_id() + 1)
        probe.close()
        # The same account's sessions over there, one for each number that ours can have.
        theirs = [raw(other) for _ in range(24)]
        for each in theirs:
            each._execute_command(COMMAND.COM_QUERY, "SELECT SLEEP(300)")
        numbers = sorted(each.thread_id() for each in theirs)
        numbers_from(server, numbers[0] + 2)
        sleeping = "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(300)' ORDER BY id"
        for _ in range(200):
            if len(other.sql(sleeping).split()) == len(theirs):
                break
            await asyncio.sleep(0.05)
        ports: list[int] = []
        leads: list[asyncio.Future[Any]] = []

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ports.append(other.port if ports else server.port)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", ports[-1])

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                sink.close()
                await sink.wait_closed()

            leads.append(asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True))

        both = await asyncio.start_server(lead, "127.0.0.1", 0)
        file = tmp_path / "both"
        url = server.url("execute_", "reader", "pass%20word")
        file.write_text(url.replace(f":{server.port}/", f":{both.sockets[0].getsockname()[1]}/"))
        shared = plan.model_copy(update={"name": "both", "url_file": str(file), "max_connections": 1})
        task = asyncio.ensure_future(failure(executor, replace(slow, connection=shared, deadline_s=asyncio.get_running_loop().time() + 2)))
        await asyncio.sleep(0.5)
        ours = int(server.sql("SELECT id FROM information_schema.processlist WHERE user = 'reader' AND info LIKE 'SELECT count(*) AS c%'"))
        assert numbers[0] <= ours <= numbers[-1]
        assert await task is Failure.TIMEOUT
        for _ in range(100):
            if len(ports) == 2:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert ports == [server.port, other.port]
        assert [int(line) for line in other.sql(sleeping).split()] == numbers
        server.sql(f"KILL {ours}")
        both.close()
        await both.wait_closed()
        await executor.close()
        await asyncio.wait_for(asyncio.gather(*leads), 10)
        for each in theirs:
            each._force_close()


async def test_a_stream_left_half_way(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    async with aclosing(executor.stream(asked(plan, "SELECT repeat('x', 1000) AS x FROM things a JOIN things b"))) as events:
        async for _ in events:
            break
    assert await idle(server)


async def test_the_pool_is_bounded(executor: MysqlExecutor, plan: ConnectionPlan) -> None:
    slow = [asyncio.ensure_future(answer(executor, asked(plan, SLOW, seconds=3))) for _ in range(2)]
    await asyncio.sleep(0.2)
    assert await failure(executor, asked(plan, "SELECT 1 AS one", seconds=0.5)) is Failure.POOL_FULL
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_restart_is_not_noticed(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    ask = asked(plan, "SELECT name FROM things WHERE id = 7")
    assert (await answer(executor, ask))[0] == [[b"n7"]]
    server.stop()
    server.start()
    assert (await answer(executor, ask))[0] == [[b"n7"]]


async def test_a_server_that_is_down(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    ask = asked(plan, "SELECT name FROM things WHERE id = 7")
    Path(plan.url_file).write_text("mysql://reader@127.0.0.1:1/execute_")
    assert await failure(executor, ask) is Failure.UNAVAILABLE
    Path(plan.url_file).write_text(server.url("execute_", "reader", "wrong"))
    assert await failure(executor, ask) is Failure.UNAVAILABLE


async def test_an_altered_table_is_never_shown(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    ask = asked(plan, "SELECT * FROM things WHERE id = 7")
    assert len((await answer(executor, ask))[0]) == 1
    server.sql("ALTER TABLE things ADD secret int DEFAULT 1 FIRST", "execute_")
    try:
        assert await failure(executor, ask) is Failure.STALE
        assert await failure(executor, ask) is Failure.STALE
    finally:
        server.sql("ALTER TABLE things DROP secret", "execute_")
    assert (await answer(executor, ask))[0] == [[b"7", b"n7"]]


async def test_errors(executor: MysqlExecutor, plan: ConnectionPlan) -> None:
    assert await failure(executor, asked(plan, "SELECT exp(id) AS e FROM things")) is Failure.REFUSED
    big = asked(plan, "SELECT :p0 AS n", b"1e999", types=[ParamType.NUMBER])
    assert await failure(executor, big) is Failure.REFUSED
    rows, _ = await answer(executor, asked(plan, "SELECT 1 AS one"))
    assert rows == [[b"1"]]


async def test_reads_cannot_write(executor: MysqlExecutor, plan: ConnectionPlan) -> None:
    ask = asked(plan, "INSERT INTO notes (note) VALUES ('x')", write=True)
    assert await failure(executor, replace(ask, write=False)) is Failure.UNAVAILABLE


async def test_writes(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    insert = asked(plan, "INSERT INTO notes (note) VALUES (:p0) RETURNING id, note", b"one", types=[ParamType.STRING], write=True)
    rows, done = await answer(executor, insert)
    assert rows == [[b"1", b"one"]]
    assert done.affected == 1
    assert await failure(executor, insert) is Failure.CONSTRAINT
    update = asked(plan, "UPDATE notes SET note = note", write=True)
    assert (await answer(executor, update))[1].affected == 1  # matched, though nothing changed
    assert server.sql("SELECT count(*) FROM notes", "execute_") == "1\n"


async def test_idempotency(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    key = Idempotency("retail/key", f"k{time.monotonic_ns()}", "q", "a" * 64)
    ask = asked(
        plan, "INSERT INTO notes (note) VALUES (:p0) RETURNING note", b"kept", types=[ParamType.STRING], write=True, idempotency=key
    )
    first, again = await answer(executor, ask), await answer(executor, ask)
    assert first[0] == again[0] == [[b"kept"]]
    assert (first[1].affected, first[1].repeated, again[1].affected, again[1].repeated) == (1, False, 1, True)
    other = replace(ask, idempotency=replace(key, arguments="b" * 64))
    assert await failure(executor, other) is Failure.IDEMPOTENCY_MISMATCH
    fresh = replace(ask, idempotency=replace(key, key=key.key + "x"))
    assert await failure(executor, fresh) is Failure.CONSTRAINT
    assert server.sql("SELECT count(*) FROM kept WHERE caller = 'retail/key'", "execute_").strip().isdigit()
    assert server.sql("SELECT count(*) FROM notes", "execute_") == "1\n"


async def test_one_write_of_many_with_one_key(executor: MysqlExecutor, plan: ConnectionPlan, server: Mariadb) -> None:
    key = Idempotency("retail/key", f"k{time.monotonic_ns()}", "q", "a" * 64)
    ask = asked(plan, "INSERT INTO notes (note) VALUES (:p0)", b"race", types=[ParamType.STRING], write=True, idempotency=key)
    results = await asyncio.gather(*(answer(executor, ask) for _ in range(12)), return_exceptions=True)
    done = [result for result in results if not isinstance(result, BaseException)]
    assert done
    assert sum(not result[1].repeated for result in done) == 1
    assert all(isinstance(r, StatementFailed) and r.failure is Failure.IDEMPOTENCY_RUNNING for r in results if isinstance(r, BaseException))
    assert server.sql("SELECT count(*) FROM notes", "execute_") == "1\n"


async def test_observations_name_the_connection_only(plan: ConnectionPlan) -> None:
    seen: list[Observation] = []
    executor = MysqlExecutor(seen.append)
    await answer(executor, asked(plan, "SELECT 1 AS one"))
    await executor.close()
    assert [one.fields for one in seen] == [{"connection": "main"}]


def test_places_are_the_protocols_codes() -> None:
    assert [int(place) for place in MysqlPlace] == [1, 5, 8, 10, 11, 12, 246, 252, 253]
