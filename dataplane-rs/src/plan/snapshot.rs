//! The snapshot as it comes over the socket: a mirror of `tailrace_contract.plan`, nothing more.
//! May reject: unknown fields, unknown schema. IO: none.
use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! wire {
    ($($item:item)*) => { $(#[derive(Clone, Debug, Deserialize, PartialEq)] #[serde(rename_all = "camelCase", deny_unknown_fields)] $item)* };
}
macro_rules! words {
    ($($item:item)*) => { $(#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)] #[serde(rename_all = "lowercase")] $item)* };
}

/// What a source is.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum SourceKind {
    /// The API: uid, generation and resourceVersion count.
    #[serde(rename = "QueryAPI")]
    QueryApi,
    /// All ApiKeys of a namespace: the highest resourceVersion that was seen.
    ApiKeys,
    /// A ConfigMap: the digest of its files.
    Config,
}

/// The only schema version that this build reads.
pub const SCHEMA_VERSION: u32 = 1;
/// A larger body of `PUT /plans` is refused.
pub const LIMIT_BYTES: usize = 64 << 20;

words! {
    /// Database protocol of a connection.
    pub enum Engine {
        /// PostgreSQL 13 and later.
        Postgres,
        /// A SQLite file.
        Sqlite,
        /// MySQL 8 or MariaDB.
        Mysql,
    }
    /// What stands between us and the server.
    pub enum Pooler {
        /// Nothing: sessions are ours.
        None,
        /// A transaction pooler: nothing may outlive a transaction.
        Transaction,
    }
    /// How a parameter's text is checked.
    pub enum ParamType {
        /// 64-bit.
        Integer,
        /// Exact decimal.
        Number,
        /// Text without NUL.
        String,
        /// true or false.
        Boolean,
        /// YYYY-MM-DD.
        Date,
        /// HH:MM:SS[.ffffff].
        Time,
        /// RFC 3339 with an optional offset.
        Timestamp,
        /// 8-4-4-4-12.
        Uuid,
        /// Any JSON text.
        Json,
    }
    /// How a column's database text becomes JSON.
    pub enum Encoding {
        /// Digits as they are.
        Raw,
        /// Digits as they are, specials as strings.
        Number,
        /// Digits as a string.
        Quoted,
        /// t or f.
        Boolean,
        /// Text.
        String,
        /// Without zone.
        Timestamp,
        /// With zone, written in UTC.
        Timestamptz,
        /// bytea hex.
        Base64,
        /// Embedded.
        Json,
        /// SQLite storage class.
        Storage,
        /// SQLite storage class, INTEGER as a string.
        StorageQuoted,
    }
    /// The shape of an answer.
    pub enum Returns {
        /// An object, or 404.
        One,
        /// An array.
        Many,
        /// A count.
        None,
    }
    /// What `one` says without a row.
    pub enum Missing {
        /// 404.
        Error,
        /// null.
        Null,
    }
    /// What a masked value becomes.
    pub enum Mask {
        /// null
        Null,
        /// "***"
        Redact,
        /// A keyed digest.
        Hash,
        /// First and last characters.
        Partial,
    }
    /// How big numbers are written.
    pub enum BigNumbers {
        /// As JSON numbers.
        Number,
        /// As strings.
        String,
    }
    /// Calls while the spool is full.
    pub enum OnFull {
        /// 503.
        Reject,
        /// Answered, its run dropped and counted.
        Drop,
    }
    /// When an answer may leave.
    pub enum Durability {
        /// Its run is in the kernel.
        Process,
        /// Its run is synced.
        Disk,
    }
}

wire! {
    /// One database.
    pub struct ConnectionPlan {
        /// Name in the QueryAPI.
        pub name: String,
        /// Protocol.
        pub engine: Engine,
        /// File with the URL.
        pub url_file: String,
        /// PEM.
        pub ca_file: Option<String>,
        /// PEM.
        pub certificate_file: Option<String>,
        /// PEM.
        pub key_file: Option<String>,
        /// Of this pod, over all threads and lanes.
        pub max_connections: u32,
        /// Server-side limit of every statement.
        pub statement_timeout_ms: u64,
        /// Server settings of every session.
        pub session: Vec<(String, String)>,
        /// What stands in front.
        pub pooler: Pooler,
        /// As it stands in SQL.
        pub idempotency_table: Option<String>,
    }
    /// One declared parameter.
    pub struct ParamPlan {
        /// As callers write it.
        pub name: String,
        /// Grammar.
        #[serde(rename = "type")]
        pub kind: ParamType,
        /// A list of these.
        pub array: bool,
        /// Absent: 422.
        pub required: bool,
        /// null binds NULL.
        pub nullable: bool,
        /// When absent.
        pub default: Value,
        /// Allowed values.
        #[serde(rename = "enum")]
        pub allowed: Option<Vec<Value>>,
        /// Inclusive, decimal text.
        pub minimum: Option<String>,
        /// Inclusive, decimal text.
        pub maximum: Option<String>,
        /// Code points.
        pub min_length: Option<u32>,
        /// Code points.
        pub max_length: Option<u32>,
        /// Portable subset.
        pub pattern: Option<String>,
    }
    /// One expected result column.
    pub struct ColumnPlan {
        /// Name.
        pub name: String,
        /// Of the value, or of the elements.
        pub encoding: Encoding,
        /// PostgreSQL array.
        pub array: bool,
        /// Between elements.
        pub delimiter: String,
        /// pg_type OID.
        pub type_oid: u32,
        /// pg_class OID, 0 for computed.
        pub table_oid: u32,
        /// Attribute number, 0 for computed.
        pub column_number: i32,
    }
    /// SQL with numbered places.
    pub struct StatementPlan {
        /// Sent as it is.
        pub sql: String,
        /// Place n+1 binds this parameter.
        pub params: Vec<u32>,
        /// Type of every place.
        pub oids: Vec<u32>,
    }
    /// How many callers are asked for at once.
    pub struct CoalescePlan {
        /// Place n+1 takes an array of what place n+1 of the query's statement takes.
        pub statement: StatementPlan,
        /// Callers in one statement.
        pub max_batch: u32,
        /// Statements under way on one thread.
        pub max_in_flight: u32,
        /// Batches of a version that are also asked singly first.
        pub shadow: u32,
    }
    /// One column of the keyset order.
    pub struct PageKeyPlan {
        /// Index in columns.
        pub column: u32,
        /// Order.
        pub descending: bool,
    }
    /// Keyset paging.
    pub struct PagePlan {
        /// Order.
        pub keys: Vec<PageKeyPlan>,
        /// Rows.
        pub default_size: u32,
        /// Rows.
        pub max_size: u32,
        /// Without a cursor.
        pub first: StatementPlan,
        /// After a cursor.
        pub next: StatementPlan,
    }
    /// One saved query.
    pub struct QueryPlan {
        /// Path segment.
        pub name: String,
        /// 16 hex digits.
        pub version: String,
        /// Index in connections.
        pub connection: u32,
        /// POST only.
        pub write: bool,
        /// Shape.
        pub returns: Returns,
        /// Of `one`.
        pub missing: Missing,
        /// Of a call, queueing included.
        pub timeout_ms: u64,
        /// Parameters go into the run.
        pub record_params: bool,
        /// Declared.
        pub params: Vec<ParamPlan>,
        /// Expected.
        pub columns: Vec<ColumnPlan>,
        /// Without paging.
        pub statement: StatementPlan,
        /// With paging.
        pub page: Option<PagePlan>,
        /// JSON of `many` without paging is a stream of every row.
        #[serde(default)]
        pub unbounded: bool,
        /// May be promoted to the shared lane.
        pub shared: bool,
        /// Why not.
        pub exclusive_because: String,
        /// How waiting callers share a statement.
        #[serde(default)]
        pub coalesce: Option<CoalescePlan>,
        /// Why they don't; a code.
        #[serde(default)]
        pub not_coalesced_because: String,
        /// How old an answer may be that is given again.
        #[serde(default)]
        pub cache_ttl_ms: Option<u64>,
        /// Refused for every role.
        pub refused: Option<String>,
    }
    /// A masked column.
    pub struct MaskPlan {
        /// Index in columns.
        pub column: u32,
        /// What covers it.
        #[serde(rename = "with")]
        pub mask: Mask,
    }
    /// A decided (query, role) pair.
    pub struct Grant {
        /// Index in queries.
        pub query: u32,
        /// What is covered.
        pub masks: Vec<MaskPlan>,
        /// Why there is no plan.
        pub refused: Option<String>,
    }
    /// What keys of a role may call.
    pub struct RolePlan {
        /// Name.
        pub name: String,
        /// Pairs.
        pub grants: Vec<Grant>,
    }
    /// Texts of one live key that are valid for the same time.
    pub struct KeyPlan {
        /// namespace/name; several have it while a key is replaced.
        pub id: String,
        /// Hex digests.
        pub sha256: Vec<String>,
        /// Index in roles.
        pub role: u32,
        /// Fixed parameters.
        pub bind: serde_json::Map<String, Value>,
        /// µs since 1970, inclusive.
        pub not_before_us: Option<i64>,
        /// µs since 1970, exclusive.
        pub not_after_us: Option<i64>,
        /// Empty: any.
        pub cidrs: Vec<String>,
    }
    /// Callers speak TLS only; both files are PEM and re-read when they change.
    #[derive(Eq)]
    pub struct TlsPlan {
        /// The chain, the server's own certificate first.
        pub certificate_file: String,
        /// Its private key.
        pub key_file: String,
    }
    /// What holds for the whole API.
    pub struct ApiPlan {
        /// Of the QueryAPI.
        pub namespace: String,
        /// Of the QueryAPI.
        pub name: String,
        /// Number form.
        pub big_numbers: BigNumbers,
        /// 404 instead of 403.
        pub hide_forbidden: bool,
        /// CIDRs.
        pub trusted_proxies: Vec<String>,
        /// None: plain HTTP.
        pub tls: Option<TlsPlan>,
        /// Spool bound.
        pub spool_size_bytes: u64,
        /// When it is full.
        pub on_full: OnFull,
        /// When answers leave.
        pub durability: Durability,
        /// Where runs go.
        pub run_store: RunStorePlan,
    }
    /// What keeps the runs.
    #[serde(rename_all_fields = "camelCase")]
    pub enum RunStorePlan {
        /// A SQLite file below the data directory.
        Embedded {},
        /// A PostgreSQL database.
        Postgres {
            /// Mounted file with its URL.
            url_file: String,
        },
    }
    /// What the snapshot was made from; what a kind does not have is empty or 0.
    #[derive(Serialize)]
    pub struct Source {
        /// Kind.
        pub kind: SourceKind,
        /// Namespace.
        pub namespace: String,
        /// Name.
        pub name: String,
        /// UID, empty for files.
        pub uid: String,
        /// metadata.generation.
        pub generation: i64,
        /// metadata.resourceVersion.
        pub resource_version: String,
    }
    /// One whole snapshot.
    pub struct Snapshot {
        /// SCHEMA_VERSION.
        pub schema: u32,
        /// Strictly increasing.
        pub version: u64,
        /// The API.
        pub api: ApiPlan,
        /// For acknowledgement.
        pub sources: Vec<Source>,
        /// Databases.
        pub connections: Vec<ConnectionPlan>,
        /// Queries.
        pub queries: Vec<QueryPlan>,
        /// Roles.
        pub roles: Vec<RolePlan>,
        /// Keys.
        pub keys: Vec<KeyPlan>,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::golden::folder;
    use std::path::PathBuf;

    fn files(kind: &str) -> Vec<PathBuf> {
        let all = std::fs::read_dir(folder().join(kind)).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("snapshot-")).collect();
        assert!(!files.is_empty());
        files
    }

    #[test]
    fn valid_golden_snapshots_are_read() {
        for file in files("valid") {
            let content = std::fs::read(&file).unwrap();
            let snapshot: Snapshot = serde_json::from_slice(&content).unwrap_or_else(|error| unreachable!("{}: {error}", file.display()));
            assert_eq!(snapshot.schema, SCHEMA_VERSION);
            let plain: Value = serde_json::from_slice(&content).unwrap();
            assert_eq!(snapshot.queries.len(), plain["queries"].as_array().unwrap().len());
            assert_eq!(snapshot.keys.len(), plain["keys"].as_array().unwrap().len());
        }
    }

    #[test]
    fn invalid_golden_snapshots_are_refused() {
        for file in files("invalid") {
            let vector: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            let read = serde_json::from_value::<Snapshot>(vector["snapshot"].clone());
            // The schema is compared where the tables are compiled.
            let refused = read.map_or(true, |snapshot| snapshot.schema != SCHEMA_VERSION);
            assert!(refused, "{}: {}", file.display(), vector["reason"]);
        }
    }
}
