//! Settings: the command line, parsed once. May reject: unknown, repeated, missing or malformed flags, all reported together. IO: none.
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What `--help` says.
pub const USAGE: &str = "\
tailrace-dataplane --listen ADDR --admin ADDR --data DIR [--secret FILE] [--threads N] [--cache-size 32Mi] [--lame-duck 15s] [--drain-grace 30s]
tailrace-dataplane spool-status --data DIR    what the run spool of DIR holds, as JSON

  --listen ADDR       where callers connect (0.0.0.0:8080)
  --admin ADDR        /livez /readyz /metrics /status (0.0.0.0:9090)
  --data DIR          sockets, secrets and the run spool; required
  --secret FILE       the gateway's own secret (DIR/gateway-secret)
  --threads N         serving threads (one a core)
  --cache-size SIZE   bytes of answers that queries with a cache keep at most (32Mi)
  --lame-duck TIME    accept on for so long after SIGTERM (15s)
  --drain-grace TIME  then wait at most so long for calls under way and for their runs to be in the store (30s)
  --version           print the version
";

/// Of the response cache, bytes.
const CACHE_BYTES: usize = 32 << 20;

/// `EX_USAGE` of sysexits.h: the command line was wrong.
pub const EXIT_USAGE: u8 = 64;

/// Everything that a start decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Callers connect here; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The admin server.
    pub admin: SocketAddr,
    /// Sockets, secrets and spool (docs/contract.md).
    pub data: PathBuf,
    /// The API's own secret, from which mask and cursor keys come; read at each push.
    pub secret: PathBuf,
    /// Serving threads.
    pub threads: usize,
    /// Of the response cache, bytes.
    pub cache_bytes: usize,
    /// Accepting goes on for so long after SIGTERM, while `/readyz` fails and every answer closes its connection.
    pub lame_duck: Duration,
    /// Calls under way may take so long after that.
    pub drain_grace: Duration,
    /// What a client may send and how slowly.
    pub limits: Limits,
}

/// Bounds on clients. Not flags: tests shorten them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of a request head, bytes; more is 431.
    pub head_bytes: usize,
    /// Headers in a request; more is 431.
    pub headers: usize,
    /// Of a request body, bytes; more is 413.
    pub body_bytes: usize,
    /// From the first byte of a head to its last; later is 408.
    pub head_time: Duration,
    /// From the end of a head to the end of its body; later is 408.
    pub body_time: Duration,
    /// Between two requests.
    pub idle_time: Duration,
    /// A connection's answers say `Connection: close` after so long (± 10 %), so that clients find new pods.
    pub connection_age: Duration,
    /// Unsent output above which a connection is read no further, bytes.
    pub high_water: usize,
    /// Unsent output above which nothing more is made of an answer that comes in parts, over any HTTP, bytes.
    pub stream_high_water: usize,
    /// Streams of HTTP/2 that one connection may have open.
    pub streams: u32,
    /// Streams of one connection whose answers may be large, made or being made: exclusive ones.
    pub beside: u32,
    /// Bytes of request bodies that one connection of HTTP/2 may have under way.
    pub stream_bodies: usize,
    /// Streams of one connection that its client may have cancelled more than it let end; more ends the connection.
    pub cancelled: u32,
    /// A client that takes nothing of its output for so long is cut off.
    pub stall_time: Duration,
    /// Calls of one connection that are read and not yet answered; more stay in the socket.
    pub pipelined: u32,
    /// Connections of one thread; more are closed when accepted.
    pub connections: usize,
    /// Between two looks at the certificate's files.
    pub certificate_look: Duration,
    /// Calls of one database that wait on one thread; more are 503 `overloaded` at once.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 16 << 10,
            headers: 100,
            body_bytes: 1 << 20,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(75),
            connection_age: Duration::from_secs(600),
            high_water: 1 << 20,
            stream_high_water: 256 << 10,
            streams: 256,
            beside: 16,
            stream_bodies: 4 << 20,
            cancelled: 512,
            stall_time: Duration::from_secs(60),
            pipelined: 256,
            connections: 20_000,
            certificate_look: Duration::from_secs(2),
            waiting: 8_192,
        }
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve.
    Run(Box<Config>),
    /// Print `USAGE`.
    Help,
    /// Print the version.
    Version,
    /// Print what the spool of this data directory holds.
    SpoolStatus(PathBuf),
}

/// Every fault of a command line, one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Faults(pub String);

/// Reads the arguments after the program's name.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, Faults> {
    let mut faults = String::new();
    let mut fault = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(faults, "{text}");
    };
    let (mut listen, mut admin, mut data, mut secret) = (None, None, None, None);
    let (mut threads, mut cache, mut lame_duck, mut drain_grace) = (None, None, None, None);
    let mut arguments = arguments.peekable();
    let spool_status = arguments.next_if(|first| first == "spool-status").is_some();
    while let Some(argument) = arguments.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (argument, None),
        };
        match &*name {
            "--help" | "-h" => return Ok(Command::Help),
            "--version" | "-V" => return Ok(Command::Version),
            "--listen" | "--admin" | "--data" | "--secret" | "--threads" | "--cache-size" | "--lame-duck" | "--drain-grace" => {}
            _ => {
                fault(format_args!("{name}: unknown"));
                continue;
            }
        }
        let Some(value) = inline.or_else(|| arguments.next_if(|next| !next.starts_with("--"))) else {
            fault(format_args!("{name}: needs a value"));
            continue;
        };
        let slot = match &*name {
            "--listen" => &mut listen,
            "--admin" => &mut admin,
            "--data" => &mut data,
            "--secret" => &mut secret,
            "--threads" => &mut threads,
            "--cache-size" => &mut cache,
            "--lame-duck" => &mut lame_duck,
            _ => &mut drain_grace,
        };
        if slot.replace(value).is_some() {
            fault(format_args!("{name}: given twice"));
        }
    }
    let mut address = |name: &str, text: Option<String>, port: u16| {
        let text = text.unwrap_or_else(|| format!("0.0.0.0:{port}"));
        text.parse().unwrap_or_else(|_| {
            fault(format_args!("{name}: not an address such as 127.0.0.1:{port}"));
            SocketAddr::from(([0, 0, 0, 0], port))
        })
    };
    let listen = address("--listen", listen, 8080);
    let admin = address("--admin", admin, 9090);
    let data = data.filter(|dir| !dir.is_empty()).map(PathBuf::from).unwrap_or_else(|| {
        fault(format_args!("--data: required"));
        PathBuf::new()
    });
    let secret = secret.map_or_else(|| data.join("gateway-secret"), PathBuf::from);
    let threads = match threads.map(|text| text.parse::<usize>()) {
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        Some(Ok(n @ 1..=1024)) => n,
        Some(_) => {
            fault(format_args!("--threads: not a number from 1 to 1024"));
            1
        }
    };
    let cache_bytes = cache.map_or(Some(CACHE_BYTES), |text| size(&text)).unwrap_or_else(|| {
        fault(format_args!("--cache-size: not a size up to 64Gi such as 32Mi, or 0"));
        0
    });
    let mut time = |name: &str, text: Option<String>, otherwise: u64| match text.as_deref().map(duration) {
        None => Duration::from_secs(otherwise),
        Some(Some(time)) => time,
        Some(None) => {
            fault(format_args!("{name}: not a duration such as 15s or 1m30s"));
            Duration::ZERO
        }
    };
    let lame_duck = time("--lame-duck", lame_duck, 15);
    let drain_grace = time("--drain-grace", drain_grace, 30);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    if spool_status {
        return Ok(Command::SpoolStatus(data));
    }
    Ok(Command::Run(Box::new(Config {
        listen,
        admin,
        data,
        secret,
        threads,
        cache_bytes,
        lame_duck,
        drain_grace,
        limits: Limits::default(),
    })))
}

/// `^[0-9]+(Ki|Mi|Gi)?$`, at most 64 GiB.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: usize = match text.get(digits.len()..)? {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    let number = digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)?;
    number.parse::<usize>().ok()?.checked_mul(factor).filter(|&bytes| bytes <= 64 << 30)
}

/// `^([0-9]+(ms|s|m|h|d))+$`, at most 100 days.
fn duration(text: &str) -> Option<Duration> {
    let mut total = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let unit = after.len() - after.trim_start_matches(|c: char| c.is_ascii_lowercase()).len();
        let (unit, after) = after.split_at(unit);
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(factor)?)?;
        rest = after;
    }
    (!text.is_empty() && total <= 8_640_000_000).then(|| Duration::from_millis(total))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, Faults> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_spool_can_be_asked_for() {
        assert_eq!(read("spool-status --data d"), Ok(Command::SpoolStatus("d".into())));
        assert_eq!(read("spool-status"), Err(Faults("--data: required\n".into())));
        assert!(read("--data d spool-status").is_err());
    }

    #[test]
    fn all_flags_are_read() {
        let line = "--listen 127.0.0.1:0 --admin=[::1]:9 --data .d --threads 3 --cache-size 5Ki --lame-duck 0s --drain-grace 1m30s";
        let Command::Run(config) = read(line).unwrap() else { unreachable!() };
        assert_eq!(config.listen, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.admin, "[::1]:9".parse().unwrap());
        assert_eq!(config.secret, PathBuf::from(".d/gateway-secret"));
        assert_eq!(config.cache_bytes, 5 << 10);
        assert_eq!((config.threads, config.lame_duck, config.drain_grace), (3, Duration::ZERO, Duration::from_secs(90)));
    }

    #[test]
    fn the_secret_may_be_mounted_elsewhere() {
        let Command::Run(config) = read("--data d --secret /etc/tailrace/gateway/secret").unwrap() else { unreachable!() };
        assert_eq!(config.secret, PathBuf::from("/etc/tailrace/gateway/secret"));
    }

    #[test]
    fn all_faults_are_reported_together() {
        let faults = read("--listen nowhere --threads 0 --lame-duck 5 --port 1 --admin").unwrap_err().0;
        let names: Vec<_> = faults.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names, ["--port", "1", "--admin", "--listen", "--data", "--threads", "--lame-duck"]);
    }

    #[test]
    fn a_repeated_flag_is_a_fault() {
        assert!(read("--data a --data b").unwrap_err().0.contains("given twice"));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("1", 1), ("2Ki", 2 << 10), ("32Mi", 32 << 20), ("64Gi", 64 << 30)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "Mi", "1M", "1.5Mi", "-1", "65Gi", "1 Mi", "99999999999999999999Gi", "+1"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [("0s", 0), ("15ms", 15), ("1h2m3s4ms", 3_723_004), ("2d", 172_800_000)] {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "1s ", "-1s", "1.5s", "1S", "99999999999999999999s", "101d", "1s2"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
