//! How fast what waits for a lane leaves, and so how many may wait: nobody is let in who would wait longer than `LONGEST`. Decided when
//! calls leave, so that letting one in is a comparison; no timer. Pure. May reject: nothing by itself.
use std::time::{Duration, Instant};

/// Whom the queue's pace lets expect a longer wait is refused at once.
pub const LONGEST: Duration = Duration::from_millis(500);
/// The pace is taken over at least so long.
const WINDOW: Duration = Duration::from_millis(50);
/// So many may always wait.
const FEWEST: usize = 64;

/// The pace of one thread's queue for one database.
#[derive(Debug)]
pub struct Drain {
    /// Somebody has waited all the time since then; None: nobody does.
    since: Option<Instant>,
    /// How many left since then.
    left: usize,
    /// Of the window before this one, calls a second.
    pace: Option<f64>,
    /// How many may ever wait.
    bound: usize,
    /// How many may wait now.
    room: usize,
}

impl Drain {
    /// Nobody waits; at most `bound` ever may.
    pub const fn new(bound: usize) -> Self {
        Self { since: None, left: 0, pace: None, bound, room: bound }
    }

    /// How many may wait now.
    #[inline]
    pub const fn room(&self) -> usize {
        self.room
    }

    /// Nothing is known of the pace: nobody waits, or there was no lane meanwhile.
    pub const fn forget(&mut self) {
        (self.since, self.left, self.pace, self.room) = (None, 0, None, self.bound);
    }

    /// `count` left, `waiting` still wait. The slower of two windows is ignored: one may have been the machine's fault.
    pub fn left(&mut self, count: usize, waiting: usize, now: Instant) {
        if waiting == 0 {
            return self.forget();
        }
        let Some(since) = self.since else {
            self.since = Some(now);
            return;
        };
        self.left += count;
        let took = now.saturating_duration_since(since);
        if took < WINDOW {
            return;
        }
        let pace = self.left as f64 / took.as_secs_f64();
        if let Some(before) = self.pace {
            let room = pace.max(before) * LONGEST.as_secs_f64();
            self.room = (room as usize).max(FEWEST).min(self.bound);
        }
        (self.since, self.left, self.pace) = (Some(now), 0, Some(pace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: usize = 8192;

    /// `count` leave every 10 ms for so many turns, and somebody waits all the time.
    fn run(drain: &mut Drain, count: usize, turns: u32, from: Instant) -> Instant {
        let mut now = from;
        for _ in 0..turns {
            now += Duration::from_millis(10);
            drain.left(count, 1, now);
        }
        now
    }

    #[test]
    fn as_many_wait_as_leave_within_the_longest_wait() {
        let mut drain = Drain::new(BOUND);
        run(&mut drain, 20, 30, Instant::now()); // 2,000 a second
        assert!((950..=1050).contains(&drain.room()), "{}", drain.room());
    }

    #[test]
    fn a_fast_queue_is_bounded_by_number_a_stuck_one_keeps_a_few() {
        let mut drain = Drain::new(BOUND);
        let now = run(&mut drain, 1000, 30, Instant::now());
        assert_eq!(drain.room(), BOUND);
        run(&mut drain, 0, 30, now);
        assert_eq!(drain.room(), FEWEST);
    }

    #[test]
    fn one_slow_window_is_forgiven() {
        let mut drain = Drain::new(BOUND);
        let now = run(&mut drain, 20, 30, Instant::now());
        let now = now + Duration::from_millis(400);
        drain.left(20, 1, now);
        assert!(drain.room() > 900, "{}", drain.room());
        let now = now + Duration::from_millis(400);
        drain.left(20, 1, now);
        assert!(drain.room() < 200, "{}", drain.room());
        run(&mut drain, 20, 10, now);
        assert!(drain.room() > 900, "{}", drain.room());
    }

    #[test]
    fn a_burst_that_ends_says_nothing() {
        let mut drain = Drain::new(BOUND);
        let now = run(&mut drain, 1, 30, Instant::now());
        assert_eq!(drain.room(), FEWEST);
        drain.left(1, 0, now);
        assert_eq!(drain.room(), BOUND);
        run(&mut drain, 1, 5, now);
        assert_eq!(drain.room(), BOUND);
    }
}
