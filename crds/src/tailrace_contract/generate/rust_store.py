"""`dataplane-rs/src/runs/ddl.rs` from `tailrace_contract.run`."""

from tailrace_contract.run import PARAMS_LIMIT_BYTES, POSTGRES_STORE_DDL, POSTGRES_STORE_VERSION, STORE_DDL, STORE_VERSION


def render() -> str:
    """The Rust source text."""
    return f"""//! Generated from tailrace_contract.run by `make generate`. Do not edit.

/// `PRAGMA user_version` of the embedded store.
pub const STORE_VERSION: i64 = {STORE_VERSION};

/// Longest recorded parameters in bytes.
pub const PARAMS_LIMIT: usize = {PARAMS_LIMIT_BYTES};

/// Tables of the embedded store.
pub const STORE_DDL: &str = r"{STORE_DDL}";

/// `tailrace.store.version` of the PostgreSQL store.
pub const POSTGRES_STORE_VERSION: i64 = {POSTGRES_STORE_VERSION};

/// Tables of the PostgreSQL store, for one transaction.
pub const POSTGRES_STORE_DDL: &str = r"{POSTGRES_STORE_DDL}";
"""
