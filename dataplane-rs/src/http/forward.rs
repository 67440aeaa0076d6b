//! Asks the gateway (Python) over its Unix socket for what no plan covers. One `Gateway` for each thread, with a few connections
//! kept for the next call. May reject: a gateway that is down, busy or too slow, as `Unanswered`. IO: `DIR/run/gateway.sock`.
//!
//! Private headers (docs/contract.md, "Forwarding") go in both directions only here: those of clients are removed, those of the
//! gateway become `Facts`.
use crate::runs::RunId;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Connections kept open without a call; more are closed when their call ends.
const IDLE_LIMIT: usize = 16;
/// Calls of one thread under way at the gateway; one more is refused at once.
const CALLS_LIMIT: usize = 256;
/// To connect and to have the request taken.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// From the request to the head of the answer.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// Between two pieces of a body (an event stream has heartbeats).
const PIECE_TIME: Duration = Duration::from_secs(120);

/// Prefix of the headers that only the two processes use.
const PRIVATE: &str = "x-tailrace-";

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It cannot be reached, broke off, or sent what is not HTTP.
    #[error("the gateway did not answer")]
    Down,
    /// It took too long.
    #[error("the gateway took too long")]
    Slow,
    /// Too many calls are there already.
    #[error("too many calls are at the gateway")]
    Busy,
    /// The request cannot be written as HTTP (its target or a header).
    #[error("the request cannot be forwarded")]
    Request,
}

/// What a client asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a str,
    /// Path and arguments as they came.
    pub target: &'a [u8],
    /// All headers as they came.
    pub headers: &'a [(String, Vec<u8>)],
    /// Already appended as `open`.
    pub run: RunId,
    /// The caller's address, proxies considered.
    pub client: IpAddr,
}

/// What the gateway says of a call to be recorded. Empty: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Rows in the body.
    pub rows: u64,
    /// At the database, µs.
    pub database_us: u64,
    /// Error code.
    pub code: String,
    /// ApiKey's id.
    pub key: String,
    /// Query.
    pub query: String,
    /// Its version.
    pub version: String,
    /// Its connection.
    pub connection: String,
}

/// A thread's way to the gateway.
#[derive(Debug)]
pub struct Gateway {
    path: PathBuf,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
    calls: Cell<usize>,
}

/// Counts a call for as long as it lives.
#[derive(Debug)]
struct Place<'a>(&'a Cell<usize>);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// The gateway's answer: its head, and its body piece by piece. Dropped before its end it closes the connection, which tells
/// the gateway that the client has left.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Status.
    pub status: StatusCode,
    /// In their order, without private and hop-by-hop ones, `Content-Length` included.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// To be recorded.
    pub facts: Facts,
    body: Incoming,
    sender: Option<SendRequest<Full<Bytes>>>,
    gateway: &'a Gateway,
    _place: Place<'a>,
}

impl Gateway {
    /// By its socket, which need not be there yet.
    pub const fn new(path: PathBuf) -> Self {
        Self { path, idle: RefCell::new(Vec::new()), calls: Cell::new(0) }
    }

    /// Sends a request with its whole body and waits for the head of the answer. Must run in a `LocalSet` or local runtime.
    pub async fn ask(&self, asked: Asked<'_>, body: Vec<u8>) -> Result<Answer<'_>, Unanswered> {
        if self.calls.get() >= CALLS_LIMIT {
            return Err(Unanswered::Busy);
        }
        self.calls.set(self.calls.get() + 1);
        let place = Place(&self.calls);
        let body = Bytes::from(body);
        let safe = matches!(asked.method, "GET" | "HEAD");
        let mut kept = self.kept();
        loop {
            let reused = kept.is_some();
            let mut sender = match kept.take() {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            let request = request(asked, body.clone())?;
            match timeout(HEAD_TIME, sender.try_send_request(request)).await {
                Ok(Ok(answer)) => {
                    let (head, body) = answer.into_parts();
                    let (facts, headers) = answered(&head.headers);
                    return Ok(Answer { status: head.status, headers, facts, body, sender: Some(sender), gateway: self, _place: place });
                }
                // A kept connection may have been closed at the other end. What was not sent, or is safe to send again, is
                // sent once more on another.
                Ok(Err(mut error)) => {
                    let unsent = error.take_message().is_some();
                    if !reused || !(unsent || safe) {
                        return Err(Unanswered::Down);
                    }
                    kept = self.kept();
                }
                Err(_) => return Err(Unanswered::Slow),
            }
        }
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Unanswered> {
        let connect = async {
            let socket = UnixStream::connect(&self.path).await.map_err(|_| Unanswered::Down)?;
            handshake(TokioIo::new(socket)).await.map_err(|_| Unanswered::Down)
        };
        let (sender, connection) = timeout(CONNECT_TIME, connect).await.map_err(|_| Unanswered::Slow)??;
        // Ends with the sender and its answer; an error reaches whoever waits for them.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(sender)
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_LIMIT && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

impl Answer<'_> {
    /// The body's length, when the gateway said it.
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next piece of the body; None at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Unanswered> {
        loop {
            match timeout(PIECE_TIME, self.body.frame()).await {
                Err(_) => return Err(Unanswered::Slow),
                Ok(Some(Err(_))) => return Err(Unanswered::Down),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_) => {} // trailers: we ask for none
                },
                Ok(None) => {
                    if let Some(sender) = self.sender.take() {
                        self.gateway.keep(sender);
                    }
                    return Ok(None);
                }
            }
        }
    }
}

/// The request that the gateway gets.
fn request(asked: Asked<'_>, body: Bytes) -> Result<Request<Full<Bytes>>, Unanswered> {
    let wrong = |_| Unanswered::Request;
    let method = Method::from_bytes(asked.method.as_bytes()).map_err(|_| Unanswered::Request)?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::try_from(asked.target).map_err(|_| Unanswered::Request)?;
    let mut all = HeaderMap::with_capacity(asked.headers.len());
    for (name, value) in asked.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unanswered::Request)?;
        all.append(name, HeaderValue::from_bytes(value).map_err(|_| Unanswered::Request)?);
    }
    let named = named(&all);
    // The body is whole here, and nobody waits to send it.
    let ours = |name: &HeaderName| is_private(name) || *name == http::header::CONTENT_LENGTH || *name == http::header::EXPECT;
    let headers = request.headers_mut();
    for (name, value) in all.iter().filter(|(name, _)| !ours(name) && !is_hop(name, &named)) {
        headers.append(name.clone(), value.clone());
    }
    headers.insert("x-tailrace-run-id", HeaderValue::try_from(asked.run.to_string()).map_err(wrong)?);
    headers.insert("x-tailrace-client", HeaderValue::try_from(asked.client.to_string()).map_err(wrong)?);
    Ok(request)
}

/// Whether a header is meant for one connection only (RFC 9110, 7.6.1).
fn is_hop(name: &HeaderName, named: &[HeaderName]) -> bool {
    const HOPS: [&str; 8] =
        ["connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"];
    HOPS.contains(&name.as_str()) || named.contains(name)
}

/// What `Connection` names.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    let lists = headers.get_all(http::header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        // Nobody can have a credential or what frames the request taken off.
        .filter(|name| !matches!(name.as_str(), "authorization" | "x-api-key" | "host" | "content-type" | "content-length"))
        .collect()
}

fn is_private(name: &HeaderName) -> bool {
    name.as_str().starts_with(PRIVATE)
}

/// What an answer's headers say to us, and those that go on to the client.
fn answered(headers: &HeaderMap) -> (Facts, Vec<(HeaderName, HeaderValue)>) {
    let (mut facts, mut kept) = (Facts::default(), Vec::with_capacity(headers.len()));
    let named = named(headers);
    for (name, value) in headers {
        if !is_private(name) {
            if !is_hop(name, &named) {
                kept.push((name.clone(), value.clone()));
            }
            continue;
        }
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        match name.as_str().get(PRIVATE.len()..).unwrap_or_default() {
            "rows" => facts.rows = text.parse().unwrap_or(0),
            "database-us" => facts.database_us = text.parse().unwrap_or(0),
            "code" => facts.code = text,
            "key" => facts.key = text,
            "query" => facts.query = text,
            "query-version" => facts.version = text,
            "connection" => facts.connection = text,
            _ => {}
        }
    }
    (facts, kept)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;
