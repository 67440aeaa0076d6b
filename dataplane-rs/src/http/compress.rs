//! Bodies compressed with what the client accepts: whole ones, and streams piece by piece. May reject: nothing; a body that can't be
//! compressed is sent as it is. IO: none.
use super::negotiate::Coding;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::cell::RefCell;
use std::io::Write;

/// Cheap levels: answers are made on the serving threads.
const GZIP_LEVEL: u32 = 4;
const ZSTD_LEVEL: i32 = 1;

thread_local! {
    // Its tables are large: made once a thread.
    static ZSTD: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Appends a whole body; false (and nothing appended) when it isn't compressed.
pub fn whole(coding: Coding, body: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let packed = match coding {
        Coding::Identity => false,
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(&mut *out, Compression::new(GZIP_LEVEL));
            encoder.write_all(body).is_ok() && encoder.finish().is_ok()
        }
        Coding::Zstd => ZSTD.with_borrow_mut(|slot| {
            if slot.is_none() {
                *slot = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
            }
            match slot.as_mut().map(|compressor| compressor.compress(body)) {
                Some(Ok(packed)) => {
                    out.extend_from_slice(&packed);
                    true
                }
                _ => false,
            }
        }),
    };
    if !packed {
        out.truncate(start);
    }
    packed
}

/// A stream under compression. Each piece can be read by the client when it arrives.
pub struct Stream(Encoder);

enum Encoder {
    Identity,
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

impl Stream {
    /// With a coding; None when it can't be had.
    pub fn new(coding: Coding) -> Option<Self> {
        Some(Self(match coding {
            Coding::Identity => Encoder::Identity,
            Coding::Gzip => Encoder::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL)))),
            Coding::Zstd => Encoder::Zstd(Box::new(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL).ok()?)),
        }))
    }

    /// Appends what a piece becomes. False: the stream can't go on.
    #[must_use]
    pub fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> bool {
        let (made, wrote) = match &mut self.0 {
            Encoder::Identity => {
                out.extend_from_slice(piece);
                return true;
            }
            Encoder::Gzip(encoder) => {
                let wrote = encoder.write_all(piece).and_then(|()| encoder.flush());
                (encoder.get_mut(), wrote)
            }
            Encoder::Zstd(encoder) => {
                let wrote = encoder.write_all(piece).and_then(|()| encoder.flush());
                (encoder.get_mut(), wrote)
            }
        };
        out.append(made);
        wrote.is_ok()
    }

    /// Appends the end.
    #[must_use]
    pub fn finish(self, out: &mut Vec<u8>) -> bool {
        let rest = match self.0 {
            Encoder::Identity => return true,
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        rest.map(|mut rest| out.append(&mut rest)).is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpack(coding: Coding, packed: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            Coding::Identity => plain.extend_from_slice(packed),
            Coding::Gzip => drop(flate2::read::GzDecoder::new(packed).read_to_end(&mut plain).unwrap()),
            Coding::Zstd => drop(zstd::stream::read::Decoder::new(packed).unwrap().read_to_end(&mut plain).unwrap()),
        }
        plain
    }

    #[test]
    fn whole_bodies_come_back() {
        let body = b"{\"id\":1,\"name\":\"a\"}".repeat(1000);
        for coding in [Coding::Gzip, Coding::Zstd] {
            let mut out = b"head".to_vec();
            assert!(whole(coding, &body, &mut out));
            assert!(out.len() < body.len() / 10);
            assert_eq!(unpack(coding, out.strip_prefix(b"head").unwrap()), body);
        }
        assert!(!whole(Coding::Identity, &body, &mut Vec::new()));
    }

    #[test]
    fn each_piece_of_a_stream_can_be_read_when_it_arrives() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let (mut stream, mut out) = (Stream::new(coding).unwrap(), Vec::new());
            assert!(stream.write(b"first\n", &mut out));
            let mut seen = [0; 6];
            match coding {
                Coding::Gzip => flate2::read::GzDecoder::new(&*out).read_exact(&mut seen).unwrap(),
                _ => zstd::stream::read::Decoder::new(&*out).unwrap().read_exact(&mut seen).unwrap(),
            }
            assert_eq!(&seen, b"first\n");
            assert!(stream.write(b"second\n", &mut out));
            assert!(stream.finish(&mut out));
            assert_eq!(unpack(coding, &out), b"first\nsecond\n");
        }
    }
}
