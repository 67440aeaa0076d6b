//! Plans: what was decided ahead of the first call. `snapshot` is the wire form; `tables` is what a thread serves from; `store`
//! hands them to the threads; `socket` takes them from the gateway.
pub mod backend;
pub mod coalescing;
pub mod report;
pub mod snapshot;
pub mod socket;
pub mod store;
pub mod tables;
