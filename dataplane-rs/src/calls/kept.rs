//! Calls of cached queries: answered at once, by another's answer, or by the database for all who ask the same.
//! May reject: more waiters than the cache takes. IO: none.
use super::call::Call;
use super::core::{Admitted, Core};
use super::desk::Cost;
use crate::cache::{Begun, Cache, Entry, Front, Key, Waited};
use crate::codes::Code;
use crate::http::client::Signal;
use crate::http::output::Output;
use crate::http::worker::Worker;
use crate::observe::Observer;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A thread's way to the cache.
#[derive(Debug)]
pub struct Kept {
    cache: Arc<Cache>,
    front: Front,
    /// The question at hand.
    key: Vec<u8>,
}

impl Kept {
    /// To this one.
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, front: Front::default(), key: Vec::new() }
    }

    /// Forgets what is over. About once a second.
    pub fn tidy(&mut self, now: Instant, observer: &Observer) {
        self.front.tidy(now);
        self.cache.tidy(now);
        observer.cache_bytes.store(self.cache.bytes() as u64, Relaxed);
    }
}

impl Core {
    /// Writes a call's question down; its hash, and how long its answer is kept.
    #[inline]
    fn question(&mut self, call: &Call) -> Option<(u64, Duration)> {
        let (plan, query) = (call.plan.as_ref()?, call.query()?);
        let ttl = query.cache_ttl?;
        let database = plan.databases.get(query.connection as usize).and_then(|&at| self.databases.get(at))?;
        let page = match query.page {
            Some(_) => Some((&*plan.tables.keys.get(call.key?)?.id, &*call.link)),
            None => None,
        };
        let key = Key {
            identity: call.sight()?.kept_as?,
            generation: database.generation,
            format: call.form.format,
            variant: call.asked.variant,
            rows: call.asked.rows,
            values: &call.values,
            page,
        };
        key.write(&mut self.kept.key);
        Some((self.kept.cache.hash(&self.kept.key), ttl))
    }

    /// Answers a call of a cached query, or sends it on its way.
    #[inline]
    pub(super) fn look(&mut self, call: Box<Call>, output: &mut Output) -> Admitted {
        let Some((hash, ttl)) = self.question(&call) else { return self.go(call, output) };
        let now = self.desk.clock.now;
        let Kept { cache, front, key } = &self.kept;
        let Some(entry) = front.find(hash, key, now) else { return self.begin(call, hash, ttl, output) };
        self.meter.cache_hits.add(1);
        entry.touch();
        let made = self.desk.cached(call, entry, Cost { cached: true, ..Cost::default() }, Some(output));
        if made > 0 {
            self.meter.cache_evictions.add(cache.grew(hash, entry, made, now));
        }
        Admitted::Told
    }

    /// What this thread has not used yet.
    fn begin(&mut self, mut call: Box<Call>, hash: u64, ttl: Duration, output: &mut Output) -> Admitted {
        let now = self.desk.clock.now;
        match self.kept.cache.begin(hash, &self.kept.key, now, call.began, ttl) {
            Begun::Hit(entry) => {
                self.meter.cache_hits.add(1);
                self.serve(call, entry, Some(output));
                Admitted::Told
            }
            Begun::Lead(lead) => {
                self.meter.cache_misses.add(1);
                call.lead = Some(lead);
                self.go(call, output)
            }
            Begun::Wait(waiting) => {
                self.meter.cache_waits.add(1);
                call.waiting = Some(waiting);
                Admitted::Exclusive(call)
            }
            Begun::Alone => {
                self.meter.cache_misses.add(1);
                self.go(call, output)
            }
            Begun::Full => {
                self.desk.refuse(call, Code::Overloaded, Cost::default(), Some(output));
                Admitted::Told
            }
        }
    }

    /// Ends a call with a kept answer, and remembers it on this thread.
    fn serve(&mut self, call: Box<Call>, entry: Arc<Entry>, output: Option<&mut Output>) {
        let now = self.desk.clock.now;
        let hash = self.kept.cache.hash(&entry.key);
        entry.touch();
        let cost = Cost { queue_us: self.desk.clock.since_us(call.began), cached: true, ..Cost::default() };
        let made = self.desk.cached(call, &entry, cost, output);
        if made > 0 {
            self.meter.cache_evictions.add(self.kept.cache.grew(hash, &entry, made, now));
        }
        self.kept.front.remember(hash, entry, now);
    }

    /// Goes on with a call that waited. Given back when it is to have a connection of its own, or waits once more.
    fn waited(&mut self, call: Box<Call>, waited: Waited, output: Option<&mut Output>) -> Option<Box<Call>> {
        let Some(output) = output else {
            self.desk.gone(call, Cost::default());
            return None;
        };
        let now = self.desk.clock.now;
        let admitted = match waited {
            Waited::Kept(entry) if entry.is_fresh(now) => {
                self.serve(call, entry, Some(output));
                Admitted::Told
            }
            Waited::Kept(_) | Waited::Failed => {
                self.meter.cache_misses.add(1);
                self.go(call, output)
            }
            Waited::Gone => match self.question(&call) {
                Some((hash, ttl)) => self.begin(call, hash, ttl, output),
                None => self.go(call, output),
            },
        };
        match admitted {
            Admitted::Exclusive(call) => Some(call),
            Admitted::Told | Admitted::Queued | Admitted::Crowded | Admitted::Forward(_) | Admitted::Several(..) => None,
        }
    }
}

/// Waits for another call's answer, while the client and the call's deadline allow. The call comes back when it must ask for itself
/// on a connection of its own.
pub async fn wait(worker: &Worker, mut call: Box<Call>, signal: &Signal) -> Option<Box<Call>> {
    while let Some(mut waiting) = call.waiting.take() {
        let (ticket, deadline) = (call.ticket, tokio::time::Instant::from_std(call.deadline));
        let waited = loop {
            if signal.gone.get() {
                worker.tell(ticket, |core, _| core.desk.gone(call, Cost::default()));
                return None;
            }
            tokio::select! {
                biased;
                waited = waiting.outcome() => break Some(waited),
                () = tokio::time::sleep_until(deadline) => break None,
                () = signal.changed.notified() => {}
            }
        };
        let Some(waited) = waited else {
            worker.tell(ticket, |core, output| {
                let cost = Cost { queue_us: core.desk.clock.since_us(call.began), ..Cost::default() };
                core.desk.refuse(call, Code::QueryTimeout, cost, output);
            });
            return None;
        };
        call = worker.tell(ticket, |core, output| core.waited(call, waited, output))?;
    }
    Some(call)
}
