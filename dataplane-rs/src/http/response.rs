//! Heads of answers, in the contract's order of headers. Pure: appends bytes to a buffer.
use super::bulk;
use super::head::Protocol;
use super::negotiate::Coding;
use crate::cache::Tag;
use crate::codes::Code;
use crate::encode::Format;
use crate::runs::RunId;
use http::{HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, UNIX_EPOCH};

/// What an answer depends on besides its target.
pub const VARY: &str = "Accept, Accept-Encoding, Authorization, X-API-Key";
/// How nearly every 200 begins, up to its run's id.
const USUAL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Run-Id: ";

/// The Date header's value, made anew once a second.
#[derive(Debug, Default)]
pub struct Date {
    second: u64,
    text: String,
    /// From `Cache-Control` to the value of `Content-Length`, as nearly every 200 has it.
    usual: Vec<u8>,
    /// From its first byte, as that of one row has it, with room for the run's id.
    one: Vec<u8>,
}

impl Date {
    /// The second that it says, since 1970.
    pub const fn second(&self) -> u64 {
        self.second
    }

    /// Follows the clock.
    #[inline]
    pub fn tick(&mut self, second: u64) {
        if second != self.second {
            self.second = second;
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            let mut usual = std::mem::take(&mut self.usual);
            usual.clear();
            control(None, self, &mut usual);
            usual.extend_from_slice(b"\r\nContent-Length: ");
            self.one.clear();
            self.one.extend_from_slice(USUAL);
            self.one.resize(USUAL.len() + RunId::TEXT, b'0');
            self.one.extend_from_slice(b"\r\nX-Row-Count: 1\r\nX-Truncated: false");
            self.one.extend_from_slice(&usual);
            self.usual = usual;
        }
    }
}

/// What of a request shapes its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Of the body.
    pub format: Format,
    /// How the body may be compressed.
    pub coding: Coding,
    /// HEAD: no body.
    pub head: bool,
    /// Which HTTP. A stream's head is written as that of HTTP/1.1 less what is of a connection (`stream` takes it apart), its body plainly.
    pub protocol: Protocol,
    /// No request follows on this connection.
    pub close: bool,
}

impl Default for Form {
    fn default() -> Self {
        Self { format: Format::Json, coding: Coding::Identity, head: false, protocol: Protocol::Http11, close: false }
    }
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Known, bytes.
    Known(usize),
    /// Chunked; on HTTP/1.0 until the connection ends.
    Streamed {
        /// Row count and truncation follow as trailers.
        trailers: bool,
    },
}

/// What a client may do with an answer of a query that is cached.
#[derive(Clone, Copy, Debug)]
pub struct Fresh<'a> {
    /// Keep it for so long since it was asked for, s.
    pub max_age_s: u64,
    /// It was asked for so long ago, s; None now.
    pub age_s: Option<u64>,
    /// Its ETag.
    pub tag: &'a Tag,
}

/// A 200.
#[derive(Clone, Copy, Debug)]
pub struct Success<'a> {
    /// Of the run.
    pub run: RunId,
    /// Rows in the body; None on streams.
    pub rows: Option<u64>,
    /// None for `returns: none`.
    pub truncated: Option<bool>,
    /// Target of the next page.
    pub next: Option<&'a [u8]>,
    /// `Server-Timing`.
    pub timing: Option<&'a str>,
    /// None where nothing is cached.
    pub fresh: Option<Fresh<'a>>,
    /// Of the body.
    pub length: Length,
    /// What the body was compressed with.
    pub coding: Coding,
}

/// Appends the head of nearly every 200 in few pieces; false, and nothing, for another.
#[inline]
fn usual(form: Form, date: &Date, answer: &Success<'_>, out: &mut Vec<u8>) -> bool {
    let Success {
        run,
        rows: Some(rows),
        truncated: Some(false),
        next: None,
        timing: None,
        fresh: None,
        length: Length::Known(length),
        coding: Coding::Identity,
    } = *answer
    else {
        return false;
    };
    if form.format != Format::Json || form.protocol != Protocol::Http11 || form.close {
        return false;
    }
    let start = out.len();
    if rows == 1 {
        out.extend_from_slice(&date.one);
    } else {
        out.extend_from_slice(USUAL);
        out.extend_from_slice(&[0; RunId::TEXT]);
        out.extend_from_slice(b"\r\nX-Row-Count: ");
        number(rows, out);
        out.extend_from_slice(b"\r\nX-Truncated: false");
        out.extend_from_slice(&date.usual);
    }
    if let Some(id) = out.get_mut(start + USUAL.len()..).and_then(<[u8]>::first_chunk_mut) {
        run.write(id);
    }
    number(length as u64, out);
    out.extend_from_slice(b"\r\n\r\n");
    true
}

/// Appends the head of a 200.
#[inline]
pub fn success(form: Form, date: &Date, answer: Success<'_>, out: &mut Vec<u8>) {
    if form.protocol == Protocol::Part {
        return bulk::success(&answer, out);
    }
    if !usual(form, date, &answer, out) {
        any(form, date, answer, out);
    }
}

fn any(form: Form, date: &Date, answer: Success<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: ");
    out.extend_from_slice(form.format.content_type().as_bytes());
    run_id(answer.run, out);
    if let Some(rows) = answer.rows {
        out.extend_from_slice(b"\r\nX-Row-Count: ");
        number(rows, out);
    }
    match answer.truncated {
        Some(false) => out.extend_from_slice(b"\r\nX-Truncated: false"),
        Some(true) => out.extend_from_slice(b"\r\nX-Truncated: true"),
        None => {}
    }
    if let Some(next) = answer.next {
        out.extend_from_slice(b"\r\nLink: <");
        out.extend_from_slice(next);
        out.extend_from_slice(b">; rel=\"next\"");
    }
    control(answer.fresh, date, out);
    match answer.length {
        Length::Known(length) => {
            out.extend_from_slice(b"\r\nContent-Length: ");
            number(length as u64, out);
        }
        Length::Streamed { trailers } if form.protocol != Protocol::Http10 => {
            if trailers {
                out.extend_from_slice(b"\r\nTrailer: X-Row-Count, X-Truncated");
            }
            if form.protocol == Protocol::Http11 {
                out.extend_from_slice(b"\r\nTransfer-Encoding: chunked");
            }
        }
        Length::Streamed { .. } => {}
    }
    if let Some(coding) = answer.coding.name() {
        out.extend_from_slice(b"\r\nContent-Encoding: ");
        out.extend_from_slice(coding.as_bytes());
    }
    if let Some(timing) = answer.timing {
        out.extend_from_slice(b"\r\nServer-Timing: ");
        out.extend_from_slice(timing.as_bytes());
    }
    end(form, out);
}

/// Cache-Control, ETag, Age, Vary and Date.
#[inline]
fn control(fresh: Option<Fresh<'_>>, date: &Date, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\nCache-Control: private");
    if let Some(fresh) = fresh {
        out.extend_from_slice(b", max-age=");
        number(fresh.max_age_s, out);
        out.extend_from_slice(b"\r\nETag: ");
        out.extend_from_slice(fresh.tag.text());
        if let Some(age_s) = fresh.age_s {
            out.extend_from_slice(b"\r\nAge: ");
            number(age_s, out);
        }
    }
    out.extend_from_slice(b"\r\nVary: ");
    out.extend_from_slice(VARY.as_bytes());
    out.extend_from_slice(b"\r\nDate: ");
    out.extend_from_slice(date.text.as_bytes());
}

/// Appends a whole 304: the client has the body that a 200 would bring.
pub fn not_modified(form: Form, date: &Date, run: RunId, fresh: Fresh<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 304 Not Modified");
    run_id(run, out);
    control(Some(fresh), date, out);
    end(form, out);
}

/// Appends the head of a problem. `run` is None when it could not be recorded.
pub fn problem(form: Form, date: &Date, code: Code, run: Option<RunId>, allow: Option<&str>, length: usize, out: &mut Vec<u8>) {
    if form.protocol == Protocol::Part {
        return bulk::problem(code, run, out);
    }
    out.extend_from_slice(status_line(code.status()));
    out.extend_from_slice(b"Content-Type: application/problem+json");
    if let Some(run) = run {
        run_id(run, out);
    }
    if code == Code::Unauthorized {
        out.extend_from_slice(b"\r\nWWW-Authenticate: Bearer realm=\"tailrace\"");
    }
    if let Some(allow) = allow {
        out.extend_from_slice(b"\r\nAllow: ");
        out.extend_from_slice(allow.as_bytes());
    }
    if let Some(seconds) = code.retry_after_s() {
        out.extend_from_slice(b"\r\nRetry-After: ");
        number(seconds.into(), out);
    }
    out.extend_from_slice(b"\r\nCache-Control: no-store\r\nDate: ");
    out.extend_from_slice(date.text.as_bytes());
    out.extend_from_slice(b"\r\nContent-Length: ");
    number(length as u64, out);
    end(form, out);
}

/// Appends the head of an answer to several calls in one body.
pub fn bulk(form: Form, date: &Date, length: usize, coding: Coding, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: application/json");
    out.extend_from_slice(b"\r\nCache-Control: private\r\nVary: ");
    out.extend_from_slice(VARY.as_bytes());
    out.extend_from_slice(b"\r\nDate: ");
    out.extend_from_slice(date.text.as_bytes());
    out.extend_from_slice(b"\r\nContent-Length: ");
    number(length as u64, out);
    if let Some(coding) = coding.name() {
        out.extend_from_slice(b"\r\nContent-Encoding: ");
        out.extend_from_slice(coding.as_bytes());
    }
    end(form, out);
}

/// Appends the head of an answer that the gateway gave: its headers in their order, less what is ours to say. `chunked`: its
/// length is not known.
pub fn relayed(
    form: Form,
    date: &Date,
    status: StatusCode,
    headers: &[(HeaderName, HeaderValue)],
    run: RunId,
    chunked: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    number(status.as_u16().into(), out);
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    for (name, value) in headers {
        if ["date", "server", "x-run-id"].contains(&name.as_str()) || (chunked && name == http::header::CONTENT_LENGTH) {
            continue;
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
    }
    run_id(run, out);
    out.extend_from_slice(b"\r\nDate: ");
    out.extend_from_slice(date.text.as_bytes());
    if chunked && form.protocol == Protocol::Http11 {
        out.extend_from_slice(b"\r\nTransfer-Encoding: chunked");
    }
    end(form, out);
}

/// Appends a whole 204 that lists methods.
pub fn options(form: Form, date: &Date, allow: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 204 No Content\r\nAllow: ");
    out.extend_from_slice(allow.as_bytes());
    out.extend_from_slice(b"\r\nDate: ");
    out.extend_from_slice(date.text.as_bytes());
    end(form, out);
}

/// A whole bare answer for what is not HTTP; the connection ends with it.
pub const fn bare(status: u16) -> &'static [u8] {
    match status {
        408 => b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        413 => b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        431 => b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        _ => b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    }
}

/// Before a body that the client holds back.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends one chunk. An empty one would end the body: it is left out.
pub fn chunk(form: Form, data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    if form.protocol != Protocol::Http11 {
        return out.extend_from_slice(data);
    }
    let mut size = [0; 16];
    let mut at = size.len();
    let mut left = data.len();
    while left > 0 {
        at -= 1;
        if let Some(digit) = size.get_mut(at) {
            *digit = char::from_digit(left as u32 & 15, 16).unwrap_or('0') as u8;
        }
        left >>= 4;
    }
    out.extend_from_slice(size.get(at..).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Ends a chunked body, with the counts as trailers where they were announced.
pub fn last_chunk(form: Form, trailers: Option<(u64, bool)>, out: &mut Vec<u8>) {
    if form.protocol != Protocol::Http11 {
        return;
    }
    out.extend_from_slice(b"0\r\n");
    if let Some((rows, truncated)) = trailers {
        out.extend_from_slice(b"X-Row-Count: ");
        number(rows, out);
        out.extend_from_slice(if truncated { b"\r\nX-Truncated: true\r\n" } else { b"\r\nX-Truncated: false\r\n" });
    }
    out.extend_from_slice(b"\r\n");
}

fn run_id(run: RunId, out: &mut Vec<u8>) {
    let mut id = [0; RunId::TEXT];
    run.write(&mut id);
    out.extend_from_slice(b"\r\nX-Run-Id: ");
    out.extend_from_slice(&id);
}

fn number(n: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

#[inline]
fn end(form: Form, out: &mut Vec<u8>) {
    match form.protocol {
        Protocol::Http10 | Protocol::Http11 if form.close => out.extend_from_slice(b"\r\nConnection: close"),
        Protocol::Http10 => out.extend_from_slice(b"\r\nConnection: keep-alive"),
        Protocol::Http11 | Protocol::Http2 | Protocol::Part => {}
    }
    out.extend_from_slice(b"\r\n\r\n");
}

fn status_line(status: u16) -> &'static [u8] {
    match status {
        400 => b"HTTP/1.1 400 Bad Request\r\n",
        401 => b"HTTP/1.1 401 Unauthorized\r\n",
        403 => b"HTTP/1.1 403 Forbidden\r\n",
        404 => b"HTTP/1.1 404 Not Found\r\n",
        405 => b"HTTP/1.1 405 Method Not Allowed\r\n",
        406 => b"HTTP/1.1 406 Not Acceptable\r\n",
        409 => b"HTTP/1.1 409 Conflict\r\n",
        413 => b"HTTP/1.1 413 Content Too Large\r\n",
        415 => b"HTTP/1.1 415 Unsupported Media Type\r\n",
        422 => b"HTTP/1.1 422 Unprocessable Content\r\n",
        502 => b"HTTP/1.1 502 Bad Gateway\r\n",
        503 => b"HTTP/1.1 503 Service Unavailable\r\n",
        504 => b"HTTP/1.1 504 Gateway Timeout\r\n",
        _ => b"HTTP/1.1 500 Internal Server Error\r\n",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_status_line() {
        for code in Code::ALL.into_iter().filter(|&code| code != Code::ClientClosed) {
            let line = std::str::from_utf8(status_line(code.status())).unwrap();
            assert!(line.starts_with(&format!("HTTP/1.1 {} ", code.status())), "{}", code.name());
        }
    }

    #[test]
    fn headers_are_in_the_order_of_the_contract() {
        let mut date = Date::default();
        date.tick(1);
        let answer = Success {
            run: RunId { epoch: 1, sequence: 2 },
            rows: Some(3),
            truncated: Some(true),
            next: Some(b"/q/a?cursor=x"),
            timing: Some("auth;dur=0"),
            fresh: Some(Fresh { max_age_s: 5, age_s: Some(1), tag: &Tag::of(b"x") }),
            length: Length::Known(4),
            coding: Coding::Gzip,
        };
        let mut out = Vec::new();
        success(Form { close: true, ..Form::default() }, &date, answer, &mut out);
        let names: Vec<_> =
            std::str::from_utf8(&out).unwrap().lines().skip(1).filter_map(|line| line.split_once(':')).map(|(n, _)| n).collect();
        let order = "Content-Type X-Run-Id X-Row-Count X-Truncated Link Cache-Control ETag Age Vary Date Content-Length Content-Encoding Server-Timing Connection";
        assert_eq!(names.join(" "), order);
    }

    #[test]
    fn the_usual_head_is_as_any_other() {
        let mut date = Date::default();
        date.tick(1_700_000_000);
        for rows in [0, 1, 2, 1000] {
            for length in [0, 9, 104, 1_000_000] {
                let run = RunId { epoch: 0x1234_5678_9abc_def0, sequence: 0xab };
                let (length, coding) = (Length::Known(length), Coding::Identity);
                let answer =
                    Success { run, rows: Some(rows), truncated: Some(false), next: None, timing: None, fresh: None, length, coding };
                let (mut one, mut other) = (Vec::new(), Vec::new());
                assert!(usual(Form::default(), &date, &answer, &mut one));
                any(Form::default(), &date, answer, &mut other);
                assert_eq!(String::from_utf8(one).unwrap(), String::from_utf8(other).unwrap());
            }
        }
        let answer = Success {
            run: RunId { epoch: 1, sequence: 2 },
            rows: Some(1),
            truncated: Some(true),
            next: None,
            timing: None,
            fresh: None,
            length: Length::Known(1),
            coding: Coding::Identity,
        };
        assert!(!usual(Form::default(), &date, &answer, &mut Vec::new()));
    }

    #[test]
    fn chunks() {
        let mut out = Vec::new();
        let form = Form::default();
        chunk(form, &[b'a'; 26], &mut out);
        chunk(form, b"", &mut out);
        last_chunk(form, Some((2, false)), &mut out);
        let text = format!("1a\r\n{}\r\n0\r\nX-Row-Count: 2\r\nX-Truncated: false\r\n\r\n", "a".repeat(26));
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}
