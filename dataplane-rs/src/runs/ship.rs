//! The shipper: one thread that carries committed blocks, in order and also out of live segments, into the store, and frees what
//! is there. A cursor moves in the same transaction as the runs, so a replay is exact at whatever instant a process dies.
//! Nothing waits for it: when the store takes nothing, the spool grows, and the shipper tries again with back-off.
//! May reject: nothing; a file that is no segment is renamed to `.bad` and reported. IO: the spool's files, the store.
use super::layout::{self, HEADER, Header};
use super::spool::{Feed, Segment, Spool, lock};
use super::store::{Batch, Cursor, SegmentNames, Store, StoreError};
use crate::observe::{Observation, Observer};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes read at once; larger than any block.
const CHUNK: usize = 1 << 20;
/// Back-off while the store takes nothing.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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
    /// Runs in the spool that the store lacks. They are shipped by the next process on this directory.
    pub runs: u64,
    /// Segments on the disk.
    pub segments: u64,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
enum ShipError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the spool: {0}")]
    Spool(#[from] io::Error),
}

impl From<rusqlite::Error> for ShipError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
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
    /// Starts the thread. `store` is the embedded store's file.
    pub fn start(spool: Arc<Spool>, store: PathBuf, observer: Arc<Observer>, settings: ShipSettings) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            spool: spool.clone(),
            path: store,
            observer,
            settings,
            stop: stop.clone(),
            store: None,
            progress: Vec::new(),
            replayed: false,
            failing_since: None,
            buffer: Vec::new(),
            watched: Watched::default(),
        };
        let thread = thread::Builder::new().name("run-shipper".into()).spawn(move || worker.run())?;
        Ok(Self { stop, spool, thread: Some(thread) })
    }

    /// Ships until nothing is left or `grace` is over. To be called after the last `Recorder` is gone.
    pub fn drain(mut self, grace: Duration) -> Left {
        let deadline = Instant::now() + grace;
        let thread = self.thread.take();
        if let Some(thread) = &thread {
            thread.thread().unpark();
            while !thread.is_finished() && !self.spool.is_drained() && Instant::now() < deadline {
                thread.thread().unpark();
                thread::sleep(Duration::from_millis(2));
            }
        }
        let left = Left { runs: self.spool.waiting(), segments: self.spool.status().segments };
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

/// How far a live feed is.
struct Progress {
    feed: Arc<Feed>,
    cursor: Cursor,
    names: SegmentNames,
    /// Definitions before the cursor are known.
    learned: bool,
    /// Highest sequence in the store.
    sequence: u64,
}

/// What has been said already.
#[derive(Default)]
struct Watched {
    full: bool,
    filling: bool,
    failing: bool,
    dropped: u64,
}

struct Worker {
    spool: Arc<Spool>,
    path: PathBuf,
    observer: Arc<Observer>,
    settings: ShipSettings,
    stop: Arc<AtomicBool>,
    store: Option<Store>,
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
            self.watch();
            match self.round() {
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
                        let reason = match &error {
                            ShipError::Store(error) => error.reason(),
                            ShipError::Spool(error) => io_reason(error),
                        };
                        self.observer.report(&Observation::StoreFailing { reason });
                        self.failing_since = Some(Instant::now());
                    }
                    // What was rolled back is read again.
                    self.store = None;
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
        if let Some(store) = &self.store {
            store.checkpoint();
        }
    }

    fn hook(&self, step: Step) {
        if let Some(hook) = &self.settings.hook {
            hook(step);
        }
    }

    /// Ships what is there; whether there is more at once.
    fn round(&mut self) -> Result<bool, ShipError> {
        let mut store = match self.store.take() {
            Some(store) => store,
            None => Store::open(&self.path)?,
        };
        if !self.replayed {
            self.replay(&mut store)?;
            self.replayed = true;
        }
        let more = self.ship(&mut store)?;
        self.store = Some(store);
        Ok(more)
    }

    /// Carries over what earlier processes left.
    fn replay(&mut self, store: &mut Store) -> Result<(), ShipError> {
        let leftovers = lock(&self.spool.leftovers).clone();
        let (mut runs, mut segments) = (0, 0);
        for path in leftovers {
            if let Some(added) = self.replay_segment(store, &path)? {
                runs += added;
                segments += 1;
            }
            lock(&self.spool.leftovers).retain(|other| *other != path);
        }
        self.hook(Step::Replayed);
        let mut batch = store.batch()?;
        let aborted = batch.end_former_epochs()?;
        batch.commit()?;
        self.hook(Step::Aborted);
        self.observer.ship.aborted.fetch_add(aborted, Ordering::Relaxed);
        self.observer.ship.shipped.fetch_add(aborted, Ordering::Relaxed);
        if segments > 0 || aborted > 0 {
            self.observer.report(&Observation::SpoolReplayed { segments, runs, aborted });
        }
        Ok(())
    }

    /// One former segment, whole; frees it. How many runs the store lacked; None: it is no segment.
    fn replay_segment(&self, store: &mut Store, path: &Path) -> Result<Option<u64>, ShipError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let size = bytes.len() as u64;
        let header = match Header::decode(&bytes) {
            Ok(header) => header,
            // Died while it was made: there was nothing in it.
            Err(_) if bytes.iter().all(|b| *b == 0) => {
                fs::remove_file(path)?;
                self.spool.freed(size);
                return Ok(None);
            }
            Err(_) => {
                self.set_aside(path, "header")?;
                self.spool.freed(size);
                return Ok(None);
            }
        };
        let start = Cursor { segment: header.number, position: HEADER as u64 };
        let cursor = store.cursor(header.epoch)?.filter(|c| c.segment >= header.number).unwrap_or(start);
        let mut runs = 0;
        if cursor.segment == header.number {
            let (mut at, mut names, mut torn) = (HEADER, SegmentNames::default(), None);
            let mut batch = store.batch()?;
            self.hook(Step::Begun);
            let mut open_bytes = 0;
            loop {
                let payload = match layout::block(bytes.get(at..).unwrap_or_default(), header.salt, at as u64) {
                    Ok(Some(payload)) => payload,
                    Ok(None) => break,
                    Err(_) => {
                        torn = Some(at as u64);
                        break;
                    }
                };
                if (at as u64) < cursor.position {
                    batch.learn(payload, &mut names)?;
                } else if !batch.insert(header.epoch, payload, &mut names, &mut 0)? {
                    self.observer.report(&Observation::SegmentUnreadable { reason: "content" });
                }
                at += layout::BLOCK_HEAD + payload.len();
                open_bytes += payload.len();
                if open_bytes >= self.settings.batch_bytes {
                    runs += self.commit(batch, &[(header.epoch, Cursor { segment: header.number, position: at as u64 })])?;
                    batch = store.batch()?;
                    self.hook(Step::Begun);
                    open_bytes = 0;
                }
            }
            let next = Cursor { segment: header.number, position: at as u64 };
            runs += self.commit(batch, &[(header.epoch, next)])?;
            if let Some(offset) = torn {
                self.observer.report(&Observation::SegmentTorn { segment: header.number.into(), offset });
            }
        }
        fs::remove_file(path)?;
        self.spool.freed(size);
        self.hook(Step::Freed);
        Ok(Some(runs))
    }

    fn commit(&self, batch: Batch<'_>, cursors: &[(u64, Cursor)]) -> Result<u64, ShipError> {
        self.hook(Step::Inserted);
        for (epoch, cursor) in cursors {
            batch.set_cursor(*epoch, *cursor)?;
        }
        self.hook(Step::CursorSet);
        let counts = batch.commit()?;
        self.hook(Step::Committed);
        self.observer.ship.shipped.fetch_add(counts.runs, Ordering::Relaxed);
        self.observer.ship.newest_us.fetch_max(counts.newest_us, Ordering::Relaxed);
        Ok(counts.runs)
    }

    fn set_aside(&self, path: &Path, reason: &'static str) -> io::Result<()> {
        fs::rename(path, path.with_extension("bad"))?;
        self.observer.report(&Observation::SegmentUnreadable { reason });
        Ok(())
    }

    /// One transaction over all live feeds, then frees what is done.
    fn ship(&mut self, store: &mut Store) -> Result<bool, ShipError> {
        self.meet_feeds(store)?;
        let mut progress = std::mem::take(&mut self.progress);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut left = self.settings.batch_bytes;
        let mut moved = Vec::new();
        if progress.iter().any(|p| p.has_news()) {
            let mut batch = store.batch()?;
            self.hook(Step::Begun);
            for progress in &mut progress {
                let before = progress.cursor;
                progress.insert(self, &mut batch, &mut buffer, &mut left)?;
                if progress.cursor != before {
                    moved.push((progress.feed.epoch, progress.cursor));
                }
            }
            self.commit(batch, &moved)?;
            // Only now: what is rolled back is not shipped.
            for progress in &progress {
                progress.feed.shipped.store(progress.sequence, Ordering::Relaxed);
            }
        }
        for progress in &mut progress {
            self.free(progress)?;
        }
        let gone: Vec<u64> = progress.iter().filter(|p| p.is_over()).map(|p| p.feed.epoch).collect();
        if !gone.is_empty() {
            let batch = store.batch()?;
            for epoch in &gone {
                batch.forget_cursor(*epoch)?;
            }
            batch.commit()?;
            lock(&self.spool.feeds).retain(|feed| !gone.contains(&feed.epoch));
            progress.retain(|p| !gone.contains(&p.feed.epoch));
        }
        let waiting = progress.iter().map(|p| p.feed.recorded.load(Ordering::Relaxed).saturating_sub(p.sequence)).sum();
        self.observer.ship.waiting.store(waiting, Ordering::Relaxed);
        self.progress = progress;
        self.buffer = buffer;
        Ok(left == 0)
    }

    /// Takes up feeds that are new, or that an error made us forget.
    fn meet_feeds(&mut self, store: &Store) -> Result<(), ShipError> {
        for feed in lock(&self.spool.feeds).clone() {
            if self.progress.iter().any(|p| p.feed.epoch == feed.epoch) {
                continue;
            }
            let first = lock(&feed.segments).front().map_or(0, |s| s.header.number);
            let start = Cursor { segment: first, position: HEADER as u64 };
            let cursor = store.cursor(feed.epoch)?.filter(|c| c.segment >= first).unwrap_or(start);
            let sequence = feed.shipped.load(Ordering::Relaxed);
            let learned = cursor.position == HEADER as u64;
            self.progress.push(Progress { feed, cursor, names: SegmentNames::default(), learned, sequence });
        }
        Ok(())
    }

    fn free(&self, progress: &Progress) -> Result<(), ShipError> {
        loop {
            let done = {
                let mut segments = lock(&progress.feed.segments);
                match segments.front() {
                    Some(segment) if progress.is_done(segment) => segments.pop_front(),
                    _ => None,
                }
            };
            let Some(segment) = done else { return Ok(()) };
            self.spool.discard(&segment);
            self.hook(Step::Freed);
        }
    }

    /// Reports what became of the spool since the last round.
    fn watch(&mut self) {
        let status = self.spool.status();
        let (bytes, bound_bytes) = (status.bytes, status.bound_bytes);
        let filling = bytes > bound_bytes / 2 && status.segments > lock(&self.spool.feeds).len() as u64;
        let full = filling && bytes + self.spool.segment_size() > bound_bytes;
        if full && !self.watched.full {
            self.observer.report(&Observation::SpoolFull { bytes, bound_bytes });
        } else if filling && !self.watched.filling {
            self.observer.report(&Observation::SpoolFilling { bytes, bound_bytes });
        } else if !filling && self.watched.filling {
            self.observer.report(&Observation::SpoolFree { bytes });
        }
        if status.failing && !self.watched.failing {
            self.observer.report(&Observation::SpoolFailing { reason: "cannot make or sync a segment" });
        }
        let runs = status.dropped - self.watched.dropped;
        if runs > 0 {
            self.observer.report(&Observation::RunsDropped { runs });
        }
        self.watched = Watched { full, filling, failing: status.failing, dropped: status.dropped };
    }
}

impl Progress {
    fn has_news(&self) -> bool {
        let segments = lock(&self.feed.segments);
        segments.iter().any(|s| s.header.number >= self.cursor.segment && s.committed.load(Ordering::Acquire) > self.position(s))
    }

    fn position(&self, segment: &Segment) -> u64 {
        if segment.header.number == self.cursor.segment { self.cursor.position } else { HEADER as u64 }
    }

    /// Sealed, and all of it is in the store.
    fn is_done(&self, segment: &Segment) -> bool {
        segment.sealed.load(Ordering::Acquire)
            && (segment.header.number < self.cursor.segment || segment.committed.load(Ordering::Acquire) <= self.position(segment))
    }

    fn is_over(&self) -> bool {
        self.feed.finished.load(Ordering::Acquire) && lock(&self.feed.segments).is_empty()
    }

    fn insert(&mut self, worker: &Worker, batch: &mut Batch<'_>, buffer: &mut Vec<u8>, left: &mut usize) -> Result<(), ShipError> {
        let segments: Vec<_> = lock(&self.feed.segments).iter().cloned().collect();
        for segment in segments {
            if segment.header.number < self.cursor.segment {
                continue;
            }
            let committed = segment.committed.load(Ordering::Acquire);
            if segment.header.number > self.cursor.segment {
                self.cursor = Cursor { segment: segment.header.number, position: HEADER as u64 };
                self.names = SegmentNames::default();
                self.learned = true;
            }
            if !self.learned {
                let end = self.cursor.position;
                blocks(&segment.file, &segment.header, HEADER as u64, end, buffer, |payload, _| {
                    batch.learn(payload, &mut self.names)?;
                    Ok(true)
                })?;
                self.learned = true;
            }
            let Self { feed, cursor, names, sequence, .. } = self;
            let whole = blocks(&segment.file, &segment.header, cursor.position, committed, buffer, |payload, end| {
                if !batch.insert(feed.epoch, payload, names, sequence)? {
                    worker.observer.report(&Observation::SegmentUnreadable { reason: "content" });
                }
                cursor.position = end;
                *left = left.saturating_sub(payload.len());
                Ok(*left > 0)
            })?;
            if !whole {
                // What the kernel had is gone from the disk: keep the file, go on behind it.
                worker.observer.report(&Observation::SegmentUnreadable { reason: "block" });
                let _ = fs::hard_link(&segment.path, segment.path.with_extension("bad"));
                cursor.position = committed;
            }
            if *left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Hands the payloads between `at` and `end`, with the offset behind each, to `take` until it says false. `Ok(false)`: one of them
/// is damaged.
fn blocks(
    file: &File,
    header: &Header,
    mut at: u64,
    end: u64,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8], u64) -> Result<bool, ShipError>,
) -> Result<bool, ShipError> {
    while at < end {
        let length = CHUNK.min((end - at) as usize);
        buffer.resize(length, 0);
        file.read_exact_at(buffer, at)?;
        let mut inside = 0;
        while inside < length {
            match layout::block(buffer.get(inside..).unwrap_or_default(), header.salt, at + inside as u64) {
                Ok(Some(payload)) => {
                    inside += layout::BLOCK_HEAD + payload.len();
                    if !take(payload, at + inside as u64)? {
                        return Ok(true);
                    }
                }
                // Cut by the chunk's end.
                Err(_) | Ok(None) if inside > 0 && length == CHUNK => break,
                Err(_) | Ok(None) => return Ok(false),
            }
        }
        at += inside as u64;
    }
    Ok(true)
}

fn io_reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "a segment is gone",
        io::ErrorKind::PermissionDenied => "a segment cannot be read",
        io::ErrorKind::StorageFull => "disk full",
        _ => "IO error",
    }
}
