//! The SQLite engine against real files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::engine::sqlite::Pool;
use tailrace_dataplane::engine::{Ask, Event, Failure, Idempotency, Write};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::observe::reach::Reach;
use tailrace_dataplane::plan::snapshot::{ColumnPlan, ConnectionPlan, Encoding, Engine, Pooler, StatementPlan};
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

struct Base {
    folder: TempDir,
    pool: Pool,
    reach: Arc<Reach>,
}

impl Base {
    fn new(connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shop.db");
        let connection = Connection::open(&file).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT UNIQUE, tier REAL, photo BLOB);
                 INSERT INTO customers VALUES (1, 'Anna', 1.5, x'00ff'), (2, 'Bö', -0.0, NULL), (3, NULL, 1e300, x'');
                 WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
                 INSERT INTO customers SELECT i, 'name ' || i, i, zeroblob(100) FROM n;
                 CREATE TABLE keys (caller TEXT NOT NULL, key TEXT NOT NULL, query TEXT NOT NULL, arguments TEXT NOT NULL,
                   affected INTEGER NOT NULL, more INTEGER NOT NULL, row_count INTEGER NOT NULL, result BLOB NOT NULL,
                   created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), PRIMARY KEY (caller, key));",
            )
            .unwrap();
        std::fs::write(folder.path().join("url"), format!("sqlite:///{}\n", file.display())).unwrap();
        let reach = Observer::silent().reach("orders");
        let pool = Pool::new(&plan(&folder.path().join("url"), connections), reach.clone());
        Self { folder, pool, reach }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    fn connect(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    async fn ask(&self, ask: Ask) -> Result<(u32, Vec<u8>, u64, bool), Failure> {
        drain(&mut self.pool.submit(ask)).await
    }
}

fn plan(url_file: &Path, connections: u32) -> ConnectionPlan {
    ConnectionPlan {
        name: "orders".into(),
        engine: Engine::Sqlite,
        url_file: url_file.to_str().unwrap().into(),
        ca_file: None,
        certificate_file: None,
        key_file: None,
        max_connections: connections,
        statement_timeout_ms: 1000,
        session: vec![],
        pooler: Pooler::None,
        idempotency_table: Some("keys".into()),
    }
}

async fn drain(events: &mut Receiver<Event>) -> Result<(u32, Vec<u8>, u64, bool), Failure> {
    let (mut count, mut bytes) = (0, Vec::new());
    loop {
        match events.recv().await.expect("a last event") {
            Event::Rows { count: more, bytes: rows } => {
                assert!(more > 0 && rows.len() < 200_000);
                count += more;
                bytes.extend(rows);
            }
            Event::Done { affected, more, repeated, .. } => {
                assert!(events.recv().await.is_none());
                return Ok((count, bytes, affected, more || repeated));
            }
            Event::Failed { failure, .. } => {
                assert!(events.recv().await.is_none());
                return Err(failure);
            }
        }
    }
}

fn column(name: &str) -> ColumnPlan {
    ColumnPlan {
        name: name.into(),
        encoding: Encoding::Storage,
        array: false,
        delimiter: ",".into(),
        type_oid: 0,
        table_oid: 0,
        column_number: 0,
    }
}

fn values(values: &[&[u8]]) -> Vec<u8> {
    values.iter().flat_map(|v| [&(v.len() as i32).to_be_bytes()[..], v].concat()).collect()
}

fn read(sql: &str, columns: &[&str], bound: &[&[u8]]) -> Ask {
    Ask {
        query: 0,
        version: sql.into(),
        statement: Arc::new(StatementPlan { sql: sql.into(), params: vec![], oids: vec![] }),
        columns: columns.iter().map(|name| column(name)).collect(),
        values: values(bound),
        limit: None,
        deadline: Instant::now() + Duration::from_secs(20),
        write: None,
        trace: None,
    }
}

fn write(sql: &str, columns: &[&str], bound: &[&[u8]], key: Option<(&str, &str)>) -> Ask {
    let idempotency = key.map(|(key, arguments)| Idempotency {
        table: "keys".into(),
        caller: "retail/me".into(),
        key: key.into(),
        query: "place".into(),
        arguments: arguments.into(),
    });
    Ask { write: Some(Write { idempotency }), ..read(sql, columns, bound) }
}

/// Reads the most numbers that a statement can count to: runs until it is interrupted.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n";

#[tokio::test(flavor = "current_thread")]
async fn each_storage_class() {
    let base = Base::new(2);
    let sql = "SELECT id, name, tier, photo FROM customers WHERE id = ?1";
    let columns = ["id", "name", "tier", "photo"];
    let (count, bytes, ..) = base.ask(read(sql, &columns, &[b"i1"])).await.unwrap();
    let real = |n: f64| [&b"r"[..], &n.to_be_bytes()].concat();
    assert_eq!((count, bytes), (1, values(&[b"i1", b"tAnna", &real(1.5), b"b\x00\xff"])));
    let (_, bytes, ..) = base.ask(read(sql, &columns, &[b"i3"])).await.unwrap();
    let null = (-1i32).to_be_bytes();
    assert_eq!(bytes, [&values(&[b"i3"])[..], &null, &values(&[&real(1e300), b"b"])].concat());
    assert_eq!(base.ask(read(sql, &columns, &[b"i99999"])).await.unwrap().0, 0);
    let echo = "SELECT ?1 AS a, ?2 AS b, ?3 AS c, ?4 AS d, ?5 AS e";
    let bound = [&values(&[b"i-9223372036854775808", &real(-0.0), "tü\"".as_bytes(), b"bxyz"])[..], &null].concat();
    let mut ask = read(echo, &["a", "b", "c", "d", "e"], &[]);
    ask.values = bound.clone();
    assert_eq!(base.ask(ask).await.unwrap().1, bound);
}

#[tokio::test(flavor = "current_thread")]
async fn what_does_not_fit_is_refused() {
    let base = Base::new(2);
    let failure = async |ask: Ask| base.ask(ask).await.unwrap_err();
    assert_eq!(failure(read("SELECT id FROM customers", &["id", "x"], &[])).await, Failure::Stale);
    assert_eq!(failure(read("SELECT id FROM customers", &["ID"], &[])).await, Failure::Stale);
    assert_eq!(failure(read("SELECT id FROM customers WHERE 0", &["other"], &[])).await, Failure::Stale);
    assert_eq!(failure(read("SELECT ?1 AS a, ?2 AS b", &["a", "b"], &[b"i1"])).await, Failure::Protocol);
    assert_eq!(failure(read("SELECT ?1 AS a", &["a"], &[b"i1", b"i2"])).await, Failure::Refused(*b"00025"));
    assert_eq!(failure(read("SELECT ?1 AS a", &["a"], &[b"x1"])).await, Failure::Protocol);
    assert_eq!(failure(read("SELECT CAST(x'ff' AS TEXT) AS a", &["a"], &[])).await, Failure::Refused(*b"00001"));
    assert_eq!(failure(read("SELECT nothing FROM nowhere", &["nothing"], &[])).await, Failure::Refused(*b"00001"));
    // Whatever the gateway let through: it changes nothing and reaches no other file.
    let other = base.folder.path().join("other.db");
    for sql in [
        "DELETE FROM customers".to_owned(),
        "INSERT INTO customers (id) VALUES (9999)".into(),
        "CREATE TABLE t (x)".into(),
        "PRAGMA query_only = OFF".into(),
        "PRAGMA table_info(customers)".into(),
        "SELECT name FROM pragma_table_info('customers')".into(),
        format!("ATTACH '{}' AS o", other.display()),
        format!("VACUUM INTO '{}'", other.display()),
        "SELECT load_extension('x')".into(),
    ] {
        assert!(matches!(failure(read(&sql, &[], &[])).await, Failure::Refused(_) | Failure::Stale | Failure::Unavailable), "{sql}");
    }
    assert!(!other.exists());
    let count: i64 = base.connect().query_row("SELECT count(*) FROM customers", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 5000);
}

#[tokio::test(flavor = "current_thread")]
async fn a_missing_file_is_unavailable_and_never_created_and_found_when_it_comes() {
    let base = Base::new(2);
    let (file, aside) = (base.file(), base.folder.path().join("aside.db"));
    drop(base.connect().pragma_update(None, "journal_mode", "DELETE"));
    std::fs::rename(&file, &aside).unwrap();
    let ask = || read("SELECT count(*) AS c FROM customers", &["c"], &[]);
    assert_eq!(base.reach.down(), None);
    assert_eq!(base.ask(ask()).await.unwrap_err(), Failure::Unavailable);
    assert_eq!(base.reach.down(), Some("unreachable"));
    assert_eq!(base.ask(write("DELETE FROM customers", &[], &[], None)).await.unwrap_err(), Failure::Unavailable);
    assert!(!file.exists());
    std::fs::write(&file, "this is not a database, but it is long enough to be read as one".repeat(20)).unwrap();
    assert_eq!(base.ask(ask()).await.unwrap_err(), Failure::Unavailable);
    std::fs::rename(&aside, &file).unwrap();
    assert_eq!(base.ask(ask()).await.unwrap().1, values(&[b"i5000"]));
    assert_eq!(base.reach.down(), None);
    // Another file in its place is noticed.
    let next = base.folder.path().join("next.db");
    Connection::open(&next).unwrap().execute_batch("CREATE TABLE customers (id); INSERT INTO customers VALUES (1)").unwrap();
    std::fs::rename(&next, &file).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while base.ask(ask()).await.unwrap().1 != values(&[b"i1"]) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn limits_and_large_results() {
    let base = Base::new(2);
    let sql = "SELECT id, photo FROM customers ORDER BY id";
    let (count, bytes, _, more) = base.ask(read(sql, &["id", "photo"], &[])).await.unwrap();
    assert_eq!((count, more), (5000, false));
    assert!(bytes.len() > 500_000);
    for (limit, seen, more) in [(0, 0, true), (1, 1, true), (5000, 5000, true), (5001, 5000, false)] {
        let ask = Ask { limit: Some(limit), ..read(sql, &["id", "photo"], &[]) };
        let answer = base.ask(ask).await.unwrap();
        assert_eq!((answer.0, answer.3), (seen, more), "{limit}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn deadlines_and_leaving_interrupt() {
    let base = Base::new(1);
    let soon = Instant::now() + Duration::from_millis(50);
    assert_eq!(base.ask(Ask { deadline: soon, ..read(ENDLESS, &["c"], &[]) }).await.unwrap_err(), Failure::Timeout);
    // One connection, held by a statement that never ends: the next waits until its deadline.
    let held = base.pool.submit(read(ENDLESS, &["c"], &[]));
    let soon = Instant::now() + Duration::from_millis(50);
    let quick = || read("SELECT 1 AS a", &["a"], &[]);
    assert_eq!(base.ask(Ask { deadline: soon, ..quick() }).await.unwrap_err(), Failure::PoolFull);
    // The holder leaves: the connection is free at once, long before its deadline.
    drop(held);
    assert_eq!(base.ask(quick()).await.unwrap().1, values(&[b"i1"]));
    // A caller who takes no rows holds memory and the connection only until its deadline.
    let slow = Ask {
        deadline: Instant::now() + Duration::from_millis(100),
        ..read("SELECT a.photo FROM customers a, customers b", &["photo"], &[])
    };
    let mut events = base.pool.submit(slow);
    assert_eq!(base.ask(quick()).await.unwrap().1, values(&[b"i1"]));
    assert_eq!(drain(&mut events).await.unwrap_err(), Failure::Timeout);
}

#[tokio::test(flavor = "current_thread")]
async fn the_queue_is_bounded() {
    let base = Base::new(1);
    let mut held: Vec<_> = (0..70).map(|_| base.pool.submit(read(ENDLESS, &["c"], &[]))).collect();
    let mut last = held.pop().unwrap();
    assert_eq!(drain(&mut last).await.unwrap_err(), Failure::PoolFull);
    drop(held);
    assert_eq!(base.ask(read("SELECT 1 AS a", &["a"], &[])).await.unwrap().1, values(&[b"i1"]));
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_statement_delays_no_other() {
    let base = Base::new(3);
    let _held = [base.pool.submit(read(ENDLESS, &["c"], &[])), base.pool.submit(read(ENDLESS, &["c"], &[]))];
    for n in 0..2000 {
        let ask =
            Ask { deadline: Instant::now() + Duration::from_secs(5), ..read("SELECT ?1 AS a", &["a"], &[format!("i{n}").as_bytes()]) };
        assert_eq!(base.ask(ask).await.unwrap().1, values(&[format!("i{n}").as_bytes()]));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn writes_commit_or_leave_nothing() {
    let base = Base::new(2);
    let insert = "INSERT INTO customers (id, name) VALUES (?1, ?2) RETURNING id, name";
    let (count, bytes, affected, _) = base.ask(write(insert, &["id", "name"], &[b"i9001", b"tNew"], None)).await.unwrap();
    assert_eq!((count, affected, bytes), (1, 1, values(&[b"i9001", b"tNew"])));
    assert_eq!(base.ask(write(insert, &["id", "name"], &[b"i9001", b"tOther"], None)).await.unwrap_err(), Failure::Constraint);
    assert_eq!(base.ask(write(insert, &["id"], &[b"i9002", b"tStale"], None)).await.unwrap_err(), Failure::Stale);
    assert_eq!(base.ask(write("UPDATE customers SET tier = 7 WHERE id <= ?1", &[], &[b"i10"], None)).await.unwrap().2, 10);
    assert_eq!(base.ask(write("DELETE FROM customers WHERE id = 123456", &[], &[], None)).await.unwrap().2, 0);
    let late = Ask {
        deadline: Instant::now() + Duration::from_millis(60),
        ..write(&format!("UPDATE customers SET tier = ({ENDLESS})"), &[], &[], None)
    };
    assert_eq!(base.ask(late).await.unwrap_err(), Failure::Timeout);
    let seen: (i64, i64) = base
        .connect()
        .query_row("SELECT count(*), count(*) FILTER (WHERE tier = 7 AND id > 10 OR id = 9002) FROM customers", [], |r| {
            Ok((r.get(0)?, r.get(1)?))
        })
        .unwrap();
    assert_eq!(seen, (5001, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn a_caller_who_leaves_a_write_learns_what_became_of_it() {
    let base = Base::new(2);
    // Another process holds the write lock: ours waits, and is rolled back when its caller closes.
    let other = base.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut events = base.pool.submit(write("DELETE FROM customers", &[], &[], None));
    tokio::time::sleep(Duration::from_millis(20)).await;
    events.close();
    assert!(matches!(drain(&mut events).await.unwrap_err(), Failure::Cancelled));
    other.execute_batch("COMMIT").unwrap();
    // Without the lock it is done before the caller closes, and told.
    let mut events = base.pool.submit(write("DELETE FROM customers WHERE id = 5000", &[], &[], None));
    let gone = || base.connect().query_row("SELECT count(*) FROM customers WHERE id = 5000", [], |r| r.get::<_, i64>(0)).unwrap() == 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    events.close();
    assert_eq!(drain(&mut events).await.unwrap().2, 1);
    assert_eq!(base.connect().query_row("SELECT count(*) FROM customers", [], |r| r.get::<_, i64>(0)).unwrap(), 4999);
}

#[tokio::test(flavor = "current_thread")]
async fn a_key_has_one_effect() {
    let base = Base::new(2);
    let insert = "INSERT INTO customers (name) VALUES (?1) RETURNING id, name";
    let ask = |key, arguments| write(insert, &["id", "name"], &[b"tOnce"], Some((key, arguments)));
    let mut all: Vec<_> = (0..20).map(|_| base.pool.submit(ask("k1", "aa"))).collect();
    let mut answers = Vec::new();
    for events in &mut all {
        answers.push(drain(events).await.unwrap());
    }
    assert!(answers.iter().all(|a| a.1 == answers[0].1 && a.0 == 1 && a.2 == 1));
    assert_eq!(answers.iter().filter(|a| !a.3).count(), 1);
    assert_eq!(base.ask(ask("k1", "bb")).await.unwrap_err(), Failure::IdempotencyMismatch);
    // A failed write keeps no outcome: its key may be used again.
    assert_eq!(base.ask(ask("k2", "aa")).await.unwrap_err(), Failure::Constraint);
    assert_eq!(base.ask(write("DELETE FROM customers WHERE name = 'Once'", &[], &[], Some(("k2", "cc")))).await.unwrap().2, 1);
    let stored: (i64, String) =
        base.connect().query_row("SELECT count(*), group_concat(key || query) FROM keys", [], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
    assert_eq!(stored, (2, "k1place,k2place".into()));
}

/// `cargo test --release --test sqlite -- --ignored --nocapture look_ups`: figures for docs/performance.md.
#[tokio::test(flavor = "current_thread")]
#[ignore = "a measurement"]
async fn look_ups() {
    let base = Base::new(8);
    let cpu = || {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<_> = text.rsplit(')').next().unwrap().split(' ').collect();
        (fields[12].parse::<f64>().unwrap() + fields[13].parse::<f64>().unwrap()) * 1e4
    };
    let version: Arc<str> = "v".into();
    let statement =
        Arc::new(StatementPlan { sql: "SELECT id, name, tier FROM customers WHERE id = ?1".into(), params: vec![], oids: vec![] });
    let columns: Arc<[ColumnPlan]> = ["id", "name", "tier"].iter().map(|name| column(name)).collect();
    let ask = |n: u32| Ask {
        version: version.clone(),
        statement: statement.clone(),
        columns: columns.clone(),
        ..read("", &[], &[format!("i{}", n % 4000 + 1).as_bytes()])
    };
    for at_once in [1, 8, 64] {
        let (began, before, mut calls) = (Instant::now(), cpu(), 0u32);
        while began.elapsed() < Duration::from_secs(2) {
            let mut flying: Vec<_> = (0..at_once).map(|n| base.pool.submit(ask(calls + n))).collect();
            for events in &mut flying {
                assert_eq!(drain(events).await.unwrap().0, 1);
                calls += 1;
            }
        }
        let each = |us: f64| us / f64::from(calls);
        println!("{at_once} at once: {:.1} µs wall, {:.1} µs CPU a call", each(began.elapsed().as_micros() as f64), each(cpu() - before));
    }
}
