//! What a session is pinned to, so that equal values have equal texts and reads stay reads; and the proof that it is.
//! Pure: makes startup parameters and SQL, judges what came back. May reject: settings that would undo a pin.
use super::uri::SessionAttrs;
use crate::plan::snapshot::Pooler;
use postgres_protocol::escape::escape_literal;
use std::time::Duration;

/// Settings that value encoding depends on (docs/values.md).
pub const PINS: [(&str, &str); 7] = [
    ("client_encoding", "UTF8"),
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "iso_8601"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
];

const READ_ONLY: &str = "default_transaction_read_only";
const TIMEOUT: &str = "statement_timeout";

/// Undo what a statement may have left in a session of ours (all of DISCARD ALL but prepared statements). One row, of the last.
/// `enforce` follows.
pub const RESTORE: [&str; 7] = [
    "CLOSE ALL",
    "RESET SESSION AUTHORIZATION",
    "RESET ALL",
    "UNLISTEN *",
    "DISCARD TEMP",
    "DISCARD SEQUENCES",
    "SELECT pg_catalog.pg_advisory_unlock_all()",
];

/// What a session may do by default. Either kind can open an explicit transaction of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `default_transaction_read_only=on`.
    ReadOnly,
    /// The server's own default.
    ReadWrite,
}

/// A setting that cannot be taken: its name, which the owner wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("session setting {0} cannot be used")]
pub struct SettingError(pub String);

/// The settings of one connection's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    own: Vec<(String, String)>,
    statement_timeout: Duration,
}

impl Settings {
    /// Takes the owner's settings; those that are pinned or malformed are refused.
    pub fn new(own: &[(String, String)], statement_timeout: Duration) -> Result<Self, SettingError> {
        let reserved = ["transaction_read_only", READ_ONLY, TIMEOUT, "names", "user", "database", "replication", "options"];
        for (name, value) in own {
            let pinned = PINS.iter().map(|(pin, _)| *pin).chain(reserved).any(|pin| pin.eq_ignore_ascii_case(name));
            let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            let plain = first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
            if pinned || !plain || name.starts_with("_pq_.") || value.contains('\0') {
                return Err(SettingError(name.chars().take(63).collect()));
            }
        }
        Ok(Self { own: own.to_vec(), statement_timeout })
    }

    /// Adds a setting of ours (such as plan_cache_mode) to those of the owner.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.own.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Milliseconds as PostgreSQL keeps them.
    fn timeout(&self) -> String {
        self.statement_timeout.as_millis().clamp(1, i32::MAX as u128).to_string()
    }

    /// The server's own limit of a statement.
    pub const fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Parameters of the startup packet besides user, database, options and application_name.
    pub fn startup(&self, access: Access, pooler: Pooler, attrs: SessionAttrs) -> Vec<(&str, String)> {
        if pooler == Pooler::Transaction {
            // A pooler refuses what it does not know, and what it takes would belong to another's session.
            return vec![("client_encoding", "UTF8".to_owned())];
        }
        let mut all: Vec<(&str, String)> = PINS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        all.push((TIMEOUT, self.timeout()));
        // These two ask for the server's own default, which a value of ours would hide: `enforce` sets it.
        if access == Access::ReadOnly && !matches!(attrs, SessionAttrs::ReadWrite | SessionAttrs::ReadOnly) {
            all.push((READ_ONLY, "on".to_owned()));
        }
        all.extend(self.own.iter().map(|(name, value)| (name.as_str(), value.clone())));
        all
    }

    /// Asks what the server is and how this session stands. One row: see `Standing::read`.
    pub fn ask(&self) -> String {
        let pins = PINS.iter().map(|(name, _)| format!(", pg_catalog.current_setting('{name}')"));
        format!(
            "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('{READ_ONLY}'), \
             (extract(epoch FROM pg_catalog.current_setting('{TIMEOUT}')::pg_catalog.interval) * 1000)::pg_catalog.int8{}",
            pins.collect::<String>()
        )
    }

    /// Sets what remains (the owner's settings again, so that none is silently missing): one row of new values, first read-only.
    pub fn enforce(&self, access: Access) -> String {
        let mut items = match access {
            Access::ReadOnly => format!("pg_catalog.set_config('{READ_ONLY}', 'on', false)"),
            Access::ReadWrite => format!("pg_catalog.current_setting('{READ_ONLY}')"),
        };
        for (name, value) in &self.own {
            items += &format!(", pg_catalog.set_config({}, {}, false)", escape_literal(name), escape_literal(value));
        }
        format!("SELECT {items}")
    }

    /// All settings for one transaction only, for a session that is not ours: one row, as `pinned` judges it.
    pub fn local(&self) -> String {
        let mut items = format!("SELECT pg_catalog.set_config('{TIMEOUT}', '{}', true)", self.timeout());
        let pins = PINS.iter().map(|(name, value)| (*name, *value));
        for (name, value) in pins.chain(self.own.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
            items += &format!(", pg_catalog.set_config({}, {}, true)", escape_literal(name), escape_literal(value));
        }
        items
    }

    /// Whether the row of `ask` shows a session as we want it.
    pub fn holds(&self, standing: &Standing) -> bool {
        standing.timeout == self.timeout().as_bytes()
    }
}

fn pinned(name: &str, wanted: &str, is: &[u8]) -> bool {
    // DateStyle also tells the order of day and month, which only input depends on.
    is == wanted.as_bytes() || (name == "DateStyle" && is.starts_with(b"ISO,"))
}

/// Whether the row of `Settings::local` shows every pin.
pub fn local_holds(row: &[u8]) -> bool {
    let mut values = super::wire::values(row).skip(1);
    PINS.iter().all(|(name, wanted)| values.next().flatten().is_some_and(|is| pinned(name, wanted, is)))
}

/// What a server answered to `Settings::ask`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// A standby.
    pub in_recovery: bool,
    /// Sessions read only, by the server's default or our startup packet.
    pub read_only: bool,
    timeout: Vec<u8>,
    /// The first pin that does not hold.
    pub unpinned: Option<&'static str>,
}

impl Standing {
    /// Reads the row (DataRow form); None if it is not of that shape.
    pub fn read(row: &[u8]) -> Option<Self> {
        let mut values = super::wire::values(row);
        let mut next = || values.next().flatten();
        let in_recovery = next()? == b"t";
        let read_only = next()? == b"on";
        let timeout = next()?.to_vec();
        let mut unpinned = None;
        for (name, wanted) in &PINS {
            if !pinned(name, wanted, next()?) {
                unpinned = unpinned.or(Some(*name));
            }
        }
        Some(Self { in_recovery, read_only, timeout, unpinned })
    }

    /// Whether this server is one of those wanted. `PreferStandby` asks for a standby here; the second round takes any.
    pub fn suits(&self, attrs: SessionAttrs) -> bool {
        match attrs {
            SessionAttrs::Any => true,
            SessionAttrs::ReadWrite => !self.in_recovery && !self.read_only,
            SessionAttrs::ReadOnly => self.in_recovery || self.read_only,
            SessionAttrs::Primary => !self.in_recovery,
            SessionAttrs::Standby | SessionAttrs::PreferStandby => self.in_recovery,
        }
    }
}
