//! Strings as JSON and CSV write them. May reject: invalid UTF-8. IO: none.
use super::Malformed;

/// Eight bytes 1.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The high bit of eight bytes.
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Looks at a text eight bytes at a time and unites what `look` finds in them. What is missing of the last eight is `padding`.
#[inline]
pub(crate) fn any(value: &[u8], padding: u8, look: impl Fn(u64) -> u64) -> u64 {
    let (eights, rest) = value.as_chunks::<8>();
    let mut found = eights.iter().fold(0, |found, eight| found | look(u64::from_le_bytes(*eight)));
    if !rest.is_empty() {
        let mut last = [padding; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        found |= look(u64::from_le_bytes(last));
    }
    found
}

/// Not 0 if one of eight bytes is `wanted` (ASCII).
#[inline]
pub(crate) const fn holds(eight: u64, wanted: u8) -> u64 {
    let zeroed = eight ^ (ONES * wanted as u64);
    zeroed.wrapping_sub(ONES) & !zeroed & HIGHS
}

/// Not 0 if one of eight bytes is outside ASCII.
#[inline]
pub(crate) const fn high(eight: u64) -> u64 {
    eight & HIGHS
}

/// Not 0 if one of eight bytes is escaped in JSON.
#[inline]
pub(crate) const fn escaped(eight: u64) -> u64 {
    let control = eight.wrapping_sub(ONES * 0x20) & !eight & HIGHS;
    control | holds(eight, b'"') | holds(eight, b'\\')
}

/// Refuses what is not UTF-8.
#[inline]
pub fn utf8(value: &[u8]) -> Result<(), Malformed> {
    std::str::from_utf8(value).map(|_| ()).map_err(|_| Malformed)
}

/// Appends a JSON string.
#[inline]
pub fn string(value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    out.push(b'"');
    // One bit of each find, so that one word tells both.
    let found = any(value, b' ', |eight| escaped(eight) >> 7 | high(eight));
    if found & HIGHS != 0 {
        utf8(value)?;
    }
    if found & ONES == 0 {
        out.extend_from_slice(value);
    } else {
        escape(value, out);
    }
    out.push(b'"');
    Ok(())
}

/// Appends the inside of a JSON string.
fn escape(mut value: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    while let Some(at) = value.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\') {
        let (plain, rest) = value.split_at(at);
        out.extend_from_slice(plain);
        let Some((&special, after)) = rest.split_first() else { return };
        let short = match special {
            b'"' | b'\\' => special,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            _ => {
                let digit = |n: u8| DIGITS.get(usize::from(n)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(special >> 4), digit(special & 15)]);
                value = after;
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
        value = after;
    }
    out.extend_from_slice(value);
}

/// Appends the text that the inside of a JSON string stands for; None when it is no text (a lone surrogate, a bad escape).
pub fn unescape(mut inside: &[u8], out: &mut Vec<u8>) -> Option<()> {
    while let Some(at) = memchr::memchr(b'\\', inside) {
        let (plain, rest) = inside.split_at_checked(at)?;
        out.extend_from_slice(plain);
        let (escape, after) = rest.split_at_checked(2)?;
        inside = after;
        let byte = match escape.get(1)? {
            b'b' => 0x08,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 0x0c,
            b'r' => b'\r',
            &c @ (b'"' | b'\\' | b'/') => c,
            b'u' => {
                let first = unit(&mut inside)?;
                let code = match first {
                    0xd800..0xdc00 => {
                        inside = inside.strip_prefix(b"\\u")?;
                        let second = unit(&mut inside)?;
                        if !(0xdc00..0xe000).contains(&second) {
                            return None;
                        }
                        0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                    }
                    _ => first,
                };
                out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        };
        out.push(byte);
    }
    out.extend_from_slice(inside);
    Some(())
}

/// Four hex digits.
fn unit(rest: &mut &[u8]) -> Option<u32> {
    let (digits, after) = rest.split_at_checked(4)?;
    *rest = after;
    digits.iter().try_fold(0, |n, &b| Some(n << 4 | char::from(b).to_digit(16)?))
}

/// Turns the JSON value at `out[start..]` into a CSV field: a string's own text, anything else as it is; quoted if it must be.
/// A JSON string that stands for no text (a lone surrogate) stays JSON.
pub fn into_field(out: &mut Vec<u8>, start: usize) {
    own(out, start);
    quote_field(out, start);
}

/// Replaces the JSON string at `out[start..]` with its own text. False if there is no string, or it stands for no text.
pub fn own(out: &mut Vec<u8>, start: usize) -> bool {
    let Some(inside) = out.get(start..).and_then(|json| json.strip_prefix(b"\"")).and_then(|json| json.strip_suffix(b"\"")) else {
        return false;
    };
    if memchr::memchr(b'\\', inside).is_some() {
        let mut text = Vec::with_capacity(inside.len());
        if unescape(inside, &mut text).is_none() {
            return false;
        }
        out.truncate(start);
        out.append(&mut text);
    } else {
        out.pop();
        out.remove(start);
    }
    true
}

/// Quotes the CSV field at `out[start..]` if it holds `"`, `,`, CR, LF or nothing.
pub fn quote_field(out: &mut Vec<u8>, start: usize) {
    let field = out.get(start..).unwrap_or_default();
    if !field.is_empty() && !field.iter().fold(false, |any, &b| any | matches!(b, b'"' | b',' | b'\r' | b'\n')) {
        return;
    }
    let field = out.split_off(start);
    out.push(b'"');
    for (n, part) in field.split(|&b| b == b'"').enumerate() {
        if n > 0 {
            out.extend_from_slice(b"\"\"");
        }
        out.extend_from_slice(part);
    }
    out.push(b'"');
}
