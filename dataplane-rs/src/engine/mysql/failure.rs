//! What a server's refusal or a failed connect means to a caller (docs/contract.md, "MySQL and MariaDB"). Pure. May reject: nothing.
use super::auth::AuthError;
use super::wire::{ServerError, WireError};
use crate::engine::Failure;
use crate::engine::pool::Refusal;
use crate::engine::postgres::target::TargetError;
use crate::engine::postgres::tls::TlsError;
use std::io;

/// A prepared statement that the server doesn't know (any more), or whose tables changed too often.
const UNPREPARED: [u16; 2] = [1243, 1615];

/// Whether the statement must be prepared anew; nothing ran.
pub fn is_unprepared(error: ServerError) -> bool {
    UNPREPARED.contains(&error.number)
}

/// Whether the connection ends with it.
pub fn is_fatal(error: ServerError) -> bool {
    matches!(error.number, 1053 | 1077 | 1079 | 1927 | 2006 | 2013 | 4031) || error.state.starts_with(b"08")
}

/// Reads an error. `write`: SQLSTATE 23 is the caller's conflict. `timed_out`: our own limit was up, so an interruption is its doing.
pub fn of_error(error: ServerError, write: bool, timed_out: bool) -> Failure {
    match error.number {
        1969 | 3024 => Failure::Timeout,
        1317 if timed_out => Failure::Timeout,
        1040 | 1053 | 1077 | 1079 | 1290 | 1836 | 1927 | 2006 | 2013 => Failure::Unavailable,
        _ if error.state.starts_with(b"08") || &error.state == b"25006" => Failure::Unavailable,
        _ if write && error.state.starts_with(b"23") => Failure::Constraint,
        _ => Failure::Refused(error.state),
    }
}

/// Why there is no connection. No variant carries a host, a user or a server's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The URL or the settings.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Certificate files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The name has no address.
    #[error("a host's name cannot be resolved")]
    Unresolved,
    /// The system's word.
    #[error("not connected: {0}")]
    Io(io::ErrorKind),
    /// connect-timeout or the deadline.
    #[error("not connected in time")]
    Timeout,
    /// ssl-mode asks for TLS and the server has none.
    #[error("the server offers no TLS")]
    NoTls,
    /// The handshake failed; the certificate did not verify.
    #[error("the TLS handshake failed")]
    Handshake,
    /// Authentication on our side.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The server's refusal (wrong password, no such database, too many connections …).
    #[error("the server refuses: error {}", .0.number)]
    Refused(ServerError),
    /// A pin does not hold.
    #[error("the session is not read-only")]
    Unpinned,
    /// What it sent cannot be read.
    #[error("not MySQL's protocol")]
    Protocol,
}

impl Refusal for ConnectError {
    fn is_full(&self) -> bool {
        // Too many connections, of all or of this user.
        matches!(self, Self::Refused(ServerError { number: 1040 | 1203 | 1226, .. }))
    }

    fn is_credentials(&self) -> bool {
        matches!(self, Self::Auth(_) | Self::Refused(ServerError { state: [b'2', b'8', ..], .. }))
    }

    fn is_configuration(&self) -> bool {
        matches!(self, Self::Target(_))
    }

    fn reason(&self) -> &'static str {
        match self {
            error if error.is_credentials() => "credentials",
            error if error.is_full() => "server_full",
            Self::Timeout => "timeout",
            Self::Unresolved => "unresolved",
            Self::Target(_) => "url",
            Self::Tls(_) | Self::NoTls | Self::Handshake => "tls",
            _ => "unreachable",
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

impl From<WireError> for ConnectError {
    fn from(_: WireError) -> Self {
        Self::Protocol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_contract() {
        for (number, state, write, timed_out, failure) in [
            (1062, b"23000", true, false, Failure::Constraint),
            (1062, b"23000", false, false, Failure::Refused(*b"23000")),
            (1969, b"70100", false, false, Failure::Timeout),
            (3024, b"HY000", false, false, Failure::Timeout),
            (1317, b"70100", false, true, Failure::Timeout),
            (1317, b"70100", false, false, Failure::Refused(*b"70100")),
            (1792, b"25006", false, false, Failure::Unavailable),
            (1290, b"HY000", true, false, Failure::Unavailable),
            (1040, b"08004", false, false, Failure::Unavailable),
            (1365, b"22012", true, false, Failure::Refused(*b"22012")),
        ] {
            assert_eq!(of_error(ServerError { number, state: *state }, write, timed_out), failure, "{number}");
        }
    }
}
