"""The table of the load gates, `users(path, id, name, tier)`, in a `Postgres` or a `Mariadb`."""

from tailrace_loadtest.servers.mariadb import Mariadb
from tailrace_loadtest.servers.postgres import Postgres

DATABASE = "users"
TIERS = ("free", "pro", "business")


def load(server: Postgres, rows: int) -> str:
    """Makes the database with `rows` rows (/users/1 …); returns its URL."""
    server.psql(f"CREATE DATABASE {DATABASE}")
    server.psql(
        f"""
        CREATE TABLE users (path text PRIMARY KEY, id bigint NOT NULL UNIQUE, name text NOT NULL, tier text NOT NULL);
        INSERT INTO users SELECT '/users/' || g, g, 'User ' || g, (ARRAY['free', 'pro', 'business'])[g % 3 + 1] FROM generate_series(1, {rows}) AS g;
        VACUUM ANALYZE users;
        """,  # noqa: S608
        DATABASE,
    )
    return server.url(DATABASE)


def load_mariadb(server: Mariadb, rows: int) -> str:
    """The same in MariaDB, with the writes' table; returns the URL of a user who may read it and write notes."""
    server.sql(
        f"""
        CREATE DATABASE {DATABASE}; USE {DATABASE};
        CREATE TABLE users (path varchar(64) COLLATE utf8mb4_bin PRIMARY KEY, id bigint NOT NULL UNIQUE, name varchar(40) NOT NULL, tier varchar(12) NOT NULL);
        INSERT INTO users SELECT concat('/users/', seq), seq, concat('User ', seq), elt(1 + seq % 3, 'free', 'pro', 'business') FROM seq_1_to_{rows};
        CREATE TABLE notes (number bigint NOT NULL);
        ANALYZE TABLE users;
        CREATE USER app@'%' IDENTIFIED BY 'app'; GRANT SELECT, INSERT ON {DATABASE}.* TO app@'%';
        """  # noqa: S608
    )
    return server.url(DATABASE, "app", "app")
