//! One connection, on its own thread. Reads are opened read-only and `query_only`, with an authorizer that refuses ATTACH and
//! PRAGMA, so a statement that slipped through the gateway's checks can still change nothing.
//! May reject: as `Failure` says. IO: the database file, opened if it exists, never created.
use super::location::database_path;
use crate::engine::{Ask, Event, Failure, Storage};
use crate::plan::snapshot::ColumnPlan;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, ffi};
use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;

/// Bytes of rows in one event.
const CHUNK: usize = 64 << 10;
/// Virtual machine steps between two looks at the deadline and at the caller.
const STEPS: i32 = 1_000;
/// How long a changed URL file or a replaced database may go unnoticed.
const RECHECK: Duration = Duration::from_millis(250);
/// Prepared statements kept by a connection.
const STATEMENTS: usize = 256;
/// Longest value, statement and row, bytes.
const LENGTH: i32 = 64 << 20;
/// Pauses while another process holds a lock, or the caller takes no rows.
const PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));

/// What the running statement must end for. Of this thread, because SQLite calls back without a context.
pub(super) struct Current {
    pub(super) deadline: Instant,
    /// None: nobody can cut it short (a COMMIT).
    pub(super) events: Option<Sender<Event>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Sets what the next statements of this thread must end for.
pub(super) fn set_current(current: Option<Current>) {
    CURRENT.with(|c| *c.borrow_mut() = current);
}

/// Why the running statement must end, if it must.
pub(super) fn over() -> Option<Failure> {
    CURRENT.with(|current| {
        let current = current.borrow();
        let current = current.as_ref()?;
        if current.events.as_ref().is_some_and(Sender::is_closed) {
            return Some(Failure::Cancelled);
        }
        (Instant::now() >= current.deadline).then_some(Failure::Timeout)
    })
}

/// Waits for another process's lock; false gives up.
fn wait_for_lock(count: i32) -> bool {
    if over().is_some() {
        return false;
    }
    thread::sleep(PAUSES.0.saturating_mul(1 << count.clamp(0, 10)).min(PAUSES.1));
    true
}

/// Maps SQLite's primary result code; twin of the gateway's `failure_of`.
pub(super) fn failure_of(error: &rusqlite::Error, write: bool) -> Failure {
    let Some(code) = error.sqlite_error().map(|e| e.extended_code & 0xff) else { return Failure::Refused(*b"00001") };
    match code {
        ffi::SQLITE_CANTOPEN | ffi::SQLITE_IOERR | ffi::SQLITE_NOTADB | ffi::SQLITE_CORRUPT | ffi::SQLITE_FULL => Failure::Unavailable,
        ffi::SQLITE_INTERRUPT | ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => over().unwrap_or(Failure::Timeout),
        ffi::SQLITE_CONSTRAINT if write => Failure::Constraint,
        other => {
            let digit = |n: i32| b'0' + (n % 10) as u8;
            Failure::Refused([b'0', b'0', digit(other / 100), digit(other / 10), digit(other)])
        }
    }
}

/// Which file the URL names, and which file that is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Stamp {
    fn read(url_file: &str) -> Result<Self, Failure> {
        let url = std::fs::read_to_string(url_file).map_err(|_| Failure::Unavailable)?;
        let path = database_path(url.trim()).map_err(|_| Failure::Unavailable)?;
        let status = std::fs::metadata(&path).map_err(|_| Failure::Unavailable)?;
        Ok(Self { path, device: status.dev(), inode: status.ino() })
    }
}

/// An open connection.
struct Open {
    connection: Connection,
    stamp: Stamp,
    checked: Instant,
}

/// A thread's connection, opened at its first use and again when the URL or the file is another.
pub(super) struct Session {
    url_file: String,
    write: bool,
    open: Option<Open>,
}

impl Session {
    pub(super) const fn new(url_file: String, write: bool) -> Self {
        Self { url_file, write, open: None }
    }

    /// The connection to what the URL names now.
    pub(super) fn connection(&mut self) -> Result<&Connection, Failure> {
        if self.open.as_ref().is_some_and(|open| open.checked.elapsed() >= RECHECK) {
            let stamp = Stamp::read(&self.url_file);
            match (&mut self.open, stamp) {
                (Some(open), Ok(stamp)) if open.stamp == stamp => open.checked = Instant::now(),
                _ => self.open = None,
            }
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let stamp = Stamp::read(&self.url_file)?;
                let connection = open_file(&stamp, self.write).map_err(|error| failure_of(&error, self.write))?;
                Open { connection, stamp, checked: Instant::now() }
            }
        };
        Ok(&self.open.insert(open).connection)
    }

    /// Closes it; the next use opens it anew.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Answers a read: rows into `events`, then what the last event is to be.
    pub(super) fn read(&mut self, ask: &Ask, events: &Sender<Event>) -> Result<Event, Failure> {
        let began = Instant::now();
        let result = self.connection().and_then(|connection| select(connection, ask, events));
        if result == Err(Failure::Unavailable) {
            self.close();
        }
        let more = result?;
        Ok(Event::Done { affected: 0, more, database_us: began.elapsed().as_micros() as u64, repeated: false })
    }
}

fn open_file(stamp: &Stamp, write: bool) -> rusqlite::Result<Connection> {
    let mode = if write { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let connection = Connection::open_with_flags(&stamp.path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_handler(Some(wait_for_lock))?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "foreign_keys", true)?; // off by default in some builds
    if !write {
        connection.pragma_update(None, "query_only", true)?;
    }
    // Shows now, not at the first statement, that it isn't a database.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LENGTH)?;
    connection.set_limit(Limit::SQLITE_LIMIT_WORKER_THREADS, 0)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } | AuthAction::Pragma { .. } => Authorization::Deny,
        AuthAction::Function { function_name: "load_extension" } => Authorization::Deny,
        _ => Authorization::Allow,
    }))?;
    connection.progress_handler(STEPS, Some(|| over().is_some()))?;
    Ok(connection)
}

/// Binds values in DataRow form to the statement's places.
pub(super) fn bind(statement: &mut CachedStatement<'_>, mut values: &[u8]) -> Result<(), Failure> {
    let mut place = 0;
    while let Some((length, rest)) = values.split_first_chunk::<4>() {
        place += 1;
        let length = i32::from_be_bytes(*length);
        let value = match usize::try_from(length) {
            Err(_) => {
                values = rest;
                Value::Null
            }
            Ok(length) => {
                let (bytes, after) = rest.split_at_checked(length).ok_or(Failure::Protocol)?;
                values = after;
                untag(bytes).ok_or(Failure::Protocol)?
            }
        };
        statement.raw_bind_parameter(place, value).map_err(|error| failure_of(&error, false))?;
    }
    // Fewer values than places would silently bind NULL.
    if values.is_empty() && place == statement.parameter_count() { Ok(()) } else { Err(Failure::Protocol) }
}

fn untag(bytes: &[u8]) -> Option<Value> {
    let (tag, bytes) = bytes.split_first()?;
    let text = || std::str::from_utf8(bytes).ok();
    Some(match *tag {
        b'i' => Value::Integer(text()?.parse().ok()?),
        b'r' => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
        b't' => Value::Text(text()?.to_owned()),
        b'b' => Value::Blob(bytes.to_owned()),
        _ => return None,
    })
}

/// Appends one value in DataRow form. Text that is not UTF-8 is refused: it can be no JSON.
fn put(out: &mut Vec<u8>, value: ValueRef<'_>) -> Result<(), Failure> {
    let mut tagged = |tag: Storage, bytes: &[u8]| {
        out.extend_from_slice(&((bytes.len() + 1) as i32).to_be_bytes());
        out.push(tag as u8);
        out.extend_from_slice(bytes);
    };
    match value {
        ValueRef::Null => out.extend_from_slice(&(-1i32).to_be_bytes()),
        ValueRef::Integer(n) => tagged(Storage::Integer, itoa::Buffer::new().format(n).as_bytes()),
        ValueRef::Real(n) => tagged(Storage::Real, &n.to_be_bytes()),
        ValueRef::Text(text) => {
            std::str::from_utf8(text).map_err(|_| Failure::Refused(*b"00001"))?;
            tagged(Storage::Text, text);
        }
        ValueRef::Blob(bytes) => tagged(Storage::Blob, bytes),
    }
    Ok(())
}

/// Whether the statement gives the plan's columns.
pub(super) fn fits(statement: &rusqlite::Statement<'_>, columns: &[ColumnPlan]) -> bool {
    statement.column_count() == columns.len()
        && columns.iter().enumerate().all(|(n, column)| statement.column_name(n).is_ok_and(|name| name == column.name))
}

/// Appends the current row.
pub(super) fn put_row(out: &mut Vec<u8>, row: &rusqlite::Row<'_>, columns: usize) -> Result<(), Failure> {
    for n in 0..columns {
        put(out, row.get_ref(n).map_err(|error| failure_of(&error, false))?)?;
    }
    Ok(())
}

fn select(connection: &Connection, ask: &Ask, events: &Sender<Event>) -> Result<bool, Failure> {
    let failed = |error: rusqlite::Error| failure_of(&error, false);
    let mut statement = connection.prepare_cached(&ask.statement.sql).map_err(failed)?;
    bind(&mut statement, &ask.values)?;
    let (mut bytes, mut count, mut total, mut checked) = (Vec::new(), 0, 0, false);
    let mut more = false;
    {
        let mut rows = statement.raw_query();
        loop {
            if ask.limit.is_some_and(|limit| total >= limit) {
                more = true;
                break;
            }
            let row = rows.next().map_err(failed)?;
            let Some(row) = row else { break };
            if !checked {
                // After the first step: only then SQLite has prepared anew for a changed schema.
                if !fits(row.as_ref(), &ask.columns) {
                    return Err(Failure::Stale);
                }
                checked = true;
            }
            put_row(&mut bytes, row, ask.columns.len())?;
            count += 1;
            total += 1;
            if bytes.len() >= CHUNK {
                send(events, Event::Rows { count, bytes: std::mem::take(&mut bytes) })?;
                count = 0;
            }
        }
    }
    if !checked && !fits(&statement, &ask.columns) {
        return Err(Failure::Stale);
    }
    if count > 0 {
        send(events, Event::Rows { count, bytes })?;
    }
    Ok(more)
}

/// Waits until the caller has room: it is a bound on memory, and by the deadline on the connection.
pub(super) fn send(events: &Sender<Event>, event: Event) -> Result<(), Failure> {
    let mut pause = PAUSES.0;
    let mut event = event;
    loop {
        match events.try_send(event) {
            Ok(()) => return Ok(()),
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => return Err(Failure::Cancelled),
            Err(tokio::sync::mpsc::error::TrySendError::Full(back)) => event = back,
        }
        if let Some(failure) = over() {
            return Err(failure);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}
