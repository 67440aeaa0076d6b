//! Databases. One way in (`Ask`), one way out (`Event`s), whatever the engine; rows are always in DataRow form:
//! for each column an i32 length (big endian, -1 for NULL) and that many bytes, without the leading column count.
//! PostgreSQL's bytes are its text format; SQLite's begin with a tag of the storage class (`Storage`).
use crate::codes::Code;
use std::sync::Arc;
use std::time::Instant;

pub mod batch;
pub mod mysql;

pub mod pool;
pub mod postgres;
pub mod shared;
pub mod sqlite;

/// First byte of a SQLite value in DataRow form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Storage {
    /// Decimal digits follow.
    Integer = b'i',
    /// 8 bytes follow: an f64, big endian.
    Real = b'r',
    /// UTF-8 follows.
    Text = b't',
    /// Raw bytes follow.
    Blob = b'b',
}

/// One statement for the exclusive lane.
#[derive(Debug)]
pub struct Ask {
    /// Index of the query in the tables that admitted the call; names its prepared statement together with `version`.
    pub query: u32,
    /// Version of the query (16 hex digits), and what it executes.
    pub version: Arc<str>,
    /// Text with places, parameter order, OIDs.
    pub statement: Arc<crate::plan::snapshot::StatementPlan>,
    /// What the Prepare must describe, else `Failure::Stale`. Empty for writes that return nothing.
    pub columns: Arc<[crate::plan::snapshot::ColumnPlan]>,
    /// One value per *place* of the statement: i32 length (big endian, -1 NULL), then PostgreSQL's text form;
    /// for SQLite a `Storage` tag and its bytes, as in rows (the type says how it is bound).
    pub values: Vec<u8>,
    /// Rows after which to stop; one more is never fetched, so ask for one more than is shown to learn whether there is one. None: all.
    pub limit: Option<u32>,
    /// When the caller has waited long enough, queueing included.
    pub deadline: Instant,
    /// A write and its idempotency.
    pub write: Option<Write>,
    /// Strictly checked `traceparent` of a sampled call: sent as a comment on an unnamed statement.
    pub trace: Option<Box<str>>,
}

/// What a write needs besides its statement.
#[derive(Debug)]
pub struct Write {
    /// Idempotency, when the caller sent a key.
    pub idempotency: Option<Idempotency>,
}

/// Key and outcome commit in the write's own transaction.
#[derive(Debug)]
pub struct Idempotency {
    /// `idempotencyTable` as it stands in SQL.
    pub table: Arc<str>,
    /// Who: the ApiKey's id.
    pub caller: Arc<str>,
    /// The caller's Idempotency-Key.
    pub key: String,
    /// Name of the query, for people who read the table.
    pub query: Arc<str>,
    /// Hex SHA-256 over query name, version-independent, and the bound values.
    pub arguments: String,
}

/// What an engine says of one `Ask`, in order: any number of `Rows`, then exactly one of the others.
///
/// A caller who leaves drops the receiver: the statement is cancelled in the database. To learn the outcome of a write
/// all the same it calls `close()` on the receiver and goes on receiving: `Done` if it was committed, else `Failed`.
/// The last event always has room in the channel.
#[derive(Debug)]
pub enum Event {
    /// Whole rows in DataRow form, one after the other, at most about 64 KiB.
    Rows {
        /// How many.
        count: u32,
        /// Their bytes.
        bytes: Vec<u8>,
    },
    /// The end. For a write: it is committed.
    Done {
        /// Rows changed (writes) or 0.
        affected: u64,
        /// Stopped at `limit`; whether another row follows is not known.
        more: bool,
        /// Time at the database, µs.
        database_us: u64,
        /// A repeat of a write: the first answer's rows were sent as `Rows`, nothing ran.
        repeated: bool,
    },
    /// Nothing more comes.
    Failed {
        /// Why.
        failure: Failure,
        /// Time at the database, µs; 0 if it never came to it.
        database_us: u64,
    },
}

impl Event {
    /// The end of a statement that never came to the database.
    pub const fn never(failure: Failure) -> Self {
        Self::Failed { failure, database_us: 0 }
    }
}

/// Why a statement has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// All connections busy until the deadline or the queue is full.
    #[error("no connection was free")]
    PoolFull,
    /// Connect failed or the connection broke before the statement was done.
    #[error("the database cannot be reached")]
    Unavailable,
    /// The deadline passed.
    #[error("the statement timed out")]
    Timeout,
    /// The description differs from the plan's.
    #[error("the result has another shape than the plan")]
    Stale,
    /// Class 23 in a write.
    #[error("a constraint refused the write")]
    Constraint,
    /// Any other SQLSTATE, for metrics and `explain`, never its message.
    #[error("the database refused the statement")]
    Refused([u8; 5]),
    /// Same Idempotency-Key, other arguments.
    #[error("the idempotency key was used with other arguments")]
    IdempotencyMismatch,
    /// Same Idempotency-Key, still running.
    #[error("the idempotency key is still running")]
    IdempotencyRunning,
    /// The caller left first; nothing was committed.
    #[error("the caller left")]
    Cancelled,
    /// A message that we cannot read.
    #[error("the database sent what cannot be read")]
    Protocol,
}

impl Failure {
    /// What the caller is told.
    pub const fn code(&self) -> Code {
        match self {
            Self::PoolFull => Code::PoolFull,
            Self::Unavailable => Code::DatabaseUnavailable,
            Self::Timeout => Code::QueryTimeout,
            Self::Stale => Code::PlanStale,
            Self::Constraint => Code::ConstraintViolation,
            Self::Refused(_) | Self::Protocol => Code::DatabaseError,
            Self::Cancelled => Code::ClientClosed,
            Self::IdempotencyMismatch => Code::IdempotencyMismatch,
            Self::IdempotencyRunning => Code::IdempotencyInProgress,
        }
    }
}

/// `Idempotency::arguments`: query name, `\n`, then each declared parameter's value as it is framed on its way to the engine.
pub fn arguments(query: &str, values: &[u8]) -> String {
    use sha2::Digest;
    let digest = sha2::Sha256::new().chain_update(query).chain_update(b"\n").chain_update(values).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
