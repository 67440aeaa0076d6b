//! What happens, said once: an `Observation` becomes one JSON line and, where it counts something, a metric (docs/metrics.md).
//! Nothing here can hold SQL, values, digests or host names: fields are numbers, codes, and names that the API's owner chose.
//! IO: writes to the sink (standard error).
pub mod meter;
pub mod prometheus;
pub mod reach;

use crate::plan::report::{GatewayReport, Report};
use crate::plan::snapshot::{Snapshot, Source};
use crate::runs::spool::SpoolStatus;
use meter::{Meter, Slots};
use reach::Reach;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines of one event a second; what is beyond is counted into the next line's `suppressed`.
const LINES_A_SECOND: u64 = 20;
/// A gateway that has not asked on the plans socket for this long is down, whatever else it does; it asks twice a second.
const GATEWAY_SILENT: Duration = Duration::from_secs(10);
/// No time yet.
const NEVER: u64 = u64::MAX;
/// A connection whose plans could not be compiled for this long no longer keeps the pod unready.
const FAILING_IS_FINAL: Duration = Duration::from_secs(30);

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Info,
    /// Works, but somebody should look.
    Warning,
    /// Something that should work doesn't.
    Error,
}

/// A field of a log line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// A number.
    Number(u64),
    /// A name or code.
    Text(&'a str),
}

macro_rules! observations {
    ($($(#[$doc:meta])* $name:ident => $event:literal, $level:ident $({ $($(#[$fdoc:meta])* $field:ident: $type:ident),* })?;)*) => {
        /// Everything that happens in the data plane and that somebody may want to know.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Observation {
            $($(#[$doc])* $name $({ $($(#[$fdoc])* $field: observations!(@type $type)),* })?,)*
        }

        impl Observation {
            /// Names of all events, for the documentation's test.
            pub const EVENTS: &'static [&'static str] = &[$($event),*];

            /// The event's name in the log.
            pub const fn event(&self) -> &'static str {
                match self { $(Self::$name $({ $($field: _),* })? => $event,)* }
            }

            /// How much it matters.
            pub const fn level(&self) -> Level {
                match self { $(Self::$name $({ $($field: _),* })? => Level::$level,)* }
            }

            /// Its fields in the log.
            pub fn fields(&self) -> Vec<(&'static str, Field<'_>)> {
                match self { $(Self::$name $({ $($field),* })? => vec![$($((stringify!($field), observations!(@field $type $field))),*)?],)* }
            }
        }
    };
    (@type number) => { u64 };
    (@type code) => { &'static str };
    (@type name) => { Arc<str> };
    (@field number $field:ident) => { Field::Number(*$field) };
    (@field code $field:ident) => { Field::Text($field) };
    (@field name $field:ident) => { Field::Text($field) };
}

observations! {
    /// The process has its settings.
    Starting => "starting", Info {
        /// Serving threads.
        threads: number
    };
    /// Calls are accepted.
    Listening => "listening", Info {
        /// TCP port.
        port: number
    };
    /// A snapshot serves on every thread.
    SnapshotApplied => "snapshot_applied", Info {
        /// Of the snapshot.
        version: number,
        /// In it.
        queries: number,
        /// In it.
        keys: number,
        /// From its last byte to the swap on the last thread.
        took_us: number
    };
    /// A pushed snapshot was refused whole; the old one serves on.
    SnapshotRefused => "snapshot_refused", Error {
        /// Why.
        reason: code
    };
    /// A database answers (again).
    DatabaseUp => "database_up", Info {
        /// Which.
        connection: name
    };
    /// A database doesn't answer.
    DatabaseDown => "database_down", Error {
        /// Which.
        connection: name,
        /// Why.
        reason: code
    };
    /// A mounted credential changed and is used from now on.
    CredentialsReloaded => "credentials_reloaded", Info {
        /// Whose.
        connection: name
    };
    /// A query has shown itself fast.
    QueryPromoted => "query_promoted", Info {
        /// Which.
        query: name
    };
    /// A query has left the shared lane.
    QueryDemoted => "query_demoted", Warning {
        /// Which.
        query: name,
        /// Why.
        reason: code
    };
    /// The database describes other columns than the plan.
    PlanStale => "plan_stale", Warning {
        /// Which.
        query: name
    };
    /// Python doesn't answer on its socket.
    GatewayDown => "gateway_down", Warning {
        /// Why.
        reason: code
    };
    /// Python answers again.
    GatewayUp => "gateway_up", Info;
    /// No room for another segment.
    SpoolFull => "spool_full", Error {
        /// Pre-allocated.
        bytes: number,
        /// The bound.
        bound_bytes: number
    };
    /// There is room again.
    SpoolFree => "spool_free", Info {
        /// Pre-allocated.
        bytes: number
    };
    /// A segment could not be made, written or synced.
    SpoolFailing => "spool_failing", Error {
        /// The kind of IO error.
        reason: code
    };
    /// More than half of the bound is used.
    SpoolFilling => "spool_filling", Warning {
        /// Pre-allocated.
        bytes: number,
        /// The bound.
        bound_bytes: number
    };
    /// What former processes left has been carried to the store.
    SpoolReplayed => "spool_replayed", Info {
        /// Segments of former epochs.
        segments: number,
        /// Runs that the store lacked.
        runs: number,
        /// Streams that had no end.
        aborted: number
    };
    /// A segment ends with bytes that are no block: torn by a kill or power loss, never answered.
    SegmentTorn => "segment_torn", Warning {
        /// Number within its epoch.
        segment: number,
        /// Offset of the first unreadable byte.
        offset: number
    };
    /// A file in the spool that can't be read; it was renamed to `.bad` and is kept.
    SegmentUnreadable => "segment_unreadable", Error {
        /// Why.
        reason: code
    };
    /// Runs were dropped under `onFull: drop`.
    RunsDropped => "runs_dropped", Error {
        /// How many since the last such line.
        runs: number
    };
    /// The run store takes nothing; the spool grows.
    StoreFailing => "store_failing", Error {
        /// Why.
        reason: code
    };
    /// The run store takes runs again.
    StoreRecovered => "store_recovered", Info {
        /// How long it didn't.
        failing_ms: number
    };
    /// The snapshot names another run store. Runs go to the one of the first snapshot until this process is started anew.
    StoreChanged => "store_changed", Warning {};
    /// SIGTERM: the lame duck begins.
    Draining => "draining", Info {
        /// How long new connections are still taken.
        lame_duck_ms: number
    };
    /// All calls are answered or the grace is over.
    Drained => "drained", Info {
        /// Calls cut off.
        calls_cut: number,
        /// Runs that stay in the spool.
        runs_left: number
    };
    /// A defect of ours that was contained.
    InternalError => "internal_error", Error {
        /// Where.
        place: code
    };
}

struct Pace {
    since: Instant,
    lines: u64,
    suppressed: u64,
}

/// One connection as readiness sees it.
#[derive(Clone, Debug)]
pub struct ConnectionHealth {
    /// Its name.
    pub name: Arc<str>,
    /// None: compiled. Else since when every plan of it is refused because it can't be reached.
    pub failing_since: Option<Instant>,
}

/// What `/status` and `/readyz` say of the current snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotHealth {
    /// Of the snapshot.
    pub version: u64,
    /// When it was swapped in.
    pub applied: SystemTime,
    /// What it acknowledges.
    pub sources: Arc<[Source]>,
    /// Queries in it.
    pub queries: u64,
    /// Queries in it that every role is refused.
    pub refused: u64,
    /// Keys in it.
    pub keys: u64,
    /// Its databases.
    pub connections: Arc<[ConnectionHealth]>,
    /// What the gateway says of it; None until it has.
    pub gateway: Option<Arc<GatewayReport>>,
}

/// What the shipper says of itself.
#[derive(Debug, Default)]
pub struct ShipHealth {
    /// Runs inserted.
    pub shipped: AtomicU64,
    /// Runs that the spool holds and the store lacks, as the shipper saw last.
    pub waiting: AtomicU64,
    /// Of the last inserted run, µs since 1970.
    pub newest_us: AtomicU64,
    /// Runs recorded as aborted.
    pub aborted: AtomicU64,
    /// Failed attempts.
    pub failures: AtomicU64,
    /// The last attempt failed.
    pub failing: AtomicBool,
}

/// Where everything that happens is reported to, and what the admin port reads. One for the process.
pub struct Observer {
    sink: Mutex<Box<dyn Write + Send>>,
    paces: Mutex<Vec<Pace>>,
    /// Names of queries in metrics.
    pub slots: Slots,
    meters: Mutex<Vec<Arc<Meter>>>,
    snapshot: Mutex<Option<SnapshotHealth>>,
    reaches: Mutex<Vec<Arc<Reach>>>,
    /// The shipper's own figures.
    pub ship: ShipHealth,
    spool: Mutex<Option<Box<dyn Fn() -> SpoolStatus + Send>>>,
    draining: AtomicBool,
    gateway_down: AtomicBool,
    gateway_left: AtomicBool,
    /// Since `began`, when the gateway last asked on the plans socket.
    heard_ms: AtomicU64,
    lines: [AtomicU64; 3],
    started: SystemTime,
    began: Instant,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

/// What these locks guard is whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observer {
    /// Reports into `sink`, one line an event.
    pub fn new(sink: Box<dyn Write + Send>) -> Arc<Self> {
        let paces = Observation::EVENTS.iter().map(|_| Pace { since: Instant::now(), lines: 0, suppressed: 0 });
        Arc::new(Self {
            sink: Mutex::new(sink),
            paces: Mutex::new(paces.collect()),
            slots: Slots::default(),
            meters: Mutex::new(Vec::new()),
            snapshot: Mutex::new(None),
            reaches: Mutex::new(Vec::new()),
            ship: ShipHealth::default(),
            spool: Mutex::new(None),
            draining: AtomicBool::new(false),
            gateway_down: AtomicBool::new(false),
            gateway_left: AtomicBool::new(false),
            heard_ms: AtomicU64::new(NEVER),
            lines: [const { AtomicU64::new(0) }; 3],
            started: SystemTime::now(),
            began: Instant::now(),
        })
    }

    /// Reports to standard error.
    pub fn stderr() -> Arc<Self> {
        Self::new(Box::new(std::io::stderr()))
    }

    /// Reports nowhere; metrics count all the same.
    pub fn silent() -> Arc<Self> {
        Self::new(Box::new(std::io::sink()))
    }

    /// Counts and logs. Not for the hot path: that is what a `Meter` is for.
    pub fn report(&self, observation: &Observation) {
        let level = match observation.level() {
            Level::Info => 0,
            Level::Warning => 1,
            Level::Error => 2,
        };
        if let Some(lines) = self.lines.get(level) {
            lines.fetch_add(1, Ordering::Relaxed);
        }
        match observation {
            Observation::Draining { .. } => self.draining.store(true, Ordering::Relaxed),
            Observation::GatewayDown { .. } => self.gateway_down.store(true, Ordering::Relaxed),
            Observation::GatewayUp => self.gateway_down.store(false, Ordering::Relaxed),
            _ => {}
        }
        let Some(suppressed) = self.pace(observation.event()) else { return };
        let line = line(observation, SystemTime::now(), suppressed);
        let _ = lock(&self.sink).write_all(line.as_bytes());
    }

    /// None: not now. Else how many lines of this event were held back before.
    fn pace(&self, event: &str) -> Option<u64> {
        let mut paces = lock(&self.paces);
        let pace = Observation::EVENTS.iter().position(|e| *e == event).and_then(|n| paces.get_mut(n))?;
        if pace.since.elapsed() >= Duration::from_secs(1) {
            (pace.since, pace.lines) = (Instant::now(), 0);
        }
        if pace.lines >= LINES_A_SECOND {
            pace.suppressed += 1;
            return None;
        }
        pace.lines += 1;
        Some(std::mem::take(&mut pace.suppressed))
    }

    /// A new thread's counters.
    pub fn meter(&self) -> Arc<Meter> {
        let meter = Arc::new(Meter::default());
        lock(&self.meters).push(meter.clone());
        meter
    }

    /// The counters of all threads.
    pub fn meters(&self) -> Vec<Arc<Meter>> {
        lock(&self.meters).clone()
    }

    /// Where what is found out about a database is kept: the same for all who ask by its name.
    pub fn reach(self: &Arc<Self>, connection: &str) -> Arc<Reach> {
        let mut reaches = lock(&self.reaches);
        if let Some(reach) = reaches.iter().find(|reach| reach.connection() == connection) {
            return reach.clone();
        }
        // Those of connections that no snapshot names any more.
        reaches.retain(|reach| Arc::strong_count(reach) > 1);
        let reach = Arc::new(Reach::new(connection, Arc::downgrade(self)));
        reaches.push(reach.clone());
        reach
    }

    /// The databases of the current snapshot, and why they cannot be reached.
    pub fn databases(&self) -> Vec<(Arc<str>, Option<&'static str>)> {
        let connections = self.snapshot().map(|snapshot| snapshot.connections);
        let reaches = lock(&self.reaches);
        let down = |name: &str| reaches.iter().find(|reach| reach.connection() == name).and_then(|reach| reach.down());
        connections.iter().flat_map(|all| all.iter()).map(|each| (each.name.clone(), down(&each.name))).collect()
    }

    /// Where the spool's figures come from.
    pub fn watch_spool(&self, status: Box<dyn Fn() -> SpoolStatus + Send>) {
        *lock(&self.spool) = Some(status);
    }

    /// The spool's figures, None before it is open.
    pub fn spool(&self) -> Option<SpoolStatus> {
        lock(&self.spool).as_ref().map(|status| status())
    }

    /// A snapshot serves on every thread: remembers what the admin port says of it. Report `SnapshotApplied` besides.
    pub fn snapshot_applied(&self, snapshot: &Snapshot) {
        let before = self.snapshot();
        let failing_before = |name: &str| before.iter().flat_map(|s| s.connections.iter()).find(|c| *c.name == *name)?.failing_since;
        let connections = snapshot.connections.iter().enumerate().map(|(n, connection)| {
            let mut queries = snapshot.queries.iter().filter(|q| q.connection as usize == n).peekable();
            let unreachable = queries.peek().is_some() && queries.all(|q| q.refused.as_deref() == Some("database_unreachable"));
            let failing_since = unreachable.then(|| failing_before(&connection.name).unwrap_or_else(Instant::now));
            ConnectionHealth { name: connection.name.as_str().into(), failing_since }
        });
        let health = SnapshotHealth {
            version: snapshot.version,
            applied: SystemTime::now(),
            sources: snapshot.sources.clone().into(),
            queries: snapshot.queries.len() as u64,
            refused: snapshot.queries.iter().filter(|q| q.refused.is_some()).count() as u64,
            keys: snapshot.keys.len() as u64,
            connections: connections.collect(),
            gateway: None,
        };
        *lock(&self.snapshot) = Some(health);
    }

    /// Takes what the gateway says of a snapshot; false when another one is in force.
    pub fn reported(&self, report: Report) -> bool {
        let mut snapshot = lock(&self.snapshot);
        let Some(health) = snapshot.as_mut().filter(|health| health.version == report.version) else { return false };
        health.sources = report.sources.into();
        health.gateway = Some(Arc::new(report.gateway));
        true
    }

    /// What was applied last.
    pub fn snapshot(&self) -> Option<SnapshotHealth> {
        lock(&self.snapshot).clone()
    }

    /// Whether the lame duck has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Python answered, or why it did not; told when that changes.
    pub fn gateway(&self, down: Option<&'static str>) {
        let was_down = self.gateway_down.load(Ordering::Relaxed);
        match down {
            Some(reason) if !was_down => self.report(&Observation::GatewayDown { reason }),
            None if was_down => self.report(&Observation::GatewayUp),
            Some(_) | None => {}
        }
    }

    /// Whether Python answered last, and has asked on the plans socket lately.
    pub fn is_gateway_up(&self) -> bool {
        let now_ms = self.began.elapsed().as_millis() as u64;
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        let lately = heard_ms != NEVER && now_ms.saturating_sub(heard_ms) <= GATEWAY_SILENT.as_millis() as u64;
        lately && !self.gateway_down.load(Ordering::Relaxed)
    }

    /// The gateway asked on the plans socket.
    pub fn gateway_heard(&self) {
        self.heard_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        if self.gateway_left.swap(false, Ordering::Relaxed) {
            self.gateway(None);
        }
    }

    /// The gateway closed its connection to the plans socket: the worker ended.
    pub fn gateway_left(&self) {
        self.gateway_left.store(true, Ordering::Relaxed);
        self.gateway(Some("left"));
    }

    /// When the process began.
    pub const fn started(&self) -> SystemTime {
        self.started
    }

    /// Lines by level: info, warning, error; suppressed ones count.
    pub fn lines(&self) -> [u64; 3] {
        self.lines.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// The checks of readiness with their outcomes; ready is the AND. Never touches a database.
    pub fn readiness(&self) -> Vec<(String, Result<(), &'static str>)> {
        let snapshot = self.snapshot();
        let mut checks = vec![
            ("serving".to_owned(), if self.is_draining() { Err("draining") } else { Ok(()) }),
            ("snapshot".to_owned(), if snapshot.is_some() { Ok(()) } else { Err("none yet") }),
            (
                "spool".to_owned(),
                match self.spool() {
                    Some(status) if status.failing => Err("not writable"),
                    Some(_) => Ok(()),
                    None => Err("not open"),
                },
            ),
        ];
        for connection in snapshot.iter().flat_map(|s| s.connections.iter()) {
            let outcome = match connection.failing_since {
                Some(since) if since.elapsed() < FAILING_IS_FINAL => Err("not compiled yet"),
                _ => Ok(()),
            };
            checks.push((format!("connection {}", connection.name), outcome));
        }
        checks
    }
}

/// One line of the log.
fn line(observation: &Observation, now: SystemTime, suppressed: u64) -> String {
    let level = match observation.level() {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let mut out = format!("{{\"ts\":\"{}\",\"level\":\"{level}\",\"event\":\"{}\"", timestamp(now), observation.event());
    for (name, field) in observation.fields() {
        match field {
            Field::Number(n) => out.push_str(&format!(",\"{name}\":{n}")),
            Field::Text(text) => {
                out.push_str(&format!(",\"{name}\":{}", serde_json::Value::from(text)));
            }
        }
    }
    if suppressed > 0 {
        out.push_str(&format!(",\"suppressed\":{suppressed}"));
    }
    out.push_str("}\n");
    out
}

/// RFC 3339, UTC, milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    let ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let (days, ms) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    // Civil date from days since 1970-01-01, in eras of 400 years that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sink that a test can read.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_observation_is_one_line_of_json() {
        let sink = Shared::default();
        let observer = Observer::new(Box::new(sink.clone()));
        observer.report(&Observation::DatabaseDown { connection: "or\"d\ners".into(), reason: "refused" });
        let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["event"], "database_down");
        assert_eq!(value["level"], "error");
        assert_eq!(value["connection"], "or\"d\ners");
        assert_eq!(observer.lines(), [0, 0, 1]);
    }

    #[test]
    fn a_flood_of_one_event_is_held_back_and_counted() {
        let sink = Shared::default();
        let observer = Observer::new(Box::new(sink.clone()));
        for _ in 0..1000 {
            observer.report(&Observation::PlanStale { query: "q".into() });
        }
        observer.report(&Observation::GatewayUp);
        let lines = String::from_utf8(lock(&sink.0).clone()).unwrap().lines().count() as u64;
        assert!((LINES_A_SECOND + 1..900).contains(&lines), "{lines}");
        assert_eq!(observer.lines(), [1, 1000, 0]);
    }

    #[test]
    fn the_gateways_coming_and_going_is_told_once() {
        let sink = Shared::default();
        let observer = Observer::new(Box::new(sink.clone()));
        assert!(!observer.is_gateway_up(), "not heard yet");
        observer.gateway_heard();
        for down in [None, Some("down"), Some("slow"), None, None] {
            observer.gateway(down);
        }
        let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
        let events: Vec<_> = text.lines().map(|line| line.contains("gateway_down")).collect();
        assert_eq!(events, [true, false]);
        assert!(observer.is_gateway_up());
        observer.gateway_left();
        observer.gateway(Some("slow"));
        assert!(!observer.is_gateway_up());
        observer.gateway_heard();
        assert!(observer.is_gateway_up());
        let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("gateway_")).count(), 4);
    }

    #[test]
    fn timestamps() {
        let at = |s: u64, ms: u64| timestamp(UNIX_EPOCH + Duration::from_millis(s * 1000 + ms));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400, 1), "2000-02-29T00:00:00.001Z");
        assert_eq!(at(1_798_761_599, 0), "2026-12-31T23:59:59.000Z");
    }

    proptest! {
        #[test]
        fn timestamps_agree_with_another_implementation(seconds in 0u64..4_102_444_800) {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            let http = httpdate::parse_http_date(&httpdate::fmt_http_date(at)).unwrap();
            prop_assert_eq!(timestamp(http), timestamp(at));
            let text = httpdate::fmt_http_date(at);
            prop_assert_eq!(&text[5..7], &timestamp(at)[8..10]);
            prop_assert_eq!(&text[12..16], &timestamp(at)[0..4]);
            prop_assert_eq!(&text[17..25], &timestamp(at)[11..19]);
        }
    }

    #[test]
    fn readiness_needs_a_snapshot_and_a_spool_and_no_drain() {
        let observer = Observer::silent();
        let failing = |o: &Observer| o.readiness().into_iter().filter(|c| c.1.is_err()).map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(failing(&observer), ["snapshot", "spool"]);
        observer.watch_spool(Box::new(SpoolStatus::default));
        let text = r#"{"schema":1,"version":7,"api":{"namespace":"n","name":"a","bigNumbers":"number","hideForbidden":false,
            "trustedProxies":[],"spoolSizeBytes":1048576,"onFull":"reject","durability":"process","runStore":{"embedded":{}}},
            "sources":[],"connections":[],"queries":[],"roles":[],"keys":[]}"#;
        observer.snapshot_applied(&serde_json::from_str(text).unwrap());
        assert_eq!(failing(&observer), [""; 0]);
        observer.report(&Observation::Draining { lame_duck_ms: 0 });
        assert_eq!(failing(&observer), ["serving"]);
    }
}
