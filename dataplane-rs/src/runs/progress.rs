//! How far the runs of a live recorder are on their way into the store. May reject: nothing; a damaged block is kept aside and
//! reported. IO: reads the spool's segments.
use super::batch::{Batch, SegmentNames};
use super::layout::{self, HEADER, Header};
use super::ship::ShipError;
use super::spool::{Feed, Segment, lock};
use super::store::Cursor;
use crate::observe::{Observation, Observer};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes read at once; larger than any block.
const CHUNK: usize = 1 << 20;

/// One feed.
pub(super) struct Progress {
    pub(super) feed: Arc<Feed>,
    pub(super) cursor: Cursor,
    names: SegmentNames,
    /// Definitions before the cursor are known.
    learned: bool,
    /// Highest sequence in the store.
    pub(super) sequence: u64,
}

impl Progress {
    /// Of a feed that is in the store up to `cursor`.
    pub(super) fn new(feed: Arc<Feed>, cursor: Option<Cursor>) -> Self {
        let first = lock(&feed.segments).front().map_or(0, |s| s.header.number);
        let start = Cursor { segment: first, position: HEADER as u64 };
        let cursor = cursor.filter(|c| c.segment >= first).unwrap_or(start);
        let sequence = feed.shipped.load(Ordering::Relaxed);
        let learned = cursor.position == HEADER as u64;
        Self { feed, cursor, names: SegmentNames::default(), learned, sequence }
    }

    pub(super) fn has_news(&self) -> bool {
        let segments = lock(&self.feed.segments);
        segments.iter().any(|s| s.header.number >= self.cursor.segment && s.committed.load(Ordering::Acquire) > self.position(s))
    }

    fn position(&self, segment: &Segment) -> u64 {
        if segment.header.number == self.cursor.segment { self.cursor.position } else { HEADER as u64 }
    }

    /// Sealed, and all of it is in the store.
    pub(super) fn is_done(&self, segment: &Segment) -> bool {
        segment.sealed.load(Ordering::Acquire)
            && (segment.header.number < self.cursor.segment || segment.committed.load(Ordering::Acquire) <= self.position(segment))
    }

    /// The recorder is gone, and all that it recorded is in the store.
    pub(super) fn is_over(&self) -> bool {
        self.feed.finished.load(Ordering::Acquire) && lock(&self.feed.segments).iter().all(|segment| self.is_done(segment))
    }

    /// Adds what is new to a transaction, until `left` bytes of payload are used up.
    pub(super) fn insert(
        &mut self,
        batch: &mut Batch<'_>,
        observer: &Observer,
        buffer: &mut Vec<u8>,
        left: &mut usize,
    ) -> Result<(), ShipError> {
        let segments: Vec<_> = lock(&self.feed.segments).iter().cloned().collect();
        for segment in segments {
            if segment.header.number < self.cursor.segment {
                continue;
            }
            let committed = segment.committed.load(Ordering::Acquire);
            if segment.header.number > self.cursor.segment {
                self.cursor = Cursor { segment: segment.header.number, position: HEADER as u64 };
                self.names = SegmentNames::default();
                self.learned = true;
            }
            if !self.learned {
                let end = self.cursor.position;
                blocks(&segment.file, &segment.header, HEADER as u64, end, buffer, |payload, _| {
                    batch.learn(payload, &mut self.names)?;
                    Ok(true)
                })?;
                self.learned = true;
            }
            let Self { feed, cursor, names, sequence, .. } = self;
            let whole = blocks(&segment.file, &segment.header, cursor.position, committed, buffer, |payload, end| {
                if !batch.insert(feed.epoch, payload, names, sequence)? {
                    observer.report(&Observation::SegmentUnreadable { reason: "content" });
                }
                cursor.position = end;
                *left = left.saturating_sub(payload.len());
                Ok(*left > 0)
            })?;
            if !whole {
                // What the kernel had is gone from the disk: keep the file, go on behind it.
                observer.report(&Observation::SegmentUnreadable { reason: "block" });
                let _ = fs::hard_link(&segment.path, segment.path.with_extension("bad"));
                cursor.position = committed;
            }
            if *left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Hands the payloads between `at` and `end`, with the offset behind each, to `take` until it says false. `Ok(false)`: one of them
/// is damaged.
fn blocks(
    file: &File,
    header: &Header,
    mut at: u64,
    end: u64,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8], u64) -> Result<bool, ShipError>,
) -> Result<bool, ShipError> {
    while at < end {
        let length = CHUNK.min((end - at) as usize);
        buffer.resize(length, 0);
        file.read_exact_at(buffer, at)?;
        let mut inside = 0;
        while inside < length {
            match layout::block(buffer.get(inside..).unwrap_or_default(), header.salt, at + inside as u64) {
                Ok(Some(payload)) => {
                    inside += layout::BLOCK_HEAD + payload.len();
                    if !take(payload, at + inside as u64)? {
                        return Ok(true);
                    }
                }
                // Cut by the chunk's end.
                Err(_) | Ok(None) if inside > 0 && length == CHUNK => break,
                Err(_) | Ok(None) => return Ok(false),
            }
        }
        at += inside as u64;
    }
    Ok(true)
}
