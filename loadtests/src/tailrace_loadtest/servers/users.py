"""The table of the load gates, `users(path, id, name, tier)`, in a `Postgres`."""

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
