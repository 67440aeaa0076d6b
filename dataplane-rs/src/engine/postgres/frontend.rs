//! Frontend messages of the shared lane, as bytes. Pure.
use crate::plan::tables::Variant;
use bytes::{BufMut, BytesMut};

/// Appends Parse of a named statement.
pub fn parse(name: &[u8], sql: &str, oids: &[u32], out: &mut BytesMut) {
    message(b'P', out, |out| {
        out.put_slice(name);
        out.put_slice(sql.as_bytes());
        out.put_u8(0);
        out.put_u16(oids.len() as u16);
        oids.iter().for_each(|&oid| out.put_u32(oid));
    });
}

/// Appends Describe of a prepared statement.
pub fn describe(name: &[u8], out: &mut BytesMut) {
    message(b'D', out, |out| {
        out.put_u8(b'S');
        out.put_slice(name);
    });
}

/// Appends Bind to the unnamed portal. `values` are framed as the protocol frames them: i32 length (-1 NULL), text.
#[inline]
pub fn bind(name: &[u8], places: u16, values: &[u8], out: &mut BytesMut) {
    message(b'B', out, |out| {
        out.put_u8(0);
        out.put_slice(name);
        out.put_u16(0); // all values are text
        out.put_u16(places);
        out.put_slice(values);
        out.put_u16(0); // all columns are text
    });
}

/// Appends Execute of the unnamed portal; 0: all rows.
#[inline]
pub fn execute(limit: u32, out: &mut BytesMut) {
    message(b'E', out, |out| {
        out.put_u8(0);
        out.put_u32(limit);
    });
}

/// Appends Close of a prepared statement.
pub fn close(name: &[u8], out: &mut BytesMut) {
    message(b'C', out, |out| {
        out.put_u8(b'S');
        out.put_slice(name);
    });
}

/// Appends Sync.
pub fn sync(out: &mut BytesMut) {
    message(b'S', out, |_| {});
}

/// A statement's name with its NUL: the version in hex and which statement of it.
#[inline]
pub fn name(version: u64, variant: Variant) -> [u8; 18] {
    let mut name = [0; 18];
    for (n, byte) in name.iter_mut().take(16).enumerate() {
        let digit = (version >> (60 - 4 * n)) as u8 & 15;
        *byte = digit + if digit < 10 { b'0' } else { b'a' - 10 };
    }
    if let Some(last) = name.get_mut(16) {
        *last = match variant {
            Variant::Plain => b'p',
            Variant::First => b'f',
            Variant::Next => b'n',
            Variant::Batch => b'b',
        };
    }
    name
}

/// Appends a message, whatever its body.
#[inline]
pub fn message(tag: u8, out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let at = out.len();
    out.put_u32(0);
    body(out);
    let length = (out.len() - at) as u32;
    if let Some(room) = out.get_mut(at..at + 4) {
        room.copy_from_slice(&length.to_be_bytes());
    }
}
