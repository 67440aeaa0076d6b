//! MySQL and MariaDB, by their own protocol: prepared statements, binary rows, the same lanes as PostgreSQL's.
//!
//! `uri` (what the URL says) → `target` (what it says now) → `connect` (`auth`) → `Connection`.
//! Shared lane: `lane` (`prepared`, `json`). Exclusive lane: `engine::pool` (who may borrow) → `member` (one session) → `exclusive` and `write` (one call).
pub mod auth;
pub mod connect;
mod exclusive;
pub mod failure;
mod json;
pub mod lane;
pub mod member;
mod pooled;
mod prepared;
mod shape;
pub mod target;
pub mod uri;
pub mod value;
pub mod wire;
mod write;

pub use connect::Connection;
pub use failure::ConnectError;

/// One thread's connections for the exclusive lane.
pub type Pool = super::pool::Pool<member::Member>;

/// A read-only connection to where the source leads now.
pub async fn open(source: &super::postgres::Source, deadline: tokio::time::Instant) -> Result<Connection, ConnectError> {
    connect::connect(&target::Target::read(source)?, deadline).await
}
