//! Which lane a query has earned. A query starts exclusive, is promoted when it has shown itself fast, and moves out when a
//! statement of it was slow; each time it moves out it must show more before it comes back. Pure.

/// An answer counts as fast below this, µs.
const FAST_US: u64 = 20_000;
/// A statement that takes longer moves its query out, µs.
pub const SLOW_US: u64 = 50_000;
/// An answer on the shared lane is at most so large, bytes.
pub const LARGEST: usize = 64 << 10;
/// Fast answers in a row before the first promotion, and at most.
const NEEDED: (u32, u32) = (8, 4096);
/// What a slow statement adds to a query's heat; each fast answer takes one away.
const SLOW: u32 = 1000;
/// What being one of several queries in a slow flush adds.
const NEAR: u32 = 300;
/// At this heat a query moves out: two slow statements within some 500 answers. One alone may be the machine's fault.
const OUT: u32 = 1500;
/// Rows of one batch are aimed at this, bytes: all of them wait for its end.
const BATCH_BYTES: usize = 512 << 10;
/// Batches of a query that take too long, without forgiveness between, after which it moves out.
const LATE: u8 = 2;
/// Fast shared answers after which an earlier moving out counts less.
const FORGIVEN: u32 = 10_000;

/// One query's standing on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of the query that this is about; another version starts anew.
    pub version: u64,
    fast: u32,
    needed: u32,
    heat: u32,
    shared: bool,
    /// How often its batches were halved, and how often since it came here.
    halved: u8,
    late: u8,
    /// An answer's size, smoothed, in 1/8 bytes.
    bytes: u32,
}

impl Standing {
    /// Of a query that nothing is known about.
    pub const fn new(version: u64) -> Self {
        Self { version, fast: 0, needed: NEEDED.0, heat: 0, shared: false, halved: 0, late: 0, bytes: 0 }
    }

    /// It has earned the shared lane.
    pub const fn shared(&self) -> bool {
        self.shared
    }

    /// An exclusive answer: its time at the database and its size. True when this promotes the query.
    pub fn answered(&mut self, database_us: u64, bytes: usize) -> bool {
        if self.shared {
            return false; // one that escaped from the shared lane, or was asked before the promotion
        }
        self.fast = if database_us < FAST_US && bytes <= LARGEST { self.fast + 1 } else { 0 };
        self.shared = self.fast >= self.needed;
        if self.shared {
            (self.fast, self.heat) = (0, 0);
        }
        self.shared
    }

    fn demote(&mut self) {
        self.needed = (self.needed * 8).min(NEEDED.1);
        (self.shared, self.fast, self.heat) = (false, 0, 0);
    }

    fn heated(&mut self, by: u32) -> bool {
        self.heat += by;
        let out = self.shared && self.heat >= OUT;
        if out {
            self.demote();
        }
        out
    }

    /// A statement of it was slow. True when it moves out.
    pub fn slow(&mut self) -> bool {
        self.heated(SLOW)
    }

    /// It was in a flush that was slow, and so were others. True when it moves out.
    pub fn suspect(&mut self) -> bool {
        self.heated(NEAR)
    }

    /// Callers that a batch of it may have, of at most so many.
    pub fn batch(&self, most: usize) -> usize {
        let most = most.checked_shr(self.halved.into()).unwrap_or(0);
        most.min(BATCH_BYTES * 8 / (self.bytes as usize).max(1))
    }

    /// A batch of it took too long: the next are half as large. True when it moves out.
    pub fn batch_late(&mut self) -> bool {
        self.halved = self.halved.saturating_add(1);
        self.late += 1;
        let out = self.late >= LATE;
        if out {
            self.late = 0;
            let was = self.shared;
            self.demote();
            return was;
        }
        false
    }

    /// The lane's limit cut a batch short whose callers have more time than that. True when this moves the query out.
    pub fn batch_cut_short(&mut self) -> bool {
        let out = self.shared;
        if out {
            self.demote();
        }
        out
    }

    /// A shared answer: its size, and the time of its flush until then. True when this moves the query out.
    #[inline]
    pub fn seen(&mut self, bytes: usize, flush_us: u64) -> bool {
        if bytes > LARGEST {
            let out = self.shared;
            self.demote();
            return out;
        }
        self.bytes = self.bytes - self.bytes / 8 + bytes as u32;
        if flush_us < SLOW_US {
            self.heat = self.heat.saturating_sub(1);
            self.fast += 1;
            if self.fast >= FORGIVEN {
                (self.fast, self.needed) = (0, (self.needed / 8).max(NEEDED.0));
                (self.halved, self.late) = (self.halved.saturating_sub(1), 0);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until_shared(standing: &mut Standing) -> u32 {
        (1..10_000).find(|_| standing.answered(100, 200)).unwrap_or(0)
    }

    #[test]
    fn promoted_when_fast_and_slower_to_return() {
        let mut standing = Standing::new(1);
        assert_eq!(until_shared(&mut standing), 8);
        for needed in [64, 512, 4096, 4096] {
            assert!(!standing.slow() && standing.slow() && !standing.shared());
            assert_eq!(until_shared(&mut standing), needed);
        }
        (0..FORGIVEN).for_each(|_| assert!(!standing.seen(100, 100)));
        assert!(standing.seen(LARGEST + 1, 100));
        assert_eq!(until_shared(&mut standing), 4096);
    }

    #[test]
    fn late_batches_are_halved_then_the_query_moves_out() {
        let mut standing = Standing::new(1);
        until_shared(&mut standing);
        assert_eq!(standing.batch(256), 256);
        assert!(!standing.batch_late());
        assert_eq!((standing.batch(256), standing.shared()), (128, true));
        assert!(standing.batch_late() && !standing.shared());
        until_shared(&mut standing);
        assert_eq!(standing.batch(256), 64);
        (0..2 * FORGIVEN).for_each(|_| assert!(!standing.seen(100, 100)));
        assert_eq!(standing.batch(256), 256);
        (0..200).for_each(|_| assert!(!standing.batch_late() || !standing.shared()));
        assert_eq!(standing.batch(1024), 0);
    }

    #[test]
    fn large_answers_make_small_batches() {
        let mut standing = Standing::new(1);
        (0..100).for_each(|_| assert!(!standing.seen(LARGEST, 100)));
        assert_eq!(standing.batch(256), 8);
        (0..200).for_each(|_| assert!(!standing.seen(100, 100)));
        assert_eq!(standing.batch(256), 256);
    }

    #[test]
    fn one_slow_or_large_answer_starts_the_count_anew() {
        let mut standing = Standing::new(1);
        (0..7).for_each(|_| assert!(!standing.answered(100, 200)));
        assert!(!standing.answered(FAST_US, 200));
        (0..7).for_each(|_| assert!(!standing.answered(100, 200)));
        assert!(!standing.answered(100, LARGEST + 1));
        (0..7).for_each(|_| assert!(!standing.answered(100, 200)));
        assert!(standing.answered(100, LARGEST));
    }

    #[test]
    fn a_rare_slow_statement_is_forgiven() {
        let mut standing = Standing::new(1);
        until_shared(&mut standing);
        for _ in 0..50 {
            assert!(!standing.slow());
            (0..1000).for_each(|_| assert!(!standing.seen(10, 10)));
        }
        assert!(!standing.slow());
        (0..400).for_each(|_| assert!(!standing.seen(10, 10)));
        assert!(standing.slow());
    }

    #[test]
    fn who_is_always_near_a_slow_flush_moves_out() {
        let (mut guilty, mut innocent) = (Standing::new(1), Standing::new(2));
        until_shared(&mut guilty);
        until_shared(&mut innocent);
        let mut out = 0;
        for _ in 0..5 {
            out += u32::from(guilty.suspect());
            assert!(!innocent.suspect());
            (0..300).for_each(|_| assert!(!innocent.seen(10, 10)));
            assert!(!guilty.seen(10, SLOW_US));
        }
        assert_eq!((out, guilty.shared(), innocent.shared()), (1, false, true));
    }
}
