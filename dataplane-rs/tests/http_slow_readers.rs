//! Ten clients that stop reading their streams: what is held for them is counted in bytes, and others are answered. Alone in its process, all of
//! whose allocations it counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const READERS: usize = 10;
/// What one of them may cost, bytes: 256 KiB of answer in a buffer that grows by doubling, six pieces of rows on their way, a read.
const EACH: usize = 3 << 19;

fn live() -> usize {
    let stats = COUNTED.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

#[test]
fn what_is_held_for_those_who_stop_reading_is_bounded() {
    let server = Server::start();
    let table = users(&server, 1000);
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let columns = vec![column("n", "raw", 20, table, 1), column("pad", "string", 25, 0, 0)];
    let text = "SELECT a.id AS n, repeat('x', 10) AS pad FROM users a, users b, users c WHERE a.id <= $1";
    let mut all = query("all", "many", vec![param("rows", "integer")], columns, statement(text, &[20]));
    (all["timeoutMs"], all["unbounded"]) = (json!(600_000), json!(true));
    let mut snapshot = snapshot(1, &url, vec![user_by_id(table), all]);
    snapshot["connections"][0]["maxConnections"] = json!(READERS + 4);
    plane.pushed(&snapshot);
    for id in 1..=20 {
        assert_eq!(plane.get(&format!("/q/user?id={id}")).status, 200);
    }
    let before = live();
    let mut wires: Vec<Wire> = (0..READERS).map(|_| plane.connect()).collect();
    for (n, wire) in wires.iter_mut().enumerate() {
        let format = ["json", "ndjson", "csv"][n % 3];
        wire.get(&format!("/q/all?rows=1000&format={format}"));
        assert_eq!(wire.head().status, 200);
    }
    // Each one's server can send no more, and it stays so.
    let stuck = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND query LIKE '%users c%'";
    let mut still = 0;
    eventually("all of them are stuck", || {
        still = if server.psql(stuck) == READERS.to_string() { still + 1 } else { 0 };
        still == 5
    });
    let held = live().saturating_sub(before);
    assert!(held < READERS * EACH, "{held} bytes for {READERS}");
    for id in 1..=200 {
        assert_eq!(plane.get(&format!("/q/user?id={id}")).json()["id"], id);
    }
    // All of it is given back, and the statements end.
    drop(wires);
    eventually("nothing runs on", || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%users c%' AND state = 'active' AND pid <> pg_backend_pid()")
            == "0"
    });
    eventually("what was held is given back", || live() < before + EACH);
}
