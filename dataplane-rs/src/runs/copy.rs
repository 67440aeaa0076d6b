//! Runs as rows of `COPY incoming FROM STDIN (FORMAT binary)`, framed as CopyData messages. Pure.
//! May reject: nothing. What PostgreSQL could not take (a NUL in a text, a number beyond its type) is replaced by the nearest that it
//! can: a row that is refused would hold up all that follow.
use super::store::Row;
use bytes::{BufMut, BytesMut};
use std::borrow::Cow;
use std::collections::HashMap;

/// Columns of `tailrace.runs` in the order in which rows hold them, without `kind`, which stands first.
pub const COLUMNS: &str = "epoch, seq, time, duration_us, queue_us, database_us, rows, bytes, batch, status, \
                           query, query_version, key, connection, code, client, served_by, trace, params";
const FIELDS: i16 = 20;

/// What a row is: the values of `incoming.kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum Part {
    /// A whole run.
    Run,
    /// A whole run whose beginning may stand in `open_runs`, from an attempt whose outcome was not heard of.
    Joined,
    /// The end of a run; names that it doesn't know are NULL.
    Closed,
    /// The beginning of a run.
    Opened,
}

/// Words of `ClientClass` and `ServedBy` (contract), at their positions.
const CLIENTS: [&str; 3] = ["loopback", "private", "public"];
const SERVED_BY: [&str; 3] = ["dataplane", "gateway", "forwarded"];

/// Microseconds between PostgreSQL's epoch (2000) and ours (1970).
const EPOCH_US: i64 = 946_684_800_000_000;

/// Names that rows refer to, as fields of a row: their length and bytes. Numbers hold until `clear`.
#[derive(Debug)]
pub struct Texts {
    numbers: HashMap<Box<str>, i64>,
    fields: Vec<Box<[u8]>>,
}

impl Default for Texts {
    fn default() -> Self {
        Self { numbers: HashMap::new(), fields: vec![field("")] }
    }
}

fn plain(text: &str) -> Cow<'_, str> {
    if memchr::memchr(0, text.as_bytes()).is_some() { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

fn field(text: &str) -> Box<[u8]> {
    let text = plain(text);
    let mut field = Vec::with_capacity(4 + text.len());
    field.put_i32(text.len() as i32);
    field.put_slice(text.as_bytes());
    field.into()
}

impl Texts {
    /// The number of a name; 0 is the empty one.
    pub fn number(&mut self, text: &str) -> i64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.fields.len() as i64;
        self.fields.push(field(text));
        self.numbers.insert(text.into(), number);
        number
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Forgets all; numbers given out mean nothing any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn field(&self, number: i64) -> &[u8] {
        usize::try_from(number).ok().and_then(|at| self.fields.get(at)).map_or(&[0; 4], |field| field)
    }
}

fn long(number: u64) -> [u8; 8] {
    i64::try_from(number).unwrap_or(i64::MAX).to_be_bytes()
}

/// The largest i64 of ours is still a time that PostgreSQL takes.
fn time(time_us: u64) -> [u8; 8] {
    i64::try_from(time_us).unwrap_or(i64::MAX).saturating_sub(EPOCH_US).to_be_bytes()
}

/// Bytes of a row's numbers, with their lengths.
const NUMBERS: usize = 2 + 6 + 8 * 12 + 8 + 6;
/// A row's numbers, all 0: count of fields, then of each its length and bytes.
const BLANK: [u8; NUMBERS] = {
    let mut blank = [0; NUMBERS];
    blank[1] = FIELDS as u8;
    blank[5] = 2;
    blank[11] = 8;
    blank[23] = 8;
    blank[35] = 8;
    blank[47] = 8;
    blank[59] = 8;
    blank[71] = 8;
    blank[83] = 8;
    blank[95] = 8;
    blank[107] = 4;
    blank[115] = 2;
    blank
};

/// Begins the data: the format's signature, no flags, no extension.
pub fn header(out: &mut BytesMut) {
    let frame = begin(out);
    out.put_slice(b"PGCOPY\n\xff\r\n\0");
    out.put_u64(0);
    end(out, frame);
}

/// Ends the data.
pub fn trailer(out: &mut BytesMut) {
    let frame = begin(out);
    out.put_i16(-1);
    end(out, frame);
    out.put_slice(b"c\0\0\0\x04");
}

/// Begins a CopyData message; rows may follow.
pub fn begin(out: &mut BytesMut) -> usize {
    out.put_u8(b'd');
    out.put_u32(0);
    out.len() - 4
}

/// Ends the CopyData message that began at `frame`.
pub fn end(out: &mut BytesMut, frame: usize) {
    let length = (out.len() - frame) as u32;
    if let Some(room) = out.get_mut(frame..frame + 4) {
        room.copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends a row inside of a CopyData message.
pub fn row(part: Part, epoch: u64, row: &Row<'_>, texts: &Texts, out: &mut BytesMut) {
    let r = &row.record;
    let mut numbers = BLANK;
    numbers[6..8].copy_from_slice(&(part as i16).to_be_bytes());
    numbers[12..20].copy_from_slice(&long(epoch));
    numbers[24..32].copy_from_slice(&long(r.sequence));
    numbers[36..44].copy_from_slice(&time(r.time_us));
    numbers[48..56].copy_from_slice(&long(r.duration_us));
    numbers[60..68].copy_from_slice(&long(r.queue_us.into()));
    numbers[72..80].copy_from_slice(&long(r.database_us));
    numbers[84..92].copy_from_slice(&long(r.rows));
    numbers[96..104].copy_from_slice(&long(r.bytes));
    numbers[108..112].copy_from_slice(&i32::from(r.batch).to_be_bytes());
    numbers[116..118].copy_from_slice(&i16::try_from(r.status).unwrap_or(i16::MAX).to_be_bytes());
    out.put_slice(&numbers);
    let known = |known: bool, number: i64| if part == Part::Closed && !known { &[0xff; 4] } else { texts.field(number) };
    let [query, version, connection] = row.query;
    out.put_slice(known(r.query != 0, query));
    out.put_slice(known(r.query != 0, version));
    out.put_slice(known(r.key != 0, row.key));
    out.put_slice(known(r.query != 0, connection));
    out.put_slice(texts.field(row.code));
    for (words, at) in [(&CLIENTS, r.client), (&SERVED_BY, r.served_by)] {
        let word = words.get(usize::from(at)).copied().unwrap_or_default();
        out.put_i32(word.len() as i32);
        out.put_slice(word.as_bytes());
    }
    match &r.trace {
        Some(trace) => {
            out.put_i32(16);
            out.put_slice(trace);
        }
        None => out.put_i32(-1),
    }
    match r.params {
        Some(params) => out.put_slice(&field(params)),
        None => out.put_i32(-1),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::runs::layout::{Kind, Record};
    use proptest::prelude::*;

    fn fields(mut bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
        let count = i16::from_be_bytes(bytes[..2].try_into().unwrap());
        bytes = &bytes[2..];
        let mut fields = Vec::new();
        for _ in 0..count {
            let length = i32::from_be_bytes(bytes[..4].try_into().unwrap());
            bytes = &bytes[4..];
            fields.push(usize::try_from(length).ok().map(|length| {
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                field.to_vec()
            }));
        }
        assert!(bytes.is_empty());
        fields
    }

    proptest! {
        #[test]
        fn a_row_has_each_field_in_its_place(
            (epoch, numbers, small) in (any::<u64>(), any::<[u64; 6]>(), any::<[u16; 2]>()),
            (client, served_by) in (0u8..3, 0u8..3),
            (trace, params, known) in (any::<Option<[u8; 16]>>(), any::<Option<String>>(), any::<bool>()),
            part in prop_oneof![Just(Part::Run), Just(Part::Joined), Just(Part::Closed), Just(Part::Opened)],
        ) {
            let [sequence, time_us, duration_us, database_us, rows, bytes] = numbers;
            let id = u32::from(known);
            let record = Record {
                kind: Kind::Run, client, served_by, status: small[0], batch: small[1], sequence, time_us, duration_us, database_us,
                queue_us: 7, query: id, key: id, code: 0, rows, bytes, trace, params: params.as_deref(),
            };
            let mut texts = Texts::default();
            let query = ["q\0x", "v", "c"].map(|name| texts.number(name));
            let (key, code) = (texts.number("k"), texts.number("e"));
            let mut out = BytesMut::new();
            row(part, epoch, &Row { record, query, key, code }, &texts, &mut out);
            let fields = fields(&out);
            let number = |n: u64| Some(i64::try_from(n).unwrap_or(i64::MAX).to_be_bytes().to_vec());
            prop_assert_eq!(&fields[0], &Some((part as i16).to_be_bytes().to_vec()));
            let long = [number(epoch), number(sequence), fields[3].clone(), number(duration_us), number(7), number(database_us), number(rows), number(bytes)];
            prop_assert_eq!(&fields[1..9], &long[..]);
            let pg_us = i64::from_be_bytes(fields[3].clone().unwrap().try_into().unwrap());
            prop_assert_eq!(pg_us, i64::try_from(time_us).unwrap_or(i64::MAX) - EPOCH_US);
            prop_assert_eq!(&fields[9], &Some(i32::from(small[1]).to_be_bytes().to_vec()));
            prop_assert_eq!(&fields[10], &Some(small[0].min(32_767).to_be_bytes().to_vec()));
            let text = |text: &str| (known || part != Part::Closed).then(|| text.as_bytes().to_vec());
            prop_assert_eq!(&fields[11..15], &[text("q\u{fffd}x"), text("v"), text("k"), text("c")][..]);
            prop_assert_eq!(&fields[15], &Some(b"e".to_vec()));
            prop_assert_eq!(&fields[16], &Some(CLIENTS[usize::from(client)].into()));
            prop_assert_eq!(&fields[17], &Some(SERVED_BY[usize::from(served_by)].into()));
            prop_assert_eq!(&fields[18], &trace.map(Vec::from));
            prop_assert_eq!(&fields[19], &params.map(|p| p.replace('\0', "\u{fffd}").into_bytes()));
        }
    }
}
