//! Where runs end up: what a store is to the shipper, whichever it is. May reject: nothing by itself. IO: none; stores do it.
use super::embedded::Embedded;
use super::layout::Record;
use super::postgres::Postgres;
use crate::engine::postgres::ConnectError;
use rusqlite::ErrorCode;
use std::path::PathBuf;

/// Which store, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A SQLite file of this data directory.
    Embedded(PathBuf),
    /// A PostgreSQL database that other pods may share; the file holds its URL.
    Postgres(PathBuf),
}

impl Destination {
    /// The store. Connects to nothing yet.
    pub fn store(&self) -> Box<dyn Store> {
        match self {
            Self::Embedded(path) => Box::new(Embedded::new(path)),
            Self::Postgres(url_file) => Box::new(Postgres::new(url_file)),
        }
    }
}

/// Why the store takes nothing. No variant carries a path, SQL, a value or a server's message.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Made by another version of Tailrace.
    #[error("the run store is of version {0}")]
    Version(i64),
    /// SQLite said no.
    #[error("the run store: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// No session with PostgreSQL.
    #[error("the run store: {0}")]
    Connect(#[from] ConnectError),
    /// PostgreSQL's refusal (SQLSTATE).
    #[error("the run store refuses: {}", String::from_utf8_lossy(.0))]
    Refused([u8; 5]),
    /// The connection broke.
    #[error("the run store's connection broke")]
    Lost,
    /// It took longer than it may.
    #[error("the run store did not answer in time")]
    Timeout,
    /// What it sent cannot be read.
    #[error("the run store does not speak PostgreSQL's protocol")]
    Protocol,
    /// The database's encoding cannot hold every text.
    #[error("the run store's database is not encoded in UTF8")]
    Encoding,
    /// A block of runs cannot be read.
    #[error("the run store is damaged")]
    Damaged,
    /// Asked for something before `begin`.
    #[error("the run store is not open")]
    Closed,
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
            Self::Connect(error) => match error {
                ConnectError::Target(_) => "no usable URL",
                ConnectError::Tls(_) | ConnectError::NoTls | ConnectError::Handshake => "TLS",
                ConnectError::Unresolved => "host not found",
                ConnectError::Io(_) => "not connected",
                ConnectError::Timeout => "not connected in time",
                ConnectError::Auth(_) => "credentials",
                ConnectError::Refused(_) if error.is_credentials() => "credentials",
                ConnectError::Refused(_) if error.is_full() => "no connection free",
                ConnectError::Refused(_) => "refused",
                ConnectError::Unsuitable => "no suitable host",
                ConnectError::Unpinned(_) => "a session setting",
                ConnectError::Protocol => "not PostgreSQL",
            },
            Self::Refused(code) => match code {
                b"42501" => "no permission",
                b"25006" => "read only",
                b"53100" => "disk full",
                b"57014" => "not in time",
                [b'5', b'7', b'P', ..] => "shutting down",
                b"42P01" | b"42703" | b"3F000" => "a table is missing",
                _ => "refused",
            },
            Self::Lost => "connection lost",
            Self::Timeout => "not in time",
            Self::Protocol => "not PostgreSQL",
            Self::Encoding => "database not in UTF8",
            Self::Damaged => "damaged",
            Self::Closed => "error",
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

/// A run, or a part of one, with its names as the store numbers them.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// As it was recorded. Its own ids say only whether a name is known (0: it isn't).
    pub record: Record<'a>,
    /// Query, its version, its connection.
    pub query: [i64; 3],
    /// Key.
    pub key: i64,
    /// Error code.
    pub code: i64,
}

/// Epochs that nobody appends to any more: what is open in them was aborted.
#[derive(Clone, Copy, Debug)]
pub enum Ended<'a> {
    /// Whatever else earlier processes left in a store of this directory alone. A shared store takes it as nothing.
    Former,
    /// These, whose runs are all in the store. Where they were is forgotten.
    Own(&'a [u64]),
}

/// What a transaction brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Runs that the store lacked, without the aborted ones.
    pub runs: u64,
    /// Runs that were open and are recorded as aborted.
    pub aborted: u64,
}

/// A store as the shipper writes it: one transaction after the other, by one thread. Everything but `begin`, `cursor`, `forget_names`
/// and `reset` belongs to the transaction under way. After an error call `reset`: the transaction is as if it hadn't been, or, if the
/// error came from `commit`, perhaps it has been. So all of it is to be inserted again, which changes nothing that is there.
pub trait Store: Send {
    /// How far an epoch is. None: nothing of it yet, or not known: then it is inserted again from its oldest segment on.
    fn cursor(&mut self, epoch: u64) -> Result<Option<Cursor>, StoreError>;
    /// Begins a transaction; connects first if need be.
    fn begin(&mut self) -> Result<(), StoreError>;
    /// The store's number of a name; 0 is the empty one.
    fn name(&mut self, text: &str) -> Result<i64, StoreError>;
    /// Adds whole runs.
    fn runs(&mut self, epoch: u64, rows: &mut dyn Iterator<Item = Row<'_>>) -> Result<(), StoreError>;
    /// Adds a run whose beginning and end came in this transaction.
    fn joined(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError>;
    /// Keeps the beginning of a run.
    fn opened(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError>;
    /// Adds a run whose beginning is kept. Names that the end doesn't know are those of the beginning.
    fn closed(&mut self, epoch: u64, row: &Row<'_>) -> Result<(), StoreError>;
    /// Adds what is open in epochs as aborted.
    fn end(&mut self, epochs: Ended<'_>) -> Result<(), StoreError>;
    /// Sets how far an epoch is, together with the runs; None forgets it.
    fn set_cursor(&mut self, epoch: u64, cursor: Option<Cursor>) -> Result<(), StoreError>;
    /// Makes it true, on the store's disk.
    fn commit(&mut self) -> Result<Committed, StoreError>;
    /// Forgets names when they have become too many; true: numbers given out so far mean nothing any more.
    fn forget_names(&mut self) -> bool;
    /// Drops the connection, and with it the transaction under way.
    fn reset(&mut self);
    /// Before the process ends. Best effort.
    fn finish(&mut self) {}
}
