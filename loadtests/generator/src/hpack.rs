//! Header blocks of HTTP/2 answers (RFC 7541), read for what a load needs: the status and the run id. Every other field is only
//! accounted for in the dynamic table. May reject: what is no header block, a run id that is none. IO: none.
use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::run_ids::{self, RunId};

/// The block cannot be read, or says what no answer may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header block is not HPACK")]
pub struct Malformed;

/// Bytes that the dynamic table may count, the protocol's default.
const TABLE: usize = 4096;
const OVERHEAD: usize = 32;
const RUN_ID: &[u8] = b"x-run-id";
/// A longer string is refused before it is decoded.
const STRING: usize = 16 << 10;

/// Lengths of the static table's names, from index 1 (RFC 7541, appendix A).
const NAMES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17,
    13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];
/// Of index 8.
const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

/// Code lengths in bits of the bytes 0 to 255 and the end (RFC 7541, appendix B); the code is canonical, so they are all of it.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10,
    10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6,
    7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23,
    21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27,
    26, 30,
];
const LONGEST: usize = 30;
const END: u16 = 256;

/// The code, by length: its first word, how many there are, and where their symbols begin.
#[derive(Debug)]
struct Code {
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    begin: [u32; LONGEST + 1],
    symbols: Vec<u16>,
    /// Symbol and length of each code of at most 8 bits, by the 8 bits that begin with it; length 0: a longer one.
    short: Vec<(u8, u8)>,
}

impl Code {
    fn new() -> Self {
        let mut code = Self {
            first: [0; LONGEST + 1],
            count: [0; LONGEST + 1],
            begin: [0; LONGEST + 1],
            symbols: Vec::with_capacity(LENGTHS.len()),
            short: vec![(0, 0); 256],
        };
        let mut next = 0u32;
        for length in 1..=LONGEST {
            next <<= 1;
            let begin = code.symbols.len();
            code.symbols
                .extend((0..=END).filter(|&symbol| LENGTHS.get(usize::from(symbol)).is_some_and(|&bits| usize::from(bits) == length)));
            let count = (code.symbols.len() - begin) as u32;
            for (slot, value) in [(&mut code.first, next), (&mut code.count, count), (&mut code.begin, begin as u32)] {
                if let Some(slot) = slot.get_mut(length) {
                    *slot = value;
                }
            }
            if length <= 8 {
                for (offset, &symbol) in code.symbols.iter().skip(begin).enumerate() {
                    let from = ((next as usize) + offset) << (8 - length);
                    for slot in code.short.iter_mut().skip(from).take(1 << (8 - length)) {
                        *slot = (symbol as u8, length as u8);
                    }
                }
            }
            next += count;
        }
        code
    }

    /// The symbol at the front of `window` (its first bit is the highest) and its length, among codes longer than 8 bits.
    fn long(&self, window: u64) -> Option<(u16, u32)> {
        (9..=LONGEST).find_map(|length| {
            let word = (window >> (64 - length)) as u32;
            let offset =
                word.checked_sub(*self.first.get(length)?).filter(|offset| self.count.get(length).is_some_and(|count| offset < count))?;
            Some((*self.symbols.get((self.begin.get(length)? + offset) as usize)?, length as u32))
        })
    }

    /// Hands each byte on; how many.
    fn decode(&self, text: &[u8], mut take: impl FnMut(u8)) -> Result<usize, Malformed> {
        let (mut window, mut bits, mut bytes, mut found) = (0u64, 0u32, text.iter(), 0);
        loop {
            while bits <= 56 {
                let Some(&byte) = bytes.next() else { break };
                window |= u64::from(byte) << (56 - bits);
                bits += 8;
            }
            if bits == 0 {
                return Ok(found);
            }
            let padded = if bits < 64 { window | (u64::MAX >> bits) } else { window };
            let (symbol, length) = match self.short.get((padded >> 56) as usize) {
                Some(&(symbol, length)) if length > 0 => (u16::from(symbol), u32::from(length)),
                _ => self.long(padded).ok_or(Malformed)?,
            };
            if length > bits {
                // What is left must be the begin of the end's code, which is all ones.
                return if bits < 8 && padded == u64::MAX { Ok(found) } else { Err(Malformed) };
            }
            if symbol == END {
                return if bits < 8 { Ok(found) } else { Err(Malformed) };
            }
            take(symbol as u8);
            found += 1;
            window <<= length;
            bits -= length;
        }
    }
}

fn code() -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(Code::new)
}

/// A field as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Status(u16),
    RunId(RunId),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Status,
    RunId,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    field: Field,
    name: Name,
    name_size: usize,
    size: usize,
}

/// What a block said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// 0: none, as in trailers.
    pub status: u16,
    /// Of X-Run-Id.
    pub run_id: Option<RunId>,
}

/// One connection's decoder.
#[derive(Debug, Default)]
pub struct Decoder {
    entries: VecDeque<Entry>,
    size: usize,
    limit: Option<usize>,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }

    /// An integer whose first part is in the low `bits` of `first`.
    fn integer(&mut self, first: u8, bits: u32) -> Result<usize, Malformed> {
        let most = (1usize << bits) - 1;
        let mut value = usize::from(first) & most;
        if value < most {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    /// A string as it is written, and whether by the Huffman code.
    fn string(&mut self) -> Result<(&'a [u8], bool), Malformed> {
        let first = self.byte()?;
        let size = self.integer(first, 7)?;
        if size > STRING {
            return Err(Malformed);
        }
        let (text, rest) = self.0.split_at_checked(size).ok_or(Malformed)?;
        self.0 = rest;
        Ok((text, first & 0x80 != 0))
    }
}

/// Decodes at most `N` bytes into an array; the string's whole length.
fn text<const N: usize>((text, coded): (&[u8], bool)) -> Result<([u8; N], usize), Malformed> {
    let mut found = [0; N];
    let mut at = 0;
    let mut take = |byte| {
        if let Some(slot) = found.get_mut(at) {
            *slot = byte;
        }
        at += 1;
    };
    let size = if coded {
        code().decode(text, take)?
    } else {
        text.iter().for_each(|&byte| take(byte));
        text.len()
    };
    Ok((found, size))
}

fn size((text, coded): (&[u8], bool)) -> Result<usize, Malformed> {
    if coded { code().decode(text, |_| ()) } else { Ok(text.len()) }
}

impl Decoder {
    /// Reads one whole block.
    pub fn read(&mut self, block: &[u8]) -> Result<Head, Malformed> {
        let (mut cursor, mut head) = (Cursor(block), Head::default());
        while !cursor.0.is_empty() {
            let first = cursor.byte()?;
            let field = if first & 0x80 != 0 {
                let index = cursor.integer(first, 7)?;
                self.indexed(index)?
            } else if first & 0xe0 == 0x20 {
                let limit = cursor.integer(first, 5)?;
                if limit > TABLE {
                    return Err(Malformed);
                }
                self.limit = Some(limit);
                self.evict(0);
                continue;
            } else {
                let (bits, keep) = if first & 0x40 != 0 { (6, true) } else { (4, false) };
                let index = cursor.integer(first, bits)?;
                let entry = self.literal(index, &mut cursor, keep)?;
                if keep {
                    self.insert(entry);
                }
                entry.field
            };
            match field {
                Field::Status(status) if head.status == 0 => head.status = status,
                Field::Status(_) => return Err(Malformed),
                Field::RunId(id) => head.run_id = Some(id),
                Field::Other => {}
            }
        }
        Ok(head)
    }

    fn indexed(&self, index: usize) -> Result<Field, Malformed> {
        match index {
            0 => Err(Malformed),
            8..=14 => STATUSES.get(index - 8).map(|&status| Field::Status(status)).ok_or(Malformed),
            1..=61 => Ok(Field::Other),
            _ => self.entries.get(index - 62).map(|entry| entry.field).ok_or(Malformed),
        }
    }

    fn literal(&self, index: usize, cursor: &mut Cursor<'_>, keep: bool) -> Result<Entry, Malformed> {
        let (name, name_size) = match index {
            0 => {
                let written = cursor.string()?;
                let (start, size) = text::<8>(written)?;
                let name = if size == RUN_ID.len() && start == RUN_ID { Name::RunId } else { Name::Other };
                (if start.starts_with(b":status") && size == 7 { Name::Status } else { name }, size)
            }
            1..=61 => {
                (if (8..=14).contains(&index) { Name::Status } else { Name::Other }, NAMES.get(index - 1).map_or(0, |&size| size.into()))
            }
            _ => self.entries.get(index - 62).map(|entry| (entry.name, entry.name_size)).ok_or(Malformed)?,
        };
        let written = cursor.string()?;
        let (field, value_size) = match name {
            Name::Status => {
                let (digits, size) = text::<3>(written)?;
                let status = std::str::from_utf8(&digits).ok().filter(|_| size == 3).and_then(|digits| digits.parse().ok());
                (Field::Status(status.filter(|status| (100..1000).contains(status)).ok_or(Malformed)?), size)
            }
            Name::RunId => {
                let (id, size) = text::<29>(written)?;
                (Field::RunId(run_ids::parse(&id).filter(|_| size == 29).ok_or(Malformed)?), size)
            }
            // Only what enters the table must be measured.
            Name::Other => (Field::Other, if keep { size(written)? } else { 0 }),
        };
        Ok(Entry { field, name, name_size, size: name_size + value_size + OVERHEAD })
    }

    fn insert(&mut self, entry: Entry) {
        self.evict(entry.size);
        if entry.size <= self.limit.unwrap_or(TABLE) {
            self.size += entry.size;
            self.entries.push_front(entry);
        }
    }

    /// Makes room.
    fn evict(&mut self, room: usize) {
        let limit = self.limit.unwrap_or(TABLE);
        while self.size + room > limit
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.size;
        }
    }
}

/// Appends a string as it is, with its length.
pub fn write_string(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text.len();
    if rest < 127 {
        out.push(rest as u8);
    } else {
        out.push(127);
        rest -= 127;
        while rest >= 128 {
            out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use proptest::prelude::*;

    use super::*;

    const ID: &[u8; 29] = b"0000019f2b3c4d5e-00000000002a";

    /// Writes by the code, from the lengths alone.
    fn huffman(text: &[u8]) -> Vec<u8> {
        let code = code();
        let (mut out, mut word, mut bits) = (Vec::new(), 0u64, 0u32);
        for &byte in text {
            let length = LENGTHS[usize::from(byte)] as usize;
            let among = code.symbols.iter().skip(code.begin[length] as usize).position(|&symbol| symbol == u16::from(byte)).unwrap();
            word = word << length | u64::from(code.first[length] + among as u32);
            bits += length as u32;
            while bits >= 8 {
                out.push((word >> (bits - 8)) as u8);
                bits -= 8;
            }
        }
        if bits > 0 {
            out.push((word << (8 - bits)) as u8 | (0xff >> bits));
        }
        out
    }

    fn string(text: &[u8], coded: bool) -> Vec<u8> {
        let mut out = Vec::new();
        write_string(&if coded { huffman(text) } else { text.to_vec() }, &mut out);
        if coded {
            out[0] |= 0x80;
        }
        out
    }

    #[test]
    fn examples_of_the_standard() {
        // RFC 7541, C.4.1 and C.6.1: "www.example.com", and three of an answer's fields.
        let written = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let mut found = Vec::new();
        assert_eq!(code().decode(&written, |byte| found.push(byte)), Ok(15));
        assert_eq!(found, b"www.example.com");
        assert_eq!(huffman(b"www.example.com"), written);
        let mut decoder = Decoder::default();
        let block = [0x48, 0x82, 0x64, 0x02, 0x58, 0x85, 0xae, 0xc3, 0x77, 0x1a, 0x4b];
        assert_eq!(decoder.read(&block).unwrap().status, 302);
        assert_eq!(decoder.size, 42 + 52);
        assert_eq!(decoder.read(&[0xbf]).unwrap().status, 302, "index 63 is the older of two");
    }

    #[test]
    fn the_table_forgets_its_oldest() {
        let mut decoder = Decoder::default();
        let field = |value: &[u8]| [&[0x40][..], &string(b"x-run-id", true), &string(value, true)].concat();
        for n in 0..200 {
            let id = format!("0000019f2b3c4d5e-{n:012x}");
            let head = decoder.read(&[&[0x88][..], &field(id.as_bytes())].concat()).unwrap();
            assert_eq!((head.status, head.run_id.unwrap().as_slice()), (200, id.as_bytes()));
        }
        assert_eq!(decoder.entries.len(), TABLE / (8 + 29 + OVERHEAD));
        assert_eq!(decoder.read(&[0xbe]).unwrap().run_id.unwrap()[27..], *b"c7");
        decoder.read(&[0x20]).unwrap();
        assert!(decoder.read(&[0xbe]).is_err(), "a size of 0 empties it");
        assert!(decoder.read(&[0x3f, 0xe2, 0x1f]).is_err(), "4097 is more than we allow");
    }

    #[test]
    fn what_is_no_answer_is_malformed() {
        for bad in [
            &[0x80][..],
            &[0xff],
            &[0x40, 0x01],
            &[0x88, 0x89],
            &[0x08, 0x02, b'2', b'0'],
            &[0x08, 0x03, b'x', b'0', b'0'],
            &[&[0x00][..], &string(b"x-run-id", false), &string(b"nonsense", false)].concat(),
            &[0x00, 0x81, 0x00, 0x00],
        ] {
            assert!(Decoder::default().read(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..8)) {
            let mut block = vec![0x88];
            for (kind, value, coded) in &texts {
                // With the table, without it, never indexed; by a name of the static table or its own.
                block.push([0x40, 0x00, 0x10, 0x5f][usize::from(kind % 4)]);
                if kind % 4 != 3 {
                    block.extend(string(b"some-name", *coded));
                }
                block.extend(string(value, *coded));
            }
            block.push(0x00);
            block.extend(string(RUN_ID, true));
            block.extend(string(ID, true));
            let mut decoder = Decoder::default();
            let head = decoder.read(&block).unwrap();
            prop_assert_eq!((head.status, head.run_id), (200, Some(*ID)));
            prop_assert!(decoder.size <= TABLE);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            let _ = decoder.read(&bytes);
            let _ = decoder.read(&bytes);
            prop_assert!(decoder.size <= TABLE);
        }
    }
}
