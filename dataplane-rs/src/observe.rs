//! What happens, said once: an `Observation` becomes one JSON line and, where it counts something, a metric (docs/metrics.md).
//! Nothing here can hold SQL, values, digests or host names: fields are numbers, codes, and names that the API's owner chose.
//! IO: writes to the sink (standard error).
pub mod health;
pub mod meter;
pub mod observation;
pub mod prometheus;
pub mod reach;

pub use health::{ConnectionHealth, ShipHealth, SnapshotHealth, TlsHealth};
pub use observation::{Field, Level, Observation, timestamp};

use crate::plan::report::Report;
use crate::plan::snapshot::Snapshot;
use crate::runs::spool::SpoolStatus;
use meter::{Meter, Slots};
use observation::line;
use reach::Reach;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Lines of one event a second; what is beyond is counted into the next line's `suppressed`.
const LINES_A_SECOND: u64 = 20;
/// A gateway that has not asked on the plans socket for this long is down, whatever else it does; it asks twice a second.
const GATEWAY_SILENT: Duration = Duration::from_secs(10);
/// No time yet.
const NEVER: u64 = u64::MAX;
/// A connection whose plans could not be compiled for this long no longer keeps the pod unready.
const FAILING_IS_FINAL: Duration = Duration::from_secs(30);

struct Pace {
    since: Instant,
    lines: u64,
    suppressed: u64,
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
    /// The certificate's own.
    pub tls: TlsHealth,
    /// Bytes of kept answers.
    pub cache_bytes: AtomicU64,
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
            tls: TlsHealth::default(),
            cache_bytes: AtomicU64::new(0),
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
            ("tls".to_owned(), if self.tls.closed.load(Ordering::Relaxed) { Err("no certificate") } else { Ok(()) }),
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
