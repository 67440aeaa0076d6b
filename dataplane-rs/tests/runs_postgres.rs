//! From the spool to a PostgreSQL that pods share: exact whichever side dies, whenever.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod postgres_server;
mod runs_support;
use postgres_server::Server;
use runs_support::{child_until, close, fast, names, open, record, reopen, rounds, run, ship};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull};
use tailrace_dataplane::runs::ship::{ShipSettings, Step};
use tailrace_dataplane::runs::{Destination, Spool};

const URL_FILE: &str = "TAILRACE_TEST_URL_FILE";

fn url_file(folder: &Path, url: &str) -> PathBuf {
    let path = folder.join("url");
    std::fs::write(folder.join("url.new"), url).unwrap();
    std::fs::rename(folder.join("url.new"), &path).unwrap();
    path
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Restarts on the directory, as after a kill, and ships everything.
fn recover(data: &Path, url: &Path) -> Arc<Observer> {
    let spool = reopen(data);
    let (shipper, observer) = ship(&spool, Destination::Postgres(url.to_owned()), ShipSettings::default());
    let left = shipper.drain(Duration::from_secs(rounds(300, 3_000)));
    assert_eq!((left.runs, left.segments), (0, 0));
    observer
}

/// Epoch → runs and highest sequence.
fn stored(server: &Server) -> BTreeMap<u64, (u64, u64)> {
    let rows = server.psql("SELECT epoch, count(*), max(seq) FROM tailrace.runs GROUP BY epoch");
    let row = |row: &str| {
        let numbers: Vec<u64> = row.split('|').map(|n| n.parse().unwrap()).collect();
        (numbers[0], (numbers[1], numbers[2]))
    };
    rows.lines().map(row).collect()
}

/// Each epoch is whole and holds what was acknowledged, and every run says what its sequence implies, or is a stream's.
fn check(server: &Server, acknowledged: &HashMap<u64, u64>, what: &str) {
    let stored = stored(server);
    for (epoch, (count, highest)) in &stored {
        assert_eq!(count, highest, "{what}: epoch {epoch} has gaps");
    }
    for (epoch, sequence) in acknowledged {
        let (_, highest) = stored.get(epoch).copied().unwrap_or_default();
        assert!(highest >= *sequence, "{what}: epoch {epoch} acknowledged {sequence}, stored {highest}");
    }
    let wrong =
        "SELECT count(*) FROM tailrace.runs WHERE served_by = 'dataplane' AND NOT (bytes = 3 * seq AND query = 'query_' || (seq % 5)
        AND query_version = lpad(to_hex(seq % 5), 16, '0') AND key = 'retail/key-' || (seq % 7) AND connection = 'orders' AND code = ''
        AND time = to_timestamp(0) + (1700000000000000 + seq) * interval '1 microsecond' AND duration_us = 3 AND queue_us = 1
        AND database_us = 2 AND rows = 1 AND batch = 1 AND status = 200 AND client = 'loopback'
        AND (trace IS NULL) = (seq % 11 <> 0) AND (params IS NULL) = (seq % 13 <> 0)
        AND coalesce(encode(trace, 'hex'), repeat('09', 16)) = repeat('09', 16) AND coalesce(params, '{\"id\":1}') = '{\"id\":1}')";
    assert_eq!(server.psql(wrong), "0", "{what}: stored runs that say something else than what was recorded");
    assert_eq!(server.psql("SELECT count(*) FROM tailrace.open_runs"), "0", "{what}");
    let streams = "SELECT DISTINCT code, query, query_version, key, connection, bytes, duration_us, client, status FROM tailrace.runs
        WHERE served_by = 'forwarded'";
    for kind in server.psql(streams).lines() {
        let known = ["|late|00000000000000ff|retail/key-9|c|40|22|public|200", "aborted|||||0|0|public|0"];
        assert!(known.contains(&kind), "{what}: {kind}");
    }
}

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn child() {
    let url = PathBuf::from(std::env::var_os(URL_FILE).unwrap());
    runs_support::child(|_| Destination::Postgres(url));
}

#[test]
fn killed_at_each_step_nothing_is_lost_or_doubled() {
    let server = Server::start();
    let steps = ["Begun:2", "Inserted:1", "Inserted:3", "CursorSet:2", "Committed:1", "Committed:4", "Freed:1", "Replayed:1", "Aborted:1"];
    for (n, step) in steps.iter().enumerate() {
        if n % 2 != 0 && rounds(0, 1) == 0 {
            continue;
        }
        let data = tempfile::tempdir().unwrap();
        let url = url_file(data.path(), &server.url());
        let mut acknowledged = HashMap::new();
        for life in 0..3 {
            let own = if life == 0 { None } else { Some(*step) };
            let environment = [(URL_FILE, url.to_str().unwrap())];
            let life_time = Duration::from_millis(if life == 0 { 250 } else { 60_000 });
            let (more, died) = child_until(data.path(), own, &environment, life_time);
            assert!(died || life == 0, "{step} was never reached");
            acknowledged.extend(more);
        }
        assert!(acknowledged.values().sum::<u64>() > 1_000);
        recover(data.path(), &url);
        check(&server, &acknowledged, step);
    }
}

#[test]
fn killed_at_random_nothing_is_lost_or_doubled() {
    let server = Server::start();
    let data = tempfile::tempdir().unwrap();
    let url = url_file(data.path(), &server.url());
    let mut acknowledged = HashMap::new();
    for round in 0..rounds(5, 50) {
        let environment = [(URL_FILE, url.to_str().unwrap())];
        let (more, _) = child_until(data.path(), None, &environment, Duration::from_millis(150 + round * 37 % 300));
        acknowledged.extend(more);
    }
    recover(data.path(), &url);
    assert!(acknowledged.len() as u64 >= rounds(5, 50));
    check(&server, &acknowledged, "at random");
}

/// The server is killed with all its processes while rows are on their way, between the last of them and the commit, and at random.
#[test]
fn a_server_that_dies_delays_but_loses_nothing() {
    let server = Arc::new(Mutex::new(Server::start()));
    let data = tempfile::tempdir().unwrap();
    let url = url_file(data.path(), &server.lock().unwrap().url());
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(64 << 20, OnFull::Reject, Durability::Process);
    let (steps, deaths) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let mut settings = fast();
    settings.hook = Some(Arc::new({
        let (server, deaths) = (server.clone(), deaths.clone());
        move |step: Step| {
            let nth = steps.fetch_add(1, Ordering::Relaxed);
            let dies = match step {
                Step::Begun | Step::Inserted | Step::CursorSet => nth % 7 == 3,
                Step::Committed => nth % 11 == 7,
                _ => false,
            };
            if dies && deaths.load(Ordering::Relaxed) < rounds(6, 60) {
                deaths.fetch_add(1, Ordering::Relaxed);
                let mut server = server.lock().unwrap();
                server.crash();
                server.run(&[]);
            }
        }
    }));
    let (shipper, observer) = ship(&spool, Destination::Postgres(url), settings);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let spool = spool.clone();
            std::thread::spawn(move || {
                let mut recorder = spool.recorder().unwrap();
                record(&mut recorder);
                (recorder.next_id().epoch, recorder.recorded())
            })
        })
        .collect();
    // And from outside, at whatever instant it is, among them that between a commit and its answer.
    for round in 0..rounds(3, 30) {
        let before = observer.ship.shipped.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20 + 13 * (round % 10)));
        {
            let mut server = server.lock().unwrap();
            server.crash();
            server.run(&[]);
        }
        eventually("nothing is shipped after a restart", || observer.ship.shipped.load(Ordering::Relaxed) > before || spool.is_drained());
    }
    let acknowledged: HashMap<u64, u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let left = shipper.drain(Duration::from_secs(120));
    assert_eq!((left.runs, left.segments), (0, 0));
    assert!(observer.ship.failures.load(Ordering::Relaxed) > 0 && deaths.load(Ordering::Relaxed) > 0);
    let server = server.lock().unwrap();
    check(&server, &acknowledged, "server");
    let all: u64 = stored(&server).values().map(|(count, _)| count).sum();
    assert_eq!(all, acknowledged.values().sum::<u64>());
}

/// Pods that find no tables make them together, and none touches what another has open.
#[test]
fn pods_share_a_store() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let url = url_file(folder.path(), &server.url());
    let pods: Vec<_> = (0..4)
        .map(|_| {
            let data = tempfile::tempdir().unwrap();
            let spool = Spool::open(data.path()).unwrap();
            let mut recorder = spool.recorder().unwrap();
            let names = names();
            let stream = recorder.open(&open(&names));
            for _ in 0..100 {
                recorder.append(&run(&names, recorder.next_id().sequence));
            }
            recorder.commit().unwrap();
            (data, spool, recorder, stream)
        })
        .collect();
    let shippers: Vec<_> = pods.iter().map(|(_, spool, ..)| ship(spool, Destination::Postgres(url.clone()), fast())).collect();
    eventually("all is shipped", || pods.iter().all(|(_, spool, ..)| spool.waiting() == 0));
    // One dies with a stream open and comes back; the others' streams go on.
    let mut pods = pods.into_iter().zip(shippers);
    let ((data, spool, recorder, _), (shipper, _)) = pods.next().unwrap();
    drop(shipper);
    // As a kill would: its last segment stays.
    std::mem::forget(recorder);
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("spool")).unwrap();
    for file in std::fs::read_dir(data.path().join("spool")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join("spool").join(file.file_name())).unwrap();
    }
    drop(spool);
    let observer = recover(copy.path(), &url);
    assert_eq!(observer.ship.aborted.load(Ordering::Relaxed), 1);
    assert_eq!(observer.ship.shipped.load(Ordering::Relaxed), 1, "what was there was brought again");
    assert_eq!(server.psql("SELECT count(*) FROM tailrace.open_runs"), "3");
    let mut acknowledged = HashMap::new();
    for ((_data, spool, mut recorder, stream), (shipper, _)) in pods {
        recorder.close(stream, &close());
        recorder.commit().unwrap();
        acknowledged.insert(recorder.next_id().epoch, recorder.recorded());
        drop(recorder);
        assert_eq!(shipper.drain(Duration::from_secs(60)).runs, 0);
        drop(spool);
    }
    check(&server, &acknowledged, "pods");
    assert_eq!(stored(&server).len(), 4);
    assert_eq!(server.psql("SELECT count(*) FILTER (WHERE code = 'aborted'), count(*) FROM tailrace.runs"), "1|404");
}

/// Not a clock: recorders that start together share no prefix of their epochs.
#[test]
fn epochs_are_drawn_at_random() {
    let pods: Vec<_> = (0..8).map(|_| tempfile::tempdir().unwrap()).collect();
    let spools: Vec<_> = pods.iter().map(|data| Spool::open(data.path()).unwrap()).collect();
    spools.iter().for_each(|spool| spool.configure(1 << 20, OnFull::Reject, Durability::Process));
    let epochs: BTreeSet<u64> = spools.iter().flat_map(|spool| (0..16).map(|_| spool.recorder().unwrap().next_id().epoch)).collect();
    assert_eq!(epochs.len(), 128);
    assert!(epochs.iter().all(|epoch| *epoch < 1 << 63));
    let distinct = |shift: u32| epochs.iter().map(|epoch| (epoch >> shift) & 0xffff).collect::<BTreeSet<_>>().len();
    for shift in [0, 16, 32, 47] {
        assert!(distinct(shift) > 100, "bits {shift} and above repeat");
    }
}

fn one_run(data: &Path) -> (Arc<Spool>, u64) {
    let spool = Spool::open(data).unwrap();
    let mut recorder = spool.recorder().unwrap();
    let names = names();
    recorder.append(&run(&names, 1));
    recorder.commit().unwrap();
    let epoch = recorder.next_id().epoch;
    (spool, epoch)
}

/// Has the tables made, and leaves them empty.
fn made(server: &Server) -> (tempfile::TempDir, PathBuf) {
    let data = tempfile::tempdir().unwrap();
    let url = url_file(data.path(), &server.url());
    drop(one_run(data.path()));
    recover(data.path(), &url);
    assert_eq!(server.psql("DELETE FROM tailrace.runs RETURNING seq"), "1");
    (data, url)
}

#[test]
fn a_store_of_another_version_is_refused_and_not_touched() {
    let server = Server::start();
    let (_first, url) = made(&server);
    server.psql("UPDATE tailrace.store SET version = 2; DROP TABLE tailrace.open_runs");
    let data = tempfile::tempdir().unwrap();
    let (spool, epoch) = one_run(data.path());
    let (shipper, observer) = ship(&spool, Destination::Postgres(url), fast());
    eventually("it is refused", || observer.ship.failures.load(Ordering::Relaxed) > 2);
    assert_eq!(server.psql("SELECT count(*) FROM tailrace.runs"), "0");
    assert_eq!(server.psql("SELECT to_regclass('tailrace.open_runs') IS NULL"), "t");
    server.psql("CREATE TABLE tailrace.open_runs (LIKE tailrace.runs INCLUDING ALL); UPDATE tailrace.store SET version = 1");
    assert_eq!(shipper.drain(Duration::from_secs(60)).runs, 0);
    assert_eq!(stored(&server), BTreeMap::from([(epoch, (1, 1))]));
}

#[test]
fn the_url_is_read_anew_and_privileges_are_few() {
    let server = Server::start();
    made(&server);
    server.psql(
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE recorder LOGIN PASSWORD 'new'; GRANT USAGE ON SCHEMA tailrace TO recorder;
         GRANT SELECT ON tailrace.store TO recorder; GRANT SELECT, INSERT ON tailrace.runs TO recorder;
         GRANT SELECT, INSERT, DELETE ON tailrace.open_runs TO recorder; ALTER ROLE recorder SET synchronous_commit = off",
    );
    server.hba("local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    let data = tempfile::tempdir().unwrap();
    let url = |password: &str| format!("postgresql://recorder:{password}@127.0.0.1:{}/postgres?sslmode=disable", server.port);
    let file = url_file(data.path(), &url("old"));
    let (spool, epoch) = one_run(data.path());
    let (shipper, observer) = ship(&spool, Destination::Postgres(file), fast());
    eventually("it is refused", || observer.ship.failures.load(Ordering::Relaxed) > 1);
    url_file(data.path(), &url("new"));
    assert_eq!(shipper.drain(Duration::from_secs(60)).runs, 0);
    assert_eq!(stored(&server), BTreeMap::from([(epoch, (1, 1))]));
}

#[test]
fn what_a_drain_leaves_is_counted_with_what_earlier_processes_left() {
    let data = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let url = url_file(data.path(), &format!("postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable", postgres_server::free_port()));
    for runs in 1..=3 {
        let (spool, _) = one_run(data.path());
        let (shipper, _) = ship(&spool, Destination::Postgres(url.clone()), fast());
        assert_eq!(shipper.drain(Duration::from_millis(50)).runs, runs);
        drop(spool);
    }
}
