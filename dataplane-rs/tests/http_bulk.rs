//! Several calls in one body: each is answered, refused and recorded as if it were alone, in their order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};

struct Stack {
    server: Server,
    plane: Plane,
}

fn stack(durability: &str) -> Stack {
    let server = Server::start();
    let table = users(&server, 1000);
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let columns = || vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)];
    let id = || vec![param("id", "integer")];
    let mut page = query("page", "many", vec![], columns(), statement("", &[]));
    page["page"] = json!({"keys": [{"column": 0, "descending": false}], "defaultSize": 2, "maxSize": 50,
        "first": {"sql": "SELECT id, name FROM users ORDER BY id LIMIT $1", "params": [], "oids": [20]},
        "next": {"sql": "SELECT id, name FROM users WHERE id > $1 ORDER BY id LIMIT $2", "params": [], "oids": [20, 20]}});
    let wide = query(
        "wide",
        "many",
        vec![param("rows", "integer")],
        vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)],
        statement("SELECT n, repeat('x', 1000) AS pad FROM generate_series(1::bigint, $1) n", &[20]),
    );
    let sleep = query(
        "sleep",
        "one",
        vec![param("s", "number")],
        vec![column("n", "raw", 23, 0, 0)],
        statement("SELECT 1 AS n FROM pg_sleep($1)", &[701]),
    );
    let mut own =
        query("own", "one", vec![param("calls", "integer")], columns(), statement("SELECT id, name FROM users WHERE id = $1", &[20]));
    own["params"][0]["array"] = json!(true);
    own["statement"] = statement("SELECT id, name FROM users WHERE id = ANY ($1)", &[1016]);
    let mut write = query("write", "none", id(), vec![], statement("UPDATE users SET name = name WHERE id = $1", &[20]));
    write["write"] = json!(true);
    write["shared"] = json!(false);
    let mut snapshot = snapshot(1, &url, vec![user_by_id(table), page, wide, sleep, own, write]);
    snapshot["api"]["durability"] = json!(durability);
    plane.pushed(&snapshot);
    Stack { server, plane }
}

fn post(target: &str, body: &str, more: &str) -> String {
    let length = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n{body}"
    )
}

fn several(wire: &mut Wire, query: &str, calls: &Value) -> Answer {
    wire.send(&post(&format!("/q/{query}"), &json!({ "calls": calls }).to_string(), ""));
    wire.answer()
}

fn entries(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().as_array().unwrap().clone()
}

#[test]
fn each_is_answered_as_if_it_were_alone() {
    for durability in ["process", "disk"] {
        let Stack { plane, server: _server } = stack(durability);
        let mut wire = plane.connect();
        let calls = json!([{"id": 7}, {"id": 7000}, {"id": "x", "y": 1}, 3, {"id": 9, "format": "csv"}, {}, {"id": 8, "format": "json"}]);
        let answer = several(&mut wire, "user", &calls);
        let all = entries(&answer);
        assert_eq!(all.len(), 7);
        assert_eq!(
            answer.headers.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
            ["Content-Type", "Cache-Control", "Vary", "Date", "Content-Length"]
        );
        let mut runs = Vec::new();
        for (n, (call, entry)) in calls.as_array().unwrap().iter().zip(&all).enumerate() {
            wire.send(&post("/q/user", &call.to_string(), "Accept: application/json\r\n"));
            let alone = wire.answer();
            let run = entry["run"].as_str().unwrap().to_owned();
            if n != 4 {
                assert_eq!(entry["status"], alone.status, "{entry}");
                let own = alone.text().replace(alone.header("X-Run-Id").unwrap(), &run);
                assert_eq!(entry["body"], serde_json::from_str::<Value>(&own).unwrap());
            }
            if entry["status"] == 200 {
                let names: Vec<_> = entry.as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(names.len(), 5);
                assert_eq!((&entry["rows"], &entry["truncated"]), (&json!(1), &json!(false)));
            }
            runs.push(run);
        }
        let codes: Vec<_> = all.iter().map(|entry| entry["body"]["code"].as_str().unwrap_or("")).collect();
        assert_eq!(codes, ["", "row_not_found", "invalid_parameters", "malformed_body", "not_acceptable", "invalid_parameters", ""]);
        runs.sort();
        runs.dedup();
        assert_eq!(runs.len(), 7);
        // The next call of the connection is answered behind it.
        wire.send(
            &(post("/q/user", &json!({"calls": vec![json!({"id": 1}); 256]}).to_string(), "")
                + "GET /q/user?id=2 HTTP/1.1\r\nHost: a\r\n\r\n"),
        );
        assert!(entries(&wire.answer()).iter().all(|entry| entry["body"] == json!({"id": 1, "name": "User 1"})));
        assert_eq!(wire.answer().status, 401);
        assert_eq!(plane.count_recorded(), 7 + 7 + 256 + 1);
    }
}

#[test]
fn they_share_flushes_with_all_others() {
    let Stack { plane, server: _server } = stack("process");
    let mut wire = plane.connect();
    let shared = || {
        let page = plane.admin("/metrics").text().to_owned();
        page.lines().find_map(|line| line.strip_prefix("tailrace_shared_calls_total ")?.parse::<usize>().ok()).unwrap()
    };
    eventually("all of one body go by the shared lane", || {
        let before = shared();
        let ids: Vec<_> = (1..=200).map(|id| json!({ "id": id })).collect();
        let all = entries(&several(&mut wire, "user", &json!(ids)));
        for (id, entry) in (1..=200).zip(&all) {
            assert_eq!(entry["body"]["id"], id);
        }
        shared() == before + 200
    });
}

#[test]
fn what_is_not_for_several_is_refused_whole() {
    let Stack { plane, server: _server } = stack("process");
    let mut wire = plane.connect();
    let mut refused = |target: &str, body: &str, more: &str| {
        wire.send(&post(target, body, more));
        let answer = wire.answer();
        (answer.status, answer.code())
    };
    let one = "{\"calls\":[{\"id\":1}]}";
    assert_eq!(refused("/q/write", one, ""), (422, "bulk_unsupported".to_owned()));
    assert_eq!(refused("/q/user?id=1", one, ""), (422, "bulk_unsupported".to_owned()));
    assert_eq!(refused("/q/user?format=csv", one, ""), (406, "not_acceptable".to_owned()));
    assert_eq!(refused("/q/user", one, "Accept: text/csv\r\n"), (406, "not_acceptable".to_owned()));
    assert_eq!(refused("/q/user", "{\"calls\":[]}", ""), (422, "bulk_size".to_owned()));
    assert_eq!(refused("/q/user", &json!({"calls": vec![json!({}); 257]}).to_string(), ""), (422, "bulk_size".to_owned()));
    // These are one call, with a parameter that it does not have.
    assert_eq!(refused("/q/user", "{\"calls\":1}", ""), (422, "invalid_parameters".to_owned()));
    assert_eq!(refused("/q/user", "{\"id\":1,\"calls\":[]}", ""), (422, "invalid_parameters".to_owned()));
    assert_eq!(refused("/q/user", "{\"calls\":[{]}", ""), (400, "malformed_body".to_owned()));
    assert_eq!(refused("/q/none", one, ""), (404, "query_not_found".to_owned()));
    wire.send(&post("/q/user?format=json", one, "Accept-Encoding: gzip\r\n"));
    assert_eq!(entries(&wire.answer())[0]["body"]["id"], 1);
    // A query that declares the name is asked as ever.
    wire.send(&post("/q/own", "{\"calls\":[5]}", ""));
    assert_eq!(wire.answer().json(), json!({"id": 5, "name": "User 5"}));
}

#[test]
fn pages_and_large_answers() {
    let Stack { plane, server: _server } = stack("process");
    let mut wire = plane.connect();
    let first = entries(&several(&mut wire, "page", &json!([{}, {"page_size": 3}, {"page_size": 0}])));
    assert_eq!((&first[0]["rows"], &first[0]["truncated"], &first[1]["rows"]), (&json!(2), &json!(true), &json!(3)));
    assert_eq!(first[2]["body"]["code"], "invalid_parameters");
    let next = first[1]["next"].as_str().unwrap();
    let cursor = next.strip_prefix("/q/page?cursor=").unwrap();
    let second = entries(&several(&mut wire, "page", &json!([{"page_size": 3, "cursor": cursor}, {"cursor": "AAAA"}])));
    assert_eq!(second[0]["body"][0]["id"], 4);
    assert_eq!(second[1]["body"]["code"], "invalid_cursor");
    let mixed = entries(&several(&mut wire, "wide", &json!([{"rows": 1}, {"rows": 100}, {"rows": 9000}, {"rows": 2}])));
    let codes: Vec<_> =
        mixed.iter().map(|entry| (entry["status"].as_u64().unwrap(), entry["body"]["code"].as_str().unwrap_or(""))).collect();
    assert_eq!(codes, [(200, ""), (422, "answer_too_large"), (422, "answer_too_large"), (200, "")]);
    // Compressed as a whole.
    wire.send(&post("/q/wide", "{\"calls\":[{\"rows\":3}]}", "Accept-Encoding: gzip\r\n"));
    let packed = wire.answer();
    assert_eq!(packed.header("Content-Encoding"), Some("gzip"));
    assert!(packed.body.len() < 1000);
}

#[test]
fn who_leaves_ends_all_of_them() {
    let Stack { plane, server } = stack("process");
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()";
    let mut wire = plane.connect();
    wire.send(&post("/q/sleep", "{\"calls\":[{\"s\":1.9},{\"s\":1.8},{\"s\":1.7}]}", ""));
    eventually("they sleep", || server.psql(asleep) == "3");
    drop(wire);
    eventually("nobody sleeps", || server.psql(asleep) == "0");
    assert_eq!(plane.recorded(), vec![("sleep".to_owned(), 499, "client_closed".to_owned(), 0); 3]);
}
