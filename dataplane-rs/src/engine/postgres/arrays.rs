//! Bind of a batch: for each place an array of what its questions have there. Arrays of integers and texts go in binary form, which
//! neither side has to quote; all others as array literals. Pure. May reject: nothing; what the server can't read it refuses.
use super::frontend;
use crate::engine::batch::Batch;
use crate::engine::shared::Question;
use bytes::{BufMut, BytesMut};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `{"a",NULL}`.
    Literal,
    /// Big endian, of so many bytes; the element's OID.
    Integer(usize, u32),
    /// The element's OID.
    Text(u32),
}

impl Form {
    /// By the array's OID.
    const fn of(oid: u32) -> Self {
        match oid {
            1005 => Self::Integer(2, 21),
            1007 => Self::Integer(4, 23),
            1016 => Self::Integer(8, 20),
            1009 => Self::Text(25),
            1015 => Self::Text(1043),
            _ => Self::Literal,
        }
    }
}

/// Appends Bind to the unnamed portal. False, and nothing is appended, when a question lacks a value.
pub fn bind<Q: Question>(name: &[u8], oids: &[u32], batch: &mut Batch<Q>, out: &mut BytesMut) -> bool {
    let start = out.len();
    let mut whole = true;
    frontend::message(b'B', out, |out| {
        out.put_u8(0);
        out.put_slice(name);
        out.put_u16(oids.len() as u16);
        let formats = out.len();
        out.put_bytes(0, oids.len() * 2);
        out.put_u16(oids.len() as u16);
        batch.columns();
        for (n, &oid) in oids.iter().enumerate() {
            let (at, form) = (out.len(), Form::of(oid));
            let binary = form != Form::Literal && {
                let fits = array(form, batch, out);
                whole &= fits != Some(false);
                fits.is_some()
            };
            if binary {
                if let Some(format) = out.get_mut(formats + n * 2 + 1) {
                    *format = 1;
                }
                continue;
            }
            if form != Form::Literal {
                // A number that its type has no room for: the server shall say so. All columns are read again up to this one.
                out.truncate(at);
                batch.columns();
                (0..n).for_each(|_| whole &= batch.column(|_| {}));
            }
            whole &= literal(batch, out);
        }
        out.put_u16(0); // all columns are text
    });
    if !whole {
        out.truncate(start);
    }
    whole
}

/// Puts the length in front of what `body` appends.
fn sized(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut) -> bool) -> bool {
    let at = out.len();
    out.put_u32(0);
    let done = body(out);
    let length = (out.len() - at - 4) as u32;
    if let Some(room) = out.get_mut(at..at + 4) {
        room.copy_from_slice(&length.to_be_bytes());
    }
    done
}

/// Some(true): written. Some(false): a question has no such value. None: a value doesn't fit the type.
fn array<Q: Question>(form: Form, batch: &mut Batch<Q>, out: &mut BytesMut) -> Option<bool> {
    let (mut fits, mut nulls) = (true, false);
    let count = batch.asked() as u32;
    let whole = sized(out, |out| {
        let (Form::Integer(_, element) | Form::Text(element)) = form else { return false };
        out.put_u32(1); // dimensions
        let flag = out.len();
        out.put_u32(0);
        out.put_u32(element);
        out.put_u32(count);
        out.put_u32(1); // lower bound
        let whole = batch.column(|value| match (value, form) {
            (None, _) => {
                nulls = true;
                out.put_i32(-1);
            }
            (Some(value), Form::Integer(size, _)) => match integer(value, size) {
                Some(bytes) => {
                    out.put_u32(size as u32);
                    out.put_slice(bytes.get(8 - size..).unwrap_or_default());
                }
                None => fits = false,
            },
            (Some(value), _) => {
                out.put_u32(value.len() as u32);
                out.put_slice(value);
            }
        });
        if nulls && let Some(flag) = out.get_mut(flag + 3) {
            *flag = 1;
        }
        whole
    });
    fits.then_some(whole)
}

fn integer(text: &[u8], size: usize) -> Option<[u8; 8]> {
    let value: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let fits = match size {
        2 => i16::try_from(value).is_ok(),
        4 => i32::try_from(value).is_ok(),
        _ => true,
    };
    fits.then(|| value.to_be_bytes())
}

/// An array literal: each element quoted, so that no text means anything else.
fn literal<Q: Question>(batch: &mut Batch<Q>, out: &mut BytesMut) -> bool {
    sized(out, |out| {
        out.put_u8(b'{');
        let mut first = true;
        let whole = batch.column(|value| {
            if !std::mem::take(&mut first) {
                out.put_u8(b',');
            }
            let Some(mut rest) = value else { return out.put_slice(b"NULL") };
            out.put_u8(b'"');
            while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
                let (before, after) = rest.split_at_checked(at).unwrap_or_default();
                out.put_slice(before);
                out.put_u8(b'\\');
                out.put_slice(after.get(..1).unwrap_or_default());
                rest = after.get(1..).unwrap_or_default();
            }
            out.put_slice(rest);
            out.put_u8(b'"');
        });
        out.put_u8(b'}');
        whole
    })
}
