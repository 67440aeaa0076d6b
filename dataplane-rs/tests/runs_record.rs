//! The recorder as its thread uses it, and what it leaves in the spool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailrace_dataplane::codes::Code;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull};
use tailrace_dataplane::runs::layout::{self, Entry, Header, Kind};
use tailrace_dataplane::runs::{Client, Close, Names, Open, QueryNames, Recorder, Run, RunId, ServedBy, Spool, SpoolError, spool};

fn names() -> Arc<Names> {
    let query = |n: u32| QueryNames { name: format!("query_{n}").into(), version: format!("{n:016x}").into(), connection: "orders".into() };
    Arc::new(Names { queries: (0..20).map(query).collect(), keys: (0..100).map(|n| format!("retail/key-{n}").into()).collect() })
}

fn run(names: &Arc<Names>, n: u64) -> Run<'_> {
    Run {
        names,
        query: Some((n % 20) as u32),
        key: Some((n % 100) as u32),
        time_us: 1_700_000_000_000_000 + n,
        duration_us: n,
        queue_us: 1,
        database_us: 2,
        status: 200,
        code: None,
        rows: 1,
        bytes: 100,
        batch: 1,
        trace: None,
        client: Client::Loopback,
        params: None,
    }
}

/// A directory's segments. The spare one, which holds nothing, comes and goes beside the test.
fn segments(directory: &std::path::Path) -> Vec<(Header, Vec<u8>)> {
    let files = spool::segment_files(directory).unwrap().into_iter();
    let contents = files.filter_map(|path| std::fs::read(path).ok()).filter(|bytes| bytes.iter().any(|byte| *byte != 0));
    contents.map(|bytes| (Header::decode(&bytes).unwrap(), bytes)).collect()
}

/// Sequences of all records in a directory's segments, in order of the files, as a reader sees them.
fn read(directory: &std::path::Path) -> Vec<(u64, Kind, u64)> {
    let mut found = Vec::new();
    for (header, bytes) in segments(directory) {
        let mut at = layout::HEADER;
        while let Some(payload) = layout::block(&bytes[at..], header.salt, at as u64).unwrap() {
            for entry in layout::entries(payload) {
                if let Entry::Record(record) = entry.unwrap() {
                    found.push((header.epoch, record.kind, record.sequence));
                }
            }
            at += layout::BLOCK_HEAD + payload.len();
        }
    }
    found
}

fn sequences(recorder: &mut Recorder, names: &Arc<Names>, count: u64) -> Vec<RunId> {
    (0..count).map(|n| recorder.append(&run(names, n))).collect()
}

#[test]
fn what_is_committed_is_in_the_file_and_nothing_else() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    assert_eq!(recorder.next_id().sequence, 1);
    let ids = sequences(&mut recorder, &names, 64);
    assert_eq!(ids.iter().map(|id| id.sequence).collect::<Vec<_>>(), (1..=64).collect::<Vec<_>>());
    assert_eq!(read(&data.path().join("spool")), []);
    recorder.commit().unwrap();
    assert_eq!(recorder.recorded(), 64);
    let epoch = ids[0].epoch;
    assert_eq!(read(&data.path().join("spool")), (1..=64).map(|n| (epoch, Kind::Run, n)).collect::<Vec<_>>());
}

#[test]
fn many_segments_hold_every_record_once_and_each_defines_its_own_names() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(64 << 20, OnFull::Reject, Durability::Process);
    let mut recorder = spool.recorder().unwrap();
    let old = names();
    for turn in 0..4_000 {
        // Each snapshot swap brings other names; calls admitted by the older ones still end.
        let fresh = names();
        for n in 0..64 {
            recorder.append(&run(if n % 3 == 0 { &old } else { &fresh }, turn * 64 + n));
        }
        recorder.commit().unwrap();
    }
    drop(recorder);
    let found = read(&data.path().join("spool"));
    assert!(found.iter().map(|f| f.2).eq(1..=256_000), "{} found", found.len());
    let segments = segments(&data.path().join("spool"));
    assert!(segments.len() >= 2, "{}", segments.len());
    for (header, bytes) in segments {
        let (mut queries, mut texts, mut at) = (std::collections::HashMap::new(), std::collections::HashMap::new(), layout::HEADER);
        while let Some(payload) = layout::block(&bytes[at..], header.salt, at as u64).unwrap() {
            for entry in layout::entries(payload) {
                match entry.unwrap() {
                    Entry::Query { id, name, .. } => drop(queries.insert(id, name.to_owned())),
                    Entry::Text { id, text } => drop(texts.insert(id, text.to_owned())),
                    Entry::Record(r) => {
                        assert_eq!(queries[&r.query], format!("query_{}", r.duration_us % 20));
                        assert_eq!(texts[&r.key], format!("retail/key-{}", r.duration_us % 100));
                    }
                }
            }
            at += layout::BLOCK_HEAD + payload.len();
        }
    }
}

#[test]
fn a_second_start_on_one_directory_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    assert!(matches!(Spool::open(data.path()), Err(SpoolError::Locked)));
    drop(spool);
}

#[test]
fn a_full_spool_rejects_and_draws_the_same_sequences_again() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(1 << 20, OnFull::Reject, Durability::Process);
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    let mut last = 0;
    while recorder.commit().is_ok() {
        last = recorder.recorded();
        sequences(&mut recorder, &names, 1000);
        assert!(last < 1_000_000, "the bound doesn't hold");
    }
    assert!(recorder.is_full());
    assert!(recorder.recorded() >= last);
    assert_eq!(recorder.next_id().sequence, recorder.recorded() + 1);
    let found = read(&data.path().join("spool"));
    assert!(found.iter().map(|f| f.2).eq(1..=recorder.recorded()), "{} found, {} recorded", found.len(), recorder.recorded());
    assert!(spool.status().bytes <= 1 << 20);
}

#[test]
fn a_full_spool_may_drop_instead_and_counts_it() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(1 << 20, OnFull::Drop, Durability::Process);
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    for _ in 0..100 {
        sequences(&mut recorder, &names, 1000);
        recorder.commit().unwrap();
    }
    assert_eq!(recorder.next_id().sequence, 100_001);
    assert_eq!(spool.status().dropped + read(&data.path().join("spool")).len() as u64, 100_000);
    assert!(spool.status().dropped > 0);
}

#[test]
fn streams_are_opened_and_closed_under_one_id() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    let open = Open {
        names: &names,
        query: Some(1),
        key: Some(2),
        time_us: 5,
        status: 200,
        trace: Some([7; 16]),
        client: Client::Private,
        served_by: ServedBy::DataPlane,
        params: Some("{\"a\":1}"),
    };
    let id = recorder.open(&open);
    recorder.commit().unwrap();
    recorder.append(&run(&names, 1));
    let close = Close {
        time_us: 9,
        duration_us: 4,
        queue_us: 0,
        database_us: 3,
        status: 499,
        code: Code::ClientClosed.name(),
        rows: 10,
        bytes: 1000,
        forwarded: None,
    };
    recorder.close(id, &close);
    recorder.commit().unwrap();
    let epoch = id.epoch;
    let expected = vec![(epoch, Kind::Open, 1), (epoch, Kind::Run, 2), (epoch, Kind::Close, 1)];
    assert_eq!(read(&data.path().join("spool")), expected);
}

#[tokio::test(flavor = "current_thread")]
async fn the_disk_has_every_commit_soon() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let mut recorder = spool.recorder().unwrap();
    let mut synced = recorder.synced();
    for _ in 0..3 {
        sequences(&mut recorder, &names(), 10);
        recorder.commit().unwrap();
        let wanted = recorder.commit_number();
        synced.wait_for(|done| *done >= wanted).await.unwrap();
        assert_eq!(spool.status().unsynced_bytes, 0);
    }
}

#[test]
fn epochs_of_one_moment_differ() {
    let data = tempfile::tempdir().unwrap();
    let spool = Spool::open(data.path()).unwrap();
    let recorders: Vec<_> = (0..20).map(|_| spool.recorder().unwrap()).collect();
    let epochs: std::collections::HashSet<_> = recorders.iter().map(|r| r.next_id().epoch).collect();
    assert_eq!(epochs.len(), 20);
    assert!(epochs.iter().all(|e| *e < 1 << 63));
}

#[test]
fn client_classes() {
    let class = |text: &str| Client::of(text.parse::<IpAddr>().unwrap());
    for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(class(text), Client::Loopback, "{text}");
    }
    for text in
        ["10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.1.1", "100.64.0.1", "100.127.0.1", "fd00::1", "fe80::1"]
    {
        assert_eq!(class(text), Client::Private, "{text}");
    }
    for text in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.2.1", "2001:db8::1", "::ffff:8.8.8.8"] {
        assert_eq!(class(text), Client::Public, "{text}");
    }
    assert_eq!(Client::of(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), Client::Public);
}
