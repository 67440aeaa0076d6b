//! A batch's one value: a JSON array of one array a question, in it one member a place (docs/contract.md, "MySQL and MariaDB").
//! Pure. May reject: a value that is missing or has no JSON form; then each caller's own statement tells whose it is.
use super::value;
use crate::encode::rows::next;
use crate::encode::text::string;
use crate::engine::batch::Batch;
use crate::engine::shared::Question;
use bytes::BytesMut;

/// Writes it. False: it cannot be.
pub fn write<Q: Question>(places: &[u32], batch: &Batch<Q>, out: &mut Vec<u8>) -> bool {
    out.clear();
    for question in 0..batch.asked() {
        let Some(asker) = batch.asker(question) else { return false };
        let mut values = asker.values();
        for (place, at) in places.iter().zip(0..) {
            out.extend_from_slice(match (question, at) {
                (0, 0) => b"[[",
                (_, 0) => b",[",
                _ => b",",
            });
            let Ok(value) = next(&mut values) else { return false };
            if !member(*place, value, out) {
                return false;
            }
        }
        out.push(b']');
    }
    out.push(b']');
    !places.is_empty() && batch.asked() > 0
}

fn member(place: u32, value: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
    match (place, value) {
        (_, None) => out.extend_from_slice(b"null"),
        (8, Some(text)) => {
            if value::parameter(8, text, &mut BytesMut::new()).is_err() {
                return false;
            }
            out.extend_from_slice(text);
        }
        (1, Some(text)) => out.push(if matches!(text, b"true" | b"t" | b"1") { b'1' } else { b'0' }),
        (12, Some(text)) => {
            let mut moment = Vec::with_capacity(32);
            return value::utc(text, &mut moment).is_some() && string(&moment, out).is_ok();
        }
        (252, Some(_)) => return false,
        (_, Some(text)) => return string(text, out).is_ok(),
    }
    true
}
