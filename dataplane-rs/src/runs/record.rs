//! The thread-owned recorder. `append`, `open` and `close` only fill a buffer; `commit`, once a turn and before that turn's
//! answers leave, hands it to the kernel by one write(2) (two when a segment is full). May reject: nothing until `commit`,
//! whose error says that runs after `recorded()` are in no file: their answers must not leave.
//!
//! IO: pwrite on a pre-allocated segment; rarely the creation of one, when the keeper thread hasn't one ready.
use super::RunId;
use super::ddl::PARAMS_LIMIT;
use super::definitions::Definitions;
use super::layout::{self, BLOCK_HEAD, Kind, Record};
use super::run::{Close, Forwarded, Open, Run, ServedBy};
use super::spool::{Feed, Segment, Spool, SpoolError};
use crate::plan::snapshot::OnFull;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;

/// A block is written when it has grown to this, within the turn.
const BLOCK_TARGET: usize = 256 * 1024;
/// Room that one record may need besides its parameters: fixed part, trace, lengths and five definitions.
const RECORD_ROOM: usize = 6 * 1024;
/// Room below which a segment counts as used up; it holds what calls under way still append.
const RESERVE: u64 = 128 * 1024;
/// Ends of streams that a full disk kept from being written. More are lost: their runs become `aborted`.
const RETAINED_LIMIT: usize = 16_384;

/// A `Close` that outlives its turn, because the disk was full.
struct Retained {
    sequence: u64,
    close: Record<'static>,
    code: Box<str>,
    forwarded: Option<[Box<str>; 4]>,
}

/// One thread's way to the spool.
pub struct Recorder {
    spool: Arc<Spool>,
    feed: Arc<Feed>,
    segment: Arc<Segment>,
    /// Taken from the keeper, ready for the next roll.
    next: Option<Arc<Segment>>,
    /// End of what the kernel has of the segment.
    offset: u64,
    /// BLOCK_HEAD free bytes, then the entries since the last write.
    pending: Vec<u8>,
    /// Last drawn.
    sequence: u64,
    /// Last that the kernel has.
    recorded: u64,
    /// Commits that wrote something.
    commits: u64,
    definitions: Definitions,
    /// Why this turn can't be recorded from here on.
    failed: Option<io::Error>,
    /// Runs of this turn that are in no buffer.
    lost: u64,
    /// Closes in `pending`, should it be thrown away.
    closing: Vec<Retained>,
    /// Closes to be appended again. At most RETAINED_LIMIT.
    retained: Vec<Retained>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("epoch", &self.feed.epoch).field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Recorder {
    pub(super) fn new(spool: Arc<Spool>, feed: Arc<Feed>, segment: Arc<Segment>) -> Self {
        let mut pending = Vec::with_capacity(64 * 1024);
        pending.resize(BLOCK_HEAD, 0);
        Self {
            spool,
            feed,
            segment,
            next: None,
            offset: layout::HEADER as u64,
            pending,
            sequence: 0,
            recorded: 0,
            commits: 0,
            definitions: Definitions::new(),
            failed: None,
            lost: 0,
            closing: Vec::new(),
            retained: Vec::new(),
        }
    }

    /// The id that the next `append` or `open` of this thread will take. It is burnt by neither looking nor a failed commit.
    pub fn next_id(&self) -> RunId {
        RunId { epoch: self.feed.epoch, sequence: self.sequence + 1 }
    }

    /// Appends a whole call and draws its id.
    pub fn append(&mut self, run: &Run<'_>) -> RunId {
        // Room first: a write that it causes covers what was drawn before.
        let room = self.room_for(run.params.map_or(0, str::len));
        self.sequence += 1;
        let sequence = self.sequence;
        if room {
            let out = &mut self.pending;
            let record = Record {
                kind: Kind::Run,
                client: run.client as u8,
                served_by: ServedBy::DataPlane as u8,
                status: run.status,
                batch: run.batch,
                sequence,
                time_us: run.time_us,
                duration_us: run.duration_us,
                database_us: run.database_us,
                queue_us: run.queue_us.try_into().unwrap_or(u32::MAX),
                query: self.definitions.query(run.names, run.query, out),
                key: self.definitions.key(run.names, run.key, out),
                code: self.definitions.code(run.code, out),
                rows: run.rows,
                bytes: run.bytes,
                trace: run.trace,
                params: run.params,
            };
            encode(&record, out);
        } else {
            self.lost += 1;
        }
        RunId { epoch: self.feed.epoch, sequence }
    }

    /// Appends the beginning of a stream or forwarded call and draws its id. Nothing of it may leave before `commit`.
    pub fn open(&mut self, open: &Open<'_>) -> RunId {
        let room = self.room_for(open.params.map_or(0, str::len));
        self.sequence += 1;
        let sequence = self.sequence;
        if room {
            let out = &mut self.pending;
            let record = Record {
                kind: Kind::Open,
                client: open.client as u8,
                served_by: open.served_by as u8,
                status: open.status,
                batch: 1,
                sequence,
                time_us: open.time_us,
                duration_us: 0,
                database_us: 0,
                queue_us: 0,
                query: self.definitions.query(open.names, open.query, out),
                key: self.definitions.key(open.names, open.key, out),
                code: 0,
                rows: 0,
                bytes: 0,
                trace: open.trace,
                params: open.params,
            };
            encode(&record, out);
        } else {
            self.lost += 1;
        }
        RunId { epoch: self.feed.epoch, sequence }
    }

    /// Appends the end of what `open` began, in any later turn. Kept and tried again when the disk is full. Other epochs' ids
    /// are ignored: a call ends on the thread where it began.
    pub fn close(&mut self, id: RunId, close: &Close<'_>) {
        if id.epoch != self.feed.epoch {
            return;
        }
        let record = Record {
            kind: Kind::Close,
            client: 0,
            served_by: 0,
            status: close.status,
            batch: 1,
            sequence: id.sequence,
            time_us: close.time_us,
            duration_us: close.duration_us,
            database_us: close.database_us,
            queue_us: close.queue_us.try_into().unwrap_or(u32::MAX),
            query: 0,
            key: 0,
            code: 0,
            rows: close.rows,
            bytes: close.bytes,
            trace: None,
            params: None,
        };
        let forwarded = close.forwarded.map(|f| [f.query.into(), f.version.into(), f.connection.into(), f.key.into()]);
        self.append_close(Retained { sequence: id.sequence, close: record, code: close.code.into(), forwarded });
    }

    fn append_close(&mut self, close: Retained) {
        if !self.room_for(0) {
            self.retain(close);
            return;
        }
        let out = &mut self.pending;
        let mut record = close.close;
        record.code = self.definitions.text(&close.code, out);
        if let Some([query, version, connection, key]) = &close.forwarded {
            record.query = self.definitions.forwarded_query(&Forwarded { query, version, connection, key }, out);
            record.key = self.definitions.text(key, out);
        }
        encode(&record, out);
        self.closing.push(close);
    }

    fn retain(&mut self, close: Retained) {
        // Of opens that were never written there is nothing to close.
        if close.sequence <= self.recorded && self.retained.len() < RETAINED_LIMIT {
            self.retained.push(close);
        }
    }

    /// Hands everything appended since the last commit to the kernel. After an error: answers whose sequence is beyond
    /// `recorded()` must not leave (their ids are drawn again), nor may what they opened go on. Under `onFull: drop` a full
    /// disk is no error: those runs are counted as dropped and their sequences stay missing.
    pub fn commit(&mut self) -> io::Result<()> {
        if !self.retained.is_empty() && self.failed.is_none() {
            for close in std::mem::take(&mut self.retained) {
                self.append_close(close);
            }
        }
        if self.failed.is_none() {
            self.write();
        }
        let Some(error) = self.failed.take() else { return Ok(()) };
        let lost = std::mem::take(&mut self.lost);
        match self.spool.on_full() {
            OnFull::Drop => {
                self.spool.dropped.fetch_add(lost, Ordering::Relaxed);
                self.recorded = self.sequence;
                Ok(())
            }
            OnFull::Reject => {
                self.sequence = self.recorded;
                Err(error)
            }
        }
    }

    /// The last sequence that is in the kernel (or dropped on purpose).
    pub const fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Whether new calls should be refused (`onFull: reject`): the segment is used up and the spool's bound or the disk allows
    /// no other. Cheap; ask at each admission or turn. Calls under way still find room.
    pub fn is_full(&mut self) -> bool {
        if self.segment.header.size - self.offset >= RESERVE || self.next.is_some() {
            return false;
        }
        self.next = self.feed.take_spare();
        self.next.is_none()
    }

    /// Number of the last commit that wrote something. With `durability: disk` the answers of a turn leave when `synced()`
    /// has reached the number that this returned after the turn's commit.
    pub const fn commit_number(&self) -> u64 {
        self.commits
    }

    /// Says up to which commit number the disk has everything. `Err` on `changed()`: the spool is gone.
    pub fn synced(&self) -> watch::Receiver<u64> {
        self.feed.synced.subscribe()
    }

    /// Whether one record with `params` bytes can be appended, after making room for it.
    fn room_for(&mut self, params: usize) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let needed = RECORD_ROOM + params.min(PARAMS_LIMIT);
        let fits = |this: &Self| this.offset + (this.pending.len() + needed) as u64 <= this.segment.header.size;
        if self.pending.len() < BLOCK_TARGET && fits(self) {
            return true;
        }
        self.write();
        if self.failed.is_none() && !fits(self) {
            self.roll();
        }
        self.failed.is_none()
    }

    fn write(&mut self) {
        if self.pending.len() == BLOCK_HEAD {
            return;
        }
        layout::seal(&mut self.pending, self.segment.header.salt, self.offset);
        match self.segment.file.write_all_at(&self.pending, self.offset) {
            Ok(()) => {
                self.offset += self.pending.len() as u64;
                self.recorded = self.sequence;
                self.commits += 1;
                self.closing.clear();
                self.feed.committed(&self.segment, self.offset, self.commits, self.sequence);
                self.spool.wake_keeper();
                if self.next.is_none() && self.segment.header.size - self.offset < self.segment.header.size / 2 {
                    self.next = self.feed.take_spare();
                }
            }
            Err(error) => {
                self.definitions.forget();
                self.lost = self.sequence - self.recorded;
                self.failed = Some(error);
                for close in std::mem::take(&mut self.closing) {
                    self.retain(close);
                }
            }
        }
        self.pending.truncate(BLOCK_HEAD);
        if self.pending.capacity() > 2 * BLOCK_TARGET {
            self.pending.shrink_to(BLOCK_TARGET);
        }
    }

    /// Makes the next segment here and now; if the keeper is at it this very moment, waits for that.
    fn create_next(&self) -> Result<Arc<Segment>, SpoolError> {
        let number = self.segment.header.number + 1;
        for _ in 0..1000 {
            let first = super::spool::lock(&self.feed.segments).len() <= 1;
            match self.spool.create_segment(self.feed.epoch, number, first) {
                Err(SpoolError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                    std::thread::sleep(std::time::Duration::from_micros(100));
                    if let Some(segment) = self.feed.take_spare() {
                        return Ok(segment);
                    }
                }
                other => return other,
            }
        }
        Err(SpoolError::Full)
    }

    fn roll(&mut self) {
        let next = match self.next.take().or_else(|| self.feed.take_spare()) {
            Some(segment) => Ok(segment),
            None => self.create_next(),
        };
        match next {
            Ok(segment) => {
                self.feed.rolled(&self.segment, segment.clone());
                self.segment = segment;
                self.offset = layout::HEADER as u64;
                self.definitions.forget();
                (self.definitions.queries, self.definitions.texts) = (0, 0);
            }
            Err(error) => self.failed = Some(error.into()),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // What was never committed was never answered.
        if let Some(segment) = self.next.take() {
            self.spool.discard(&segment);
        }
        self.feed.finish(&self.segment);
        self.spool.wake_keeper();
    }
}

impl From<SpoolError> for io::Error {
    fn from(error: SpoolError) -> Self {
        match error {
            SpoolError::Full => Self::new(io::ErrorKind::StorageFull, "the run spool is full"),
            SpoolError::Locked => Self::new(io::ErrorKind::ResourceBusy, "the run spool is in use"),
            SpoolError::Io(error) => error,
        }
    }
}

fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    match record.params {
        Some(params) if params.len() > PARAMS_LIMIT => {
            let omitted = format!("{{\"$omitted\":{}}}", params.len());
            Record { params: Some(&omitted), ..*record }.encode(out);
        }
        _ => record.encode(out),
    }
}
