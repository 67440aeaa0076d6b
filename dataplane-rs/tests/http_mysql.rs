//! Calls whose database is MariaDB, over HTTP: shared lane, batches, a write, a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod mysql_server;
mod postgres_server;
use http_support::*;
use mysql_server::Server;
use serde_json::{Value, json};

/// `MysqlPlace`.
const INTEGER: u32 = 8;
const TEXT: u32 = 253;

fn table_oid(table: &str, column: &str) -> u32 {
    crc32fast::hash(format!("shop\0{table}\0{column}").as_bytes())
}

fn columns() -> Vec<Value> {
    vec![column("id", "raw", 8 + 512, table_oid("users", "id"), 0), column("name", "string", 253, table_oid("users", "name"), 0)]
}

/// The query by `id`; `from` and what joins it are the batch's.
fn user(shadow: u32, batch: &str) -> Value {
    let mut user =
        query("user", "one", vec![param("id", "integer")], columns(), statement("SELECT id, name FROM users WHERE id = ?", &[INTEGER]));
    let from =
        "JSON_TABLE(?, '$[*]' COLUMNS(ord FOR ORDINALITY, p1 BIGINT PATH '$[0]' ERROR ON ERROR)) b STRAIGHT_JOIN users u ON u.id = b.p1";
    user["coalesce"] = json!({"statement": statement(&format!("SELECT b.ord, {batch} FROM {from}"), &[INTEGER]), "maxBatch": 256, "maxInFlight": 2, "shadow": shadow});
    user["notCoalescedBecause"] = json!("");
    user["version"] = json!(sha256(&user.to_string())[..16]);
    user
}

struct Stack {
    server: Server,
    plane: Plane,
}

fn stack() -> Stack {
    let server = Server::start();
    server.sql(
        "USE shop; CREATE TABLE users (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL) ENGINE = InnoDB; \
         INSERT INTO users SELECT seq, CONCAT('User ', seq) FROM seq_1_to_1000",
    );
    Stack { plane: Plane::start(), server }
}

impl Stack {
    fn serve(&self, queries: Vec<Value>) {
        let mut snapshot = snapshot(1, &url_file(&self.plane, &self.server.url()), queries);
        snapshot["connections"][0]["engine"] = json!("mysql");
        self.plane.pushed(&snapshot);
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.plane.admin("/metrics").text().to_owned();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_else(|| panic!("{name}"))
    }

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
fn callers_share_statements_and_have_their_own_answers() {
    let mut stack = stack();
    let poison = "SELECT id, IF(id = 66, (SELECT name FROM users), name) AS name FROM users WHERE id = ?";
    let mut poisoned = query(
        "poison",
        "one",
        vec![param("id", "integer")],
        vec![columns()[0].clone(), column("name", "string", 253, 0, 0)],
        statement(poison, &[INTEGER]),
    );
    poisoned["version"] = json!(sha256("poison")[..16]);
    stack.serve(vec![user(3, "u.id, u.name"), poisoned]);
    stack.coalesce("/q/user?id=7");
    let mut wire = stack.plane.connect();
    let mut largest = 0;
    for round in 0..20 {
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
    // Who fails alone spoils nobody's answer.
    for _ in 0..10 {
        wire.send(&[1, 66, 2, 66, 3].map(|id| request(&format!("/q/poison?id={id}"))).concat());
        for id in [1, 66, 2, 66, 3] {
            assert_eq!(wire.answer().status, if id == 66 { 502 } else { 200 }, "{id}");
        }
    }
    // A restart: idle connections are replaced, nobody notices.
    stack.server.crash();
    stack.server.run();
    for id in 1..40 {
        wire.send(&request(&format!("/q/user?id={id}")));
        assert_eq!(wire.answer().status, 200);
    }
}

#[test]
fn a_batch_that_says_otherwise_is_found_out() {
    let stack = stack();
    stack.serve(vec![user(20, "u.id, u.name"), {
        let mut liar = user(20, "u.id, CONCAT(u.name, 'x') AS name");
        liar["name"] = json!("liar");
        liar
    }]);
    let mut wire = stack.plane.connect();
    // Its callers have what their own statements said.
    eventually("it is found out", || {
        wire.send(&request("/q/liar?id=7").repeat(16));
        (0..16).for_each(|_| assert_eq!(wire.answer().json(), json!({"id": 7, "name": "User 7"})));
        stack.metric("tailrace_batches_total{end=\"unequal\"}") == 1
    });
    wire.send(&request("/q/liar?id=7").repeat(16));
    (0..16).for_each(|_| assert_eq!(batch(&wire.answer()), 1));
}

#[test]
fn pages_lists_and_writes() {
    let stack = stack();
    let list = query(
        "list",
        "many",
        vec![param("from", "integer")],
        columns(),
        statement("SELECT id, name FROM users WHERE id >= ? ORDER BY id LIMIT 3", &[INTEGER]),
    );
    let mut rename = query(
        "rename",
        "none",
        vec![param("name", "string"), param("id", "integer")],
        vec![],
        statement("UPDATE users SET name = ? WHERE id = ?", &[TEXT, INTEGER]),
    );
    (rename["write"], rename["shared"], rename["exclusiveBecause"]) = (json!(true), json!(false), json!("write"));
    stack.serve(vec![list, rename]);
    let list = stack.plane.get("/q/list?from=998");
    assert_eq!(list.text(), r#"[{"id":998,"name":"User 998"},{"id":999,"name":"User 999"},{"id":1000,"name":"User 1000"}]"#);
    let mut wire = stack.plane.connect();
    let body = r#"{"id": 999, "name": "é"}"#;
    wire.send(&format!(
        "POST /q/rename HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(wire.answer().text(), r#"{"affected":1}"#);
    assert_eq!(stack.plane.get("/q/list?from=999&format=csv").text(), "id,name\r\n999,é\r\n1000,User 1000\r\n");
}
