//! Runs: every call recorded before its answer leaves. A thread's `Recorder` appends records of one turn and commits them with
//! one write(2) to its spool segment; a shipper thread carries segments to the store and frees them.
//!
//! `layout` is the form of a segment (pure), `record` the thread-owned writer, `spool` the directory that all share.
//! `ship` is the way to the store: `replay` of what earlier processes left, then `progress` of each live recorder, in transactions
//! (`batch`) on a `store`, which is `embedded` (SQLite; its many: `block`) or `postgres` (its rows: `copy`).
pub mod batch;
pub mod block;
mod copy;
#[rustfmt::skip]
pub mod ddl;
mod definitions;
pub mod embedded;
pub mod inspect;
pub mod layout;
pub mod postgres;
mod progress;
pub mod record;
mod replay;
pub mod run;
pub mod ship;
pub mod spool;
pub mod store;

pub use record::Recorder;
pub use run::{Client, Close, Forwarded, Names, Open, QueryNames, Run, ServedBy};
pub use spool::{Spool, SpoolError};
pub use store::Destination;

/// (epoch, sequence); sequences of an epoch begin at 1 and have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId {
    /// Drawn at random by each serving thread at its start.
    pub epoch: u64,
    /// Counts up by one with each record.
    pub sequence: u64,
}

impl RunId {
    /// Length of the text form.
    pub const TEXT: usize = 29;

    /// Writes 16 hex digits, `-`, 12 hex digits.
    pub fn write(self, out: &mut [u8; Self::TEXT]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = |n: u64, shift: usize| DIGITS.get((n >> shift) as usize & 15).copied().unwrap_or(b'0');
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = match n {
                0..16 => digits(self.epoch, 60 - 4 * n),
                16 => b'-',
                _ => digits(self.sequence, 4 * (28 - n)),
            };
        }
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:012x}", self.epoch, self.sequence)
    }
}
