//! A call on the shared lane allocates nothing once its thread is warm. Alone in its process, all of whose allocations it counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::io::{Read, Write};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls that are counted at a time. What happens once a second, a segment or a connection is among them: 110 to 190 were seen.
const CALLS: usize = 4_000;
/// On a busy machine a query may look slow and leave the shared lane for a while: only times when it didn't count.
const TIMES: usize = 100;

/// Answers in `input`, by the ends of their bodies; the rest stays at its beginning.
fn answers(input: &mut [u8], filled: &mut usize) -> usize {
    const END: &[u8] = b"\"}";
    let (mut found, mut rest) = (0, 0);
    while let Some(at) = input[rest..*filled].windows(END.len()).position(|window| window == END) {
        found += 1;
        rest += at + END.len();
    }
    input.copy_within(rest..*filled, 0);
    *filled -= rest;
    found
}

#[test]
fn a_call_on_the_shared_lane_allocates_nothing() {
    let server = Server::start();
    let table = users(&server, 10);
    let data = tempfile::Builder::new().prefix("tailrace-dp-").tempdir_in("/var/tmp").unwrap();
    std::fs::write(data.path().join("gateway-secret"), "07".repeat(32)).unwrap();
    // A store that can't be opened: what shipping takes is not of a call.
    std::fs::create_dir(data.path().join("runs.sqlite")).unwrap();
    let plane = Plane::start_in(data, |_| {});
    let url = url_file(&plane, &server.url());
    let mut batched = user_by_id(table);
    let text = "SELECT b.ord, q.* FROM unnest($1) WITH ORDINALITY AS b(p1, ord) \
                CROSS JOIN LATERAL (SELECT * FROM (SELECT id, name FROM users WHERE id = b.p1) i LIMIT 2) q";
    batched["coalesce"] = json!({"statement": statement(text, &[1016]), "maxBatch": 256, "maxInFlight": 2, "shadow": 2});
    (batched["name"], batched["version"]) = (json!("batched"), json!("00000000000000ba"));
    let mut kept = user_by_id(table);
    (kept["name"], kept["version"], kept["cacheTtlMs"]) = (json!("kept"), json!("00000000000000ca"), json!(3_600_000));
    plane.pushed(&snapshot(1, &url, vec![user_by_id(table), batched, kept]));
    let metric = |name: &str| {
        let page = plane.admin("/metrics").text().to_owned();
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok()).unwrap()
    };
    assert_eq!(plane.get("/q/user?id=7").json(), json!({"id": 7, "name": "User 7"}));
    for (query, depth) in [("user", 1), ("user", 16), ("batched", 16), ("kept", 1), ("kept", 16)] {
        // Each call its own statement, or nearly all of them in batches, or all from the response cache.
        let (counted, expected) = match query {
            "user" => ("tailrace_shared_calls_total", CALLS),
            "kept" => ("tailrace_cache_hits_total", CALLS),
            _ => ("tailrace_batch_callers_sum", CALLS * 9 / 10),
        };
        let shared = || metric(counted);
        let mut socket = std::net::TcpStream::connect(plane.listen).unwrap();
        socket.set_nodelay(true).unwrap();
        let request = |n: usize| format!("GET /q/{query}?id={} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n", n % 9 + 1);
        let request: String = (0..depth).map(request).collect();
        let (mut input, mut filled) = (vec![0; 64 << 10], 0);
        let mut ask = |calls: usize| {
            for _ in 0..calls / depth {
                socket.write_all(request.as_bytes()).unwrap();
                let mut missing = depth;
                while missing > 0 {
                    let more = socket.read(&mut input[filled..]).unwrap();
                    assert!(more > 0, "closed");
                    filled += more;
                    missing -= answers(&mut input, &mut filled);
                }
            }
        };
        // The query earns the shared lane, buffers grow to what they need.
        ask(CALLS);
        let all_shared = (0..TIMES).find_map(|_| {
            let before = shared();
            let counted = Region::new(COUNTED);
            ask(CALLS);
            let change = counted.change();
            (shared() - before >= expected).then_some(change)
        });
        let change = all_shared.expect("the query is on the shared lane");
        let allocated = change.allocations + change.reallocations;
        assert!(allocated * 4 < CALLS, "{allocated} allocations for {CALLS} calls of {query}, {depth} at a time: {change:?}");
    }
}
