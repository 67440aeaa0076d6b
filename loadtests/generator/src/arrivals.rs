//! When calls are due, and the random numbers behind keys. Pure; rejects nothing.

/// A small fast generator (SplitMix64); the same seed gives the same calls.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..bound (bound ≥ 1; the bias is below 2⁻³² for every range in use).
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() as u128 * bound as u128) >> 64) as u64
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// How open-loop calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Process {
    /// One call each 1/rate seconds.
    Constant,
    /// Exponential gaps with mean 1/rate.
    Poisson,
}

/// The intended times of an open loop, in ns since its start. They do not depend on how answers arrive.
#[derive(Clone, Debug)]
pub struct Schedule {
    process: Process,
    gap_ns: f64,
    next_ns: f64,
    random: Random,
}

impl Schedule {
    /// `rate`: calls per second, above 0.
    pub fn new(process: Process, rate: f64, seed: u64) -> Self {
        Self { process, gap_ns: 1e9 / rate, next_ns: 0.0, random: Random::new(seed ^ 0x5ced_0000) }
    }

    /// When the next call is due.
    pub const fn due(&self) -> u64 {
        self.next_ns as u64
    }

    /// Steps to the call after.
    pub fn advance(&mut self) {
        self.next_ns += match self.process {
            Process::Constant => self.gap_ns,
            Process::Poisson => -self.random.unit().ln() * self.gap_ns,
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn below_stays_below(seed: u64, bound in 1u64..) {
            let mut random = Random::new(seed);
            for _ in 0..32 {
                prop_assert!(random.below(bound) < bound);
            }
        }

        #[test]
        fn a_schedule_offers_its_rate(seed: u64, rate in 10.0f64..100_000.0) {
            for process in [Process::Constant, Process::Poisson] {
                let mut schedule = Schedule::new(process, rate, seed);
                let calls = 20_000;
                let mut last = 0;
                for _ in 0..calls {
                    prop_assert!(schedule.due() >= last);
                    last = schedule.due();
                    schedule.advance();
                }
                let offered = f64::from(calls) / (schedule.due() as f64 / 1e9);
                prop_assert!((offered / rate - 1.0).abs() < 0.05, "{process:?} {offered} for {rate}");
            }
        }
    }
}
