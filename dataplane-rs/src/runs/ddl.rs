//! Generated from tailrace_contract.run by `make generate`. Do not edit.

/// `PRAGMA user_version` of the embedded store.
pub const STORE_VERSION: i64 = 2;

/// Longest recorded parameters in bytes.
pub const PARAMS_LIMIT: usize = 65536;

/// Tables of the embedded store.
pub const STORE_DDL: &str = r"
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT OR IGNORE INTO names (id, name) VALUES (0, '');
CREATE TABLE IF NOT EXISTS runs (
    epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    time_us INTEGER NOT NULL, duration_us INTEGER NOT NULL, queue_us INTEGER NOT NULL, database_us INTEGER NOT NULL,
    query INTEGER NOT NULL, query_version INTEGER NOT NULL, key INTEGER NOT NULL, connection INTEGER NOT NULL,
    status INTEGER NOT NULL, code INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, batch INTEGER NOT NULL,
    trace BLOB, client INTEGER NOT NULL, served_by INTEGER NOT NULL, params TEXT,
    PRIMARY KEY (epoch, seq)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (time_us, key, query, status);
CREATE TABLE IF NOT EXISTS run_blocks (
    epoch INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL,
    oldest_us INTEGER NOT NULL, newest_us INTEGER NOT NULL, lowest_status INTEGER NOT NULL, highest_status INTEGER NOT NULL,
    keys BLOB NOT NULL, queries BLOB NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS run_blocks_by_sequence ON run_blocks (epoch, first, last, count);
CREATE INDEX IF NOT EXISTS run_blocks_by_time ON run_blocks (newest_us, oldest_us);
CREATE TABLE IF NOT EXISTS open_runs (
    epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    time_us INTEGER NOT NULL, duration_us INTEGER NOT NULL, queue_us INTEGER NOT NULL, database_us INTEGER NOT NULL,
    query INTEGER NOT NULL, query_version INTEGER NOT NULL, key INTEGER NOT NULL, connection INTEGER NOT NULL,
    status INTEGER NOT NULL, code INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, batch INTEGER NOT NULL,
    trace BLOB, client INTEGER NOT NULL, served_by INTEGER NOT NULL, params TEXT,
    PRIMARY KEY (epoch, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursors (epoch INTEGER PRIMARY KEY, segment INTEGER NOT NULL, position INTEGER NOT NULL);
PRAGMA user_version = 2;
";

/// `tailrace.store.version` of the PostgreSQL store.
pub const POSTGRES_STORE_VERSION: i64 = 1;

/// Tables of the PostgreSQL store, for one transaction.
pub const POSTGRES_STORE_DDL: &str = r"
SELECT pg_catalog.pg_advisory_xact_lock(7809644627822346613);
CREATE SCHEMA IF NOT EXISTS tailrace;
CREATE TABLE IF NOT EXISTS tailrace.store (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL);
CREATE TABLE IF NOT EXISTS tailrace.runs (
    epoch bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL,
    duration_us bigint NOT NULL, queue_us bigint NOT NULL, database_us bigint NOT NULL, rows bigint NOT NULL, bytes bigint NOT NULL,
    batch integer NOT NULL, status smallint NOT NULL,
    query text NOT NULL, query_version text NOT NULL, key text NOT NULL, connection text NOT NULL, code text NOT NULL,
    client text NOT NULL, served_by text NOT NULL, trace bytea, params text,
    PRIMARY KEY (epoch, seq));
CREATE INDEX IF NOT EXISTS runs_by_key ON tailrace.runs (key, time);
CREATE INDEX IF NOT EXISTS runs_by_time ON tailrace.runs (time);
CREATE TABLE IF NOT EXISTS tailrace.open_runs (
    epoch bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL,
    duration_us bigint NOT NULL, queue_us bigint NOT NULL, database_us bigint NOT NULL, rows bigint NOT NULL, bytes bigint NOT NULL,
    batch integer NOT NULL, status smallint NOT NULL,
    query text NOT NULL, query_version text NOT NULL, key text NOT NULL, connection text NOT NULL, code text NOT NULL,
    client text NOT NULL, served_by text NOT NULL, trace bytea, params text,
    PRIMARY KEY (epoch, seq));
INSERT INTO tailrace.store (version) VALUES (1) ON CONFLICT DO NOTHING;
";
