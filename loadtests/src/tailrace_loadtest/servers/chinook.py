"""The Chinook sample database, read from `../shared/data/chinook` beside the project (or `TAILRACE_DATA`)."""

import os
import re
import sqlite3
from pathlib import Path

from tailrace_loadtest.servers.postgres import Postgres, ServerMissing


def folder() -> Path:
    """Where the scripts are; ServerMissing when the data set isn't there."""
    root = Path(__file__).resolve().parents[4]
    for path in (Path(os.environ.get("TAILRACE_DATA", root.parent / "shared" / "data")) / "chinook",):
        if (path / "postgresql.sql").exists():
            return path
    raise ServerMissing("put the Chinook scripts (1.4.5) into ../shared/data/chinook, or set TAILRACE_DATA")


def load_postgres(server: Postgres, database: str = "chinook") -> None:
    """Creates the database and loads the script as it is, less its own CREATE DATABASE and \\c lines."""
    script = (folder() / "postgresql.sql").read_text()
    script = re.sub(r"^(DROP DATABASE|CREATE DATABASE|\\c).*$", "", script, flags=re.MULTILINE)
    server.psql(f"CREATE DATABASE {database}")
    server.psql("BEGIN;" + script + "COMMIT; ANALYZE;", database)


def load_sqlite(path: Path) -> None:
    """Makes a SQLite file of it."""
    with sqlite3.connect(path) as connection:
        connection.executescript("BEGIN;" + (folder() / "sqlite.sql").read_text() + "COMMIT;")
    connection.close()
