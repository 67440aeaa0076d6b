//! PostgreSQL, by its own protocol (version 3): connections as production needs them, and the lanes that use them.
//!
//! `uri` (what the URL says) → `target` (what it says now) → `connect` (`transport`, `tls`, `auth`, `session`) → `Connection`.
//! Exclusive lane: `pool` (who may borrow, within `budget`) → `member` (one session) → `exclusive` and `write` (one call).
mod arrays;
pub mod auth;
pub mod backoff;
pub mod budget;
pub mod connect;
mod exclusive;
mod failure;
mod frontend;
pub mod idempotency;
mod janitor;
pub mod lane;
mod lent;
mod member;
pub mod pool;
mod prepared;
pub mod session;
mod statements;
pub mod target;
pub mod tls;
pub mod transport;
pub mod uri;
pub mod wire;
mod write;

pub use backoff::Limits;
pub use budget::{Budget, Permit};
pub use connect::{ConnectError, Connection, cancel, connect};
pub use failure::reason;
pub use pool::{Pool, Stats};
pub use session::Access;
pub use target::{Source, Target};
