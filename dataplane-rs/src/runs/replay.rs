//! What earlier processes left in the spool: carried into the store, and what was open in it recorded as aborted, before this process's
//! own runs. One epoch after the other, and the last segment of each goes only after that: whatever dies, whenever, an epoch is either all
//! done or still here to be done again, and a process that dies again and again gets further each time. May reject: nothing; a file that is no segment is renamed to `.bad` and reported.
//! IO: the spool's files, the store.
use super::batch::{Batch, SegmentNames};
use super::layout::{self, HEADER, Header};
use super::ship::{ShipError, Step, Worker};
use super::spool::lock;
use super::store::{Cursor, Ended};
use crate::observe::Observation;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A segment whose runs are in the store.
struct Shipped {
    path: PathBuf,
    epoch: u64,
    bytes: u64,
    /// That the store lacked.
    runs: u64,
}

/// The part of a segment's name that says whose it is.
fn epoch_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.split('-').next()
}

impl Worker {
    /// Carries over what earlier processes left.
    pub(super) fn replay(&mut self) -> Result<(), ShipError> {
        let leftovers = lock(&self.spool.leftovers).clone();
        let (mut runs, mut segments, mut aborted) = (0, 0, 0);
        // The newest of the epoch: paths are by epoch and number.
        let mut newest: Option<Shipped> = None;
        for (n, path) in leftovers.iter().enumerate() {
            match self.replay_segment(path)? {
                Some(shipped) => {
                    runs += shipped.runs;
                    segments += 1;
                    if let Some(older) = newest.replace(shipped) {
                        self.free_former(&older)?;
                    }
                }
                None => lock(&self.spool.leftovers).retain(|other| other != path),
            }
            let more = leftovers.get(n + 1).is_some_and(|next| epoch_of(next) == epoch_of(path));
            if let Some(last) = newest.take_if(|_| !more) {
                aborted += self.end(Ended::Own(&[last.epoch]))?;
                self.free_former(&last)?;
            }
        }
        self.hook(Step::Replayed);
        // What is open without a segment: Python's, if it was alone here.
        aborted += self.end(Ended::Former)?;
        self.hook(Step::Aborted);
        if segments > 0 || aborted > 0 {
            self.observer.report(&Observation::SpoolReplayed { segments, runs, aborted });
        }
        Ok(())
    }

    /// Records as aborted what is open in epochs that are over, and forgets how far they were; how many.
    pub(super) fn end(&mut self, epochs: Ended<'_>) -> Result<u64, ShipError> {
        let mut batch = Batch::begin(&mut *self.store)?;
        batch.end(epochs)?;
        let aborted = batch.commit()?.aborted;
        self.observer.ship.aborted.fetch_add(aborted, Ordering::Relaxed);
        self.observer.ship.shipped.fetch_add(aborted, Ordering::Relaxed);
        Ok(aborted)
    }

    fn free_former(&self, shipped: &Shipped) -> Result<(), ShipError> {
        fs::remove_file(&shipped.path)?;
        self.spool.freed(shipped.bytes);
        lock(&self.spool.leftovers).retain(|other| *other != shipped.path);
        self.hook(Step::Freed);
        Ok(())
    }

    /// One former segment, whole, into the store. None: it holds nothing, and is gone or set aside.
    fn replay_segment(&mut self, path: &Path) -> Result<Option<Shipped>, ShipError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let size = bytes.len() as u64;
        let header = match Header::decode(&bytes) {
            Ok(header) => header,
            // Died while it was made: there was nothing in it.
            Err(_) if bytes.iter().all(|b| *b == 0) => {
                fs::remove_file(path)?;
                self.spool.freed(size);
                return Ok(None);
            }
            Err(_) => {
                fs::rename(path, path.with_extension("bad"))?;
                self.observer.report(&Observation::SegmentUnreadable { reason: "header" });
                self.spool.freed(size);
                return Ok(None);
            }
        };
        let mut shipped = Shipped { path: path.to_owned(), epoch: header.epoch, bytes: size, runs: 0 };
        let start = Cursor { segment: header.number, position: HEADER as u64 };
        let cursor = self.store.cursor(header.epoch)?.filter(|c| c.segment >= header.number).unwrap_or(start);
        if cursor.segment != header.number {
            return Ok(Some(shipped));
        }
        let (mut at, mut names, mut torn) = (HEADER, SegmentNames::default(), None);
        loop {
            let mut batch = Batch::begin(&mut *self.store)?;
            if let Some(hook) = &self.settings.hook {
                hook(Step::Begun);
            }
            let (mut room, mut more) = (self.settings.batch_bytes, false);
            loop {
                let payload = match layout::block(bytes.get(at..).unwrap_or_default(), header.salt, at as u64) {
                    Ok(Some(payload)) => payload,
                    Ok(None) => break,
                    Err(_) => {
                        torn = Some(at as u64);
                        break;
                    }
                };
                if (at as u64) < cursor.position {
                    batch.learn(payload, &mut names)?;
                } else if !batch.insert(header.epoch, payload, &mut names, &mut 0)? {
                    self.observer.report(&Observation::SegmentUnreadable { reason: "content" });
                }
                at += layout::BLOCK_HEAD + payload.len();
                room = room.saturating_sub(payload.len());
                if room == 0 {
                    more = true;
                    break;
                }
            }
            let reached = Cursor { segment: header.number, position: at as u64 };
            shipped.runs += Self::commit(&self.observer, &self.settings, batch, &[(header.epoch, reached)])?;
            if !more {
                break;
            }
        }
        if let Some(offset) = torn {
            self.observer.report(&Observation::SegmentTorn { segment: header.number.into(), offset });
        }
        Ok(Some(shipped))
    }
}
