//! HTTP/2 (RFC 9113) as far as a load generator needs it: requests as frames, answers from frames as they come, in any order.
//! Memory is bounded: of each body at most `KEPT` bytes are kept, of a header block at most `BLOCK`. May reject: what breaks the protocol.
//! IO: none. Left out: our own flow control for bodies (settings refuse bodies that need it), priorities, pushes.
use crate::answer::{Answer, KEPT};
use crate::hpack::{self, Decoder};
use crate::run_ids::RunId;

/// The bytes are not HTTP/2 answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answers are not HTTP/2")]
pub struct Malformed;

impl From<hpack::Malformed> for Malformed {
    fn from(_: hpack::Malformed) -> Self {
        Self
    }
}

const HEAD: usize = 9;
/// Frames that we accept, the protocol's default.
const FRAME: usize = 16_384;
const BLOCK: usize = 64 << 10;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH: u8 = 5;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;
/// Largest window.
const WINDOW: u32 = (1 << 31) - 1;
/// The connection's window is filled up again after so many bytes.
const REFILL: u64 = 1 << 29;

/// Appends a frame's head.
fn head(kind: u8, flags: u8, stream: u32, length: usize, out: &mut Vec<u8>) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// What a client says first: the preface, that nothing may be pushed, and windows that never close on us.
pub fn preface(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    head(SETTINGS, 0, 0, 12, out);
    out.extend_from_slice(&[0, 2, 0, 0, 0, 0]);
    out.extend_from_slice(&[0, 4]);
    out.extend_from_slice(&WINDOW.to_be_bytes());
    head(8, 0, 0, 4, out);
    out.extend_from_slice(&(WINDOW - 65_535).to_be_bytes());
}

/// Appends a request's fields, which `block` writes.
pub fn request(stream: u32, has_body: bool, out: &mut Vec<u8>, block: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    head(HEADERS, END_HEADERS | if has_body { 0 } else { END_STREAM }, stream, 0, out);
    block(out);
    let [_, a, b, c] = ((out.len() - at - HEAD) as u32).to_be_bytes();
    for (slot, byte) in out.iter_mut().skip(at).zip([a, b, c]) {
        *slot = byte;
    }
}

/// Appends a request's whole body, which fits one frame.
pub fn body(stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    head(DATA, END_STREAM, stream, payload.len(), out);
    out.extend_from_slice(payload);
}

/// Something that came for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A complete answer.
    Answer(u32, Answer<'a>),
    /// The server gave the stream up.
    Reset(u32),
    /// The connection ends; streams above this one were not looked at.
    GoAway(u32),
}

#[derive(Debug, Default)]
struct Stream {
    number: u32,
    status: u16,
    run_id: Option<RunId>,
    body: Vec<u8>,
    size: u64,
}

impl Stream {
    fn answer(&self) -> Answer<'_> {
        Answer { status: self.status, run_id: self.run_id, body: &self.body, size: self.size, close: false }
    }
}

/// Reads one connection.
#[derive(Debug, Default)]
pub struct Reader {
    decoder: Decoder,
    /// Streams whose answer has begun, in no order. At most as many as are under way.
    begun: Vec<Stream>,
    /// The last answer, while its body is looked at.
    last: Stream,
    /// Ended streams, whose buffers are used again.
    spare: Vec<Stream>,
    /// A header block in several frames: its stream, whether it ends the stream, the bytes so far.
    open: Option<(u32, bool, Vec<u8>)>,
    unacknowledged: u64,
    /// What the protocol makes us say; the caller sends and empties it.
    pub reply: Vec<u8>,
}

impl Reader {
    /// Takes one frame off the front: how many bytes, and what it means for a stream. (0, None): not all there.
    pub fn read<'a>(&'a mut self, input: &'a [u8]) -> Result<(usize, Option<Event<'a>>), Malformed> {
        let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = input.split_first_chunk::<HEAD>() else { return Ok((0, None)) };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME {
            return Err(Malformed);
        }
        let Some(payload) = rest.get(..length) else { return Ok((0, None)) };
        let (stream, used) = (u32::from_be_bytes([d & 0x7f, e, f, g]), HEAD + length);
        if self.open.is_some() != (kind == CONTINUATION) {
            return Err(Malformed);
        }
        let event = match kind {
            DATA => self.data(stream, flags, payload)?,
            HEADERS => {
                let (mut block, end) = (unpadded(flags, payload)?, flags & END_STREAM != 0);
                if flags & WITH_PRIORITY != 0 {
                    block = block.get(5..).ok_or(Malformed)?;
                }
                if flags & END_HEADERS == 0 {
                    self.open = Some((stream, end, block.to_vec()));
                    None
                } else {
                    self.fields(stream, end, block)?
                }
            }
            CONTINUATION => {
                let (number, end, mut block) = self.open.take().ok_or(Malformed)?;
                if number != stream || block.len() + payload.len() > BLOCK {
                    return Err(Malformed);
                }
                block.extend_from_slice(payload);
                if flags & END_HEADERS == 0 {
                    self.open = Some((number, end, block));
                    None
                } else {
                    self.fields(number, end, &block)?
                }
            }
            RESET => {
                self.forget(stream);
                Some(Event::Reset(stream))
            }
            SETTINGS if flags & ACK == 0 => {
                head(SETTINGS, ACK, 0, 0, &mut self.reply);
                None
            }
            PING if flags & ACK == 0 => {
                head(PING, ACK, 0, payload.len(), &mut self.reply);
                self.reply.extend_from_slice(payload);
                None
            }
            GO_AWAY => {
                let last = payload.first_chunk::<4>().ok_or(Malformed)?;
                Some(Event::GoAway(u32::from_be_bytes(*last) & WINDOW))
            }
            PUSH => return Err(Malformed),
            // A window is never short of what we send; what we don't know is to be ignored.
            _ => None,
        };
        Ok((used, event))
    }

    fn forget(&mut self, stream: u32) -> Option<Stream> {
        let at = self.begun.iter().position(|begun| begun.number == stream)?;
        Some(self.begun.swap_remove(at))
    }

    fn data<'a>(&'a mut self, stream: u32, flags: u8, payload: &'a [u8]) -> Result<Option<Event<'a>>, Malformed> {
        self.unacknowledged += payload.len() as u64;
        if self.unacknowledged >= REFILL {
            head(8, 0, 0, 4, &mut self.reply);
            self.reply.extend_from_slice(&(self.unacknowledged as u32).to_be_bytes());
            self.unacknowledged = 0;
        }
        let (bytes, end) = (unpadded(flags, payload)?, flags & END_STREAM != 0);
        // Of a stream that was reset meanwhile: nobody waits for it.
        let Some(at) = self.begun.iter().position(|begun| begun.number == stream) else { return Ok(None) };
        let Some(begun) = self.begun.get_mut(at) else { return Ok(None) };
        if end && begun.size == 0 {
            let done = self.begun.swap_remove(at);
            let answer = Answer { status: done.status, run_id: done.run_id, body: bytes, size: bytes.len() as u64, close: false };
            self.spare.push(done);
            return Ok(Some(Event::Answer(stream, answer)));
        }
        begun.size += bytes.len() as u64;
        let room = KEPT.saturating_sub(begun.body.len());
        begun.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        Ok(if end { self.end(at) } else { None })
    }

    /// The stream at this place is complete.
    fn end(&mut self, at: usize) -> Option<Event<'_>> {
        let done = self.begun.swap_remove(at);
        self.spare.push(std::mem::replace(&mut self.last, done));
        Some(Event::Answer(self.last.number, self.last.answer()))
    }

    fn fields(&mut self, stream: u32, end: bool, block: &[u8]) -> Result<Option<Event<'_>>, Malformed> {
        let head = self.decoder.read(block)?;
        let at = match self.begun.iter().position(|begun| begun.number == stream) {
            // Trailers.
            Some(at) => at,
            None if (100..200).contains(&head.status) => return if end { Err(Malformed) } else { Ok(None) },
            None if head.status == 0 => return Err(Malformed),
            None => {
                let mut begun = self.spare.pop().unwrap_or_default();
                begun.body.clear();
                self.begun.push(Stream { number: stream, status: head.status, run_id: head.run_id, body: begun.body, size: 0 });
                self.begun.len() - 1
            }
        };
        Ok(if end { self.end(at) } else { None })
    }
}

/// A frame's bytes without its padding.
fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], Malformed> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(Malformed)?;
    rest.len().checked_sub(padding.into()).and_then(|end| rest.get(..end)).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        head(kind, flags, stream, payload.len(), &mut out);
        out.extend_from_slice(payload);
        out
    }

    /// What came, and what is to be said: streams with status and body, `None` for a reset.
    type Seen = Vec<(u32, Option<(u16, Vec<u8>)>)>;

    fn read(reader: &mut Reader, bytes: &[u8], cut: usize) -> Result<Seen, Malformed> {
        let (mut held, mut found) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(cut) {
            held.extend_from_slice(piece);
            loop {
                let (used, event) = reader.read(&held)?;
                match event {
                    Some(Event::Answer(stream, answer)) => found.push((stream, Some((answer.status, answer.body.to_vec())))),
                    Some(Event::Reset(stream) | Event::GoAway(stream)) => found.push((stream, None)),
                    None => {}
                }
                held.drain(..used);
                if used == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }

    proptest! {
        #[test]
        fn however_the_frames_come_the_answers_are_the_same(
            bodies in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..300), 1usize..100, any::<bool>()), 1..8), cut in 1usize..400,
        ) {
            let (mut bytes, mut expected) = (frame(SETTINGS, 0, 0, &[]), Vec::new());
            // All heads first, then the bodies in turn: streams interleave.
            for n in 0..bodies.len() {
                bytes.extend(frame(HEADERS, if n % 2 == 0 { END_HEADERS } else { 0 }, n as u32 * 2 + 1, if n % 2 == 0 { &[0x88] } else { &[] }));
                if n % 2 == 1 {
                    bytes.extend(frame(CONTINUATION, END_HEADERS, n as u32 * 2 + 1, &[0x8d]));
                }
            }
            for (n, (body, size, padded)) in bodies.iter().enumerate() {
                let stream = n as u32 * 2 + 1;
                for part in body.chunks(*size) {
                    let padding = [&[3][..], part, &[0; 3]].concat();
                    bytes.extend(if *padded { frame(DATA, PADDED, stream, &padding) } else { frame(DATA, 0, stream, part) });
                    bytes.extend(frame(PING, 0, 0, b"12345678"));
                }
                bytes.extend(frame(DATA, END_STREAM, stream, b"x"));
                expected.push((stream, Some((if n % 2 == 0 { 200 } else { 404 }, [&body[..], b"x"].concat()))));
            }
            let mut reader = Reader::default();
            prop_assert_eq!(read(&mut reader, &bytes, cut), Ok(expected));
            prop_assert!(reader.begun.is_empty());
            let pings: usize = bodies.iter().map(|(body, size, _)| body.chunks(*size).count()).sum();
            prop_assert_eq!(reader.reply.len(), HEAD + pings * (HEAD + 8));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..12, flags: u8, cut in 1usize..50) {
            let mut all = frame(HEADERS, END_HEADERS, 1, &[0x88]);
            all.extend(frame(kind, flags, 1, &bytes));
            all.extend(&bytes);
            let _ = read(&mut Reader::default(), &all, cut);
        }
    }

    #[test]
    fn answers_without_a_body_trailers_resets_and_the_end() {
        let mut bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x89]);
        bytes.extend(frame(HEADERS, END_HEADERS, 3, &[0x08, 3, b'1', b'0', b'3']));
        bytes.extend(frame(HEADERS, END_HEADERS, 3, &[0x88]));
        bytes.extend(frame(DATA, 0, 3, b"ab"));
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x00, 1, b'a', 1, b'b']));
        bytes.extend(frame(HEADERS, END_HEADERS, 5, &[0x88]));
        bytes.extend(frame(RESET, 0, 5, &[0, 0, 0, 8]));
        bytes.extend(frame(DATA, END_STREAM, 5, b"late"));
        bytes.extend(frame(GO_AWAY, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0]));
        let expected = vec![(1, Some((204, vec![]))), (3, Some((200, b"ab".to_vec()))), (5, None), (5, None)];
        assert_eq!(read(&mut Reader::default(), &bytes, 1), Ok(expected));
    }

    #[test]
    fn what_breaks_the_protocol_is_malformed() {
        for bad in [
            frame(PUSH, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]),
            frame(CONTINUATION, END_HEADERS, 1, &[0x88]),
            [frame(HEADERS, 0, 1, &[0x88]), frame(DATA, 0, 1, b"a")].concat(),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x00, 1, b'a', 1, b'b']),
            frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x88]),
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        ] {
            assert_eq!(read(&mut Reader::default(), &bad, 7), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_request_is_its_frames() {
        let mut out = Vec::new();
        request(3, true, &mut out, |out| out.extend_from_slice(&[0x83, 0x86]));
        body(3, b"body", &mut out);
        assert_eq!(out, [frame(HEADERS, END_HEADERS, 3, &[0x83, 0x86]), frame(DATA, END_STREAM, 3, b"body")].concat());
        out.clear();
        preface(&mut out);
        assert_eq!(out.len(), 24 + HEAD + 12 + HEAD + 4);
    }
}
