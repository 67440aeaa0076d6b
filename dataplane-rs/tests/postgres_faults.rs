//! What networks and operators do: hosts that fail over, passwords that change, packets that vanish.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use lane::{Place, ask, call, eventually, within, write};
use postgres_server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailrace_dataplane::engine::Failure;
use tailrace_dataplane::engine::postgres::{Access, ConnectError, Limits, Source, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

async fn port_of(url: &str) -> Result<String, ConnectError> {
    let place = Place::new(url, 1);
    let target = Source::new(&place.plan).read()?;
    let mut connection = connect(&target, Access::ReadOnly, Instant::now() + Duration::from_secs(10)).await?;
    let rows = connection.simple("SHOW port; SHOW default_transaction_read_only").await?;
    assert_eq!(&rows[1][4..], b"on", "our sessions read, whatever the server is");
    Ok(String::from_utf8(rows[0][4..].to_vec()).unwrap())
}

#[tokio::test]
async fn hosts_are_tried_in_order_and_by_kind() {
    let (mut first, second, standby) = (Server::start(), Server::start(), Server::start_standby());
    let (one, two, three) = (first.port.to_string(), second.port.to_string(), standby.port.to_string());
    // The second refuses writes by default, the third is in recovery.
    second.psql("ALTER SYSTEM SET default_transaction_read_only = on");
    second.reload();
    eventually("it is read-only", || second.psql("SHOW default_transaction_read_only") == "on").await;
    let url = |ports: &[&str], attrs: &str| {
        let hosts = vec!["127.0.0.1"; ports.len()].join(",");
        format!("postgres:///postgres?user=postgres&host={hosts}&port={}&sslmode=disable&target_session_attrs={attrs}", ports.join(","))
    };
    for (ports, attrs, expected) in [
        ([&*three, &*two, &*one], "any", Ok(&three)),
        ([&*three, &*two, &*one], "read-write", Ok(&one)),
        ([&*one, &*two, &*three], "read-only", Ok(&two)),
        ([&*three, &*two, &*one], "primary", Ok(&two)),
        ([&*one, &*two, &*three], "standby", Ok(&three)),
        ([&*one, &*two, &*three], "prefer-standby", Ok(&three)),
        ([&*one, &*two, &*two], "prefer-standby", Ok(&one)),
        ([&*one, &*two, &*two], "standby", Err(ConnectError::Unsuitable)),
        ([&*three, &*three, &*three], "read-write", Err(ConnectError::Unsuitable)),
        (["1", "1", &*one], "any", Ok(&one)),
    ] {
        assert_eq!(port_of(&url(&ports, attrs)).await.as_ref(), expected.as_ref().map(|port| *port), "{attrs}");
    }
    // A name that does not resolve is passed over, too.
    let named = format!("postgres://postgres@no-such-host.invalid:{one},localhost:{one}/postgres?sslmode=disable");
    assert_eq!(port_of(&named).await, Ok(one.clone()));
    let pool_place = Place::new(&url(&[&one, &two], "any"), 2);
    let pool = pool_place.pool();
    assert_eq!(call(&pool, ask("SELECT current_setting('port') AS a", &["a"])).await.unwrap().one(), one);
    first.stop("immediate");
    assert_eq!(call(&pool, ask("SELECT current_setting('port') AS a", &["a"])).await.unwrap().one(), two);
    // A write that meets a standby: the caller may come again, nothing is said to be wrong with it.
    let alone = Place::new(&url(&[&three], "any"), 1);
    assert_eq!(call(&alone.pool(), write("CREATE TABLE x(a int)", &[])).await, Err(Failure::Unavailable));
}

// Case 9.
#[tokio::test]
async fn a_rotated_password_is_not_noticed() {
    rotate(3).await;
}

#[tokio::test]
async fn nor_on_the_only_connection() {
    rotate(1).await;
}

async fn rotate(connections: u32) {
    let server =
        Server::start_with("local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n", &[]);
    server.psql("CREATE ROLE app LOGIN PASSWORD 'one'");
    let url = |password: &str| format!("postgres://app:{password}@127.0.0.1:{}/postgres?sslmode=disable", server.port);
    let place = Place::new(&url("one"), connections);
    let pool = Arc::new(place.pool());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (pool, stop) = (Arc::clone(&pool), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = call(&pool, ask("SELECT pg_sleep(0.005)::text AS a", &["a"])).await;
                    answer.unwrap_or_else(|failure| panic!("{failure}, {:?}", pool.stats()));
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    eventually("all are open", || pool.stats().live == connections as usize).await;
    let backends = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE usename = 'app'";
    let changed = |before: &str, now: &str| now.split(' ').all(|pid| !before.split(' ').any(|old| old == pid));
    // First the server, then the Secret; and the other way round. The old connections drain once the new password works.
    for (n, server_first) in [(1, true), (2, false)] {
        let before = server.psql(backends);
        let password = format!("next{n}");
        let alter = format!("ALTER ROLE app PASSWORD '{password}'");
        if server_first {
            server.psql(&alter);
            tokio::time::sleep(Duration::from_millis(300)).await;
            place.rotate(&url(&password));
        } else {
            place.rotate(&url(&password));
            tokio::time::sleep(Duration::from_millis(1500)).await;
            server.psql(&alter);
        }
        eventually("all connections are new", || changed(&before, &server.psql(backends))).await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
}

/// Forwards bytes until told to swallow them, as a network that drops packets without a word.
struct Proxy {
    port: u16,
    swallow: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallow = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&swallow);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let flag = Arc::clone(&flag);
                tokio::spawn(async move {
                    let upstream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    let ((a, b), (c, d)) = (client.into_split(), upstream.into_split());
                    tokio::spawn(pump(a, d, Arc::clone(&flag)));
                    pump(c, b, flag).await;
                });
            }
        });
        Self { port, swallow }
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, swallow: Arc<AtomicBool>) {
    let mut bytes = [0; 8192];
    loop {
        match from.read(&mut bytes).await {
            Ok(n) if n > 0 => {
                // What was swallowed is lost for good: the connection never recovers.
                if swallow.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
                if to.write_all(&bytes[..n]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

#[tokio::test]
async fn swallowed_packets_cost_no_more_than_the_deadline() {
    let server = Server::start();
    let proxy = Proxy::start(server.port).await;
    let place = Place::new(&format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable&connect_timeout=1", proxy.port), 2);
    let pool = place.pool_with(Limits::default());
    let soon = |sql: &str| within(ask(sql, &["a"]), Duration::from_millis(400));
    assert_eq!(call(&pool, soon("SELECT 'x'::text AS a")).await.unwrap().one(), "x");
    proxy.swallow.store(true, Ordering::Relaxed);
    // Under way, idle before, and new connections alike.
    for n in 0..4 {
        let began = std::time::Instant::now();
        let failure = call(&pool, soon("SELECT 'x'::text AS a")).await.unwrap_err();
        assert!(matches!(failure, Failure::Timeout | Failure::Unavailable | Failure::PoolFull), "{n}: {failure}");
        assert!(began.elapsed() < Duration::from_secs(5), "bounded");
    }
    proxy.swallow.store(false, Ordering::Relaxed);
    let began = std::time::Instant::now();
    while call(&pool, soon("SELECT 'x'::text AS a")).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "it comes back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("the dead connections are closed", || pool.stats().live == pool.stats().idle).await;
}

#[tokio::test]
async fn connections_age_and_idle_ones_close() {
    let server = Server::start();
    let place = Place::new(&server.url(), 1);
    let limits = Limits { life: Duration::from_millis(150), idle: Duration::from_millis(500), ..Limits::default() };
    let pool = place.pool_with(limits);
    for _ in 0..20 {
        call(&pool, ask("SELECT pg_sleep(0.03)::text AS a", &["a"])).await.unwrap();
    }
    assert!(pool.stats().connects >= 3);
    eventually("none is left", || server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace'") == "0").await;
    drop(pool);
}
