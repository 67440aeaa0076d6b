"""The servers that every other integration test stands on."""

from pathlib import Path

import pytest
from tailrace_loadtest.servers import chinook
from tailrace_loadtest.servers.mariadb import Mariadb
from tailrace_loadtest.servers.pgbouncer import PgBouncer
from tailrace_loadtest.servers.postgres import Postgres


@pytest.mark.postgres
def test_postgres_serves_chinook_and_comes_back_after_a_crash() -> None:
    with Postgres() as server:
        chinook.load_postgres(server)
        count = "SELECT count(*) FROM track"
        before = server.psql(count, "chinook")
        server.stop("immediate")
        server.start()
        assert server.psql(count, "chinook") == before == "3503\n"


def test_chinook_on_sqlite_has_the_same_tracks(tmp_path: Path) -> None:
    import sqlite3

    chinook.load_sqlite(tmp_path / "chinook.db")
    connection = sqlite3.connect(tmp_path / "chinook.db")
    assert connection.execute("SELECT count(*) FROM Track").fetchone() == (3503,)
    connection.close()


@pytest.mark.postgres
def test_pgbouncer_hands_one_server_connection_from_transaction_to_transaction() -> None:
    import psycopg

    with Postgres() as server, PgBouncer(server, pool_size=1) as pooler:
        with psycopg.connect(pooler.url(), autocommit=True) as one, psycopg.connect(pooler.url(), autocommit=True) as two:
            pids = [connection.execute("SELECT pg_backend_pid()").fetchone() for connection in (one, two, one)]
        assert pids[0] == pids[1] == pids[2]


@pytest.mark.postgres
def test_the_cases_fit_their_databases(tmp_path: Path) -> None:
    """Every document is valid, and both scripts load; 29 and 9 rows of edges are there."""
    import sqlite3

    import yaml
    from tailrace_contract import document
    from tailrace_loadtest import cases

    for name in ("chinook.yaml", "types.yaml"):
        read = [document.read(each) for each in yaml.safe_load_all(cases.path(name).read_text())]
        assert [finding for found in read if isinstance(found, list) for finding in found] == []
    with Postgres() as server:
        chinook.load_postgres(server)
        server.psql(cases.path("chinook.sql").read_text(), "chinook")
        server.psql("CREATE DATABASE types")
        server.psql(cases.path("types.sql").read_text(), "types")
        assert server.psql("SELECT count(*) FROM edge", "types") == "29\n"
    chinook.load_sqlite(tmp_path / "chinook.db")
    connection = sqlite3.connect(tmp_path / "chinook.db")
    connection.executescript(cases.path("chinook_sqlite.sql").read_text() + cases.path("types_sqlite.sql").read_text())
    assert connection.execute("SELECT count(*) FROM storage").fetchone() == (9,)
    connection.close()


@pytest.mark.mariadb
def test_mariadb_keeps_its_data_over_a_crash() -> None:
    with Mariadb() as server:
        server.sql("CREATE DATABASE shop; CREATE TABLE shop.t (n int PRIMARY KEY); INSERT INTO shop.t VALUES (7)")
        server.stop(crash=True)
        server.start()
        assert server.sql("SELECT n FROM t", "shop") == "7\n"
