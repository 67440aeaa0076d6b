//! What the gateway says of the snapshot in force (`PUT /sources`): a mirror of `tailrace_contract.report`, nothing more.
//! May reject: unknown fields. IO: none.
use super::snapshot::Source;
use serde::{Deserialize, Serialize};

/// A larger body is refused: some hundred sources, twenty refused queries and two hundred refused keys are a few hundred KiB.
pub const LIMIT_BYTES: usize = 1 << 20;

macro_rules! wire {
    ($($item:item)*) => { $(#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)] #[serde(rename_all = "camelCase", deny_unknown_fields)] $item)* };
}

/// The whole body.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// Of the snapshot that it is about.
    pub version: u64,
    /// What the snapshot reflects by now.
    pub sources: Vec<Source>,
    /// For the operator, which finds it in `/status`.
    pub gateway: GatewayReport,
}

wire! {
    /// What became of the resources.
    pub struct GatewayReport {
        /// Counts, and some that are refused.
        pub queries: QueriesReport,
        /// ApiKeys that are served.
        pub keys: u64,
        /// Some that are not, though they have a digest.
        pub refused_keys: Vec<RefusedKey>,
        /// Something in the source could not be taken: an older form holds.
        pub stale: bool,
    }
    /// Queries.
    pub struct QueriesReport {
        /// In the API.
        pub total: u64,
        /// With a plan for every role that they are granted to.
        pub served: u64,
        /// Whose waiting callers share statements.
        pub coalesced: u64,
        /// Some of those that did until it was stopped.
        pub stopped: Vec<StoppedQuery>,
        /// The first of the others.
        pub refused: Vec<RefusedQuery>,
    }
    /// A query whose callers shared statements until it was stopped.
    pub struct StoppedQuery {
        /// Its name.
        pub name: String,
        /// Why, for programs.
        pub reason: String,
    }
    /// An ApiKey that is not served.
    pub struct RefusedKey {
        /// namespace/name.
        pub id: String,
        /// Why, for people.
        pub message: String,
    }
    /// A query that is not served.
    pub struct RefusedQuery {
        /// Its name.
        pub name: String,
        /// To which role; empty: to all.
        pub role: String,
        /// Why, for programs.
        pub code: String,
        /// Why, for people.
        pub message: String,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::golden::folder;

    #[test]
    fn the_golden_report_is_read_whole() {
        let text = std::fs::read(folder().join("valid/report-full.json")).unwrap();
        let report: Report = serde_json::from_slice(&text).unwrap();
        let whole: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(serde_json::to_value(&report.gateway).unwrap(), whole["gateway"]);
        assert_eq!(report.sources.len(), whole["sources"].as_array().unwrap().len());
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let files = std::fs::read_dir(folder().join("invalid")).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("report-")).collect();
        assert!(!files.is_empty());
        for file in files {
            let vector: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            assert!(serde_json::from_value::<Report>(vector.get("report").unwrap().clone()).is_err(), "{}", file.display());
        }
    }
}
