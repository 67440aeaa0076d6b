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
/// Suspicions before a query moves out that was never alone in a slow flush.
const SUSPICIONS: u32 = 12;

/// One query's standing on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of the query that this is about; another version starts anew.
    pub version: u64,
    fast: u32,
    needed: u32,
    suspicion: u32,
    shared: bool,
}

impl Standing {
    /// Of a query that nothing is known about.
    pub const fn new(version: u64) -> Self {
        Self { version, fast: 0, needed: NEEDED.0, suspicion: 0, shared: false }
    }

    /// It has earned the shared lane.
    pub const fn shared(&self) -> bool {
        self.shared
    }

    /// An exclusive answer: its time at the database and its size. True when this promotes the query.
    pub fn answered(&mut self, database_us: u64, bytes: usize) -> bool {
        if database_us < FAST_US && bytes <= LARGEST {
            self.fast = self.fast.saturating_add(1);
        } else {
            self.fast = 0;
        }
        let promoted = !self.shared && self.fast >= self.needed;
        self.shared |= promoted;
        promoted
    }

    /// A statement of it was slow or its answer large: it moves out.
    pub fn demote(&mut self) {
        if self.shared {
            self.needed = (self.needed * 8).min(NEEDED.1);
        }
        (self.shared, self.fast, self.suspicion) = (false, 0, 0);
    }

    /// It was in a flush that was slow, and so were others. True when it moves out.
    pub fn suspect(&mut self) -> bool {
        self.suspicion += 4;
        let out = self.shared && self.suspicion >= SUSPICIONS;
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
        if flush_us < SLOW_US {
            self.suspicion = self.suspicion.saturating_sub(1);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promoted_when_fast_and_slower_to_return() {
        let mut standing = Standing::new(1);
        let until = |standing: &mut Standing| (1..10_000).find(|_| standing.answered(100, 200));
        assert_eq!(until(&mut standing), Some(8));
        for needed in [64, 512, 4096, 4096] {
            standing.demote();
            assert!(!standing.shared());
            assert_eq!(until(&mut standing), Some(needed));
        }
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
    fn who_is_always_near_a_slow_flush_moves_out() {
        let (mut guilty, mut innocent) = (Standing::new(1), Standing::new(2));
        for standing in [&mut guilty, &mut innocent] {
            (0..8).for_each(|_| {
                standing.answered(1, 1);
            });
        }
        let mut out = 0;
        for _ in 0..3 {
            out += u32::from(guilty.suspect());
            innocent.suspect();
            (0..8).for_each(|_| assert!(!innocent.seen(10, 10)));
            assert!(!guilty.seen(10, SLOW_US));
        }
        assert_eq!((out, guilty.shared(), innocent.shared()), (1, false, true));
    }
}
