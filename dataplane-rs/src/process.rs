//! The process as a whole: Config → sockets and threads → serve → drain. The control thread (the caller's) takes plans and serves the
//! admin port; each serving thread has its own listener on the same address.
//! May reject: a directory that another process owns, an address that is taken. IO: listeners, `DIR`.
use crate::admin;
use crate::cache::Cache;
use crate::config::Config;
use crate::http::server::{self, Settings};
use crate::http::tls::Doors;
use crate::observe::{Observation, Observer};
use crate::plan::socket::{self, Pusher};
use crate::plan::store::Store;
use crate::runs::ship::{ShipSettings, Shipper};
use crate::runs::{Spool, SpoolError};
use crate::shutdown::{self, Phase, ProcessSignals, Signal};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Connections that wait to be accepted on each thread.
const BACKLOG: i32 = 1024;

/// Of `--drain-grace`, what calls under way leave for runs that are not in the store yet: so much, or a third of it if that is less.
/// When calls end earlier, runs have all that is left.
const SHIP_GRACE: Duration = Duration::from_secs(5);

/// Why the process can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The spool.
    #[error("spool: {0}")]
    Spool(#[from] SpoolError),
    /// An address.
    #[error("{what}: {error}")]
    Listen {
        /// Which.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Threads or the runtime.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// Where a started process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// For callers.
    pub listen: SocketAddr,
    /// For probes and scrapers.
    pub admin: SocketAddr,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Calls that were cut off.
    pub calls_cut: u64,
    /// Runs that stay in the spool.
    pub runs_left: u64,
}

/// Runs until a signal ends it.
pub fn main(config: Config) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        let signals = ProcessSignals::new()?;
        run(config, signals, Observer::stderr(), oneshot::channel().0).await
    });
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts, says where it listens, serves until `signal` and drains.
pub async fn run(
    config: Config,
    signal: impl Signal + Send + 'static,
    observer: Arc<Observer>,
    started: oneshot::Sender<Started>,
) -> Result<Drained, StartError> {
    observer.report(&Observation::Starting { threads: config.threads as u64 });
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data)?;
    let spool = Spool::open(&config.data)?;
    let status = Arc::downgrade(&spool);
    observer.watch_spool(Box::new(move || status.upgrade().map(|spool| spool.status()).unwrap_or_default()));
    let plans = socket::bind(&config.data).map_err(|error| StartError::Listen { what: "plans socket", error })?;
    let listeners = listen(config.listen, config.threads).map_err(|error| StartError::Listen { what: "--listen", error })?;
    let admin = tokio::net::TcpListener::bind(config.admin).await.map_err(|error| StartError::Listen { what: "--admin", error })?;
    let listen = listeners.first().map_or(Ok(config.listen), std::net::TcpListener::local_addr)?;
    let addresses = Started { listen, admin: admin.local_addr()? };

    let shipper = Shipper::start(spool.clone(), observer.clone(), ShipSettings::default())?;
    let store = Arc::new(Store::new(config.threads));
    let doors = Arc::new(Doors::default());
    let cache = Cache::new(config.cache_bytes);
    let (phase, phases) = watch::channel(Phase::Serving);
    let mut threads = Vec::new();
    for (thread, listener) in listeners.into_iter().enumerate() {
        let settings = Settings {
            thread,
            threads: config.threads,
            listener,
            limits: config.limits.clone(),
            store: store.clone(),
            spool: spool.clone(),
            observer: observer.clone(),
            doors: doors.clone(),
            cache: cache.clone(),
            gateway: config.data.join("run/gateway.sock"),
            phase: phases.clone(),
        };
        let (over, ended) = oneshot::channel();
        std::thread::Builder::new().name(format!("serve-{thread}")).spawn(move || {
            let _nobody_waits_after_an_error_elsewhere = over.send(server::serve(settings));
        })?;
        threads.push(ended);
    }
    let pusher = Arc::new(Pusher::new(&config.secret, store.clone(), spool.clone(), doors.clone(), observer.clone()));
    let pushes = tokio::spawn(socket::serve(plans, pusher));
    let probes = tokio::spawn(admin::serve(admin, observer.clone()));
    let certificates = tokio::spawn(watch_certificate(doors, config.limits.certificate_look, observer.clone()));
    let ship_grace = SHIP_GRACE.min(config.drain_grace / 3);
    let call_grace = config.drain_grace - ship_grace;
    let conductor = tokio::spawn(shutdown::conduct(phase, signal, config.lame_duck, call_grace));
    let draining = tokio::spawn(since(phases.clone(), Phase::Draining));
    let ended = phases.clone();
    let duck = tokio::spawn(announce(phases, observer.clone(), config.lame_duck));
    observer.report(&Observation::Listening { port: addresses.listen.port().into() });
    let _nobody_asked = started.send(addresses);

    let mut drained = Drained::default();
    for thread in threads {
        drained.calls_cut += thread.await.map_err(|_| io::Error::other("a serving thread has ended"))??;
    }
    let began = draining.await.unwrap_or_else(|_| Instant::now());
    let grace = config.drain_grace.saturating_sub(began.elapsed());
    // A signal more asks to hurry: then nobody waits long for a store that is down.
    let hurried = move || *ended.borrow() == Phase::Over && began.elapsed() < call_grace;
    // What is not shipped within this stays in the spool, for the next process on this directory. `/status` and `/metrics` go on
    // telling how much that is.
    let left = tokio::task::spawn_blocking(move || shipper.drain_or(grace, hurried)).await.unwrap_or_default();
    for task in [pushes, probes, conductor, duck, certificates] {
        task.abort();
    }
    drained.runs_left = left.runs;
    observer.report(&Observation::Drained { calls_cut: drained.calls_cut, runs_left: drained.runs_left });
    Ok(drained)
}

/// When a phase begins.
async fn since(mut phases: watch::Receiver<Phase>, phase: Phase) -> Instant {
    let _or_nobody_conducts_any_more = phases.wait_for(|now| *now >= phase).await;
    Instant::now()
}

/// Looks at the certificate's files for ever, while a snapshot names some.
async fn watch_certificate(doors: Arc<Doors>, pause: Duration, observer: Arc<Observer>) {
    loop {
        tokio::time::sleep(pause).await;
        if doors.watches() {
            let (doors, observer) = (doors.clone(), observer.clone());
            let _read = tokio::task::spawn_blocking(move || doors.look(&observer)).await;
        }
    }
}

/// Says when the lame duck begins; `/readyz` follows.
async fn announce(mut phases: watch::Receiver<Phase>, observer: Arc<Observer>, lame_duck: Duration) {
    if phases.wait_for(|phase| *phase >= Phase::LameDuck).await.is_ok() {
        observer.report(&Observation::Draining { lame_duck_ms: lame_duck.as_millis() as u64 });
    }
}

/// One listener a thread: the kernel shares connections out (SO_REUSEPORT).
fn listen(address: SocketAddr, threads: usize) -> io::Result<Vec<std::net::TcpListener>> {
    let mut address = address;
    let mut listeners = Vec::with_capacity(threads);
    for thread in 0..threads {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if thread == 0 && threads > 1 {
            // Without SO_REUSEPORT first: another process on this address must be an error, not a share of its calls.
            let probe = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            probe.set_reuse_address(true)?;
            probe.bind(&address.into())?;
            if address.port() == 0 {
                address = probe.local_addr()?.as_socket().unwrap_or(address);
            }
        }
        if threads > 1 {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = std::net::TcpListener::from(socket);
        listeners.push(listener);
    }
    Ok(listeners)
}
