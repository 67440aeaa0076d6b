//! The answers that one thread has used: found without a lock, without an allocation, without a write that others would feel. Pure.
use super::entry::Entry;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Answers that a thread remembers; beyond it those that are over are forgotten, or all.
const MOST: usize = 4096;
/// What they may take, bytes as `Entry::size` counts them; beyond it likewise. Several times the largest answer, so that each fits: what is
/// not remembered here is found in the shards, by a lock.
const BYTES: usize = 8 << 20;

/// One thread's. It may remember an answer that was thrown out until `tidy`; it is not served any more.
#[derive(Debug)]
pub struct Front {
    /// With what each was counted as in `bytes`.
    entries: HashMap<u64, (Arc<Entry>, usize), foldhash::fast::RandomState>,
    bytes: usize,
}

impl Default for Front {
    fn default() -> Self {
        Self { entries: HashMap::with_capacity_and_hasher(MOST, foldhash::fast::RandomState::default()), bytes: 0 }
    }
}

impl Front {
    /// A fresh answer to exactly this question.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], now: Instant) -> Option<&Entry> {
        self.entries.get(&hash).map(|(entry, _)| &**entry).filter(|entry| *entry.key == *key && entry.is_fresh(now))
    }

    /// Remembers one.
    pub fn remember(&mut self, hash: u64, entry: Arc<Entry>, now: Instant) {
        let size = entry.size();
        if self.is_full(size) {
            self.tidy(now);
            if self.is_full(size) {
                self.entries.clear();
                self.bytes = 0;
            }
        }
        self.bytes += size;
        if let Some((_, before)) = self.entries.insert(hash, (entry, size)) {
            self.bytes -= before;
        }
    }

    /// Forgets what is over, and all if codings that were made since have let the rest grow beyond its bound. About once a second.
    pub fn tidy(&mut self, now: Instant) {
        self.bytes = 0;
        self.entries.retain(|_, (entry, counted)| {
            *counted = entry.size();
            let fresh = entry.is_fresh(now);
            self.bytes += if fresh { *counted } else { 0 };
            fresh
        });
        if self.bytes > BYTES {
            self.entries.clear();
            self.bytes = 0;
        }
    }

    fn is_full(&self, more: usize) -> bool {
        self.entries.len() >= MOST || self.bytes + more > BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::answer;
    use super::*;
    use std::time::Duration;

    fn entry(size: usize, now: Instant) -> Arc<Entry> {
        Arc::new(Entry::new(b"k".as_slice().into(), answer(&vec![b'x'; size]), now, Duration::from_secs(1)))
    }

    #[test]
    fn what_is_remembered_is_bounded_by_bytes() {
        let (mut front, now) = (Front::default(), Instant::now());
        let (first, large) = (entry(1, now), entry(1 << 20, now));
        front.remember(0, first.clone(), now);
        for hash in 1..100 {
            front.remember(hash, large.clone(), now);
            assert!(front.find(hash, b"k", now).is_some() && Arc::strong_count(&large) <= 1 + BYTES / (1 << 20), "{hash}");
        }
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn another_answer_to_a_question_counts_in_place_of_the_one_before() {
        let (mut front, now) = (Front::default(), Instant::now());
        front.remember(0, entry(1, now), now);
        for _ in 0..100 {
            front.remember(1, entry(1 << 20, now), now);
        }
        assert!(front.find(0, b"k", now).is_some() && front.find(1, b"k", now).is_some());
    }

    #[test]
    fn thrown_out_makes_room_before_what_is_fresh() {
        let (mut front, now) = (Front::default(), Instant::now());
        front.remember(0, entry(1, now), now);
        for hash in 1..100 {
            let large = entry(1 << 20, now);
            front.remember(hash, large.clone(), now);
            large.discard();
        }
        assert!(front.find(0, b"k", now).is_some());
    }

    #[test]
    fn growth_is_counted_when_it_is_tidied() {
        let (mut front, now) = (Front::default(), Instant::now());
        let grown = entry(1, now);
        front.remember(0, grown.clone(), now);
        grown.grow(BYTES);
        front.tidy(now);
        assert!(front.find(0, b"k", now).is_none());
        assert_eq!(Arc::strong_count(&grown), 1);
    }
}
