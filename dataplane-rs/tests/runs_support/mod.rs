//! What the tests of both stores record, and the children that do: this test binary itself, told what to do by the environment;
//! they print what they would have answered, and are killed.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull};
use tailrace_dataplane::runs::block;
use tailrace_dataplane::runs::ship::{ShipSettings, Shipper, Step};
use tailrace_dataplane::runs::{Client, Close, Destination, Forwarded, Names, Open, QueryNames, Recorder, Run, RunId, ServedBy, Spool};

const DIR: &str = "TAILRACE_TEST_DIR";
const STEP: &str = "TAILRACE_TEST_STEP";

pub fn names() -> Arc<Names> {
    let query = |n: u32| QueryNames { name: format!("query_{n}").into(), version: format!("{n:016x}").into(), connection: "orders".into() };
    Arc::new(Names { queries: (0..5).map(query).collect(), keys: (0..7).map(|n| format!("retail/key-{n}").into()).collect() })
}

/// A run that says its own sequence in `bytes`, so that what is stored can be checked.
pub fn run(names: &Arc<Names>, sequence: u64) -> Run<'_> {
    Run {
        names,
        query: Some((sequence % 5) as u32),
        key: Some((sequence % 7) as u32),
        time_us: 1_700_000_000_000_000 + sequence,
        duration_us: 3,
        queue_us: 1,
        database_us: 2,
        status: 200,
        code: None,
        rows: 1,
        bytes: sequence * 3,
        batch: 1,
        trace: sequence.is_multiple_of(11).then_some([9; 16]),
        client: Client::Loopback,
        params: sequence.is_multiple_of(13).then_some("{\"id\":1}"),
    }
}

pub fn open(names: &Arc<Names>) -> Open<'_> {
    let served_by = ServedBy::Forwarded;
    Open { names, query: None, key: None, time_us: 77, status: 0, trace: None, client: Client::Public, served_by, params: None }
}

pub fn close() -> Close<'static> {
    let forwarded = Some(Forwarded { query: "late", version: "00000000000000ff", connection: "c", key: "retail/key-9" });
    Close { time_us: 99, duration_us: 22, queue_us: 0, database_us: 5, status: 200, code: "", rows: 4, bytes: 40, forwarded }
}

pub fn fast() -> ShipSettings {
    ShipSettings { interval: Duration::from_millis(3), batch_bytes: 64 << 10, hook: None }
}

pub fn ship(spool: &Arc<Spool>, to: Destination, settings: ShipSettings) -> (Shipper, Arc<Observer>) {
    let observer = Observer::silent();
    assert!(spool.ship_to(to));
    (Shipper::start(spool.clone(), observer.clone(), settings).unwrap(), observer)
}

/// The embedded store with every run in `runs`, those of blocks too; a run that is stored twice is there twice.
pub fn whole_store(path: &Path) -> rusqlite::Connection {
    let store = rusqlite::Connection::open(path).unwrap();
    store.execute_batch("CREATE TEMP TABLE runs AS SELECT * FROM main.runs; BEGIN").unwrap();
    let blocks: Vec<_> = store
        .prepare("SELECT epoch, count, keys, queries, body FROM run_blocks")
        .unwrap()
        .query_map([], |row| {
            let blob = |at: usize| row.get::<_, Vec<u8>>(at);
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)? as usize, blob(2)?, blob(3)?, blob(4)?))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut insert = store.prepare("INSERT INTO temp.runs VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,NULL)").unwrap();
    for (epoch, count, keys, queries, body) in blocks {
        for run in block::decode(count, &keys, &queries, &body).unwrap() {
            let [seq, time, duration, queue, database, _, _, status, code, rows, bytes, batch, client, served_by] = run.numbers;
            let [query, version, connection] = run.query;
            let numbers = rusqlite::params![
                epoch, seq, time, duration, queue, database, query, version, run.key, connection, status, code, rows, bytes, batch,
                run.trace, client, served_by
            ];
            insert.execute(numbers).unwrap();
        }
    }
    drop(insert);
    store.execute_batch("COMMIT").unwrap();
    store
}

/// Takes the directory over, as after a kill.
pub fn reopen(data: &Path) -> Arc<Spool> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match Spool::open(data) {
            Ok(spool) => return spool,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("TAILRACE_LONG").is_some() { long } else { short }
}

/// The child: records flat out on two threads and prints `epoch sequence` after each commit.
pub fn child(to: impl FnOnce(&Path) -> Destination) {
    let data = std::path::PathBuf::from(std::env::var_os(DIR).unwrap());
    let mut settings = fast();
    if let Ok(step) = std::env::var(STEP) {
        let (name, count) = step.split_once(':').unwrap();
        let (name, count, seen) = (name.to_owned(), count.parse::<u64>().unwrap(), AtomicU64::new(0));
        settings.hook = Some(Arc::new(move |step: Step| {
            if format!("{step:?}") == name && seen.fetch_add(1, Ordering::SeqCst) + 1 == count {
                std::process::abort();
            }
        }));
    }
    let spool = Spool::open(&data).unwrap();
    spool.configure(16 << 20, OnFull::Reject, Durability::Process);
    let (shipper, _) = ship(&spool, to(&data), settings);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let spool = spool.clone();
            std::thread::spawn(move || record(&mut spool.recorder().unwrap()))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    shipper.drain(Duration::from_secs(60));
    println!("drained");
    // Wait for the kill.
    std::thread::sleep(Duration::from_secs(60));
}

pub fn record(recorder: &mut Recorder) {
    let names = names();
    let mut streams = Vec::<RunId>::new();
    let mut output = std::io::stdout();
    for turn in 0..20_000u64 {
        for _ in 0..turn % 40 {
            recorder.append(&run(&names, recorder.next_id().sequence));
        }
        if turn % 3 == 0 {
            streams.push(recorder.open(&open(&names)));
        }
        if turn % 4 == 0 && streams.len() > 3 {
            recorder.close(streams.remove(0), &close());
        }
        let id = recorder.next_id();
        match recorder.commit() {
            Ok(()) => writeln!(output, "{} {}", id.epoch, recorder.recorded()).unwrap(),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Runs a child until it dies or `life` is over; what it acknowledged: epoch → highest sequence.
pub fn child_until(data: &Path, step: Option<&str>, more: &[(&str, &str)], life: Duration) -> (HashMap<u64, u64>, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIR, data)
        .envs(more.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(step) = step {
        command.env(STEP, step);
    }
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let deadline = Instant::now() + life;
    let mut died = false;
    while Instant::now() < deadline && !died {
        died = child.try_wait().unwrap().is_some();
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    let mut acknowledged = HashMap::new();
    // The last line may be cut.
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        if let Some((epoch, sequence)) = line.trim().split_once(' ')
            && let (Ok(epoch), Ok(sequence)) = (epoch.parse::<u64>(), sequence.parse::<u64>())
        {
            let highest = acknowledged.entry(epoch).or_insert(0);
            *highest = sequence.max(*highest);
        }
    }
    (acknowledged, died)
}
