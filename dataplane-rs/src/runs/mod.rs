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
    #[inline]
    pub fn write(self, out: &mut [u8; Self::TEXT]) {
        let [e1, e2, s1, s2] = [self.epoch >> 32, self.epoch, self.sequence >> 32, self.sequence].map(|n| hex(n as u32));
        // A sequence has no more than 48 bits: its upper four digits are left out.
        let (epoch, rest) = out.split_at_mut(16);
        epoch.iter_mut().zip(e1.iter().chain(&e2)).for_each(|(byte, digit)| *byte = *digit);
        let digits = s1.iter().skip(4).chain(&s2);
        rest.iter_mut().zip(std::iter::once(&b'-').chain(digits)).for_each(|(byte, digit)| *byte = *digit);
    }
}

/// Eight hex digits at once: each half byte in a byte of its own, then as text.
#[inline]
const fn hex(n: u32) -> [u8; 8] {
    let mut x = n as u64;
    x = (x << 16 | x) & 0x0000_ffff_0000_ffff;
    x = (x << 8 | x) & 0x00ff_00ff_00ff_00ff;
    x = (x << 4 | x) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in the bytes above 9.
    let letters = ((x + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * 39).to_be_bytes()
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:012x}", self.epoch, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::RunId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_is_written_as_it_is_shown(epoch: u64, sequence in 0u64..1 << 48) {
            let id = RunId { epoch, sequence };
            let mut text = [0; RunId::TEXT];
            id.write(&mut text);
            prop_assert_eq!(std::str::from_utf8(&text).unwrap_or_default(), id.to_string());
        }
    }
}
