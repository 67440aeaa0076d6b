//! What recording and shipping cost: figures for docs/performance.md, run by hand.
//! `cargo test --release --test runs_figures -- --ignored --nocapture --test-threads=1`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod postgres_server;
use postgres_server::Server;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull};
use tailrace_dataplane::runs::embedded::Embedded;
use tailrace_dataplane::runs::ship::{ShipSettings, Shipper};
use tailrace_dataplane::runs::store::Store;
use tailrace_dataplane::runs::{Client, Destination, Names, QueryNames, Run, Spool};

fn names() -> Arc<Names> {
    let query = |n: u32| QueryNames { name: format!("query_{n}").into(), version: format!("{n:016x}").into(), connection: "orders".into() };
    Arc::new(Names { queries: (0..20).map(query).collect(), keys: (0..100).map(|n| format!("retail/key-{n}").into()).collect() })
}

fn run(names: &Arc<Names>, n: u64) -> Run<'_> {
    Run {
        names,
        query: Some((n % 20) as u32),
        key: Some((n % 100) as u32),
        time_us: 1_700_000_000_000_000 + n * 12,
        duration_us: 300 + n % 50,
        queue_us: 10,
        database_us: 150,
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

/// CPU of this process's threads whose name begins so, µs.
fn cpu_us(name: &str) -> f64 {
    let mut total = 0.0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if comm.trim_end().starts_with(name) {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            total += stat.split(' ').next().unwrap().parse::<f64>().unwrap_or(0.0) / 1e3;
        }
    }
    total
}

#[test]
#[ignore = "a measurement"]
fn append_and_commit() {
    let data = folder();
    let spool = Spool::open(data.path()).unwrap();
    spool.configure(1 << 30, OnFull::Reject, Durability::Process);
    let names = names();
    let handle = std::thread::Builder::new().name("bench-recorder".into()).spawn({
        let spool = spool.clone();
        move || {
            let mut recorder = spool.recorder().unwrap();
            for a_turn in [1, 16, 64, 256] {
                let turns = 1_000_000 / a_turn / 2;
                let (began, before) = (Instant::now(), cpu_us("bench-recorder"));
                let (mut appending, mut n) = (Duration::ZERO, 0);
                for turn in 0..turns {
                    let sampled = turn % 64 == 0;
                    let start = sampled.then(Instant::now);
                    for _ in 0..a_turn {
                        recorder.append(&run(&names, n));
                        n += 1;
                    }
                    if let Some(start) = start {
                        appending += start.elapsed();
                    }
                    recorder.commit().unwrap();
                }
                let each = |us: f64| us / n as f64;
                println!(
                    "{a_turn} calls a turn: {:.3} µs CPU a call ({:.3} wall), of which append {:.3}; {:.2} µs a turn",
                    each(cpu_us("bench-recorder") - before),
                    each(began.elapsed().as_secs_f64() * 1e6),
                    appending.as_secs_f64() * 1e6 / (n as f64 / 64.0),
                    (cpu_us("bench-recorder") - before) / turns as f64,
                );
            }
        }
    });
    handle.unwrap().join().unwrap();
    println!("keeper: {:.1} ms CPU in all", cpu_us("spool-keeper") / 1e3);
}

/// Ships 600,000 runs at about 60,000 a second, as a busy core would make them.
fn ship(what: &str, data: &Path, to: Destination, size: impl FnOnce() -> u64) {
    let spool = Spool::open(data).unwrap();
    spool.configure(1 << 30, OnFull::Reject, Durability::Process);
    assert!(spool.ship_to(to));
    let shipper = Shipper::start(spool.clone(), Observer::silent(), ShipSettings::default()).unwrap();
    let names = names();
    let total = 600_000;
    let mut recorders = [spool.recorder().unwrap(), spool.recorder().unwrap()];
    let began = Instant::now();
    let mut n = 0;
    while n < total {
        for recorder in &mut recorders {
            for _ in 0..64 {
                recorder.append(&run(&names, n));
                n += 1;
            }
            recorder.commit().unwrap();
        }
        let due = Duration::from_secs_f64(n as f64 / 60_000.0);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    drop(recorders);
    while !spool.is_drained() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (cpu, keeper) = (cpu_us("run-shipper"), cpu_us("spool-keeper"));
    println!(
        "{what}: {:.2} µs CPU a run shipped, {:.3} µs keeper, {:.1} bytes a run, {:.1} s",
        cpu / total as f64,
        keeper / total as f64,
        size() as f64 / total as f64,
        began.elapsed().as_secs_f64()
    );
    shipper.drain(Duration::from_secs(10));
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::var_os("TAILRACE_TEST_FOLDER").unwrap_or("/var/tmp".into())).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn ship_embedded() {
    for (what, ddl) in [("embedded", ""), ("embedded without its index", "DROP INDEX runs_by_time")] {
        let data = folder();
        let store = data.path().join("runs.sqlite");
        Embedded::new(&store).cursor(0).unwrap();
        rusqlite::Connection::open(&store).unwrap().execute_batch(ddl).unwrap();
        ship(what, data.path(), Destination::Embedded(store.clone()), || std::fs::metadata(&store).unwrap().len());
    }
}

#[test]
#[ignore = "a measurement"]
fn ship_postgres() {
    let server = Server::start();
    let data = folder();
    let url = data.path().join("url");
    std::fs::write(&url, server.url()).unwrap();
    let cpu = || server.cpu_seconds();
    let before = cpu();
    ship("postgres", data.path(), Destination::Postgres(url), || {
        println!("postgres: {:.2} µs CPU a run in the server", (cpu() - before) * 1e6 / 600_000.0);
        server.psql("SELECT pg_total_relation_size('tailrace.runs')").parse().unwrap()
    });
}
