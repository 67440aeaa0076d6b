//! A large answer to a slow reader. Alone in its process, whose memory it measures.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_slow_reader_of_a_large_answer_costs_no_memory_and_holds_up_nobody() {
    let server = Server::start();
    let table = users(&server, 1000);
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let mut big = query(
        "big",
        "many",
        vec![param("rows", "integer")],
        vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)],
        statement("SELECT n, repeat('x', 1000) AS pad FROM generate_series(1::bigint, $1) n", &[20]),
    );
    big["timeoutMs"] = json!(60_000);
    plane.pushed(&snapshot(1, &url, vec![user_by_id(table), big]));
    let memory = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = memory();
    let mut wire = plane.connect();
    // 200 MB as NDJSON.
    wire.get("/q/big?rows=200000&format=ndjson");
    assert_eq!(wire.head().status, 200);
    for n in 1..=200 {
        assert_eq!(plane.get(&format!("/q/user?id={n}")).status, 200);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(memory() < before + (48 << 20), "{} MiB more", (memory() - before) >> 20);
    let mut bytes = 0;
    let mut last = Vec::new();
    while let Some(chunk) = wire.chunk() {
        bytes += chunk.len();
        last = chunk;
    }
    assert!(bytes > 200_000_000);
    assert!(last.ends_with(b"{\"$complete\":{\"rows\":200000,\"truncated\":false}}\n"));
    assert!(memory() < before + (48 << 20));
    // One that leaves in the middle.
    let mut wire = plane.connect();
    wire.get("/q/big?rows=200000&format=csv");
    wire.head();
    drop(wire);
    eventually("nothing runs on", || {
        server.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND state = 'active' AND pid <> pg_backend_pid()",
        ) == "0"
    });
    // JSON beyond what is kept: chunked, with its counts as trailers.
    let answer = plane.get("/q/big?rows=20000");
    assert_eq!((answer.header("X-Row-Count"), answer.header("X-Truncated")), (Some("10000"), Some("true")));
    assert_eq!(answer.json().as_array().unwrap().len(), 10_000);
}
