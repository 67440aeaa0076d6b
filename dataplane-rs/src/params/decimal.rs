//! Exact comparison of decimal texts of the parameter grammar, without numbers of any width. Rejects nothing. IO: none.
use std::cmp::Ordering;

/// One text, cut up: sign, digits before and behind the point, exponent.
#[derive(Clone, Copy)]
struct Decimal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn of(text: &'a [u8]) -> Self {
        let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', text) {
            Some(at) => text.split_at(at),
            None => (text, &b""[..]),
        };
        let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
            Some(at) => (mantissa.get(..at).unwrap_or_default(), mantissa.get(at + 1..).unwrap_or_default()),
            None => (mantissa, &b""[..]),
        };
        let exponent = exponent.get(1..).and_then(|e| std::str::from_utf8(e).ok()).and_then(|e| e.parse().ok()).unwrap_or(0);
        Self { negative, whole, fraction, exponent }
    }

    fn digits(self) -> impl Iterator<Item = &'a u8> {
        self.whole.iter().chain(self.fraction).skip_while(|&&b| b == b'0')
    }

    /// Power of ten just above the first digit that is not 0; None for zero.
    fn magnitude(self) -> Option<i64> {
        let zeros = self.whole.iter().chain(self.fraction).position(|&b| b != b'0')?;
        let place = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Some(place(self.whole.len()) - place(zeros) + self.exponent)
    }

    fn compare_absolute(self, other: Self) -> Ordering {
        match (self.magnitude(), other.magnitude()) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(a), Some(b)) if a != b => a.cmp(&b),
            _ => {
                let (mut a, mut b) = (self.digits(), other.digits());
                loop {
                    let pair = (a.next(), b.next());
                    if pair == (None, None) {
                        return Ordering::Equal;
                    }
                    match pair.0.unwrap_or(&b'0').cmp(pair.1.unwrap_or(&b'0')) {
                        Ordering::Equal => {}
                        unequal => return unequal,
                    }
                }
            }
        }
    }
}

/// Compares two texts of the number grammar by value: `1.10` = `1.1` = `11e-1`.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (Decimal::of(a), Decimal::of(b));
    let zero = |d: Decimal<'_>| d.magnitude().is_none();
    match (a.negative && !zero(a), b.negative && !zero(b)) {
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (false, false) => a.compare_absolute(b),
        (true, true) => b.compare_absolute(a),
    }
}
