//! The response cache over HTTP against a real PostgreSQL: the same bytes as without it, for those who see the same, never past its time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const LONG: u64 = 3_600_000;
const OTHER: &str = "tlr_other_key";

fn cached(mut query: Value, ttl_ms: u64) -> Value {
    query["cacheTtlMs"] = json!(ttl_ms);
    query
}

/// `user` as in `http_support`, `big` beyond what is sent uncompressed, `slow` that says when it was asked, `page`.
fn stack(ttl_ms: u64) -> (Server, Plane, Value) {
    let server = Server::start();
    let table = users(&server, 10);
    let plane = Plane::start_with(|config| config.threads = 2);
    let url = url_file(&plane, &server.url());
    let text = || vec![column("t", "string", 25, 0, 0)];
    let big = query("big", "one", vec![], text(), statement("SELECT repeat('ab', 2000) AS t", &[]));
    let slow = "SELECT pg_sleep($1::float8 / 1000)::text || clock_timestamp()::text AS t";
    let slow = query("slow", "one", vec![param("ms", "integer")], text(), statement(slow, &[20]));
    let columns = vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)];
    let mut page = query("page", "many", vec![], columns, statement("", &[]));
    page["page"] = json!({"keys": [{"column": 0, "descending": false}], "defaultSize": 3, "maxSize": 10,
        "first": {"sql": "SELECT id, name FROM users ORDER BY id LIMIT $1", "params": [], "oids": [20]},
        "next": {"sql": "SELECT id, name FROM users WHERE id > $1 ORDER BY id LIMIT $2", "params": [], "oids": [20, 20]}});
    let queries = vec![user_by_id(table), big, slow, page].into_iter().map(|query| cached(query, ttl_ms)).collect();
    let mut snapshot = snapshot(1, &url, queries);
    let grants: Vec<_> = (0..4)
        .map(|n| json!({"query": n, "masks": if n == 0 { json!([{"column": 1, "with": "hash"}]) } else { json!([]) }, "refused": null}))
        .collect();
    snapshot["roles"].as_array_mut().unwrap().push(json!({"name": "masked", "grants": grants}));
    let mut other = key("n/other", OTHER);
    other["role"] = json!(1);
    snapshot["keys"].as_array_mut().unwrap().push(other);
    plane.pushed(&snapshot);
    (server, plane, snapshot)
}

fn ask(plane: &Plane, line: &str, key: &str, headers: &str) -> Answer {
    let mut wire = plane.connect();
    wire.send(&format!("{line} HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n{headers}\r\n"));
    if line.starts_with("HEAD") || headers.contains("If-None-Match") {
        let answer = wire.head();
        // Nothing follows a head alone.
        wire.get("/q/user?id=10");
        assert_eq!(wire.answer().status, 200);
        return answer;
    }
    wire.answer()
}

fn metric(plane: &Plane, name: &str) -> u64 {
    let page = plane.admin("/metrics").text().to_owned();
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_hit_has_the_bytes_of_the_miss_and_says_its_age() {
    let (server, plane, _) = stack(LONG);
    let miss = plane.get("/q/user?id=7");
    server.psql("UPDATE users SET name = 'Changed' WHERE id = 7");
    let hit = plane.get("/q/user?id=7");
    assert_eq!((miss.text(), hit.text()), (r#"{"id":7,"name":"User 7"}"#, r#"{"id":7,"name":"User 7"}"#));
    for name in ["Content-Type", "X-Row-Count", "X-Truncated", "Cache-Control", "ETag", "Vary", "Content-Length"] {
        assert_eq!((name, miss.header(name)), (name, hit.header(name)));
    }
    assert_eq!(miss.header("Cache-Control"), Some("private, max-age=3600"));
    assert_eq!((miss.header("Age"), hit.header("Age").is_some_and(|age| age.parse::<u64>().unwrap() >= 1)), (None, true));
    assert_ne!(miss.header("X-Run-Id"), hit.header("X-Run-Id"));
    let head = ask(&plane, "HEAD /q/user?id=7", KEY, "");
    assert_eq!((head.status, head.header("Content-Length"), head.header("ETag")), (200, Some("24"), miss.header("ETag")));
    // Another argument, another format and another method's body are other questions; a POST of the same is the same.
    assert_eq!(plane.get("/q/user?id=8").json()["name"], "User 8");
    assert_eq!(plane.get("/q/user?id=7&format=csv").text(), "id,name\r\n7,Changed\r\n");
    let body = r#"{"id":7}"#;
    let mut wire = plane.connect();
    wire.send(&format!(
        "POST /q/user HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(wire.answer().text(), miss.text());
    assert_eq!((metric(&plane, "tailrace_cache_hits_total"), metric(&plane, "tailrace_cache_misses_total")), (3, 4));
    eventually("bytes are told", || metric(&plane, "tailrace_cache_bytes") > 100);
    // A refused call and one that has no row are not kept.
    assert_eq!(plane.get("/q/user?id=99").status, 404);
    server.psql("INSERT INTO users VALUES (99, 'New')");
    assert_eq!(plane.get("/q/user?id=99").json()["name"], "New");
    let data = plane.data.path().to_owned();
    plane.signal();
    eventually("runs are stored", || {
        let store = rusqlite::Connection::open(data.join("runs.sqlite")).unwrap();
        store.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0)).unwrap_or(0) == 9
    });
    let store = rusqlite::Connection::open(data.join("runs.sqlite")).unwrap();
    let mut statement = store.prepare("SELECT batch, database_us > 0, bytes FROM runs WHERE status = 200 ORDER BY time_us").unwrap();
    let runs: Vec<(i64, bool, i64)> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap().map(Result::unwrap).collect();
    assert_eq!(runs[..2], [(1, true, 24), (0, false, 24)]);
    assert_eq!(runs.iter().filter(|run| run.0 == 0 && !run.1).count(), 3);
}

#[test]
fn who_has_the_body_is_told_so() {
    let (_server, plane, _) = stack(LONG);
    let tag = plane.get("/q/user?id=7").header("ETag").unwrap().to_owned();
    for (headers, status) in [
        (format!("If-None-Match: {tag}\r\n"), 304),
        (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304),
        (format!("If-None-Match: \"x\"\r\nIf-None-Match: {tag}\r\n"), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
    ] {
        for line in ["GET /q/user?id=7", "HEAD /q/user?id=7"] {
            let answer = ask(&plane, line, KEY, &headers);
            assert_eq!((answer.status, answer.header("ETag"), answer.header("Content-Length")), (status, Some(&*tag), None), "{headers}");
            assert_eq!(answer.header("Cache-Control"), Some("private, max-age=3600"));
            assert!(answer.header("X-Run-Id").is_some() && answer.header("Vary").is_some() && answer.header("Date").is_some());
        }
    }
    // Also when the database is asked.
    let csv = plane.get("/q/user?id=6&format=csv").header("ETag").unwrap().to_owned();
    assert_ne!(csv, tag);
    assert_eq!(ask(&plane, "GET /q/user?id=5", KEY, "If-None-Match: *\r\n").status, 304);
    // A coding has its own tag, over its own bytes, which stay the same.
    let plain = plane.get("/q/big");
    let zstd: Vec<_> = (0..3).map(|_| ask(&plane, "GET /q/big", KEY, "Accept-Encoding: zstd\r\n")).collect();
    assert_eq!(zstd[0].header("Content-Encoding"), Some("zstd"));
    assert!(zstd.iter().all(|answer| answer.body == zstd[0].body && answer.header("ETag") == zstd[0].header("ETag")));
    assert_eq!(zstd::bulk::decompress(&zstd[0].body, 8192).unwrap(), plain.body);
    let tags: Vec<_> =
        [plain.header("ETag").unwrap(), zstd[0].header("ETag").unwrap()].map(|tag| format!("If-None-Match: {tag}\r\n")).into();
    assert_ne!(tags[0], tags[1]);
    assert_eq!(ask(&plane, "GET /q/big", KEY, &format!("Accept-Encoding: zstd\r\n{}", tags[1])).status, 304);
    assert_eq!(ask(&plane, "GET /q/big", KEY, &tags[0]).status, 304);
}

#[test]
fn nobody_gets_what_another_mask_set_or_a_dead_key_would() {
    let (_server, plane, mut snapshot) = stack(LONG);
    let open = plane.get("/q/user?id=7").json();
    let masked = ask(&plane, "GET /q/user?id=7", OTHER, "").json();
    assert_eq!(open["name"], "User 7");
    assert_eq!(masked["name"].as_str().unwrap().len(), 22);
    for _ in 0..3 {
        assert_eq!(plane.get("/q/user?id=7").json(), open);
        assert_eq!(ask(&plane, "GET /q/user?id=7", OTHER, "").json(), masked);
    }
    // What both see alike, both get.
    assert_eq!(plane.get("/q/big").status, 200);
    let before = metric(&plane, "tailrace_cache_misses_total");
    assert_eq!(ask(&plane, "GET /q/big", OTHER, "").status, 200);
    assert_eq!(metric(&plane, "tailrace_cache_misses_total"), before);
    // Pages name cursors, which are each key's own.
    let link = |key: &str| ask(&plane, "GET /q/page", key, "").header("Link").unwrap().to_owned();
    assert_ne!(link(KEY), link(OTHER));
    let next = link(KEY);
    let target = next.strip_prefix('<').unwrap().split('>').next().unwrap();
    for _ in 0..2 {
        assert_eq!(plane.get(target).json()[0]["id"], 4);
        assert_eq!(ask(&plane, &format!("GET {target}"), OTHER, "").status, 400);
    }
    // A mask that comes covers what was kept before it; a key that goes gets nothing.
    snapshot["version"] = json!(2);
    snapshot["roles"][0]["grants"][0]["masks"] = json!([{"column": 1, "with": "redact"}]);
    plane.pushed(&snapshot);
    assert_eq!(plane.get("/q/user?id=7").json()["name"], "***");
    snapshot["version"] = json!(3);
    snapshot["keys"].as_array_mut().unwrap().remove(0);
    plane.pushed(&snapshot);
    assert_eq!(plane.get("/q/user?id=7").status, 401);
    assert_eq!(ask(&plane, "GET /q/user?id=7", OTHER, "").json(), masked);
}

#[test]
fn nothing_is_served_past_its_time_or_of_a_source_that_changed() {
    let (server, plane, mut snapshot) = stack(300);
    let rename = |name: &str| drop(server.psql(&format!("UPDATE users SET name = '{name}' WHERE id = 7")));
    for n in 0..5 {
        let name = format!("Name {n}");
        rename(&name);
        // Whatever was kept before was asked before this moment.
        let changed = Instant::now();
        loop {
            let asked = Instant::now();
            if plane.get("/q/user?id=7").json()["name"] == name {
                break;
            }
            assert!(asked.saturating_duration_since(changed) < Duration::from_millis(300));
        }
    }
    snapshot["version"] = json!(2);
    snapshot["queries"][0]["cacheTtlMs"] = json!(LONG);
    plane.pushed(&snapshot);
    let name = |plane: &Plane| plane.get("/q/user?id=7").json()["name"].as_str().unwrap().to_owned();
    assert_eq!(name(&plane), "Name 4");
    rename("Version");
    assert_eq!(name(&plane), "Name 4");
    snapshot["version"] = json!(3);
    snapshot["queries"][0]["version"] = json!("00000000000000aa");
    plane.pushed(&snapshot);
    assert_eq!(name(&plane), "Version");
    rename("Connection");
    assert_eq!(name(&plane), "Version");
    snapshot["version"] = json!(4);
    snapshot["connections"][0]["session"] = json!([["work_mem", "8MB"]]);
    plane.pushed(&snapshot);
    assert_eq!(name(&plane), "Connection");
    rename("File");
    assert_eq!(name(&plane), "Connection");
    let path = plane.data.path().join("db-url");
    std::fs::write(path.with_extension("new"), server.url()).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    eventually("the other credentials' answer", || name(&plane) == "File");
    // The connection goes, its file changes, and it comes back with the plan that it had: its generations don't begin anew.
    let plan = std::mem::replace(&mut snapshot["connections"][0]["session"], json!([["work_mem", "9MB"]]));
    snapshot["version"] = json!(5);
    plane.pushed(&snapshot);
    rename("Back");
    let path = plane.data.path().join("db-url");
    std::fs::write(path.with_extension("new"), server.url()).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    snapshot["version"] = json!(6);
    snapshot["connections"][0]["session"] = plan;
    plane.pushed(&snapshot);
    assert_eq!(name(&plane), "Back");
}

#[test]
fn one_asks_for_all_and_its_end_frees_the_others() {
    let (_server, plane, _) = stack(LONG);
    let send = |ms: u32| {
        let mut wire = plane.connect();
        wire.get(&format!("/q/slow?ms={ms}"));
        wire
    };
    let waits = |count: u64| eventually("they wait", || metric(&plane, "tailrace_cache_waits_total") == count);
    let mut wires: Vec<_> = (0..20).map(|_| send(1000)).collect();
    let texts: Vec<_> = wires.iter_mut().map(|wire| wire.answer().text().to_owned()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]) && texts[0].contains("20"), "{texts:?}");
    assert_eq!(metric(&plane, "tailrace_cache_misses_total"), 1);
    // The leader leaves: another leads, for those who are left.
    let leader = send(1001);
    eventually("it leads", || metric(&plane, "tailrace_cache_misses_total") == 2);
    let before = metric(&plane, "tailrace_cache_waits_total");
    let mut wires: Vec<_> = (0..5).map(|_| send(1001)).collect();
    waits(before + 5);
    drop(wires.pop());
    drop(leader);
    let texts: Vec<_> = wires.iter_mut().map(|wire| wire.answer()).collect();
    assert!(texts.iter().all(|answer| answer.status == 200 && answer.text() == texts[0].text()));
    // The leader fails (it takes too long): nobody waits for ever, nobody's failure is another's answer.
    let mut wires: Vec<_> = (0..4).map(|_| send(60_000)).collect();
    let statuses: Vec<_> = wires.iter_mut().map(|wire| wire.answer().status).collect();
    // Who then asks alone may find no connection free in the little time that is left.
    assert!(statuses.contains(&504) && statuses.iter().all(|status| [503, 504].contains(status)), "{statuses:?}");
    assert_eq!(plane.get("/q/slow?ms=0").status, 200);
}

#[test]
fn deep_pipelines_do_not_wait_for_each_other() {
    let (_server, plane, _) = stack(LONG);
    let request = |ms: usize| format!("GET /q/slow?ms={ms} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n");
    // Each asks first what the other asks last.
    let questions: Vec<usize> = (100..130).collect();
    let mut wires = [plane.connect(), plane.connect(), plane.connect(), plane.connect()];
    for (n, wire) in wires.iter_mut().enumerate() {
        let all: String = if n % 2 == 0 {
            questions.iter().map(|&ms| request(ms)).collect()
        } else {
            questions.iter().rev().map(|&ms| request(ms)).collect()
        };
        wire.send(&all);
    }
    for wire in &mut wires {
        assert!((0..questions.len()).all(|_| wire.answer().status == 200));
    }
}

#[test]
fn a_small_cache_throws_out_and_one_of_nothing_keeps_nothing() {
    let server = Server::start();
    let table = users(&server, 2000);
    for bytes in [0, 64 << 10] {
        let plane = Plane::start_with(|config| config.cache_bytes = bytes);
        let url = url_file(&plane, &server.url());
        plane.pushed(&snapshot(1, &url, vec![cached(user_by_id(table), LONG)]));
        let mut wire = plane.connect();
        for n in 1..=1000 {
            wire.get(&format!("/q/user?id={n}"));
            assert_eq!(wire.answer().json()["id"], n);
        }
        eventually("bytes are told", || (metric(&plane, "tailrace_cache_bytes") > 0) == (bytes > 0));
        assert!(metric(&plane, "tailrace_cache_bytes") <= bytes as u64);
        assert_eq!(metric(&plane, "tailrace_cache_evictions_total") > 100, bytes > 0);
        wire.get("/q/user?id=1000");
        assert_eq!(wire.answer().header("Age").is_some(), bytes > 0);
    }
}
