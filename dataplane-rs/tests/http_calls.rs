//! Calls over HTTP against a real PostgreSQL: answers, checks in their order, pipelining, streams, the swap of snapshots.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};
use std::time::Duration;

fn stack(rows: u32) -> (Server, Plane, Value) {
    let server = Server::start();
    let table = users(&server, rows);
    let plane = Plane::start_with(|config| config.threads = 2);
    let url = url_file(&plane, &server.url());
    let columns = || vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)];
    let list = query(
        "users",
        "many",
        vec![param("most", "integer")],
        columns(),
        statement("SELECT id, name FROM users WHERE id <= $1 ORDER BY id", &[20]),
    );
    let mut page = query("page", "many", vec![], columns(), statement("", &[]));
    page["page"] = json!({"keys": [{"column": 0, "descending": false}], "defaultSize": 3, "maxSize": 10,
        "first": {"sql": "SELECT id, name FROM users ORDER BY id LIMIT $1", "params": [], "oids": [20]},
        "next": {"sql": "SELECT id, name FROM users WHERE id > $1 ORDER BY id LIMIT $2", "params": [], "oids": [20, 20]}});
    let mut write = query(
        "rename",
        "none",
        vec![param("id", "integer"), param("name", "string")],
        vec![],
        statement("UPDATE users SET name = $2 WHERE id = $1", &[20, 25]),
    );
    write["write"] = json!(true);
    write["shared"] = json!(false);
    let snapshot = snapshot(1, &url, vec![user_by_id(table), list, page, write]);
    plane.pushed(&snapshot);
    (server, plane, snapshot)
}

#[test]
fn answers_of_every_shape_on_both_lanes() {
    let (_server, plane, _) = stack(30_000);
    let mut wire = plane.connect();
    // The first are exclusive; then the query is promoted. Nothing shows which lane it was.
    for n in 1..60 {
        wire.get(&format!("/q/user?id={n}"));
        let answer = wire.answer();
        assert_eq!((answer.status, answer.text()), (200, &*format!("{{\"id\":{n},\"name\":\"User {n}\"}}")));
        assert_eq!(answer.header("X-Row-Count"), Some("1"));
        assert_eq!(answer.header("X-Truncated"), Some("false"));
        assert_eq!(answer.header("X-Run-Id").unwrap().len(), 29);
        wire.get("/q/user?id=0");
        let missing = wire.answer();
        assert_eq!((missing.status, missing.code()), (404, "row_not_found".to_owned()));
        wire.get("/q/users?most=3");
        assert_eq!(wire.answer().text(), r#"[{"id":1,"name":"User 1"},{"id":2,"name":"User 2"},{"id":3,"name":"User 3"}]"#);
        wire.get("/q/users?most=0&format=csv");
        let csv = wire.answer();
        assert_eq!((csv.header("Transfer-Encoding"), csv.text()), (Some("chunked"), "id,name\r\n"));
    }
    eventually("the query is promoted", || plane.admin("/metrics").text().contains("tailrace_shared_lanes 1"));
    wire.get("/q/users?most=10000");
    let answer = wire.answer();
    assert_eq!((answer.header("X-Row-Count"), answer.header("X-Truncated")), (Some("10000"), Some("false")));
    wire.get("/q/users?most=10001");
    let answer = wire.answer();
    assert_eq!((answer.header("X-Row-Count"), answer.header("X-Truncated")), (Some("10000"), Some("true")));
    assert_eq!(answer.json().as_array().unwrap().len(), 10_000);
    wire.get("/q/users?most=30000&format=ndjson");
    let answer = wire.answer();
    assert_eq!(answer.header("X-Truncated"), Some("false"));
    assert_eq!(answer.text().lines().count(), 30_001);
    assert_eq!(answer.text().lines().last(), Some(r#"{"$complete":{"rows":30000,"truncated":false}}"#));
    wire.send(&format!("HEAD /q/user?id=1 HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n"));
    let head = wire.head();
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("24")));
    wire.get("/q/user?id=2");
    assert_eq!(wire.answer().json()["id"], 2);
}

#[test]
fn pages_follow_their_links() {
    let (_server, plane, _) = stack(8);
    let mut wire = plane.connect();
    let mut target = "/q/page?page_size=3".to_owned();
    let mut seen = Vec::new();
    for _ in 0..3 {
        wire.get(&target);
        let answer = wire.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        seen.extend(answer.json().as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()));
        match answer.header("Link") {
            Some(link) => {
                assert_eq!(answer.header("X-Truncated"), Some("true"));
                target = link.strip_prefix('<').unwrap().split_once('>').unwrap().0.to_owned();
                assert!(target.starts_with("/q/page?page_size=3&cursor="), "{target}");
            }
            None => assert_eq!(answer.header("X-Truncated"), Some("false")),
        }
    }
    assert_eq!(seen, (1..=8).collect::<Vec<_>>());
    let answer = plane.get("/q/page?cursor=AAAA");
    assert_eq!((answer.status, answer.code()), (400, "invalid_cursor".to_owned()));
}

#[test]
fn writes_need_post_and_change_rows() {
    let (server, plane, _) = stack(5);
    let mut wire = plane.connect();
    wire.get("/q/rename?id=1&name=x");
    let answer = wire.answer();
    assert_eq!((answer.status, answer.header("Allow")), (405, Some("POST, OPTIONS")));
    let post = |body: &str, kind: &str| {
        format!(
            "POST /q/rename HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    wire.send(&post(r#"{"id":1,"name":"Ünï"}"#, "application/json; charset=utf-8"));
    let answer = wire.answer();
    assert_eq!((answer.status, answer.text()), (200, r#"{"affected":1}"#));
    assert_eq!(server.psql("SELECT name FROM users WHERE id = 1"), "Ünï");
    wire.send(&post("id=1", "application/x-www-form-urlencoded"));
    assert_eq!(wire.answer().status, 415);
    wire.send(&post(r#"{"id":1,"name":"a"}"#, "application/json\r\nContent-Encoding: gzip"));
    assert_eq!(wire.answer().status, 415);
    wire.send(&post("{", "application/json"));
    assert_eq!(wire.answer().code(), "malformed_body");
    // Two writes in one packet run one after the other.
    wire.send(&(post(r#"{"id":2,"name":"a"}"#, "application/json") + &post(r#"{"id":2,"name":"b"}"#, "application/json")));
    assert_eq!((wire.answer().status, wire.answer().status), (200, 200));
    assert_eq!(server.psql("SELECT name FROM users WHERE id = 2"), "b");
}

#[test]
fn checks_are_made_in_the_order_of_the_contract() {
    let (_server, plane, _) = stack(5);
    let mut wire = plane.connect();
    let mut ask = |text: String| {
        wire.send(&text);
        let answer = wire.answer();
        (answer.status, if answer.body.is_empty() { String::new() } else { answer.code() })
    };
    let with = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    let key = format!("X-API-Key: {KEY}\r\n");
    let error = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(ask(with("GET /q/nothing", "")), error(401, "unauthorized"));
    assert_eq!(ask(with("GET /q/user?id=1", "X-API-Key: wrong\r\n")), error(401, "unauthorized"));
    assert_eq!(ask(with("GET /q/user?id=1", &format!("{key}Authorization: Bearer {KEY}\r\n"))), error(401, "unauthorized"));
    assert_eq!(ask(with("GET /q/nothing", &key)), error(404, "query_not_found"));
    assert_eq!(ask(with("DELETE /q/user", &key)), error(405, "method_not_allowed"));
    assert_eq!(ask(with("GET /q/user?format=xml&id=%", &key)), error(406, "not_acceptable"));
    assert_eq!(ask(with("GET /q/user?id=%zz", &key)), error(400, "malformed_arguments"));
    assert_eq!(ask(with("GET /q/user?id=x&y=1", &key)), error(422, "invalid_parameters"));
    assert_eq!(ask(with("OPTIONS /q/rename", "")), (204, String::new()));
    assert_eq!(
        ask(format!("GET /q/user?id=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nAccept: text/html\r\n\r\n")),
        error(406, "not_acceptable")
    );
}

#[test]
fn keys_are_checked_at_each_call() {
    let (_server, plane, mut snapshot) = stack(5);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
    snapshot["version"] = json!(2);
    snapshot["api"]["trustedProxies"] = json!(["127.0.0.0/8"]);
    let keys = snapshot["keys"].as_array_mut().unwrap();
    let mut add = |name: &str, field: &str, value: Value| {
        let mut key = key(&format!("n/{name}"), name);
        key[field] = value;
        keys.push(key);
    };
    add("late", "notBeforeUs", json!(now + 3_600_000_000));
    add("over", "notAfterUs", json!(now - 1));
    add("soon", "notAfterUs", json!(now + 700_000));
    add("near", "cidrs", json!(["127.0.0.1/32"]));
    add("far", "cidrs", json!(["10.0.0.0/8", "2001:db8::/32"]));
    add("bound", "bind", json!({"id": 3}));
    add("misbound", "bind", json!({"tenant": 3}));
    plane.pushed(&snapshot);
    let mut wire = plane.connect();
    let mut ask = |key: &str, more: &str, target: &str| {
        wire.send(&format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n{more}\r\n"));
        let answer = wire.answer();
        (answer.status, answer.json()["code"].as_str().unwrap_or_default().to_owned())
    };
    let user = "/q/user?id=1";
    let (fine, no) = ((200, String::new()), (401, "unauthorized".to_owned()));
    assert_eq!(ask("soon", "", user), fine);
    assert_eq!((ask("late", "", user), ask("over", "", user)), (no.clone(), no.clone()));
    assert_eq!((ask("near", "", user), ask("far", "", user)), (fine.clone(), no.clone()));
    assert_eq!(ask("near", "X-Forwarded-For: 10.1.1.1\r\n", user), no);
    assert_eq!(ask("far", "X-Forwarded-For: 192.0.2.1, 10.1.1.1\r\n", user), fine);
    assert_eq!(ask("far", "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 2001:db8::1\r\n", user), fine);
    assert_eq!(ask("bound", "", "/q/user").0, 200);
    assert_eq!(ask("bound", "", user), (422, "bound_parameter".to_owned()));
    assert_eq!(ask("misbound", "", user), (403, "forbidden".to_owned()));
    eventually("the key expires by the clock alone", || ask("soon", "", user) == no);
}

#[test]
fn pipelined_answers_keep_their_order() {
    let (_server, plane, _) = stack(100);
    let mut wire = plane.connect();
    for _ in 0..10 {
        let mut text = String::new();
        // Fast ones, streams, refusals and slow ones, all in one write.
        for n in 1..=40 {
            let target = match n % 4 {
                0 => format!("/q/users?most={n}&format=ndjson"),
                1 => format!("/q/user?id={n}"),
                2 => "/q/user?id=x".to_owned(),
                _ => format!("/q/users?most={n}"),
            };
            text += &format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n");
        }
        wire.send(&text);
        for n in 1..=40 {
            let answer = wire.answer();
            match n % 4 {
                0 => assert_eq!(answer.text().lines().count(), n + 1),
                1 => assert_eq!(answer.json()["id"], n),
                2 => assert_eq!(answer.status, 422),
                _ => assert_eq!(answer.json().as_array().unwrap().len(), n),
            }
        }
    }
}

#[test]
fn bodies_are_compressed_when_accepted() {
    let (_server, plane, _) = stack(2000);
    let mut wire = plane.connect();
    for (target, streams) in [("/q/users?most=500", false), ("/q/users?most=2000&format=ndjson", true)] {
        wire.get(target);
        let plain = wire.answer();
        for (accepted, coding) in [("gzip", "gzip"), ("gzip, zstd", "zstd"), ("zstd;q=0.1, gzip", "gzip")] {
            wire.send(&format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nAccept-Encoding: {accepted}\r\n\r\n"));
            let packed = wire.answer();
            assert_eq!(packed.header("Content-Encoding"), Some(coding));
            assert_eq!(packed.header("Transfer-Encoding").is_some(), streams);
            let mut body = Vec::new();
            use std::io::Read;
            match coding {
                "gzip" => flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut body).unwrap(),
                _ => zstd::stream::read::Decoder::new(&*packed.body).unwrap().read_to_end(&mut body).unwrap(),
            };
            assert_eq!(body, plain.body);
        }
    }
    wire.send(&format!("GET /q/user?id=1 HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nAccept-Encoding: gzip\r\n\r\n"));
    assert_eq!(wire.answer().header("Content-Encoding"), None);
}

#[test]
fn a_bad_snapshot_keeps_the_old() {
    let (_server, plane, snapshot) = stack(5);
    let served = |plane: &Plane| plane.get("/q/user?id=1").status;
    let mut wrong = Vec::new();
    let mut with = |path: &str, value: Value| {
        let mut snapshot = snapshot.clone();
        *snapshot.pointer_mut(path).unwrap() = value;
        wrong.push((path.to_owned(), snapshot));
    };
    with("/schema", json!(2));
    with("/queries/0/connection", json!(7));
    with("/queries/0/version", json!("xyz"));
    with("/queries/1/name", json!("user"));
    with("/queries/0/statement/params", json!([5]));
    with("/roles/0/grants/0/query", json!(70));
    with("/roles/0/grants/0/masks", json!([{"column": 9, "with": "null"}]));
    with("/roles/0/grants/1/query", json!(0));
    with("/keys/0/role", json!(3));
    with("/keys/0/sha256", json!(["00"]));
    with("/keys/0/cidrs", json!(["10.0.0.0/99"]));
    with("/queries/2/page/keys", json!([{"column": 5, "descending": false}]));
    with("/api", json!({}));
    for (path, snapshot) in wrong {
        let (status, body) = plane.push(&snapshot);
        assert_eq!(status, 400, "{path}: {body}");
        assert!(!body.contains("SELECT"), "{body}");
        assert_eq!(served(&plane), 200, "{path}");
    }
}

#[test]
fn a_swap_under_load_loses_no_call() {
    let (_server, plane, mut snapshot) = stack(1000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut wire, mut calls) = (plane.connect(), 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                wire.send(&format!("GET /q/user?id=7 HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n").repeat(8));
                for _ in 0..8 {
                    let answer = wire.answer();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    calls += 1;
                }
            }
            calls
        });
        for version in 2..40 {
            snapshot["version"] = json!(version);
            // Every other time the query is another one: the same name must never meet the old statement.
            let limit = version % 2 + 1;
            snapshot["queries"][0]["version"] = json!(format!("{limit:016x}"));
            snapshot["queries"][0]["statement"]["sql"] = json!(format!("SELECT id, name FROM users WHERE id = $1 LIMIT {limit}"));
            plane.pushed(&snapshot);
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(load.join().unwrap() > 100);
    });
    // A key that is gone from the snapshot is refused as soon as the push is acknowledged.
    snapshot["keys"] = json!([]);
    plane.pushed(&snapshot);
    assert_eq!(plane.get("/q/user?id=1").status, 401);
}

#[test]
fn every_answer_is_recorded_and_the_end_is_orderly() {
    let (_server, plane, _) = stack(10);
    let mut wire = plane.connect();
    for target in ["/q/user?id=1", "/q/user?id=x", "/q/users?most=2&format=csv", "/q/nothing"] {
        wire.get(target);
        wire.answer();
    }
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let traced = format!("traceparent: 00-{trace}-b7ad6b7169203331-01\r\nPrefer: timing\r\n");
    wire.send(&format!("GET /q/user?id=2 HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n{traced}\r\n"));
    let answer = wire.answer();
    let timing = answer.header("Server-Timing").unwrap();
    assert!(["auth;dur=", ", queue;dur=", ", db;dur=", ", encode;dur="].iter().all(|part| timing.contains(part)), "{timing}");
    let data = plane.data.path().to_owned();
    plane.signal();
    let kept = tempfile::tempdir().unwrap();
    let copy = kept.path().join("runs.sqlite");
    let mut plane = plane;
    let directory = std::mem::replace(&mut plane.data, tempfile::tempdir().unwrap());
    let drained = plane.join();
    assert_eq!((drained.calls_cut, drained.runs_left), (0, 0));
    std::fs::copy(data.join("runs.sqlite"), &copy).unwrap();
    let runs = Plane::runs(directory.path());
    let expected = [
        ("user", 200, "", 1),
        ("user", 422, "invalid_parameters", 0),
        ("users", 200, "", 2),
        ("", 404, "query_not_found", 0),
        ("user", 200, "", 1),
    ];
    let runs: Vec<_> = runs.iter().map(|(query, status, code, rows)| (query.as_str(), *status, code.as_str(), *rows)).collect();
    assert_eq!(runs, expected);
    let store = rusqlite::Connection::open(directory.path().join("runs.sqlite")).unwrap();
    let stored: String = store.query_row("SELECT lower(hex(trace)) FROM runs WHERE trace IS NOT NULL", [], |row| row.get(0)).unwrap();
    assert_eq!(stored, trace);
}
