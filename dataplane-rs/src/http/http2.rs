//! A connection that speaks HTTP/2, by prior knowledge or by ALPN: one task reads, admits and sends; each stream asks once, with an
//! output of its own, as if it were a connection.
//!
//! May reject: what the protocol forbids, more streams than the bound (refused by the protocol), a client that cancels stream after
//! stream (ENHANCE_YOUR_CALM), heads and bodies beyond their bounds. IO: the client's socket.
use super::client::{Body, Client, Way};
use super::head::{self, Header};
use super::server::Start;
use super::stream::{Beside, Stream};
use super::transport::Transport;
use super::worker::{Worker, forget};
use crate::calls::call::Ticket;
use crate::calls::core::Admitted;
use crate::shutdown::Phase;
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client that speaks HTTP/2 sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// After GOAWAY and the last answer the client has so long to close.
const LINGER: Duration = Duration::from_secs(1);
/// Slots for headers; `Limits::headers` decides before.
const SLOTS: usize = 128;
/// What HTTP/2 counts for a header besides its bytes.
const HEADER_OVERHEAD: usize = 32;
/// Request bytes that a stream may have on their way.
const WINDOW: u32 = 64 << 10;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// It speaks HTTP/1, or nothing that we know.
    Http1,
    /// Too few bytes to tell.
    Perhaps,
    /// It speaks HTTP/2.
    Http2,
}

/// Looks at what came `before` and at `data`, in this order.
pub fn sniff(before: &[u8], data: &[u8]) -> Sniffed {
    let Some(rest) = PREFACE.strip_prefix(before) else {
        return if before.starts_with(PREFACE) { Sniffed::Http2 } else { Sniffed::Http1 };
    };
    if data.starts_with(rest) {
        Sniffed::Http2
    } else if rest.starts_with(data) {
        Sniffed::Perhaps
    } else {
        Sniffed::Http1
    }
}

/// A socket of which something was read already.
struct Rewound {
    before: Vec<u8>,
    at: usize,
    socket: Transport,
}

impl AsyncRead for Rewound {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let rest = this.before.get(this.at..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(rest.get(..count).unwrap_or_default());
        this.at += count;
        if this.at == this.before.len() {
            (this.before, this.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, bytes)
    }
    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// A request whose body is not here yet.
struct Arriving {
    head: Parts,
    stream: RecvStream,
    body: Vec<u8>,
    respond: SendResponse<Bytes>,
    since: Instant,
}

/// One connection.
struct Session {
    worker: Rc<Worker>,
    connection: Connection<Rewound, Bytes>,
    peer: IpAddr,
    task: Waker,
    /// Streams that were admitted: index and generation.
    open: Vec<(u32, u32)>,
    arriving: Vec<Arriving>,
    beside: Rc<Beside>,
    /// Streams that their client cancelled, less those that it let end.
    cancelled: u32,
    /// Last request or answer.
    active: Instant,
    /// After this it says GOAWAY.
    expires: Instant,
    /// Since when it has.
    leaving: Option<Instant>,
}

/// Serves a connection until it has ended; `before`: what was read of it already.
pub async fn serve(worker: Rc<Worker>, socket: Transport, before: Vec<u8>, peer: IpAddr) {
    let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let limits = &worker.limits;
    let room = limits.head_bytes + limits.headers * HEADER_OVERHEAD;
    let handshake = Builder::new()
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(room).unwrap_or(u32::MAX))
        .initial_window_size(WINDOW)
        .initial_connection_window_size(u32::try_from(limits.body_bytes).unwrap_or(WINDOW).max(WINDOW))
        .max_concurrent_reset_streams(limits.streams as usize)
        .max_pending_accept_reset_streams(limits.streams as usize)
        .max_send_buffer_size(WINDOW as usize)
        .handshake(Rewound { before, at: 0, socket });
    let Ok(Ok(connection)) = tokio::time::timeout(limits.head_time, handshake).await else { return };
    worker.core.borrow().meter.http2_connections.add(1);
    let place = worker.sessions.borrow_mut().insert(task.clone());
    let now = tokio::time::Instant::now().into_std();
    let expires = now + limits.connection_age.mul_f64(rand::random_range(0.9..1.1));
    let (open, arriving, beside) = (Vec::new(), Vec::new(), Rc::default());
    let mut session = Session { worker, connection, peer, task, open, arriving, beside, cancelled: 0, active: now, expires, leaving: None };
    poll_fn(|cx| session.turn(cx)).await;
    session.end();
    session.worker.sessions.borrow_mut().try_remove(place);
}

impl Session {
    /// Reads and admits, passes windows on to streams that wait for them. Ready when the connection has ended.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let worker = self.worker.clone();
        let now = worker.core.borrow_mut().tick_if(!worker.woken.get());
        let idle = self.open.is_empty() && self.arriving.is_empty();
        let old = now >= self.expires || worker.phase.get() >= Phase::LameDuck;
        if self.leaving.is_none() && (old || (idle && now.saturating_duration_since(self.active) >= worker.limits.idle_time)) {
            self.leaving = Some(now);
            self.connection.graceful_shutdown();
        }
        let mut started = Vec::new();
        let ended = loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.request(request, respond, now, &mut started),
                Poll::Ready(Some(Err(_)) | None) => break true,
                Poll::Pending => break false,
            }
        };
        self.receive(cx, now, &mut started);
        self.look(cx, now);
        for start in started {
            start.spawn(&worker);
        }
        if ended {
            return Poll::Ready(());
        }
        if self.cancelled > worker.limits.cancelled {
            self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            self.cancelled = 0;
            (self.leaving, self.expires) = (Some(now), now);
            cx.waker().wake_by_ref();
        }
        let idle = self.open.is_empty() && self.arriving.is_empty();
        match self.leaving {
            Some(since) if idle && now.saturating_duration_since(since.max(self.active)) >= LINGER => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    fn request(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>, now: Instant, started: &mut Vec<Start>) {
        self.active = now;
        let (head, stream) = request.into_parts();
        if stream.is_end_stream() {
            return self.admit(&head, Body::Whole(&[]), respond, now, started);
        }
        if head.headers.get(http::header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
            let mut leave = Response::new(());
            *leave.status_mut() = StatusCode::CONTINUE;
            let _over_then = respond.send_informational(leave);
        }
        self.arriving.push(Arriving { head, stream, body: Vec::new(), respond, since: now });
    }

    /// Takes what came of bodies, as far as their common bound goes: the oldest is always taken.
    fn receive(&mut self, cx: &mut Context<'_>, now: Instant, started: &mut Vec<Start>) {
        if self.arriving.is_empty() {
            return;
        }
        let worker = self.worker.clone();
        let limits = &worker.limits;
        let mut held: usize = self.arriving.iter().map(|each| each.body.len()).sum();
        let mut at = 0;
        while at < self.arriving.len() {
            let Some(each) = self.arriving.get_mut(at) else { break };
            let (taken, arrived) =
                if at == 0 || held < limits.stream_bodies { each.take(cx, limits.body_bytes) } else { (0, Arrived::Part) };
            held += taken;
            let slow = now.saturating_duration_since(each.since) >= limits.body_time;
            if arrived == Arrived::Part && !slow {
                at += 1;
                continue;
            }
            let Arriving { head, body, mut respond, .. } = self.arriving.remove(at);
            held = held.saturating_sub(body.len());
            match arrived {
                Arrived::Whole => self.admit(&head, Body::Whole(&body), respond, now, started),
                Arrived::TooLarge => self.admit(&head, Body::TooLarge, respond, now, started),
                Arrived::Part => self.bare(&mut respond, StatusCode::REQUEST_TIMEOUT),
                Arrived::Never => self.cancelled += 1,
            }
        }
    }

    /// Hands one request to the thread's core.
    fn admit(&mut self, head: &Parts, body: Body<'_>, mut respond: SendResponse<Bytes>, now: Instant, started: &mut Vec<Start>) {
        let worker = self.worker.clone();
        let mut slots = [Header::default(); SLOTS];
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        let headers = fields(head, &mut slots);
        let head =
            match headers.and_then(|headers| head::of_stream(head.method.as_str(), target.as_bytes(), headers, worker.limits.headers)) {
                Ok(head) => head,
                Err(head::Fault::Malformed) => return self.bare(&mut respond, StatusCode::BAD_REQUEST),
                Err(head::Fault::TooLarge) => return self.bare(&mut respond, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            };
        let core = &mut *worker.core.borrow_mut();
        let clients = &mut *worker.clients.borrow_mut();
        let generation = worker.generation();
        let id = clients.insert(Client::new(
            Way::Stream(Stream::new(respond, self.beside.clone())),
            self.peer,
            generation,
            self.task.clone(),
            now,
            self.expires,
        ));
        let Some(client) = clients.get_mut(id) else { return };
        let id = id as u32;
        let ticket = Ticket { connection: id, generation, number: client.output.ask() };
        match core.admit(&head, body, self.peer, ticket, &mut client.output) {
            Admitted::Told | Admitted::Queued | Admitted::Crowded => {}
            Admitted::Exclusive(call) => started.push(Start::Exclusive(call)),
            Admitted::Forward(forward) => started.push(Start::Forward(forward)),
            Admitted::Several(call, items) => started.push(Start::Several(call, items)),
        }
        if client.output.backlog() > 0 && !std::mem::replace(&mut client.dirty, true) {
            worker.dirty.borrow_mut().push(id);
        }
        self.open.push((id, generation));
        worker.wake();
    }

    /// An answer without a body to what is not worth a run.
    fn bare(&self, respond: &mut SendResponse<Bytes>, status: StatusCode) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        self.worker.core.borrow().meter.malformed.add(1);
        let _over_then = respond.send_response(response, true);
    }

    /// Forgets streams that are answered or given up, and sends where a window has opened.
    fn look(&mut self, cx: &mut Context<'_>, now: Instant) {
        let clients = &mut *self.worker.clients.borrow_mut();
        let (cancelled, active) = (&mut self.cancelled, &mut self.active);
        self.open.retain(|&(id, generation)| {
            let Some(client) = clients.get_mut(id as usize).filter(|client| client.generation == generation) else {
                *cancelled = cancelled.saturating_sub(1);
                *active = now;
                return false;
            };
            let owed = client.owes();
            if owed && !client.gone {
                client.write(now);
                client.notify();
            }
            let Way::Stream(stream) = &mut client.way else { return false };
            if stream.ended() {
                *active = now;
            } else if client.gone {
                stream.cut();
            } else if stream.poll_left(cx).is_ready() {
                *cancelled += 1;
            } else {
                return true;
            }
            let client = clients.remove(id as usize);
            forget(clients, client);
            false
        });
        if self.beside.freed() {
            for &(id, _) in &self.open {
                if let Some(client) = clients.get(id as usize) {
                    client.notify();
                }
            }
        }
    }

    /// Whoever still asks on it has left.
    fn end(&mut self) {
        let clients = &mut *self.worker.clients.borrow_mut();
        for (id, generation) in self.open.drain(..) {
            if clients.get(id as usize).is_some_and(|client| client.generation == generation) {
                let client = clients.remove(id as usize);
                forget(clients, client);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    Part,
    Whole,
    TooLarge,
    /// The client gave it up.
    Never,
}

impl Arriving {
    /// Takes what is there of the body; how many bytes.
    fn take(&mut self, cx: &mut Context<'_>, limit: usize) -> (usize, Arrived) {
        let mut taken = 0;
        loop {
            match self.stream.poll_data(cx) {
                Poll::Pending => return (taken, Arrived::Part),
                Poll::Ready(None) => return (taken, Arrived::Whole),
                Poll::Ready(Some(Err(_))) => return (taken, Arrived::Never),
                Poll::Ready(Some(Ok(data))) => {
                    if self.body.len() + data.len() > limit {
                        return (taken, Arrived::TooLarge);
                    }
                    let _over_then = self.stream.flow_control().release_capacity(data.len());
                    self.body.extend_from_slice(&data);
                    taken += data.len();
                }
            }
        }
    }
}

/// The stream's headers and, as `host`, its authority.
fn fields<'a, 'b>(head: &'a Parts, slots: &'b mut [Header<'a>; SLOTS]) -> Result<&'b [Header<'a>], head::Fault> {
    let authority = head.uri.authority().map(|authority| authority.as_str());
    let own = head.headers.iter().filter(|(name, _)| authority.is_none() || *name != http::header::HOST);
    let own = own.map(|(name, value)| Header { name: name.as_str().as_bytes(), value: value.as_bytes().trim_ascii() });
    let host = authority.map(|authority| Header { name: b"host", value: authority.as_bytes() });
    let mut count = 0;
    for header in host.into_iter().chain(own) {
        *slots.get_mut(count).ok_or(head::Fault::TooLarge)? = header;
        count += 1;
    }
    slots.get(..count).ok_or(head::Fault::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_preface_is_told_from_the_first_byte_that_differs() {
        for (before, data, sniffed) in [
            ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Sniffed::Http2),
            ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Sniffed::Http2),
            ("PRI", " * HTTP/2.0\r\n\r\nSM\r\n\r\n", Sniffed::Http2),
            ("PRI", "", Sniffed::Perhaps),
            ("", "P", Sniffed::Perhaps),
            ("P", "OST / HTTP/1.1", Sniffed::Http1),
            ("", "GET /", Sniffed::Http1),
            ("", "\r\nPRI", Sniffed::Http1),
            ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\rx", Sniffed::Http1),
        ] {
            assert_eq!(sniff(before.as_bytes(), data.as_bytes()), sniffed, "{before:?} {data:?}");
        }
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(common in 0usize..=24, more in prop::collection::vec(any::<u8>(), 0..30), cut in any::<prop::sample::Index>()) {
            let mut text = PREFACE.get(..common).unwrap_or_default().to_vec();
            text.extend_from_slice(&more);
            let (first, second) = text.split_at(cut.index(text.len() + 1));
            let whole = sniff(&[], &text);
            let early = sniff(&[], first);
            prop_assert_eq!(if early == Sniffed::Perhaps { sniff(first, second) } else { early }, whole);
        }
    }
}
