//! The answer on one stream of HTTP/2: what `response` wrote becomes HEADERS, DATA as the window allows, and trailers.
//! May reject: a stream that is over. IO: none of its own; the connection's task sends.
use super::output::Output;
use super::response;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A whole body up to this is handed over at once, whatever the window, bytes: the connection's task keeps what does not fit.
const AT_ONCE: usize = 16 << 10;
/// What is handed over at a time of a larger one, bytes.
const PIECE: usize = 64 << 10;

/// The stream can be sent on no longer: its client has reset it, or the connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is over")]
pub struct Over;

impl From<h2::Error> for Over {
    fn from(_: h2::Error) -> Self {
        Self
    }
}

#[derive(Debug)]
enum At {
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
    Ended,
}

/// How many streams of one connection have answers that may be large, made or being made.
#[derive(Debug, Default)]
pub struct Beside {
    count: Cell<u32>,
    freed: Cell<bool>,
}

impl Beside {
    /// Whether a place became free since this was asked last.
    pub fn freed(&self) -> bool {
        self.freed.take()
    }
}

/// One of these places; free again when the stream's answer is handed over whole.
#[derive(Debug)]
struct Place(Rc<Beside>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get().saturating_sub(1));
        self.0.freed.set(true);
    }
}

/// One stream's way to its client.
#[derive(Debug)]
pub struct Stream {
    at: At,
    beside: Rc<Beside>,
    place: Option<Place>,
}

impl Stream {
    /// That is to be answered; `beside` is its connection's.
    pub const fn new(respond: SendResponse<Bytes>, beside: Rc<Beside>) -> Self {
        Self { at: At::Head(respond), beside, place: None }
    }

    /// Takes one of the `most` places of its connection; false when none is free.
    pub fn take_place(&mut self, most: u32) -> bool {
        let taken = self.place.is_some() || self.beside.count.get() < most;
        if taken && self.place.is_none() {
            self.beside.count.set(self.beside.count.get() + 1);
            self.place = Some(Place(self.beside.clone()));
        }
        taken
    }

    /// The answer was handed over whole.
    pub const fn ended(&self) -> bool {
        matches!(self.at, At::Ended)
    }

    /// Hands over what may leave. `task`: of the connection, woken when the window opens.
    pub fn send(&mut self, output: &mut Output, task: &Waker) -> Result<(), Over> {
        if let At::Head(respond) = &mut self.at {
            let pending = output.pending();
            if pending.is_empty() {
                return Ok(());
            }
            let (response, length) = taken_apart(pending).ok_or(Over)?;
            output.took(length);
            let end = output.whole() && output.backlog() == 0;
            let body = respond.send_response(response, end)?;
            self.at = if end { At::Ended } else { At::Body(body) };
        }
        let At::Body(body) = &mut self.at else { return Ok(()) };
        loop {
            let (pending, whole) = (output.pending(), output.whole());
            let trailers = output.counts().filter(|_| whole);
            if pending.is_empty() && !whole {
                return Ok(());
            }
            let count = if whole && pending.len() <= AT_ONCE {
                pending.len()
            } else {
                let wanted = pending.len().min(PIECE);
                body.reserve_capacity(wanted);
                let capacity = match body.capacity() {
                    0 => match body.poll_capacity(&mut Context::from_waker(task)) {
                        Poll::Ready(Some(capacity)) => capacity?,
                        Poll::Ready(None) => return Err(Over),
                        Poll::Pending => return Ok(()),
                    },
                    capacity => capacity,
                };
                capacity.min(wanted)
            };
            let last = whole && count == pending.len();
            if count > 0 || trailers.is_none() {
                body.send_data(Bytes::copy_from_slice(pending.get(..count).unwrap_or_default()), last && trailers.is_none())?;
            }
            output.took(count);
            if last {
                if let Some((rows, truncated)) = trailers {
                    body.send_trailers(counts(rows, truncated))?;
                }
                self.at = At::Ended;
                return Ok(());
            }
        }
    }

    /// Ready when the client has given the stream up, or the connection has ended.
    pub fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.at {
            At::Head(respond) => respond.poll_reset(cx).map(drop),
            At::Body(body) => body.poll_reset(cx).map(drop),
            At::Ended => Poll::Pending,
        }
    }

    /// Ends it in the middle of its answer: its client must not take it for whole.
    pub fn cut(&mut self) {
        match &mut self.at {
            At::Head(respond) => respond.send_reset(Reason::INTERNAL_ERROR),
            At::Body(body) => body.send_reset(Reason::INTERNAL_ERROR),
            At::Ended => {}
        }
    }
}

fn counts(rows: u64, truncated: bool) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert("x-row-count", HeaderValue::from(rows));
    trailers.insert("x-truncated", HeaderValue::from_static(if truncated { "true" } else { "false" }));
    trailers
}

/// The head that `bytes` begin with, and its length. Headers of a connection are left out.
fn taken_apart(bytes: &[u8]) -> Option<(Response<()>, usize)> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_bytes(bytes.get(9..12)?).ok()?;
    let headers = response.headers_mut();
    headers.reserve(12);
    let mut at = memchr::memchr(b'\n', bytes)? + 1;
    loop {
        let rest = bytes.get(at..)?;
        let end = memchr::memchr(b'\r', rest)?;
        let line = rest.get(..end)?;
        at += end + 2;
        if line.is_empty() {
            return (at <= bytes.len()).then_some((response, at));
        }
        let (name, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
        if name != b"Connection" {
            let (name, value) = field(name, value.get(2..).unwrap_or_default())?;
            headers.append(name, value);
        }
    }
}

/// A header as the protocol's encoder takes it. Those of nearly every answer are known: neither their names nor most values are read anew.
fn field(name: &[u8], value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    const COUNT: HeaderName = HeaderName::from_static("x-row-count");
    const TRUNCATED: HeaderName = HeaderName::from_static("x-truncated");
    const RUN: HeaderName = HeaderName::from_static("x-run-id");
    Some(match (name, value) {
        (b"Content-Type", b"application/json") => (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (b"X-Row-Count", b"1") => (COUNT, HeaderValue::from_static("1")),
        (b"X-Truncated", b"false") => (TRUNCATED, HeaderValue::from_static("false")),
        (b"Cache-Control", b"private") => (header::CACHE_CONTROL, HeaderValue::from_static("private")),
        (b"Vary", VARY) => (header::VARY, HeaderValue::from_static(response::VARY)),
        (b"Date", date) => (header::DATE, HeaderValue::from_bytes(date).ok()?),
        (b"Content-Length", length) => (header::CONTENT_LENGTH, HeaderValue::from_bytes(length).ok()?),
        (b"X-Run-Id", run) => {
            let mut run = HeaderValue::from_bytes(run).ok()?;
            // Another one each time: it would only push what repeats out of the client's table.
            run.set_sensitive(true);
            (RUN, run)
        }
        (name, value) => (HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?),
    })
}

const VARY: &[u8] = response::VARY.as_bytes();

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::http::negotiate::Coding;
    use crate::http::response::{Form, Length, Success};
    use crate::runs::RunId;

    #[test]
    fn what_is_known_of_a_head_says_what_any_other_says() {
        let mut date = response::Date::default();
        date.tick(1_700_000_000);
        for (rows, truncated, coding) in [(1, false, Coding::Identity), (0, false, Coding::Identity), (7, true, Coding::Gzip)] {
            let answer = Success {
                run: RunId { epoch: 1, sequence: 2 },
                rows: Some(rows),
                truncated: Some(truncated),
                next: Some(b"/q/a?cursor=x"),
                timing: Some("auth;dur=0"),
                fresh: None,
                length: Length::Known(17),
                coding,
            };
            let mut text = Vec::new();
            response::success(Form::default(), &date, answer, &mut text);
            let (found, length) = taken_apart(&text).unwrap();
            assert_eq!(length, text.len());
            let found: Vec<_> =
                found.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
            let lines = std::str::from_utf8(&text).unwrap().lines().skip(1).filter_map(|line| line.split_once(": "));
            let said: Vec<_> = lines.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
            assert_eq!(found, said);
        }
    }

    #[test]
    fn a_head_is_taken_apart() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Type: text/csv; charset=utf-8\r\nX-Run-Id: a-1\r\nConnection: close\r\nVary:\r\n\r\nbody: 1\r\n\r\n";
        let (response, length) = taken_apart(text).unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(text.get(length..), Some(&b"body: 1\r\n\r\n"[..]));
        let headers: Vec<_> = response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("content-type", "text/csv; charset=utf-8"), ("x-run-id", "a-1"), ("vary", "")]);
        assert!(taken_apart(b"HTTP/1.1 204 No Content\r\nAllow: GET\r\n").is_none());
        let (empty, length) = taken_apart(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert_eq!((empty.status().as_u16(), empty.headers().len(), length), (204, 0, 27));
    }
}
