//! One value's database text → JSON (docs/values.md). May reject: what the database should not have sent. IO: none.
use super::text::{string, utf8};
use super::{Malformed, array, float};
use crate::plan::snapshot::{ColumnPlan, Encoding};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How one column's values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain value.
    Scalar(Encoding),
    /// A PostgreSQL array: encoding of its elements and what stands between them.
    Array(Encoding, u8),
}

impl Kind {
    /// Of a column; None if the delimiter is not one ASCII character.
    pub fn of(column: &ColumnPlan) -> Option<Self> {
        if !column.array {
            return Some(Self::Scalar(column.encoding));
        }
        match (column.delimiter.as_bytes(), column.encoding) {
            (&[delimiter @ (b'!'..=b'~')], encoding) if !b"{}\"\\".contains(&delimiter) && !is_storage(encoding) => {
                Some(Self::Array(encoding, delimiter))
            }
            _ => None,
        }
    }

    /// Appends the value as JSON.
    pub fn json(self, value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        match self {
            Self::Array(encoding, delimiter) => array::write(value, Self::Scalar(encoding), delimiter, out),
            Self::Scalar(encoding) => scalar(encoding, value, out),
        }
    }
}

fn is_storage(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Storage | Encoding::StorageQuoted)
}

fn scalar(encoding: Encoding, value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    match encoding {
        Encoding::Raw => digits(value, out),
        Encoding::Number => match value {
            b"NaN" | b"Infinity" | b"-Infinity" => string(value, out),
            _ => digits(value, out),
        },
        Encoding::Quoted => string(value, out),
        Encoding::Boolean => {
            out.extend_from_slice(match value {
                b"t" => b"true".as_slice(),
                b"f" => b"false",
                _ => return Err(Malformed),
            });
            Ok(())
        }
        Encoding::String => string(value, out),
        Encoding::Timestamp => timestamp(value, false, out),
        Encoding::Timestamptz => timestamp(value, true, out),
        Encoding::Base64 => bytea(value, out),
        Encoding::Json => embedded(value, out),
        Encoding::Storage => storage(value, false, out),
        Encoding::StorageQuoted => storage(value, true, out),
    }
}

/// Whether they can only be a number.
#[inline]
#[allow(clippy::indexing_slicing)] // by a byte into 256 places
pub(crate) fn numeric(value: &[u8]) -> bool {
    // A cheap check that keeps anything else from being embedded; the grammar is the database's.
    const NUMERIC: [bool; 256] = {
        let mut numeric = [false; 256];
        let mut n = 0;
        while n < 15 {
            numeric[b"0123456789-+.e0"[n] as usize] = true;
            n += 1;
        }
        numeric
    };
    !value.is_empty() && value.iter().all(|&b| NUMERIC[usize::from(b)])
}

/// Digits as they are.
#[inline]
fn digits(value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    if !numeric(value) {
        return Err(Malformed);
    }
    out.extend_from_slice(value);
    Ok(())
}

/// `YYYY-MM-DD HH:MM:SS[.f]` (with zone: `+00`) → T, Z, no trailing zeros. Anything else (infinity, BC, years of five
/// digits, another offset) is a string as it is.
fn timestamp(value: &[u8], zone: bool, out: &mut Vec<u8>) -> Result<(), Malformed> {
    const FORM: &[u8; 19] = b"0000-00-00 00:00:00";
    let fits = |text: &[u8]| text.iter().zip(FORM).all(|(b, f)| if *f == b'0' { b.is_ascii_digit() } else { b == f });
    let parts = if zone { value.strip_suffix(b"+00") } else { Some(value) }
        .and_then(|text| text.split_at_checked(19))
        .filter(|(time, _)| fits(time));
    let Some((time, fraction)) = parts else { return string(value, out) };
    let fraction = match fraction {
        [] => fraction,
        [b'.', digits @ ..] if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => fraction,
        _ => return string(value, out),
    };
    let kept = fraction.iter().rposition(|&b| b != b'0' && b != b'.').map_or(0, |last| last + 1);
    let (date, clock) = time.split_at(10);
    out.push(b'"');
    out.extend_from_slice(date);
    out.push(b'T');
    out.extend_from_slice(clock.get(1..).unwrap_or_default());
    out.extend_from_slice(fraction.get(..kept).unwrap_or_default());
    out.extend_from_slice(if zone { b"Z\"" } else { b"\"" });
    Ok(())
}

/// `\x` and hex digits → base64.
fn bytea(value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let hex = value.strip_prefix(b"\\x").ok_or(Malformed)?;
    let (pairs, []) = hex.as_chunks::<2>() else { return Err(Malformed) };
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or(Malformed);
    out.push(b'"');
    let mut bytes = [0u8; 768]; // a multiple of 3, so that only the last piece is padded
    for piece in pairs.chunks(bytes.len()) {
        for (byte, &[high, low]) in bytes.iter_mut().zip(piece) {
            *byte = digit(high)? << 4 | digit(low)?;
        }
        base64(bytes.get(..piece.len()).ok_or(Malformed)?, out)?;
    }
    out.push(b'"');
    Ok(())
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let room = out.get_mut(start..).ok_or(Malformed)?;
    STANDARD.encode_slice(bytes, room).map_err(|_| Malformed)?;
    Ok(())
}

/// JSON as it is, line breaks outside strings removed.
fn embedded(value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    if value.is_empty() {
        return Err(Malformed);
    }
    utf8(value)?;
    if memchr::memchr2(b'\n', b'\r', value).is_none() {
        out.extend_from_slice(value);
        return Ok(());
    }
    let (mut inside, mut escaped) = (false, false);
    for &b in value {
        if !inside && matches!(b, b'\n' | b'\r') {
            continue;
        }
        out.push(b);
        if escaped {
            escaped = false;
        } else if b == b'"' {
            inside = !inside;
        } else {
            escaped = inside && b == b'\\';
        }
    }
    Ok(())
}

/// A SQLite value by the tag of its storage class.
fn storage(value: &[u8], quoted: bool, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (&tag, value) = value.split_first().ok_or(Malformed)?;
    match tag {
        b'i' => {
            let absolute = value.strip_prefix(b"-").unwrap_or(value);
            if absolute.is_empty() || !absolute.iter().all(u8::is_ascii_digit) {
                return Err(Malformed);
            }
            let quote: &[u8] = if quoted { b"\"" } else { b"" };
            out.extend_from_slice(quote);
            out.extend_from_slice(value);
            out.extend_from_slice(quote);
            Ok(())
        }
        b'r' => {
            let real = f64::from_be_bytes(value.try_into().map_err(|_| Malformed)?);
            if real.is_finite() {
                float::write(real, out);
            } else {
                out.push(b'"');
                float::write(real, out);
                out.push(b'"');
            }
            Ok(())
        }
        b't' => string(value, out),
        b'b' => {
            out.push(b'"');
            base64(value, out)?;
            out.push(b'"');
            Ok(())
        }
        _ => Err(Malformed),
    }
}
