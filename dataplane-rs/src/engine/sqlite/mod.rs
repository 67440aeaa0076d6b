//! SQLite: blocking, so it runs on threads of its own (`pool`), each with its connection (`session`); writes one at a time (`write`).
//! One `Pool` for each database and process; every serving thread submits to it. IO: the database file, never created.
mod location;
mod pool;
mod session;
mod write;

pub use location::{LocationError, database_path};
pub use pool::Pool;
