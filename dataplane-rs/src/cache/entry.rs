//! One kept answer. Pure but for a body's compression, which is made at most once for each coding.
use super::tag::Tag;
use crate::http::compress;
use crate::http::negotiate::Coding;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Larger bodies have no ETag and are not kept, bytes before compression (contract).
pub const LARGEST: usize = 1 << 20;
/// What an entry takes besides its texts, about: itself, its places in maps and queues.
const OVERHEAD: usize = 320;

/// What is to be kept of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Before compression.
    pub body: &'a [u8],
    /// Of it.
    pub tag: Tag,
    /// Rows in it.
    pub rows: u64,
    /// Whether there are more.
    pub truncated: Option<bool>,
    /// Target of the next page.
    pub next: Option<&'a [u8]>,
}

/// A body under a coding.
#[derive(Debug)]
pub struct Packed {
    /// As it is sent.
    pub body: Box<[u8]>,
    /// Of that.
    pub tag: Tag,
}

/// A kept answer. Threads share it and never change what it says.
#[derive(Debug)]
pub struct Entry {
    /// What it answers (`Key::write`).
    pub key: Box<[u8]>,
    /// Before compression.
    pub body: Box<[u8]>,
    /// Of it.
    pub tag: Tag,
    /// Rows in it.
    pub rows: u64,
    /// Whether there are more.
    pub truncated: Option<bool>,
    /// Target of the next page.
    pub next: Option<Box<[u8]>>,
    /// When the call that asked for it began: what it shows is at most so old.
    born: Instant,
    expires: Instant,
    packed: [OnceLock<Option<Packed>>; 2],
    /// Used since the last look for something to throw out.
    used: AtomicBool,
    /// Thrown out: nobody is to find it any more.
    dropped: AtomicBool,
    size: AtomicUsize,
}

impl Entry {
    /// Of an answer.
    pub fn new(key: Box<[u8]>, answer: Answer<'_>, born: Instant, ttl: Duration) -> Self {
        let size = OVERHEAD + key.len() + answer.body.len() + answer.next.map_or(0, <[u8]>::len);
        Self {
            key,
            body: answer.body.into(),
            tag: answer.tag,
            rows: answer.rows,
            truncated: answer.truncated,
            next: answer.next.map(Into::into),
            born,
            expires: born + ttl,
            packed: [const { OnceLock::new() }; 2],
            used: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            size: AtomicUsize::new(size),
        }
    }

    /// It may be served.
    #[inline]
    pub fn is_fresh(&self, now: Instant) -> bool {
        now < self.expires && !self.dropped.load(Relaxed)
    }

    /// How old it is, in whole seconds, rounded up: whoever reckons with it forgets the answer no later than we do.
    pub fn age_s(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.born);
        age.as_secs() + u64::from(age.subsec_nanos() > 0)
    }

    /// Notes a use.
    #[inline]
    pub fn touch(&self) {
        // Read first: a store would take the line away from other threads each time.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Whether it was used since this was last asked.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    /// Nobody is to find it any more.
    pub fn discard(&self) {
        self.dropped.store(true, Relaxed);
    }

    /// What it takes, bytes.
    pub fn size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// It takes more than it did.
    pub fn grow(&self, by: usize) {
        self.size.fetch_add(by, Relaxed);
    }

    /// The body under a coding; None to send it as it is. Bytes that this has made are added to `made`.
    pub fn packed(&self, coding: Coding, from: usize, made: &mut usize) -> Option<&Packed> {
        let slot = match coding {
            Coding::Identity => return None,
            Coding::Gzip => self.packed.first()?,
            Coding::Zstd => self.packed.last()?,
        };
        if self.body.len() <= from {
            return None;
        }
        let pack = || {
            let mut body = Vec::new();
            let packed = compress::whole(coding, &self.body, &mut body).then(|| Packed { tag: Tag::of(&body), body: body.into() });
            *made += packed.as_ref().map_or(0, |packed| packed.body.len());
            packed
        };
        slot.get_or_init(pack).as_ref()
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub fn answer(body: &[u8]) -> Answer<'_> {
        Answer { body, tag: Tag::of(body), rows: 1, truncated: Some(false), next: None }
    }

    #[test]
    fn an_age_is_never_told_too_young() {
        let born = Instant::now();
        let entry = Entry::new(Box::default(), answer(b"{}"), born, Duration::from_secs(2));
        for (ms, age, fresh) in [(0, 0, true), (1, 1, true), (1000, 1, true), (1001, 2, true), (1999, 2, true), (2000, 2, false)] {
            let now = born + Duration::from_millis(ms);
            assert_eq!((entry.age_s(now), entry.is_fresh(now)), (age, fresh), "{ms}");
        }
        entry.discard();
        assert!(!entry.is_fresh(born));
    }

    #[test]
    fn a_body_is_compressed_once_for_each_coding() {
        let body = b"{\"id\":1}".repeat(500);
        let entry = Entry::new(Box::default(), answer(&body), Instant::now(), Duration::from_secs(1));
        let mut made = 0;
        let gzip = entry.packed(Coding::Gzip, 1024, &mut made).unwrap();
        assert_eq!(made, gzip.body.len());
        let zstd = entry.packed(Coding::Zstd, 1024, &mut made).unwrap();
        assert_eq!(made, gzip.body.len() + zstd.body.len());
        assert!(gzip.tag != zstd.tag && gzip.tag != entry.tag);
        assert_eq!(entry.packed(Coding::Gzip, 1024, &mut made).unwrap().tag, gzip.tag);
        assert_eq!(made, gzip.body.len() + zstd.body.len());
        assert!(entry.packed(Coding::Identity, 1024, &mut made).is_none());
        assert!(entry.packed(Coding::Gzip, body.len(), &mut made).is_none());
    }
}
