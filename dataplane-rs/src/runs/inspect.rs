//! `tailrace-dataplane spool-status --data DIR`: what the spool holds, as one JSON object, for `tailrace runs verify`.
//! Reads beside a running data plane: of its live segments it sees what is written so far. Changes nothing.
//! May reject: a directory that can't be read. IO: reads the spool's files.
use super::layout::{self, Entry, HEADER, Header, Kind};
use super::spool::segment_files;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Sequences of one epoch: disjoint ranges, both ends counted.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a sequence; cheap when it follows the one added before.
    fn add(&mut self, sequence: u64) {
        if let Some((_, last)) = self.0.range_mut(..=sequence).next_back() {
            if sequence <= *last {
                return;
            }
            if sequence == *last + 1 {
                *last = sequence;
                return;
            }
        }
        self.0.insert(sequence, sequence);
    }

    fn joined(&self) -> Vec<[u64; 2]> {
        let mut joined: Vec<[u64; 2]> = Vec::new();
        for (first, last) in &self.0 {
            match joined.last_mut() {
                Some([_, end]) if *first <= *end + 1 => *end = (*end).max(*last),
                _ => joined.push([*first, *last]),
            }
        }
        joined
    }
}

/// What the spool of a data directory holds (`tailrace_gateway.runs.verify.SpoolStatus`).
pub fn status(data: &Path) -> io::Result<Value> {
    inventory(&data.join("spool"))
}

/// The same of the spool's own directory.
pub(super) fn inventory(folder: &Path) -> io::Result<Value> {
    let files = match segment_files(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let (mut epochs, mut unreadable, mut segments, mut bytes, mut torn) = (BTreeMap::<u64, Ranges>::new(), Vec::new(), 0, 0, 0);
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "bad") {
                unreadable.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
        }
    }
    for path in files {
        let content = match fs::read(&path) {
            // Shipped and freed while we looked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        segments += 1;
        bytes += content.len() as u64;
        match Header::decode(&content) {
            Ok(header) => torn += u64::from(!read(&content, &header, epochs.entry(header.epoch).or_default())),
            // Being made, or its maker died: nothing is in it.
            Err(_) if content.iter().all(|b| *b == 0) => {}
            Err(_) => unreadable.extend(path.file_name().map(|name| name.to_string_lossy().into_owned())),
        }
    }
    unreadable.sort();
    let epochs: Vec<_> = epochs.iter().map(|(epoch, ranges)| json!({"epoch": epoch, "ranges": ranges.joined()})).collect();
    Ok(json!({"segments": segments, "bytes": bytes, "unreadable": unreadable, "torn": torn, "epochs": epochs}))
}

/// Runs that begin in a segment; 0 when it can't be read.
pub(super) fn runs(path: &Path) -> u64 {
    let Ok(content) = fs::read(path) else { return 0 };
    let mut ranges = Ranges::default();
    if let Ok(header) = Header::decode(&content) {
        read(&content, &header, &mut ranges);
    }
    ranges.joined().iter().map(|[first, last]| last - first + 1).sum()
}

/// Adds the runs of a segment; false when it ends with what is no block.
fn read(content: &[u8], header: &Header, ranges: &mut Ranges) -> bool {
    let mut at = HEADER;
    loop {
        match layout::block(content.get(at..).unwrap_or_default(), header.salt, at as u64) {
            Ok(Some(payload)) => {
                for entry in layout::entries(payload).map_while(Result::ok) {
                    if let Entry::Record(record) = entry
                        && record.kind != Kind::Close
                    {
                        ranges.add(record.sequence);
                    }
                }
                at += layout::BLOCK_HEAD + payload.len();
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_hold_what_was_added(sequences in proptest::collection::vec(1u64..60, 0..80)) {
            let mut ranges = Ranges::default();
            for sequence in &sequences {
                ranges.add(*sequence);
            }
            let joined = ranges.joined();
            let held: BTreeSet<u64> = joined.iter().flat_map(|[first, last]| *first..=*last).collect();
            prop_assert_eq!(held, sequences.into_iter().collect::<BTreeSet<_>>());
            prop_assert!(joined.iter().zip(joined.iter().skip(1)).all(|([_, end], [begin, _])| end + 1 < *begin));
        }
    }
}
