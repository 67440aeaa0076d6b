//! A request's head: bytes in, borrowed fields out. May reject: what is not HTTP/1.x, and everything that two servers could read
//! in two ways (two lengths, a length beside a coding, bare LF, folded or spaced headers, Host missing or twice). IO: none.
use crate::encode::text;
use httparse::Status;
use std::mem::MaybeUninit;

mod usual;

/// Slots for headers: one more than the default limit, so that the limit itself decides.
const SLOTS: usize = 128;
/// Up to so many headers are usual.
const USUAL: usize = 24;
/// Characters of `host[:port]`.
const AUTHORITY: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 256 {
        #[allow(clippy::indexing_slicing, reason = "a loop over the table itself, when this is compiled")]
        {
            let byte = at as u8;
            table[at] = byte.is_ascii_alphanumeric()
                || matches!(
                    byte,
                    b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\''..=b'*' | b'+' | b';' | b'=' | b':' | b'[' | b']' | b'%'
                );
        }
        at += 1;
    }
    table
};

/// What a request's connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// A stream of HTTP/2.
    Http2,
    /// None of its own: one of the calls in a body (`http::bulk`).
    Part,
}

/// Method of a request, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// OPTIONS
    Options,
    /// Any other.
    Other,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// By Content-Length, bytes.
    Length(u64),
    /// By `Transfer-Encoding: chunked`.
    Chunked,
}

/// One line of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// A token, in whatever case.
    pub name: &'a [u8],
    /// Without blanks around it.
    pub value: &'a [u8],
}

/// The key text that a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// Neither `X-API-Key` nor `Authorization`.
    None,
    /// Exactly one.
    Key(&'a [u8]),
    /// Two, or an `Authorization` that is not Bearer.
    Unusable,
}

/// A header that may come once. Lists that come in several lines are joined where they are used (`Head::joined`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Not there.
    Absent,
    /// Its value, without blanks around it.
    Once(&'a [u8]),
    /// Several lines.
    Several,
}

impl<'a> Field<'a> {
    fn put(&mut self, value: &'a [u8]) {
        *self = if *self == Self::Absent { Self::Once(value) } else { Self::Several };
    }
}

/// Why a head is refused: the connection gets a bare answer and is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// 400.
    #[error("this is not a request that can be read in one way only")]
    Malformed,
    /// 431.
    #[error("the head has too many or too large headers")]
    TooLarge,
}

/// A whole head, borrowed from the connection's input.
#[derive(Debug)]
pub struct Head<'a> {
    /// Bytes it takes, with the empty line.
    pub length: usize,
    /// Method.
    pub method: Method,
    /// Its text.
    pub method_text: &'a str,
    /// Target before `?`, still percent-encoded. `*` for an OPTIONS of the whole server.
    pub path: &'a [u8],
    /// Target after `?`; empty when there is none.
    pub arguments: &'a [u8],
    /// Which HTTP.
    pub protocol: Protocol,
    /// More requests may follow on this connection.
    pub keep_alive: bool,
    /// Of the body.
    pub framing: Framing,
    /// The client waits for `100 Continue` before it sends its body.
    pub expects: bool,
    /// Key text.
    pub credential: Credential<'a>,
    /// Accept.
    pub accept: Field<'a>,
    /// Accept-Encoding.
    pub accept_encoding: Field<'a>,
    /// Content-Type.
    pub content_type: Field<'a>,
    /// If-None-Match.
    pub if_none_match: Field<'a>,
    /// Idempotency-Key.
    pub idempotency_key: Field<'a>,
    /// Content-Encoding.
    pub content_encoding: Field<'a>,
    /// traceparent.
    pub traceparent: Field<'a>,
    /// X-Forwarded-For.
    pub forwarded_for: Field<'a>,
    /// Prefer.
    pub prefer: Field<'a>,
    /// All of them as they came, for forwarding and for lists in several lines.
    pub headers: &'a [Header<'a>],
}

impl Head<'_> {
    /// All lines of a list header, joined by commas (RFC 9110, 5.3).
    pub fn joined(&self, name: &str) -> Vec<u8> {
        let mut list = Vec::new();
        for header in self.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name.as_bytes())) {
            if !list.is_empty() {
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(header.value);
        }
        list
    }
}

/// Parses the head at the start of `input` and hands it on; None: more bytes are needed.
///
/// `limit_bytes` bounds the head, `limit_headers` its headers.
#[inline]
pub fn parse<R>(input: &[u8], limit_bytes: usize, limit_headers: usize, then: impl FnOnce(Head<'_>) -> R) -> Result<Option<R>, Fault> {
    let window = input.get(..limit_bytes).unwrap_or(input);
    let mut few = [Header::default(); USUAL];
    if let Some(usual) = usual::read(window, &mut few, limit_headers) {
        let headers = few.get(..usual.headers).unwrap_or_default();
        return fields(usual.length, Protocol::Http11, usual.method, usual.target, headers).map(|head| Some(then(head)));
    }
    plain(window, limit_bytes <= input.len(), limit_headers, then)
}

/// As httparse reads it. `full`: there is no room for more bytes.
fn plain<R>(window: &[u8], full: bool, limit_headers: usize, then: impl FnOnce(Head<'_>) -> R) -> Result<Option<R>, Fault> {
    let mut slots = [const { MaybeUninit::uninit() }; SLOTS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(window, &mut slots) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if full => return Err(Fault::TooLarge),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooLarge),
        Err(_) => return Err(Fault::Malformed),
    };
    if request.headers.len() > limit_headers {
        return Err(Fault::TooLarge);
    }
    let text = window.get(..length).ok_or(Fault::Malformed)?;
    // httparse takes a lone LF as a line end; others in front of us may not.
    if memchr::memchr_iter(b'\n', text).any(|at| at == 0 || text.get(at - 1) != Some(&b'\r')) {
        return Err(Fault::Malformed);
    }
    let (Some(method), Some(target), Some(minor @ (0 | 1))) = (request.method, request.path, request.version) else {
        return Err(Fault::Malformed);
    };
    let protocol = if minor == 0 { Protocol::Http10 } else { Protocol::Http11 };
    let mut headers = [Header::default(); SLOTS];
    for (to, from) in headers.iter_mut().zip(request.headers.iter()) {
        *to = Header { name: from.name.as_bytes(), value: from.value.trim_ascii() };
    }
    let headers = headers.get(..request.headers.len()).unwrap_or_default();
    fields(text.len(), protocol, method, target.as_bytes(), headers).map(|head| Some(then(head)))
}

/// The head of a stream of HTTP/2, whose framing the connection has checked. `headers`: those of the stream and, as `host`, its authority.
pub fn of_stream<'a>(method: &'a str, target: &'a [u8], headers: &'a [Header<'a>], limit_headers: usize) -> Result<Head<'a>, Fault> {
    if headers.len() > limit_headers {
        return Err(Fault::TooLarge);
    }
    fields(0, Protocol::Http2, method, target, headers)
}

#[inline]
fn fields<'a>(
    length: usize,
    protocol: Protocol,
    method_text: &'a str,
    target: &'a [u8],
    headers: &'a [Header<'a>],
) -> Result<Head<'a>, Fault> {
    let old = protocol == Protocol::Http10;
    let method = match method_text {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "HEAD" => Method::Head,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    };
    let (path, arguments) = split(target, method)?;
    let mut head = Head {
        length,
        method,
        method_text,
        path,
        arguments,
        protocol,
        keep_alive: !old,
        framing: Framing::None,
        expects: false,
        credential: Credential::None,
        accept: Field::Absent,
        accept_encoding: Field::Absent,
        content_type: Field::Absent,
        if_none_match: Field::Absent,
        idempotency_key: Field::Absent,
        content_encoding: Field::Absent,
        traceparent: Field::Absent,
        forwarded_for: Field::Absent,
        prefer: Field::Absent,
        headers,
    };
    let mut host = Field::Absent;
    let (mut close, mut keep) = (false, false);
    for header in headers {
        let Header { name, value } = *header;
        match name.len() {
            4 if is(name, b"host") => host.put(value),
            6 if is(name, b"accept") => head.accept.put(value),
            6 if is(name, b"prefer") => head.prefer.put(value),
            6 if is(name, b"expect") => head.expects |= value.eq_ignore_ascii_case(b"100-continue"),
            9 if is(name, b"x-api-key") => credential(&mut head.credential, Some(value)),
            10 if is(name, b"connection") => {
                for token in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                    close |= token.eq_ignore_ascii_case(b"close");
                    keep |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            11 if is(name, b"traceparent") => head.traceparent.put(value),
            12 if is(name, b"content-type") => head.content_type.put(value),
            13 if is(name, b"authorization") => {
                let bearer = value.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
                credential(&mut head.credential, bearer.map(|(_, key)| key.trim_ascii()));
            }
            13 if is(name, b"if-none-match") => head.if_none_match.put(value),
            14 if is(name, b"content-length") => {
                let value = number(value).ok_or(Fault::Malformed)?;
                if head.framing != Framing::None {
                    return Err(Fault::Malformed); // twice, or beside a coding
                }
                head.framing = Framing::Length(value);
            }
            15 if is(name, b"accept-encoding") => head.accept_encoding.put(value),
            15 if is(name, b"idempotency-key") => head.idempotency_key.put(value),
            15 if is(name, b"x-forwarded-for") => head.forwarded_for.put(value),
            16 if is(name, b"content-encoding") => head.content_encoding.put(value),
            17 if is(name, b"transfer-encoding") => {
                if head.framing != Framing::None || old || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Fault::Malformed);
                }
                head.framing = Framing::Chunked;
            }
            _ => {}
        }
    }
    match host {
        Field::Once(host) if authority(host) => {}
        Field::Absent if old => {}
        _ => return Err(Fault::Malformed),
    }
    head.keep_alive = !close && (!old || keep);
    if head.framing == Framing::Length(0) {
        head.framing = Framing::None;
    }
    head.expects &= !old && head.framing != Framing::None;
    Ok(head)
}

/// Whether a header has this name, in whatever case; `other` in lower case. Names are tokens: of those only letters change by the bit.
#[inline]
fn is<const N: usize>(name: &[u8], other: &[u8; N]) -> bool {
    name.as_array::<N>().is_some_and(|name| name.iter().zip(other).fold(0, |differ, (&a, &b)| differ | ((a | 0x20) ^ b)) == 0)
}

fn credential<'a>(slot: &mut Credential<'a>, key: Option<&'a [u8]>) {
    *slot = match (*slot, key) {
        (Credential::None, Some(key)) if !key.is_empty() => Credential::Key(key),
        _ => Credential::Unusable,
    };
}

/// Digits only: no sign, no blank, no list.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0u64, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u64::from(digit - b'0')))
}

/// Nothing in it that would make it more than `host[:port]`.
fn authority(host: &[u8]) -> bool {
    host.iter().all(|&byte| AUTHORITY.get(usize::from(byte)).copied().unwrap_or_default())
}

/// Path and arguments of a target in origin form, absolute form (its authority is dropped) or `*`.
fn split(target: &[u8], method: Method) -> Result<(&[u8], &[u8]), Fault> {
    let origin = match target.first() {
        Some(b'/') => target,
        Some(b'*') if target.len() == 1 && method == Method::Options => return Ok((target, b"")),
        _ => {
            let scheme = |name: &[u8]| target.split_at_checked(name.len()).filter(|(start, _)| start.eq_ignore_ascii_case(name));
            let (_, rest) = scheme(b"http://").or_else(|| scheme(b"https://")).ok_or(Fault::Malformed)?;
            let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
            let (host, rest) = rest.split_at_checked(end).ok_or(Fault::Malformed)?;
            if host.is_empty() || !authority(host) {
                return Err(Fault::Malformed);
            }
            if !rest.starts_with(b"/") {
                return Ok((b"/", rest.strip_prefix(b"?").unwrap_or(rest)));
            }
            rest
        }
    };
    if memchr::memchr(b'#', origin).is_some() {
        return Err(Fault::Malformed);
    }
    Ok(match memchr::memchr(b'?', origin).and_then(|cut| origin.split_at_checked(cut)) {
        Some((path, rest)) => (path, rest.strip_prefix(b"?").unwrap_or(rest)),
        None => (origin, b""),
    })
}

/// Percent-decodes a path into `out`; false when an escape or the UTF-8 is not valid, or it holds NUL.
pub fn decode_path(path: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    if text::any(path, b' ', |eight| text::holds(eight, b'%') | text::holds(eight, 0) | text::high(eight)) == 0 {
        out.extend_from_slice(path);
        return true;
    }
    let mut rest = path;
    while let Some((before, after)) = memchr::memchr(b'%', rest).and_then(|at| rest.split_at_checked(at)) {
        out.extend_from_slice(before);
        let hex = |n: usize| after.get(n).and_then(|&digit| (digit as char).to_digit(16));
        let (Some(high), Some(low)) = (hex(1), hex(2)) else { return false };
        out.push((high * 16 + low) as u8);
        rest = after.get(3..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    !out.contains(&0) && std::str::from_utf8(out).is_ok()
}

/// The trace id of a strictly checked `traceparent` (W3C, version 00) and whether it is sampled.
pub fn trace(value: &[u8]) -> Option<([u8; 16], bool)> {
    let hex = |range: std::ops::Range<usize>, out: &mut [u8]| -> Option<()> {
        for (pair, byte) in value.get(range)?.chunks_exact(2).zip(out) {
            let digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f').then(|| (b as char).to_digit(16).unwrap_or(0) as u8);
            *byte = digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?;
        }
        Some(())
    };
    let dashes = [2, 35, 52].iter().all(|&at| value.get(at) == Some(&b'-'));
    if value.len() != 55 || !dashes || !value.starts_with(b"00") {
        return None;
    }
    let (mut trace, mut parent, mut flags) = ([0; 16], [0; 8], [0; 1]);
    hex(3..35, &mut trace)?;
    hex(36..52, &mut parent)?;
    hex(53..55, &mut flags)?;
    let [flags] = flags;
    (trace != [0; 16] && parent != [0; 8]).then_some((trace, flags & 1 == 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
