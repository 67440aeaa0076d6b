//! Settings: command line and plan file → one `Load`, checked whole. May reject: anything that would be another load than meant,
//! a target that is not loopback. IO: reads the plan, key and API key files; resolves nothing but IP addresses and `localhost`.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::arrivals::Process;
use crate::connection::Transport;
use crate::cpu::Watched;
use crate::template::{BadTemplate, Body, Expect, Keys, Parts, Pattern, Template};

/// Why there is no load to run.
#[derive(Debug, thiserror::Error)]
pub enum BadSettings {
    /// Not `http[s]://HOST[:PORT][/]`.
    #[error("--url must be http://ADDRESS[:PORT] or https:// with an IP address or localhost")]
    Url,
    /// Nobody to trust.
    #[error("https:// needs --ca with the certificates to trust, and no other scheme may have it: {0}")]
    Trust(String),
    /// The generator is for private test machines.
    #[error("--url is not a loopback address (give --allow-remote if that server is yours to load)")]
    Remote,
    /// Out of its range.
    #[error("{0}")]
    Range(&'static str),
    /// A file.
    #[error("{0} cannot be read: {1}")]
    File(String, String),
    /// A template.
    #[error("request {0:?}: {1}")]
    Template(String, BadTemplate),
    /// Nothing to ask.
    #[error("give --path or a --plan with at least one request of a weight above 0")]
    NoRequest,
}

/// The command line.
#[derive(Debug, clap::Parser)]
#[command(
    name = "tailrace-generator",
    version,
    args_override_self = true,
    about = "HTTP load that checks every answer and keeps every run id"
)]
pub struct Arguments {
    /// Server, as http://127.0.0.1:8080, or https://localhost:8443 with --ca
    #[arg(long)]
    url: String,
    /// PEM file of the certificates that an https server may be signed by
    #[arg(long)]
    ca: Option<PathBuf>,
    /// HTTP/2 from the first byte (with TLS: by ALPN); --depth is how many streams a connection has under way
    #[arg(long)]
    h2: bool,
    /// JSON file with several request templates: {"requests": [{"name", "weight", "method", "path", "headers", "body", "keys",
    /// "expect": {"status": [200], "contains" | "prefix" | "equals"}}]}
    #[arg(long, conflicts_with_all = ["path", "keys", "body", "method", "contains", "prefix", "equals", "expect_status"])]
    plan: Option<PathBuf>,
    /// Request target of the only template; {} is the key
    #[arg(long)]
    path: Option<String>,
    /// Method of the only template
    #[arg(long, default_value = "GET")]
    method: String,
    /// Body of the only template; {} is the key
    #[arg(long)]
    body: Option<String>,
    /// So many calls in each request of the only template: --body is one call's object, --contains what each entry of the answer holds
    #[arg(long, requires = "body")]
    bulk: Option<u32>,
    /// Keys of the only template: FROM..TO (inclusive), or @FILE of lines, their fields ({0}, {1}, …) split by tabs
    #[arg(long)]
    keys: Option<String>,
    /// Header of every request, `Name: value` (repeatable)
    #[arg(long = "header")]
    headers: Vec<String>,
    /// File of API keys, one a line, used round robin as X-API-Key
    #[arg(long)]
    api_keys: Option<PathBuf>,
    /// Status that is right (repeatable; 200 if none)
    #[arg(long)]
    expect_status: Vec<u16>,
    /// What a right body holds; {} is the key
    #[arg(long, conflicts_with_all = ["prefix", "equals"])]
    contains: Option<String>,
    /// How a right body begins
    #[arg(long, conflicts_with = "equals")]
    prefix: Option<String>,
    /// What a right body is
    #[arg(long)]
    equals: Option<String>,
    /// Status that is neither right nor wrong, only counted (repeatable)
    #[arg(long)]
    tolerate: Vec<u16>,
    /// Keep-alive connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Calls under way on one connection; a closed loop writes so many at once, each time after the last one's answers (with --h2: keeps
    /// so many under way)
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Calls per second of an open loop; without it the loop is closed
    #[arg(long)]
    rate: Option<f64>,
    /// Gaps between the calls of an open loop
    #[arg(long, value_enum, default_value = "constant")]
    arrivals: Process,
    /// How long calls are sent, as 10s or 500ms (at most 24h)
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// How much of it at its begin doesn't count in the report (run ids are kept all the same)
    #[arg(long, default_value = "0s", value_parser = duration)]
    warm_up: Duration,
    /// End after so many calls, if that comes before --duration
    #[arg(long)]
    calls: Option<u64>,
    /// End as soon as this file is there, if that comes before --duration
    #[arg(long)]
    until: Option<PathBuf>,
    /// A call without its answer for so long is an error and closes its connection
    #[arg(long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// How long answers are waited for at the end
    #[arg(long, default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// File for the run ids of complete answers, a line each
    #[arg(long)]
    run_ids: Option<PathBuf>,
    /// Add to --run-ids instead of replacing it
    #[arg(long)]
    run_ids_append: bool,
    /// Process whose CPU time is reported, with its children: NAME=PID (repeatable)
    #[arg(long, value_parser = watched)]
    cpu: Vec<Watched>,
    /// Same seed, same calls
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the report here
    #[arg(long)]
    report: Option<PathBuf>,
    /// Load a server that is not on this machine
    #[arg(long)]
    allow_remote: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    requests: Vec<RequestFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFile {
    name: String,
    #[serde(default = "one")]
    weight: u64,
    #[serde(default = "get")]
    method: String,
    path: String,
    #[serde(default)]
    headers: Vec<String>,
    body: Option<String>,
    bulk: Option<u32>,
    keys: Option<String>,
    #[serde(default)]
    expect: ExpectFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectFile {
    #[serde(default)]
    status: Vec<u16>,
    contains: Option<String>,
    prefix: Option<String>,
    equals: Option<String>,
}

const fn one() -> u64 {
    1
}

fn get() -> String {
    "GET".to_owned()
}

/// Everything a run needs, checked.
#[derive(Debug)]
pub struct Load {
    /// Where to.
    pub target: SocketAddr,
    /// In which protocol.
    pub transport: Transport,
    /// What to ask.
    pub templates: Vec<Template>,
    /// Used round robin; empty: none is sent.
    pub api_keys: Vec<Vec<u8>>,
    /// Statuses that are only counted.
    pub tolerate: Vec<u16>,
    /// ≥ 1.
    pub connections: usize,
    /// ≥ 1.
    pub depth: usize,
    /// None: closed loop.
    pub rate: Option<f64>,
    /// Of an open loop.
    pub arrivals: Process,
    /// How long calls are sent.
    pub duration: Duration,
    /// Not counted.
    pub warm_up: Duration,
    /// Upper bound of calls.
    pub calls: u64,
    /// File whose appearance is the end.
    pub until: Option<PathBuf>,
    /// Per call.
    pub timeout: Duration,
    /// At the end.
    pub grace: Duration,
    /// Log of run ids.
    pub run_ids: Option<PathBuf>,
    /// Keep what is there.
    pub run_ids_append: bool,
    /// Whose CPU time is reported.
    pub watched: Vec<Watched>,
    /// Of keys and arrivals.
    pub seed: u64,
    /// Copy of the report.
    pub report: Option<PathBuf>,
}

/// `([0-9]+(ms|s|m|h))+`, at most 24 hours.
fn duration(text: &str) -> Result<Duration, String> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err("use ms, s, m or h, as in 500ms or 1m30s".to_owned()),
        };
        let number: u64 = number.parse().map_err(|_| "not a duration".to_owned())?;
        total += Duration::from_millis(number.saturating_mul(unit_ms).min(1 << 40));
        rest = tail;
    }
    if text.is_empty() || total > Duration::from_secs(86_400) { Err("a duration of at most 24h".to_owned()) } else { Ok(total) }
}

fn watched(text: &str) -> Result<Watched, String> {
    let (name, pid) = text.split_once('=').ok_or("NAME=PID")?;
    Ok(Watched { name: name.to_owned(), pid: pid.parse().map_err(|_| "PID is a number")? })
}

/// Trust in the certificates of one file, and the protocol that is offered.
fn tls(ca: &Path, authority: &str, is_h2: bool) -> Result<(Arc<ClientConfig>, ServerName<'static>), BadSettings> {
    let bad = |text: String| BadSettings::Trust(text);
    let mut roots = RootCertStore::empty();
    for found in CertificateDer::pem_slice_iter(&read(ca)?) {
        roots.add(found.map_err(|error| bad(error.to_string()))?).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("it holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.map_err(|error| bad(error.to_string()))?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![if is_h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let host =
        authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())).map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| bad(error.to_string()))?;
    Ok((Arc::new(config), name))
}

/// Address and Host header of a URL.
fn target(url: &str, allow_remote: bool) -> Result<(SocketAddr, String), BadSettings> {
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or(BadSettings::Url)?;
    let default = if url.starts_with("https") { 443 } else { 80 };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let address = if let Ok(address) = authority.parse::<SocketAddr>() {
        address
    } else if let Ok(ip) = authority.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        SocketAddr::new(ip, default)
    } else {
        let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
        let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| BadSettings::Url))?;
        if host != "localhost" {
            return Err(BadSettings::Url);
        }
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    };
    if !address.ip().is_loopback() && !allow_remote { Err(BadSettings::Remote) } else { Ok((address, authority.to_owned())) }
}

fn read(path: &Path) -> Result<Vec<u8>, BadSettings> {
    std::fs::read(path).map_err(|error| BadSettings::File(path.display().to_string(), error.to_string()))
}

impl Arguments {
    fn requests(&self) -> Result<Vec<RequestFile>, BadSettings> {
        if let Some(path) = &self.plan {
            let plan: PlanFile =
                serde_json::from_slice(&read(path)?).map_err(|error| BadSettings::File(path.display().to_string(), error.to_string()))?;
            return Ok(plan.requests);
        }
        let Some(path) = self.path.clone() else { return Ok(Vec::new()) };
        let expect = ExpectFile {
            status: self.expect_status.clone(),
            contains: self.contains.clone(),
            prefix: self.prefix.clone(),
            equals: self.equals.clone(),
        };
        let (method, body, keys) = (self.method.clone(), self.body.clone(), self.keys.clone());
        Ok(vec![RequestFile { name: "only".to_owned(), weight: 1, method, path, headers: Vec::new(), body, bulk: self.bulk, keys, expect }])
    }

    fn template(&self, request: RequestFile, host: &str) -> Result<Template, BadSettings> {
        let bad = |error| BadSettings::Template(request.name.clone(), error);
        let keys = request.keys.as_deref().map_or(Ok(Keys::None), Keys::read).map_err(bad)?;
        let headers: Vec<String> = self.headers.iter().chain(&request.headers).cloned().collect();
        let ExpectFile { mut status, contains, prefix, equals } = request.expect;
        if status.is_empty() {
            status.push(200);
        }
        let body = match (contains, prefix, equals) {
            (Some(text), None, None) => Body::Contains(Pattern::parse(&text)),
            (None, Some(text), None) => Body::Prefix(Pattern::parse(&text)),
            (None, None, Some(text)) => Body::Equals(Pattern::parse(&text)),
            (None, None, None) => Body::Any,
            _ => return Err(BadSettings::Range("expect at most one of contains, prefix, equals")),
        };
        let parts = Parts { method: &request.method, path: &request.path, headers: &headers, body: request.body.as_deref(), host };
        let expect = Expect { statuses: status, body };
        let template = Template::new(request.name.clone(), request.weight, &parts, keys, expect).map_err(bad)?;
        match request.bulk {
            None => Ok(template),
            // Of an open loop it would be unclear what comes due; over HTTP/2 its body would need flow control.
            Some(_) if self.rate.is_some() || self.h2 || request.body.is_none() => {
                Err(BadSettings::Range("a bulk has a body, and is of a closed loop over HTTP/1.1"))
            }
            Some(calls @ 1..=256) => Ok(template.in_bulk(calls)),
            Some(_) => Err(BadSettings::Range("a bulk is of 1 to 256 calls")),
        }
    }

    /// Checks everything and reads the files.
    pub fn load(self) -> Result<Load, BadSettings> {
        let (target, host) = target(&self.url, self.allow_remote)?;
        let transport = match (self.url.starts_with("https://"), &self.ca) {
            (true, Some(ca)) => Transport { is_h2: self.h2, tls: Some(tls(ca, &host, self.h2)?) },
            (false, None) => Transport { is_h2: self.h2, tls: None },
            (true, None) => return Err(BadSettings::Trust("there is none".to_owned())),
            (false, Some(_)) => return Err(BadSettings::Trust("the scheme is http".to_owned())),
        };
        if self.connections == 0 || self.connections > 10_000 {
            return Err(BadSettings::Range("--connections is 1 to 10000"));
        }
        if self.depth == 0 || self.depth > 256 {
            return Err(BadSettings::Range("--depth is 1 to 256"));
        }
        if self.rate.is_some_and(|rate| !(rate.is_finite() && (0.001..=10_000_000.0).contains(&rate))) {
            return Err(BadSettings::Range("--rate is 0.001 to 10000000 calls per second"));
        }
        if self.warm_up >= self.duration {
            return Err(BadSettings::Range("--warm-up must be shorter than --duration"));
        }
        if self.timeout.is_zero() {
            return Err(BadSettings::Range("--timeout must be above 0"));
        }
        let requests = self.requests()?;
        if requests.iter().all(|request| request.weight == 0) || requests.iter().any(|request| request.weight > 1 << 32) {
            return Err(BadSettings::NoRequest);
        }
        let templates = requests.into_iter().map(|request| self.template(request, &host)).collect::<Result<Vec<_>, _>>()?;
        let mut api_keys = Vec::new();
        if let Some(path) = &self.api_keys {
            let visible = |line: &&[u8]| !line.is_empty() && line.iter().all(u8::is_ascii_graphic);
            api_keys = read(path)?.split(|&byte| byte == b'\n').filter(visible).map(<[u8]>::to_vec).collect();
            if api_keys.is_empty() {
                return Err(BadSettings::Range("the file of --api-keys holds no key"));
            }
        }
        Ok(Load {
            target,
            transport,
            templates,
            api_keys,
            tolerate: self.tolerate,
            connections: self.connections,
            depth: self.depth,
            rate: self.rate,
            arrivals: self.arrivals,
            duration: self.duration,
            warm_up: self.warm_up,
            calls: self.calls.unwrap_or(u64::MAX),
            until: self.until,
            timeout: self.timeout,
            grace: self.grace,
            run_ids: self.run_ids,
            run_ids_append: self.run_ids_append,
            watched: self.cpu,
            seed: self.seed,
            report: self.report,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;

    fn load(words: &[&str]) -> Result<Load, String> {
        let words = ["tailrace-generator"].iter().chain(words);
        Arguments::try_parse_from(words).map_err(|error| error.to_string())?.load().map_err(|error| error.to_string())
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        for bad in ["", "5", "s", "1d", "25h", "-1s", "99999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_loopback_unless_allowed() {
        for good in ["http://127.0.0.1:80", "http://localhost:8080/", "http://[::1]:9", "http://127.0.0.1"] {
            assert!(target(good, false).is_ok(), "{good}");
        }
        for bad in ["http://10.0.0.1:80", "http://[2001:db8::1]:80", "http://0.0.0.0:80"] {
            assert!(matches!(target(bad, false), Err(BadSettings::Remote)), "{bad}");
            assert!(target(bad, true).is_ok(), "{bad}");
        }
        for bad in ["ftp://127.0.0.1", "127.0.0.1:80", "http://example.org", "http://localhost.example.org:80", "http://user@127.0.0.1"] {
            assert!(matches!(target(bad, true), Err(BadSettings::Url)), "{bad}");
        }
    }

    #[test]
    fn what_is_not_meant_is_refused() {
        let url = ["--url", "http://127.0.0.1:1"];
        let with = |words: &[&str]| load(&[&url[..], words].concat());
        assert!(with(&["--path", "/q/a?id={}", "--keys", "1..9", "--contains", "{}"]).is_ok());
        assert!(with(&[]).unwrap_err().contains("--path"));
        for bad in [
            &["--path", "/q/a?id={1}", "--keys", "1..9"][..],
            &["--path", "/q/a?id={}"],
            &["--path", "/a", "--contains", "{}"],
            &["--path", "/a b"],
            &["--path", "/a", "--header", "no colon"],
            &["--path", "/a", "--header", "A: b\r\nC: d"],
            &["--path", "/a", "--keys", "9..1"],
            &["--path", "/a", "--keys", "@/does/not/exist"],
            &["--path", "/a", "--connections", "0"],
            &["--path", "/a", "--rate", "NaN"],
            &["--path", "/a", "--duration", "1s", "--warm-up", "1s"],
            &["--path", "/a", "--prefix", "a", "--equals", "b"],
            &["--path", "/a", "--ca", "/dev/null"],
            &["--path", "/a", "--bulk", "4"],
            &["--path", "/a", "--bulk", "0", "--body", "{}", "--keys", "1..2"],
            &["--path", "/a", "--bulk", "4", "--body", "{}", "--keys", "1..2", "--h2"],
            &["--path", "/a", "--bulk", "4", "--body", "{}", "--keys", "1..2", "--rate", "5"],
            &["--path", "/a", "--url", "https://127.0.0.1:1"],
            &["--path", "/a", "--url", "https://127.0.0.1:1", "--ca", "/dev/null"],
        ] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
    }
}
