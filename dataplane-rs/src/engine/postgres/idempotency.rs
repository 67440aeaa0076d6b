//! A write's Idempotency-Key in SQL: twin of `tailrace_contract.idempotency`, which says how the table is used.
//! IO: none. May reject: a stored outcome that is not of the table's form.
use super::wire;
use crate::engine::Idempotency;
use sha2::{Digest, Sha256};

/// A write whose kept rows are longer is rolled back, with or without a key.
pub const RESULT_LIMIT_BYTES: usize = 16 << 20;

/// Argument of pg_try_advisory_xact_lock.
pub fn lock_id(idempotency: &Idempotency) -> i64 {
    let digest = Sha256::digest(format!("tailrace idempotency v1\n{}\n{}", idempotency.caller, idempotency.key));
    digest.first_chunk::<8>().map_or(0, |head| i64::from_be_bytes(*head))
}

/// `$1`: the lock.
pub const LOCK: &str = "SELECT pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8)";

/// `$1`, `$2`: caller and key.
pub fn lookup(table: &str) -> String {
    format!("SELECT arguments, affected, more, row_count, result FROM {table} WHERE caller = $1 AND key = $2")
}

/// `$1` … `$8` in the order of the columns.
pub fn insert(table: &str) -> String {
    format!(
        "INSERT INTO {table} (caller, key, query, arguments, affected, more, row_count, result) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
    )
}

/// What a write did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Rows changed.
    pub affected: u64,
    /// It returned more rows than are kept.
    pub more: bool,
    /// Rows kept.
    pub count: u32,
    /// Their bytes in DataRow form.
    pub rows: Vec<u8>,
}

/// Values of `insert` in DataRow form, all as text.
pub fn values(idempotency: &Idempotency, outcome: &Outcome) -> Vec<u8> {
    let mut out = Vec::with_capacity(200 + 2 * outcome.rows.len());
    let more = if outcome.more { "t" } else { "f" };
    let (affected, count) = (outcome.affected.to_string(), outcome.count.to_string());
    let texts: [&str; 7] = [&idempotency.caller, &idempotency.key, &idempotency.query, &idempotency.arguments, &affected, more, &count];
    for text in texts {
        put(&mut out, text.as_bytes());
    }
    let mut hex = Vec::with_capacity(2 + 2 * outcome.rows.len());
    hex.extend(b"\\x");
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in &outcome.rows {
        hex.extend([byte >> 4, byte & 15].map(|n| DIGITS.get(usize::from(n)).copied().unwrap_or(b'0')));
    }
    put(&mut out, &hex);
    out
}

/// Appends one value in DataRow form.
pub fn put(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as i32).to_be_bytes());
    out.extend(value);
}

/// A row of `lookup`: the arguments it was made with, and the outcome.
pub fn stored(row: &[u8]) -> Option<(String, Outcome)> {
    let mut values = wire::values(row);
    let mut next = || std::str::from_utf8(values.next()??).ok();
    let arguments = next()?.to_owned();
    let affected = next()?.parse().ok()?;
    // MySQL has digits for it.
    let more = matches!(next()?, "t" | "1");
    let count = next()?.parse().ok()?;
    let hex = next()?.strip_prefix("\\x")?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|n| u8::try_from(n).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let rows = hex.chunks(2).map(pair).collect::<Option<Vec<u8>>>()?;
    Some((arguments, Outcome { affected, more, count, rows }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn key() -> Idempotency {
        Idempotency { table: "t".into(), caller: "ns/key".into(), key: "k".into(), query: "q".into(), arguments: "ab".into() }
    }

    #[test]
    fn the_lock_is_the_contracts() {
        assert_eq!(lock_id(&key()), -5_438_441_015_119_046_580);
    }

    proptest! {
        #[test]
        fn outcomes_round_trip(affected: u64, more: bool, count: u32, rows: Vec<u8>) {
            let outcome = Outcome { affected, more, count, rows };
            let bound = values(&key(), &outcome);
            let mut columns = wire::values(&bound).skip(3);
            let mut row = Vec::new();
            for value in columns.by_ref() {
                put(&mut row, value.unwrap());
            }
            prop_assert_eq!(stored(&row), Some(("ab".to_owned(), outcome)));
        }

        #[test]
        fn stored_never_panics(bytes: Vec<u8>) {
            let _ = stored(&bytes);
        }
    }
}
