//! The thread-owned recorder. `append`, `open` and `close` only fill a buffer; `commit`, once a turn and before that turn's
//! answers leave, hands it to the kernel by one write(2) (two when a segment is full). May reject: nothing until `commit`,
//! whose error says that runs after `recorded()` are in no file: their answers must not leave.
//!
//! IO: pwrite on a pre-allocated segment; rarely the creation of one, when the keeper thread hasn't one ready.
use super::RunId;
use super::ddl::PARAMS_LIMIT;
use super::layout::{self, BLOCK_HEAD, Kind, Record};
use super::spool::{Feed, Segment, Spool, SpoolError};
use crate::codes::Code;
use crate::plan::snapshot::{OnFull, Snapshot};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
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
/// Snapshots of which a recorder remembers what it has defined. An older one's names are defined again.
const REMEMBERED_SNAPSHOTS: usize = 4;
/// Ends of streams that a full disk kept from being written. More are lost: their runs become `aborted`.
const RETAINED_LIMIT: usize = 16_384;

/// Where a call came from (contract: `ClientClass`, same order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Client {
    /// This machine, Unix sockets included.
    Loopback,
    /// A private, link-local or shared (100.64/10) network.
    Private,
    /// Anything else.
    Public,
}

impl Client {
    /// The class of an address; an IPv4-mapped IPv6 address counts as IPv4.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(a) if a.is_loopback() => Self::Loopback,
            IpAddr::V4(a) if a.is_private() || a.is_link_local() || (a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64) => Self::Private,
            IpAddr::V6(a) if a.is_loopback() => Self::Loopback,
            IpAddr::V6(a) if a.is_unique_local() || a.is_unicast_link_local() => Self::Private,
            _ => Self::Public,
        }
    }
}

/// Which process answered (contract: `ServedBy`, same order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServedBy {
    /// This one.
    DataPlane,
    /// Python alone.
    Gateway,
    /// Python, recorded here.
    Forwarded,
}

/// What a run says of its query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryNames {
    /// Path segment.
    pub name: Box<str>,
    /// 16 hex digits.
    pub version: Box<str>,
    /// Of its connection.
    pub connection: Box<str>,
}

/// Names of one snapshot's queries and keys, at their indices there. Built once a snapshot, shared by all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Queries.
    pub queries: Vec<QueryNames>,
    /// Ids of keys.
    pub keys: Vec<Box<str>>,
}

impl Names {
    /// Names of a snapshot. A connection that isn't there is left empty.
    pub fn of(snapshot: &Snapshot) -> Arc<Self> {
        let connection = |index: u32| snapshot.connections.get(index as usize).map(|c| c.name.as_str().into()).unwrap_or_default();
        Arc::new(Self {
            queries: snapshot
                .queries
                .iter()
                .map(|q| QueryNames {
                    name: q.name.as_str().into(),
                    version: q.version.as_str().into(),
                    connection: connection(q.connection),
                })
                .collect(),
            keys: snapshot.keys.iter().map(|k| k.id.as_str().into()).collect(),
        })
    }
}

/// One whole call. The connection follows from the query.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Of the snapshot that admitted the call: what `query` and `key` are indices of.
    pub names: &'a Arc<Names>,
    /// Index in `names.queries`.
    pub query: Option<u32>,
    /// Index in `names.keys`.
    pub key: Option<u32>,
    /// At its end, µs since 1970.
    pub time_us: u64,
    /// From the request's last byte read to here, µs.
    pub duration_us: u64,
    /// Waiting for a lane, µs.
    pub queue_us: u64,
    /// At the database, µs.
    pub database_us: u64,
    /// HTTP status sent; 499 when the client left first.
    pub status: u16,
    /// Error code.
    pub code: Option<Code>,
    /// Rows of the answer.
    pub rows: u64,
    /// Bytes of the body before compression.
    pub bytes: u64,
    /// Calls that shared the statement; 1: alone.
    pub batch: u16,
    /// W3C trace id.
    pub trace: Option<[u8; 16]>,
    /// Where from.
    pub client: Client,
    /// JSON object, only if the query says `record: params`.
    pub params: Option<&'a str>,
}

/// The beginning of a stream or of a forwarded call. Recorded as `aborted` if no `Close` follows in this process's life.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// As in `Run`.
    pub names: &'a Arc<Names>,
    /// Index in `names.queries`.
    pub query: Option<u32>,
    /// Index in `names.keys`.
    pub key: Option<u32>,
    /// At its beginning, µs since 1970.
    pub time_us: u64,
    /// Of the head that leaves now; 0 when forwarded (not known yet).
    pub status: u16,
    /// W3C trace id.
    pub trace: Option<[u8; 16]>,
    /// Where from.
    pub client: Client,
    /// Who answers.
    pub served_by: ServedBy,
    /// JSON object, only if the query says `record: params`.
    pub params: Option<&'a str>,
}

/// The end of what was opened.
#[derive(Clone, Copy, Debug)]
pub struct Close<'a> {
    /// At its end, µs since 1970.
    pub time_us: u64,
    /// As in `Run`.
    pub duration_us: u64,
    /// As in `Run`.
    pub queue_us: u64,
    /// As in `Run`.
    pub database_us: u64,
    /// As in `Run`.
    pub status: u16,
    /// Error code, empty for none.
    pub code: &'a str,
    /// As in `Run`.
    pub rows: u64,
    /// As in `Run`.
    pub bytes: u64,
    /// What Python said of a forwarded call; None keeps what `Open` said.
    pub forwarded: Option<Forwarded<'a>>,
}

/// Names that come as text in the private headers of Python's answer. Empty: unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forwarded<'a> {
    /// Query.
    pub query: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Its connection.
    pub connection: &'a str,
    /// ApiKey's id.
    pub key: &'a str,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    id: u32,
    generation: u32,
}

struct Remembered {
    names: Arc<Names>,
    queries: Vec<Mark>,
    keys: Vec<Mark>,
}

/// Which names the current segment has defined. Ids begin at 1; a mark counts only in its generation.
struct Definitions {
    generation: u32,
    queries: u32,
    texts: u32,
    snapshots: Vec<Remembered>,
    codes: [Mark; Code::ALL.len()],
    query_ids: HashMap<Box<str>, u32>,
    text_ids: HashMap<Box<str>, u32>,
}

impl Definitions {
    fn new() -> Self {
        Self {
            generation: 1,
            queries: 0,
            texts: 0,
            snapshots: Vec::with_capacity(REMEMBERED_SNAPSHOTS),
            codes: [Mark::default(); Code::ALL.len()],
            query_ids: HashMap::new(),
            text_ids: HashMap::new(),
        }
    }

    /// Nothing is defined (any more).
    fn forget(&mut self) {
        self.generation += 1;
        self.query_ids.clear();
        self.text_ids.clear();
    }

    fn snapshot(&mut self, names: &Arc<Names>) -> Option<&mut Remembered> {
        if self.snapshots.first().is_none_or(|s| !Arc::ptr_eq(&s.names, names)) {
            match self.snapshots.iter().position(|s| Arc::ptr_eq(&s.names, names)) {
                Some(at) => self.snapshots.swap(0, at),
                None => {
                    self.snapshots.truncate(REMEMBERED_SNAPSHOTS - 1);
                    let (queries, keys) = (vec![Mark::default(); names.queries.len()], vec![Mark::default(); names.keys.len()]);
                    self.snapshots.insert(0, Remembered { names: names.clone(), queries, keys });
                }
            }
        }
        self.snapshots.first_mut()
    }

    fn query(&mut self, names: &Arc<Names>, index: Option<u32>, out: &mut Vec<u8>) -> u32 {
        let (generation, next) = (self.generation, self.queries + 1);
        let Some(index) = index else { return 0 };
        let Some(mark) = self.snapshot(names).and_then(|s| s.queries.get_mut(index as usize)) else { return 0 };
        if mark.generation != generation {
            *mark = Mark { id: next, generation };
            if let Some(q) = names.queries.get(index as usize) {
                layout::define_query(out, next, &q.name, &q.version, &q.connection);
            }
            self.queries = next;
            return next;
        }
        mark.id
    }

    fn key(&mut self, names: &Arc<Names>, index: Option<u32>, out: &mut Vec<u8>) -> u32 {
        let (generation, next) = (self.generation, self.texts + 1);
        let Some(index) = index else { return 0 };
        let Some(mark) = self.snapshot(names).and_then(|s| s.keys.get_mut(index as usize)) else { return 0 };
        if mark.generation != generation {
            *mark = Mark { id: next, generation };
            if let Some(key) = names.keys.get(index as usize) {
                layout::define_text(out, next, key);
            }
            self.texts = next;
            return next;
        }
        mark.id
    }

    fn code(&mut self, code: Option<Code>, out: &mut Vec<u8>) -> u32 {
        let Some(code) = code else { return 0 };
        let Some(mark) = self.codes.get_mut(code as usize) else { return 0 };
        if mark.generation != self.generation {
            self.texts += 1;
            *mark = Mark { id: self.texts, generation: self.generation };
            layout::define_text(out, mark.id, code.name());
        }
        mark.id
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        self.texts += 1;
        layout::define_text(out, self.texts, text);
        self.text_ids.insert(text.into(), self.texts);
        self.texts
    }

    fn forwarded_query(&mut self, f: &Forwarded<'_>, out: &mut Vec<u8>) -> u32 {
        if f.query.is_empty() {
            return 0;
        }
        let whole = [f.query, f.version, f.connection].join("\0");
        if let Some(id) = self.query_ids.get(whole.as_str()) {
            return *id;
        }
        self.queries += 1;
        layout::define_query(out, self.queries, f.query, f.version, f.connection);
        self.query_ids.insert(whole.into(), self.queries);
        self.queries
    }
}

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
