//! What the parts of the process say of themselves, for readiness and `/status`. Pure. May reject: nothing.
use crate::plan::report::GatewayReport;
use crate::plan::snapshot::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime};

/// One connection as readiness sees it.
#[derive(Clone, Debug)]
pub struct ConnectionHealth {
    /// Its name.
    pub name: Arc<str>,
    /// None: compiled. Else since when every plan of it is refused because it can't be reached.
    pub failing_since: Option<Instant>,
}

/// What `/status` and `/readyz` say of the current snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotHealth {
    /// Of the snapshot.
    pub version: u64,
    /// When it was swapped in.
    pub applied: SystemTime,
    /// What it acknowledges.
    pub sources: Arc<[Source]>,
    /// Queries in it.
    pub queries: u64,
    /// Queries in it that every role is refused.
    pub refused: u64,
    /// Keys in it.
    pub keys: u64,
    /// Its databases.
    pub connections: Arc<[ConnectionHealth]>,
    /// What the gateway says of it; None until it has.
    pub gateway: Option<Arc<GatewayReport>>,
}

/// What the TLS of the API's port says of itself.
#[derive(Debug, Default)]
pub struct TlsHealth {
    /// TLS is wanted and there is no certificate to serve it with: no connection is taken.
    pub closed: AtomicBool,
    /// The last look at the files found what cannot be used.
    pub failing: AtomicBool,
    /// When the certificate in use expires, seconds since 1970; 0 without TLS.
    pub not_after_s: AtomicU64,
}

/// What the shipper says of itself.
#[derive(Debug, Default)]
pub struct ShipHealth {
    /// Runs inserted.
    pub shipped: AtomicU64,
    /// Runs that the spool holds and the store lacks, as the shipper saw last.
    pub waiting: AtomicU64,
    /// Of the last inserted run, µs since 1970.
    pub newest_us: AtomicU64,
    /// Runs recorded as aborted.
    pub aborted: AtomicU64,
    /// Failed attempts.
    pub failures: AtomicU64,
    /// The last attempt failed.
    pub failing: AtomicBool,
}
