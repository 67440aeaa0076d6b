//! Chunked request bodies: bytes in, decoded bytes out, whatever the cuts. May reject: sizes that are not hex, extensions and
//! trailers beyond their bounds, every line end that is not CRLF. IO: none.

/// Longest chunk-size line and longest trailer section, bytes.
const LINE: usize = 1024;
const TRAILERS: usize = 8 << 10;

/// The chunked framing cannot be read in one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chunked body is not well-formed")]
pub struct Malformed;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    Done,
}

/// A body as far as it was read.
#[derive(Debug, Default)]
pub struct Chunked {
    at: At,
    /// Of this chunk, bytes still to come.
    left: u64,
    digits: u8,
    /// Of this line, or of all trailers.
    line: usize,
    /// What was decoded, up to the limit.
    pub body: Vec<u8>,
    /// There was more than the limit: the rest is decoded and dropped.
    pub too_large: bool,
}

impl Chunked {
    /// True when the last chunk and the trailers were read.
    pub fn done(&self) -> bool {
        self.at == At::Done
    }

    /// Reads on; says how many bytes of `input` belong to this body.
    pub fn feed(&mut self, input: &[u8], limit: usize) -> Result<usize, Malformed> {
        let mut rest = input;
        while self.at != At::Done
            && let Some((&byte, after)) = rest.split_first()
        {
            if self.at == At::Data {
                let take = rest.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                let (data, after) = rest.split_at_checked(take).ok_or(Malformed)?;
                self.keep(data, limit);
                self.left -= take as u64;
                if self.left == 0 {
                    self.at = At::DataCr;
                }
                rest = after;
                continue;
            }
            rest = after;
            self.line += 1;
            self.at = match (self.at, byte) {
                (At::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if self.digits < 15 => {
                    self.digits += 1;
                    self.left = self.left * 16 + u64::from((byte as char).to_digit(16).ok_or(Malformed)?);
                    At::Size
                }
                (At::Size, b';') if self.digits > 0 => At::Extension,
                (At::Size, b'\r') if self.digits > 0 => At::SizeEnd,
                (At::Extension, b'\r') => At::SizeEnd,
                (At::Extension, b'\t' | b' '..=b'~' | 0x80..) if self.line < LINE => At::Extension,
                (At::SizeEnd, b'\n') => {
                    (self.digits, self.line) = (0, 0);
                    if self.left == 0 { At::TrailerStart } else { At::Data }
                }
                (At::DataCr, b'\r') => At::DataLf,
                (At::DataLf, b'\n') => {
                    self.line = 0;
                    At::Size
                }
                (At::TrailerStart, b'\r') => At::LastLf,
                (At::TrailerStart, b'!'..=b'~') => At::Trailer,
                (At::Trailer, b'\r') => At::TrailerLf,
                (At::Trailer, b'\t' | b' '..=b'~' | 0x80..) if self.line < TRAILERS => At::Trailer,
                (At::TrailerLf, b'\n') => At::TrailerStart,
                (At::LastLf, b'\n') => At::Done,
                _ => return Err(Malformed),
            };
        }
        Ok(input.len() - rest.len())
    }

    fn keep(&mut self, data: &[u8], limit: usize) {
        if self.too_large || self.body.len() + data.len() > limit {
            self.too_large = true;
            self.body = Vec::new();
        } else {
            self.body.extend_from_slice(data);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<(bool, Vec<u8>, usize), Malformed> {
        let mut chunked = Chunked::default();
        let used = chunked.feed(text, 100)?;
        Ok((chunked.done(), chunked.body, used))
    }

    #[test]
    fn chunks_are_joined() {
        let text = b"3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\nX-T: a\r\n\r\nGET";
        assert_eq!(read(text), Ok((true, b"abc0123456789".to_vec(), text.len() - 3)));
    }

    #[test]
    fn bad_framing_is_refused() {
        for text in [
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "3\r\nab\r\n\r\n",
            "-3\r\n",
            "0x3\r\n",
            " 3\r\n",
            "3 \r\n",
            "\r\n",
            ";a\r\n",
            "g\r\n",
            "1234567890123456\r\n",
            "3\r\nabc\n",
            "0\r\n\n",
            "0\r\n x\r\n\r\n",
            "0\r\nX: a\n\r\n",
            "3;\x01\r\nabc\r\n",
        ] {
            assert_eq!(read(text.as_bytes()), Err(Malformed), "{text:?}");
        }
        assert_eq!(read(&[b"3;".to_vec(), vec![b'a'; 2000]].concat()), Err(Malformed));
    }

    #[test]
    fn beyond_the_limit_is_dropped() {
        let mut chunked = Chunked::default();
        let text = b"5\r\nabcde\r\n5\r\nabcde\r\n0\r\n\r\n";
        assert_eq!(chunked.feed(text, 9), Ok(text.len()));
        assert!(chunked.done() && chunked.too_large && chunked.body.is_empty());
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..8), cut in any::<prop::sample::Index>()) {
            let mut text = Vec::new();
            for part in &parts {
                text.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                text.extend_from_slice(part);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let (first, second) = text.split_at(cut.index(text.len()));
            let mut chunked = Chunked::default();
            prop_assert_eq!(chunked.feed(first, 1000), Ok(first.len()));
            prop_assert_eq!(chunked.feed(second, 1000), Ok(second.len()));
            prop_assert!(chunked.done());
            prop_assert_eq!(chunked.body, parts.concat());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&bytes);
        }
    }
}
