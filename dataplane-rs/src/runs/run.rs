//! What is recorded of a call: whole, or its beginning and its end, and the names that records refer to. Pure. May reject: nothing.
use crate::codes::Code;
use crate::plan::snapshot::Snapshot;
use std::net::IpAddr;
use std::sync::Arc;

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
    /// Calls that shared the statement; 1: alone, 0: none was asked, the answer came from the response cache.
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
