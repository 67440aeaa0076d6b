//! Where a ConnectionPlan leads now, and what its sessions are set to. IO: reads the mounted files, by `Source`.
//! May reject: an unreadable or malformed URL, a setting that would undo a pin.
use super::uri::Uri;
use crate::engine::postgres::session::SettingError;
use crate::engine::postgres::target::{Source, TargetError};
use std::fmt::Write;
use std::time::Duration;

/// Everything that one connect needs.
#[derive(Clone, Debug)]
pub struct Target {
    /// The parsed URL.
    pub uri: Uri,
    /// What its sessions are set to.
    pub settings: Settings,
    /// Raised whenever a mounted file changed.
    pub generation: u64,
}

impl Target {
    /// Reads the URL now.
    pub fn read(source: &Source) -> Result<Self, TargetError> {
        let (generation, text) = source.text()?;
        let uri = Uri::parse(&text, source.files())?;
        let (own, statement_timeout) = source.session();
        Ok(Self { uri, settings: Settings::new(own, statement_timeout)?, generation })
    }
}

/// Names that a connection may not set: answers, governance or we depend on them. Twin of the CRD's rule.
const RESERVED: [&str; 15] = [
    "time_zone",
    "sql_mode",
    "autocommit",
    "character_set_client",
    "character_set_connection",
    "character_set_results",
    "collation_connection",
    "transaction_read_only",
    "tx_read_only",
    "max_statement_time",
    "max_execution_time",
    "sql_select_limit",
    "div_precision_increment",
    "lc_time_names",
    "default_week_format",
];

/// The settings of one connection's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    own: Vec<(String, String)>,
    statement_timeout: Duration,
}

impl Settings {
    /// Takes the owner's settings.
    pub fn new(own: &[(String, String)], statement_timeout: Duration) -> Result<Self, SettingError> {
        for (name, value) in own {
            let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !plain || value.contains('\0') || RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                return Err(SettingError(name.chars().take(63).collect()));
            }
        }
        Ok(Self { own: own.to_vec(), statement_timeout })
    }

    /// The server's own limit of a statement.
    pub const fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// The statements that pin a session, in order.
    pub fn pins(&self, mariadb: bool) -> Vec<String> {
        let milliseconds = self.statement_timeout.as_millis().clamp(1, i32::MAX as u128);
        let mut all: Vec<String> = self.own.iter().map(|(name, value)| format!("SET SESSION `{name}` = {}", literal(value))).collect();
        all.push("SET NAMES utf8mb4".to_owned());
        let mut pins = "SET SESSION time_zone = '+00:00', SESSION sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,\
                        NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, SESSION div_precision_increment = 4, \
                        SESSION lc_time_names = 'en_US', SESSION default_week_format = 0, SESSION sql_select_limit = DEFAULT, "
            .to_owned();
        // Writing to a String cannot fail.
        _ = if mariadb {
            write!(pins, "SESSION max_statement_time = {}.{:03}", milliseconds / 1000, milliseconds % 1000)
        } else {
            write!(pins, "SESSION max_execution_time = {milliseconds}")
        };
        all.push(pins);
        all.push("SET SESSION TRANSACTION READ ONLY".to_owned());
        all
    }
}

/// Asks whether the next transaction is read-only unless it says otherwise: `1`, `1` is the only good answer.
pub const fn proof(mariadb: bool) -> &'static str {
    if mariadb {
        "SELECT @@session.tx_read_only, @@session.autocommit"
    } else {
        "SELECT @@session.transaction_read_only, @@session.autocommit"
    }
}

/// A string constant, with and without NO_BACKSLASH_ESCAPES in the server's own sql_mode: what would differ is in hex.
/// A number stands as it is: numeric variables take no strings.
fn literal(text: &str) -> String {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = digits.splitn(2, '.');
    if parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())) {
        return text.to_owned();
    }
    if text.contains('\\') {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        return format!("_utf8mb4 x'{hex}'");
    }
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pins_come_last_and_cannot_be_undone() {
        let own = [
            ("group_concat_max_len".to_owned(), "it's".to_owned()),
            ("x".to_owned(), "\\".to_owned()),
            ("y".to_owned(), "-1.5".to_owned()),
        ];
        let settings = Settings::new(&own, Duration::from_millis(1500)).unwrap();
        let pins = settings.pins(true);
        assert_eq!(pins.first().unwrap(), "SET SESSION `group_concat_max_len` = 'it''s'");
        assert_eq!(pins.get(1).unwrap(), "SET SESSION `x` = _utf8mb4 x'5c'");
        assert_eq!(pins.get(2).unwrap(), "SET SESSION `y` = -1.5");
        assert!(pins.get(4).unwrap().ends_with("max_statement_time = 1.500"));
        assert!(settings.pins(false).get(4).unwrap().ends_with("max_execution_time = 1500"));
        assert_eq!(pins.last().unwrap(), "SET SESSION TRANSACTION READ ONLY");
        for name in ["SQL_MODE", "tx_read_only", "a b", "", "x`"] {
            assert!(Settings::new(&[(name.to_owned(), String::new())], Duration::from_secs(1)).is_err(), "{name}");
        }
    }
}
