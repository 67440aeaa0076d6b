//! The PostgreSQL store, which several pods may share: a transaction brings rows by COPY into a temporary table and from there into
//! `tailrace.runs`, where (epoch, seq) is unique and what is there stays. So nothing is lost or doubled when either side dies: what
//! isn't known to be committed is sent again. Which segments are in, only this process remembers; after a restart the spool is sent again.
//!
//! Its own connection, with the deadlines below; the URL is read anew for each. May reject: everything of `StoreError` but SQLite's.
//! IO: that connection, blocking (the shipper's thread drives it).
use super::copy::{self, COLUMNS, Part, Texts};
use super::ddl::{POSTGRES_STORE_DDL, POSTGRES_STORE_VERSION};
use super::store::{Committed, Cursor, Ended, Row, Store, StoreError};
use crate::engine::postgres::wire::{self, WireError};
use crate::engine::postgres::{Access, ConnectError, Connection, Source, connect};
use crate::plan::snapshot::{ConnectionPlan, Engine, Pooler};
use bytes::{Buf, BytesMut};
use postgres_protocol::message::{backend, frontend};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

/// A connection, with login and the tables' look-up or making.
const CONNECT: Duration = Duration::from_secs(15);
/// `statement_timeout`: a lock or a full disk holds a transaction up no longer than this.
const STATEMENT: Duration = Duration::from_secs(30);
/// One write of rows, or one commit with its answer.
const EXCHANGE: Duration = Duration::from_secs(60);
/// Bytes that are gathered before they are written.
const GATHER: usize = 256 << 10;
/// Bytes of one message from the server; notices and errors are small.
const MOST: usize = 256 << 10;
/// Names remembered; beyond that all are forgotten and learnt again.
const NAMES_LIMIT: usize = 262_144;

/// Which rows an INSERT of the closing statements counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Runs,
    Aborted,
    Nothing,
}

/// The store and its connection.
pub struct Postgres {
    source: Source,
    runtime: Option<Runtime>,
    connection: Option<Connection>,
    /// Generation of the URL file that was tried last.
    tried: u64,
    texts: Texts,
    out: BytesMut,
    /// This transaction has begun its COPY.
    copying: bool,
    /// Rows of each `Part` in this transaction.
    parts: [u64; 4],
    ended: Vec<u64>,
    /// In the store, as far as this process knows.
    cursors: HashMap<u64, Cursor>,
    moved: Vec<(u64, Option<Cursor>)>,
}

impl Postgres {
    /// Of the database whose URL stands in the file.
    pub fn new(url_file: &Path) -> Self {
        let plan = ConnectionPlan {
            name: String::new(),
            engine: Engine::Postgres,
            url_file: url_file.to_string_lossy().into_owned(),
            ca_file: None,
            certificate_file: None,
            key_file: None,
            max_connections: 1,
            statement_timeout_ms: STATEMENT.as_millis() as u64,
            session: Vec::new(),
            pooler: Pooler::None,
            idempotency_table: None,
        };
        Self {
            source: Source::new(&plan),
            runtime: None,
            connection: None,
            tried: 0,
            texts: Texts::default(),
            out: BytesMut::new(),
            copying: false,
            parts: [0; 4],
            ended: Vec::new(),
            cursors: HashMap::new(),
            moved: Vec::new(),
        }
    }

    fn connect(&mut self) -> Result<(), StoreError> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ConnectError::from)?,
        };
        self.tried = self.source.generation();
        let opened = runtime.block_on(async {
            timeout(CONNECT, async {
                let target = self.source.read().map_err(ConnectError::from)?;
                let mut connection = connect(&target, Access::ReadWrite, Instant::now() + CONNECT).await?;
                prepare(&mut connection).await?;
                Ok(connection)
            })
            .await
            .unwrap_or(Err(StoreError::Timeout))
        });
        self.runtime = Some(runtime);
        self.connection = Some(opened?);
        Ok(())
    }

    /// Appends rows; the first of a transaction begins it.
    fn rows(&mut self, part: Part, epoch: u64, rows: &mut dyn Iterator<Item = Row<'_>>) -> Result<(), StoreError> {
        if !self.copying {
            self.copying = true;
            let copy = format!("BEGIN; COPY pg_temp.incoming (kind, {COLUMNS}) FROM STDIN (FORMAT binary)");
            frontend::query(&copy, &mut self.out).map_err(|_| StoreError::Protocol)?;
            copy::header(&mut self.out);
        }
        let frame = copy::begin(&mut self.out);
        let mut count = 0;
        for row in rows {
            copy::row(part, epoch, &row, &self.texts, &mut self.out);
            count += 1;
        }
        copy::end(&mut self.out, frame);
        if let Some(all) = self.parts.get_mut(part as usize) {
            *all += count;
        }
        if self.out.len() >= GATHER { self.write() } else { Ok(()) }
    }

    fn row(&mut self, part: Part, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.rows(part, epoch, &mut std::iter::once(*row))
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let (Some(runtime), Some(connection)) = (&self.runtime, &mut self.connection) else { return Err(StoreError::Closed) };
        let written = runtime.block_on(async { timeout(EXCHANGE, connection.transport.write_all(&mut self.out)).await });
        written.map_err(|_| StoreError::Timeout)?.map_err(|_| StoreError::Lost)
    }

    /// What moves the rows to where they belong, and ends the transaction; what each INSERT of it counts.
    fn closing(&self) -> (String, Vec<Counted>) {
        let [runs, joined, closed, opened] = self.parts;
        let (mut sql, mut counted) = (String::new(), Vec::new());
        if runs + joined > 0 {
            let kinds = format!("kind IN ({}, {})", Part::Run as i16, Part::Joined as i16);
            let _ = write!(
                sql,
                "INSERT INTO tailrace.runs ({COLUMNS}) SELECT {COLUMNS} FROM pg_temp.incoming WHERE {kinds} ON CONFLICT DO NOTHING;"
            );
            counted.push(Counted::Runs);
        }
        if closed > 0 {
            let kind = Part::Closed as i16;
            let _ = write!(
                sql,
                "INSERT INTO tailrace.runs ({COLUMNS}) SELECT o.epoch, o.seq, c.time, c.duration_us, c.queue_us, c.database_us, c.rows, \
                 c.bytes, o.batch, c.status, coalesce(c.query, o.query), coalesce(c.query_version, o.query_version), \
                 coalesce(c.key, o.key), coalesce(c.connection, o.connection), c.code, o.client, o.served_by, o.trace, o.params \
                 FROM pg_temp.incoming c JOIN tailrace.open_runs o USING (epoch, seq) WHERE c.kind = {kind} ON CONFLICT DO NOTHING;"
            );
            counted.push(Counted::Runs);
        }
        if joined + closed > 0 {
            let kinds = format!("c.kind IN ({}, {})", Part::Joined as i16, Part::Closed as i16);
            let _ = write!(
                sql,
                "DELETE FROM tailrace.open_runs o USING pg_temp.incoming c WHERE {kinds} AND o.epoch = c.epoch AND o.seq = c.seq;"
            );
        }
        if opened > 0 {
            let kind = Part::Opened as i16;
            let _ = write!(
                sql,
                "INSERT INTO tailrace.open_runs ({COLUMNS}) SELECT {COLUMNS} FROM pg_temp.incoming i WHERE kind = {kind} AND NOT EXISTS \
                 (SELECT FROM tailrace.runs r WHERE r.epoch = i.epoch AND r.seq = i.seq) ON CONFLICT DO NOTHING;"
            );
            counted.push(Counted::Nothing);
        }
        if !self.ended.is_empty() {
            let epochs = self.ended.iter().map(|epoch| (*epoch as i64).to_string()).collect::<Vec<_>>().join(", ");
            let aborted = COLUMNS.replace(" code,", " 'aborted',");
            let _ = write!(
                sql,
                "WITH gone AS (DELETE FROM tailrace.open_runs WHERE epoch IN ({epochs}) RETURNING {COLUMNS}) \
                 INSERT INTO tailrace.runs ({COLUMNS}) SELECT {aborted} FROM gone ON CONFLICT DO NOTHING;"
            );
            counted.push(Counted::Aborted);
        }
        sql.push_str("COMMIT");
        (sql, counted)
    }

    fn clear(&mut self) {
        self.copying = false;
        self.parts = [0; 4];
        self.ended.clear();
        self.moved.clear();
        self.out.clear();
    }
}

/// Makes the tables if there are none, checks their version, and makes the session's own table.
async fn prepare(connection: &mut Connection) -> Result<(), StoreError> {
    // A commit that the server may forget must not free a segment.
    let safe =
        "SELECT pg_catalog.set_config('synchronous_commit', 'on', false) WHERE pg_catalog.current_setting('synchronous_commit') = 'off'";
    let look = "SELECT pg_catalog.current_setting('server_encoding'), pg_catalog.to_regclass('tailrace.store') IS NOT NULL";
    let rows = connection.simple(&format!("{look}; {safe}")).await?;
    let mut values = rows.first().map(|row| wire::values(row)).ok_or(StoreError::Protocol)?;
    let encoding = values.next().flatten();
    if !matches!(encoding, Some(b"UTF8" | b"SQL_ASCII")) {
        return Err(StoreError::Encoding);
    }
    if values.next().flatten() != Some(b"t") {
        connection.simple(&format!("BEGIN; {POSTGRES_STORE_DDL} COMMIT")).await?;
    }
    let rows = connection.simple("SELECT version FROM tailrace.store").await?;
    let version = rows.first().and_then(|row| std::str::from_utf8(wire::values(row).next()??).ok()?.parse::<i64>().ok());
    if version != Some(POSTGRES_STORE_VERSION) {
        return Err(StoreError::Version(version.unwrap_or(0)));
    }
    // Without NOT NULL, which names of ends may be.
    let incoming = format!(
        "CREATE TEMPORARY TABLE incoming ON COMMIT DELETE ROWS AS SELECT 0::int2 AS kind, {COLUMNS} FROM tailrace.runs WITH NO DATA"
    );
    connection.simple(&incoming).await?;
    Ok(())
}

/// Reads until the server has said `ready` times that it is; the tags of all INSERTs.
async fn answers(connection: &mut Connection, mut ready: u32) -> Result<Vec<u64>, StoreError> {
    let (mut inserted, mut refused) = (Vec::new(), None);
    while ready > 0 {
        let Some(frame) = wire::frame(&connection.input, MOST)? else {
            match connection.transport.read_some(&mut connection.input, 8 << 10).await {
                Ok(1..) => continue,
                // Its last word says more.
                Ok(0) | Err(_) => return Err(refused.unwrap_or(StoreError::Lost)),
            }
        };
        match frame.tag {
            backend::ERROR_RESPONSE_TAG => {
                let error = wire::server_error(frame.body)?;
                refused = refused.or(Some(StoreError::Refused(error.code)));
            }
            backend::COMMAND_COMPLETE_TAG => {
                if let Some(rest) = frame.body.strip_prefix(b"INSERT 0 ") {
                    let digits = rest.split(|byte| *byte == 0).next().and_then(|digits| std::str::from_utf8(digits).ok());
                    inserted.push(digits.and_then(|digits| digits.parse().ok()).ok_or(StoreError::Protocol)?);
                }
            }
            backend::READY_FOR_QUERY_TAG => ready -= 1,
            _ => {}
        }
        let size = frame.size();
        connection.input.advance(size);
    }
    refused.map_or(Ok(inserted), Err)
}

impl From<WireError> for StoreError {
    fn from(_: WireError) -> Self {
        Self::Protocol
    }
}

impl Store for Postgres {
    fn cursor(&mut self, epoch: u64) -> Result<Option<Cursor>, StoreError> {
        Ok(self.cursors.get(&epoch).copied())
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        self.clear();
        match &self.connection {
            None => self.connect(),
            // The Secret changed. The old session is good until the new one stands.
            Some(connection) if self.source.generation() != connection.generation && self.source.generation() != self.tried => {
                let old = self.connection.take();
                if self.connect().is_err() {
                    self.connection = old;
                }
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    fn name(&mut self, text: &str) -> Result<i64, StoreError> {
        Ok(self.texts.number(text))
    }

    fn runs(&mut self, epoch: u64, rows: &mut dyn Iterator<Item = Row<'_>>) -> Result<(), StoreError> {
        self.rows(Part::Run, epoch, rows)
    }

    fn joined(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.row(Part::Joined, epoch, row)
    }

    fn opened(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.row(Part::Opened, epoch, row)
    }

    fn closed(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError> {
        self.row(Part::Closed, epoch, row)
    }

    fn end(&mut self, epochs: Ended<'_>) -> Result<(), StoreError> {
        if let Ended::Own(epochs) = epochs {
            self.ended.extend_from_slice(epochs);
            self.moved.extend(epochs.iter().map(|epoch| (*epoch, None)));
        }
        Ok(())
    }

    fn set_cursor(&mut self, epoch: u64, cursor: Option<Cursor>) -> Result<(), StoreError> {
        self.moved.push((epoch, cursor));
        Ok(())
    }

    fn commit(&mut self) -> Result<Committed, StoreError> {
        let mut committed = Committed::default();
        let copied = self.copying;
        if copied || !self.ended.is_empty() {
            let (mut sql, counted) = self.closing();
            if copied {
                copy::trailer(&mut self.out);
            } else {
                sql.insert_str(0, "BEGIN; ");
            }
            frontend::query(&sql, &mut self.out).map_err(|_| StoreError::Protocol)?;
            self.write()?;
            let (Some(runtime), Some(connection)) = (&self.runtime, &mut self.connection) else { return Err(StoreError::Closed) };
            let exchange = async { timeout(EXCHANGE, answers(connection, 1 + u32::from(copied))).await };
            let inserted = runtime.block_on(exchange).map_err(|_| StoreError::Timeout)??;
            if inserted.len() != counted.len() {
                return Err(StoreError::Protocol);
            }
            for (rows, counted) in inserted.into_iter().zip(counted) {
                match counted {
                    Counted::Runs => committed.runs += rows,
                    Counted::Aborted => committed.aborted += rows,
                    Counted::Nothing => {}
                }
            }
        }
        for (epoch, cursor) in self.moved.drain(..) {
            match cursor {
                Some(cursor) => drop(self.cursors.insert(epoch, cursor)),
                None => drop(self.cursors.remove(&epoch)),
            }
        }
        self.clear();
        Ok(committed)
    }

    fn forget_names(&mut self) -> bool {
        let many = self.texts.len() > NAMES_LIMIT;
        if many {
            self.texts.clear();
        }
        many
    }

    fn reset(&mut self) {
        self.connection = None;
        self.clear();
    }
}
