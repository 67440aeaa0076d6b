//! The URL of a MySQL or MariaDB connection: `mysql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&…`, to one normal form.
//!
//! May reject: any parameter that is unknown, given twice or malformed, by one error that names it and never its value. IO: none.
//! `crds/src/tailrace_contract/mysql_uri.py` is its twin: `crds/golden/vectors/mysql_uri.json` holds both.
//!
//! Host, user and database must be given. `@` stands unencoded only behind the user. A Unix socket is an absolute path,
//! percent-encoded in the place of the host or as `socket`; TLS and its parameters don't count there.
use crate::engine::postgres::uri::{Files, Given, Problem, RootCert, Secret, UriError, decode, fault, malformed};
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

/// How much of TLS is asked for, as MySQL documents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never.
    Disabled,
    /// If the server offers it.
    Preferred,
    /// Always.
    Required,
    /// The chain is verified; so it is in the two above if a root is given.
    VerifyCa,
    /// The chain and the host's name are verified.
    VerifyIdentity,
}

/// The normal form. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    /// A name, an address, or the absolute path of a Unix socket.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Account.
    pub user: String,
    /// Password.
    pub password: Option<Secret>,
    /// Database.
    pub database: String,
    /// Per address of the host; absent or 0 in the URL: 10 s.
    pub connect_timeout: Duration,
    /// TLS; absent: preferred, or verify-identity if the root is `system`.
    pub ssl_mode: SslMode,
    /// Trust.
    pub ssl_ca: Option<RootCert>,
    /// Client certificate (PEM file) and its key (PEM file).
    pub ssl_cert: Option<(String, String)>,
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Uri(***)")
    }
}

/// In the order of docs/mysql.md.
const NAMES: [&str; 6] = ["socket", "connect-timeout", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
const DEFAULT_PORT: u16 = 3306;

fn pairs(query: &str, given: &mut Given) -> Result<(), UriError> {
    if query.is_empty() {
        return Ok(());
    }
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
        let name = decode("url", name)?;
        let Some(known) = NAMES.iter().find(|known| **known == name) else {
            let plain = !name.is_empty() && name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            return if plain { fault(&name, Problem::Unknown) } else { malformed("url") };
        };
        match value {
            Some(value) if !value.is_empty() && !value.contains('=') => given.put(known, decode(known, value)?)?,
            _ => return malformed(known),
        }
    }
    Ok(())
}

fn server(text: &str, socket: Option<String>) -> Result<(String, u16), UriError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let Some((address, after)) = inner.split_once(']') else { return malformed("host") };
            let host = decode("host", address)?;
            if !(after.is_empty() || after.starts_with(':')) || host.parse::<Ipv6Addr>().is_err() {
                return malformed("host");
            }
            (host, after.strip_prefix(':').unwrap_or(after))
        }
        None => {
            let (raw, port) = text.split_once(':').unwrap_or((text, ""));
            let mut host = decode("host", raw)?;
            match socket {
                Some(socket) if host.is_empty() || host == "localhost" => host = socket,
                Some(_) => return fault("socket", Problem::Duplicate),
                None => {}
            }
            let good = match host.as_bytes() {
                [] => return fault("host", Problem::Missing),
                [b'/', rest @ ..] => !rest.is_empty(),
                bytes => bytes.len() <= 253 && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b)),
            };
            if !good {
                return malformed("host");
            }
            (host, port)
        }
    };
    match port.parse::<u16>() {
        _ if port.is_empty() => Ok((host, DEFAULT_PORT)),
        Ok(number) if number > 0 && !port.starts_with('0') && port.bytes().all(|b| b.is_ascii_digit()) => Ok((host, number)),
        _ => malformed("port"),
    }
}

impl Uri {
    /// Reads a URL; blanks and line ends around it are not part of it. `files` stand for the URL's own.
    pub fn parse(text: &str, files: &Files) -> Result<Self, UriError> {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        let Some(rest) = text.strip_prefix("mysql://") else { return malformed("url") };
        if rest.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return malformed("url");
        }
        let Some((info, after)) = rest.split_once('@') else { return fault("user", Problem::Missing) };
        // An `@` anywhere else would mean an unencoded password: nothing of such a URL may become a parameter's name.
        if after.contains('@') || info.contains('/') {
            return malformed("url");
        }
        let (user, password) = info.split_once(':').unwrap_or((info, ""));
        if user.contains('?') {
            return malformed("user");
        }
        if password.contains([':', '?']) {
            return malformed("password");
        }
        if user.is_empty() {
            return fault("user", Problem::Missing);
        }
        let user = decode("user", user)?;
        let password = if password.is_empty() { None } else { Some(Secret::new(decode("password", password)?)) };
        let (front, query) = after.split_once('?').unwrap_or((after, ""));
        let (servers, path) = front.split_once('/').unwrap_or((front, ""));
        let mut given = Given::default();
        pairs(query, &mut given)?;
        let socket = given.take("socket");
        if socket.as_ref().is_some_and(|socket| !socket.starts_with('/') || socket.len() < 2) {
            return malformed("socket");
        }
        let (host, port) = server(servers, socket)?;
        if path.is_empty() {
            return fault("database", Problem::Missing);
        }
        let database = decode("database", path)?;
        let connect_timeout = match given.number("connect-timeout", 3600, 0)? {
            0 => 10,
            seconds => seconds,
        };
        let root = given.take("ssl-ca");
        let ssl_ca = match files.ca.clone().or(root) {
            Some(name) if name == "system" => Some(RootCert::System),
            other => other.map(RootCert::File),
        };
        let system = ssl_ca == Some(RootCert::System);
        let usual = if system { SslMode::VerifyIdentity } else { SslMode::Preferred };
        let ssl_mode = match given.take("ssl-mode").map(|mode| mode.to_lowercase().replace('_', "-")).as_deref() {
            None => usual,
            Some("disabled") => SslMode::Disabled,
            Some("preferred") => SslMode::Preferred,
            Some("required") => SslMode::Required,
            Some("verify-ca") => SslMode::VerifyCa,
            Some("verify-identity") => SslMode::VerifyIdentity,
            Some(_) => return malformed("ssl-mode"),
        };
        if system && ssl_mode != SslMode::VerifyIdentity {
            return malformed("ssl-mode");
        }
        if ssl_ca.is_none() && ssl_mode >= SslMode::VerifyCa {
            return fault("ssl-ca", Problem::Missing);
        }
        let (certificate, key) = (given.take("ssl-cert"), given.take("ssl-key"));
        let ssl_cert = match (files.certificate.clone().or(certificate), files.key.clone().or(key)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return fault("ssl-key", Problem::Missing),
            (None, Some(_)) => return fault("ssl-cert", Problem::Missing),
        };
        let connect_timeout = Duration::from_secs(connect_timeout.into());
        Ok(Self { host, port, user, password, database, connect_timeout, ssl_mode, ssl_ca, ssl_cert })
    }

    /// Whether `host` is a socket.
    pub fn is_unix(&self) -> bool {
        self.host.starts_with('/')
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn shown(uri: &Uri) -> Value {
        let mode = match uri.ssl_mode {
            SslMode::Disabled => "disabled",
            SslMode::Preferred => "preferred",
            SslMode::Required => "required",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyIdentity => "verify-identity",
        };
        let ca = uri.ssl_ca.as_ref().map(|ca| match ca {
            RootCert::System => "system",
            RootCert::File(path) => path,
        });
        json!({
            "host": uri.host, "port": uri.port, "user": uri.user, "password": uri.password.as_ref().map(Secret::reveal),
            "database": uri.database, "connect_timeout": uri.connect_timeout.as_secs(), "ssl_mode": mode, "ssl_ca": ca,
            "ssl_cert": uri.ssl_cert.as_ref().map(|pair| &pair.0), "ssl_key": uri.ssl_cert.as_ref().map(|pair| &pair.1),
        })
    }

    #[test]
    fn vectors() {
        let path = crate::golden::folder().join("vectors/mysql_uri.json");
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let text = |name: &str| case["files"][name].as_str().map(str::to_owned);
            let files = Files { ca: text("ca"), certificate: text("certificate"), key: text("key") };
            match Uri::parse(case["uri"].as_str().unwrap(), &files) {
                Ok(uri) => {
                    let mut normal = file["defaults"].clone();
                    normal.as_object_mut().unwrap().extend(case["normal"].as_object().unwrap_or_else(|| unreachable!("{case}")).clone());
                    assert_eq!(shown(&uri), normal, "{case}");
                }
                Err(error) => assert_eq!(json!([error.parameter, format!("{:?}", error.problem).to_lowercase()]), case["error"], "{case}"),
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_or_tells(rest in "[a-z:@/?&=%\\[\\]0-9\\-]{0,60}") {
            if let Err(error) = Uri::parse(&format!("mysql://{rest}"), &Files::default()) {
                prop_assert!(error.parameter.len() <= 40);
            }
        }
    }
}
