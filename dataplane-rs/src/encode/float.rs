//! Doubles in the form of PostgreSQL's float8out (`extra_float_digits=1`). May reject: nothing. IO: none.
//!
//! PostgreSQL writes the shortest digits strictly inside the interval of decimals that read back as the same double; Rust's
//! shortest form may also stand exactly on the interval's end (1e23 for 9.999999999999999e+22).
use std::io::Write;

/// Appends the text: `NaN`, `Infinity`, `-Infinity`, `-0`, `1e+20`, `0.0001`, `1e-05`.
pub fn write(value: f64, out: &mut Vec<u8>) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    let value = value.abs();
    if value.is_infinite() {
        return out.extend_from_slice(b"Infinity");
    }
    if value == 0.0 {
        return out.push(b'0');
    }
    let mut scientific = Scientific::shortest(value);
    if scientific.on_boundary(value) {
        scientific = Scientific::inside(value);
    }
    scientific.write(14, out);
}

/// The same of a single (float4out): `1e+06`, `123456`, `1.1`.
pub fn write_single(value: f32, out: &mut Vec<u8>) {
    if value.is_sign_negative() && !value.is_nan() {
        out.push(b'-');
    }
    let value = value.abs();
    if !value.is_finite() || value == 0.0 {
        return write(value.into(), out);
    }
    // The middles to its neighbours are doubles.
    let exact = f64::from(value);
    let below = f64::from(f32::from_bits(value.to_bits() - 1));
    let above = f32::from_bits(value.to_bits() + 1);
    let above = if above.is_finite() { f64::from(above) } else { exact + (exact - below) };
    let (low, high) = (f64::midpoint(exact, below), f64::midpoint(exact, above));
    for places in 0..9 {
        let mut text = [0u8; 32];
        let nearest = Scientific::read(printed(&mut text, |room| write!(room, "{exact:.places$e}")));
        // Below a power of two only the half of the interval is as wide: the nearest may be outside and the next one inside.
        for candidate in [Some(nearest), nearest.next(places)].into_iter().flatten() {
            if low < candidate.value() && candidate.value() < high {
                return candidate.write(5, out);
            }
        }
    }
    let mut text = [0u8; 32];
    Scientific::read(printed(&mut text, |room| write!(room, "{exact:.8e}"))).write(5, out);
}

/// At most 17 digits d₁d₂…dₙ meaning d₁.d₂…dₙ × 10^exponent.
#[derive(Clone, Copy)]
struct Scientific {
    digits: [u8; 17],
    count: usize,
    exponent: i32,
}

impl Scientific {
    /// Reads what `{:e}` wrote.
    fn read(text: &[u8]) -> Self {
        let cut = text.iter().position(|&b| b == b'e').unwrap_or(text.len());
        let (mantissa, exponent) = text.split_at(cut);
        let mut read = Self { digits: [b'0'; 17], count: 0, exponent: 0 };
        for (place, &digit) in read.digits.iter_mut().zip(mantissa.iter().filter(|b| b.is_ascii_digit())) {
            *place = digit;
            read.count += 1;
        }
        while read.count > 1 && read.digits.get(read.count - 1) == Some(&b'0') {
            read.count -= 1;
        }
        read.exponent = exponent.get(1..).and_then(|e| std::str::from_utf8(e).ok()).and_then(|e| e.parse().ok()).unwrap_or(0);
        read
    }

    fn shortest(value: f64) -> Self {
        let mut text = [0u8; 32];
        let shortest = Self::read(printed(&mut text, |room| write!(room, "{value:e}")));
        // Halfway between two such decimals PostgreSQL takes the even one, as rounding to a number of digits does.
        let places = shortest.count.saturating_sub(1);
        let mut text = [0u8; 32];
        let rounded = Self::read(printed(&mut text, |room| write!(room, "{value:.places$e}")));
        if rounded.value() == value { rounded } else { shortest }
    }

    /// The fewest digits strictly inside the interval. 17 always are.
    fn inside(value: f64) -> Self {
        for places in 0..16 {
            let mut text = [0u8; 32];
            let nearest = Self::read(printed(&mut text, |room| write!(room, "{value:.places$e}")));
            if nearest.value() == value && !nearest.on_boundary(value) {
                return nearest;
            }
        }
        let mut text = [0u8; 32];
        Self::read(printed(&mut text, |room| write!(room, "{value:.16e}")))
    }

    /// The next larger decimal of so many digits behind the first.
    fn next(&self, places: usize) -> Option<Self> {
        let whole = self.digits.get(..=places)?.iter().fold(0u64, |n, &b| n * 10 + u64::from(b.wrapping_sub(b'0')));
        let scale = self.exponent - i32::try_from(places).ok()?;
        let mut text = [0u8; 32];
        let mut read = Self::read(printed(&mut text, |room| write!(room, "{}", whole + 1)));
        let digits = (whole + 1).checked_ilog10()?;
        read.exponent = scale + i32::try_from(digits).ok()?;
        Some(read)
    }

    fn digits(&self) -> &[u8] {
        self.digits.get(..self.count).unwrap_or_default()
    }

    fn value(&self) -> f64 {
        let mut text = [0u8; 48];
        let digits = std::str::from_utf8(self.digits()).unwrap_or_default();
        let exponent = self.exponent + 1 - i32::try_from(self.count).unwrap_or(0);
        let text = printed(&mut text, |room| write!(room, "{digits}e{exponent}"));
        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    }

    /// Whether the digits are exactly halfway between `value` and a neighbour. Only possible for value ≥ 2^53: below, the
    /// middle of two neighbours has more than 17 digits.
    fn on_boundary(&self, value: f64) -> bool {
        let bits = value.to_bits();
        let exponent = i64::try_from(bits >> 52).unwrap_or(0) - 1075;
        if exponent < 1 {
            return false;
        }
        let mantissa = u128::from(bits & ((1 << 52) - 1) | 1 << 52);
        let scale = i64::from(self.exponent) + 1 - i64::try_from(self.count).unwrap_or(0);
        let Ok(power @ 0..24) = u32::try_from(scale) else { return false }; // 5^24 > 2^55 divides no such middle
        let digits = self.digits().iter().fold(0u128, |n, &b| n * 10 + u128::from(b - b'0'));
        let odd = digits * 5u128.pow(power);
        // odd × 2^power against (2m ± 1) × 2^(exponent-1), or (4m - 1) × 2^(exponent-2) below a power of two.
        let twos = i64::from(odd.trailing_zeros()) + i64::from(power);
        let odd = odd >> odd.trailing_zeros();
        twos == exponent - 1 && (odd == 2 * mantissa + 1 || odd == 2 * mantissa - 1)
            || twos == exponent - 2 && mantissa == 1 << 52 && odd == 4 * mantissa - 1
    }

    /// As printf's %g chooses: fixed for exponents -4 … `most`.
    fn write(&self, most: usize, out: &mut Vec<u8>) {
        let digits = self.digits();
        let Ok(point) = usize::try_from(self.exponent) else {
            if self.exponent < -4 {
                return self.write_scientific(out);
            }
            out.extend_from_slice(b"0.");
            out.resize(out.len() + usize::try_from(-1 - self.exponent).unwrap_or(0), b'0');
            return out.extend_from_slice(digits);
        };
        if point > most {
            return self.write_scientific(out);
        }
        match digits.split_at_checked(point + 1) {
            Some((whole, [])) => out.extend_from_slice(whole),
            Some((whole, fraction)) => {
                out.extend_from_slice(whole);
                out.push(b'.');
                out.extend_from_slice(fraction);
            }
            None => {
                out.extend_from_slice(digits);
                out.resize(out.len() + point + 1 - digits.len(), b'0');
            }
        }
    }

    fn write_scientific(&self, out: &mut Vec<u8>) {
        if let Some((first, rest)) = self.digits().split_first() {
            out.push(*first);
            if !rest.is_empty() {
                out.push(b'.');
                out.extend_from_slice(rest);
            }
        }
        out.extend_from_slice(if self.exponent < 0 { b"e-" } else { b"e+" });
        let exponent = self.exponent.unsigned_abs();
        if exponent < 10 {
            out.push(b'0');
        }
        out.extend_from_slice(itoa::Buffer::new().format(exponent).as_bytes());
    }
}

/// What `print` wrote into the room.
fn printed(room: &mut [u8], print: impl FnOnce(&mut std::io::Cursor<&mut [u8]>) -> std::io::Result<()>) -> &[u8] {
    let mut cursor = std::io::Cursor::new(&mut *room);
    let length = print(&mut cursor).map(|()| usize::try_from(cursor.position()).unwrap_or(0)).unwrap_or(0);
    room.get(..length).unwrap_or_default()
}
