//! How calls reach a database: the shared lane (many callers' statements in one flush on few connections), and what a query
//! must have shown to be on it. Everything else is exclusive: one call a connection (`calls::exclusive`).
pub mod database;
pub mod drain;
pub mod exclusive;
pub mod flush;
pub mod hands;
pub mod lane;
pub mod quarantine;
pub mod queue;
pub mod standing;
