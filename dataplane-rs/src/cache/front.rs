//! The answers that one thread has used: found without a lock, without an allocation, without a write that others would feel. Pure.
use super::entry::Entry;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Answers that a thread remembers; beyond it those that are over are forgotten, or all.
const MOST: usize = 4096;

/// One thread's. It may remember an answer that was thrown out until `tidy`; it is not served any more.
#[derive(Debug)]
pub struct Front(HashMap<u64, Arc<Entry>, foldhash::fast::RandomState>);

impl Default for Front {
    fn default() -> Self {
        Self(HashMap::with_capacity_and_hasher(MOST, foldhash::fast::RandomState::default()))
    }
}

impl Front {
    /// A fresh answer to exactly this question.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], now: Instant) -> Option<&Entry> {
        self.0.get(&hash).map(|entry| &**entry).filter(|entry| *entry.key == *key && entry.is_fresh(now))
    }

    /// Remembers one.
    pub fn remember(&mut self, hash: u64, entry: Arc<Entry>, now: Instant) {
        if self.0.len() >= MOST {
            self.tidy(now);
            if self.0.len() >= MOST {
                self.0.clear();
            }
        }
        self.0.insert(hash, entry);
    }

    /// Forgets what is over. About once a second.
    pub fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, entry| entry.is_fresh(now));
    }
}
