//! Writes against a real PostgreSQL: one transaction, idempotency, callers who leave, connections that break.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use lane::{Place, ask, bind, call, collect, column, eventually, keyed, within, write};
use postgres_server::Server;
use std::process::Command;
use std::time::Duration;
use tailrace_dataplane::engine::postgres::Pool;
use tailrace_dataplane::engine::{Ask, Event, Failure};

/// The contract's own DDL, so that both stay in step.
fn make_table(server: &Server) {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/src");
    let code = "from tailrace_contract.idempotency import ddl; print(ddl('tailrace_idempotency'))";
    let output = Command::new("python3").args(["-c", code]).env("PYTHONPATH", sources).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.psql(&String::from_utf8(output.stdout).unwrap());
    server.psql("CREATE TABLE t(a int PRIMARY KEY, b text)");
}

const INSERT: &str = "INSERT INTO t VALUES ((SELECT count(*) FROM t) + 1, 'x') RETURNING a::text AS a, NULL::text AS b";

fn insert(key: &str, arguments: &str) -> Ask {
    keyed(INSERT, &["a", "b"], "tailrace_idempotency", key, arguments)
}

fn count(server: &Server) -> String {
    server.psql("SELECT count(*) FROM t")
}

#[tokio::test]
async fn writes_commit_and_count() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let answer = call(&pool, write("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 5) g", &[])).await.unwrap();
    assert_eq!((answer.affected, answer.rows.len(), answer.repeated), (5, 0, false));
    let mut some = write("DELETE FROM t RETURNING a::text AS a", &["a"]);
    some.limit = Some(2);
    let answer = call(&pool, some).await.unwrap();
    // A limit cuts what is shown, never what is done.
    assert_eq!((answer.affected, answer.rows.len(), answer.more, count(&server).as_str()), (5, 2, true, "0"));
    let long = write("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 1000) g RETURNING b", &["b"]);
    let mut long = long;
    let oid: u32 = server.psql("SELECT 't'::regclass::oid").parse().unwrap();
    let mut b = column("b", 25);
    (b.table_oid, b.column_number) = (oid, 2);
    long.columns = [b].into();
    assert_eq!(call(&pool, long).await.unwrap().rows.len(), 1000);
    assert_eq!(pool.stats().connects, 1);
}

#[tokio::test]
async fn failures_leave_nothing() {
    let server = Server::start();
    make_table(&server);
    server.psql("INSERT INTO t VALUES (1, 'x'); CREATE TABLE d(a int REFERENCES t DEFERRABLE INITIALLY DEFERRED)");
    let mut place = Place::new(&server.url(), 1);
    let patient = place.pool();
    place.plan.statement_timeout_ms = 300;
    let hasty = place.pool();
    for (sql, failure) in [
        ("INSERT INTO t VALUES (2, 'y'), (1, 'z')", Failure::Constraint),
        ("INSERT INTO d VALUES (7)", Failure::Constraint),
        ("INSERT INTO t SELECT 2, (1/0)::text", Failure::Refused(*b"22012")),
        ("INSERT INTO t SELECT 2, pg_sleep(20)::text", Failure::Timeout),
        ("INSERT INTO t VALUES (2) RETURNING a", Failure::Stale),
        ("COPY t FROM STDIN", Failure::Refused(*b"0A000")),
        ("INSERT INTO nowhere VALUES (1)", Failure::Refused(*b"42P01")),
    ] {
        let pool = if failure == Failure::Timeout { &hasty } else { &patient };
        assert_eq!(call(pool, write(sql, &[])).await, Err(failure), "{sql}");
        assert_eq!(count(&server), "1", "{sql}");
    }
    let huge = "INSERT INTO t SELECT g, 'x' FROM generate_series(2, 30) g RETURNING repeat('x', 1000000) AS a";
    assert_eq!(call(&patient, write(huge, &["a"])).await, Err(Failure::Refused(*b"54000")));
    assert_eq!(count(&server), "1");
    // And the session reads only, as before.
    assert_eq!(call(&patient, ask("INSERT INTO t VALUES (9) RETURNING 'a'::text AS a", &["a"])).await, Err(Failure::Unavailable));
}

#[tokio::test]
async fn nothing_outlives_a_write() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let nasty = "INSERT INTO t SELECT 1, set_config('TimeZone', 'Asia/Tokyo', false) || set_config('default_transaction_read_only', 'off', false) \
                 || set_config('app.x', '1', false) || set_config('search_path', 'y', false) || pg_try_advisory_lock(7)::text";
    call(&pool, write(nasty, &[])).await.unwrap();
    let after = "SELECT current_setting('TimeZone') || ' ' || current_setting('default_transaction_read_only') || ' ' || \
                 coalesce(current_setting('app.x', true), '') || ' ' || current_setting('search_path') || ' ' || \
                 (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS a";
    assert_eq!(call(&pool, ask(after, &["a"])).await.unwrap().one(), "UTC on  \"$user\", public 0");
    // Rolled back, the lock is given up, too.
    call(&pool, write("INSERT INTO t SELECT 2, pg_try_advisory_lock(7)::text || (1/0)", &[])).await.unwrap_err();
    assert_eq!(call(&pool, ask(after, &["a"])).await.unwrap().one(), "UTC on  \"$user\", public 0");
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let first = call(&pool, insert("k1", "a1")).await.unwrap();
    let again = call(&pool, insert("k1", "a1")).await.unwrap();
    assert_eq!((&first.rows, first.affected, first.repeated), (&vec![vec![Some("1".to_owned()), None]], 1, false));
    assert_eq!((&again.rows, again.affected, again.repeated), (&first.rows, 1, true));
    assert_eq!(call(&pool, insert("k1", "other")).await, Err(Failure::IdempotencyMismatch));
    assert_eq!(call(&pool, insert("k2", "a1")).await.unwrap().rows[0][0].as_deref(), Some("2"));
    assert_eq!(count(&server), "2");
    let stored =
        "SELECT caller, key, query, arguments, affected, more, row_count, encode(result, 'hex') FROM tailrace_idempotency WHERE key = 'k1'";
    assert_eq!(server.psql(stored), "ns/caller|k1|q|a1|1|f|1|0000000131ffffffff");
    // A failure is not an outcome: the key is free again.
    server.psql("DELETE FROM t WHERE a = 1");
    assert_eq!(call(&pool, insert("k3", "a")).await, Err(Failure::Constraint));
    server.psql("DELETE FROM t");
    assert!(!call(&pool, insert("k3", "a")).await.unwrap().repeated);
    // Whoever knows an answer never finds its call still running.
    for _ in 0..100 {
        assert!(call(&pool, insert("k3", "a")).await.unwrap().repeated);
        assert_eq!(call(&pool, insert("k3", "b")).await, Err(Failure::IdempotencyMismatch));
    }
    // No table: refused, nothing done.
    let astray = keyed(INSERT, &["a", "b"], "nowhere", "k", "a");
    assert_eq!(call(&pool, astray).await, Err(Failure::Refused(*b"42P01")));
    assert_eq!(count(&server), "1");
}

#[tokio::test]
async fn twenty_callers_one_effect() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 8);
    let pool = place.pool();
    let slow = "INSERT INTO t SELECT 1, pg_sleep(0.3)::text RETURNING a::text AS a, b AS b";
    let slow = || {
        let mut ask = keyed(slow, &["a", "b"], "tailrace_idempotency", "one", "x");
        let mut columns = ask.columns.to_vec();
        (columns[1].table_oid, columns[1].column_number) = (server.psql("SELECT 't'::regclass::oid").parse().unwrap(), 2);
        ask.columns = columns.into();
        ask
    };
    let calls: Vec<_> = (0..20).map(|_| pool.submit(slow())).collect();
    let (mut fresh, mut repeated, mut running) = (0, 0, 0);
    for call in calls {
        match collect(call, 2).await {
            Ok(answer) if answer.repeated => repeated += 1,
            Ok(_) => fresh += 1,
            Err(Failure::IdempotencyRunning) => running += 1,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert_eq!((fresh, fresh + repeated + running), (1, 20));
    assert!(running > 0, "some must have met it under way");
    assert_eq!(count(&server), "1");
    assert!(call(&pool, slow()).await.unwrap().repeated);
}

async fn until_active(server: &Server, sql: &str) {
    let active =
        format!("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%{sql}%' AND pid <> pg_backend_pid()");
    eventually("it is under way", || server.psql(&active) == "1").await;
}

// Case 2.
#[tokio::test]
async fn a_caller_who_leaves_is_rolled_back_or_told_the_truth() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let slow = || write("INSERT INTO t SELECT 1, pg_sleep(30)::text", &[]);
    drop((pool.submit(slow()), until_active(&server, "pg_sleep(30)").await));
    assert_eq!(call(&pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
    assert_eq!(count(&server), "0");
    // Leaves, but stays to hear how it went.
    let mut receiver = pool.submit(slow());
    until_active(&server, "pg_sleep(30)").await;
    receiver.close();
    assert_eq!(collect(receiver, 0).await, Err(Failure::Cancelled));
    // Too late to undo: COMMIT is under way, held up by a deferred trigger that sleeps.
    server.psql(
        "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION nap()",
    );
    let mut receiver = pool.submit(write("INSERT INTO t VALUES (2, 'x')", &[]));
    until_active(&server, "COMMIT").await;
    receiver.close();
    assert_eq!(collect(receiver, 0).await.unwrap().affected, 1);
    assert_eq!(count(&server), "1");
    // The deadline passes meanwhile: committed is committed.
    let late = within(write("INSERT INTO t VALUES (3, 'x')", &[]), Duration::from_millis(300));
    assert_eq!(call(&pool, late).await.unwrap().affected, 1);
    let never = within(slow(), Duration::from_millis(200));
    assert_eq!(call(&pool, never).await, Err(Failure::Timeout));
    assert_eq!(count(&server), "2");
}

const KILL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace'";

#[tokio::test]
async fn a_write_killed_mid_way_is_not_run_again() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    // A sequence tells how often it ran, rolled back or not.
    server.psql("CREATE SEQUENCE runs");
    let sql = "INSERT INTO t SELECT nextval('runs'), pg_sleep(5)::text";
    let receiver = pool.submit(keyed(sql, &[], "tailrace_idempotency", "k", "a"));
    until_active(&server, "pg_sleep(5)").await;
    assert_eq!(server.psql(KILL), "t");
    assert_eq!(collect(receiver, 0).await, Err(Failure::Unavailable));
    assert_eq!((count(&server).as_str(), server.psql("SELECT last_value FROM runs").as_str()), ("0", "1"));
    // Killed during COMMIT: unknown to us; the key knows.
    server.psql(
        "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION nap()",
    );
    let quick = || keyed("INSERT INTO t SELECT nextval('runs'), 'x'", &[], "tailrace_idempotency", "k2", "a");
    let receiver = pool.submit(quick());
    until_active(&server, "COMMIT").await;
    assert_eq!(server.psql(KILL), "t");
    assert_eq!(collect(receiver, 0).await, Err(Failure::Unavailable));
    server.psql("DROP TRIGGER nap ON t");
    assert!(!call(&pool, quick()).await.unwrap().repeated);
    assert!(call(&pool, quick()).await.unwrap().repeated);
    assert_eq!(count(&server), "1");
}

/// On a connection that was in use just now BEGIN and the statement are one flight, COMMIT and what undoes it another.
#[tokio::test]
async fn writes_in_a_row_are_as_careful_as_the_first() {
    let server = Server::start();
    make_table(&server);
    server.psql("CREATE SEQUENCE runs; ALTER TABLE t ADD CONSTRAINT few CHECK (a < 1000)");
    server.psql(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE check_violation; END $$; \
         CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.a = 500) EXECUTE FUNCTION no()",
    );
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let insert = |n: u32| bind(write("INSERT INTO t VALUES ($1, nextval('runs')::text)", &[]), &[23], &[&n.to_string()]);
    for n in 0..3 {
        assert_eq!(call(&pool, insert(n)).await.unwrap().affected, 1);
    }
    // The statement fails; the COMMIT fails.
    for n in [2000, 500] {
        assert_eq!(call(&pool, insert(n)).await, Err(Failure::Constraint));
        assert_eq!(call(&pool, insert(n / 50)).await.unwrap().affected, 1);
    }
    assert_eq!(count(&server), "5");
    // Somebody drops our own statements: nothing ran, so it is asked again.
    let drop_all = "CREATE FUNCTION forget() RETURNS text LANGUAGE plpgsql AS $$ BEGIN DEALLOCATE ALL; RETURN 'x'; END $$";
    server.psql(drop_all);
    _ = call(&pool, write("INSERT INTO t SELECT 7, forget()", &[])).await;
    let before = count(&server).parse::<u32>().unwrap();
    assert_eq!(call(&pool, insert(8)).await.unwrap().affected, 1);
    assert_eq!(count(&server), (before + 1).to_string());
    // Killed in the middle: not run again.
    assert_eq!(call(&pool, insert(9)).await.unwrap().affected, 1);
    let ran: u32 = server.psql("SELECT last_value FROM runs").parse().unwrap();
    let receiver = pool.submit(write("INSERT INTO t SELECT nextval('runs'), pg_sleep(5)::text", &[]));
    until_active(&server, "pg_sleep(5)").await;
    assert_eq!(server.psql(KILL), "t");
    assert_eq!(collect(receiver, 0).await, Err(Failure::Unavailable));
    assert_eq!(server.psql("SELECT last_value FROM runs"), (ran + 1).to_string());
}

#[tokio::test]
async fn an_idle_connection_that_died_does_not_fail_a_write() {
    let mut server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    for n in 0..3 {
        let insert = bind(write("INSERT INTO t VALUES ($1, 'x')", &[]), &[23], &[&n.to_string()]);
        assert_eq!(call(&pool, insert).await.unwrap().affected, 1);
        server.stop("fast");
        server.run(&[]);
    }
    assert_eq!(count(&server), "3");
}

#[tokio::test]
async fn a_table_altered_under_a_prepared_write() {
    let server = Server::start();
    make_table(&server);
    let place = Place::new(&server.url(), 1);
    let pool = place.pool();
    let oid: u32 = server.psql("SELECT 't'::regclass::oid").parse().unwrap();
    let all = |n: u32| {
        let mut ask = write(&format!("INSERT INTO t SELECT {} RETURNING *", "count(*) + 1 FROM t"), &[]);
        let names = [("a", 23), ("b", 25), ("c", 25)];
        ask.columns = names[..n as usize]
            .iter()
            .zip(1..)
            .map(|((name, oid_of_type), number)| {
                let mut column = column(name, *oid_of_type);
                (column.table_oid, column.column_number) = (oid, number);
                column
            })
            .collect();
        ask
    };
    assert_eq!(call(&pool, all(2)).await.unwrap().affected, 1);
    server.psql("ALTER TABLE t ADD c text");
    assert_eq!(call(&pool, all(2)).await, Err(Failure::Stale));
    assert_eq!(count(&server), "1");
    assert_eq!(call(&pool, all(3)).await.unwrap().affected, 1);
    assert_eq!(count(&server), "2");
}

/// Reads of many statements keep the server's memory bounded: more than are kept are closed.
#[tokio::test]
async fn prepared_statements_are_bounded() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let pool: Pool = place.pool();
    for n in 0..300 {
        let answer = call(&pool, ask(&format!("SELECT '{n}'::text AS a"), &["a"])).await.unwrap();
        assert_eq!(answer.one(), n.to_string());
    }
    let kept = call(&pool, ask("SELECT count(*)::text AS a FROM pg_prepared_statements WHERE name LIKE 't%'", &["a"])).await.unwrap();
    assert_eq!(kept.one(), "256");
    let mut receiver = pool.submit(ask("SELECT '7'::text AS a", &["a"]));
    assert!(matches!(receiver.recv().await, Some(Event::Rows { count: 1, .. })));
}
