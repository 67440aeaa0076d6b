//! Heads as nearly all clients send them, read by words of eight bytes: visible ASCII, one of three methods, HTTP/1.1. What it takes it reads
//! as httparse does (a property of the tests); everything else, faults and heads that are not whole too, is left to that by None. IO: none.
use super::Header;

/// A request line and its headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usual<'a> {
    /// Bytes of the head, with the empty line.
    pub length: usize,
    /// GET, POST or HEAD.
    pub method: &'static str,
    /// In origin form.
    pub target: &'a [u8],
    /// How many slots are filled.
    pub headers: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;
const VERSION: &[u8] = b" HTTP/1.1";

/// Characters of a header's name (RFC 9110, 5.6.2).
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 256 {
        #[allow(clippy::indexing_slicing, reason = "a loop over the table itself, when this is compiled")]
        {
            table[at] = (at as u8).is_ascii_alphanumeric()
                || matches!(at as u8, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
        }
        at += 1;
    }
    table
};

/// Where the first byte is that is neither a blank nor visible ASCII, at or behind `from`. Only the lowest mark of a word is sure (a borrow may
/// set a higher one), and only that one is used.
#[inline]
fn special(text: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let (words, tail) = rest.as_chunks::<8>();
    for (count, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let delete = word ^ (0x7f * ONES);
        let marks = (word.wrapping_sub(0x20 * ONES) & !word | word | delete.wrapping_sub(ONES) & !delete) & TOPS;
        if marks != 0 {
            return Some(from + count * 8 + (marks.trailing_zeros() / 8) as usize);
        }
    }
    let at = tail.iter().position(|&byte| !matches!(byte, b' '..=b'~'))?;
    Some(from + words.len() * 8 + at)
}

/// The line at `from`, and where the next begins.
#[inline]
fn line(text: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let end = special(text, from)?;
    (text.get(end) == Some(&b'\r') && text.get(end + 1) == Some(&b'\n')).then_some(())?;
    Some((text.get(from..end)?, end + 2))
}

/// Reads the head at the start of `text`; None: it is not a usual one, has more than `most` headers, or not all of it is there.
#[inline]
pub(super) fn read<'a>(text: &'a [u8], slots: &mut [Header<'a>], most: usize) -> Option<Usual<'a>> {
    let (first, mut at) = line(text, 0)?;
    let (method, rest) = match first {
        [b'G', b'E', b'T', b' ', rest @ ..] => ("GET", rest),
        [b'P', b'O', b'S', b'T', b' ', rest @ ..] => ("POST", rest),
        [b'H', b'E', b'A', b'D', b' ', rest @ ..] => ("HEAD", rest),
        _ => return None,
    };
    let target = rest.strip_suffix(VERSION)?;
    if target.first() != Some(&b'/') || memchr::memchr(b' ', target).is_some() {
        return None;
    }
    let mut headers = 0;
    loop {
        let (line, next) = line(text, at)?;
        at = next;
        if line.is_empty() {
            return Some(Usual { length: at, method, target, headers });
        }
        let end = line.iter().position(|&byte| !TOKEN.get(usize::from(byte)).copied().unwrap_or_default())?;
        let (name, value) = line.split_at_checked(end)?;
        let value = value.strip_prefix(b":")?.trim_ascii();
        if name.is_empty() || headers == most {
            return None;
        }
        *slots.get_mut(headers)? = Header { name, value };
        headers += 1;
    }
}
