//! Values of MySQL's binary protocol: a row → DataRow form, a place's text → what is sent (docs/contract.md, "MySQL and MariaDB"). Pure.
//! Twin of the gateway's `serve/mysql/wire.py`; `crds/golden/vectors/mysql_values.json` holds both.
//! May reject: packets and values that are not of their form. No allocation of its own.
use super::wire::{Definition, Reader, WireError, put_length};
use crate::encode::float;
use crate::plan::snapshot::Encoding;
use bytes::BytesMut;

/// How a column's values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integer of so many bytes.
    Integer(u8),
    /// The same, unsigned.
    Unsigned(u8),
    /// BIT of length 1.
    Boolean,
    /// BIT of another length.
    Bits,
    /// Digits, as sent.
    Digits,
    /// DOUBLE.
    Double,
    /// FLOAT.
    Single,
    /// DATE.
    Date,
    /// DATETIME.
    DateTime,
    /// TIMESTAMP.
    Timestamp,
    /// TIME.
    Time,
    /// JSON of MySQL.
    Json,
    /// Text, as sent.
    Text,
    /// Bytes.
    Bytes,
    /// Always NULL.
    Null,
    /// A type that we don't know.
    Unknown,
}

impl Kind {
    /// Of a definition.
    pub fn of(definition: &Definition<'_>) -> Self {
        let integer = |size| if definition.is_unsigned() { Self::Unsigned(size) } else { Self::Integer(size) };
        match definition.kind {
            1 => integer(1),
            2 => integer(2),
            3 | 9 => integer(4),
            8 => integer(8),
            13 => Self::Unsigned(2),
            16 if definition.is_boolean() => Self::Boolean,
            16 => Self::Bits,
            0 | 246 => Self::Digits,
            5 => Self::Double,
            4 => Self::Single,
            6 => Self::Null,
            7 => Self::Timestamp,
            10 => Self::Date,
            11 => Self::Time,
            12 => Self::DateTime,
            245 => Self::Json,
            15 | 247..=255 if definition.is_binary() => Self::Bytes,
            15 | 247..=255 => Self::Text,
            _ => Self::Unknown,
        }
    }

    /// How its texts become JSON, without regard to bigNumbers.
    pub const fn encoding(self) -> Encoding {
        match self {
            Self::Integer(_) | Self::Unsigned(_) | Self::Bits => Encoding::Raw,
            Self::Boolean => Encoding::Boolean,
            Self::Digits | Self::Double | Self::Single => Encoding::Number,
            Self::DateTime => Encoding::Timestamp,
            Self::Timestamp => Encoding::Timestamptz,
            Self::Json => Encoding::Json,
            Self::Bytes => Encoding::Base64,
            Self::Date | Self::Time | Self::Text | Self::Null | Self::Unknown => Encoding::String,
        }
    }

    /// Whether its texts may be encoded as planned; else the answer is an error, never a guess.
    pub fn fits(self, planned: Encoding) -> bool {
        let number = matches!(planned, Encoding::Raw | Encoding::Number | Encoding::Quoted);
        let digits = matches!(self, Self::Integer(_) | Self::Unsigned(_) | Self::Bits | Self::Digits | Self::Double | Self::Single);
        self == Self::Null || planned == self.encoding() || planned == Encoding::String || (number && digits)
    }
}

/// A binary row of these columns → DataRow form, appended. `out` is as before when it fails.
#[inline]
pub fn row(packet: &[u8], kinds: &[Kind], out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    let done = columns(packet, kinds, out);
    if done.is_err() {
        out.truncate(start);
    }
    done
}

fn columns(packet: &[u8], kinds: &[Kind], out: &mut Vec<u8>) -> Result<(), WireError> {
    let mut reader = Reader(packet);
    if reader.byte()? != 0 {
        return Err(WireError::Malformed);
    }
    let nulls = reader.take((kinds.len() + 9) / 8)?;
    for (kind, at) in kinds.iter().zip(2usize..) {
        if nulls.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1) {
            out.extend_from_slice(&(-1i32).to_be_bytes());
            continue;
        }
        let head = out.len();
        out.extend_from_slice(&[0; 4]);
        text(&mut reader, *kind, out)?;
        let length = i32::try_from(out.len() - head - 4).map_err(|_| WireError::TooLong)?;
        if let Some(place) = out.get_mut(head..head + 4) {
            place.copy_from_slice(&length.to_be_bytes());
        }
    }
    if reader.0.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
}

/// One value's text.
fn text(reader: &mut Reader<'_>, kind: Kind, out: &mut Vec<u8>) -> Result<(), WireError> {
    match kind {
        Kind::Integer(size) => {
            let value = match size {
                1 => i64::from(i8::from_le_bytes(reader.array()?)),
                2 => i64::from(i16::from_le_bytes(reader.array()?)),
                4 => i64::from(i32::from_le_bytes(reader.array()?)),
                _ => i64::from_le_bytes(reader.array()?),
            };
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        }
        Kind::Unsigned(size) => {
            let value = match size {
                1 => u64::from(u8::from_le_bytes(reader.array()?)),
                2 => u64::from(u16::from_le_bytes(reader.array()?)),
                4 => u64::from(u32::from_le_bytes(reader.array()?)),
                _ => u64::from_le_bytes(reader.array()?),
            };
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        }
        Kind::Boolean | Kind::Bits => {
            let bytes = reader.counted()?;
            if bytes.len() > 8 {
                return Err(WireError::Malformed);
            }
            let value = bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            match kind {
                Kind::Boolean => out.push(if value == 0 { b'f' } else { b't' }),
                _ => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
            }
        }
        Kind::Digits | Kind::Json | Kind::Text | Kind::Null => out.extend_from_slice(reader.counted()?),
        Kind::Double => float::write(f64::from_le_bytes(reader.array()?), out),
        Kind::Single => float::write_single(f32::from_le_bytes(reader.array()?), out),
        Kind::Date => moment(reader.counted()?, false, out)?,
        Kind::DateTime => moment(reader.counted()?, true, out)?,
        Kind::Timestamp => {
            moment(reader.counted()?, true, out)?;
            out.extend_from_slice(b"+00");
        }
        Kind::Time => clock(reader.counted()?, out)?,
        Kind::Bytes => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\x");
            for byte in reader.counted()? {
                out.extend([byte >> 4, byte & 15].map(|digit| DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0')));
            }
        }
        Kind::Unknown => return Err(WireError::Malformed),
    }
    Ok(())
}

/// At least so many digits.
fn padded(value: u32, digits: usize, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(value).as_bytes();
    out.resize(out.len() + digits.saturating_sub(text.len()), b'0');
    out.extend_from_slice(text);
}

fn fraction(micros: u32, out: &mut Vec<u8>) {
    if micros > 0 {
        out.push(b'.');
        padded(micros, 6, out);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

fn hms(hours: u32, [minutes, seconds]: [u8; 2], micros: u32, out: &mut Vec<u8>) -> Result<(), WireError> {
    if minutes > 59 || seconds > 59 || micros > 999_999 {
        return Err(WireError::Malformed);
    }
    padded(hours, 2, out);
    out.push(b':');
    padded(minutes.into(), 2, out);
    out.push(b':');
    padded(seconds.into(), 2, out);
    fraction(micros, out);
    Ok(())
}

/// 0, 4, 7 or 11 bytes; what is not sent is zero.
fn moment(value: &[u8], with_time: bool, out: &mut Vec<u8>) -> Result<(), WireError> {
    let mut whole = [0u8; 11];
    whole.get_mut(..value.len()).filter(|_| matches!(value.len(), 0 | 4 | 7 | 11)).ok_or(WireError::Malformed)?.copy_from_slice(value);
    let [y, z, month, day, hour, minute, second, micros @ ..] = whole;
    let (year, micros) = (u16::from_le_bytes([y, z]), u32::from_le_bytes(micros));
    if year > 9999 || month > 12 || day > 31 || hour > 23 || minute > 59 || second > 59 || micros > 999_999 {
        return Err(WireError::Malformed);
    }
    padded(year.into(), 4, out);
    out.push(b'-');
    padded(month.into(), 2, out);
    out.push(b'-');
    padded(day.into(), 2, out);
    if with_time {
        out.push(b' ');
        hms(hour.into(), [minute, second], micros, out)?;
    }
    Ok(())
}

/// 0, 8 or 12 bytes: sign, days, hours, minutes, seconds, microseconds.
fn clock(value: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
    let mut whole = [0u8; 12];
    whole.get_mut(..value.len()).filter(|_| matches!(value.len(), 0 | 8 | 12)).ok_or(WireError::Malformed)?.copy_from_slice(value);
    let [sign, a, b, c, d, hour, minute, second, micros @ ..] = whole;
    let days = u32::from_le_bytes([a, b, c, d]);
    let hours = days.checked_mul(24).and_then(|hours| hours.checked_add(hour.into()));
    let hours = hours.filter(|_| hour < 24 && sign < 2).ok_or(WireError::Malformed)?;
    if sign == 1 {
        out.push(b'-');
    }
    hms(hours, [minute, second], u32::from_le_bytes(micros), out)
}

/// A place's text cannot be sent as its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value cannot be bound")]
pub struct Unbindable;

/// Types and flags as they are sent.
const UNSIGNED: u16 = 0x8000;

/// What a NULL in a place is sent as.
const fn null_type(place: u32) -> u16 {
    match place {
        1 => 1,
        5 => 5,
        8 => 8,
        246 => 246,
        252 => 252,
        _ => 253,
    }
}

/// Appends the body of COM_STMT_EXECUTE without a cursor. `values`: one per place, i32 length (big endian, -1 NULL) and text.
#[inline]
pub fn execution(statement: u32, places: &[u32], values: &[u8], out: &mut BytesMut) -> Result<(), Unbindable> {
    out.extend_from_slice(&statement.to_le_bytes());
    out.extend_from_slice(&[0, 1, 0, 0, 0]);
    let mut rest = values;
    if !places.is_empty() {
        let nulls = out.len();
        out.resize(nulls + places.len().div_ceil(8), 0);
        out.extend_from_slice(&[1]);
        let types = out.len();
        out.resize(types + 2 * places.len(), 0);
        for (place, at) in places.iter().zip(0usize..) {
            let value = crate::encode::rows::next(&mut rest).map_err(|_| Unbindable)?;
            let sent = match value {
                None => {
                    if let Some(byte) = out.get_mut(nulls + at / 8) {
                        *byte |= 1 << (at % 8);
                    }
                    null_type(*place)
                }
                Some(text) => parameter(*place, text, out)?,
            };
            if let Some(two) = out.get_mut(types + 2 * at..types + 2 * at + 2) {
                two.copy_from_slice(&sent.to_le_bytes());
            }
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Unbindable) }
}

/// Appends one value, says its type and flags. `place` is the contract's `MysqlPlace`.
pub fn parameter(place: u32, text: &[u8], out: &mut BytesMut) -> Result<u16, Unbindable> {
    match place {
        8 => {
            let digits = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+') && text.len() <= 21).ok_or(Unbindable)?;
            if let Ok(signed) = digits.parse::<i64>() {
                out.extend_from_slice(&signed.to_le_bytes());
                return Ok(8);
            }
            out.extend_from_slice(&digits.parse::<u64>().map_err(|_| Unbindable)?.to_le_bytes());
            Ok(8 | UNSIGNED)
        }
        1 => {
            out.extend_from_slice(&[u8::from(matches!(text, b"true" | b"t" | b"1"))]);
            Ok(1)
        }
        246 if is_plain_decimal(text) => Ok(counted(text, out, 246)),
        246 | 5 => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok()).filter(|number| number.is_finite());
            out.extend_from_slice(&number.ok_or(Unbindable)?.to_le_bytes());
            Ok(5)
        }
        12 => {
            let mut buffer = Vec::with_capacity(32);
            utc(text, &mut buffer).ok_or(Unbindable)?;
            Ok(counted(&buffer, out, 253))
        }
        252 => {
            let bytes = text.strip_prefix(b"\\x").and_then(unhex).ok_or(Unbindable)?;
            Ok(counted(&bytes, out, 252))
        }
        _ => Ok(counted(text, out, 253)),
    }
}

fn counted(value: &[u8], out: &mut BytesMut, kind: u16) -> u16 {
    put_length(out, value.len());
    out.extend_from_slice(value);
    kind
}

fn unhex(hex: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = hex.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Digits without an exponent that DECIMAL holds exactly.
fn is_plain_decimal(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let (whole, places) = (parts.next().unwrap_or_default(), parts.next());
    let all = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let behind = places.map_or(0, <[u8]>::len);
    all(whole) && places.is_none_or(all) && whole.len() + behind <= 65 && behind <= 30
}

/// `YYYY-MM-DD[T ]HH:MM:SS[.f][Z|±HH[[:]MM]]` in UTC, the fraction as it is. None: not a timestamp, or outside the years 1–9999.
pub fn utc(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let number = |text: &[u8]| -> Option<i64> {
        if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok()
    };
    let (moment, mut rest) = text.split_at_checked(19)?;
    for (at, marks) in [(4, &b"-"[..]), (7, b"-"), (10, b"T "), (13, b":"), (16, b":")] {
        moment.get(at).filter(|byte| marks.contains(byte))?;
    }
    let part = |from: usize, to: usize| number(moment.get(from..to)?);
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    let mut fraction: &[u8] = b"";
    if rest.first() == Some(&b'.') {
        let digits = rest.iter().skip(1).take_while(|byte| byte.is_ascii_digit()).count();
        (fraction, rest) = rest.split_at_checked(1 + digits).filter(|_| digits > 0)?;
    }
    let minutes = match rest {
        b"" | b"Z" => 0,
        [sign @ (b'+' | b'-'), offset @ ..] => {
            let (hours, behind) = offset.split_at_checked(2)?;
            let behind = if behind.is_empty() { b"00" } else { behind.strip_prefix(b":").unwrap_or(behind) };
            let all = number(hours)? * 60 + number(behind).filter(|_| behind.len() == 2)?;
            if *sign == b'-' { -all } else { all }
        }
        _ => return None,
    };
    if minutes == 0 {
        out.extend_from_slice(moment.get(..10)?);
        out.push(b' ');
        out.extend_from_slice(moment.get(11..)?);
        out.extend_from_slice(fraction);
        return Some(());
    }
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 || minutes.abs() >= 1440 {
        return None;
    }
    let of_day = hour * 60 + minute - minutes;
    let (days, of_day) = (of_day.div_euclid(1440), of_day.rem_euclid(1440));
    let (mut year, mut month, mut day) = (year, month, day + days);
    if day < 1 {
        (year, month) = if month == 1 { (year - 1, 12) } else { (year, month - 1) };
        day = days_in(year, month);
    } else if day > days_in(year, month) {
        (year, month, day) = if month == 12 { (year + 1, 1, 1) } else { (year, month + 1, 1) };
    }
    if !(1..=9999).contains(&year) {
        return None;
    }
    let mut put = |value: i64, digits, mark: &[u8]| {
        padded(u32::try_from(value).unwrap_or(0), digits, out);
        out.extend_from_slice(mark);
    };
    put(year, 4, b"-");
    put(month, 2, b"-");
    put(day, 2, b" ");
    put(of_day / 60, 2, b":");
    put(of_day % 60, 2, b":");
    put(second, 2, fraction);
    Some(())
}

const fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
