//! Reads answers from bytes as they come: head, then a body by length, in chunks, or until the end. Strict: what is not HTTP/1.1 is
//! `Malformed`. Memory is bounded: of a large body only the first `KEPT` bytes are kept for the check. IO: none.
use std::mem::MaybeUninit;

use crate::run_ids::{self, RunId};

/// Bytes of a body that are kept for the check; the rest is only counted.
pub const KEPT: usize = 1 << 20;
/// A longer head is malformed.
pub const HEAD_LIMIT: usize = 64 << 10;
const LINE_LIMIT: usize = 4 << 10;

/// The bytes are not an HTTP/1.1 answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not HTTP/1.1")]
pub struct Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    run_id: Option<RunId>,
    framing: Framing,
    close: bool,
}

/// One complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    /// Of X-Run-Id.
    pub run_id: Option<RunId>,
    /// At most `KEPT` bytes of it, without chunk framing.
    pub body: &'a [u8],
    /// Of the whole body.
    pub size: u64,
    /// The server will close.
    pub close: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
}

/// What one step did.
enum Step {
    /// Used so many bytes and can go on.
    Used(usize),
    /// Wants more than there is.
    More,
    /// The answer ends after so many bytes.
    Done(usize),
}

/// Reads the answers of one connection, one after the other.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    head: Option<Head>,
    body: Vec<u8>,
    size: u64,
    finished: bool,
}

impl Reader {
    /// Forgets an unfinished answer, for a new connection.
    pub fn reset(&mut self) {
        (self.state, self.head, self.size, self.finished) = (State::Head, None, 0, false);
        self.body.clear();
    }

    /// An answer has begun and not ended.
    pub const fn is_inside(&self) -> bool {
        self.head.is_some() && !self.finished
    }

    /// Takes bytes off the front of `input`: how many, and the answer if one is complete. Without an answer the rest must be
    /// shown again with more behind it. `bodiless`: the answer is to a HEAD.
    pub fn read<'a>(&'a mut self, input: &'a [u8], bodiless: bool) -> Result<(usize, Option<Answer<'a>>), Malformed> {
        if self.finished {
            self.reset();
        }
        let mut used = 0;
        if self.state == State::Head {
            let Some((length, head)) = parse_head(input, bodiless)? else { return Ok((0, None)) };
            if (100..200).contains(&head.status) {
                return Ok((length, None)); // an interim answer; the caller calls again while bytes are used
            }
            if let Framing::Length(size) = head.framing
                && let Some(body) = usize::try_from(size).ok().and_then(|size| input.get(length..length.checked_add(size)?))
            {
                let Head { status, run_id, close, .. } = head;
                let kept = body.get(..KEPT).unwrap_or(body);
                return Ok((length + body.len(), Some(Answer { status, run_id, body: kept, size, close })));
            }
            self.state = match head.framing {
                Framing::Length(size) => State::Length(size),
                Framing::Chunked => State::ChunkSize,
                Framing::UntilClose => State::UntilClose,
            };
            self.head = Some(head);
            used = length;
        }
        loop {
            match self.step(input.get(used..).unwrap_or(b""))? {
                Step::Used(count) => used += count,
                Step::More => return Ok((used, None)),
                Step::Done(count) => {
                    used += count;
                    self.finished = true;
                    return Ok((used, self.answer()));
                }
            }
        }
    }

    /// The connection ended: the last answer if that is how it ends.
    pub fn end(&mut self) -> Option<Answer<'_>> {
        (self.state == State::UntilClose && !self.finished).then_some(())?;
        self.finished = true;
        self.answer()
    }

    fn answer(&self) -> Option<Answer<'_>> {
        let Head { status, run_id, close, framing } = self.head?;
        Some(Answer { status, run_id, body: &self.body, size: self.size, close: close || framing == Framing::UntilClose })
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        let room = KEPT.saturating_sub(self.body.len());
        self.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn step(&mut self, rest: &[u8]) -> Result<Step, Malformed> {
        let counted = |left: u64| rest.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(rest);
        Ok(match self.state {
            State::Head => Step::More,
            State::Length(0) => Step::Done(0),
            State::ChunkData(0) => {
                self.state = State::ChunkEnd;
                Step::Used(0)
            }
            State::Length(_) | State::ChunkData(_) | State::UntilClose if rest.is_empty() => Step::More,
            State::Length(left) => {
                let part = counted(left);
                self.keep(part);
                self.state = State::Length(left - part.len() as u64);
                Step::Used(part.len())
            }
            State::ChunkData(left) => {
                let part = counted(left);
                self.keep(part);
                self.state = State::ChunkData(left - part.len() as u64);
                Step::Used(part.len())
            }
            State::UntilClose => {
                self.keep(rest);
                Step::Used(rest.len())
            }
            State::ChunkSize => {
                let Some(line) = line(rest)? else { return Ok(Step::More) };
                let size = chunk_size(line)?;
                self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
                Step::Used(line.len() + 2)
            }
            State::ChunkEnd => match rest {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    Step::Used(2)
                }
                [] | [b'\r'] => Step::More,
                _ => return Err(Malformed),
            },
            State::Trailers => {
                let Some(line) = line(rest)? else { return Ok(Step::More) };
                if line.is_empty() { Step::Done(2) } else { Step::Used(line.len() + 2) }
            }
        })
    }
}

/// A line without its CRLF; None: not all there.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    match memchr::memchr(b'\n', bytes) {
        Some(end) if end < LINE_LIMIT => bytes.get(..end).and_then(|line| line.strip_suffix(b"\r")).map(Some).ok_or(Malformed),
        None if bytes.len() < LINE_LIMIT => Ok(None),
        _ => Err(Malformed),
    }
}

/// Hex digits, then nothing or an extension.
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or(b"");
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Malformed);
    }
    std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(Malformed)
}

fn parse_head(input: &[u8], bodiless: bool) -> Result<Option<(usize, Head)>, Malformed> {
    let mut headers = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; 64];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut response, input, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() < HEAD_LIMIT => return Ok(None),
        _ => return Err(Malformed),
    };
    let status = response.code.unwrap_or(0);
    let (mut size, mut chunked, mut run_id, mut close) = (None, false, None, response.version == Some(0));
    for header in response.headers.iter() {
        match header.name.len() {
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                let digits = std::str::from_utf8(header.value).map_err(|_| Malformed)?;
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let value = digits.parse::<u64>().ok().filter(|_| plain).ok_or(Malformed)?;
                if size.replace(value).is_some() {
                    return Err(Malformed);
                }
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                if chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed);
                }
                chunked = true;
            }
            8 if header.name.eq_ignore_ascii_case("x-run-id") => run_id = Some(run_ids::parse(header.value).ok_or(Malformed)?),
            10 if header.name.eq_ignore_ascii_case("connection") => close |= header.value.eq_ignore_ascii_case(b"close"),
            _ => {}
        }
    }
    let framing = match (size, chunked) {
        (Some(_), true) => return Err(Malformed),
        _ if bodiless || status < 200 || status == 204 || status == 304 => Framing::Length(0),
        (Some(size), false) => Framing::Length(size),
        (None, true) => Framing::Chunked,
        (None, false) => Framing::UntilClose,
    };
    Ok(Some((length, Head { status, run_id, framing, close })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0000019f2b3c4d5e-00000000002a";

    /// All answers of a byte stream that comes in pieces of the given lengths (the last one repeated).
    fn answers(bytes: &[u8], cuts: &[usize], bodiless: bool) -> Result<Vec<(u16, bool, Vec<u8>)>, Malformed> {
        let (mut reader, mut held, mut found, mut at) = (Reader::default(), Vec::new(), Vec::new(), 0);
        for turn in 0.. {
            let more = cuts.get(turn).or(cuts.last()).copied().unwrap_or(bytes.len()).max(1).min(bytes.len() - at);
            if more == 0 {
                break;
            }
            held.extend_from_slice(bytes.get(at..at + more).unwrap());
            at += more;
            loop {
                let (used, answer) = reader.read(&held, bodiless)?;
                let one = answer.map(|answer| (answer.status, answer.run_id.is_some(), answer.body.to_vec()));
                let stop = used == 0;
                found.extend(one);
                held.drain(..used);
                if stop {
                    break;
                }
            }
        }
        let last = reader.end().map(|answer| (answer.status, answer.run_id.is_some(), answer.body.to_vec()));
        found.extend(last);
        Ok(found)
    }

    fn written() -> impl Strategy<Value = (Vec<u8>, (u16, bool, Vec<u8>))> {
        let body = proptest::collection::vec(any::<u8>(), 0..200);
        (body, 200u16..600, any::<bool>(), proptest::option::of(1usize..50), any::<bool>()).prop_map(
            |(body, status, id, chunk, interim)| {
                let mut text = if interim { b"HTTP/1.1 100 Continue\r\n\r\n".to_vec() } else { Vec::new() };
                let empty = status == 204 || status == 304;
                text.extend(format!("HTTP/1.1 {status} Some Reason\r\nDate: now\r\n").into_bytes());
                if id {
                    text.extend(format!("X-Run-Id: {ID}\r\n").into_bytes());
                }
                let body = if empty { Vec::new() } else { body };
                match chunk {
                    Some(size) if !empty => {
                        text.extend(b"transfer-encoding: Chunked\r\n\r\n");
                        for part in body.chunks(size) {
                            text.extend(format!("{:x};ext=1\r\n", part.len()).into_bytes());
                            text.extend(part);
                            text.extend(b"\r\n");
                        }
                        text.extend(b"0\r\nTrailer: x\r\n\r\n");
                    }
                    _ => {
                        text.extend(format!("CONTENT-LENGTH: {}\r\n\r\n", body.len()).into_bytes());
                        text.extend(&body);
                    }
                }
                (text, (status, id, body))
            },
        )
    }

    proptest! {
        #[test]
        fn however_the_bytes_come_the_answers_are_the_same(
            answered in proptest::collection::vec(written(), 1..6), cuts in proptest::collection::vec(1usize..40, 1..20),
        ) {
            let bytes: Vec<u8> = answered.iter().flat_map(|(text, _)| text.clone()).collect();
            let expected: Vec<_> = answered.into_iter().map(|(_, answer)| answer).collect();
            prop_assert_eq!(answers(&bytes, &[bytes.len()], false), Ok(expected.clone()));
            prop_assert_eq!(answers(&bytes, &cuts, false), Ok(expected.clone()));
            prop_assert_eq!(answers(&bytes, &[1], false), Ok(expected));
        }

        #[test]
        fn an_answer_that_breaks_off_is_no_answer((text, _) in written(), cut in 0.0f64..1.0) {
            let end = ((text.len() as f64) * cut) as usize;
            prop_assert_eq!(answers(text.get(..end).unwrap(), &[7], false), Ok(vec![]));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 1usize..50, bodiless: bool) {
            let _ = answers(&bytes, &[cut], bodiless);
            let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            text.extend(&bytes);
            let _ = answers(&text, &[cut], bodiless);
        }
    }

    #[test]
    fn what_is_not_http_is_malformed() {
        for bad in [
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
            "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\na",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\nab\r\n",
            "HTTP/1.1 200 OK\r\nX-Run-Id: 12\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(answers(bad.as_bytes(), &[9], false), Err(Malformed), "{bad}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(HEAD_LIMIT));
        assert_eq!(answers(long.as_bytes(), &[4096], false), Err(Malformed));
    }

    #[test]
    fn head_until_close_and_large_bodies() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(answers(head, &[4], true), Ok(vec![(200, false, vec![])]));
        let until = b"HTTP/1.0 200 OK\r\n\r\nabc";
        assert_eq!(answers(until, &[4], false), Ok(vec![(200, false, b"abc".to_vec())]));
        let mut large = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", KEPT + 5).into_bytes();
        large.resize(large.len() + KEPT + 5, b'x');
        let mut reader = Reader::default();
        let (used, answer) = reader.read(&large, false).unwrap();
        let answer = answer.unwrap();
        assert_eq!((used, answer.size, answer.body.len()), (large.len(), KEPT as u64 + 5, KEPT));
    }
}
