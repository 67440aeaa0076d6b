//! What makes two calls the same: everything that the bytes of an answer depend on, and nothing that a caller can bend. Pure.
use crate::encode::Format;
use crate::plan::snapshot::{ConnectionPlan, MaskPlan, QueryPlan};
use crate::plan::tables::Variant;
use sha2::{Digest, Sha256};

/// A query's plan, its data source, and one mask set with the key of its hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity([u8; 16]);

impl Identity {
    /// Over all that they say. `secret` is the API's own, from which mask and cursor keys come.
    pub fn of(plan: &QueryPlan, connection: &ConnectionPlan, masks: &[MaskPlan], secret: Option<&[u8; 32]>) -> Self {
        let mut digest = Sha256::new();
        digest.update(format!("tailrace cache v1\n{plan:?}\n{connection:?}\n{masks:?}\n"));
        digest.update(secret.map_or(&[][..], |secret| secret));
        let digest = digest.finalize();
        Self(digest.first_chunk().copied().unwrap_or_default())
    }
}

/// What a call asks, as far as its answer's body and Link depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// Of the query, its source and the caller's masks.
    pub identity: Identity,
    /// Raised when the source's mounted files change.
    pub generation: u64,
    /// Of the body.
    pub format: Format,
    /// Which of the query's statements.
    pub variant: Variant,
    /// Rows shown at most.
    pub rows: u32,
    /// One value per place: parameters with the key's bindings, the cursor's texts, the limit.
    pub values: &'a [u8],
    /// Of a paged query: the ApiKey, for whom its cursors are sealed, and the Link's target without the cursor.
    pub page: Option<(&'a str, &'a [u8])>,
}

impl Key<'_> {
    /// Writes it down: two keys have the same bytes only if they are equal.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.identity.0);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&[self.format as u8, self.variant as u8, u8::from(self.page.is_some())]);
        out.extend_from_slice(&self.rows.to_le_bytes());
        if let Some((key, link)) = self.page {
            for part in [key.as_bytes(), link] {
                out.extend_from_slice(&(part.len() as u64).to_le_bytes());
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(self.values);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Parts = (u8, u64, bool, u32, Vec<u8>, Option<(String, Vec<u8>)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let few = || prop::collection::vec(0u8..3, 0..4);
        (0u8..2, 0u64..2, any::<bool>(), 0u32..2, few(), prop::option::of(("[ab]{0,2}", few())))
    }

    fn bytes((identity, generation, csv, rows, values, page): &Parts) -> Vec<u8> {
        let key = Key {
            identity: Identity([*identity; 16]),
            generation: *generation,
            format: if *csv { Format::Csv } else { Format::Json },
            variant: Variant::Plain,
            rows: *rows,
            values,
            page: page.as_ref().map(|(key, link)| (&**key, &**link)),
        };
        let mut out = vec![9];
        key.write(&mut out);
        out
    }

    proptest! {
        #[test]
        fn only_equal_keys_have_equal_bytes(a in parts(), b in parts()) {
            prop_assert_eq!(bytes(&a) == bytes(&b), a == b);
        }
    }
}
