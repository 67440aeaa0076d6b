//! PostgreSQL's array text → a JSON array. May reject: what array_out never writes. IO: none.
use super::{Malformed, value::Kind};

/// Appends the JSON array. `element` is how each element is encoded; explicit bounds (`[2:3]={…}`) are dropped.
pub fn write(value: &[u8], element: Kind, delimiter: u8, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut rest = after_bounds(value)?;
    let mut scratch = Vec::new();
    let mut depth = 0usize;
    // Whether an element or an inner array may begin here (after `{` or the delimiter), and whether `}` may.
    let (mut begins, mut closes) = (true, false);
    loop {
        let (&byte, after) = rest.split_first().ok_or(Malformed)?;
        match byte {
            b'{' if begins => {
                out.push(b'[');
                depth += 1;
                closes = true;
                rest = after;
                continue;
            }
            b'}' if depth > 0 && (closes || !begins) => {
                out.push(b']');
                depth -= 1;
                rest = after;
                if depth == 0 {
                    return if rest.is_empty() { Ok(()) } else { Err(Malformed) };
                }
                (begins, closes) = (false, false);
                continue;
            }
            b if b == delimiter && !begins && depth > 0 => {
                out.push(b',');
                (begins, closes) = (true, false);
                rest = after;
                continue;
            }
            _ if !begins || depth == 0 => return Err(Malformed),
            b'"' => {
                let end = quoted_end(after)?;
                let (inside, behind) = after.split_at_checked(end).ok_or(Malformed)?;
                element.json(unescaped(inside, &mut scratch)?, out)?;
                rest = behind.get(1..).ok_or(Malformed)?;
            }
            _ => {
                let end = bare_end(rest, delimiter)?;
                let (inside, behind) = rest.split_at_checked(end).ok_or(Malformed)?;
                if inside.is_empty() {
                    return Err(Malformed);
                }
                if inside.eq_ignore_ascii_case(b"NULL") {
                    out.extend_from_slice(b"null");
                } else {
                    element.json(unescaped(inside, &mut scratch)?, out)?;
                }
                rest = behind;
            }
        }
        (begins, closes) = (false, false);
    }
}

/// What stands behind `[l:u][l:u]…=`.
fn after_bounds(value: &[u8]) -> Result<&[u8], Malformed> {
    if value.first() != Some(&b'[') {
        return Ok(value);
    }
    let at = memchr::memchr(b'=', value).ok_or(Malformed)?;
    let (bounds, rest) = value.split_at(at);
    if !bounds.iter().all(|b| matches!(b, b'[' | b']' | b':' | b'-' | b'0'..=b'9')) {
        return Err(Malformed);
    }
    rest.get(1..).ok_or(Malformed)
}

/// Where the closing quote is.
fn quoted_end(text: &[u8]) -> Result<usize, Malformed> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', text.get(from..).ok_or(Malformed)?).ok_or(Malformed)?;
        if text.get(at) == Some(&b'"') {
            return Ok(at);
        }
        from = at + 2;
    }
}

/// Where an element without quotes ends.
fn bare_end(text: &[u8], delimiter: u8) -> Result<usize, Malformed> {
    let mut from = 0;
    loop {
        let end = |&b: &u8| b == delimiter || matches!(b, b'}' | b'{' | b'"' | b'\\');
        let at = from + text.get(from..).ok_or(Malformed)?.iter().position(end).ok_or(Malformed)?;
        match text.get(at) {
            Some(b'\\') => from = at + 2,
            Some(b'{' | b'"') => return Err(Malformed),
            _ => return Ok(at),
        }
    }
}

/// The element without its backslashes.
fn unescaped<'a>(inside: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let Some(first) = memchr::memchr(b'\\', inside) else { return Ok(inside) };
    scratch.clear();
    let mut rest = inside;
    let mut at = first;
    loop {
        let (plain, escape) = rest.split_at_checked(at).ok_or(Malformed)?;
        scratch.extend_from_slice(plain);
        scratch.push(*escape.get(1).ok_or(Malformed)?);
        rest = escape.get(2..).ok_or(Malformed)?;
        match memchr::memchr(b'\\', rest) {
            Some(next) => at = next,
            None => {
                scratch.extend_from_slice(rest);
                return Ok(scratch);
            }
        }
    }
}
