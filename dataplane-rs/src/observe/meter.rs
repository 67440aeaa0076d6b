//! Counters of one serving thread. Only that thread writes them (plain loads and stores, no locked instruction); a scrape sums
//! all threads. Labels are bounded: names of queries, at most `SLOTS`, never keys. IO: none.
use crate::engine::shared::How;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Queries with a label of their own; later ones share `other`.
pub const SLOTS: usize = 1000;
/// Upper bounds of the latency histograms, µs.
pub const BOUNDS_US: [u64; 16] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000];

/// A query's place in the metrics, for the life of the process whatever the snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// No query known: unauthorised calls, unknown paths.
    pub const NONE: Self = Self(SLOTS as u16 + 1);
    const OTHER: Self = Self(SLOTS as u16);
}

/// Names of queries by slot.
#[derive(Debug, Default)]
pub struct Slots(Mutex<HashMap<Arc<str>, u16>>);

impl Slots {
    /// The slot of a query; asked when a snapshot is compiled, not per call.
    pub fn slot(&self, query: &str) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(query) {
            return Slot(*slot);
        }
        let next = slots.len();
        if next >= SLOTS {
            return Slot::OTHER;
        }
        slots.insert(query.into(), next as u16);
        Slot(next as u16)
    }

    /// Labels and their slots, in order of the slots; `other` and the empty label last.
    pub fn labels(&self) -> Vec<(Arc<str>, Slot)> {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut labels: Vec<_> = slots.iter().map(|(name, slot)| (name.clone(), Slot(*slot))).collect();
        labels.sort_by_key(|(_, slot)| slot.0);
        labels.extend([("other".into(), Slot::OTHER), ("".into(), Slot::NONE)]);
        labels
    }
}

/// How a call ended, as metrics tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Below 400.
    Ok,
    /// 401.
    Unauthorized,
    /// 403 and 404.
    Denied,
    /// Other 4xx.
    Invalid,
    /// 499.
    Closed,
    /// 503: full, draining, not ready, database down.
    Unavailable,
    /// 504.
    Timeout,
    /// Other 5xx.
    Failed,
}

impl Outcome {
    /// All, in the order of the counters.
    pub const ALL: [Self; 8] =
        [Self::Ok, Self::Unauthorized, Self::Denied, Self::Invalid, Self::Closed, Self::Unavailable, Self::Timeout, Self::Failed];

    /// By HTTP status.
    pub const fn of(status: u16) -> Self {
        match status {
            0..400 => Self::Ok,
            401 => Self::Unauthorized,
            403 | 404 => Self::Denied,
            499 => Self::Closed,
            400..499 => Self::Invalid,
            503 => Self::Unavailable,
            504 => Self::Timeout,
            _ => Self::Failed,
        }
    }

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unauthorized => "unauthorized",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Closed => "closed",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub struct Single(AtomicU64);

impl Single {
    /// Adds. Only on the owning thread.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets. Only on the owning thread.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Reads, on any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts by bound, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One for each bound, then the rest. Not cumulated.
    pub counts: [Single; BOUNDS_US.len() + 1],
    /// µs.
    pub sum_us: Single,
}

impl Histogram {
    /// Counts one. Only on the owning thread.
    #[inline]
    pub fn observe(&self, us: u64) {
        let at = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        if let Some(count) = self.counts.get(at) {
            count.add(1);
        }
        self.sum_us.add(us);
    }
}

/// Upper bounds of batch sizes, callers.
pub const BATCH_BOUNDS: [usize; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// How batches end, as metrics tell it.
pub const BATCH_ENDS: [&str; 6] = ["answered", "equal", "unequal", "failed", "timeout", "shape"];

/// What is counted of batches.
#[derive(Debug, Default)]
pub struct Batches {
    /// By callers: one for each bound, then the rest. Not cumulated. Answered ones only.
    pub sizes: [Single; BATCH_BOUNDS.len() + 1],
    /// Callers that got their answers from a batch.
    pub callers: Single,
    /// Different questions of theirs.
    pub asked: Single,
    /// By `BATCH_ENDS`.
    pub ends: [Single; BATCH_ENDS.len()],
}

impl Batches {
    /// Counts one. Only on the owning thread.
    pub fn ended(&self, callers: usize, asked: usize, how: How) {
        let end = match how {
            How::Answered => 0,
            How::Equal => 1,
            How::Unequal => 2,
            How::Failed(_) => 3,
            How::Timeout => 4,
            How::Shape => 5,
        };
        if let Some(count) = self.ends.get(end) {
            count.add(1);
        }
        if matches!(how, How::Answered | How::Equal) {
            let at = BATCH_BOUNDS.iter().position(|bound| callers <= *bound).unwrap_or(BATCH_BOUNDS.len());
            if let Some(count) = self.sizes.get(at) {
                count.add(1);
            }
            self.callers.add(callers as u64);
            self.asked.add(asked as u64);
        }
    }
}

/// What is counted of one query.
#[derive(Debug, Default)]
pub struct QueryMeter {
    /// By `Outcome`.
    pub outcomes: [Single; Outcome::ALL.len()],
    /// From the last byte read to the answer's hand-over.
    pub duration: Histogram,
}

/// One thread's counters.
#[derive(Debug)]
pub struct Meter {
    queries: Box<[QueryMeter]>,
    /// Waiting for a lane.
    pub queue_wait: Histogram,
    /// Statements that answer many callers.
    pub batches: Batches,
    /// Accepted connections.
    pub connections_opened: Single,
    /// Ended connections.
    pub connections_closed: Single,
    /// Gauge: calls admitted and not answered.
    pub in_flight: Single,
    /// Gauge: calls waiting for a lane.
    pub queued: Single,
    /// Gauge: open connections to databases on the shared lane.
    pub shared_lanes: Single,
    /// Gauge: statements under way on the exclusive lane.
    pub exclusive_calls: Single,
    /// Calls answered by the shared lane.
    pub shared_calls: Single,
    /// Calls answered from the response cache at once.
    pub cache_hits: Single,
    /// Calls of cached queries that asked the database.
    pub cache_misses: Single,
    /// Calls that waited for another's answer.
    pub cache_waits: Single,
    /// Answers thrown out of the response cache for others.
    pub cache_evictions: Single,
    /// Calls handed to Python.
    pub forwarded: Single,
    /// What was not HTTP: bare 400, 408, 413, 431.
    pub malformed: Single,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Single,
    /// Connections that speak HTTP/2.
    pub http2_connections: Single,
    /// Rows in answers.
    pub rows: Single,
    /// Bytes of bodies, before compression.
    pub bytes: Single,
    /// Statements sent again on another connection.
    pub retries: Single,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            queries: (0..SLOTS + 2).map(|_| QueryMeter::default()).collect(),
            queue_wait: Histogram::default(),
            batches: Batches::default(),
            connections_opened: Single::default(),
            connections_closed: Single::default(),
            in_flight: Single::default(),
            queued: Single::default(),
            shared_lanes: Single::default(),
            exclusive_calls: Single::default(),
            shared_calls: Single::default(),
            cache_hits: Single::default(),
            cache_misses: Single::default(),
            cache_waits: Single::default(),
            cache_evictions: Single::default(),
            forwarded: Single::default(),
            malformed: Single::default(),
            handshakes_failed: Single::default(),
            http2_connections: Single::default(),
            rows: Single::default(),
            bytes: Single::default(),
            retries: Single::default(),
        }
    }
}

impl Meter {
    /// Counts one answered call. Only on the owning thread.
    #[inline]
    pub fn call(&self, slot: Slot, status: u16, duration_us: u64) {
        if let Some(query) = self.queries.get(usize::from(slot.0)) {
            if let Some(count) = query.outcomes.get(Outcome::of(status) as usize) {
                count.add(1);
            }
            query.duration.observe(duration_us);
        }
    }

    /// The counters of a query.
    pub fn query(&self, slot: Slot) -> Option<&QueryMeter> {
        self.queries.get(usize::from(slot.0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn the_thousand_and_first_query_is_other() {
        let slots = Slots::default();
        let all: Vec<_> = (0..1500).map(|n| slots.slot(&format!("q{n}"))).collect();
        assert_eq!(all[999], Slot(999));
        assert!(all[1000..].iter().all(|s| *s == Slot::OTHER));
        assert_eq!(slots.slot("q5"), Slot(5));
        assert_eq!(slots.labels().len(), SLOTS + 2);
    }

    #[test]
    fn calls_are_counted_by_outcome_and_bound() {
        let meter = Meter::default();
        let slot = Slots::default().slot("q");
        for (status, us) in [(200, 100), (204, 101), (499, 0), (503, 20_000_000), (429, 1)] {
            meter.call(slot, status, us);
        }
        let query = meter.query(slot).unwrap();
        let count = |outcome: Outcome| query.outcomes[outcome as usize].get();
        assert_eq!((count(Outcome::Ok), count(Outcome::Closed), count(Outcome::Unavailable), count(Outcome::Invalid)), (2, 1, 1, 1));
        assert_eq!(query.duration.counts[0].get(), 3);
        assert_eq!(query.duration.counts[1].get(), 1);
        assert_eq!(query.duration.counts[BOUNDS_US.len()].get(), 1);
        assert_eq!(query.duration.sum_us.get(), 20_000_202);
    }

    #[test]
    fn outcomes_stand_at_their_own_place() {
        for (n, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, n);
        }
    }
}
