//! PostgreSQL, by its own protocol (version 3): connections as production needs them, and the lanes that use them.
//!
//! `uri` (what the URL says) → `target` (what it says now) → `connect` (`transport`, `tls`, `auth`, `session`) → `Connection`.
pub mod auth;
pub mod connect;
pub mod session;
pub mod target;
pub mod tls;
pub mod transport;
pub mod uri;
pub mod wire;

pub use connect::{ConnectError, Connection, cancel, connect};
pub use session::Access;
pub use target::{Source, Target};
