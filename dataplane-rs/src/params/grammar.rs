//! The parameter grammar of docs/contract.md over text. Rejects by `false`. IO: none.

/// `-?(0|[1-9][0-9]*)` within int64.
pub fn integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let sound = digits.iter().fold(!digits.is_empty(), |all, b| all & b.is_ascii_digit());
    if !sound || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return false;
    }
    // 18 digits always fit.
    digits.len() < 19 || std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

/// Longest number, in characters.
pub const NUMBER_LIMIT: usize = 400;

/// `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?`, at most 400 characters.
pub fn number(text: &[u8]) -> bool {
    if text.len() > NUMBER_LIMIT {
        return false;
    }
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(&mut rest);
    if whole.is_empty() || (whole.len() > 1 && whole.first() == Some(&b'0')) {
        return false;
    }
    if let Some(after) = rest.strip_prefix(b".") {
        rest = after;
        if digits(&mut rest).is_empty() {
            return false;
        }
    }
    if let [b'e' | b'E', after @ ..] = rest {
        rest = match after {
            [b'+' | b'-', after @ ..] => after,
            _ => after,
        };
        if !(1..=3).contains(&digits(&mut rest).len()) {
            return false;
        }
    }
    rest.is_empty()
}

/// Takes the digits at the front off.
fn digits<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let (taken, after) = rest.split_at(count);
    *rest = after;
    taken
}

/// The number that two digits mean.
fn two(pair: &[u8]) -> Option<u32> {
    match pair {
        &[a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// `YYYY-MM-DD`, valid in the proleptic Gregorian calendar, years 0001–9999.
pub fn date(text: &[u8]) -> bool {
    let &[a, b, c, d, b'-', e, f, b'-', g, h] = text else { return false };
    let (Some(century), Some(rest), Some(month), Some(day)) = (two(&[a, b]), two(&[c, d]), two(&[e, f]), two(&[g, h])) else {
        return false;
    };
    let year = century * 100 + rest;
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return false,
    };
    year > 0 && (1..=days).contains(&day)
}

/// `HH:MM:SS[.f{1,6}]`, hour 00–23.
pub fn time(text: &[u8]) -> bool {
    let Some((clock, fraction)) = text.split_at_checked(8) else { return false };
    let &[a, b, b':', c, d, b':', e, f] = clock else { return false };
    let below = |pair: [u8; 2], limit: u32| two(&pair).is_some_and(|n| n < limit);
    let fraction = match fraction {
        [] => true,
        [b'.', digits @ ..] => (1..=6).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    fraction && below([a, b], 24) && below([c, d], 60) && below([e, f], 60)
}

/// Date, `T` or blank, time, then nothing, `Z` or `±HH:MM` (at most 15:59).
pub fn timestamp(text: &[u8]) -> bool {
    let Some((day, [b'T' | b' ', rest @ ..])) = text.split_at_checked(10) else { return false };
    let clock = match rest {
        [clock @ .., b'Z'] => clock,
        [clock @ .., b'+' | b'-', a, b, b':', c, d] => {
            if two(&[*a, *b]).is_none_or(|n| n > 15) || two(&[*c, *d]).is_none_or(|n| n > 59) {
                return false;
            }
            clock
        }
        clock => clock,
    };
    date(day) && time(clock)
}

/// 8-4-4-4-12 hex digits.
pub fn uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(n, b)| match n {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}
