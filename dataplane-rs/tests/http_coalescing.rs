//! Callers that share a statement, each with a real PostgreSQL: the same answers as alone, and nobody pays for another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};
use std::time::Duration;

const INT8_ARRAY: u32 = 1016;

/// With a batch statement: the query's own text over `b.p1`, as the gateway rewrites it.
fn coalesced(mut query: Value, sql: &str, arrays: &[u32], shadow: u32) -> Value {
    let places: String = (0..arrays.len()).map(|n| format!("{}${}", if n > 0 { ", " } else { "" }, n + 1)).collect();
    let names: String = (0..arrays.len()).map(|n| format!("p{}, ", n + 1)).collect();
    let text = format!(
        "SELECT b.ord, q.* FROM unnest({places}) WITH ORDINALITY AS b({names}ord) CROSS JOIN LATERAL (SELECT * FROM ({sql}) i LIMIT 10001) q"
    );
    query["coalesce"] = json!({"statement": statement(&text, arrays), "maxBatch": 256, "maxInFlight": 2, "shadow": shadow});
    query["notCoalescedBecause"] = json!("");
    query["version"] = json!(sha256(&query.to_string())[..16]);
    query
}

fn user(table: u32, shadow: u32) -> Value {
    coalesced(user_by_id(table), "SELECT id, name FROM users WHERE id = b.p1", &[INT8_ARRAY], shadow)
}

fn columns(table: u32) -> Vec<Value> {
    vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)]
}

struct Stack {
    server: Server,
    plane: Plane,
    table: u32,
}

fn stack() -> Stack {
    let server = Server::start();
    let table = users(&server, 1000);
    Stack { table, plane: Plane::start(), server }
}

impl Stack {
    fn serve(&self, queries: Vec<Value>) -> Value {
        let snapshot = snapshot(1, &url_file(&self.plane, &self.server.url()), queries);
        self.plane.pushed(&snapshot);
        snapshot
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.plane.admin("/metrics").text().to_owned();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_else(|| panic!("{name}"))
    }

    /// Asks until calls of the query share statements.
    fn coalesce(&self, target: &str) {
        let (mut wire, before) = (self.plane.connect(), self.metric("tailrace_batch_callers_count"));
        eventually("calls share a statement", || {
            wire.send(&request(target).repeat(16));
            (0..16).for_each(|_| assert_eq!(wire.answer().status, 200));
            self.metric("tailrace_batch_callers_count") > before
        });
    }
}

fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nPrefer: timing\r\n\r\n")
}

/// The batch size that an answer names; 0 of a problem.
fn batch(answer: &Answer) -> u32 {
    let Some(timing) = answer.header("Server-Timing") else { return 0 };
    timing.split("batch;desc=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
}

#[test]
fn callers_who_wait_share_a_statement_and_a_lone_one_has_its_own() {
    let stack = stack();
    stack.serve(vec![user(stack.table, 3)]);
    stack.coalesce("/q/user?id=7");
    let mut wire = stack.plane.connect();
    let mut largest = 0;
    for round in 0..40 {
        let ids: Vec<u32> = (0..64).map(|n| if n % 3 == 0 { 5 } else { n * 20 + round }).collect();
        wire.send(&ids.iter().map(|id| request(&format!("/q/user?id={id}"))).collect::<String>());
        for id in ids {
            let answer = wire.answer();
            largest = largest.max(batch(&answer));
            if (1..=1000).contains(&id) {
                assert_eq!((answer.status, answer.json()), (200, json!({"id": id, "name": format!("User {id}")})));
            } else {
                assert_eq!((answer.status, answer.code()), (404, "row_not_found".to_owned()));
            }
        }
    }
    assert_eq!(largest, 64);
    wire.send(&request("/q/user?id=8"));
    assert_eq!(batch(&wire.answer()), 1);
    assert_eq!(stack.metric("tailrace_batches_total{end=\"equal\"}"), 3);
    assert_eq!(stack.metric("tailrace_batches_total{end=\"unequal\"}"), 0);
    // What three asked was asked once.
    assert!(stack.metric("tailrace_batch_questions_total") < stack.metric("tailrace_batch_callers_sum"));
}

#[test]
fn the_first_batches_are_compared_and_one_that_differs_stops_them() {
    let stack = stack();
    let name = "SELECT id, CASE WHEN id = 77 THEN 'somebody' ELSE name END AS name FROM users WHERE id = b.p1";
    let mut liar = coalesced(user_by_id(stack.table), name, &[INT8_ARRAY], 20);
    liar["columns"][1]["tableOid"] = json!(0);
    liar["columns"][1]["columnNumber"] = json!(0);
    liar["statement"] = statement("SELECT id, name || '' AS name FROM users WHERE id = $1", &[20]);
    let mut snapshot = stack.serve(vec![liar]);
    stack.coalesce("/q/user?id=7");
    let mut wire = stack.plane.connect();
    let mut asked = 0;
    eventually("a batch with user 77", || {
        asked += 1;
        wire.send(&(70..80).map(|id| request(&format!("/q/user?id={id}"))).collect::<String>());
        (70..80).for_each(|id| assert_eq!(wire.answer().json(), json!({"id": id, "name": format!("User {id}")})));
        stack.metric("tailrace_batches_total{end=\"unequal\"}") == 1
    });
    let plans = || {
        let mut socket = std::os::unix::net::UnixStream::connect(stack.plane.data.path().join("run/dataplane.sock")).unwrap();
        std::io::Write::write_all(&mut socket, b"GET /plans HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n").unwrap();
        let text = std::io::read_to_string(&mut socket).unwrap();
        serde_json::from_str::<Value>(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let version = snapshot["queries"][0]["version"].clone();
    assert_eq!(plans(), json!({"version": 1, "uncoalesced": [{"query": "user", "version": version, "reason": "unequal"}]}));
    // No more batches, also after another snapshot with the same version.
    let before = stack.metric("tailrace_batch_callers_count");
    snapshot["version"] = json!(2);
    stack.plane.pushed(&snapshot);
    for _ in 0..20 {
        wire.send(&request("/q/user?id=5").repeat(16));
        (0..16).for_each(|_| assert_eq!(batch(&wire.answer()), 1));
    }
    assert_eq!(stack.metric("tailrace_batch_callers_count"), before);
    assert_eq!(plans()["uncoalesced"].as_array().unwrap().len(), 1);
}

#[test]
fn only_the_poisoned_call_fails_and_soon_it_disturbs_nobody() {
    let stack = stack();
    let sql = |p: &str| format!("SELECT id, name FROM users WHERE id = {p} AND 1 / (CASE {p} WHEN 13 THEN 0 ELSE 1 END) > 0");
    let single = query("poison", "one", vec![param("id", "integer")], columns(stack.table), statement(&sql("$1"), &[20]));
    stack.serve(vec![coalesced(single, &sql("b.p1"), &[INT8_ARRAY], 0)]);
    stack.coalesce("/q/poison?id=7");
    let mut wire = stack.plane.connect();
    let mut largest = 0;
    for round in 0..20 {
        let ids: Vec<u32> = (0..64).map(|n| if n == round { 13 } else { n + 100 }).collect();
        wire.send(&ids.iter().map(|id| request(&format!("/q/poison?id={id}"))).collect::<String>());
        for id in ids {
            let answer = wire.answer();
            if id == 13 {
                assert_eq!((answer.status, answer.code()), (502, "database_error".to_owned()));
            } else {
                assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(id)));
                largest = largest.max(if round > 0 { batch(&answer) } else { 0 });
            }
        }
    }
    // Held apart, it left the others together.
    assert_eq!(largest, 63);
    assert!(stack.metric("tailrace_batches_total{end=\"failed\"}") <= 2);
}

#[test]
fn each_caller_sees_what_its_own_role_sees() {
    let stack = stack();
    let list = query(
        "list",
        "many",
        vec![param("from", "integer"), param("to", "integer")],
        columns(stack.table),
        statement("SELECT id, name FROM users WHERE id BETWEEN $1 AND $2 ORDER BY id", &[20, 20]),
    );
    let list = coalesced(list, "SELECT id, name FROM users WHERE id BETWEEN b.p1 AND b.p2 ORDER BY id", &[INT8_ARRAY; 2], 3);
    let mut snapshot = stack.serve(vec![list]);
    snapshot["version"] = json!(2);
    snapshot["roles"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "masked", "grants": [{"query": 0, "masks": [{"column": 1, "with": "redact"}], "refused": null}]}));
    let mut other = key("n/other", "other_key");
    other["role"] = json!(1);
    snapshot["keys"].as_array_mut().unwrap().push(other);
    stack.plane.pushed(&snapshot);
    stack.coalesce("/q/list?from=1&to=2");
    let mut wire = stack.plane.connect();
    let mut shared = false;
    for round in 0..20u32 {
        let asks: Vec<(u32, u32, usize)> = (0..48).map(|n| (n % 5 + round, n % 5 + round + n % 7, n as usize)).collect();
        wire.send(
            &asks
                .iter()
                .map(|(from, to, n)| {
                    let text = request(&format!("/q/list?from={from}&to={to}"));
                    if n % 2 == 0 { text } else { text.replace(KEY, "other_key") }
                })
                .collect::<String>(),
        );
        for (from, to, n) in asks {
            let answer = wire.answer();
            let name = |id| if n % 2 == 0 { format!("User {id}") } else { "***".to_owned() };
            let rows: Vec<_> = (from.max(1)..=to).map(|id| json!({"id": id, "name": name(id)})).collect();
            assert_eq!((answer.status, answer.json()), (200, json!(rows)));
            assert_eq!(answer.header("X-Row-Count"), Some(rows.len().to_string().as_str()));
            shared |= batch(&answer) > 4;
        }
    }
    assert!(shared);
}

#[test]
fn arrays_texts_and_nulls_reach_the_statement_as_they_are() {
    let stack = stack();
    let mut texts = vec![param("t", "string"), param("d", "date"), param("n", "number")];
    texts.iter_mut().for_each(|param| param["nullable"] = json!(true));
    let echo = query(
        "echo",
        "one",
        texts,
        vec![column("t", "string", 25, 0, 0), column("d", "string", 25, 0, 0), column("n", "string", 25, 0, 0)],
        statement("SELECT $1 || '' AS t, $2::text AS d, $3::text AS n", &[25, 1082, 1700]),
    );
    stack.serve(vec![coalesced(echo, "SELECT b.p1 || '' AS t, b.p2::text AS d, b.p3::text AS n", &[1009, 1182, 1231], 2)]);
    stack.coalesce("/q/echo?t=a&d=2020-01-01&n=1");
    let mut wires: Vec<_> = (0..24).map(|_| stack.plane.connect()).collect();
    let (mut done, before) = (0, stack.metric("tailrace_batch_callers_count"));
    let values = ["", "a\"b\\c", "{,}", "NULL", "é\u{1f600}", "'; --", " ", "\\"];
    eventually("batches of all kinds of values", || {
        let bodies: Vec<Value> = (0..24)
            .map(|n| json!({"t": if n % 9 == 8 { Value::Null } else { json!(values[n % 8]) }, "d": format!("2020-01-{:02}", n + 1), "n": if n % 5 == 0 { Value::Null } else { json!(n) }}))
            .collect();
        for (wire, body) in wires.iter_mut().zip(&bodies) {
            let body = body.to_string();
            let head = format!("POST /q/echo HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json");
            wire.send(&format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
        for (wire, body) in wires.iter_mut().zip(bodies) {
            let n = body["n"].as_u64().map_or(Value::Null, |n| json!(n.to_string()));
            assert_eq!(wire.answer().json(), json!({"t": body["t"], "d": body["d"], "n": n}));
        }
        done += 1;
        done >= 10 && stack.metric("tailrace_batch_callers_count") > before + 5
    });
}

#[test]
fn what_a_caller_wrote_before_it_asked_is_in_its_answer() {
    let stack = stack();
    stack.serve(vec![user(stack.table, 0)]);
    stack.coalesce("/q/user?id=7");
    // Others keep the lanes busy with batches, so that the reader's call waits and joins one.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut wire = stack.plane.connect();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    wire.send(&(0..48).map(|n| request(&format!("/q/user?id={}", 100 + n))).collect::<String>());
                    (0..48).for_each(|_| assert_eq!(wire.answer().status, 200));
                }
            });
        }
        let mut wire = stack.plane.connect();
        for n in 0..30 {
            stack.server.psql(&format!("UPDATE users SET name = 'Name {n}' WHERE id BETWEEN 100 AND 110"));
            wire.send(&(100..110).map(|id| request(&format!("/q/user?id={id}"))).collect::<String>());
            (100..110).for_each(|_| assert_eq!(wire.answer().json()["name"], json!(format!("Name {n}"))));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_late_batch_is_504_once_and_its_query_leaves_the_lane() {
    let stack = stack();
    let sql = |p: &str| format!("SELECT id, name FROM users WHERE id = {p} AND (id <> 77 OR pg_sleep(2)::text = '')");
    let single = query("slow", "one", vec![param("id", "integer")], columns(stack.table), statement(&sql("$1"), &[20]));
    let mut single = coalesced(single, &sql("b.p1"), &[INT8_ARRAY], 0);
    single["timeoutMs"] = json!(1000);
    stack.serve(vec![single]);
    stack.coalesce("/q/slow?id=7");
    let mut wire = stack.plane.connect();
    let (mut late, mut right) = (0, 0);
    eventually("the query leaves the lane", || {
        wire.send(&(70..80).map(|id| request(&format!("/q/slow?id={id}"))).collect::<String>());
        for id in 70..80 {
            let answer = wire.answer();
            match answer.status {
                504 => late += 1,
                200 => {
                    assert_eq!(answer.json()["id"], json!(id));
                    right += 1;
                }
                status => panic!("{status}: {}", answer.text()),
            }
        }
        stack.metric("tailrace_batches_total{end=\"timeout\"}") == 2
    });
    // Two batches, each with the call that took so long.
    assert!((8..=20).contains(&late), "{late} {right}");
}

#[test]
fn callers_with_more_time_than_a_batch_go_on_by_themselves() {
    let stack = stack();
    let sql = |p: &str| format!("SELECT id, name FROM users WHERE id = {p} AND (id <> 77 OR pg_sleep(2)::text = '')");
    let single = query("slow", "one", vec![param("id", "integer")], columns(stack.table), statement(&sql("$1"), &[20]));
    let mut single = coalesced(single, &sql("b.p1"), &[INT8_ARRAY], 0);
    single["timeoutMs"] = json!(20_000);
    stack.serve(vec![single]);
    stack.coalesce("/q/slow?id=7");
    let mut wire = stack.plane.connect();
    eventually("a batch is cut short", || {
        wire.send(&(70..80).map(|id| request(&format!("/q/slow?id={id}"))).collect::<String>());
        (70..80).for_each(|id| assert_eq!(wire.answer().json()["id"], json!(id)));
        stack.metric("tailrace_batches_total{end=\"timeout\"}") == 1
    });
    // The query has left the lane: nobody else waits for it.
    let batches = stack.metric("tailrace_batch_callers_count");
    for _ in 0..3 {
        wire.send(&(70..77).map(|id| request(&format!("/q/slow?id={id}"))).collect::<String>());
        (70..77).for_each(|id| assert_eq!(wire.answer().json()["id"], json!(id)));
    }
    assert_eq!(stack.metric("tailrace_batch_callers_count"), batches);
}

#[test]
fn a_caller_who_leaves_takes_only_its_own_answer() {
    let stack = stack();
    stack.serve(vec![user(stack.table, 1)]);
    stack.coalesce("/q/user?id=7");
    for _ in 0..20 {
        let (mut leaves, mut stays) = (stack.plane.connect(), stack.plane.connect());
        leaves.send(&request("/q/user?id=3").repeat(40));
        stays.send(&request("/q/user?id=3").repeat(40));
        drop(leaves);
        (0..40).for_each(|_| assert_eq!(stays.answer().json()["id"], json!(3)));
    }
}

#[test]
fn a_table_altered_under_its_batches_is_stale_not_shown() {
    let stack = stack();
    stack.serve(vec![user(stack.table, 0)]);
    stack.coalesce("/q/user?id=7");
    stack.server.psql("ALTER TABLE users ALTER COLUMN name TYPE varchar(40)");
    let mut wire = stack.plane.connect();
    for _ in 0..3 {
        wire.send(&request("/q/user?id=3").repeat(16));
        (0..16).for_each(|_| assert_eq!(wire.answer().code(), "plan_stale"));
    }
    stack.server.psql("ALTER TABLE users ALTER COLUMN name TYPE text");
    wire.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    wire.send(&request("/q/user?id=3").repeat(16));
    (0..16).for_each(|_| assert_eq!(wire.answer().json()["id"], json!(3)));
}
