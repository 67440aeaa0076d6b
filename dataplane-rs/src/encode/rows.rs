//! Rows of one query as one role sees them: everything that does not depend on the row is made once.
//! May reject: rows that do not have the plan's form. IO: none.
use super::narrow::{self, Narrow};
use super::text::{into_field, quote_field, string};
use super::value::Kind;
use super::{Format, Malformed, MaskKey, mask};
use crate::plan::snapshot::{ColumnPlan, Encoding, Mask, MaskPlan, Returns};

/// Why there is no writer; the unit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A mask names a column that isn't there, or names one twice.
    #[error("a mask does not name exactly one column")]
    MaskColumn,
    /// A `hash` mask without the key.
    #[error("a hash mask needs the mask key")]
    NoMaskKey,
    /// An array of what cannot be in one, or a delimiter that cannot be one.
    #[error("an array column cannot be read")]
    Array,
}

#[derive(Debug)]
struct Column {
    /// `{"name":` or `,"name":`.
    before: Box<[u8]>,
    kind: Kind,
    mask: Option<Mask>,
}

/// Writes rows in DataRow form as JSON, NDJSON or CSV.
#[derive(Debug)]
pub struct RowWriter {
    columns: Box<[Column]>,
    /// Its rows may be short.
    narrow: Option<Narrow>,
    /// CSV header line.
    header: Box<[u8]>,
    key: Option<MaskKey>,
}

impl RowWriter {
    /// Of a query's columns and one role's masks.
    pub fn compile(columns: &[ColumnPlan], masks: &[MaskPlan], key: Option<&MaskKey>) -> Result<Self, Refused> {
        let mut header = Vec::new();
        let mut compiled = Vec::with_capacity(columns.len());
        for (n, column) in columns.iter().enumerate() {
            let mut before = vec![if n == 0 { b'{' } else { b',' }];
            let _valid = string(column.name.as_bytes(), &mut before); // a str is UTF-8
            before.push(b':');
            if n > 0 {
                header.push(b',');
            }
            let start = header.len();
            header.extend_from_slice(column.name.as_bytes());
            quote_field(&mut header, start);
            compiled.push(Column { before: before.into(), kind: Kind::of(column).ok_or(Refused::Array)?, mask: None });
        }
        header.extend_from_slice(b"\r\n");
        for plan in masks {
            let column = usize::try_from(plan.column).ok().and_then(|n| compiled.get_mut(n)).ok_or(Refused::MaskColumn)?;
            if column.mask.replace(plan.mask).is_some() {
                return Err(Refused::MaskColumn);
            }
            if plan.mask == Mask::Hash && key.is_none() {
                return Err(Refused::NoMaskKey);
            }
        }
        let plain = compiled.iter().map(|column| match (column.kind, column.mask) {
            (Kind::Scalar(encoding), None) => (&*column.before, Some(encoding)),
            _ => (&*column.before, None),
        });
        let narrow = Narrow::compile(plain);
        Ok(Self { columns: compiled.into(), narrow, header: header.into(), key: key.cloned() })
    }

    /// What stands before the first row.
    pub fn begin(&self, format: Format, returns: Returns, out: &mut Vec<u8>) {
        match (format, returns) {
            (Format::Json, Returns::Many) => out.push(b'['),
            (Format::Csv, Returns::One | Returns::Many) => out.extend_from_slice(&self.header),
            _ => {}
        }
    }

    /// What stands between two rows (NDJSON and CSV rows end their own line).
    pub fn separator(&self, format: Format, out: &mut Vec<u8>) {
        if format == Format::Json {
            out.push(b',');
        }
    }

    /// What stands behind the last row. `one` without a row (`missing: null`) is `null` in JSON, no row in the others.
    pub fn end(&self, format: Format, returns: Returns, rows: u64, truncated: bool, out: &mut Vec<u8>) {
        match (format, returns) {
            (Format::Json, Returns::Many) => out.push(b']'),
            (Format::Json, Returns::One) if rows == 0 => out.extend_from_slice(b"null"),
            (Format::Ndjson, Returns::One | Returns::Many) => completion(rows, truncated, out),
            _ => {}
        }
    }

    /// Appends the first row of `rows` and takes it off. On an error `out` is as before.
    pub fn row(&self, format: Format, rows: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = out.len();
        let written = match format {
            Format::Json => self.object(rows, out),
            Format::Ndjson => self.object(rows, out).map(|()| out.push(b'\n')),
            Format::Csv => self.line(rows, out),
        };
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    /// Appends the first `count` rows of `rows` with what stands between them, and before them unless they are the `first`. On an error `out` holds
    /// those before the one that cannot be read.
    pub fn rows(&self, format: Format, first: bool, rows: &mut &[u8], count: u64, out: &mut Vec<u8>) -> Result<(), Malformed> {
        /// Rows in a row that were not short: the rest won't be, either.
        const VAIN: u32 = 16;
        let (mut block, mut filled, mut vain) = ([0; 2 * narrow::MOST], 0, 0);
        let flush = |block: &[u8], filled: &mut usize, out: &mut Vec<u8>| {
            out.extend_from_slice(block.get(..std::mem::take(filled)).unwrap_or_default());
        };
        for n in 0..count {
            let separated = format == Format::Json && (n > 0 || !first);
            if let Some(narrow) = self.narrow.as_ref().filter(|_| vain < VAIN) {
                if filled > narrow::MOST {
                    flush(&block, &mut filled, out);
                }
                if let Some((used, made)) = block.get_mut(filled..).and_then(|room| narrow.row(format, separated, rows, room)) {
                    *rows = rows.get(used..).unwrap_or_default();
                    (filled, vain) = (filled + made, 0);
                    continue;
                }
                flush(&block, &mut filled, out);
                vain += 1;
            }
            if separated {
                out.push(b',');
            }
            self.row(format, rows, out)?;
        }
        flush(&block, &mut filled, out);
        Ok(())
    }

    fn object(&self, rows: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        if self.columns.is_empty() {
            out.extend_from_slice(b"{}");
            return Ok(());
        }
        // One look at the room, not one a piece: twice the first 4 KiB of what is left is more than most rows take.
        out.reserve(rows.len().min(4096) * 2 + 64);
        for column in &self.columns {
            out.extend_from_slice(&column.before);
            match (next(rows)?, column.kind, column.mask) {
                (None, _, _) => out.extend_from_slice(b"null"),
                (Some(value), Kind::Scalar(Encoding::String), None) => string(value, out)?,
                (Some(value), kind, None) => kind.json(value, out)?,
                (Some(value), kind, Some(mask)) => self.masked(value, kind, mask, out)?,
            }
        }
        out.push(b'}');
        Ok(())
    }

    fn line(&self, rows: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        for (n, column) in self.columns.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            let start = out.len();
            let Some(value) = next(rows)? else { continue };
            match column.mask {
                None => column.kind.json(value, out)?,
                Some(mask) => self.masked(value, column.kind, mask, out)?,
            }
            if column.mask.is_some() && out.get(start..) == Some(b"null") {
                out.truncate(start); // masked away: as NULL
            } else {
                into_field(out, start);
            }
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn masked(&self, value: &[u8], kind: Kind, mask: Mask, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = out.len();
        kind.json(value, out)?;
        mask::cover(mask, self.key.as_ref(), out, start);
        Ok(())
    }
}

/// The whole body of `returns: none`.
pub fn affected(format: Format, count: u64, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let count = digits.format(count).as_bytes();
    if format == Format::Csv {
        out.extend_from_slice(b"affected\r\n");
        out.extend_from_slice(count);
        return out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"{\"affected\":");
    out.extend_from_slice(count);
    out.push(b'}');
    if format == Format::Ndjson {
        out.push(b'\n');
        completion(0, false, out);
    }
}

/// The last line of NDJSON.
fn completion(rows: u64, truncated: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"$complete\":{\"rows\":");
    out.extend_from_slice(itoa::Buffer::new().format(rows).as_bytes());
    out.extend_from_slice(if truncated { b",\"truncated\":true}}\n" } else { b",\"truncated\":false}}\n" });
}

/// The next column of a row in DataRow form: `None` is NULL.
#[inline]
pub fn next<'a>(rows: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let (length, after) = rows.split_first_chunk::<4>().ok_or(Malformed)?;
    let length = i32::from_be_bytes(*length);
    if length < 0 {
        *rows = after;
        return if length == -1 { Ok(None) } else { Err(Malformed) };
    }
    let (value, after) = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length)).ok_or(Malformed)?;
    *rows = after;
    Ok(Some(value))
}
