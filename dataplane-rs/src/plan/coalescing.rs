//! A query's batch statement, and whether it may still be used: shared by all threads and kept from snapshot to snapshot while the
//! query's version stays. Pure. May reject: nothing.
use super::snapshot::StatementPlan;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Why batches of a version stopped on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stopped {
    /// A batch and its singles gave different rows.
    Unequal = 1,
    /// The database describes the batch statement otherwise than the plan.
    Shape = 2,
    /// The database refuses the batch statement, whatever it is asked.
    Refused = 3,
}

impl Stopped {
    /// In metrics, logs and `GET /plans`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unequal => "unequal",
            Self::Shape => "shape",
            Self::Refused => "refused",
        }
    }
}

/// What was found out about batches of one query version.
#[derive(Debug)]
pub struct Verdict {
    /// Batches that are still to be asked singly, too.
    shadows: AtomicU32,
    /// 0, or a `Stopped`.
    stopped: AtomicU8,
    /// Batches in a row that failed although none of their callers did when asked singly.
    barren: AtomicU32,
}

/// So many batches in a row that fail while their callers don't: it is the statement.
const BARREN: u32 = 8;

impl Verdict {
    /// Of a version that nothing is known about.
    pub const fn new(shadows: u32) -> Self {
        Self { shadows: AtomicU32::new(shadows), stopped: AtomicU8::new(0), barren: AtomicU32::new(0) }
    }

    /// Why there are no batches any more.
    #[inline]
    pub fn stopped(&self) -> Option<Stopped> {
        match self.stopped.load(Relaxed) {
            0 => None,
            1 => Some(Stopped::Unequal),
            2 => Some(Stopped::Shape),
            _ => Some(Stopped::Refused),
        }
    }

    /// The next batch is asked singly, too.
    #[inline]
    pub fn shadowed(&self) -> bool {
        self.shadows.load(Relaxed) > 0
    }

    /// A batch and its singles gave the same rows.
    pub fn equal(&self) {
        let _none_left = self.shadows.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    }

    /// No more batches of this version. True the first time.
    pub fn stop(&self, why: Stopped) -> bool {
        self.stopped.compare_exchange(0, why as u8, Relaxed, Relaxed).is_ok()
    }

    /// A batch was answered.
    #[inline]
    pub fn answered(&self) {
        if self.barren.load(Relaxed) != 0 {
            self.barren.store(0, Relaxed);
        }
    }

    /// A batch failed. True when it is the statement's fault and batches stop.
    pub fn failed(&self) -> bool {
        self.barren.fetch_add(1, Relaxed) + 1 >= BARREN && self.stop(Stopped::Refused)
    }

    /// One of a failed batch's callers failed alone, too: it was the caller's fault.
    pub fn excused(&self) {
        self.barren.store(0, Relaxed);
    }
}

/// One query's batch statement.
#[derive(Debug)]
pub struct Coalesced {
    /// Place n+1 takes an array of what place n+1 of the query's own statement takes.
    pub statement: Arc<StatementPlan>,
    /// Callers in one statement at most.
    pub most: u16,
    /// Statements of it under way on one thread at most.
    pub in_flight: u8,
    /// What was found out.
    pub verdict: Arc<Verdict>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_run_out_and_the_first_reason_stays() {
        let verdict = Verdict::new(2);
        assert!(verdict.shadowed() && verdict.stopped().is_none());
        (0..3).for_each(|_| verdict.equal());
        assert!(!verdict.shadowed());
        assert!(verdict.stop(Stopped::Unequal) && !verdict.stop(Stopped::Shape));
        assert_eq!(verdict.stopped(), Some(Stopped::Unequal));
    }

    #[test]
    fn a_statement_that_always_fails_is_given_up() {
        let verdict = Verdict::new(0);
        assert!((1..BARREN).all(|_| !verdict.failed()));
        verdict.excused();
        assert!((1..BARREN).all(|_| !verdict.failed()));
        assert!(verdict.failed() && !verdict.failed());
        assert_eq!(verdict.stopped(), Some(Stopped::Refused));
    }
}
