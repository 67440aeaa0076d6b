//! Faults of databases and callers, each with a real PostgreSQL: only the guilty call fails, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};
use std::io::Read;

struct Stack {
    server: Server,
    plane: Plane,
    snapshot: Value,
}

fn stack() -> Stack {
    let server = Server::start();
    let table = users(&server, 1000);
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let columns = || vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)];
    let id = || vec![param("id", "integer")];
    // 1/0 for user 13.
    let poison = query(
        "poison",
        "one",
        id(),
        columns(),
        statement("SELECT id, name FROM users WHERE id = $1 AND 1 / (CASE $1 WHEN 13 THEN 0 ELSE 1 END) > 0", &[20]),
    );
    // Waits while somebody holds advisory lock 99 and asks for user 77.
    let lock = query(
        "lock",
        "one",
        id(),
        columns(),
        statement("SELECT id, name FROM users WHERE id = $1 AND (id <> 77 OR pg_advisory_lock_shared(99)::text = '')", &[20]),
    );
    let mut big = query(
        "big",
        "many",
        vec![param("rows", "integer")],
        vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)],
        statement("SELECT n, repeat('x', 1000) AS pad FROM generate_series(1::bigint, $1) n", &[20]),
    );
    big["timeoutMs"] = json!(60_000);
    let sleep = query(
        "sleep",
        "one",
        vec![param("s", "number")],
        vec![column("n", "raw", 23, 0, 0)],
        statement("SELECT 1 AS n FROM pg_sleep($1)", &[701]),
    );
    let snapshot = snapshot(1, &url, vec![user_by_id(table), poison, lock, big, sleep]);
    plane.pushed(&snapshot);
    Stack { server, plane, snapshot }
}

/// Asks until the query is on the shared lane.
fn promote(plane: &Plane, target: &str) {
    let mut wire = plane.connect();
    let lanes = || plane.admin("/metrics").text().contains("tailrace_shared_lanes 1");
    eventually("promoted", || {
        for _ in 0..20 {
            wire.get(target);
            let answer = wire.answer();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        lanes()
    });
    for _ in 0..20 {
        wire.get(target);
        assert_eq!(wire.answer().status, 200);
    }
}

fn request(target: &str, key: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n\r\n")
}

#[test]
fn only_the_poisoned_call_fails() {
    let Stack { plane, server: _server, .. } = stack();
    promote(&plane, "/q/poison?id=1");
    let mut wire = plane.connect();
    for round in 0..20 {
        let ids: Vec<u32> = (0..64).map(|n| if n % 9 == round % 9 { 13 } else { n + 100 }).collect();
        wire.send(&ids.iter().map(|id| request(&format!("/q/poison?id={id}"), KEY)).collect::<String>());
        for id in ids {
            let answer = wire.answer();
            if id == 13 {
                assert_eq!((answer.status, answer.code()), (502, "database_error".to_owned()));
            } else {
                assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(id)));
            }
        }
    }
}

#[test]
fn one_lock_waiter_does_not_hold_up_the_others() {
    let Stack { server, plane, .. } = stack();
    promote(&plane, "/q/lock?id=1");
    server.psql("SELECT 1");
    let holder = std::thread::spawn({
        let home = server.home().to_owned();
        let port = server.port;
        move || {
            let url = format!("host={} port={port} user=postgres dbname=postgres", home.display());
            std::process::Command::new("psql").args(["-qAtX", "-c", "SELECT pg_advisory_lock(99), pg_sleep(1.5)", &url]).output().unwrap()
        }
    });
    eventually("the lock is held", || server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted") == "1");
    let mut waiter = plane.connect();
    waiter.get("/q/lock?id=77");
    // Beside it, in the same flush and after it: all are answered while it waits.
    let mut others = plane.connect();
    for _ in 0..20 {
        others.send(&(0..32).map(|n| request(&format!("/q/lock?id={}", n + 100), KEY)).collect::<String>());
        for n in 0..32 {
            let answer = others.answer();
            assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(n + 100)));
        }
    }
    assert_eq!(server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), "1");
    holder.join().unwrap();
    let answer = waiter.answer();
    assert!(answer.status == 200 || answer.status == 404, "{}", answer.text());
}

#[test]
fn a_restart_is_not_noticed_on_idle_connections() {
    let Stack { mut server, plane, .. } = stack();
    promote(&plane, "/q/user?id=1");
    for mode in ["fast", "immediate"] {
        server.stop(mode);
        server.run(&[]);
        for n in 1..50 {
            assert_eq!(plane.get(&format!("/q/user?id={n}")).status, 200, "{mode}");
        }
    }
    // Backends killed while calls are under way: reads are asked again.
    let mut wire = plane.connect();
    for _ in 0..10 {
        wire.send(&(1..=64).map(|n| request(&format!("/q/user?id={n}"), KEY)).collect::<String>());
        server.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tailrace'");
        for n in 1..=64 {
            let answer = wire.answer();
            assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(n)), "{}", answer.text());
        }
    }
}

#[test]
fn a_database_that_is_down_is_503_and_comes_back() {
    let Stack { mut server, plane, .. } = stack();
    promote(&plane, "/q/user?id=1");
    server.stop("fast");
    for _ in 0..5 {
        let answer = plane.get("/q/user?id=1");
        assert_eq!((answer.status, answer.code()), (503, "database_unavailable".to_owned()));
    }
    assert_eq!(plane.admin("/readyz").status, 200);
    server.run(&[]);
    eventually("it serves again", || plane.get("/q/user?id=1").status == 200);
}

#[test]
fn that_a_database_goes_and_comes_is_told_once_by_the_exclusive_lane_too() {
    let Stack { mut server, plane, mut snapshot } = stack();
    snapshot["version"] = json!(2);
    snapshot["connections"][0]["maxConnections"] = json!(1); // no shared lanes
    plane.pushed(&snapshot);
    let lines = |level: &str| {
        let name = format!("tailrace_log_lines_total{{level=\"{level}\"}} ");
        let page = plane.admin("/metrics").text().to_owned();
        page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok()).unwrap()
    };
    let shown = |what: &str| plane.admin("/readyz?verbose").text().contains(&format!("database db (not gating): {what}\n"));
    assert_eq!(plane.get("/q/user?id=1").status, 200);
    let (errors, infos) = (lines("error"), lines("info"));
    assert!(shown("ok"));
    for times in 1..=2 {
        server.stop("fast");
        for _ in 0..5 {
            assert_eq!(plane.get("/q/user?id=1").code(), "database_unavailable");
        }
        assert_eq!(lines("error"), errors + times);
        assert!(shown("unreachable"), "{}", plane.admin("/readyz?verbose").text());
        server.run(&[]);
        eventually("it serves again", || plane.get("/q/user?id=1").status == 200);
        assert_eq!((lines("error"), lines("info")), (errors + times, infos + times));
        assert!(shown("ok"));
    }
}

#[test]
fn a_table_altered_under_its_plan_is_stale_not_shown() {
    let Stack { server, plane, snapshot } = stack();
    promote(&plane, "/q/user?id=1");
    let mut star = snapshot.clone();
    star["version"] = json!(2);
    star["queries"][0]["statement"]["sql"] = json!("SELECT * FROM users WHERE id = $1");
    star["queries"][0]["version"] = json!("00000000000000bb");
    plane.pushed(&star);
    promote(&plane, "/q/user?id=1");
    server.psql("ALTER TABLE users ADD COLUMN secret text DEFAULT 'hidden'");
    for _ in 0..30 {
        let answer = plane.get("/q/user?id=1");
        assert_eq!((answer.status, answer.code()), (503, "plan_stale".to_owned()));
        assert!(!answer.text().contains("hidden"));
    }
    server.psql("ALTER TABLE users DROP COLUMN secret");
    eventually("the plan fits again", || plane.get("/q/user?id=1").status == 200);
}

#[test]
fn a_client_that_leaves_cancels_its_statement() {
    let Stack { server, plane, .. } = stack();
    let running = || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()")
    };
    let mut wires: Vec<_> = (0..4).map(|_| plane.connect()).collect();
    for wire in &mut wires {
        wire.get("/q/sleep?s=100");
    }
    eventually("they run", || running() == "4");
    drop(wires);
    eventually("they are cancelled", || running() == "0");
    for _ in 0..20 {
        assert_eq!(plane.get("/q/sleep?s=0").status, 200);
    }
    let answer = plane.get("/q/sleep?s=100");
    assert_eq!((answer.status, answer.code()), (504, "query_timeout".to_owned()));
}

#[test]
fn a_failure_after_the_head_cuts_the_body() {
    let Stack { server, plane, .. } = stack();
    let mut wire = plane.connect();
    wire.get("/q/big?rows=2000000&format=ndjson");
    assert_eq!(wire.head().status, 200);
    server.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tailrace'");
    let mut rest = Vec::new();
    wire.socket.read_to_end(&mut rest).ok();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the body looks whole");
    assert!(!String::from_utf8_lossy(&rest).contains("$complete"));
}

#[test]
fn a_crowd_of_one_key_does_not_hold_up_another() {
    let Stack { plane, mut snapshot, server: _server } = stack();
    snapshot["version"] = json!(2);
    snapshot["keys"].as_array_mut().unwrap().push(key("n/other", "other"));
    plane.pushed(&snapshot);
    promote(&plane, "/q/user?id=1");
    // 20 connections with 256 calls each of one key, then one call of another: it is answered long before the crowd is done.
    let mut crowd: Vec<_> = (0..20).map(|_| plane.connect()).collect();
    let calls = request("/q/user?id=5", KEY).repeat(256);
    let mut single = plane.connect();
    for wire in &mut crowd {
        wire.send(&calls);
    }
    single.send(&request("/q/user?id=6", "other"));
    assert_eq!(single.answer().json()["id"], 6);
    for wire in &mut crowd {
        for _ in 0..256 {
            assert_eq!(wire.answer().status, 200);
        }
    }
}

/// With room for so many waiting calls, and `user` on the shared lane.
fn narrow(waiting: usize) -> (Server, Plane) {
    let server = Server::start();
    let table = users(&server, 10);
    let plane = Plane::start_with(|config| config.limits.waiting = waiting);
    let url = url_file(&plane, &server.url());
    plane.pushed(&snapshot(1, &url, vec![user_by_id(table)]));
    promote(&plane, "/q/user?id=1");
    (server, plane)
}

#[test]
fn too_many_waiting_calls_are_refused_at_once() {
    let (_server, plane) = narrow(1);
    let mut wires: Vec<_> = (0..16).map(|_| plane.connect()).collect();
    let mut refused = Vec::new();
    eventually("some are refused, some are not", || {
        // What they ask is not read.
        wires.iter_mut().for_each(|wire| wire.send(&request("/q/user?id=none", KEY)));
        let answers: Vec<_> = wires.iter_mut().map(|wire| wire.answer()).collect();
        assert!(answers.iter().all(|answer| answer.status == 422 || answer.code() == "overloaded"));
        wires.iter_mut().for_each(|wire| wire.send(&request("/q/user?id=5", KEY)));
        let answers: Vec<_> = wires.iter_mut().map(|wire| wire.answer()).collect();
        let before = refused.len();
        refused.extend(answers.into_iter().filter(|answer| answer.status != 200));
        (1..16).contains(&(refused.len() - before))
    });
    for answer in &refused {
        assert_eq!((answer.status, answer.code(), answer.header("Retry-After")), (503, "overloaded".to_owned(), Some("1")));
        assert_eq!(answer.json()["instance"], format!("urn:tailrace:run:{}", answer.header("X-Run-Id").unwrap()));
    }
    let mut ids: Vec<_> = refused.iter().map(|answer| answer.header("X-Run-Id").unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), refused.len());
    let mut wire = plane.connect();
    wire.send(&request("/q/user?id=5", "nobody"));
    assert_eq!(wire.answer().status, 401);
}

#[test]
fn in_a_crowd_what_a_client_asks_ahead_waits_in_its_socket() {
    let (_server, plane) = narrow(16);
    let mut wire = plane.connect();
    wire.send(&request("/q/user?id=5", KEY).repeat(200));
    // Refused they could not be told before those in front of them are answered.
    (0..200).for_each(|_| assert_eq!(wire.answer().status, 200));
}

#[test]
fn more_calls_than_connections_wait_or_are_refused() {
    let Stack { plane, mut snapshot, server } = stack();
    snapshot["version"] = json!(2);
    snapshot["connections"][0]["maxConnections"] = json!(1);
    snapshot["queries"][4]["timeoutMs"] = json!(5000);
    plane.pushed(&snapshot);
    let mut first = plane.connect();
    first.get("/q/sleep?s=100");
    eventually("it runs", || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()")
            == "1"
    });
    let answer = plane.get("/q/user?id=1");
    assert_eq!((answer.status, answer.code(), answer.header("Retry-After")), (503, "pool_full".to_owned(), Some("1")));
    assert_eq!(first.answer().status, 504);
    assert_eq!(plane.get("/q/user?id=1").status, 200);
}

#[test]
fn a_call_without_an_answer_keeps_its_time_at_the_database() {
    let Stack { plane, mut snapshot, server } = stack();
    snapshot["version"] = json!(2);
    snapshot["connections"][0]["maxConnections"] = json!(1);
    snapshot["queries"][4]["timeoutMs"] = json!(2000);
    plane.pushed(&snapshot);
    assert_eq!(plane.get("/q/user?id=1").status, 200);
    assert_eq!(plane.get("/q/sleep?s=100").status, 504);
    assert_eq!(plane.get("/q/poison?id=13").status, 502);
    snapshot["version"] = json!(3);
    snapshot["queries"][4]["timeoutMs"] = json!(60_000);
    plane.pushed(&snapshot);
    let mut leaver = plane.connect();
    leaver.get("/q/sleep?s=100");
    let active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()";
    eventually("it runs", || server.psql(active) == "1");
    // The only connection is taken: this one never comes to the database.
    assert_eq!(plane.get("/q/user?id=1").code(), "pool_full");
    drop(leaver);
    eventually("it is cancelled", || server.psql(active) == "0");
    let mut plane = plane;
    let data = std::mem::replace(&mut plane.data, tempfile::tempdir().unwrap());
    plane.signal();
    assert_eq!(plane.join().runs_left, 0);
    let store = rusqlite::Connection::open(data.path().join("runs.sqlite")).unwrap();
    let sql = "SELECT c.name, database_us, database_us <= duration_us FROM runs JOIN names c ON c.id = code";
    let mut statement = store.prepare(sql).unwrap();
    let runs = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, (row.get::<_, i64>(1)?, row.get::<_, bool>(2)?)))).unwrap();
    let runs: std::collections::HashMap<_, _> = runs.map(Result::unwrap).collect();
    assert!(runs.values().all(|(_, within)| *within), "{runs:?}");
    assert!(runs["query_timeout"].0 > 0, "{runs:?}");
    assert!(runs["database_error"].0 > 0 && runs["client_closed"].0 > 0, "{runs:?}");
    assert_eq!(runs["pool_full"].0, 0, "{runs:?}");
}

#[test]
fn a_full_spool_refuses_and_nothing_unrecorded_leaves() {
    let server = Server::start();
    let table = users(&server, 10);
    let data = tempfile::Builder::new().prefix("tailrace-dp-").tempdir_in("/var/tmp").unwrap();
    std::fs::write(data.path().join("gateway-secret"), "07".repeat(32)).unwrap();
    // A store that can't be opened: runs stay in the spool, whose bound is small.
    let blocker = data.path().join("runs.sqlite");
    std::fs::create_dir(&blocker).unwrap();
    let plane = Plane::start_in(data, |_| {});
    let url = url_file(&plane, &server.url());
    let mut snapshot = snapshot(1, &url, vec![user_by_id(table)]);
    snapshot["api"]["spoolSizeBytes"] = json!(1 << 20);
    plane.pushed(&snapshot);
    let mut wire = plane.connect();
    let (mut told, mut refused) = (Vec::new(), None);
    while refused.is_none() {
        assert!(told.len() < 1_000_000);
        wire.send(&request("/q/user?id=5", "wrong").repeat(100));
        for _ in 0..100 {
            let answer = wire.answer();
            match answer.status {
                401 => told.push(answer.header("X-Run-Id").unwrap().to_owned()),
                _ => refused = refused.or(Some(answer)),
            }
        }
    }
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.code(), refused.header("Retry-After")), (503, "spool_full".to_owned(), Some("5")));
    assert_eq!(refused.header("X-Run-Id"), None);
    // The store comes back: calls go on, and every answer that was given is in it.
    std::fs::remove_dir(&blocker).unwrap();
    eventually("calls go on", || {
        let mut wire = plane.connect();
        wire.send(&request("/q/user?id=5", "wrong"));
        let answer = wire.answer();
        told.extend(answer.header("X-Run-Id").map(str::to_owned));
        answer.status == 401
    });
    let mut plane = plane;
    let data = std::mem::replace(&mut plane.data, tempfile::tempdir().unwrap());
    plane.signal();
    assert_eq!(plane.join().runs_left, 0);
    let store = rusqlite::Connection::open(data.path().join("runs.sqlite")).unwrap();
    let sql = "SELECT (SELECT count(*) FROM runs) + (SELECT coalesce(sum(count), 0) FROM run_blocks)";
    let stored: i64 = store.query_row(sql, [], |row| row.get(0)).unwrap();
    let distinct: std::collections::HashSet<_> = told.iter().collect();
    assert_eq!((stored, distinct.len()), (told.len() as i64, told.len()));
}

#[test]
fn answers_wait_for_the_disk_where_that_is_asked_for() {
    let Stack { plane, mut snapshot, server: _server } = stack();
    snapshot["version"] = json!(2);
    snapshot["api"]["durability"] = json!("disk");
    plane.pushed(&snapshot);
    let mut wire = plane.connect();
    wire.send(&(1..=100).map(|n| request(&format!("/q/user?id={n}"), KEY)).collect::<String>());
    for n in 1..=100 {
        assert_eq!(wire.answer().json()["id"], n);
    }
    let answer = plane.get("/q/big?rows=5000&format=ndjson");
    assert_eq!(answer.text().lines().count(), 5001);
}

#[test]
fn lanes_are_opened_anew_when_only_the_connection_changes() {
    let Stack { plane, mut snapshot, server } = stack();
    promote(&plane, "/q/user?id=1");
    snapshot["version"] = json!(2);
    snapshot["connections"][0]["maxConnections"] = json!(6);
    plane.pushed(&snapshot);
    promote(&plane, "/q/user?id=1");
    // The old lanes are given up.
    eventually("no more than allowed", || {
        server.psql("SELECT count(*) <= 6 FROM pg_stat_activity WHERE application_name = 'tailrace'") == "t"
    });
}

#[test]
fn a_new_password_is_used_without_an_error() {
    let server = Server::start_with("local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n", &[]);
    let table = users(&server, 100);
    server.psql("CREATE ROLE app LOGIN PASSWORD 'one'; GRANT SELECT ON users TO app");
    let plane = Plane::start();
    let url = |password: &str| format!("postgresql://app:{password}@127.0.0.1:{}/postgres?sslmode=disable", server.port);
    let file = url_file(&plane, &url("one"));
    plane.pushed(&snapshot(1, &file, vec![user_by_id(table)]));
    promote(&plane, "/q/user?id=1");
    let backends = || server.psql("SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_activity WHERE usename = 'app'");
    let before = backends();
    server.psql("ALTER ROLE app PASSWORD 'two'");
    std::fs::write(&file, url("two")).unwrap();
    eventually("connections are replaced", || {
        for n in 1..20 {
            assert_eq!(plane.get(&format!("/q/user?id={n}")).status, 200);
        }
        let after = backends();
        after.split(',').all(|pid| !before.split(',').any(|old| old == pid))
    });
}
