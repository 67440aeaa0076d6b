//! Time as a turn sees it: read once a wake-up, the same for all calls of the turn. IO: the system's clocks.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The turn's time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Monotonic.
    pub now: Instant,
    /// µs since 1970.
    pub wall_us: i64,
}

impl Clock {
    /// Reads both clocks.
    pub fn read() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { now: Instant::now(), wall_us: i64::try_from(wall.as_micros()).unwrap_or(i64::MAX) }
    }

    /// µs since an instant of this clock.
    pub fn since_us(&self, then: Instant) -> u64 {
        self.now.saturating_duration_since(then).as_micros() as u64
    }
}
