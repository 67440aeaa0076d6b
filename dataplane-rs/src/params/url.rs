//! URL arguments by the rules of `application/x-www-form-urlencoded`. Rejects invalid percent-escapes and invalid UTF-8. IO: none.
use crate::encode::Format;
use crate::encode::text::{any, high, holds};
use crate::http::negotiate::NotAcceptable;
use std::borrow::Cow;

/// Not valid percent-encoded UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not valid percent-encoded UTF-8")]
pub struct Malformed;

/// Name and value of each pair as they stand; empty pairs are skipped, a pair without `=` has an empty value.
pub fn pairs(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|&b| b == b'&').filter(|pair| !pair.is_empty()).map(|pair| match memchr::memchr(b'=', pair) {
        Some(at) => (pair.get(..at).unwrap_or_default(), pair.get(at + 1..).unwrap_or_default()),
        None => (pair, &b""[..]),
    })
}

/// Whether a piece stands for itself.
#[inline]
fn is_plain(piece: &[u8]) -> bool {
    any(piece, b' ', |eight| holds(eight, b'%') | holds(eight, b'+') | high(eight)) == 0
}

/// Appends what a piece stands for; the caller checks that it is UTF-8.
pub fn decode(mut piece: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    while let Some(at) = memchr::memchr2(b'%', b'+', piece) {
        let (plain, special) = piece.split_at(at);
        out.extend_from_slice(plain);
        if let [b'+', after @ ..] = special {
            out.push(b' ');
            piece = after;
            continue;
        }
        let &[_, high, low, ref after @ ..] = special else { return Err(Malformed) };
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or(Malformed);
        out.push(digit(high)? << 4 | digit(low)?);
        piece = after;
    }
    out.extend_from_slice(piece);
    Ok(())
}

/// What a piece stands for; allocates only if that is not the piece itself.
pub fn decoded(piece: &[u8]) -> Result<Cow<'_, [u8]>, Malformed> {
    if is_plain(piece) {
        return Ok(Cow::Borrowed(piece));
    }
    let mut out = Vec::with_capacity(piece.len());
    decode(piece, &mut out)?;
    std::str::from_utf8(&out).map_err(|_| Malformed)?;
    Ok(Cow::Owned(out))
}

/// Checks a piece without keeping what it stands for.
pub fn check(piece: &[u8]) -> Result<(), Malformed> {
    if is_plain(piece) { Ok(()) } else { decoded(piece).map(|_| ()) }
}

/// The first `format=` of the arguments, which is read before everything else about them.
pub fn requested(query: &[u8]) -> Result<Option<Format>, NotAcceptable> {
    // Most calls have one argument, and its name isn't escaped.
    if memchr::memchr2(b'%', b'&', query).is_none() && !query.starts_with(b"f") {
        return Ok(None);
    }
    for (name, value) in pairs(query) {
        if decoded(name).is_ok_and(|name| *name == *b"format") {
            let format = decoded(value).ok().and_then(|value| Format::parse(&value));
            return format.map(Some).ok_or(NotAcceptable);
        }
    }
    Ok(None)
}

/// Appends the caller's arguments without `cursor`, byte for byte in their order, `&` only between (for `Link`).
pub fn without_cursor(query: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    for pair in query.split(|&b| b == b'&').filter(|pair| !pair.is_empty()) {
        let name = memchr::memchr(b'=', pair).and_then(|at| pair.get(..at)).unwrap_or(pair);
        if decoded(name).is_ok_and(|name| *name == *b"cursor") {
            continue;
        }
        if out.len() > start {
            out.push(b'&');
        }
        out.extend_from_slice(pair);
    }
}
