//! How long connections live, and the pauses between attempts that fail. Pure. May reject: nothing.
use rand::RngExt;
use std::time::Duration;
use tokio::time::Instant;

/// Calls of one thread that wait for a connection; more are told `PoolFull` at once.
const QUEUE: usize = 1024;

/// How long connections live and what is done when they cannot be had.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum age, ± 10 %.
    pub life: Duration,
    /// Idle connections are closed after this.
    pub idle: Duration,
    /// First pause after a failed connect; doubles, with jitter.
    pub pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// For one connect over all hosts, also bounded by the call.
    pub connect: Duration,
    /// Calls that may wait.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            life: Duration::from_secs(1800),
            idle: Duration::from_secs(300),
            pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
            connect: Duration::from_secs(30),
            queue: QUEUE,
        }
    }
}

/// Pauses between attempts that fail.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// In a row.
    pub failures: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// When the next attempt may be made, if not now.
    pub fn paused(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// One more attempt failed.
    pub fn failed(&mut self, limits: &Limits, now: Instant) {
        let pause = limits.pause.saturating_mul(1 << self.failures.min(16)).min(limits.longest_pause);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause.mul_f64(rand::rng().random_range(0.5..1.0)));
    }

    /// One worked.
    pub fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_with_jitter_up_to_the_longest() {
        let (limits, now) = (Limits::default(), Instant::now());
        for _ in 0..50 {
            let mut backoff = Backoff::default();
            assert_eq!(backoff.paused(now), None);
            for n in 0..40 {
                backoff.failed(&limits, now);
                let whole = Duration::from_millis(100).saturating_mul(1 << n.min(16)).min(Duration::from_secs(10));
                let pause = backoff.paused(now).unwrap() - now;
                assert!(pause >= whole / 2 && pause <= whole, "{n}: {pause:?}");
            }
            assert_eq!(backoff.paused(now + Duration::from_secs(11)), None);
            backoff.worked();
            assert_eq!(backoff.paused(now), None);
        }
    }
}
