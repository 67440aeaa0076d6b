//! Rows of short plain values, as NDJSON, JSON and CSV, by words of eight bytes: what most rows of a stream are. A row that holds anything
//! else (a long value, one that must be escaped or quoted, another encoding) is none of ours: `rows` writes it.
//! May reject: nothing. IO: none.
use super::Format;
use super::text::{escaped, high, holds};
use super::value::numeric;
use crate::plan::snapshot::Encoding;

/// A longer value is not short, bytes. So many are copied at once, whatever its length.
const SHORT: usize = 32;
/// What stands before a value at most, bytes.
const BEFORE: usize = 32;
/// Room that rows of all columns may take, bytes.
pub const MOST: usize = 2048;

#[derive(Debug)]
struct Column {
    /// Up to the value; a text's first quote included.
    before: [u8; BEFORE],
    length: usize,
    text: bool,
}

/// Columns of which rows can be short.
#[derive(Debug)]
pub struct Narrow {
    columns: Box<[Column]>,
}

impl Narrow {
    /// Of columns by what stands before them in JSON and by their encoding, None where it is not plain; None if one of them can't be short.
    pub fn compile<'a>(columns: impl ExactSizeIterator<Item = (&'a [u8], Option<Encoding>)>) -> Option<Self> {
        if columns.len() == 0 || columns.len() * (BEFORE + SHORT + 2) + BEFORE + SHORT > MOST {
            return None;
        }
        let column = |(json, encoding): (&[u8], Option<Encoding>)| {
            let text = match encoding? {
                Encoding::String | Encoding::Quoted => true,
                Encoding::Raw | Encoding::Number => false,
                _ => return None,
            };
            let length = json.len() + usize::from(text);
            let mut before = [b'"'; BEFORE];
            before.get_mut(..json.len())?.copy_from_slice(json);
            (length <= BEFORE).then_some(Column { before, length, text })
        };
        Some(Self { columns: columns.map(column).collect::<Option<_>>()? })
    }

    /// Writes the first row of `rows` to the beginning of `room` (MOST bytes), behind a comma if it is `separated`. How many bytes it took, and how
    /// many it made; None (and `room` is as it may be) when the row is not ours.
    #[inline]
    pub fn row(&self, format: Format, separated: bool, rows: &[u8], room: &mut [u8]) -> Option<(usize, usize)> {
        let csv = format == Format::Csv;
        let (mut rest, mut at) = (rows, 0);
        if separated {
            put(room, &mut at, b',')?;
        }
        for (n, column) in self.columns.iter().enumerate() {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let length = u32::from_be_bytes(*length);
            if csv {
                if n > 0 {
                    put(room, &mut at, b',')?;
                }
            } else {
                *room.get_mut(at..)?.first_chunk_mut()? = column.before;
                at += column.length;
            }
            if length == u32::MAX {
                if !csv {
                    at -= usize::from(column.text);
                    *room.get_mut(at..)?.first_chunk_mut()? = *b"null";
                    at += 4;
                }
                rest = after;
                continue;
            }
            let length = length as usize;
            let value = after.first_chunk::<SHORT>().filter(|_| (1..=SHORT).contains(&length))?;
            let plain = match (column.text, csv) {
                (false, _) => digits(value, length),
                (true, false) => !any(value, length, |eight| escaped(eight) | high(eight)),
                (true, true) => {
                    let special = |eight| holds(eight, b'"') | holds(eight, b',') | holds(eight, b'\r') | holds(eight, b'\n') | high(eight);
                    !any(value, length, special)
                }
            };
            if !plain {
                return None;
            }
            *room.get_mut(at..)?.first_chunk_mut()? = *value;
            at += length;
            if column.text && !csv {
                put(room, &mut at, b'"')?;
            }
            rest = after.get(length..)?;
        }
        let (end, length) = match format {
            Format::Json => (*b"} ", 1),
            Format::Ndjson => (*b"}\n", 2),
            Format::Csv => (*b"\r\n", 2),
        };
        *room.get_mut(at..)?.first_chunk_mut()? = end;
        Some((rows.len() - rest.len(), at + length))
    }
}

#[inline]
fn put(room: &mut [u8], at: &mut usize, byte: u8) -> Option<()> {
    *room.get_mut(*at)? = byte;
    *at += 1;
    Some(())
}

/// The first `length` bytes, a word of eight at a time; what is missing of the last one is `padding`.
#[inline]
fn words(value: &[u8; SHORT], length: usize, padding: u8) -> impl Iterator<Item = u64> {
    let (eights, _) = value.as_chunks::<8>();
    eights.iter().enumerate().take(length.div_ceil(8)).map(move |(n, eight)| {
        let (word, left) = (u64::from_le_bytes(*eight), length - n * 8);
        if left >= 8 {
            return word;
        }
        let mask = (1 << (left * 8)) - 1;
        word & mask | u64::from_le_bytes([padding; 8]) & !mask
    })
}

#[inline]
fn any(value: &[u8; SHORT], length: usize, look: impl Fn(u64) -> u64) -> bool {
    words(value, length, b' ').fold(0, |found, word| found | look(word)) != 0
}

/// Whether they can only be a number.
#[inline]
fn digits(value: &[u8; SHORT], length: usize) -> bool {
    const HIGH: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const SIX: u64 = 0x0606_0606_0606_0606;
    // Of 0x30 to 0x3f those that six more don't carry over.
    let other = |word: u64| (word & HIGH) ^ ZEROS | (word & !HIGH).wrapping_add(SIX) & HIGH;
    words(value, length, b'0').fold(0, |found, word| found | other(word)) == 0 || value.get(..length).is_some_and(numeric)
}
