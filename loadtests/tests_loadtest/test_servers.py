"""The servers that every other integration test stands on."""

from pathlib import Path

import pytest
from tailrace_loadtest.servers import chinook
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
