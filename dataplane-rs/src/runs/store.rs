//! The embedded store: one SQLite file in WAL mode with synchronous=FULL, so that a commit is on the disk before a segment is freed
//! (a kill loses nothing, and neither does power loss). One writer: whoever holds the data directory's lock.
//! May reject: a locked, full, damaged or foreign file. IO: that file.
use super::ddl::{STORE_DDL, STORE_VERSION};
use super::layout::{self, Entry, Kind, Record};
use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension, Transaction, params};
use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// How long to wait for another process's write lock (only `tailrace` tools take it, shortly).
const BUSY: Duration = Duration::from_secs(5);
/// Names remembered; beyond that they are looked up again.
const NAMES_LIMIT: usize = 65_536;
/// Pages in the WAL before they are copied to the file. More: each page is copied less often; the file grows to 16 MiB.
const CHECKPOINT_PAGES: u32 = 4_000;

const INSERT: &str = "INSERT OR IGNORE INTO runs VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19)";
const INSERT_OPEN: &str = "INSERT OR IGNORE INTO open_runs SELECT ?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19
    WHERE NOT EXISTS (SELECT 1 FROM runs WHERE epoch = ?1 AND seq = ?2)";
const CLOSE: &str = "INSERT OR IGNORE INTO runs SELECT epoch, seq, ?3, ?4, ?5, ?6, coalesce(?7, query), coalesce(?8, query_version),
    coalesce(?9, key), coalesce(?10, connection), ?11, ?12, ?13, ?14, batch, trace, client, served_by, params
    FROM open_runs WHERE epoch = ?1 AND seq = ?2";
const CLOSED: &str = "DELETE FROM open_runs WHERE epoch = ?1 AND seq = ?2";
const ABORT: &str = "INSERT OR IGNORE INTO runs SELECT epoch, seq, time_us, duration_us, queue_us, database_us, query, query_version, key,
    connection, status, ?1, rows, bytes, batch, trace, client, served_by, params FROM open_runs";

/// Why the store takes nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Made by another version of Tailrace.
    #[error("the run store is of version {0}")]
    Version(i64),
    /// SQLite said no.
    #[error("the run store: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl StoreError {
    /// A word for logs: never a path or SQL.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Version(_) => "other version",
            Self::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "locked",
                Some(ErrorCode::DiskFull) => "disk full",
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "damaged",
                Some(ErrorCode::CannotOpen) => "cannot open",
                Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => "not writable",
                Some(ErrorCode::SystemIoFailure) => "IO error",
                _ => "error",
            },
        }
    }
}

/// How far the segments of an epoch are in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Segment number; lower ones are in the store whole.
    pub segment: u32,
    /// Everything before this byte of it is in the store.
    pub position: u64,
}

/// What ids of one segment mean, as ids of the store's names.
#[derive(Debug, Default)]
pub struct SegmentNames {
    // By id: a recorder counts them up from 1.
    queries: Vec<[i64; 3]>,
    texts: Vec<i64>,
}

/// Ids that a segment may define. A recorder gets nowhere near; what claims more is damaged.
const IDS_LIMIT: usize = 1 << 22;

fn set<T: Clone + Default>(names: &mut Vec<T>, id: u32, value: T) {
    let at = id as usize;
    if at >= names.len() && at < IDS_LIMIT {
        names.resize(at + 1, T::default());
    }
    if let Some(slot) = names.get_mut(at) {
        *slot = value;
    }
}

/// The open file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    names: HashMap<Box<str>, i64>,
}

/// Its owner's alone: runs may hold parameters. SQLite gives its other files the mode of this one.
fn private(path: &Path) -> Result<(), rusqlite::Error> {
    let made = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let kept = made.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
    kept.map_err(|_| rusqlite::Error::InvalidPath(path.to_owned()))
}

impl Store {
    /// Opens or makes the file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        private(path)?;
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.set_prepared_statement_cache_capacity(32);
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version != 0 && version != STORE_VERSION {
            return Err(StoreError::Version(version));
        }
        if version == 0 {
            connection.execute_batch(&format!("BEGIN IMMEDIATE; {STORE_DDL} COMMIT;"))?;
        }
        Ok(Self { connection, names: HashMap::new() })
    }

    /// How far an epoch is. None: nothing of it yet.
    pub fn cursor(&self, epoch: u64) -> Result<Option<Cursor>, StoreError> {
        let mut statement = self.connection.prepare_cached("SELECT segment, position FROM cursors WHERE epoch = ?1")?;
        let cursor = |row: &rusqlite::Row<'_>| Ok(Cursor { segment: row.get(0)?, position: row.get::<_, i64>(1)? as u64 });
        Ok(statement.query_row([epoch as i64], cursor).optional()?)
    }

    /// Begins a transaction. Dropped without `commit`, it is as if it hadn't been.
    pub fn batch(&mut self) -> Result<Batch<'_>, StoreError> {
        if self.names.len() > NAMES_LIMIT {
            self.names.clear();
        }
        let transaction = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        Ok(Batch { transaction, names: &mut self.names, opened: HashMap::new(), counts: Counts::default() })
    }

    /// Copies the WAL into the file, so that the file alone is the store. Best effort: a reader may be in the way.
    pub fn checkpoint(&self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

/// A run as the table holds it, apart from its epoch.
struct Row<'a> {
    record: Record<'a>,
    query: [i64; 3],
    key: i64,
    code: i64,
}

impl SegmentNames {
    fn row<'a>(&self, record: Record<'a>) -> Row<'a> {
        let text = |id: u32| self.texts.get(id as usize).copied().unwrap_or(0);
        let query = self.queries.get(record.query as usize).copied().unwrap_or_default();
        Row { query, key: text(record.key), code: text(record.code), record }
    }
}

/// One transaction. After an error the store must be opened anew: what it remembers of names may have been rolled back.
#[derive(Debug)]
pub struct Batch<'a> {
    transaction: Transaction<'a>,
    names: &'a mut HashMap<Box<str>, i64>,
    /// Opened in this transaction and not closed in it yet.
    opened: HashMap<(u64, u64), Opened>,
    counts: Counts,
}

/// What a transaction brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that the store lacked.
    pub runs: u64,
    /// The latest `time_us` among them.
    pub newest_us: u64,
}

#[derive(Debug)]
struct Opened {
    record: Record<'static>,
    query: [i64; 3],
    key: i64,
    params: Option<Box<str>>,
}

fn name(transaction: &Transaction<'_>, names: &mut HashMap<Box<str>, i64>, text: &str) -> Result<i64, StoreError> {
    if text.is_empty() {
        return Ok(0);
    }
    if let Some(id) = names.get(text) {
        return Ok(*id);
    }
    transaction.prepare_cached("INSERT OR IGNORE INTO names (name) VALUES (?1)")?.execute([text])?;
    let id = transaction.prepare_cached("SELECT id FROM names WHERE name = ?1")?.query_row([text], |row| row.get(0))?;
    names.insert(text.into(), id);
    Ok(id)
}

/// Places of `INSERT` that hold numbers, in order; trace is behind the batch, params at the end.
const NUMBERS: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18];
const TRACE: usize = 16;
const PARAMS: usize = 19;

/// An INSERT under way. SQLite keeps bindings between executions, so only what differs from the run before is bound.
struct Inserter<'a> {
    statement: CachedStatement<'a>,
    bound: [Option<i64>; NUMBERS.len()],
    blank: bool,
}

impl<'a> Inserter<'a> {
    fn new(transaction: &'a Transaction<'_>, sql: &str) -> Result<Self, StoreError> {
        Ok(Self { statement: transaction.prepare_cached(sql)?, bound: [None; NUMBERS.len()], blank: false })
    }

    /// How many rows it added: none when the run is there already.
    fn insert(&mut self, epoch: u64, row: &Row<'_>) -> Result<u64, StoreError> {
        let r = &row.record;
        let [query, version, connection] = row.query;
        let numbers = [
            epoch as i64,
            r.sequence as i64,
            r.time_us as i64,
            r.duration_us as i64,
            r.queue_us.into(),
            r.database_us as i64,
            query,
            version,
            row.key,
            connection,
            r.status.into(),
            row.code,
            r.rows as i64,
            r.bytes as i64,
            r.batch.into(),
            r.client.into(),
            r.served_by.into(),
        ];
        for ((place, number), bound) in NUMBERS.into_iter().zip(numbers).zip(&mut self.bound) {
            if *bound != Some(number) {
                self.statement.raw_bind_parameter(place, number)?;
                *bound = Some(number);
            }
        }
        let blank = r.trace.is_none() && r.params.is_none();
        if !(blank && self.blank) {
            self.statement.raw_bind_parameter(TRACE, r.trace.as_ref().map(|t| t.as_slice()))?;
            self.statement.raw_bind_parameter(PARAMS, r.params)?;
            self.blank = blank;
        }
        Ok(self.statement.raw_execute()? as u64)
    }
}

impl Batch<'_> {
    fn define(&mut self, entry: &Entry<'_>, names: &mut SegmentNames) -> Result<(), StoreError> {
        match entry {
            Entry::Query { id, name: query, version, connection } => {
                let mut ids = [0; 3];
                for (id, text) in ids.iter_mut().zip([query, version, connection]) {
                    *id = name(&self.transaction, self.names, text)?;
                }
                set(&mut names.queries, *id, ids);
            }
            Entry::Text { id, text } => {
                set(&mut names.texts, *id, name(&self.transaction, self.names, text)?);
            }
            Entry::Record(_) => {}
        }
        Ok(())
    }

    /// Learns the definitions of a payload whose records are in the store already.
    pub fn learn(&mut self, payload: &[u8], names: &mut SegmentNames) -> Result<(), StoreError> {
        for entry in layout::entries(payload).map_while(Result::ok) {
            self.define(&entry, names)?;
        }
        Ok(())
    }

    /// Adds the records of one payload; raises `sequence` to the highest among them. `Ok(false)`: it ends with what can't be read,
    /// and the rest of it was left out.
    pub fn insert(&mut self, epoch: u64, payload: &[u8], names: &mut SegmentNames, sequence: &mut u64) -> Result<bool, StoreError> {
        let mut entries = layout::entries(payload);
        let mut next = entries.next();
        while let Some(entry) = next {
            match entry {
                Ok(Entry::Record(record)) if record.kind == Kind::Run => {
                    // Runs in a row share one statement.
                    let mut inserter = Inserter::new(&self.transaction, INSERT)?;
                    let mut record = record;
                    next = loop {
                        *sequence = (*sequence).max(record.sequence);
                        self.counts.newest_us = self.counts.newest_us.max(record.time_us);
                        self.counts.runs += inserter.insert(epoch, &names.row(record))?;
                        match entries.next() {
                            Some(Ok(Entry::Record(another))) if another.kind == Kind::Run => record = another,
                            other => break other,
                        }
                    };
                    continue;
                }
                Ok(Entry::Record(record)) => {
                    *sequence = (*sequence).max(record.sequence);
                    self.record(epoch, names.row(record))?;
                }
                Ok(definition) => self.define(&definition, names)?,
                Err(_) => return Ok(false),
            }
            next = entries.next();
        }
        Ok(true)
    }

    fn record(&mut self, epoch: u64, row: Row<'_>) -> Result<(), StoreError> {
        match row.record.kind {
            Kind::Run => self.run(epoch, &row),
            Kind::Open => {
                let params = row.record.params.map(Into::into);
                let opened = Opened { record: Record { params: None, ..row.record }, query: row.query, key: row.key, params };
                self.opened.insert((epoch, row.record.sequence), opened);
                Ok(())
            }
            Kind::Close => self.close(epoch, &row),
        }
    }

    fn run(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.counts.runs += Inserter::new(&self.transaction, INSERT)?.insert(epoch, row)?;
        self.counts.newest_us = self.counts.newest_us.max(row.record.time_us);
        Ok(())
    }

    fn close(&mut self, epoch: u64, close: &Row<'_>) -> Result<(), StoreError> {
        let c = close.record;
        let named = c.query != 0;
        if let Some(opened) = self.opened.remove(&(epoch, c.sequence)) {
            let begun = opened.record;
            let record = Record {
                kind: Kind::Run,
                client: begun.client,
                served_by: begun.served_by,
                batch: begun.batch,
                trace: begun.trace,
                params: opened.params.as_deref(),
                ..c
            };
            let query = if named { close.query } else { opened.query };
            let key = if c.key != 0 { close.key } else { opened.key };
            return self.run(epoch, &Row { record, query, key, code: close.code });
        }
        // Opened in an earlier transaction; if it is closed already, this changes nothing.
        let [query, version, connection] = close.query.map(|id| named.then_some(id));
        let key = (c.key != 0).then_some(close.key);
        let moved = self.transaction.prepare_cached(CLOSE)?.execute(params![
            epoch as i64,
            c.sequence as i64,
            c.time_us as i64,
            c.duration_us as i64,
            c.queue_us,
            c.database_us as i64,
            query,
            version,
            key,
            connection,
            c.status,
            close.code,
            c.rows as i64,
            c.bytes as i64,
        ])?;
        self.counts.runs += moved as u64;
        self.counts.newest_us = self.counts.newest_us.max(c.time_us);
        self.transaction.prepare_cached(CLOSED)?.execute([epoch as i64, c.sequence as i64])?;
        Ok(())
    }

    /// Sets how far an epoch is, together with the runs.
    pub fn set_cursor(&self, epoch: u64, cursor: Cursor) -> Result<(), StoreError> {
        self.transaction
            .prepare_cached("INSERT OR REPLACE INTO cursors (epoch, segment, position) VALUES (?1, ?2, ?3)")?
            .execute(params![epoch as i64, cursor.segment, cursor.position as i64])?;
        Ok(())
    }

    /// Forgets an epoch's cursor, after its last segment is gone.
    pub fn forget_cursor(&self, epoch: u64) -> Result<(), StoreError> {
        self.transaction.prepare_cached("DELETE FROM cursors WHERE epoch = ?1")?.execute([epoch as i64])?;
        Ok(())
    }

    /// Records as aborted whatever is open, and forgets all cursors: to be asked when the last segment of former epochs is gone and
    /// before this process's own runs come in. How many were open.
    pub fn end_former_epochs(&mut self) -> Result<u64, StoreError> {
        let code = name(&self.transaction, self.names, "aborted")?;
        let aborted = self.transaction.execute(ABORT, [code])? as u64;
        self.transaction.execute("DELETE FROM open_runs", [])?;
        self.transaction.execute("DELETE FROM cursors", [])?;
        self.counts.runs += aborted;
        Ok(aborted)
    }

    /// Makes it true, on the disk.
    pub fn commit(self) -> Result<Counts, StoreError> {
        let Self { transaction, opened, counts, .. } = self;
        if !opened.is_empty() {
            let mut inserter = Inserter::new(&transaction, INSERT_OPEN)?;
            for ((epoch, _), Opened { record, query, key, params }) in opened {
                let record = Record { params: params.as_deref(), ..record };
                inserter.insert(epoch, &Row { record, query, key, code: 0 })?;
            }
        }
        transaction.commit()?;
        Ok(counts)
    }
}
