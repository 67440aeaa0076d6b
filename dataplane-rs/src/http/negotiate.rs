//! What the client accepts: formats by `Accept`, codings by `Accept-Encoding` (RFC 9110, 12.5). May reject: a request that accepts none
//! of our formats. IO: none, no allocation.
use crate::encode::Format;

/// None of the accepted formats can be produced (406).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of the accepted formats can be produced")]
pub struct NotAcceptable;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Not at all.
    Identity,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

impl Coding {
    /// `Content-Encoding`, none for identity.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}

/// The format of the answer: `requested` (by `format=`) or the best that the `Accept` fields admit; JSON without any.
pub fn format<'a>(requested: Option<Format>, accept: impl IntoIterator<Item = &'a [u8]>) -> Result<Format, NotAcceptable> {
    if let Some(format) = requested {
        return Ok(format);
    }
    // Per format: (specificity, weight) of the most specific range that matches it.
    let mut best = [(0u8, 0u16); 3];
    let mut present = false;
    for element in accept.into_iter().flat_map(|field| parts(field, b',')) {
        if element.is_empty() {
            continue;
        }
        present = true;
        let Some((range, weight)) = weighed(element) else { continue };
        for (found, format) in best.iter_mut().zip(Format::ALL) {
            if let Some(specificity) = specificity(range, format) {
                *found = (*found).max((specificity, weight));
            }
        }
    }
    if !present {
        return Ok(Format::Json);
    }
    // max_by_key takes the last of equals, so the order is reversed.
    let chosen = best.into_iter().zip(Format::ALL).filter(|((_, weight), _)| *weight > 0).rev().max_by_key(|((_, weight), _)| *weight);
    chosen.map(|(_, format)| format).ok_or(NotAcceptable)
}

/// The coding of a body that may be compressed. Refusing identity as well changes nothing: it is sent when nothing else fits.
pub fn coding<'a>(accept_encoding: impl IntoIterator<Item = &'a [u8]>) -> Coding {
    let (mut zstd, mut gzip, mut identity, mut any) = (None, None, None, None);
    for (name, weight) in accept_encoding.into_iter().flat_map(|field| parts(field, b',')).filter_map(weighed) {
        let place = match name {
            _ if name.eq_ignore_ascii_case(b"zstd") => &mut zstd,
            _ if name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip") => &mut gzip,
            _ if name.eq_ignore_ascii_case(b"identity") => &mut identity,
            b"*" => &mut any,
            _ => continue,
        };
        *place = (*place).max(Some(weight));
    }
    let (zstd, gzip) = (zstd.or(any).unwrap_or(0), gzip.or(any).unwrap_or(0));
    let (best, coding) = if zstd >= gzip { (zstd, Coding::Zstd) } else { (gzip, Coding::Gzip) };
    if best == 0 || identity.is_some_and(|identity| identity > best) { Coding::Identity } else { coding }
}

/// How closely a media range names a format: 3 itself, 2 `type/*`, 1 `*/*`.
fn specificity(range: &[u8], format: Format) -> Option<u8> {
    let (kind, subtype): (&[u8], &[u8]) = match format {
        Format::Json => (b"application", b"json"),
        Format::Ndjson => (b"application", b"x-ndjson"),
        Format::Csv => (b"text", b"csv"),
    };
    if range == b"*/*" || range == b"*" {
        return Some(1);
    }
    let at = memchr::memchr(b'/', range)?;
    let (its_kind, its_subtype) = (range.get(..at)?, range.get(at + 1..)?);
    if !its_kind.eq_ignore_ascii_case(kind) {
        return None;
    }
    match its_subtype {
        b"*" => Some(2),
        _ => its_subtype.eq_ignore_ascii_case(subtype).then_some(3),
    }
}

/// `name; parameters; q=0.5` → name and weight in thousandths; None if the weight cannot be read.
fn weighed(element: &[u8]) -> Option<(&[u8], u16)> {
    let mut pieces = parts(element, b';');
    let name = pieces.next()?;
    let mut weight = 1000;
    for piece in pieces {
        if let [b'q' | b'Q', b'=', value @ ..] = piece {
            weight = thousandths(value)?;
        }
    }
    Some((name, weight))
}

/// `0`, `0.25`, `.25`, `1`, `1.000`.
fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, fraction) = match memchr::memchr(b'.', value) {
        Some(at) => (value.get(..at)?, value.get(at + 1..)?),
        None if value.is_empty() => return None,
        None => (value, &b""[..]),
    };
    let whole = match whole {
        b"0" => 0,
        b"" if !fraction.is_empty() => 0,
        b"1" => 1000,
        _ => return None,
    };
    if fraction.len() > 3 {
        return None;
    }
    let mut weight = whole;
    for (digit, unit) in fraction.iter().zip([100, 10, 1]) {
        weight += u16::from(digit.checked_sub(b'0').filter(|d| *d < 10)?) * unit;
    }
    (weight <= 1000).then_some(weight)
}

/// What stands between separators outside quoted strings, without blanks around it.
fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = text.iter().position(|&b| {
            if escaped {
                escaped = false;
            } else if b == b'"' {
                quoted = !quoted;
            } else {
                escaped = quoted && b == b'\\';
            }
            b == separator && !quoted
        });
        let (part, after) = match end {
            Some(at) => (text.get(..at)?, text.get(at + 1..)),
            None => (text, None),
        };
        rest = after;
        Some(blanks_off(part))
    })
}

fn blanks_off(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', inner @ ..] | [inner @ .., b' ' | b'\t'] = text {
        text = inner;
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::golden::vectors;

    #[test]
    fn as_the_vectors_say() {
        let file = vectors("negotiation.json");
        for vector in file["formats"].as_array().unwrap() {
            let accept: Vec<_> = vector["accept"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().as_bytes()).collect();
            let chosen = format(None, accept).ok().map(Format::name);
            assert_eq!(chosen, vector["format"].as_str(), "{vector}");
        }
        for vector in file["codings"].as_array().unwrap() {
            let accept: Vec<_> = vector["accept"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().as_bytes()).collect();
            assert_eq!(coding(accept).name(), vector["coding"].as_str(), "{vector}");
        }
    }
}
