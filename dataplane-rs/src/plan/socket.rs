//! `DIR/run/dataplane.sock`: the gateway's way in. `PUT /plans` swaps a snapshot in, `GET /plans` says which one is served, `PUT /sources` what
//! it reflects by now.
//! May reject: a body above the bound (413), a snapshot that cannot be read or contradicts itself (400): the old one stays; a report of
//! another snapshot than the one in force (409).
//! IO: the socket, the file of `--secret`.
use super::report::{self, Report};
use super::snapshot::{LIMIT_BYTES, RunStorePlan, Snapshot};
use super::store::Store;
use super::tables::{Invalid, Tables};
use crate::http::tls::Doors;
use crate::observe::{Observation, Observer};
use crate::runs::{Destination, Spool};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{Mutex, Semaphore, oneshot};

/// A whole snapshot must arrive within this.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Added to the nice value of the thread that compiles.
const NICE: i32 = 5;
/// Queries at most that `GET /plans` names.
const UNCOALESCED: usize = 100;
/// Connections at once; more wait in the listener's queue. The gateway holds one.
const CONNECTIONS: usize = 16;

/// What a `PUT /plans` needs.
#[derive(Debug)]
pub struct Pusher {
    secret: PathBuf,
    store: Arc<Store>,
    spool: Arc<Spool>,
    doors: Arc<Doors>,
    observer: Arc<Observer>,
    /// Snapshots are compiled one after the other.
    turn: Mutex<()>,
}

/// Who asks on one connection.
#[derive(Debug, Default)]
struct Peer {
    /// It has sent a snapshot or a report: it is the gateway, and its end is the gateway's.
    gateway: AtomicBool,
}

/// Why a push has no effect.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// Not a snapshot of this schema.
    #[error("the snapshot cannot be read, from line {0} column {1} on")]
    Unreadable(usize, usize),
    /// It contradicts itself.
    #[error("the snapshot is not valid: {0}")]
    Invalid(#[from] Invalid),
    /// The compiling task ended early.
    #[error("the snapshot could not be compiled")]
    Interrupted,
    /// A thread hangs.
    #[error(transparent)]
    NotSwapped(#[from] super::store::NotSwapped),
}

impl Pusher {
    /// `secret` is the file of the API's own secret.
    pub fn new(secret: &Path, store: Arc<Store>, spool: Arc<Spool>, doors: Arc<Doors>, observer: Arc<Observer>) -> Self {
        Self { secret: secret.to_owned(), store, spool, doors, observer, turn: Mutex::new(()) }
    }

    /// Compiles off the serving threads, swaps on every one, and says which version is served.
    pub async fn push(&self, body: Bytes) -> Result<u64, PushError> {
        let _turn = self.turn.lock().await;
        let before = self.store.current().map(|published| published.tables);
        let file = self.secret.clone();
        let began = Instant::now();
        let (doors, observer) = (self.doors.clone(), self.observer.clone());
        let compile = move || -> Result<(Snapshot, Tables), PushError> {
            // Never serde's own words: they quote what they stumbled over.
            let unreadable = |error: serde_json::Error| PushError::Unreadable(error.line(), error.column());
            let snapshot: Snapshot = serde_json::from_slice(&body).map_err(unreadable)?;
            drop(body);
            let secret = secret(&file);
            let tables = Tables::compile(&snapshot, secret.as_ref(), before.as_deref(), &observer)?;
            doors.follow(snapshot.api.tls.as_ref(), &observer);
            Ok((snapshot, tables))
        };
        let (snapshot, tables) = beside(compile).await.map_err(|_| PushError::Interrupted)??;
        let api = &snapshot.api;
        self.spool.configure(api.spool_size_bytes, api.on_full, api.durability);
        let destination = match &api.run_store {
            RunStorePlan::Embedded {} => self.spool.beside(),
            RunStorePlan::Postgres { url_file } => Destination::Postgres(url_file.into()),
        };
        if !self.spool.ship_to(destination) {
            self.observer.report(&Observation::StoreChanged {});
        }
        self.store.publish(Arc::new(tables)).await?;
        self.observer.snapshot_applied(&snapshot);
        let (queries, keys) = (snapshot.queries.len() as u64, snapshot.keys.len() as u64);
        let took_us = began.elapsed().as_micros() as u64;
        self.observer.report(&Observation::SnapshotApplied { version: snapshot.version, queries, keys, took_us });
        Ok(snapshot.version)
    }

    /// Takes what the gateway says of the snapshot in force; false when it speaks of another.
    pub async fn report(&self, report: Report) -> bool {
        // Not while a snapshot is being swapped in: the answer must be about one that every thread runs on.
        let _turn = self.turn.lock().await;
        let current = self.store.current().is_some_and(|published| published.tables.version == report.version);
        current && self.observer.reported(report)
    }

    async fn answer(self: Arc<Self>, peer: Arc<Peer>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        if (request.uri().path(), request.method()) == ("/spool", &Method::GET) {
            // Asked by `tailrace runs verify`, which is not the gateway.
            let spool = self.spool.clone();
            let inventory = tokio::task::spawn_blocking(move || spool.inventory()).await;
            return Ok(match inventory {
                Ok(Ok(inventory)) => json(StatusCode::OK, inventory.to_string()),
                Ok(Err(_)) | Err(_) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the spool cannot be read"),
            });
        }
        self.observer.gateway_heard();
        if *request.method() == Method::PUT {
            peer.gateway.store(true, Ordering::Relaxed);
        }
        Ok(match (request.uri().path(), request.method()) {
            ("/plans", &Method::GET) => {
                let current = self.store.current();
                let version = current.as_ref().map_or(0, |published| published.tables.version);
                let uncoalesced: Vec<_> = current.iter().flat_map(|published| published.tables.uncoalesced()).take(UNCOALESCED).collect();
                json(StatusCode::OK, format!("{{\"version\":{version},\"uncoalesced\":{}}}", serde_json::json!(uncoalesced)))
            }
            ("/plans", &Method::PUT) => match body(request, LIMIT_BYTES).await {
                Ok(body) => self.plans(body).await,
                Err(refusal) => refusal,
            },
            ("/sources", &Method::PUT) => match body(request, report::LIMIT_BYTES).await {
                Ok(body) => self.sources(&body).await,
                Err(refusal) => refusal,
            },
            ("/plans" | "/sources" | "/spool", _) => json(StatusCode::METHOD_NOT_ALLOWED, "{}".to_owned()),
            _ => json(StatusCode::NOT_FOUND, "{}".to_owned()),
        })
    }

    async fn plans(&self, body: Bytes) -> Response<Full<Bytes>> {
        match self.push(body).await {
            Ok(version) => json(StatusCode::OK, format!("{{\"version\":{version},\"refused\":[]}}")),
            Err(error) => {
                let (status, reason) = match &error {
                    PushError::Unreadable(..) => (StatusCode::BAD_REQUEST, "unreadable"),
                    PushError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
                    PushError::Interrupted => (StatusCode::SERVICE_UNAVAILABLE, "interrupted"),
                    PushError::NotSwapped(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_swapped"),
                };
                self.observer.report(&Observation::SnapshotRefused { reason });
                fault(status, &error.to_string())
            }
        }
    }

    async fn sources(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let Ok(report) = serde_json::from_slice::<Report>(body) else {
            return fault(StatusCode::BAD_REQUEST, "the report cannot be read");
        };
        let version = report.version;
        if self.report(report).await {
            json(StatusCode::OK, format!("{{\"version\":{version}}}"))
        } else {
            fault(StatusCode::CONFLICT, "another snapshot is in force")
        }
    }
}

/// The whole body, or the answer to who sends too much or too slowly.
async fn body(request: Request<Incoming>, limit: usize) -> Result<Bytes, Response<Full<Bytes>>> {
    match tokio::time::timeout(BODY_TIME, Limited::new(request.into_body(), limit).collect()).await {
        Err(_) => Err(fault(StatusCode::REQUEST_TIMEOUT, "the body came too slowly")),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(fault(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than its bound"))
        }
        Ok(Err(_)) => Err(fault(StatusCode::BAD_REQUEST, "the body was cut off")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

fn json(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn fault(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    json(status, serde_json::json!({ "error": text }).to_string())
}

/// Runs on a thread of its own, below the serving threads: 60 ms of CPU for 50,000 grants are calls' time where cores are few. Not so
/// low that a busy machine keeps a revocation waiting.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (sender, result) = oneshot::channel();
    let work = move || {
        let _at_the_usual_priority_else = rustix::process::nice(NICE);
        let _nobody_waits_any_more = sender.send(work());
    };
    // Without a thread the sender is dropped: the push is refused, and comes again.
    let _refused_then = std::thread::Builder::new().name("plans".into()).spawn(work);
    result
}

/// 32 bytes in hex, perhaps with a line end; None when it is not that.
fn secret(file: &Path) -> Option<[u8; 32]> {
    let text = std::fs::read_to_string(file).ok()?;
    let (pairs, rest) = text.trim_end().as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let mut out = [0; 32];
    for (&[high, low], byte) in pairs.iter().zip(&mut out) {
        *byte = u8::try_from((high as char).to_digit(16)? * 16 + (low as char).to_digit(16)?).ok()?;
    }
    Some(out)
}

/// Binds the socket, mode 0600 in a folder of mode 0700. A file that an earlier process left is replaced: the caller owns DIR.
pub fn bind(data: &Path) -> io::Result<UnixListener> {
    let folder = data.join("run");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let path = folder.join("dataplane.sock");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves pushes for ever.
pub async fn serve(listener: UnixListener, pusher: Arc<Pusher>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let pusher = pusher.clone();
        tokio::spawn(async move {
            let peer = Arc::new(Peer::default());
            let (observer, gateway) = (pusher.observer.clone(), peer.clone());
            let service = service_fn(move |request| pusher.clone().answer(peer.clone(), request));
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(None);
            // How it ends is the gateway's matter: it connects again.
            let _ended = server.serve_connection(TokioIo::new(socket), service).await;
            if gateway.gateway.load(Ordering::Relaxed) {
                observer.gateway_left();
            }
            drop(permit);
        });
    }
}
