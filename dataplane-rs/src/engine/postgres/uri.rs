//! The URL of a PostgreSQL connection: libpq's URI grammar, made strict, to one normal form.
//!
//! May reject: any parameter that is unknown, given twice or malformed, by one error that names it and never its value.
//! IO: none. `crds/src/tailrace_contract/postgres_uri.py` is its twin: `crds/golden/vectors/postgres_uri.json` holds both.
//!
//! Stricter than libpq: host and user must be given (a pod has no sensible default); `sslmode=allow` is refused (it asks for an
//! unencrypted session first, so it promises nothing); `@` stands unencoded only behind the user; empty values are malformed;
//! verify-ca and verify-full need a root certificate that is named; a client certificate needs its key.
mod part;

pub use part::{ChannelBinding, Files, Host, RootCert, Secret, SessionAttrs, SslMode};
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

/// Why a URL was refused. Safe to log and to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: {problem}")]
pub struct UriError {
    /// The parameter's name (libpq keyword), or `url` for what belongs to none.
    pub parameter: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No such parameter.
    #[error("unknown parameter")]
    Unknown,
    /// Given twice, in whatever place.
    #[error("given more than once")]
    Duplicate,
    /// Not in its grammar.
    #[error("malformed")]
    Malformed,
    /// Needed and absent.
    #[error("missing")]
    Missing,
}

/// The normal form. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    /// In the order in which they are tried.
    pub hosts: Vec<Host>,
    /// Role.
    pub user: String,
    /// Password.
    pub password: Option<Secret>,
    /// Database; the user's name if the URL has none.
    pub dbname: String,
    /// Per address of a host; absent or 0 in the URL: 10 s.
    pub connect_timeout: Duration,
    /// Shown in pg_stat_activity.
    pub application_name: String,
    /// TLS; absent: prefer, or verify-full if the root is `system`.
    pub sslmode: SslMode,
    /// Trust.
    pub sslrootcert: Option<RootCert>,
    /// Client certificate (PEM file) and its key (PEM file).
    pub sslcert: Option<(String, String)>,
    /// SCRAM's binding.
    pub channel_binding: ChannelBinding,
    /// Which servers.
    pub target_session_attrs: SessionAttrs,
    /// Hosts are shuffled at each connect.
    pub load_balance_hosts: bool,
    /// TCP keep-alive.
    pub keepalives: bool,
    /// Seconds, 0: the system's default.
    pub keepalives_idle: u32,
    /// Seconds, 0: the system's default.
    pub keepalives_interval: u32,
    /// Probes, 0: the system's default.
    pub keepalives_count: u32,
    /// Milliseconds, 0: the system's default.
    pub tcp_user_timeout: u32,
    /// Command-line options of the session.
    pub options: Option<String>,
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Uri(***)")
    }
}

/// Parameters in the order of libpq's documentation.
const NAMES: [&str; 20] = [
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "connect_timeout",
    "application_name",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "target_session_attrs",
    "load_balance_hosts",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "options",
];

const MOST_HOSTS: usize = 32;
const DEFAULT_PORT: u16 = 5432;

/// An error.
pub(in crate::engine) fn fault<T>(parameter: &str, problem: Problem) -> Result<T, UriError> {
    Err(UriError { parameter: parameter.to_owned(), problem })
}

/// What is not of its form.
pub(in crate::engine) fn malformed<T>(parameter: &str) -> Result<T, UriError> {
    fault(parameter, Problem::Malformed)
}

/// Percent-decoded text; NUL, bad escapes and bad UTF-8 are malformed.
pub(in crate::engine) fn decode(parameter: &str, text: &str) -> Result<String, UriError> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|&b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) if high + low > 0 => out.push((high * 16 + low) as u8),
            _ => return malformed(parameter),
        }
    }
    String::from_utf8(out).or_else(|_| malformed(parameter))
}

/// What was given, before it is checked as a whole.
#[derive(Default)]
pub(in crate::engine) struct Given {
    seen: Vec<&'static str>,
    values: Vec<(&'static str, String)>,
}

impl Given {
    pub fn put(&mut self, name: &'static str, value: String) -> Result<(), UriError> {
        if self.seen.contains(&name) {
            return fault(name, Problem::Duplicate);
        }
        self.seen.push(name);
        self.values.push((name, value));
        Ok(())
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.values.iter().position(|(n, _)| *n == name)?;
        Some(self.values.swap_remove(at).1)
    }

    pub fn number(&mut self, name: &str, most: u32, default: u32) -> Result<u32, UriError> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        match text.parse::<u32>() {
            Ok(number) if plain && number <= most => Ok(number),
            _ => malformed(name),
        }
    }

    fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)], default: T) -> Result<T, UriError> {
        let Some(text) = self.take(name) else { return Ok(default) };
        words.iter().find(|(word, _)| *word == text).map_or_else(|| malformed(name), |(_, value)| Ok(*value))
    }
}

fn host_name(text: &str) -> Result<&str, UriError> {
    let good = match text.as_bytes() {
        [b'/', rest @ ..] => !rest.is_empty() && !text.contains(','),
        [] => false,
        bytes if bytes.contains(&b':') => text.parse::<Ipv6Addr>().is_ok(),
        bytes => bytes.len() <= 253 && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b)),
    };
    if good { Ok(text) } else { malformed("host") }
}

fn port_number(text: &str) -> Result<u16, UriError> {
    match text.parse::<u16>() {
        _ if text.is_empty() => Ok(DEFAULT_PORT),
        Ok(port) if port > 0 && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()) => Ok(port),
        _ => malformed("port"),
    }
}

/// Splits `host[:port],…` into lists of hosts and ports, each joined by commas.
fn authority(text: &str, given: &mut Given) -> Result<(), UriError> {
    if text.is_empty() {
        return Ok(());
    }
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for part in text.split(',') {
        let (host, port) = match part.strip_prefix('[') {
            Some(inner) => {
                let Some((address, after)) = inner.split_once(']') else { return malformed("host") };
                let address = decode("host", address)?;
                let port = match after.strip_prefix(':') {
                    Some(port) => port,
                    None if after.is_empty() => "",
                    None => return malformed("host"),
                };
                if address.parse::<Ipv6Addr>().is_err() {
                    return malformed("host");
                }
                (address, port)
            }
            None => {
                let (host, port) = part.split_once(':').unwrap_or((part, ""));
                (decode("host", host)?, port)
            }
        };
        if !host.is_empty() || text.contains(',') {
            host_name(&host)?;
        }
        hosts.push(host);
        ports.push(decode("port", port)?);
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        given.put("host", hosts.join(","))?;
    }
    if ports.iter().any(|port| !port.is_empty()) {
        given.put("port", ports.join(","))?;
    }
    Ok(())
}

fn pairs(query: &str, given: &mut Given) -> Result<(), UriError> {
    let query = query.strip_suffix('&').unwrap_or(query);
    if query.is_empty() {
        return Ok(());
    }
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, "="));
        let name = decode("url", name)?;
        let Some(known) = NAMES.iter().find(|known| **known == name) else {
            let plain = !name.is_empty() && name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            return if plain { fault(&name, Problem::Unknown) } else { malformed("url") };
        };
        if value.is_empty() || value.contains('=') {
            return malformed(known);
        }
        given.put(known, decode(known, value)?)?;
    }
    Ok(())
}

fn hosts(given: &mut Given) -> Result<Vec<Host>, UriError> {
    let Some(names) = given.take("host") else { return fault("host", Problem::Missing) };
    let names = names.split(',').map(host_name).collect::<Result<Vec<_>, _>>()?;
    if names.len() > MOST_HOSTS {
        return malformed("host");
    }
    let ports = given.take("port").unwrap_or_default();
    let ports = ports.split(',').map(port_number).collect::<Result<Vec<_>, _>>()?;
    if ports.len() != 1 && ports.len() != names.len() {
        return malformed("port");
    }
    let ports = ports.iter().copied().cycle();
    Ok(names.into_iter().zip(ports).map(|(name, port)| Host { name: name.to_owned(), port }).collect())
}

impl Uri {
    /// Reads a URL; blanks and line ends around it are not part of it. `files` stand for the URL's own.
    pub fn parse(text: &str, files: &Files) -> Result<Self, UriError> {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        let Some(rest) = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://")) else {
            return malformed("url");
        };
        if rest.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return malformed("url");
        }
        let mut given = Given::default();
        // An `@` anywhere else would mean an unencoded password: nothing of such a URL may become a parameter's name.
        let rest = match rest.split_once('@') {
            Some((_, after)) if after.contains('@') => return malformed("url"),
            Some((info, _)) if info.contains('/') => return malformed("url"),
            Some((info, after)) => {
                let (user, password) = info.split_once(':').unwrap_or((info, ""));
                if user.contains('?') {
                    return malformed("user");
                }
                if password.contains([':', '?']) {
                    return malformed("password");
                }
                if !user.is_empty() {
                    given.put("user", decode("user", user)?)?;
                }
                if !password.is_empty() {
                    given.put("password", decode("password", password)?)?;
                }
                after
            }
            None => rest,
        };
        let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (servers, path) = front.split_once('/').unwrap_or((front, ""));
        authority(servers, &mut given)?;
        if !path.is_empty() {
            given.put("dbname", decode("dbname", path)?)?;
        }
        pairs(query, &mut given)?;
        Self::normal(given, files)
    }

    fn normal(mut given: Given, files: &Files) -> Result<Self, UriError> {
        let hosts = hosts(&mut given)?;
        let Some(user) = given.take("user") else { return fault("user", Problem::Missing) };
        let password = given.take("password").map(Secret);
        let dbname = given.take("dbname").unwrap_or_else(|| user.clone());
        let connect_timeout = match given.number("connect_timeout", 3600, 0)? {
            0 => 10,
            seconds => seconds,
        };
        let application_name = given.take("application_name").unwrap_or_else(|| "tailrace".to_owned());
        if application_name.len() > 63 || !application_name.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return malformed("application_name");
        }
        let root = given.take("sslrootcert");
        let sslrootcert = match files.ca.clone().or(root) {
            Some(name) if name == "system" => Some(RootCert::System),
            other => other.map(RootCert::File),
        };
        let modes = [
            ("disable", SslMode::Disable),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::Require),
            ("verify-ca", SslMode::VerifyCa),
            ("verify-full", SslMode::VerifyFull),
        ];
        let usual = if sslrootcert == Some(RootCert::System) { SslMode::VerifyFull } else { SslMode::Prefer };
        let sslmode = given.word("sslmode", &modes, usual)?;
        if sslrootcert == Some(RootCert::System) && sslmode != SslMode::VerifyFull {
            return malformed("sslmode");
        }
        if sslrootcert.is_none() && sslmode >= SslMode::VerifyCa {
            return fault("sslrootcert", Problem::Missing);
        }
        let (certificate, key) = (given.take("sslcert"), given.take("sslkey"));
        let sslcert = match (files.certificate.clone().or(certificate), files.key.clone().or(key)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return fault("sslkey", Problem::Missing),
            (None, Some(_)) => return fault("sslcert", Problem::Missing),
        };
        let bindings = [("disable", ChannelBinding::Disable), ("prefer", ChannelBinding::Prefer), ("require", ChannelBinding::Require)];
        let attrs = [
            ("any", SessionAttrs::Any),
            ("read-write", SessionAttrs::ReadWrite),
            ("read-only", SessionAttrs::ReadOnly),
            ("primary", SessionAttrs::Primary),
            ("standby", SessionAttrs::Standby),
            ("prefer-standby", SessionAttrs::PreferStandby),
        ];
        Ok(Self {
            hosts,
            user,
            password,
            dbname,
            connect_timeout: Duration::from_secs(connect_timeout.into()),
            application_name,
            sslmode,
            sslrootcert,
            sslcert,
            channel_binding: given.word("channel_binding", &bindings, ChannelBinding::Prefer)?,
            target_session_attrs: given.word("target_session_attrs", &attrs, SessionAttrs::Any)?,
            load_balance_hosts: given.word("load_balance_hosts", &[("disable", false), ("random", true)], false)?,
            keepalives: given.number("keepalives", 1, 1)? == 1,
            keepalives_idle: given.number("keepalives_idle", 32_767, 30)?,
            keepalives_interval: given.number("keepalives_interval", 32_767, 10)?,
            keepalives_count: given.number("keepalives_count", 127, 3)?,
            tcp_user_timeout: given.number("tcp_user_timeout", i32::MAX as u32, 30_000)?,
            options: given.take("options"),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests;
