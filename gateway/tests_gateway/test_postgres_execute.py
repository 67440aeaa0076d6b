"""Statements on a real PostgreSQL: values as text, limits, deadlines, cancellation, staleness, pools, rotation, restarts."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from tailrace_contract.idempotency import ddl
from tailrace_contract.plan import ColumnPlan, ConnectionPlan, Encoding, Engine, Pooler, StatementPlan
from tailrace_gateway.observe import silent
from tailrace_gateway.serve.engine import Ask, Done, Failure, Idempotency, Row, Rows, StatementFailed
from tailrace_gateway.serve.postgres.execute import PostgresExecutor
from tailrace_gateway.serve.postgres.pool import Pool
from tailrace_gateway.serve.postgres.sqlstate import failure_of
from tailrace_loadtest.servers.pgbouncer import PgBouncer
from tailrace_loadtest.servers.postgres import Postgres, free_port

pytestmark = pytest.mark.postgres
INT8, TEXT, NUMERIC = 20, 25, 1700


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        running.psql(
            "CREATE TABLE things (id bigint primary key, name text not null); INSERT INTO things SELECT n, 'n' || n FROM generate_series(1, 1000) n"
        )
        yield running


@pytest.fixture
def plan(server: Postgres, tmp_path: Path) -> ConnectionPlan:
    file = tmp_path / "url"
    file.write_text(server.url())
    return ConnectionPlan(name="main", engine=Engine.POSTGRES, url_file=str(file), max_connections=2)


@pytest.fixture
async def executor() -> AsyncIterator[PostgresExecutor]:
    made = PostgresExecutor(silent)
    yield made
    await made.close()


def column(name: str, oid: int, table: int = 0, number: int = 0) -> ColumnPlan:
    return ColumnPlan(name=name, encoding=Encoding.STRING, type_oid=oid, table_oid=table, column_number=number)


def ask(
    plan: ConnectionPlan, sql: str, columns: tuple[ColumnPlan, ...], *values: bytes | None, oids: tuple[int, ...] = (), **more: object
) -> Ask:
    seconds = float(str(more.pop("seconds", 10)))
    made = Ask(
        connection=plan,
        version="0123456789abcdef",
        statement=StatementPlan(sql=sql, params=tuple(range(len(values))), oids=oids),
        columns=columns,
        values=values,
        limit=None,
        deadline_s=asyncio.get_running_loop().time() + seconds,
    )
    return replace(made, **more)  # type: ignore[arg-type]


async def answer(executor: PostgresExecutor, asked: Ask) -> tuple[list[Row], Done]:
    rows: list[Row] = []
    async with aclosing(executor.stream(asked)) as events:
        async for event in events:
            if isinstance(event, Done):
                return rows, event
            rows += event.rows
    raise AssertionError("no end")


async def failure(executor: PostgresExecutor, asked: Ask) -> Failure:
    with pytest.raises(StatementFailed) as caught:
        await answer(executor, asked)
    return caught.value.failure


def active(server: Postgres) -> int:
    return int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace' AND state <> 'idle'"))


def connected(server: Postgres) -> int:
    return int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace'"))


@pytest.fixture(params=[Pooler.NONE, Pooler.TRANSACTION])
def either(plan: ConnectionPlan, request: pytest.FixtureRequest) -> ConnectionPlan:
    return plan.model_copy(update={"pooler": request.param})


async def test_values_are_the_servers_text(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    sql = """SELECT 9223372036854775807::int8 a, 1234567890123456789012345678901234567890.10::numeric b, 'NaN'::float8 c, 1e20::float8 d,
        'infinity'::timestamptz e, '2026-01-31 09:30:00.5+02'::timestamptz f, interval '1 day 2 hours' g, '\\xdead'::bytea h, NULL::text i,
        ARRAY[[1,2],[3,4]] j, 12.5::money k, true l, '𝄞"\\'::text m"""
    oids = (20, 1700, 701, 701, 1184, 1184, 1186, 17, 25, 1007, 790, 16, 25)
    columns = tuple(column(name, oid) for name, oid in zip("abcdefghijklm", oids, strict=True))
    rows, done = await answer(executor, ask(either, sql, columns))
    assert rows == [
        [
            b"9223372036854775807", b"1234567890123456789012345678901234567890.10", b"NaN", b"1e+20", b"infinity",
            b"2026-01-31 07:30:00.5+00", b"P1DT2H", b"\\xdead", None, b"{{1,2},{3,4}}", b"$12.50", b"t", '𝄞"\\'.encode(),
        ]
    ]  # fmt: skip
    assert not done.more
    assert done.database_us > 0


async def test_parameters_are_bound_never_put_into_text(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    hostile = b"'; DROP TABLE things; --\\\"$$"
    rows, _ = await answer(
        executor, ask(either, "SELECT $1 AS v, $2 AS n", (column("v", TEXT), column("n", INT8)), hostile, None, oids=(TEXT, INT8))
    )
    assert rows == [[hostile, None]]


@pytest.mark.parametrize(
    ("limit", "count", "more"),
    [(None, 1000, False), (999, 999, True), (1001, 1000, False), (1000, 1000, True), (1, 1, True), (64, 64, True), (65, 65, True)],
)
async def test_stops_at_the_limit(executor: PostgresExecutor, either: ConnectionPlan, limit: int | None, count: int, more: bool) -> None:
    sql = "SELECT n::int8 AS n FROM generate_series(1, 1000) n"
    for _ in range(3):
        rows, done = await answer(executor, ask(either, sql, (column("n", INT8),), limit=limit))
        assert [int(row[0] or 0) for row in rows] == list(range(1, count + 1))
        assert done.more is more


async def test_a_write_statement_in_a_read_is_refused_by_the_session(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    assert await failure(executor, ask(either, "DELETE FROM things", ())) is Failure.UNAVAILABLE  # 25006


async def test_errors_and_the_session_after_them(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    for _ in range(4):
        assert (
            await failure(executor, ask(either, "SELECT 1/(n-500) AS n FROM generate_series(1,1000) n", (column("n", 23),)))
            is Failure.REFUSED
        )
        rows, _ = await answer(executor, ask(either, "SELECT 1::int8 AS n", (column("n", INT8),)))
        assert rows == [[b"1"]]


async def test_deadline_cancels_in_the_database(executor: PostgresExecutor, either: ConnectionPlan, server: Postgres) -> None:
    asked = ask(either, "SELECT pg_sleep(300)::text AS s", (column("s", TEXT),), seconds=0.3)
    assert await failure(executor, asked) is Failure.TIMEOUT
    await until(lambda: active(server) == 0)


async def until(condition: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "did not happen"
        await asyncio.sleep(0.02)


async def test_callers_leave_all_connections_come_back(executor: PostgresExecutor, either: ConnectionPlan, server: Postgres) -> None:
    """Case 1 and 3: pool-size sleeps whose callers leave; the next calls work and never get the stray cancel."""
    for _ in range(10):
        asked = [ask(either, "SELECT pg_sleep(300)::text AS s", (column("s", TEXT),)) for _ in range(2)]
        tasks = [asyncio.create_task(answer(executor, one)) for one in asked]
        await until(lambda: active(server) >= 2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        answers = await asyncio.gather(*(answer(executor, ask(either, "SELECT 5::int8 AS n", (column("n", INT8),))) for _ in range(6)))
        assert all(rows == [[b"5"]] for rows, _ in answers)
    await until(lambda: active(server) == 0)
    assert connected(server) <= 2


async def test_pool_of_one(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    """Case 4: never over the pool's size; the second caller hears `pool_full` at its deadline."""
    one = plan.model_copy(update={"max_connections": 1})
    slow = asyncio.create_task(answer(executor, ask(one, "SELECT pg_sleep(1)::text AS s", (column("s", TEXT),))))
    await until(lambda: active(server) == 1)
    assert await failure(executor, ask(one, "SELECT 1::int8 AS n", (column("n", INT8),), seconds=0.2)) is Failure.POOL_FULL
    waiting = asyncio.create_task(answer(executor, ask(one, "SELECT 2::int8 AS n", (column("n", INT8),))))
    await slow
    assert (await waiting)[0] == [[b"2"]]
    assert connected(server) == 1


async def test_connection_limit_makes_only_the_excess_wait(executor: PostgresExecutor, server: Postgres, tmp_path: Path) -> None:
    """Case 5."""
    server.psql("CREATE ROLE narrow LOGIN CONNECTION LIMIT 2")
    file = tmp_path / "narrow"
    file.write_text(server.url(user="narrow"))
    plan = ConnectionPlan(name="narrow", engine=Engine.POSTGRES, url_file=str(file), max_connections=3)
    answers = await asyncio.gather(
        *(answer(executor, ask(plan, "SELECT pg_sleep(0.3)::text AS s", (column("s", TEXT),))) for _ in range(6))
    )
    assert len(answers) == 6


async def test_changed_table_is_stale_never_shown(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    """Case 8: `SELECT *` under ALTER TABLE: 0A000, prepared again, another shape, so no answer."""
    server.psql("DROP TABLE IF EXISTS changing; CREATE TABLE changing (id bigint, name text); INSERT INTO changing VALUES (1, 'a')")
    oid = int(server.psql("SELECT 'changing'::regclass::oid"))
    columns = (column("id", INT8, oid, 1), column("name", TEXT, oid, 2))
    asked = ask(plan, "SELECT * FROM changing", columns)
    assert (await answer(executor, asked))[0] == [[b"1", b"a"]]
    server.psql("ALTER TABLE changing ADD COLUMN secret text DEFAULT 's'")
    for _ in range(3):
        assert await failure(executor, ask(plan, "SELECT * FROM changing", columns)) is Failure.STALE
    wider = (*columns, column("secret", TEXT, oid, 3))
    assert (await answer(executor, ask(plan, "SELECT * FROM changing", wider)))[0] == [[b"1", b"a", b"s"]]


async def test_changed_type_that_keeps_the_shape_is_retried(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    server.psql("DROP TABLE IF EXISTS moved; CREATE TABLE moved (a varchar(10)); INSERT INTO moved VALUES ('x')")
    oid = int(server.psql("SELECT 'moved'::regclass::oid"))
    columns = (column("a", 1043, oid, 1),)
    assert (await answer(executor, ask(plan, "SELECT * FROM moved", columns)))[0] == [[b"x"]]
    server.psql("ALTER TABLE moved ALTER a TYPE varchar(20)")
    assert (await answer(executor, ask(plan, "SELECT * FROM moved", columns)))[0] == [[b"x"]]


async def test_restart_is_unnoticed_on_idle_connections(executor: PostgresExecutor, plan: ConnectionPlan, tmp_path: Path) -> None:
    with Postgres() as own:
        file = tmp_path / "own"
        file.write_text(own.url())
        there = plan.model_copy(update={"url_file": str(file)})
        asked = "SELECT 1::int8 AS n"
        await answer(executor, ask(there, asked, (column("n", INT8),)))
        own.stop()
        assert await failure(executor, ask(there, asked, (column("n", INT8),))) is Failure.UNAVAILABLE
        own.start()
        await until_answered(executor, there)
        own.stop("immediate")
        own.start()
        assert (await until_answered(executor, there)) == [[b"1"]]


async def until_answered(executor: PostgresExecutor, plan: ConnectionPlan) -> list[Row]:
    for _ in range(100):
        try:
            return (await answer(executor, ask(plan, "SELECT 1::int8 AS n", (column("n", INT8),))))[0]
        except StatementFailed:
            await asyncio.sleep(0.05)
    raise AssertionError("never answered")


async def test_terminated_idle_connection_is_replaced_unnoticed(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    for _ in range(5):
        await answer(executor, ask(plan, "SELECT 1::int8 AS n", (column("n", INT8),)))
        server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace'")
        assert (await answer(executor, ask(plan, "SELECT 2::int8 AS n", (column("n", INT8),))))[0] == [[b"2"]]


async def test_rotated_password_needs_no_restart(executor: PostgresExecutor, tmp_path: Path) -> None:
    """Case 9: new connections use the new URL; the old session serves until the new one works."""
    hba = "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n"
    with Postgres(hba=hba) as own:
        own.psql("CREATE ROLE app LOGIN PASSWORD 'one'")
        file = tmp_path / "own"

        def rotate(password: str) -> None:
            fresh = tmp_path / "fresh"
            fresh.write_text(f"postgresql://app:{password}@127.0.0.1:{own.port}/postgres")
            fresh.replace(file)

        rotate("one")
        plan = ConnectionPlan(name="own", engine=Engine.POSTGRES, url_file=str(file), max_connections=2)
        await answer(executor, ask(plan, "SELECT 1::int8 AS n", (column("n", INT8),)))
        rotate("two")  # the Secret is ahead of the database
        assert (await answer(executor, ask(plan, "SELECT 1::int8 AS n", (column("n", INT8),))))[0] == [[b"1"]]
        own.psql("ALTER ROLE app PASSWORD 'two'")
        answers = await asyncio.gather(
            *(answer(executor, ask(plan, "SELECT pg_sleep(0.05)::text AS s", (column("s", TEXT),))) for _ in range(8))
        )
        assert len(answers) == 8


async def test_prepared_statements_are_bounded_and_reused(executor: PostgresExecutor, plan: ConnectionPlan) -> None:
    one = plan.model_copy(update={"max_connections": 1})
    for n in range(300):
        await answer(executor, ask(one, f"SELECT {n}::int8 AS n", (column("n", INT8),)))
    rows, _ = await answer(executor, ask(one, "SELECT count(*) AS n FROM pg_prepared_statements", (column("n", INT8),)))
    assert int(rows[0][0] or 0) <= 256


async def test_a_trace_goes_along_as_a_comment_of_an_unnamed_statement(executor: PostgresExecutor, plan: ConnectionPlan) -> None:
    """Case 48: reuse of the named statement is not broken by it."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    one = plan.model_copy(update={"max_connections": 1})
    plain = "SELECT current_query() AS q"
    rows, _ = await answer(executor, ask(one, plain, (column("q", TEXT),), trace=trace))
    assert trace in (rows[0][0] or b"").decode()
    rows, _ = await answer(executor, ask(one, plain, (column("q", TEXT),)))
    assert rows == [[plain.encode()]]


async def test_stream_is_cancelled_when_its_reader_goes(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    """Case 11: memory stays flat because what is not read is not fetched."""
    asked = ask(plan, "SELECT repeat('x', 10000) AS x FROM generate_series(1, 10000000)", (column("x", TEXT),), seconds=60)
    seen = 0
    async with aclosing(executor.stream(asked)) as events:
        async for event in events:
            assert isinstance(event, Rows)
            seen += len(event.rows)
            if seen > 500:
                break
    await until(lambda: active(server) == 0)


async def test_writes_commit_or_roll_back(executor: PostgresExecutor, either: ConnectionPlan, server: Postgres) -> None:
    server.psql("DROP TABLE IF EXISTS notes; CREATE TABLE notes (id bigint primary key, t text)")
    oid = int(server.psql("SELECT 'notes'::regclass::oid"))
    sql = "INSERT INTO notes SELECT n, $1 FROM generate_series(1, 100) n RETURNING id"
    columns = (column("id", INT8, oid, 1),)
    rows, done = await answer(executor, ask(either, sql, columns, b"t", oids=(TEXT,), write=True, limit=10))
    assert (len(rows), done.affected, done.more) == (10, 100, True)
    assert await failure(executor, ask(either, sql, columns, b"t", oids=(TEXT,), write=True)) is Failure.CONSTRAINT
    assert server.psql("SELECT count(*) FROM notes").strip() == "100"
    _, done = await answer(executor, ask(either, "DELETE FROM notes WHERE id > 40", (), write=True))
    assert done.affected == 60
    slow = ask(either, "UPDATE notes SET t = pg_sleep(0.02)::text", (), write=True, seconds=0.3)
    assert await failure(executor, slow) is Failure.TIMEOUT
    await until(lambda: active(server) == 0)
    assert server.psql("SELECT count(*) FROM notes WHERE t = 't'").strip() == "40"
    rows, _ = await answer(executor, ask(either, "SELECT current_setting('transaction_read_only') AS r", (column("r", TEXT),)))
    assert rows == [[b"on"]]


async def test_a_caller_who_leaves_a_write_rolls_it_back(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    """Case 2."""
    server.psql("DROP TABLE IF EXISTS left_alone; CREATE TABLE left_alone (n int)")
    asked = ask(plan, "INSERT INTO left_alone SELECT 1 FROM pg_sleep(300)", (), write=True)
    task = asyncio.create_task(answer(executor, asked))
    await until(lambda: active(server) == 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await until(lambda: active(server) == 0)
    assert server.psql("SELECT count(*) FROM left_alone").strip() == "0"


async def test_session_settings_hold_and_pins_win(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    plan = either.model_copy(update={"session": (("search_path", "pg_catalog, public"), ("TimeZone", "Asia/Tokyo"))})
    sql = "SELECT current_setting('search_path') AS p, current_setting('TimeZone') AS t, current_setting('statement_timeout') AS s"
    columns = (column("p", TEXT), column("t", TEXT), column("s", TEXT))
    rows, _ = await answer(executor, ask(plan, sql, columns))
    assert rows == [[b"pg_catalog, public", b"UTC", b"30s"]]


async def test_dropped_connection_plans_close_their_sessions(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    await answer(executor, ask(plan, "SELECT 1::int8 AS n", (column("n", INT8),)))
    executor.retain(())
    await until(lambda: connected(server) == 0)


def test_pool_is_keyed_by_the_whole_plan(plan: ConnectionPlan) -> None:
    assert Pool(plan, silent).plan == plan
    assert plan.model_copy(update={"max_connections": 3}) != plan


async def test_statement_timeout_is_ours_and_a_cancel_is_not(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres) -> None:
    short = plan.model_copy(update={"statement_timeout_ms": 200})
    sleep = "SELECT pg_sleep(300)::text AS s"
    assert await failure(executor, ask(short, sleep, (column("s", TEXT),))) is Failure.TIMEOUT
    task = asyncio.create_task(failure(executor, ask(plan, sleep, (column("s", TEXT),))))
    await until(lambda: active(server) == 1)
    server.psql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace' AND state <> 'idle'")
    assert await task is Failure.REFUSED


async def test_several_hosts(executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres, tmp_path: Path) -> None:
    """The first host is down; the second one answers."""
    file = tmp_path / "two"
    file.write_text(f"postgresql://postgres@127.0.0.1:{free_port()},127.0.0.1:{server.port}/postgres?target_session_attrs=read-write")
    two = plan.model_copy(update={"url_file": str(file)})
    assert (await answer(executor, ask(two, "SELECT 1::int8 AS n", (column("n", INT8),))))[0] == [[b"1"]]


async def test_through_pgbouncer_in_transaction_mode(
    executor: PostgresExecutor, plan: ConnectionPlan, server: Postgres, tmp_path: Path
) -> None:
    """Case 7: no 42P05 or 26000, pins held, nothing left behind, writes whole."""
    server.psql("CREATE TABLE IF NOT EXISTS pooled (n bigint)")
    with PgBouncer(server, pool_size=2) as bouncer:
        file = tmp_path / "bouncer"
        file.write_text(bouncer.url())
        pooled = plan.model_copy(update={"url_file": str(file), "pooler": Pooler.TRANSACTION, "max_connections": 6})
        sql = "SELECT $1 AS n, '2026-01-31 09:30:00+02'::timestamptz::text AS t, current_setting('transaction_read_only') AS r"
        columns = (column("n", INT8), column("t", TEXT), column("r", TEXT))

        async def one(n: int) -> None:
            rows, _ = await answer(executor, ask(pooled, sql, columns, str(n).encode(), oids=(INT8,)))
            assert rows == [[str(n).encode(), b"2026-01-31 07:30:00+00", b"on"]]
            if n % 10 == 0:
                written = ask(pooled, "INSERT INTO pooled VALUES ($1)", (), str(n).encode(), oids=(INT8,), write=True)
                assert (await answer(executor, written))[1].affected == 1

        await asyncio.gather(*(one(n) for n in range(100)))
        left = asyncio.create_task(answer(executor, ask(pooled, "SELECT pg_sleep(300)::text AS s", (column("s", TEXT),))))
        await until(
            lambda: int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(300)%' AND pid <> pg_backend_pid()"))
        )
        left.cancel()
        await until(
            lambda: (
                not int(
                    server.psql(
                        "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND query LIKE '%pg_sleep(300)%' AND pid <> pg_backend_pid()"
                    )
                )
            )
        )
        await asyncio.gather(*(one(n) for n in range(1, 10)))
    assert server.psql("SELECT count(*) FROM pooled").strip() == "10"


@pytest.mark.parametrize(
    ("sqlstate", "write", "failure"),
    [
        ("", False, Failure.UNAVAILABLE), ("08006", False, Failure.UNAVAILABLE), ("53300", False, Failure.UNAVAILABLE),
        ("57P01", False, Failure.UNAVAILABLE), ("25006", True, Failure.UNAVAILABLE), ("57014", False, Failure.REFUSED),
        ("23505", True, Failure.CONSTRAINT), ("23505", False, Failure.REFUSED), ("22012", True, Failure.REFUSED),
    ],
)  # fmt: skip
def test_sqlstate(sqlstate: str, write: bool, failure: Failure) -> None:
    assert failure_of(sqlstate, write) is failure
    assert failure_of("57014", write, timed_out=True) is Failure.TIMEOUT


async def test_idempotency(executor: PostgresExecutor, either: ConnectionPlan, server: Postgres) -> None:
    """20 callers with one key have one effect; a repeat gets the first answer, other arguments 422, a running one 409."""
    server.psql("DROP TABLE IF EXISTS kept, orders; CREATE TABLE orders (id bigint generated always as identity, note text);" + ddl("kept"))
    oid = int(server.psql("SELECT 'orders'::regclass::oid"))
    plan = either.model_copy(update={"idempotency_table": "kept", "max_connections": 8})
    sql = "INSERT INTO orders (note) VALUES ($1) RETURNING id, note, NULL::bytea AS b"
    columns = (column("id", INT8, oid, 1), column("note", TEXT, oid, 2), column("b", 17))
    key = Idempotency("ns/a", "k1", "add", "00" * 32)

    def again(key: Idempotency) -> Ask:
        return ask(plan, sql, columns, "é\n".encode(), oids=(TEXT,), write=True, idempotency=key)

    first, done = await answer(executor, again(key))
    assert (done.repeated, done.affected) == (False, 1)
    rows, done = await answer(executor, again(key))
    assert (rows, done.repeated, done.affected) == (first, True, 1)
    assert await failure(executor, again(replace(key, arguments="11" * 32))) is Failure.IDEMPOTENCY_MISMATCH

    async def attempt() -> tuple[int, bool]:
        while True:
            try:
                rows, done = await answer(executor, again(replace(key, key="k2")))
            except StatementFailed as failed:
                if failed.failure is not Failure.IDEMPOTENCY_RUNNING:
                    raise
                await asyncio.sleep(0.01)
                continue
            return int(rows[0][0] or 0), done.repeated

    together = await asyncio.gather(*(attempt() for _ in range(20)))
    assert len({row for row, _ in together}) == 1
    assert sum(not repeated for _, repeated in together) == 1
    assert server.psql("SELECT count(*) FROM orders").strip() == "2"


async def test_what_follows_the_limit_is_not_looked_at(executor: PostgresExecutor, either: ConnectionPlan) -> None:
    """As the data plane: an error behind the limit is nobody's."""
    sql = "SELECT (10 / (3 - n))::int8 AS n FROM generate_series(1, 5) n"
    rows, _ = await answer(executor, ask(either, sql, (column("n", INT8),), limit=2))
    assert rows == [[b"5"], [b"10"]]
    assert await failure(executor, ask(either, sql, (column("n", INT8),), limit=3)) is Failure.REFUSED
