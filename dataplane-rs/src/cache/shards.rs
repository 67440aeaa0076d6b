//! What all threads share: kept answers and questions under way, by hash, in shards with a lock each. Bounded by bytes: what was not
//! used since the last look goes first (the second-chance form of least recently used). IO: none. May reject: what is too large.
use super::entry::Entry;
use super::flight::{Flight, Lead, Outcome, Waiting};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Locks. More than threads of a usual pod.
const SHARDS: usize = 16;
/// One answer takes at most this part of a shard.
const SHARE: usize = 2;
/// Calls that wait for one answer, over all threads; more are refused as overloaded.
const WAITERS: usize = 8192;

#[derive(Debug)]
enum Slot {
    Kept(Arc<Entry>),
    Flying(Flight),
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<u64, Slot, foldhash::fast::RandomState>,
    /// Hashes of kept answers, the next to look at first. May name some that are gone.
    order: VecDeque<u64>,
    bytes: usize,
}

/// What a call is to do.
#[derive(Debug)]
pub enum Begun {
    /// Be answered with this.
    Hit(Arc<Entry>),
    /// Ask, for others too.
    Lead(Lead),
    /// Wait for who asks.
    Wait(Waiting),
    /// Ask, for itself.
    Alone,
    /// Too many wait already.
    Full,
}

/// A pod's cache.
#[derive(Debug)]
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
    hasher: foldhash::quality::RandomState,
    /// Of one shard.
    bound: usize,
    bytes: AtomicUsize,
    /// The shard that is tidied next.
    next: AtomicUsize,
}

impl Cache {
    /// That keeps at most so many bytes. 0 keeps nothing.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::quality::RandomState::default(),
            bound: bytes / SHARDS,
            bytes: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
        })
    }

    /// Of a key's bytes. Random for each process, so that nobody can choose keys that collide; a collision costs time only.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // A map's own places come from other bits.
        let shard = self.shards.get((hash >> 40) as usize % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a call that a thread found no answer for. `began` is when it began: its answer will be no fresher than that.
    pub fn begin(self: &Arc<Self>, hash: u64, key: &[u8], now: Instant, began: Instant, ttl: Duration) -> Begun {
        let Some(mut shard) = self.shard(hash) else { return Begun::Alone };
        match shard.slots.get(&hash) {
            Some(Slot::Kept(entry)) if *entry.key == *key && entry.is_fresh(now) => return Begun::Hit(entry.clone()),
            Some(Slot::Flying(flight)) if *flight.key == *key => {
                return match flight.outcome.receiver_count() {
                    0..WAITERS => Begun::Wait(Waiting(flight.outcome.subscribe())),
                    _ => Begun::Full,
                };
            }
            // Two questions of one hash: as rare as can be, and each is answered.
            Some(Slot::Flying(_)) => return Begun::Alone,
            Some(Slot::Kept(_)) | None => {}
        }
        self.remove(&mut shard, hash);
        let outcome = Arc::new(watch::Sender::new(Outcome::Flying));
        shard.slots.insert(hash, Slot::Flying(Flight { key: key.into(), outcome: outcome.clone() }));
        Begun::Lead(Lead { cache: self.clone(), hash, key: key.into(), began, ttl, outcome })
    }

    /// Ends a flight with its answer; how many were thrown out for it.
    pub(super) fn keep(&self, hash: u64, entry: Arc<Entry>, outcome: &Arc<watch::Sender<Outcome>>, now: Instant) -> u64 {
        let size = entry.size();
        let Some(mut shard) = self.shard(hash).filter(|_| size <= self.bound / SHARE) else { return 0 };
        if !is_flight(&shard, hash, outcome) {
            return 0;
        }
        let evicted = self.make_room(&mut shard, size, now);
        shard.slots.insert(hash, Slot::Kept(entry));
        shard.order.push_back(hash);
        self.count(&mut shard, size, 0);
        evicted
    }

    /// Ends a flight, if it has not ended.
    pub(super) fn land(&self, hash: u64, outcome: &Arc<watch::Sender<Outcome>>) {
        if let Some(mut shard) = self.shard(hash)
            && is_flight(&shard, hash, outcome)
        {
            shard.slots.remove(&hash);
        }
    }

    /// An answer takes more than it did (a coding was made); how many were thrown out for it.
    pub fn grew(&self, hash: u64, entry: &Entry, by: usize, now: Instant) -> u64 {
        let Some(mut shard) = self.shard(hash) else { return 0 };
        let kept = matches!(shard.slots.get(&hash), Some(Slot::Kept(kept)) if std::ptr::eq(&raw const **kept, entry));
        if !kept {
            return 0;
        }
        entry.grow(by);
        self.count(&mut shard, by, 0);
        entry.touch();
        self.make_room(&mut shard, 0, now)
    }

    fn count(&self, shard: &mut Shard, more: usize, less: usize) {
        shard.bytes = (shard.bytes + more).saturating_sub(less);
        self.bytes.fetch_add(more, Relaxed);
        self.bytes.fetch_sub(less, Relaxed);
    }

    fn remove(&self, shard: &mut Shard, hash: u64) {
        if let Some(Slot::Kept(entry)) = shard.slots.get(&hash) {
            entry.discard();
            let size = entry.size();
            shard.slots.remove(&hash);
            self.count(shard, 0, size);
        }
    }

    /// Throws out what is over, then what was not used lately, until so many bytes more fit.
    fn make_room(&self, shard: &mut Shard, size: usize, now: Instant) -> u64 {
        let mut evicted = 0;
        // Each has one more chance: the second time round nothing counts as used.
        let mut looks = 2 * shard.order.len();
        while shard.bytes + size > self.bound && looks > 0 {
            looks -= 1;
            let Some(hash) = shard.order.pop_front() else { break };
            match shard.slots.get(&hash) {
                Some(Slot::Kept(entry)) if entry.is_fresh(now) && looks > 0 && entry.take_used() => shard.order.push_back(hash),
                Some(Slot::Kept(entry)) => {
                    evicted += u64::from(entry.is_fresh(now));
                    self.remove(shard, hash);
                }
                Some(Slot::Flying(_)) | None => {}
            }
        }
        evicted
    }

    /// Forgets what is over in one shard, the next each time. About once a second on each thread.
    pub fn tidy(&self, now: Instant) {
        let Some(shard) = self.shards.get(self.next.fetch_add(1, Relaxed) % SHARDS) else { return };
        let shard = &mut *shard.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |slot: &Slot| matches!(slot, Slot::Kept(entry) if !entry.is_fresh(now));
        let gone: Vec<u64> = shard.slots.iter().filter(|(_, slot)| over(slot)).map(|(hash, _)| *hash).collect();
        for hash in gone {
            self.remove(shard, hash);
        }
        let Shard { slots, order, .. } = shard;
        let mut seen = std::collections::HashSet::with_capacity(order.len());
        order.retain(|hash| matches!(slots.get(hash), Some(Slot::Kept(_))) && seen.insert(*hash));
    }
}

fn is_flight(shard: &Shard, hash: u64, outcome: &Arc<watch::Sender<Outcome>>) -> bool {
    matches!(shard.slots.get(&hash), Some(Slot::Flying(flight)) if Arc::ptr_eq(&flight.outcome, outcome))
}

#[cfg(test)]
mod tests;
