//! The spool directory: one owner at a time (a lock), one epoch for each recorder, a bound on its size. A keeper thread
//! pre-allocates the next segment of each recorder and syncs what was committed, about every 5 ms.
//! May reject: a directory that another process owns, a full disk, the bound. IO: files of the directory.
use super::layout::{HEADER, Header};
use super::record::Recorder;
use super::store::Destination;
use crate::plan::snapshot::{Durability, OnFull};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::sync::watch;

/// Largest segment, pre-allocated: some 116,000 runs.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Smallest segment, when the bound is small.
pub const SEGMENT_BYTES_MIN: u64 = 512 << 10;
/// Pause between two group syncs while there is something to sync.
const SYNC_INTERVAL: Duration = Duration::from_millis(5);
/// Longest sleep of an idle keeper; it also tries again then to make a segment that it could not.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// Why there is no spool, or no room in it.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another process records into this directory.
    #[error("another process records into this directory")]
    Locked,
    /// `spool_size_bytes` is reached.
    #[error("the spool's bound is reached")]
    Full,
    /// The file system said no.
    #[error("the spool cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// A pre-allocated file. Its recorder writes behind `committed`, the shipper reads before it.
#[derive(Debug)]
pub struct Segment {
    pub(super) file: File,
    /// Where it is.
    pub path: PathBuf,
    /// What it says of itself.
    pub header: Header,
    pub(super) committed: AtomicU64,
    pub(super) synced: AtomicU64,
    pub(super) sealed: AtomicBool,
}

/// One recorder as the keeper and the shipper see it.
#[derive(Debug)]
pub struct Feed {
    /// Of its runs.
    pub epoch: u64,
    /// Not freed yet, oldest first; the last is being written.
    pub(super) segments: Mutex<VecDeque<Arc<Segment>>>,
    spare: Mutex<Option<Arc<Segment>>>,
    commits: AtomicU64,
    /// Last sequence that the kernel has.
    pub(super) recorded: AtomicU64,
    /// Last sequence that the store has.
    pub(super) shipped: AtomicU64,
    pub(super) synced: watch::Sender<u64>,
    /// The recorder is gone.
    pub(super) finished: AtomicBool,
}

/// How far the runs of a recorder are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStatus {
    /// Of the recorder.
    pub epoch: u64,
    /// Highest sequence that was recorded: what has been answered is at most this.
    pub recorded: u64,
    /// Everything up to this is in the store.
    pub stored: u64,
}

/// What a start finds, or a drain leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Pre-allocated bytes of all segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes that the kernel has and the disk perhaps not.
    pub unsynced_bytes: u64,
    /// The bound.
    pub bound_bytes: u64,
    /// Runs dropped under `onFull: drop`.
    pub dropped: u64,
    /// The last attempt to make a segment or to sync failed.
    pub failing: bool,
    /// Of live recorders.
    pub epochs: Vec<EpochStatus>,
}

/// The directory that all threads share.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Held as long as we live; the kernel releases it whatever kills us.
    _lock: File,
    /// What earlier processes left, by epoch and number; the shipper takes it.
    pub(super) leftovers: Mutex<Vec<PathBuf>>,
    destination: OnceLock<Destination>,
    bound: AtomicU64,
    drop_when_full: AtomicBool,
    sync_before_answer: AtomicBool,
    used: AtomicU64,
    segments: AtomicU64,
    pub(super) dropped: AtomicU64,
    failing: AtomicBool,
    pub(super) feeds: Mutex<Vec<Arc<Feed>>>,
    keeper: OnceLock<Thread>,
    keeper_sleeps: AtomicBool,
    stopped: AtomicBool,
}

/// A poisoned lock here guards plain data that is whole at every step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    /// Takes the directory `data/spool`, makes it if need be, and starts the keeper. Segments that an earlier process left stay
    /// for the shipper and count towards the bound.
    pub fn open(data: &Path) -> Result<Arc<Self>, SpoolError> {
        let directory = data.join("spool");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let guard = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(data.join("recorder.lock"))?;
        guard.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => SpoolError::Locked,
            fs::TryLockError::Error(error) => SpoolError::Io(error),
        })?;
        let leftovers = segment_files(&directory)?;
        let used = leftovers.iter().map(|path| Ok(fs::metadata(path)?.len())).sum::<io::Result<u64>>()?;
        let segments = leftovers.len() as u64;
        let spool = Arc::new(Self {
            directory,
            _lock: guard,
            leftovers: Mutex::new(leftovers),
            destination: OnceLock::new(),
            bound: AtomicU64::new(1 << 30),
            drop_when_full: AtomicBool::new(false),
            sync_before_answer: AtomicBool::new(false),
            used: AtomicU64::new(used),
            segments: AtomicU64::new(segments),
            dropped: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            feeds: Mutex::new(Vec::new()),
            keeper: OnceLock::new(),
            keeper_sleeps: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&spool);
        let handle = thread::Builder::new().name("spool-keeper".into()).spawn(move || {
            while let Some(spool) = weak.upgrade() {
                if spool.stopped.load(Ordering::Acquire) {
                    break;
                }
                let busy = spool.keep();
                if !busy {
                    spool.keeper_sleeps.store(true, Ordering::SeqCst);
                }
                let wait = if busy || spool.has_unsynced() { SYNC_INTERVAL } else { IDLE_INTERVAL };
                drop(spool);
                thread::park_timeout(wait);
                if let Some(spool) = weak.upgrade() {
                    spool.keeper_sleeps.store(false, Ordering::SeqCst);
                }
            }
        })?;
        let _ = spool.keeper.set(handle.thread().clone());
        Ok(spool)
    }

    /// What the current snapshot says. Holds for the next segment, the next full disk, the next answer.
    pub fn configure(&self, bound_bytes: u64, on_full: OnFull, durability: Durability) {
        self.bound.store(bound_bytes, Ordering::Relaxed);
        self.drop_when_full.store(on_full == OnFull::Drop, Ordering::Relaxed);
        self.sync_before_answer.store(durability == Durability::Disk, Ordering::Relaxed);
        self.wake_keeper();
    }

    /// The embedded store of this data directory.
    pub fn beside(&self) -> Destination {
        Destination::Embedded(self.directory.with_file_name("runs.sqlite"))
    }

    /// Says where runs are shipped to. It holds for the life of this process: the runs of an epoch are all in one store, else
    /// nobody could prove that none is missing. False: they go elsewhere already, until the next start.
    pub fn ship_to(&self, destination: Destination) -> bool {
        *self.destination.get_or_init(|| destination.clone()) == destination
    }

    /// Where runs are shipped to, once it is known.
    pub fn destination(&self) -> Option<&Destination> {
        self.destination.get()
    }

    /// What happens to calls while the spool is full.
    pub fn on_full(&self) -> OnFull {
        if self.drop_when_full.load(Ordering::Relaxed) { OnFull::Drop } else { OnFull::Reject }
    }

    /// When an answer may leave.
    pub fn durability(&self) -> Durability {
        if self.sync_before_answer.load(Ordering::Relaxed) { Durability::Disk } else { Durability::Process }
    }

    /// A new recorder with an epoch of its own; one for each serving thread. 63 random bits: pods that start at the same instant and
    /// share a store draw different ones, whatever their clocks say, and it fits a signed integer.
    pub fn recorder(self: &Arc<Self>) -> Result<Recorder, SpoolError> {
        loop {
            let epoch = rand::random::<u64>() >> 1;
            // The bound doesn't hold for the first segment: without one nothing can be answered.
            let segment = match self.write_segment(epoch, 0) {
                Err(SpoolError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let feed = Arc::new(Feed {
                epoch,
                segments: Mutex::new(VecDeque::from([segment.clone()])),
                spare: Mutex::new(None),
                commits: AtomicU64::new(0),
                recorded: AtomicU64::new(0),
                shipped: AtomicU64::new(0),
                synced: watch::Sender::new(0),
                finished: AtomicBool::new(false),
            });
            lock(&self.feeds).push(feed.clone());
            return Ok(Recorder::new(self.clone(), feed, segment));
        }
    }

    /// What the directory holds, as `spool-status` prints it. Reads all of it.
    pub fn inventory(&self) -> io::Result<serde_json::Value> {
        super::inspect::inventory(&self.directory)
    }

    /// Sizes for metrics and status.
    pub fn status(&self) -> SpoolStatus {
        let (mut unsynced, mut epochs) = (0, Vec::new());
        for feed in lock(&self.feeds).iter() {
            // In this order: never more stored than recorded.
            let stored = feed.shipped.load(Ordering::Acquire);
            epochs.push(EpochStatus { epoch: feed.epoch, recorded: feed.recorded.load(Ordering::Acquire), stored });
            for segment in lock(&feed.segments).iter() {
                unsynced += segment.committed.load(Ordering::Acquire).saturating_sub(segment.synced.load(Ordering::Acquire));
            }
        }
        SpoolStatus {
            bytes: self.used.load(Ordering::Relaxed),
            segments: self.segments.load(Ordering::Relaxed),
            unsynced_bytes: unsynced,
            bound_bytes: self.bound.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failing: self.failing.load(Ordering::Relaxed),
            epochs,
        }
    }

    /// Whether runs can be written: what readiness asks.
    pub fn is_writable(&self) -> bool {
        !self.failing.load(Ordering::Relaxed)
    }

    /// Runs that the kernel has and the store lacks, as far as live recorders tell.
    pub fn waiting(&self) -> u64 {
        let left = |feed: &Arc<Feed>| feed.recorded.load(Ordering::Relaxed).saturating_sub(feed.shipped.load(Ordering::Relaxed));
        lock(&self.feeds).iter().map(left).sum()
    }

    /// Whether every recorder is gone and all its runs are in the store, and those of former processes too.
    pub fn is_drained(&self) -> bool {
        lock(&self.feeds).is_empty() && lock(&self.leftovers).is_empty()
    }

    pub(super) fn segment_size(&self) -> u64 {
        let feeds = lock(&self.feeds).len().max(1) as u64;
        (self.bound.load(Ordering::Relaxed) / (4 * feeds)).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES) & !4095
    }

    /// `first`: nothing but the segment that is being written holds runs of this recorder. Then the bound does not hold: the
    /// shipper can only free what is sealed, so that a bound below one segment would refuse calls for ever.
    pub(super) fn create_segment(&self, epoch: u64, number: u32, first: bool) -> Result<Arc<Segment>, SpoolError> {
        if !first && self.used.load(Ordering::Relaxed) + self.segment_size() > self.bound.load(Ordering::Relaxed) {
            return Err(SpoolError::Full);
        }
        self.write_segment(epoch, number)
    }

    fn write_segment(&self, epoch: u64, number: u32) -> Result<Arc<Segment>, SpoolError> {
        let size = self.segment_size();
        let path = self.directory.join(format!("{epoch:016x}-{number:08x}.seg"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let header = Header { epoch, number, salt: rand::random(), size };
        let made = allocate(&file, size).and_then(|()| file.write_all_at(&header.encode(), 0)).and_then(|()| file.sync_all());
        if let Err(error) = made.and_then(|()| File::open(&self.directory)?.sync_all()) {
            let _ = fs::remove_file(&path);
            return Err(error.into());
        }
        self.used.fetch_add(size, Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
        let start = HEADER as u64;
        Ok(Arc::new(Segment {
            file,
            path,
            header,
            committed: AtomicU64::new(start),
            synced: AtomicU64::new(start),
            sealed: AtomicBool::new(false),
        }))
    }

    /// Removes a segment that holds nothing or whose runs are in the store.
    pub(super) fn discard(&self, segment: &Segment) {
        if fs::remove_file(&segment.path).is_ok() {
            self.freed(segment.header.size);
        }
    }

    pub(super) fn freed(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.segments.fetch_sub(1, Ordering::Relaxed);
        self.wake_keeper();
    }

    pub(super) fn wake_keeper(&self) {
        if self.keeper_sleeps.load(Ordering::SeqCst)
            && self.keeper_sleeps.swap(false, Ordering::SeqCst)
            && let Some(keeper) = self.keeper.get()
        {
            keeper.unpark();
        }
    }

    fn has_unsynced(&self) -> bool {
        lock(&self.feeds).iter().any(|feed| feed.commits.load(Ordering::SeqCst) > *feed.synced.borrow())
    }

    /// One round of the keeper; whether there was something to sync.
    fn keep(&self) -> bool {
        let (mut busy, mut failing) = (false, false);
        let feeds = lock(&self.feeds).clone();
        for feed in feeds {
            let commits = feed.commits.load(Ordering::SeqCst);
            let segments: Vec<_> = lock(&feed.segments).iter().cloned().collect();
            if commits > *feed.synced.borrow() {
                busy = true;
                let synced = segments.iter().try_for_each(|s| s.sync());
                match synced {
                    Ok(()) => drop(feed.synced.send_replace(commits)),
                    Err(_) => failing = true,
                }
            }
            let wanted = segments.last().filter(|s| s.header.size - s.committed.load(Ordering::Acquire) < s.header.size / 2);
            if let Some(current) = wanted
                && !feed.finished.load(Ordering::Acquire)
                && lock(&feed.spare).is_none()
            {
                match self.create_segment(feed.epoch, current.header.number + 1, segments.len() <= 1) {
                    Ok(segment) => *lock(&feed.spare) = Some(segment),
                    // Made already, and with the recorder.
                    Err(SpoolError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(SpoolError::Full) => {}
                    Err(_) => failing = true,
                }
            }
            if feed.finished.load(Ordering::Acquire)
                && let Some(spare) = feed.take_spare()
            {
                self.discard(&spare);
            }
        }
        self.failing.store(failing, Ordering::Relaxed);
        busy
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }
}

impl Segment {
    fn sync(&self) -> io::Result<()> {
        let committed = self.committed.load(Ordering::Acquire);
        if committed > self.synced.load(Ordering::Acquire) {
            self.file.sync_data()?;
            self.synced.store(committed, Ordering::Release);
        }
        Ok(())
    }
}

impl Feed {
    pub(super) fn take_spare(&self) -> Option<Arc<Segment>> {
        lock(&self.spare).take()
    }

    pub(super) fn committed(&self, segment: &Segment, offset: u64, commits: u64, sequence: u64) {
        self.recorded.store(sequence, Ordering::Relaxed);
        segment.committed.store(offset, Ordering::Release);
        self.commits.store(commits, Ordering::SeqCst);
    }

    pub(super) fn rolled(&self, old: &Segment, new: Arc<Segment>) {
        lock(&self.segments).push_back(new);
        old.sealed.store(true, Ordering::Release);
    }

    pub(super) fn finish(&self, segment: &Segment) {
        segment.sealed.store(true, Ordering::Release);
        self.finished.store(true, Ordering::Release);
    }
}

/// Reserves the bytes, so that a full disk shows now and not at a commit.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let zeros = vec![0; 256 << 10];
            let mut at = 0;
            while at < size {
                let length = zeros.len().min((size - at) as usize);
                file.write_all_at(zeros.get(..length).unwrap_or(&zeros), at)?;
                at += length as u64;
            }
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Paths of the segments in a spool directory, by epoch and number.
pub fn segment_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)?
        .map(|entry| entry.map(|e| e.path()))
        .filter(|path| path.as_ref().map_or(true, |p| p.extension().is_some_and(|e| e == "seg")))
        .collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}
