//! The exclusive lane against a real PostgreSQL: reads, limits, cancellation, pools, restarts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use lane::{Place, ask, bind, call, collect, column, eventually, within};
use postgres_server::Server;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::engine::postgres::{Budget, Limits, Pool, Source};
use tailrace_dataplane::engine::{Event, Failure};
use tailrace_dataplane::observe::Observer;

const SLEEPERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()";

#[tokio::test]
async fn reads_parameters_nulls_and_limits() {
    let server = Server::start();
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let one = bind(ask("SELECT $1::text AS a, NULL::text AS b", &["a", "b"]), &[25], &["é\"\\"]);
    let answer = call(&pool, one).await.unwrap();
    assert_eq!(answer.rows, vec![vec![Some("é\"\\".to_owned()), None]]);
    for (limit, rows, more) in [(None, 100, false), (Some(7), 7, true), (Some(101), 100, false)] {
        let mut many = ask("SELECT g::text AS a FROM generate_series(1, 100) g", &["a"]);
        many.limit = limit;
        let answer = call(&pool, many).await.unwrap();
        assert_eq!((answer.rows.len(), answer.more), (rows, more), "{limit:?}");
    }
    // The portal of a stopped statement is gone, its connection at rest.
    assert_eq!(server.psql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'"), "0");
    assert_eq!(pool.stats().live, 1);
    // A million rows in pieces, flat.
    let mut receiver = pool.submit(ask("SELECT repeat('x', 100) AS a FROM generate_series(1, 1000000) g", &["a"]));
    let mut total = 0;
    while let Some(event) = receiver.recv().await {
        match event {
            Event::Rows { count, bytes } => {
                assert!(bytes.len() < 80 << 10);
                total += count;
            }
            Event::Done { .. } => assert_eq!(total, 1_000_000),
            Event::Failed { failure, .. } => panic!("{failure}"),
        }
    }
    assert_eq!(total, 1_000_000);
}

#[tokio::test]
async fn refuses_writes_and_maps_errors() {
    let server = Server::start();
    server.psql("CREATE TABLE t(a int PRIMARY KEY)");
    let mut place = Place::new(&server.url(), 1);
    let pool = place.pool();
    place.plan.statement_timeout_ms = 200;
    let hasty = place.pool();
    assert_eq!(call(&pool, ask("INSERT INTO t VALUES (1) RETURNING a::text", &["a"])).await, Err(Failure::Unavailable));
    assert_eq!(call(&pool, ask("SELECT (1/0)::text AS a", &["a"])).await, Err(Failure::Refused(*b"22012")));
    assert_eq!(call(&pool, ask("SELECT nonsense", &["a"])).await, Err(Failure::Refused(*b"42703")));
    assert_eq!(call(&hasty, ask("SELECT pg_sleep(20)::text AS a", &["a"])).await, Err(Failure::Timeout));
    assert_eq!(call(&pool, ask("SELECT '1'::text AS b", &["a"])).await, Err(Failure::Stale));
    assert_eq!(call(&pool, ask("SELECT 1 AS a", &["a"])).await, Err(Failure::Stale));
    assert_eq!(call(&pool, bind(ask("SELECT $1::text AS a", &["a"]), &[25], &["a\0b"])).await, Err(Failure::Refused(*b"22021")));
    assert_eq!(call(&pool, ask("SELECT 'still well'::text AS a", &["a"])).await.unwrap().one(), "still well");
    assert_eq!(pool.stats().connects, 1);
}

#[tokio::test]
async fn nothing_outlives_a_read() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let nasty = "SELECT (set_config('default_transaction_read_only', 'off', false) || set_config('TimeZone', 'Asia/Tokyo', false) || \
                 set_config('search_path', 'x', false) || pg_try_advisory_lock(7)::text) AS a";
    call(&pool, ask(nasty, &["a"])).await.unwrap();
    let after = "SELECT current_setting('default_transaction_read_only') || ' ' || current_setting('TimeZone') || ' ' || \
                 current_setting('search_path') || ' ' || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS a";
    assert_eq!(call(&pool, ask(after, &["a"])).await.unwrap().one(), "on UTC \"$user\", public 0");
    assert_eq!(server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
}

// Case 1.
#[tokio::test]
async fn callers_who_leave_are_cancelled_at_once() {
    let server = Server::start();
    let place = Place::new(&server.url(), 3);
    let pool = place.pool();
    let calls: Vec<_> = (0..3).map(|_| pool.submit(ask("SELECT pg_sleep(300)::text AS a", &["a"]))).collect();
    eventually("all sleep", || server.psql(SLEEPERS) == "3").await;
    drop(calls);
    assert_eq!(call(&pool, ask("SELECT 'next'::text AS a", &["a"])).await.unwrap().one(), "next");
    eventually("none sleeps", || server.psql(SLEEPERS) == "0").await;
    eventually("all are idle again", || pool.stats().idle == 3).await;
    assert_eq!(pool.stats().connects, 3);
}

// Case 3.
#[tokio::test]
async fn a_late_cancel_meets_nobody() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    for n in 0..200_u64 {
        let receiver = pool.submit(ask("SELECT pg_sleep(0.003)::text AS a", &["a"]));
        tokio::time::sleep(Duration::from_micros(n * 30)).await;
        drop(receiver);
        for _ in 0..3 {
            assert_eq!(call(&pool, ask("SELECT pg_sleep(0.001)::text AS a", &["a"])).await.map(|a| a.rows.len()), Ok(1), "{n}");
        }
    }
    assert_eq!(pool.stats().connects, 1);
}

#[tokio::test]
async fn a_deadline_is_kept_and_the_connection_too() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let slow = within(ask("SELECT pg_sleep(300)::text AS a", &["a"]), Duration::from_millis(100));
    assert_eq!(call(&pool, slow).await, Err(Failure::Timeout));
    assert_eq!(call(&pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
    assert_eq!(pool.stats().connects, 1);
    // A reader who takes nothing cannot hold the connection beyond its deadline (case 11).
    let big = ask("SELECT repeat('x', 1000) AS a FROM generate_series(1, 1000000) g", &["a"]);
    let unread = pool.submit(within(big, Duration::from_millis(200)));
    assert_eq!(call(&pool, ask("SELECT 'y'::text AS a", &["a"])).await.unwrap().one(), "y");
    assert_eq!(collect_failure(unread).await, Some(Failure::Timeout));
    assert_eq!(pool.stats().connects, 1);
}

async fn collect_failure(mut receiver: tokio::sync::mpsc::Receiver<Event>) -> Option<Failure> {
    let mut last = None;
    while let Some(event) = receiver.recv().await {
        last = Some(event);
    }
    match last {
        Some(Event::Failed { failure, .. }) => Some(failure),
        _ => None,
    }
}

// Case 4.
#[tokio::test]
async fn a_pool_of_one_is_never_exceeded() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool_with(Limits { queue: 2, ..Limits::default() });
    let first = pool.submit(ask("SELECT pg_sleep(300)::text AS a", &["a"]));
    eventually("it sleeps", || server.psql(SLEEPERS) == "1").await;
    let soon = || within(ask("SELECT 'x'::text AS a", &["a"]), Duration::from_millis(150));
    let waiting = [pool.submit(soon()), pool.submit(soon())];
    eventually("both wait", || pool.stats().waiting == 2).await;
    // The queue is full: at once.
    assert_eq!(call(&pool, ask("SELECT 'x'::text AS a", &["a"])).await, Err(Failure::PoolFull));
    for waiting in waiting {
        assert_eq!(collect(waiting, 1).await, Err(Failure::PoolFull));
    }
    let owned = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace'";
    assert_eq!(server.psql(owned), "1");
    drop(first);
    assert_eq!(call(&pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
}

#[tokio::test]
async fn nobody_gets_a_connection_with_too_little_time_left() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool_with(Limits::default());
    let first = pool.submit(ask("SELECT pg_sleep(1.2)::text AS a", &["a"]));
    eventually("it sleeps", || server.psql(SLEEPERS) == "1").await;
    // Who waits for the connection has half of its time for that, so that none is lent to a statement which would be cancelled.
    let (soon, late) = (Duration::from_millis(1_400), Duration::from_secs(20));
    let (soon, late) =
        (pool.submit(within(ask("SELECT 'x'::text AS a", &["a"]), soon)), pool.submit(within(ask("SELECT 'y'::text AS a", &["a"]), late)));
    assert_eq!(collect(soon, 1).await, Err(Failure::PoolFull));
    assert_eq!(server.psql(SLEEPERS), "1", "the other still has it");
    assert_eq!(collect(late, 1).await.unwrap().one(), "y");
    assert!(collect(first, 1).await.is_ok());
    assert_eq!(pool.stats().connects, 1);
}

// Case 5.
#[tokio::test]
async fn only_the_excess_waits_for_a_limited_role() {
    let server = Server::start();
    server.psql("CREATE ROLE two LOGIN CONNECTION LIMIT 2");
    let place = Place::new(&server.url().replace("postgres@", "two@"), 3);
    let pool = place.pool();
    for _ in 0..3 {
        let calls: Vec<_> = (0..3).map(|_| pool.submit(ask("SELECT pg_sleep(0.2)::text AS a", &["a"]))).collect();
        for call in calls {
            assert_eq!(collect(call, 1).await.map(|answer| answer.rows.len()), Ok(1));
        }
    }
    assert_eq!(server.psql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'two'"), "2");
    assert_eq!(pool.stats().connects - pool.stats().failures, 2);
}

#[tokio::test]
async fn threads_share_one_budget() {
    let server = Server::start();
    let place = Place::new(&server.url(), 2);
    let (source, budget) = (Arc::new(Source::new(&place.plan)), Budget::new(2));
    let pools: Vec<Pool> =
        (0..3).map(|_| Pool::new(Arc::clone(&source), Arc::clone(&budget), Observer::silent().reach("d"), Limits::default())).collect();
    // One pool keeps both idle; the others get theirs all the same.
    let both: Vec<_> = (0..2).map(|_| pools[0].submit(ask("SELECT pg_sleep(0.05)::text AS a", &["a"]))).collect();
    for call in both {
        collect(call, 1).await.unwrap();
    }
    assert_eq!(pools[0].stats().idle, 2);
    for pool in &pools {
        assert_eq!(call(pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
    }
    // Under constant load of one, the others do not starve.
    let busy = tokio::spawn({
        let pool = Pool::new(Arc::clone(&source), Arc::clone(&budget), Observer::silent().reach("d"), Limits::default());
        async move {
            loop {
                let calls: Vec<_> = (0..6).map(|_| pool.submit(ask("SELECT pg_sleep(0.005)::text AS a", &["a"]))).collect();
                for call in calls {
                    collect(call, 1).await.unwrap();
                }
            }
        }
    });
    for _ in 0..5 {
        for pool in &pools {
            assert_eq!(call(pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
        }
    }
    busy.abort();
    assert!(server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace'").parse::<u32>().unwrap() <= 2);
}

#[tokio::test]
async fn threads_that_all_wait_keep_their_connections() {
    let server = Server::start();
    let place = Place::new(&server.url(), 4);
    let (source, budget) = (Arc::new(Source::new(&place.plan)), Budget::new(4));
    let pools: Vec<Pool> =
        (0..2).map(|_| Pool::new(Arc::clone(&source), Arc::clone(&budget), Observer::silent().reach("d"), Limits::default())).collect();
    // Every call waits longer than it takes to be hungry.
    let sleep = || ask("SELECT pg_sleep(0.02)::text AS a", &["a"]);
    let calls: Vec<_> = (0..60).flat_map(|_| pools.iter().map(|pool| pool.submit(sleep()))).collect();
    for call in calls {
        collect(call, 1).await.unwrap();
    }
    let connects: u64 = pools.iter().map(|pool| pool.stats().connects).sum();
    assert!(connects <= 12, "{connects} connects for 120 calls on 4 connections");
}

#[tokio::test]
async fn a_restart_is_not_noticed_by_idle_connections() {
    let mut server = Server::start();
    let place = Place::new(&server.url(), 4);
    let pool = place.pool();
    let calls: Vec<_> = (0..4).map(|_| pool.submit(ask("SELECT pg_sleep(0.1)::text AS a", &["a"]))).collect();
    for call in calls {
        collect(call, 1).await.unwrap();
    }
    assert_eq!(pool.stats().idle, 4);
    for mode in ["fast", "immediate"] {
        server.stop(mode);
        server.run(&[]);
        for _ in 0..4 {
            assert_eq!(call(&pool, ask("SELECT 'up'::text AS a", &["a"])).await.unwrap().one(), "up");
        }
    }
    // Down: an honest failure, soon; up again: an answer.
    server.stop("fast");
    assert_eq!(call(&pool, ask("SELECT 'up'::text AS a", &["a"])).await, Err(Failure::Unavailable));
    assert!(pool.stats().last_failure.unwrap().contains("refused"));
    server.run(&[]);
    let began = Instant::now();
    loop {
        match call(&pool, ask("SELECT 'up'::text AS a", &["a"])).await {
            Ok(answer) => break assert_eq!(answer.one(), "up"),
            Err(Failure::Unavailable) if began.elapsed() < Duration::from_secs(15) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    assert_eq!(pool.stats().last_failure, None);
}

#[tokio::test]
async fn a_backend_killed_under_a_read_is_replaced_once() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace' AND state = 'active'";
    let receiver = pool.submit(ask("SELECT pg_sleep(1)::text AS a", &["a"]));
    eventually("it is killed", || server.psql(kill) == "t").await;
    assert_eq!(collect(receiver, 1).await.unwrap().rows.len(), 1);
    assert_eq!(pool.stats().connects, 2);
}

// Case 8.
#[tokio::test]
async fn a_table_altered_under_a_prepared_statement() {
    let server = Server::start();
    server.psql("CREATE TABLE t(a text, b text); INSERT INTO t VALUES ('1', '2')");
    let oid: u32 = server.psql("SELECT 't'::regclass::oid").parse().unwrap();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let all = |names: &[(&str, i32)]| {
        let mut ask = ask("SELECT * FROM t", &[]);
        ask.columns = names
            .iter()
            .map(|(name, n)| {
                let mut c = column(name, 25);
                (c.table_oid, c.column_number) = (oid, *n);
                c
            })
            .collect();
        ask
    };
    assert_eq!(call(&pool, all(&[("a", 1), ("b", 2)])).await.unwrap().rows.len(), 1);
    server.psql("ALTER TABLE t ADD c text");
    // The new column is never shown under the old plan.
    assert_eq!(call(&pool, all(&[("a", 1), ("b", 2)])).await, Err(Failure::Stale));
    // A plan of the new shape meets the old statement: prepared again, unnoticed.
    assert_eq!(call(&pool, all(&[("a", 1), ("b", 2), ("c", 3)])).await.unwrap().rows.len(), 1);
    server.psql("ALTER TABLE t DROP b; ALTER TABLE t DROP c");
    assert_eq!(call(&pool, all(&[("a", 1)])).await.unwrap().rows.len(), 1);
    // Same name, same type, another column: the cached plan goes on in the server, the description tells.
    server.psql("ALTER TABLE t DROP a; ALTER TABLE t ADD a text");
    assert_eq!(call(&pool, all(&[("a", 1)])).await, Err(Failure::Stale));
    assert_eq!(call(&pool, all(&[("a", 4)])).await.unwrap().rows.len(), 1);
    assert_eq!(pool.stats().connects, 1);
}

// Case 48.
#[tokio::test]
async fn a_trace_is_a_comment_and_breaks_no_reuse() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let sql = "SELECT (SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS a -- end";
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for _ in 0..2 {
        let plain = call(&pool, ask(sql, &["a"])).await.unwrap();
        assert_eq!(plain.one(), sql);
        let mut traced = ask(sql, &["a"]);
        traced.trace = Some(trace.into());
        assert_eq!(call(&pool, traced).await.unwrap().one(), format!("/*traceparent='{trace}'*/ {sql}"));
        let mut hostile = ask(sql, &["a"]);
        hostile.trace = Some("*/ SELECT 1; --".into());
        assert_eq!(call(&pool, hostile).await.unwrap().one(), sql);
    }
    let prepared = "SELECT count(*)::text AS a FROM pg_prepared_statements WHERE statement LIKE 'SELECT (SELECT query%'";
    assert_eq!(call(&pool, ask(prepared, &["a"])).await.unwrap().one(), "1");
}
