//! The embedded store: one SQLite file in WAL mode with synchronous=FULL, so that a commit is on the disk before a segment is freed
//! (a kill loses nothing, and neither does power loss). One writer: whoever holds the data directory's lock.
//! A few runs become rows; the many of a busy transaction become blocks of columns, which cost far less each.
//! May reject: a locked, full, damaged or foreign file. IO: that file.
use super::block::{self, Block, Extent, RUNS_MOST, Unpacked};
use super::ddl::{STORE_DDL, STORE_VERSION};
use super::store::{Committed, Cursor, Ended, Row, Store, StoreError};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
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

const INSERT_BLOCK: &str = "INSERT INTO run_blocks VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)";
/// The one block of an epoch that may hold a sequence.
const BLOCK_AT: &str = "SELECT first, last, count, keys, queries, body FROM run_blocks WHERE epoch = ?1 AND first <= ?2
    ORDER BY first DESC LIMIT 1";
const HIGHEST: &str = "SELECT max(coalesce((SELECT max(last) FROM run_blocks WHERE epoch = ?1), 0),
    coalesce((SELECT max(seq) FROM runs WHERE epoch = ?1), 0))";

/// Fewer runs of an epoch in one transaction become rows: a block costs as much as a few of them.
const BLOCK_LEAST: usize = 64;
/// Epochs whose highest sequence is remembered; beyond that it is looked up again.
const EPOCHS_LIMIT: usize = 1024;

/// The file, open or not.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    connection: Option<Connection>,
    names: HashMap<Box<str>, i64>,
    counts: Committed,
    pending: Pending,
    /// By epoch: above it the store has no whole run, so that nothing can be there twice.
    highest: HashMap<u64, i64>,
}

/// Runs of the transaction under way that aren't in the store yet.
#[derive(Debug, Default)]
struct Pending {
    epoch: u64,
    block: Block,
    keys: Vec<u8>,
    queries: Vec<u8>,
    body: Vec<u8>,
}

/// Its owner's alone: runs may hold parameters. SQLite gives its other files the mode of this one.
fn private(path: &Path) -> Result<(), rusqlite::Error> {
    let made = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let kept = made.and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
    kept.map_err(|_| rusqlite::Error::InvalidPath(path.to_owned()))
}

fn open(path: &Path) -> Result<Connection, StoreError> {
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
    Ok(connection)
}

impl Embedded {
    /// Of this file, which is made when it is first needed.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            connection: None,
            names: HashMap::new(),
            counts: Committed::default(),
            pending: Pending::default(),
            highest: HashMap::new(),
        }
    }

    fn connected(&mut self) -> Result<&Connection, StoreError> {
        if self.connection.is_none() {
            self.connection = Some(open(&self.path)?);
        }
        self.open()
    }

    fn open(&self) -> Result<&Connection, StoreError> {
        self.connection.as_ref().ok_or(StoreError::Closed)
    }

    /// The highest sequence of an epoch before this transaction brought any.
    fn highest(&mut self, epoch: u64) -> Result<i64, StoreError> {
        if let Some(highest) = self.highest.get(&epoch) {
            return Ok(*highest);
        }
        if self.highest.len() >= EPOCHS_LIMIT {
            self.highest.clear();
        }
        let highest = self.open()?.prepare_cached(HIGHEST)?.query_row([epoch as i64], |row| row.get(0))?;
        self.highest.insert(epoch, highest);
        Ok(highest)
    }

    /// Adds a run that can't be in a block.
    #[cold]
    fn single(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        let sequence = row.record.sequence as i64;
        if self.pending.block.sequences().last().is_some_and(|&last| sequence <= last) {
            self.flush()?;
        }
        let highest = self.highest(epoch)?;
        let connection = self.open()?;
        if sequence > highest || !Packed::default().has(connection, epoch, sequence)? {
            let added = Inserter::new(connection, INSERT)?.insert(epoch, row)?;
            self.counts.runs += added;
        }
        Ok(())
    }

    /// Adds what is pending: as a block if it is many runs that can't be there yet, else one by one.
    fn flush(&mut self) -> Result<(), StoreError> {
        let epoch = self.pending.epoch;
        let Some(extent) = self.pending.block.extent() else { return Ok(()) };
        let highest = self.highest(epoch)?;
        let connection = self.connection.as_ref().ok_or(StoreError::Closed)?;
        let Pending { block, keys, queries, body, .. } = &mut self.pending;
        block.keys(keys);
        block.queries(queries);
        block.body(body);
        let Extent { first, last, count, times, statuses } = extent;
        if count >= BLOCK_LEAST && first > highest {
            connection.prepare_cached(INSERT_BLOCK)?.execute(params![
                epoch as i64,
                first,
                last,
                count as i64,
                times.0,
                times.1,
                statuses.0,
                statuses.1,
                &*keys,
                &*queries,
                &*body
            ])?;
            self.counts.runs += count as u64;
        } else {
            let runs = block::decode(count, keys, queries, body).map_err(|_| StoreError::Damaged)?;
            self.counts.runs += one_by_one(connection, epoch, highest, &runs)?;
        }
        self.highest.insert(epoch, highest.max(last));
        Ok(())
    }
}

/// Adds runs as rows; how many the store lacked.
fn one_by_one(connection: &Connection, epoch: u64, highest: i64, runs: &[Unpacked]) -> Result<u64, StoreError> {
    let mut inserter = Inserter::new(connection, INSERT)?;
    let (mut added, mut packed) = (0, Packed::default());
    for run in runs {
        let [sequence, ..] = run.numbers;
        if sequence > highest || !packed.has(connection, epoch, sequence)? {
            added += inserter.insert_unpacked(epoch, run)?;
        }
    }
    Ok(added)
}

/// What a block holds, asked about rising sequences.
#[derive(Default)]
struct Packed {
    range: (i64, i64),
    /// Empty: all of the range.
    sequences: Vec<i64>,
}

impl Packed {
    fn has(&mut self, connection: &Connection, epoch: u64, sequence: i64) -> Result<bool, StoreError> {
        if !(self.range.0..=self.range.1).contains(&sequence) {
            let found = connection.prepare_cached(BLOCK_AT)?.query_row([epoch as i64, sequence], |row| {
                let blob = |at: usize| row.get::<_, Vec<u8>>(at);
                Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?, blob(3)?, blob(4)?, blob(5)?))
            });
            let Some((first, last, count, keys, queries, body)) = found.optional()? else { return Ok(false) };
            self.range = (first, last);
            self.sequences.clear();
            if last - first >= count {
                let runs = block::decode(count as usize, &keys, &queries, &body).map_err(|_| StoreError::Damaged)?;
                self.sequences.extend(runs.iter().map(|run| run.numbers[0]));
            }
        }
        Ok((self.range.0..=self.range.1).contains(&sequence)
            && (self.sequences.is_empty() || self.sequences.binary_search(&sequence).is_ok()))
    }
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
    fn new(connection: &'a Connection, sql: &str) -> Result<Self, StoreError> {
        Ok(Self { statement: connection.prepare_cached(sql)?, bound: [None; NUMBERS.len()], blank: false })
    }

    fn insert_unpacked(&mut self, epoch: u64, run: &Unpacked) -> Result<u64, StoreError> {
        let [seq, time, duration, queue, database, _, _, status, code, rows, bytes, batch, client, served_by] = run.numbers;
        let ([query, version, connection], key) = (run.query.map(i64::from), i64::from(run.key));
        let numbers = [
            epoch as i64,
            seq,
            time,
            duration,
            queue,
            database,
            query,
            version,
            key,
            connection,
            status,
            code,
            rows,
            bytes,
            batch,
            client,
            served_by,
        ];
        self.insert_numbers(numbers, run.trace.as_ref(), None)
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
        self.insert_numbers(numbers, r.trace.as_ref(), r.params)
    }

    fn insert_numbers(&mut self, numbers: [i64; NUMBERS.len()], trace: Option<&[u8; 16]>, params: Option<&str>) -> Result<u64, StoreError> {
        for ((place, number), bound) in NUMBERS.into_iter().zip(numbers).zip(&mut self.bound) {
            if *bound != Some(number) {
                self.statement.raw_bind_parameter(place, number)?;
                *bound = Some(number);
            }
        }
        let blank = trace.is_none() && params.is_none();
        if !(blank && self.blank) {
            self.statement.raw_bind_parameter(TRACE, trace.map(|t| t.as_slice()))?;
            self.statement.raw_bind_parameter(PARAMS, params)?;
            self.blank = blank;
        }
        Ok(self.statement.raw_execute()? as u64)
    }
}

impl Store for Embedded {
    fn cursor(&mut self, epoch: u64) -> Result<Option<Cursor>, StoreError> {
        let mut statement = self.connected()?.prepare_cached("SELECT segment, position FROM cursors WHERE epoch = ?1")?;
        let cursor = |row: &rusqlite::Row<'_>| Ok(Cursor { segment: row.get(0)?, position: row.get::<_, i64>(1)? as u64 });
        Ok(statement.query_row([epoch as i64], cursor).optional()?)
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        self.counts = Committed::default();
        self.pending.block.clear();
        Ok(self.connected()?.execute_batch("BEGIN IMMEDIATE")?)
    }

    fn name(&mut self, text: &str) -> Result<i64, StoreError> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(id) = self.names.get(text) {
            return Ok(*id);
        }
        let connection = self.open()?;
        connection.prepare_cached("INSERT OR IGNORE INTO names (name) VALUES (?1)")?.execute([text])?;
        let id = connection.prepare_cached("SELECT id FROM names WHERE name = ?1")?.query_row([text], |row| row.get(0))?;
        self.names.insert(text.into(), id);
        Ok(id)
    }

    fn runs(&mut self, epoch: u64, rows: &mut dyn Iterator<Item = Row<'_>>) -> Result<(), StoreError> {
        // Before rows of this transaction could raise it.
        self.highest(epoch)?;
        if self.pending.epoch != epoch {
            self.flush()?;
            self.pending.epoch = epoch;
        }
        for row in rows {
            if self.pending.block.len() >= RUNS_MOST {
                self.flush()?;
            }
            if !self.pending.block.push(&row) {
                self.single(epoch, &row)?;
            }
        }
        Ok(())
    }

    fn joined(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.highest(epoch)?;
        let added = Inserter::new(self.open()?, INSERT)?.insert(epoch, row)?;
        self.counts.runs += added;
        Ok(())
    }

    fn opened(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        Inserter::new(self.open()?, INSERT_OPEN)?.insert(epoch, row)?;
        Ok(())
    }

    fn closed(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        // Opened in an earlier transaction; if it is closed already, this changes nothing.
        let c = row.record;
        let [query, version, connection] = row.query.map(|id| (c.query != 0).then_some(id));
        let key = (c.key != 0).then_some(row.key);
        let moved = self.open()?.prepare_cached(CLOSE)?.execute(params![
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
            row.code,
            c.rows as i64,
            c.bytes as i64,
        ])?;
        self.open()?.prepare_cached(CLOSED)?.execute([epoch as i64, c.sequence as i64])?;
        self.counts.runs += moved as u64;
        Ok(())
    }

    fn end(&mut self, epochs: Ended<'_>) -> Result<(), StoreError> {
        let code = self.name("aborted")?;
        let connection = self.open()?;
        let mut aborted = 0;
        match epochs {
            // One recorder at a time writes this file: whatever is open, by whomever, is over.
            Ended::Former => {
                aborted += connection.execute(ABORT, [code])?;
                connection.execute("DELETE FROM open_runs", [])?;
                connection.execute("DELETE FROM cursors", [])?;
            }
            Ended::Own(epochs) => {
                for epoch in epochs {
                    aborted += connection.execute(&format!("{ABORT} WHERE epoch = ?2"), [code, *epoch as i64])?;
                    connection.execute("DELETE FROM open_runs WHERE epoch = ?1", [*epoch as i64])?;
                    connection.execute("DELETE FROM cursors WHERE epoch = ?1", [*epoch as i64])?;
                }
            }
        }
        self.counts.aborted += aborted as u64;
        Ok(())
    }

    fn set_cursor(&mut self, epoch: u64, cursor: Option<Cursor>) -> Result<(), StoreError> {
        let connection = self.open()?;
        match cursor {
            Some(cursor) => connection
                .prepare_cached("INSERT OR REPLACE INTO cursors (epoch, segment, position) VALUES (?1, ?2, ?3)")?
                .execute(params![epoch as i64, cursor.segment, cursor.position as i64])?,
            None => connection.prepare_cached("DELETE FROM cursors WHERE epoch = ?1")?.execute([epoch as i64])?,
        };
        Ok(())
    }

    fn commit(&mut self) -> Result<Committed, StoreError> {
        self.flush()?;
        self.open()?.execute_batch("COMMIT")?;
        Ok(self.counts)
    }

    fn forget_names(&mut self) -> bool {
        if self.names.len() > NAMES_LIMIT {
            self.names.clear();
        }
        // Numbers are those of the file, which keeps them.
        false
    }

    fn reset(&mut self) {
        self.connection = None;
        // Some may have been rolled back.
        self.names.clear();
        self.highest.clear();
        self.pending.block.clear();
    }

    fn finish(&mut self) {
        // The file alone is then the store. A reader may be in the way.
        if let Some(connection) = &self.connection {
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}
