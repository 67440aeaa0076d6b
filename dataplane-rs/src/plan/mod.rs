//! Plans: what was decided ahead of the first call. `snapshot` is the wire form; `tables` is what a thread serves from.
pub mod snapshot;
