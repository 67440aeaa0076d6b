//! Cursors of keyset paging: AES-256-SIV over the key columns of the last row, bound to key, query and version.
//! May reject: anything that was not sealed for the same (`InvalidCursor`). IO: none.
use super::rows::next;
use super::text::string;
use super::{Malformed, float};
use crate::plan::snapshot::{Engine, PageKeyPlan};
use aes_siv::siv::Aes256Siv;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha512;

/// A longer cursor is refused unread.
pub const LIMIT_BYTES: usize = 16 * 1024;

/// Seals cursors; the API's own.
#[derive(Clone)]
pub struct CursorKey([u8; 64]);

impl std::fmt::Debug for CursorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CursorKey")
    }
}

/// Not a cursor of this key and this version of this query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this key and query")]
pub struct InvalidCursor;

/// Who and what a cursor belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// `namespace/name` of the ApiKey.
    pub key: &'a str,
    /// Query name.
    pub query: &'a str,
    /// Query version.
    pub version: &'a str,
}

impl Subject<'_> {
    fn associated(&self) -> String {
        format!("{}\n{}\n{}", self.key, self.query, self.version)
    }
}

impl CursorKey {
    /// From the 32 bytes of `DIR/gateway-secret`.
    pub fn derive(secret: &[u8; 32]) -> Self {
        let mut key = [0; 64];
        let made = hmac::<Hmac<Sha512>>(secret, b"tailrace cursor v1");
        key.iter_mut().zip(made).for_each(|(to, from)| *to = from);
        Self(key)
    }

    /// Appends the cursor that continues after the first row of `row` (DataRow form).
    pub fn seal(&self, subject: Subject<'_>, row: &[u8], keys: &[PageKeyPlan], engine: Engine, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut plain = vec![b'['];
        for (n, key) in keys.iter().enumerate() {
            let mut rest = row;
            for _ in 0..key.column {
                next(&mut rest)?;
            }
            let value = next(&mut rest)?.ok_or(Malformed)?;
            if n > 0 {
                plain.push(b',');
            }
            match engine {
                Engine::Postgres | Engine::Mysql => string(value, &mut plain)?,
                Engine::Sqlite => stored(value, &mut plain)?,
            }
        }
        plain.push(b']');
        let sealed = self.cipher().encrypt([subject.associated()], &plain).map_err(|_| Malformed)?;
        let start = out.len();
        out.resize(start + sealed.len().div_ceil(3) * 4, 0);
        let length = out.get_mut(start..).and_then(|room| URL_SAFE_NO_PAD.encode_slice(&sealed, room).ok()).ok_or(Malformed)?;
        out.truncate(start + length);
        Ok(())
    }

    /// Appends the key values of a cursor, framed as places are. `keys` is how many the page has.
    pub fn open(&self, subject: Subject<'_>, cursor: &[u8], keys: usize, engine: Engine, out: &mut Vec<u8>) -> Result<(), InvalidCursor> {
        if cursor.len() > LIMIT_BYTES {
            return Err(InvalidCursor);
        }
        let sealed = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
        let plain = self.cipher().decrypt([subject.associated()], &sealed).map_err(|_| InvalidCursor)?;
        let texts: Vec<String> = serde_json::from_slice(&plain).map_err(|_| InvalidCursor)?;
        if texts.len() != keys {
            return Err(InvalidCursor);
        }
        for text in texts {
            let value = match engine {
                Engine::Postgres | Engine::Mysql => text.into_bytes(),
                Engine::Sqlite => restored(&text).ok_or(InvalidCursor)?,
            };
            let length = i32::try_from(value.len()).map_err(|_| InvalidCursor)?;
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&value);
        }
        Ok(())
    }

    fn cipher(&self) -> Aes256Siv {
        Aes256Siv::new(&self.0.into())
    }
}

/// A SQLite value as text: tag, then digits, the shortest digits of a REAL, text, or base64.
fn stored(value: &[u8], plain: &mut Vec<u8>) -> Result<(), Malformed> {
    let (&tag, bytes) = value.split_first().ok_or(Malformed)?;
    let mut text = vec![tag];
    match tag {
        b'i' | b't' => text.extend_from_slice(bytes),
        b'r' => float::write(f64::from_be_bytes(bytes.try_into().map_err(|_| Malformed)?), &mut text),
        b'b' => text.extend_from_slice(STANDARD.encode(bytes).as_bytes()),
        _ => return Err(Malformed),
    }
    string(&text, plain)
}

fn restored(text: &str) -> Option<Vec<u8>> {
    let (tag, rest) = text.split_at_checked(1)?;
    match tag {
        "i" if rest.bytes().all(|b| b.is_ascii_digit() || b == b'-') && rest.parse::<i64>().is_ok() => Some(text.as_bytes().to_vec()),
        "t" => Some(text.as_bytes().to_vec()),
        "r" => {
            let real: f64 = match rest {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                _ if rest.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e')) => rest.parse().ok()?,
                _ => return None,
            };
            Some([b"r".as_slice(), &real.to_be_bytes()].concat())
        }
        "b" => Some([b"b".as_slice(), &STANDARD.decode(rest).ok()?].concat()),
        _ => None,
    }
}

/// A keyed state. HMAC takes keys of any length.
pub(super) fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).unwrap_or_else(|_| M::new(&Default::default()))
}

pub(super) fn hmac<M: KeyInit + Mac>(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut state: M = keyed(key);
    state.update(message);
    state.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::golden::{hex, vectors};
    use serde_json::Value;

    fn subject(vector: &Value) -> Subject<'_> {
        let text = |name: &str| vector[name].as_str().unwrap();
        Subject { key: text("key"), query: text("query"), version: text("version") }
    }

    fn value(text: &str) -> Vec<u8> {
        match text.split_once(':') {
            Some((tag @ ("r" | "b"), digits)) => [tag.as_bytes(), &hex(digits)].concat(),
            _ => text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn as_the_vectors_say() {
        let file = vectors("cursors.json");
        let sealer = CursorKey::derive(&hex(file["secret"].as_str().unwrap()).try_into().unwrap());
        for vector in file["cases"].as_array().unwrap() {
            let engine: Engine = serde_json::from_value(vector["engine"].clone()).unwrap();
            // The row has another column in front; keys name it from behind.
            let values = vector["values"].as_array().unwrap();
            let (mut row, mut framed) = ((-1i32).to_be_bytes().to_vec(), Vec::new());
            for text in values {
                let value = value(text.as_str().unwrap());
                framed.extend_from_slice(&i32::try_from(value.len()).unwrap().to_be_bytes());
                framed.extend_from_slice(&value);
            }
            row.extend_from_slice(&framed);
            let keys: Vec<_> =
                (0..values.len()).map(|n| PageKeyPlan { column: u32::try_from(n + 1).unwrap(), descending: false }).collect();
            let mut cursor = Vec::new();
            sealer.seal(subject(vector), &row, &keys, engine, &mut cursor).unwrap();
            assert_eq!(std::str::from_utf8(&cursor).unwrap(), vector["cursor"].as_str().unwrap(), "{vector}");
            let mut opened = Vec::new();
            sealer.open(subject(vector), &cursor, keys.len(), engine, &mut opened).unwrap();
            assert_eq!(opened, framed);
            let null = [PageKeyPlan { column: 0, descending: false }];
            assert_eq!(sealer.seal(subject(vector), &row, &null, engine, &mut cursor), Err(Malformed));
        }
        for vector in file["invalid"].as_array().unwrap() {
            let engine: Engine = serde_json::from_value(vector["engine"].clone()).unwrap();
            let (cursor, keys) = (vector["cursor"].as_str().unwrap(), usize::try_from(vector["keys"].as_u64().unwrap()).unwrap());
            let opened = sealer.open(subject(vector), cursor.as_bytes(), keys, engine, &mut Vec::new());
            assert_eq!(opened, Err(InvalidCursor), "{vector}");
        }
    }
}
