//! PostgreSQL, by its own protocol (version 3): connections as production needs them, and the lanes that use them.
//!
//! `uri` (what the URL says) → `target` (what it says now) → `connect` (`transport`, `tls`, `auth`, `session`) → `Connection`.
//! Exclusive lane: `engine::pool` (who may borrow) → `member` (one session) → `exclusive` and `write` (one call).
mod arrays;
pub mod auth;
pub mod connect;
mod exclusive;
mod failure;
mod frontend;
pub mod idempotency;
pub mod lane;
mod member;
mod pooled;
mod prepared;
pub mod session;
pub(in crate::engine) mod statements;
pub mod target;
pub mod tls;
pub mod transport;
pub mod uri;
pub mod wire;
mod write;

pub use super::pool::{Budget, Limits, Permit, Stats};
pub use connect::{ConnectError, Connection, cancel, connect};
pub(in crate::engine) use exclusive::{Stay, leave};
pub use failure::reason;
pub use session::Access;
pub use target::{Source, Target};
pub(in crate::engine) use write::tell;

/// One thread's connections for the exclusive lane.
pub type Pool = super::pool::Pool<member::Member>;
type Shared = super::pool::Shared<member::Member>;
type Lent = super::pool::Lent<member::Member>;

/// A read-only connection to where the source leads now.
pub async fn open(source: &Source, deadline: tokio::time::Instant) -> Result<Connection, ConnectError> {
    connect(&source.read()?, Access::ReadOnly, deadline).await
}
