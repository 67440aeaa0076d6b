//! Calls: admitted in the contract's order of checks (`core`), carried (`call`), ended (`desk`). Those that are not for a shared
//! lane go on in tasks of their own: `exclusive` at a database, `forwarded` at the gateway.
pub mod admission;
pub mod bulk;
pub mod call;
pub mod clock;
pub mod core;
pub mod desk;
pub mod exclusive;
pub mod forwarded;
pub mod kept;
pub mod refused;
