//! Who may call: keys by the SHA-256 of their text, when and from where. May reject: nothing at call time but by `None`.
//! IO: none.
use crate::plan::snapshot::KeyPlan;
use crate::plan::tables::{Invalid, key_form, networks};
use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Longest key text that is looked at, bytes.
const LONGEST: usize = 512;

/// One live key.
#[derive(Debug)]
pub struct Key {
    /// namespace/name.
    pub id: Arc<str>,
    /// Index in roles.
    pub role: u32,
    /// Stays with the id from snapshot to snapshot: the key's place in queues.
    pub slot: u32,
    /// Fixed parameters.
    pub bind: Option<Box<serde_json::Map<String, serde_json::Value>>>,
    not_before_us: i64,
    not_after_us: i64,
    cidrs: Option<Box<[IpNet]>>,
}

/// Compared in constant time; only its first word is hashed to find it.
#[derive(Clone, Copy, Debug)]
struct Digest([u64; 4]);

impl Digest {
    fn new(bytes: [u8; 32]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let mut digest = [0; 4];
        digest.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        Self(digest)
    }
}

impl PartialEq for Digest {
    // By words: byte by byte this was 2.7 % of a pipelined call.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [prefix, ..] = self.0;
        state.write_u64(prefix);
    }
}

/// A SHA-256 is uniform already.
#[derive(Default)]
struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.0 = self.0.rotate_left(8) ^ u64::from(b));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// All live keys.
#[derive(Debug)]
pub struct Keys {
    list: Vec<Key>,
    digests: HashMap<Digest, u32, BuildHasherDefault<Prefix>>,
    slots: HashMap<Arc<str>, u32>,
}

impl Keys {
    /// Checks and indexes the keys of a snapshot.
    pub fn compile(plans: &[KeyPlan], roles: usize, before: Option<&Self>) -> Result<Self, Invalid> {
        let taken: std::collections::HashSet<u32> = before.into_iter().flat_map(|keys| keys.slots.values()).copied().collect();
        let mut free = (0..).filter(|slot| !taken.contains(slot));
        let mut keys = Self { list: Vec::with_capacity(plans.len()), digests: HashMap::default(), slots: HashMap::new() };
        for (plan, at) in plans.iter().zip(0u32..) {
            if plan.role as usize >= roles {
                return Err(Invalid::Index { unit: format!("key {}", plan.id), what: "its role" });
            }
            if plan.sha256.is_empty() {
                return Err(key_form(plan, "sha256"));
            }
            for text in &plan.sha256 {
                let digest = Digest::new(unhex(text).ok_or_else(|| key_form(plan, "sha256"))?);
                if keys.digests.insert(digest, at).is_some_and(|other| other != at) {
                    return Err(key_form(plan, "sha256, which another key has"));
                }
            }
            let cidrs = networks(&plan.cidrs).ok_or_else(|| key_form(plan, "cidrs"))?;
            let id: Arc<str> = plan.id.as_str().into();
            let known = keys.slots.get(&id).or_else(|| before.and_then(|keys| keys.slots.get(&id))).copied();
            let slot = known.or_else(|| free.next()).unwrap_or(0);
            keys.slots.insert(id.clone(), slot);
            keys.list.push(Key {
                id,
                role: plan.role,
                slot,
                bind: (!plan.bind.is_empty()).then(|| Box::new(plan.bind.clone())),
                not_before_us: plan.not_before_us.unwrap_or(i64::MIN),
                not_after_us: plan.not_after_us.unwrap_or(i64::MAX),
                cidrs: (!cidrs.is_empty()).then_some(cidrs),
            });
        }
        Ok(keys)
    }

    /// The key with this text, if it is valid at `now_us` (µs since 1970) from `address`.
    #[inline]
    pub fn admit(&self, text: &[u8], now_us: i64, address: IpAddr) -> Option<(u32, &Key)> {
        if text.is_empty() || text.len() > LONGEST {
            return None;
        }
        let at = *self.digests.get(&Digest::new(Sha256::digest(text).into()))?;
        let key = self.list.get(at as usize)?;
        let near = key.cidrs.as_ref().is_none_or(|cidrs| contains(cidrs, address));
        (key.not_before_us <= now_us && now_us < key.not_after_us && near).then_some((at, key))
    }

    /// By index.
    pub fn get(&self, at: u32) -> Option<&Key> {
        self.list.get(at as usize)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// An IPv4-mapped IPv6 address counts as IPv4.
pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    for (&[high, low], byte) in pairs.iter().zip(&mut out) {
        *byte = u8::try_from((high as char).to_digit(16)? * 16 + (low as char).to_digit(16)?).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digests_are_equal_where_their_bytes_are(bytes: [u8; 32], at in 0..32_usize, flipped in 1..=255_u8) {
            let mut other = bytes;
            if let Some(byte) = other.get_mut(at) {
                *byte ^= flipped;
            }
            prop_assert!(Digest::new(bytes) == Digest::new(bytes));
            prop_assert!(Digest::new(bytes) != Digest::new(other), "a difference in byte {} counts, also behind the word that is hashed", at);
        }
    }
}
