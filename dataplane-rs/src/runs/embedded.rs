//! The embedded store: one SQLite file in WAL mode with synchronous=FULL, so that a commit is on the disk before a segment is freed
//! (a kill loses nothing, and neither does power loss). One writer: whoever holds the data directory's lock.
//! May reject: a locked, full, damaged or foreign file. IO: that file.
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

/// The file, open or not.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    connection: Option<Connection>,
    names: HashMap<Box<str>, i64>,
    counts: Committed,
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
        Self { path: path.to_owned(), connection: None, names: HashMap::new(), counts: Committed::default() }
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

impl Store for Embedded {
    fn cursor(&mut self, epoch: u64) -> Result<Option<Cursor>, StoreError> {
        let mut statement = self.connected()?.prepare_cached("SELECT segment, position FROM cursors WHERE epoch = ?1")?;
        let cursor = |row: &rusqlite::Row<'_>| Ok(Cursor { segment: row.get(0)?, position: row.get::<_, i64>(1)? as u64 });
        Ok(statement.query_row([epoch as i64], cursor).optional()?)
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        self.counts = Committed::default();
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
        let mut inserter = Inserter::new(self.open()?, INSERT)?;
        let mut added = 0;
        for row in rows {
            added += inserter.insert(epoch, &row)?;
        }
        drop(inserter);
        self.counts.runs += added;
        Ok(())
    }

    fn joined(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
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
    }

    fn finish(&mut self) {
        // The file alone is then the store. A reader may be in the way.
        if let Some(connection) = &self.connection {
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}
