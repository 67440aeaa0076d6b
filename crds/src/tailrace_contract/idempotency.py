"""Where a write's Idempotency-Key and its outcome are kept: one table, written in the write's own transaction.

Both processes use the same table in the same way, so a repeat gets the same bytes whoever answers. Order inside the transaction:
(PostgreSQL) `SELECT pg_try_advisory_xact_lock(LOCK)`: false → `idempotency_in_progress`; look up: found with other `arguments` →
`idempotency_mismatch`, found with the same → the stored outcome, nothing runs; else run, insert, COMMIT. A violated primary key
at the insert (another process got there first under a stricter isolation level) is `idempotency_in_progress` too.
SQLite: the transaction begins IMMEDIATE, which is the lock. MySQL: `SELECT GET_LOCK(NAME, 0)`, released after the transaction.

`result` holds the kept rows in DataRow form (`dataplane-rs/src/engine/mod.rs`): for each column an i32 length (big endian, -1 for
NULL) and that many bytes; PostgreSQL's text format (MySQL: the same texts), or SQLite's storage tag and value. Rows are never deleted by us: a job of the
owner's may delete those older than any caller's retries (`created_at`).
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

RESULT_LIMIT_BYTES = 16 << 20
"""A write whose kept rows are longer is rolled back (`database_error`)."""

POSTGRES_DDL = """
CREATE TABLE IF NOT EXISTS {table} (
    caller text NOT NULL,
    key text NOT NULL,
    query text NOT NULL,
    arguments text NOT NULL,
    affected bigint NOT NULL,
    more boolean NOT NULL,
    row_count integer NOT NULL,
    result bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (caller, key));
"""
"""`{table}`: `idempotencyTable` as it stands in SQL. The role of the connection needs SELECT and INSERT."""

SQLITE_DDL = """
CREATE TABLE IF NOT EXISTS {table} (
    caller TEXT NOT NULL,
    key TEXT NOT NULL,
    query TEXT NOT NULL,
    arguments TEXT NOT NULL,
    affected INTEGER NOT NULL,
    more INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    result BLOB NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (caller, key));
"""

MYSQL_DDL = """
CREATE TABLE IF NOT EXISTS {table} (
    caller varchar(400) NOT NULL,
    `key` varchar(255) NOT NULL,
    query varchar(255) NOT NULL,
    arguments varchar(64) NOT NULL,
    affected bigint NOT NULL,
    more tinyint NOT NULL,
    row_count int NOT NULL,
    result longblob NOT NULL,
    created_at timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    PRIMARY KEY (caller, `key`))
    ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
"""
"""`{table}` stands as in SQL, in backticks where it needs them. Only InnoDB commits it together with the write."""

LOOKUP = "SELECT arguments, affected, more, row_count, result FROM {table} WHERE caller = {1} AND key = {2}"
"""`{1}`, `{2}`: places in the engine's form (`$1`, `?1`)."""

INSERT = (
    "INSERT INTO {table} (caller, key, query, arguments, affected, more, row_count, result) VALUES ({1}, {2}, {3}, {4}, {5}, {6}, {7}, {8})"
)

MYSQL_LOOKUP = "SELECT arguments, affected, more, row_count, result FROM {table} WHERE caller = ? AND `key` = ?"
MYSQL_INSERT = "INSERT INTO {table} (caller, `key`, query, arguments, affected, more, row_count, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def ddl(table: str, scheme: str = "postgresql") -> str:
    """The statement that makes the table in the engine of the URL's scheme; safe to run again."""
    return {"sqlite": SQLITE_DDL, "mysql": MYSQL_DDL}.get(scheme, POSTGRES_DDL).strip().replace("{table}", table)


def statement(template: str, table: str, place: str = "$") -> str:
    """`LOOKUP` or `INSERT` with its table and with places of the engine (`$` or `?`)."""
    for n in range(1, 9):
        template = template.replace(f"{{{n}}}", f"{place}{n}")
    return template.replace("{table}", table)


def lock_id(caller: str, key: str) -> int:
    """Argument of pg_try_advisory_xact_lock: the first 8 bytes of a SHA-256, signed and big endian."""
    digest = hashlib.sha256(f"tailrace idempotency v1\n{caller}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def lock_name(caller: str, key: str) -> str:
    """MySQL's GET_LOCK: at most 64 characters, none that needs an escape."""
    return "tailrace-" + hashlib.sha256(f"tailrace idempotency v1\n{caller}\n{key}".encode()).hexdigest()[:32]


def encode_result(rows: Iterable[Sequence[bytes | None]]) -> bytes:
    """Rows in DataRow form, one behind the other."""
    out = bytearray()
    for row in rows:
        for value in row:
            out += struct.pack(">i", -1 if value is None else len(value))
            out += value or b""
    return bytes(out)


def decode_result(data: bytes, row_count: int, columns: int) -> list[list[bytes | None]]:
    """The rows of `result`; ValueError if they are not exactly `row_count` rows of `columns` columns."""
    rows: list[list[bytes | None]] = []
    at = 0
    for _ in range(row_count):
        row: list[bytes | None] = []
        for _ in range(columns):
            (length,) = struct.unpack_from(">i", data, at) if at + 4 <= len(data) else (-2,)
            at += 4
            if length < -1 or at + max(length, 0) > len(data):
                raise ValueError("not a stored result")
            row.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        rows.append(row)
    if at != len(data):
        raise ValueError("not a stored result")
    return rows
