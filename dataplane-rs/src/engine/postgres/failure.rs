//! What a server's refusal or a broken connection means to a caller (docs/contract.md, "Database errors").
//! Pure. May reject: nothing.
use super::connect::ConnectError;
use super::wire::ServerError;
use crate::engine::Failure;

/// Reads a SQLSTATE. `write`: class 23 is the caller's conflict. `timed_out`: our own limit was up, so 57014 is its doing.
pub fn of_sqlstate(error: ServerError, write: bool, timed_out: bool) -> Failure {
    match &error.code {
        [b'2', b'3', ..] if write => Failure::Constraint,
        b"57014" if timed_out => Failure::Timeout,
        b"25006" | [b'5', b'7', b'P', b'0', b'1'..=b'5'] | [b'0', b'8', ..] | [b'5', b'3', ..] => Failure::Unavailable,
        _ => Failure::Refused(error.code),
    }
}

/// Why there is no connection, in a word that shows no host.
pub fn reason(error: &ConnectError) -> &'static str {
    match error {
        error if error.is_credentials() => "credentials",
        error if error.is_full() => "server_full",
        ConnectError::Timeout => "timeout",
        ConnectError::Unresolved => "unresolved",
        ConnectError::Target(_) => "url",
        ConnectError::Tls(_) | ConnectError::NoTls | ConnectError::Handshake => "tls",
        _ => "unreachable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_contract() {
        let unavailable = Failure::Unavailable;
        for (code, write, timed_out, failure) in [
            (b"23505", true, false, Failure::Constraint),
            (b"23505", false, false, Failure::Refused(*b"23505")),
            (b"57014", false, true, Failure::Timeout),
            (b"57014", true, false, Failure::Refused(*b"57014")),
            (b"57P01", false, false, unavailable.clone()),
            (b"57P05", false, false, unavailable.clone()),
            (b"57P06", false, false, Failure::Refused(*b"57P06")),
            (b"08006", true, false, unavailable.clone()),
            (b"53300", true, false, unavailable.clone()),
            (b"25006", true, false, unavailable),
            (b"22012", true, false, Failure::Refused(*b"22012")),
            (b"40001", true, false, Failure::Refused(*b"40001")),
        ] {
            assert_eq!(of_sqlstate(ServerError { code: *code, fatal: false, revalidate: false }, write, timed_out), failure);
        }
    }
}
