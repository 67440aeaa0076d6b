//! From the spool to the embedded store: exact whatever dies, whenever.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod runs_support;
use proptest::prelude::*;
use runs_support::{child_until, fast, names, open, reopen, rounds, run, ship, whole_store};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull};
use tailrace_dataplane::runs::layout::{self, Header};
use tailrace_dataplane::runs::ship::{ShipSettings, Shipper};
use tailrace_dataplane::runs::{Destination, Spool, spool};

fn start(data: &Path, spool: &Arc<Spool>, settings: ShipSettings) -> (Shipper, Arc<Observer>) {
    ship(spool, Destination::Embedded(data.join("runs.sqlite")), settings)
}

/// Restarts on the directory, as after a kill, and ships everything.
fn recover(data: &Path) -> Arc<Observer> {
    let spool = reopen(data);
    let (shipper, observer) = start(data, &spool, ShipSettings::default());
    let left = shipper.drain(Duration::from_secs(rounds(300, 3_000)));
    assert_eq!((left.runs, left.segments), (0, 0));
    observer
}

fn stored(data: &Path) -> BTreeMap<u64, (u64, u64)> {
    let store = whole_store(&data.join("runs.sqlite"));
    let mut statement = store.prepare("SELECT epoch, count(*), max(seq) FROM runs GROUP BY epoch").unwrap();
    let rows =
        statement.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, (row.get::<_, i64>(1)? as u64, row.get::<_, i64>(2)? as u64))));
    rows.unwrap().map(Result::unwrap).collect()
}

/// Every stored run says what its sequence implies, or is a stream's.
fn check_content(data: &Path) -> HashMap<String, u64> {
    let store = whole_store(&data.join("runs.sqlite"));
    let wrong: i64 = store
        .query_row(
            "SELECT count(*) FROM runs r JOIN names q ON q.id = query JOIN names v ON v.id = query_version JOIN names k ON k.id = key
             JOIN names n ON n.id = connection WHERE served_by = 0 AND (bytes <> 3 * seq OR q.name <> 'query_' || (seq % 5)
             OR v.name <> printf('%016x', seq % 5) OR k.name <> 'retail/key-' || (seq % 7) OR n.name <> 'orders'
             OR (trace IS NULL) <> (seq % 11 <> 0) OR (params IS NULL) <> (seq % 13 <> 0))",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(wrong, 0, "stored runs that say something else than what was recorded");
    assert_eq!(store.query_row("SELECT count(*) FROM open_runs", [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    let mut statement = store
        .prepare(
            "SELECT c.name, q.name, k.name, bytes, count(*) FROM runs JOIN names c ON c.id = code JOIN names q ON q.id = query
                  JOIN names k ON k.id = key WHERE served_by = 2 GROUP BY 1, 2, 3, 4",
        )
        .unwrap();
    let rows = statement.query_map([], |row| {
        let text = |n: usize| row.get::<_, String>(n);
        Ok((format!("{}|{}|{}|{}", text(0)?, text(1)?, text(2)?, row.get::<_, i64>(3)?), row.get::<_, i64>(4)? as u64))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

fn check(data: &Path, acknowledged: &HashMap<u64, u64>, what: &str) {
    let stored = stored(data);
    for (epoch, (count, highest)) in &stored {
        assert_eq!(count, highest, "{what}: epoch {epoch} has gaps");
    }
    for (epoch, sequence) in acknowledged {
        let (_, highest) = stored.get(epoch).copied().unwrap_or_default();
        assert!(highest >= *sequence, "{what}: epoch {epoch} acknowledged {sequence}, stored {highest}");
    }
    for (kind, count) in check_content(data) {
        assert!(kind == "|late|retail/key-9|40" || kind == "aborted|||0", "{what}: {kind} × {count}");
    }
}

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn child() {
    runs_support::child(|data| Destination::Embedded(data.join("runs.sqlite")));
}

#[test]
fn killed_at_each_step_nothing_is_lost_or_doubled() {
    // Two lives on one directory: the second dies in the replay of what the first left, or while it ships its own.
    let steps = ["Begun:1", "Begun:2", "Inserted:1", "Inserted:3", "CursorSet:2", "Committed:1", "Committed:4", "Freed:1", "Freed:2"];
    for (n, step) in steps.iter().chain(&["Replayed:1", "Aborted:1"]).enumerate() {
        if n % 3 != 0 && rounds(0, 1) == 0 {
            continue;
        }
        let data = tempfile::tempdir().unwrap();
        let mut acknowledged = HashMap::new();
        for life in 0..3 {
            let own = if life == 0 { None } else { Some(*step) };
            let (more, died) = child_until(data.path(), own, &[], Duration::from_millis(if life == 0 { 250 } else { 30_000 }));
            assert!(died || life == 0, "{step} was never reached");
            acknowledged.extend(more);
        }
        assert!(acknowledged.values().sum::<u64>() > 1_000);
        recover(data.path());
        check(data.path(), &acknowledged, step);
    }
}

#[test]
fn killed_at_random_nothing_is_lost_or_doubled() {
    let data = tempfile::tempdir().unwrap();
    let mut acknowledged = HashMap::new();
    for round in 0..rounds(5, 50) {
        let (more, _) = child_until(data.path(), None, &[], Duration::from_millis(120 + round * 37 % 200));
        acknowledged.extend(more);
    }
    recover(data.path());
    assert!(acknowledged.len() as u64 >= rounds(5, 50));
    check(data.path(), &acknowledged, "at random");
}

#[test]
fn live_segments_are_shipped_freed_and_drained() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(2 << 20, OnFull::Reject, Durability::Process);
    let (shipper, observer) = start(data.path(), &spool, fast());
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    // Four times what the bound holds: only freeing makes room.
    while recorder.recorded() < 120_000 {
        if recorder.is_full() {
            std::thread::yield_now();
            continue;
        }
        for _ in 0..64 {
            recorder.append(&run(&names, recorder.next_id().sequence));
        }
        recorder.commit().unwrap();
    }
    let (epoch, recorded) = (recorder.next_id().epoch, recorder.recorded());
    drop(recorder);
    let left = shipper.drain(Duration::from_secs(60));
    assert_eq!((left.runs, left.segments), (0, 0));
    assert_eq!(stored(data.path()), BTreeMap::from([(epoch, (recorded, recorded))]));
    assert_eq!(observer.ship.shipped.load(Ordering::Relaxed), recorded);
    assert!(check_content(data.path()).is_empty());
    assert!(spool::segment_files(&data.path().join("spool")).unwrap().is_empty());
}

#[test]
fn a_locked_store_delays_but_loses_nothing() {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("runs.sqlite")).unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let (shipper, observer) = start(data.path(), &spool, fast());
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    for _ in 0..500 {
        recorder.append(&run(&names, recorder.next_id().sequence));
    }
    recorder.commit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while observer.ship.failures.load(Ordering::Relaxed) < 2 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert!(observer.ship.failing.load(Ordering::Relaxed));
    // Then a file that is no database.
    std::fs::remove_dir(data.path().join("runs.sqlite")).unwrap();
    std::fs::write(data.path().join("runs.sqlite"), "x".repeat(5000)).unwrap();
    let failures = observer.ship.failures.load(Ordering::Relaxed);
    while observer.ship.failures.load(Ordering::Relaxed) < failures + 2 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    std::fs::remove_file(data.path().join("runs.sqlite")).unwrap();
    let epoch = recorder.next_id().epoch;
    drop(recorder);
    assert_eq!(shipper.drain(Duration::from_secs(60)).runs, 0);
    assert_eq!(stored(data.path()), BTreeMap::from([(epoch, (500, 500))]));
}

#[test]
fn what_a_drain_leaves_is_said_and_shipped_by_the_next_life() {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("runs.sqlite")).unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let (shipper, _) = start(data.path(), &spool, fast());
    let mut recorder = spool.recorder().unwrap();
    let epoch = recorder.next_id().epoch;
    let names = names();
    for _ in 0..10 {
        recorder.append(&run(&names, recorder.next_id().sequence));
    }
    recorder.open(&open(&names));
    recorder.commit().unwrap();
    drop(recorder);
    assert_eq!(shipper.drain(Duration::from_millis(50)).runs, 11);
    drop(spool);
    std::fs::remove_dir(data.path().join("runs.sqlite")).unwrap();
    let observer = recover(data.path());
    assert_eq!(observer.ship.aborted.load(Ordering::Relaxed), 1);
    assert_eq!(stored(data.path()), BTreeMap::from([(epoch, (11, 11))]));
    check(data.path(), &HashMap::new(), "left");
}

/// A directory with one former segment of `turns` blocks; its bytes and the end of each block with the sequence recorded there.
fn segment(turns: u64) -> (Vec<u8>, String, Vec<(u64, u64)>) {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(1 << 20, OnFull::Reject, Durability::Process);
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    let mut ends = Vec::new();
    for turn in 0..turns {
        for _ in 0..=turn {
            recorder.append(&run(&names, recorder.next_id().sequence));
        }
        recorder.commit().unwrap();
        let path = spool::segment_files(&data.path().join("spool")).unwrap().remove(0);
        let bytes = std::fs::read(path).unwrap();
        let header = Header::decode(&bytes).unwrap();
        let mut end = layout::HEADER;
        while let Some(payload) = layout::block(&bytes[end..], header.salt, end as u64).unwrap() {
            end += layout::BLOCK_HEAD + payload.len();
        }
        ends.push((end as u64, recorder.recorded()));
    }
    let path = spool::segment_files(&data.path().join("spool")).unwrap().remove(0);
    let bytes = std::fs::read(&path).unwrap();
    (bytes, path.file_name().unwrap().to_str().unwrap().to_owned(), ends)
}

fn replay(file: &str, bytes: &[u8]) -> (u64, u64) {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("spool")).unwrap();
    std::fs::write(data.path().join("spool").join(file), bytes).unwrap();
    recover(data.path());
    check_content(data.path());
    stored(data.path()).values().next().copied().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(12, 400) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut anywhere, or with one byte changed behind the header: what is before the damage is stored, nothing else.
    #[test]
    fn a_torn_tail_loses_only_what_is_torn(turns in 1u64..8, at in 0.0f64..1.0, flip in any::<Option<std::num::NonZeroU8>>()) {
        let (mut bytes, file, ends) = segment(turns);
        let used = ends.last().unwrap().0 as usize;
        let at = 64 + ((used - 64) as f64 * at) as usize;
        match flip {
            Some(flip) => bytes[at] ^= flip.get(),
            None => bytes.truncate(at),
        }
        let whole = ends.iter().take_while(|(end, _)| *end as usize <= at).last().map_or(0, |(_, sequence)| *sequence);
        prop_assert_eq!(replay(&file, &bytes), (whole, whole));
    }
}

#[test]
fn what_is_no_segment_is_kept_aside() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("spool");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("0000000000000001-00000000.seg"), b"something else").unwrap();
    std::fs::write(folder.join("0000000000000002-00000000.seg"), [0; 4096]).unwrap();
    std::fs::write(folder.join("0000000000000003-00000000.seg"), []).unwrap();
    recover(data.path());
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["0000000000000001-00000000.bad"]);
}
