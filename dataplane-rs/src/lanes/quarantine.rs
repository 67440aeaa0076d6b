//! Who poisons batches of a query is asked singly for a while, apart from the others: at once with the same arguments, with others
//! after a few times. Holds a bounded number of them, as digests. Pure. May reject: nothing.
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// Entries at most; beyond it the one that ends first gives way.
const MOST: usize = 64;
/// How long after its last failure.
const HOLD: Duration = Duration::from_secs(10);
/// Failures of a key's calls, each within `HOLD` of the one before, after which all its calls of the query are held apart.
const STRIKES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    /// Digest of the values.
    Arguments(u64),
    /// Slot of the API key.
    Key(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    query: (u32, u64),
    whom: Whom,
    strikes: u8,
    until: Instant,
}

/// One thread's, for one database.
#[derive(Debug, Default)]
pub struct Quarantine {
    entries: Vec<Entry>,
    hasher: foldhash::fast::RandomState,
}

impl Quarantine {
    /// Whether to ask this call apart. `query`: slot and version.
    #[inline]
    pub fn holds(&self, query: (u32, u64), key: u32, values: &[u8], now: Instant) -> bool {
        !self.entries.is_empty() && self.held(query, key, values, now)
    }

    fn held(&self, query: (u32, u64), key: u32, values: &[u8], now: Instant) -> bool {
        let mut of_query = self.entries.iter().filter(|entry| entry.query == query && now < entry.until).peekable();
        if of_query.peek().is_none() {
            return false;
        }
        let arguments = Whom::Arguments(self.hasher.hash_one(values));
        of_query.any(|entry| entry.whom == arguments || (entry.whom == Whom::Key(key) && entry.strikes >= STRIKES))
    }

    /// The call failed by itself.
    #[cold]
    pub fn failed(&mut self, query: (u32, u64), key: u32, values: &[u8], now: Instant) {
        self.tidy(now);
        let arguments = Whom::Arguments(self.hasher.hash_one(values));
        for whom in [arguments, Whom::Key(key)] {
            if let Some(entry) = self.entries.iter_mut().find(|entry| entry.query == query && entry.whom == whom) {
                (entry.strikes, entry.until) = (entry.strikes.saturating_add(1), now + HOLD);
                continue;
            }
            if self.entries.len() >= MOST
                && let Some(first) = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.until).map(|(at, _)| at)
            {
                self.entries.swap_remove(first);
            }
            self.entries.push(Entry { query, whom, strikes: 1, until: now + HOLD });
        }
    }

    /// Lets go whose time is over.
    pub fn tidy(&mut self, now: Instant) {
        self.entries.retain(|entry| now < entry.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: (u32, u64) = (3, 77);

    #[test]
    fn the_same_arguments_are_held_at_once_and_let_go() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.failed(QUERY, 1, b"13", now);
        assert!(quarantine.holds(QUERY, 2, b"13", now));
        assert!(!quarantine.holds(QUERY, 1, b"14", now));
        assert!(!quarantine.holds((3, 78), 1, b"13", now));
        assert!(!quarantine.holds(QUERY, 2, b"13", now + HOLD));
        quarantine.tidy(now + HOLD);
        assert!(quarantine.entries.is_empty());
    }

    #[test]
    fn a_key_that_goes_on_is_held_whatever_it_asks() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        for n in 0..STRIKES {
            assert!(!quarantine.holds(QUERY, 1, b"0", now));
            quarantine.failed(QUERY, 1, &[b'1', n], now);
        }
        assert!(quarantine.holds(QUERY, 1, b"0", now));
        assert!(!quarantine.holds(QUERY, 2, b"0", now));
    }

    #[test]
    fn it_is_bounded() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        for n in 0..1000_u32 {
            quarantine.failed(QUERY, n, &n.to_be_bytes(), now + Duration::from_micros(n.into()));
        }
        assert_eq!(quarantine.entries.len(), MOST);
        assert!(quarantine.holds(QUERY, 0, &999_u32.to_be_bytes(), now));
    }
}
