//! One call asks, the others with the same question wait. The leader's end frees them whatever it is: kept, failed, or gone.
//! May reject: nothing. IO: none; waiters are woken on their own threads.
use super::entry::{Answer, Entry};
use super::shards::Cache;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How a flight stands.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Under way.
    Flying,
    /// Answered.
    Kept(Arc<Entry>),
    /// It ended without an answer that others could have.
    Failed,
}

/// A question under way, as the shards know it.
#[derive(Debug)]
pub(super) struct Flight {
    pub key: Box<[u8]>,
    pub outcome: Arc<watch::Sender<Outcome>>,
}

/// The call that asks for all. Dropped without a word (its client left), it lets another lead.
#[derive(Debug)]
pub struct Lead {
    pub(super) cache: Arc<Cache>,
    pub(super) hash: u64,
    pub(super) key: Box<[u8]>,
    pub(super) began: Instant,
    pub(super) ttl: Duration,
    pub(super) outcome: Arc<watch::Sender<Outcome>>,
}

impl Lead {
    /// Keeps its answer, if it may be kept, and gives it to those who wait. How many others were thrown out for it.
    pub fn keep(mut self, answer: Answer<'_>, now: Instant) -> u64 {
        let entry = Arc::new(Entry::new(std::mem::take(&mut self.key), answer, self.began, self.ttl));
        if !entry.is_fresh(now) {
            self.fail();
            return 0;
        }
        let evicted = self.cache.keep(self.hash, entry.clone(), &self.outcome, now);
        self.outcome.send_replace(Outcome::Kept(entry));
        evicted
    }

    /// There is no answer that others could have: each asks for itself.
    pub fn fail(self) {
        self.outcome.send_replace(Outcome::Failed);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.cache.land(self.hash, &self.outcome);
    }
}

/// A call that waits for another's answer.
#[derive(Debug)]
pub struct Waiting(pub(super) watch::Receiver<Outcome>);

/// What came of waiting.
#[derive(Clone, Debug)]
pub enum Waited {
    /// The answer.
    Kept(Arc<Entry>),
    /// The leader has none: ask alone.
    Failed,
    /// The leader went: there may be another, or this call is it.
    Gone,
}

impl Waiting {
    /// Waits for as long as it takes. May be dropped at any time.
    pub async fn outcome(&mut self) -> Waited {
        loop {
            match &*self.0.borrow_and_update() {
                Outcome::Kept(entry) => return Waited::Kept(entry.clone()),
                Outcome::Failed => return Waited::Failed,
                Outcome::Flying => {}
            }
            if self.0.changed().await.is_err() {
                // The last word may have come together with the end.
                return match &*self.0.borrow() {
                    Outcome::Kept(entry) => Waited::Kept(entry.clone()),
                    Outcome::Failed => Waited::Failed,
                    Outcome::Flying => Waited::Gone,
                };
            }
        }
    }
}
