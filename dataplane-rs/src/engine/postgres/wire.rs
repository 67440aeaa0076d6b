//! Backend messages as bytes: where one ends, and the few fields that we read of each. Total functions over untrusted bytes.
//! May reject: anything malformed or beyond its bound. IO: none.
use crate::plan::snapshot::ColumnPlan;

/// A message that cannot be read, or a longer one than is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not PostgreSQL's protocol.
    #[error("malformed message")]
    Malformed,
    /// Longer than the caller's bound.
    #[error("message too long")]
    TooLong,
}

/// One whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its type byte.
    pub tag: u8,
    /// What follows the length.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes on the wire.
    pub fn size(&self) -> usize {
        self.body.len() + 5
    }
}

/// The first message in `input`, None while it isn't whole. `most` bounds its body in bytes.
pub fn frame(input: &[u8], most: usize) -> Result<Option<Frame<'_>>, WireError> {
    let Some((&[tag, a, b, c, d], rest)) = input.split_first_chunk::<5>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    let body = length.checked_sub(4).ok_or(WireError::Malformed)?;
    if body > most || length > i32::MAX as usize {
        return Err(WireError::TooLong);
    }
    Ok(rest.get(..body).map(|body| Frame { tag, body }))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(WireError::Malformed)?;
    *rest = tail;
    Ok(*head)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let end = memchr::memchr(0, rest).ok_or(WireError::Malformed)?;
    let (head, tail) = rest.split_at_checked(end).ok_or(WireError::Malformed)?;
    *rest = tail.get(1..).ok_or(WireError::Malformed)?;
    Ok(head)
}

/// What we read of an ErrorResponse; never its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// SQLSTATE.
    pub code: [u8; 5],
    /// The server closes the connection (FATAL, PANIC).
    pub fatal: bool,
    /// "cached plan must not change result type": a prepared statement outlived its table's shape.
    pub revalidate: bool,
}

/// Reads an ErrorResponse (or a NoticeResponse).
pub fn server_error(mut body: &[u8]) -> Result<ServerError, WireError> {
    let mut error = ServerError { code: *b"XX000", fatal: false, revalidate: false };
    let mut routine: &[u8] = b"";
    loop {
        match take::<1>(&mut body)? {
            [0] => break,
            [b'V'] => error.fatal = matches!(text(&mut body)?, b"FATAL" | b"PANIC"),
            [b'C'] => error.code = text(&mut body)?.try_into().map_err(|_| WireError::Malformed)?,
            [b'R'] => routine = text(&mut body)?,
            _ => drop(text(&mut body)?),
        }
    }
    error.revalidate = &error.code == b"0A000" && routine == b"RevalidateCachedQuery";
    if body.is_empty() { Ok(error) } else { Err(WireError::Malformed) }
}

/// One column of a RowDescription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column<'a> {
    /// Name.
    pub name: &'a [u8],
    /// pg_class OID, 0 for computed.
    pub table_oid: u32,
    /// Attribute number, 0 for computed.
    pub number: i16,
    /// pg_type OID.
    pub type_oid: u32,
    /// 0 text, 1 binary.
    pub format: i16,
}

impl ColumnPlan {
    /// A column of a RowDescription is the one that was planned.
    fn describes(&self, column: &Column<'_>) -> bool {
        self.name.as_bytes() == column.name
            && self.type_oid == column.type_oid
            && self.table_oid == column.table_oid
            && self.column_number == i32::from(column.number)
            && column.format == 0
    }
}

/// Reads a RowDescription's columns.
pub fn columns(mut body: &[u8], mut each: impl FnMut(Column<'_>)) -> Result<(), WireError> {
    let count = u16::from_be_bytes(take(&mut body)?);
    for _ in 0..count {
        let name = text(&mut body)?;
        let table_oid = u32::from_be_bytes(take(&mut body)?);
        let number = i16::from_be_bytes(take(&mut body)?);
        let type_oid = u32::from_be_bytes(take(&mut body)?);
        let _size_and_modifier: [u8; 6] = take(&mut body)?;
        let format = i16::from_be_bytes(take(&mut body)?);
        each(Column { name, table_oid, number, type_oid, format });
    }
    if body.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
}

/// Whether a RowDescription is exactly what the plan was compiled with: names, types, origins, all as text.
pub fn matches(body: &[u8], plan: &[ColumnPlan]) -> Result<bool, WireError> {
    let (mut expected, mut same) = (plan.iter(), true);
    columns(body, |column| {
        same &= expected.next().is_some_and(|plan| plan.describes(&column));
    })?;
    Ok(same && expected.next().is_none())
}

/// The same of a batch: `ord` (int4 or int8) stands in front of the plan's columns.
pub fn matches_behind_ord(body: &[u8], plan: &[ColumnPlan]) -> Result<bool, WireError> {
    let (mut expected, mut same, mut ord) = (plan.iter(), true, false);
    columns(body, |column| {
        if !std::mem::replace(&mut ord, true) {
            same &= matches!(column.type_oid, 20 | 23) && column.format == 0;
            return;
        }
        same &= expected.next().is_some_and(|plan| plan.describes(&column));
    })?;
    Ok(same && ord && expected.next().is_none())
}

/// Splits a DataRow into its column count and the columns in DataRow form; checks that the lengths add up.
pub fn row(mut body: &[u8]) -> Result<(u16, &[u8]), WireError> {
    let count = u16::from_be_bytes(take(&mut body)?);
    let values = body;
    for _ in 0..count {
        if let Ok(length) = usize::try_from(i32::from_be_bytes(take(&mut body)?)) {
            body = body.get(length..).ok_or(WireError::Malformed)?;
        }
    }
    if body.is_empty() { Ok((count, values)) } else { Err(WireError::Malformed) }
}

/// The values of a row in DataRow form; None is NULL. Ends early at malformed bytes (`row` has checked them).
pub fn values(mut rest: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        let length = i32::from_be_bytes(take(&mut rest).ok()?);
        let Ok(length) = usize::try_from(length) else { return Some(None) };
        let (value, tail) = rest.split_at_checked(length)?;
        rest = tail;
        Some(Some(value))
    })
}

/// Rows that a CommandComplete says were changed; 0 for what changes none (`SELECT 5` counts rows read, not changed).
pub fn affected(body: &[u8]) -> u64 {
    let tag = body.strip_suffix(b"\0").and_then(|tag| std::str::from_utf8(tag).ok()).unwrap_or("");
    match tag.split_once(' ') {
        Some(("INSERT" | "UPDATE" | "DELETE" | "MERGE" | "COPY", count)) => {
            count.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Name and value of a ParameterStatus.
pub fn parameter(mut body: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let pair = (text(&mut body)?, text(&mut body)?);
    if body.is_empty() { Ok(pair) } else { Err(WireError::Malformed) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_what_changed() {
        for (tag, count) in [("INSERT 0 5", 5), ("UPDATE 3", 3), ("DELETE 0", 0), ("SELECT 9", 0), ("MERGE 2", 2), ("BEGIN", 0)] {
            assert_eq!(affected(format!("{tag}\0").as_bytes()), count, "{tag}");
        }
    }

    #[test]
    fn reads_errors() {
        let body = b"SERROR\0VERROR\0C0A000\0Mcached plan\0RRevalidateCachedQuery\0\0";
        assert_eq!(server_error(body), Ok(ServerError { code: *b"0A000", fatal: false, revalidate: true }));
        let body = b"SFATAL\0VFATAL\0C57P01\0Mx\0\0";
        assert_eq!(server_error(body), Ok(ServerError { code: *b"57P01", fatal: true, revalidate: false }));
        assert_eq!(server_error(b"C57\0\0"), Err(WireError::Malformed));
        assert_eq!(server_error(b"C57P01\0"), Err(WireError::Malformed));
    }

    #[test]
    fn bounds_messages() {
        assert_eq!(frame(b"D\0\0\0\x03", 10), Err(WireError::Malformed));
        assert_eq!(frame(b"D\0\0\0\x0f", 10), Err(WireError::TooLong));
        assert_eq!(frame(b"D\0\0\0\x06a", 10), Ok(None));
        assert_eq!(frame(b"D\0\0\0\x06abc", 10), Ok(Some(Frame { tag: b'D', body: b"ab" })));
    }

    proptest! {
        #[test]
        fn rows_round_trip(row_values in proptest::collection::vec(proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)), 0..9)) {
            let mut body = (row_values.len() as u16).to_be_bytes().to_vec();
            for value in &row_values {
                match value {
                    None => body.extend((-1_i32).to_be_bytes()),
                    Some(bytes) => { body.extend((bytes.len() as i32).to_be_bytes()); body.extend(bytes); }
                }
            }
            let (count, data) = row(&body).unwrap();
            prop_assert_eq!(usize::from(count), row_values.len());
            let read: Vec<Option<Vec<u8>>> = values(data).map(|v| v.map(<[u8]>::to_vec)).collect();
            prop_assert_eq!(read, row_values);
            body.push(0);
            prop_assert!(row(&body).is_err());
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (frame(&bytes, 100), server_error(&bytes), columns(&bytes, |_| {}), row(&bytes), affected(&bytes), parameter(&bytes));
        }
    }
}
