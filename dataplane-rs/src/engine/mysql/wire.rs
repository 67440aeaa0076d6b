//! MySQL's packets: framing, column definitions, OK and error, length-encoded integers. Pure.
//! May reject: what ends early or is not of its form (`WireError::Malformed`), packets beyond the bound (`TooLong`).
use std::borrow::Cow;

/// Where a packet of full length goes on in another.
const WHOLE: usize = 0xFF_FFFF;
/// Charset of what is bytes, not text.
const BINARY: u16 = 63;
const UNSIGNED: u16 = 0x20;

/// Commands.
pub const COM_QUERY: u8 = 0x03;
/// Prepares a statement.
pub const COM_STMT_PREPARE: u8 = 0x16;
/// Executes one.
pub const COM_STMT_EXECUTE: u8 = 0x17;
/// Forgets one; has no answer.
pub const COM_STMT_CLOSE: u8 = 0x19;

/// What cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not of its form.
    #[error("malformed packet")]
    Malformed,
    /// Longer than allowed.
    #[error("a packet is too long")]
    TooLong,
}

/// One whole packet.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Without headers.
    pub body: Cow<'a, [u8]>,
    /// Bytes that it takes, headers included.
    pub size: usize,
    /// Its (last) sequence number.
    pub sequence: u8,
}

/// The first packet of `input`, if it is there whole. Bodies of 16 MiB and more come in pieces.
#[inline]
pub fn packet(input: &[u8], most: usize) -> Result<Option<Packet<'_>>, WireError> {
    let Some((&[a, b, c, sequence], rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
    if length > most {
        return Err(WireError::TooLong);
    }
    if length < WHOLE {
        let body = rest.get(..length);
        return Ok(body.map(|body| Packet { body: Cow::Borrowed(body), size: 4 + length, sequence }));
    }
    pieces(input, most)
}

#[cold]
fn pieces(input: &[u8], most: usize) -> Result<Option<Packet<'_>>, WireError> {
    let (mut joined, mut size) = (Vec::new(), 0);
    loop {
        let Some((&[a, b, c, sequence], rest)) = input.get(size..).and_then(<[u8]>::split_first_chunk::<4>) else { return Ok(None) };
        let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
        if joined.len() + length > most {
            return Err(WireError::TooLong);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        joined.extend_from_slice(body);
        size += 4 + length;
        if length < WHOLE {
            return Ok(Some(Packet { body: Cow::Owned(joined), size, sequence }));
        }
    }
}

/// Room for a packet's header; `close` fills it in.
pub fn open(out: &mut bytes::BytesMut) -> usize {
    out.extend_from_slice(&[0; 4]);
    out.len()
}

/// Ends the packet that began at `start`. False: it is too long for one packet, and is taken away again.
pub fn close(out: &mut bytes::BytesMut, start: usize, sequence: u8) -> bool {
    let length = out.len() - start;
    let Some(head) = out.get_mut(start.saturating_sub(4)..start).filter(|_| length < WHOLE) else {
        out.truncate(start.saturating_sub(4));
        return false;
    };
    let [a, b, c, _] = (length as u32).to_le_bytes();
    head.copy_from_slice(&[a, b, c, sequence]);
    true
}

/// A command with a body. False: too long.
pub fn command(out: &mut bytes::BytesMut, command: u8, body: &[u8]) -> bool {
    let start = open(out);
    out.extend_from_slice(&[command]);
    out.extend_from_slice(body);
    close(out, start, 0)
}

/// Reads a packet from its front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(WireError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next bytes, of a number known here.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A byte.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Up to a NUL, which is taken too.
    pub fn text(&mut self) -> Result<&'a [u8], WireError> {
        let end = memchr::memchr(0, self.0).ok_or(WireError::Malformed)?;
        let text = self.take(end)?;
        self.byte()?;
        Ok(text)
    }

    /// A length-encoded integer.
    #[inline]
    pub fn length(&mut self) -> Result<u64, WireError> {
        Ok(match self.byte()? {
            small @ 0..=0xFA => small.into(),
            0xFC => u16::from_le_bytes(self.array()?).into(),
            0xFD => {
                let [a, b, c] = self.array()?;
                u32::from_le_bytes([a, b, c, 0]).into()
            }
            0xFE => u64::from_le_bytes(self.array()?),
            _ => return Err(WireError::Malformed),
        })
    }

    /// Bytes behind their length.
    #[inline]
    pub fn counted(&mut self) -> Result<&'a [u8], WireError> {
        let length = usize::try_from(self.length()?).map_err(|_| WireError::Malformed)?;
        self.take(length)
    }
}

/// Appends a length-encoded integer.
pub fn put_length(out: &mut bytes::BytesMut, length: usize) {
    match length {
        0..=0xFA => out.extend_from_slice(&[length as u8]),
        0xFB..=0xFFFF => {
            out.extend_from_slice(&[0xFC]);
            out.extend_from_slice(&(length as u16).to_le_bytes());
        }
        0x1_0000..=0xFF_FFFF => {
            out.extend_from_slice(&[0xFD]);
            out.extend_from_slice((length as u32).to_le_bytes().get(..3).unwrap_or_default());
        }
        _ => {
            out.extend_from_slice(&[0xFE]);
            out.extend_from_slice(&(length as u64).to_le_bytes());
        }
    }
}

/// What a server says no with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// MySQL's own number.
    pub number: u16,
    /// SQLSTATE.
    pub state: [u8; 5],
}

/// Reads an error packet; its text is not kept.
pub fn server_error(body: &[u8]) -> Result<ServerError, WireError> {
    let mut reader = Reader(body);
    if reader.byte()? != 0xFF {
        return Err(WireError::Malformed);
    }
    let number = u16::from_le_bytes(reader.array()?);
    let state = match reader.0.first() {
        Some(b'#') => {
            reader.byte()?;
            reader.array()?
        }
        _ => *b"HY000",
    };
    Ok(ServerError { number, state })
}

/// Whether a packet ends definitions or rows.
#[inline]
pub fn is_end(body: &[u8]) -> bool {
    body.first() == Some(&0xFE) && body.len() < 9
}

/// Reads OK: rows changed.
pub fn affected(body: &[u8]) -> Result<u64, WireError> {
    let mut reader = Reader(body);
    if reader.byte()? != 0 {
        return Err(WireError::Malformed);
    }
    reader.length()
}

/// The answer to a Prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrepareOk {
    /// The statement's number on its connection.
    pub statement: u32,
    /// Columns of its result.
    pub columns: u16,
    /// Its places.
    pub places: u16,
}

/// Reads the answer to a Prepare.
pub fn prepare_ok(body: &[u8]) -> Result<PrepareOk, WireError> {
    let mut reader = Reader(body);
    if reader.byte()? != 0 {
        return Err(WireError::Malformed);
    }
    let statement = u32::from_le_bytes(reader.array()?);
    let columns = u16::from_le_bytes(reader.array()?);
    let places = u16::from_le_bytes(reader.array()?);
    Ok(PrepareOk { statement, columns, places })
}

/// A column as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition<'a> {
    schema: &'a [u8],
    org_table: &'a [u8],
    org_name: &'a [u8],
    /// As the result calls it.
    pub name: &'a [u8],
    /// Type code.
    pub kind: u8,
    charset: u16,
    length: u32,
    flags: u16,
}

impl<'a> Definition<'a> {
    /// Reads one.
    pub fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader(body);
        reader.counted()?;
        let schema = reader.counted()?;
        reader.counted()?;
        let org_table = reader.counted()?;
        let name = reader.counted()?;
        let org_name = reader.counted()?;
        reader.length()?;
        let charset = u16::from_le_bytes(reader.array()?);
        let length = u32::from_le_bytes(reader.array()?);
        let kind = reader.byte()?;
        let flags = u16::from_le_bytes(reader.array()?);
        Ok(Self { schema, org_table, org_name, name, kind, charset, length, flags })
    }

    /// Of integers.
    pub const fn is_unsigned(&self) -> bool {
        self.flags & UNSIGNED != 0
    }

    /// Bytes, not text.
    pub const fn is_binary(&self) -> bool {
        self.charset == BINARY
    }

    /// BIT of length 1: a boolean.
    pub const fn is_boolean(&self) -> bool {
        self.kind == 16 && self.length == 1
    }

    /// As `ColumnPlan::type_oid` says it.
    pub fn type_oid(&self) -> u32 {
        u32::from(self.kind) | u32::from(self.is_unsigned()) << 8 | u32::from(self.is_binary()) << 9 | u32::from(self.is_boolean()) << 10
    }

    /// As `ColumnPlan::table_oid` says it.
    pub fn table_oid(&self) -> u32 {
        if self.org_table.is_empty() {
            return 0;
        }
        let mut digest = crc32fast::Hasher::new();
        for part in [self.schema, b"\0", self.org_table, b"\0", self.org_name] {
            digest.update(part);
        }
        digest.finalize()
    }

    /// For tests and fuzzing of values.
    pub const fn of(kind: u8, charset: u16, length: u32, flags: u16) -> Self {
        Self { schema: b"", org_table: b"", org_name: b"", name: b"", kind, charset, length, flags }
    }

    /// Of a table's column, for tests.
    #[must_use]
    pub const fn from(self, schema: &'a [u8], org_table: &'a [u8], org_name: &'a [u8]) -> Self {
        Self { schema, org_table, org_name, ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bytes::BytesMut;
    use proptest::prelude::*;

    #[test]
    fn long_packets_come_in_pieces() {
        let mut input = vec![0xFF, 0xFF, 0xFF, 7];
        input.resize(4 + WHOLE, b'x');
        assert!(packet(&input, 64 << 20).unwrap().is_none());
        input.extend([2, 0, 0, 8, b'y', b'z', 1]);
        let whole = packet(&input, 64 << 20).unwrap().unwrap();
        assert_eq!((whole.body.len(), whole.size, whole.sequence), (WHOLE + 2, input.len() - 1, 8));
        assert!(whole.body.ends_with(b"xyz"));
        assert_eq!(packet(&input, 1 << 20).unwrap_err(), WireError::TooLong);
    }

    proptest! {
        #[test]
        fn lengths_round_trip(length in prop_oneof![0usize..300, 0usize..70_000, 0usize..20_000_000]) {
            let mut out = BytesMut::new();
            put_length(&mut out, length);
            prop_assert_eq!(Reader(&out).length().unwrap(), length as u64);
        }

        #[test]
        fn packets_round_trip(body in proptest::collection::vec(any::<u8>(), 0..400), behind: Vec<u8>) {
            let mut out = BytesMut::new();
            prop_assert!(command(&mut out, 3, &body));
            let size = out.len();
            out.extend_from_slice(&behind);
            let read = packet(&out, 1 << 20).unwrap().unwrap();
            prop_assert_eq!((read.size, read.body.get(1..).unwrap()), (size, &body[..]));
        }

        #[test]
        fn nothing_panics(body: Vec<u8>) {
            let _packet = packet(&body, 1 << 20);
            let _definition = Definition::read(&body);
            let _error = server_error(&body);
            let _prepared = prepare_ok(&body);
        }
    }
}
