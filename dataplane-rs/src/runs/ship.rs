//! The shipper: one thread that carries committed blocks, in order and also out of live segments, into the store, and frees what
//! is there. What the store has of an epoch it has whole, and inserting it again changes nothing, so a replay is exact at whatever
//! instant a process dies, on either side. Nothing waits for it: when the store takes nothing, the spool grows, and the shipper
//! tries again with back-off. Which store it is, the first snapshot says.
//! May reject: nothing. IO: the spool's files, the store.
use super::batch::Batch;
use super::inspect;
use super::progress::Progress;
use super::spool::{Spool, lock};
use super::store::{Cursor, Ended, Store, StoreError};
use crate::observe::{Observation, Observer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Back-off while the store takes nothing.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What a drain still takes when it is asked to hurry.
const HURRY: Duration = Duration::from_secs(1);

/// Instants at which a test may stop the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A transaction has begun.
    Begun,
    /// Its runs are inserted, the cursor isn't set.
    Inserted,
    /// The cursor is set, nothing is committed.
    CursorSet,
    /// Committed, nothing is freed.
    Committed,
    /// A segment's file is removed.
    Freed,
    /// Former epochs are in the store, their open runs aren't aborted.
    Replayed,
    /// They are.
    Aborted,
}

/// How the shipper works; the default is right but for tests.
#[derive(Clone)]
pub struct ShipSettings {
    /// Pause between two rounds. Longer: fewer, larger transactions, and runs show later.
    pub interval: Duration,
    /// Payload bytes after which a transaction is committed.
    pub batch_bytes: usize,
    /// Called at each step.
    pub hook: Option<Arc<dyn Fn(Step) + Send + Sync>>,
}

impl Default for ShipSettings {
    fn default() -> Self {
        Self { interval: Duration::from_millis(200), batch_bytes: 4 << 20, hook: None }
    }
}

impl std::fmt::Debug for ShipSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShipSettings").field("interval", &self.interval).finish_non_exhaustive()
    }
}

/// What a drain could not ship.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Runs in the spool that the store lacks, or may lack if an earlier process left them. The next process on this directory ships
    /// them.
    pub runs: u64,
    /// Segments on the disk.
    pub segments: u64,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShipError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the spool: {0}")]
    Spool(#[from] io::Error),
}

impl ShipError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Store(error) => error.reason(),
            Self::Spool(error) => io_reason(error),
        }
    }
}

/// The running thread.
#[derive(Debug)]
pub struct Shipper {
    stop: Arc<AtomicBool>,
    spool: Arc<Spool>,
    thread: Option<JoinHandle<()>>,
}

impl Shipper {
    /// Starts the thread, which ships nothing until the spool is told where to (`Spool::ship_to`).
    pub fn start(spool: Arc<Spool>, observer: Arc<Observer>, settings: ShipSettings) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("run-shipper".into()).spawn({
            let (spool, stop) = (spool.clone(), stop.clone());
            move || {
                let mut watched = Watched::default();
                let destination = loop {
                    watched.look(&spool, &observer);
                    match spool.destination() {
                        _ if stop.load(Ordering::Acquire) => return,
                        Some(destination) => break destination,
                        None => thread::park_timeout(settings.interval),
                    }
                };
                Worker {
                    store: destination.store(),
                    spool,
                    observer,
                    settings,
                    stop,
                    progress: Vec::new(),
                    replayed: false,
                    failing_since: None,
                    buffer: Vec::new(),
                    watched,
                }
                .run();
            }
        })?;
        Ok(Self { stop, spool, thread: Some(thread) })
    }

    /// Ships until nothing is left or `grace` is over. To be called after the last `Recorder` is gone.
    pub fn drain(self, grace: Duration) -> Left {
        self.drain_or(grace, || false)
    }

    /// `drain`; from when `hurried` says so, a second must be enough.
    pub fn drain_or(mut self, grace: Duration, hurried: impl Fn() -> bool) -> Left {
        let (mut deadline, mut hurry) = (Instant::now() + grace, false);
        let thread = self.thread.take();
        if let Some(thread) = &thread {
            thread.thread().unpark();
            let ships = self.spool.destination().is_some();
            while ships && !thread.is_finished() && !self.spool.is_drained() && Instant::now() < deadline {
                thread.thread().unpark();
                thread::sleep(Duration::from_millis(2));
                if !hurry && hurried() {
                    hurry = true;
                    deadline = deadline.min(Instant::now() + HURRY);
                }
            }
        }
        // Not counted while we run: reading them takes about a second for each GiB.
        let former: u64 = lock(&self.spool.leftovers).iter().map(|path| inspect::runs(path)).sum();
        let left = Left { runs: self.spool.waiting() + former, segments: self.spool.status().segments };
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = thread {
            thread.thread().unpark();
            let end = deadline.max(Instant::now() + Duration::from_millis(500));
            while !thread.is_finished() && Instant::now() < end {
                thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
        left
    }
}

impl Drop for Shipper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// What has been said already.
#[derive(Default)]
struct Watched {
    full: bool,
    filling: bool,
    failing: bool,
    dropped: u64,
}

pub(super) struct Worker {
    pub(super) spool: Arc<Spool>,
    pub(super) store: Box<dyn Store>,
    pub(super) observer: Arc<Observer>,
    pub(super) settings: ShipSettings,
    stop: Arc<AtomicBool>,
    progress: Vec<Progress>,
    replayed: bool,
    failing_since: Option<Instant>,
    buffer: Vec<u8>,
    watched: Watched,
}

impl Worker {
    fn run(mut self) {
        let mut wait = RETRY.0;
        while !self.stop.load(Ordering::Acquire) {
            self.watched.look(&self.spool, &self.observer);
            let outcome = self.round();
            // Also while the store takes nothing: then it matters.
            self.observer.ship.waiting.store(self.spool.waiting(), Ordering::Relaxed);
            match outcome {
                Ok(more) => {
                    if let Some(since) = self.failing_since.take() {
                        let failing_ms = since.elapsed().as_millis() as u64;
                        self.observer.report(&Observation::StoreRecovered { failing_ms });
                    }
                    self.observer.ship.failing.store(false, Ordering::Relaxed);
                    wait = RETRY.0;
                    if !more {
                        thread::park_timeout(self.settings.interval);
                    }
                }
                Err(error) => {
                    self.observer.ship.failures.fetch_add(1, Ordering::Relaxed);
                    self.observer.ship.failing.store(true, Ordering::Relaxed);
                    if self.failing_since.is_none() {
                        self.observer.report(&Observation::StoreFailing { reason: error.reason() });
                        self.failing_since = Some(Instant::now());
                    }
                    // What was rolled back is read again.
                    self.store.reset();
                    self.progress.clear();
                    let jitter = 0.5 + rand::random::<f64>();
                    let until = Instant::now() + wait.mul_f64(jitter);
                    while Instant::now() < until && !self.stop.load(Ordering::Acquire) {
                        thread::park_timeout(until.saturating_duration_since(Instant::now()));
                    }
                    wait = (wait * 2).min(RETRY.1);
                }
            }
        }
        self.store.finish();
    }

    pub(super) fn hook(&self, step: Step) {
        if let Some(hook) = &self.settings.hook {
            hook(step);
        }
    }

    /// Ships what is there; whether there is more at once.
    fn round(&mut self) -> Result<bool, ShipError> {
        if !self.replayed {
            self.replay()?;
            self.replayed = true;
        }
        self.ship()
    }

    /// Commits a transaction together with how far its epochs are; how many runs it brought.
    pub(super) fn commit(
        observer: &Observer,
        settings: &ShipSettings,
        mut batch: Batch<'_>,
        cursors: &[(u64, Cursor)],
    ) -> Result<u64, ShipError> {
        let hook = |step| settings.hook.iter().for_each(|hook| hook(step));
        batch.close()?;
        hook(Step::Inserted);
        for (epoch, cursor) in cursors {
            batch.set_cursor(*epoch, Some(*cursor))?;
        }
        hook(Step::CursorSet);
        let counts = batch.commit()?;
        hook(Step::Committed);
        observer.ship.shipped.fetch_add(counts.runs, Ordering::Relaxed);
        observer.ship.newest_us.fetch_max(counts.newest_us, Ordering::Relaxed);
        Ok(counts.runs)
    }

    /// One transaction over all live feeds, then frees what is done.
    fn ship(&mut self) -> Result<bool, ShipError> {
        if self.store.forget_names() {
            self.progress.clear();
        }
        self.meet_feeds()?;
        let mut left = self.settings.batch_bytes;
        if self.progress.iter().any(|p| p.has_news()) {
            let mut moved = Vec::new();
            let mut batch = Batch::begin(&mut *self.store)?;
            if let Some(hook) = &self.settings.hook {
                hook(Step::Begun);
            }
            for progress in &mut self.progress {
                let before = progress.cursor;
                progress.insert(&mut batch, &self.observer, &mut self.buffer, &mut left)?;
                if progress.cursor != before {
                    moved.push((progress.feed.epoch, progress.cursor));
                }
            }
            Self::commit(&self.observer, &self.settings, batch, &moved)?;
            // Only now: what is rolled back is not shipped.
            for progress in &self.progress {
                progress.feed.shipped.store(progress.sequence, Ordering::Relaxed);
            }
        }
        self.end_feeds()?;
        for progress in &self.progress {
            self.free(progress);
        }
        Ok(left == 0)
    }

    /// Takes up feeds that are new, or that an error made us forget.
    fn meet_feeds(&mut self) -> Result<(), ShipError> {
        for feed in lock(&self.spool.feeds).clone() {
            if !self.progress.iter().any(|p| p.feed.epoch == feed.epoch) {
                let cursor = self.store.cursor(feed.epoch)?;
                self.progress.push(Progress::new(feed, cursor));
            }
        }
        Ok(())
    }

    /// Lets go of feeds whose recorder is gone and whose runs are all in the store. What its calls left open is aborted before the
    /// last segment goes: after that nobody would know the epoch.
    fn end_feeds(&mut self) -> Result<(), ShipError> {
        let over: Vec<u64> = self.progress.iter().filter(|p| p.is_over()).map(|p| p.feed.epoch).collect();
        if over.is_empty() {
            return Ok(());
        }
        self.end(Ended::Own(&over))?;
        for progress in self.progress.extract_if(.., |p| over.contains(&p.feed.epoch)).collect::<Vec<_>>() {
            self.free(&progress);
            lock(&self.spool.feeds).retain(|feed| feed.epoch != progress.feed.epoch);
        }
        Ok(())
    }

    fn free(&self, progress: &Progress) {
        loop {
            let done = {
                let mut segments = lock(&progress.feed.segments);
                match segments.front() {
                    Some(segment) if progress.is_done(segment) => segments.pop_front(),
                    _ => None,
                }
            };
            let Some(segment) = done else { return };
            self.spool.discard(&segment);
            self.hook(Step::Freed);
        }
    }
}

impl Watched {
    /// Reports what became of the spool since the last round.
    fn look(&mut self, spool: &Spool, observer: &Observer) {
        let status = spool.status();
        let (bytes, bound_bytes) = (status.bytes, status.bound_bytes);
        let filling = bytes > bound_bytes / 2 && status.segments > lock(&spool.feeds).len() as u64;
        let full = filling && bytes + spool.segment_size() > bound_bytes;
        if full && !self.full {
            observer.report(&Observation::SpoolFull { bytes, bound_bytes });
        } else if filling && !self.filling {
            observer.report(&Observation::SpoolFilling { bytes, bound_bytes });
        } else if !filling && self.filling {
            observer.report(&Observation::SpoolFree { bytes });
        }
        if status.failing && !self.failing {
            observer.report(&Observation::SpoolFailing { reason: "cannot make or sync a segment" });
        }
        let runs = status.dropped - self.dropped;
        if runs > 0 {
            observer.report(&Observation::RunsDropped { runs });
        }
        *self = Self { full, filling, failing: status.failing, dropped: status.dropped };
    }
}

fn io_reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "a segment is gone",
        io::ErrorKind::PermissionDenied => "a segment cannot be read",
        io::ErrorKind::StorageFull => "disk full",
        _ => "IO error",
    }
}
