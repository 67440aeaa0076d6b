//! Behind PgBouncer in transaction mode (case 7): nothing prepared is relied on, nothing outlives a transaction.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use lane::{Place, ask, bind, call, collect, eventually, keyed, write};
use postgres_server::{Server, free_port, give, unprivileged};
use std::process::{Child, Stdio};
use std::time::Duration;
use tailrace_dataplane::engine::Failure;
use tailrace_dataplane::engine::postgres::{Access, ConnectError, Source, connect};
use tailrace_dataplane::plan::snapshot::Pooler;
use tokio::time::Instant;

struct Bouncer {
    port: u16,
    child: Child,
    _home: tempfile::TempDir,
}

impl Bouncer {
    /// Two server connections for everybody.
    fn start(server: &Server) -> Self {
        let home = tempfile::Builder::new().prefix("tailrace-pgb-").tempdir_in("/var/tmp").unwrap();
        let port = free_port();
        let users = home.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let config = home.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host={} port={} dbname=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n",
            server.home().display(),
            server.port,
            users.display()
        );
        std::fs::write(&config, text).unwrap();
        give(home.path());
        let program = "/usr/sbin/pgbouncer";
        assert!(std::path::Path::new(program).exists(), "install PgBouncer: apt-get install pgbouncer");
        let child = unprivileged(program).arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { port, child, _home: home }
    }

    fn place(&self, max_connections: u32) -> Place {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port);
        let mut place = Place::new(&url, max_connections);
        place.plan.pooler = Pooler::Transaction;
        place
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[tokio::test]
async fn sessions_move_between_servers() {
    let server = Server::start();
    server.psql("ALTER ROLE postgres SET TimeZone = 'Asia/Tokyo'; ALTER ROLE postgres SET IntervalStyle = 'postgres'; CREATE SCHEMA shop; CREATE TABLE shop.t(a int PRIMARY KEY)");
    let bouncer = Bouncer::start(&server);
    let mut place = bouncer.place(8);
    place.plan.session = vec![("search_path".into(), "shop, pg_catalog".into())];
    let pool = place.pool();
    // 40 at once on 8 client and 2 server connections, the same names everywhere.
    for _ in 0..3 {
        let calls: Vec<_> = (0..40)
            .map(|n| {
                let sql = "SELECT $1::text AS a, current_setting('TimeZone') || ' ' || '1 day'::interval::text || ' ' || current_setting('search_path') || ' ' \
                           || current_setting('transaction_read_only') || (SELECT count(*) FROM t) AS b";
                pool.submit(bind(ask(sql, &["a", "b"]), &[25], &[&n.to_string()]))
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate() {
            let row = collect(call, 2).await.unwrap().rows.remove(0);
            assert_eq!(row, [Some(n.to_string()), Some("UTC P1D shop, pg_catalog on0".to_owned())]);
        }
    }
    assert_eq!(server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace'"), "2");
    // Nothing of it stays with the server connection.
    let plain = bouncer.place(1);
    let mut plain_target = Source::new(&plain.plan).read().unwrap();
    plain_target.pooler = Pooler::Transaction;
    let mut other = connect(&plain_target, Access::ReadOnly, Instant::now() + Duration::from_secs(5)).await.unwrap();
    for _ in 0..4 {
        assert_eq!(&other.simple("SHOW TimeZone").await.unwrap()[0][4..], b"Asia/Tokyo");
    }
    assert_eq!(call(&pool, ask("INSERT INTO t VALUES (1) RETURNING 'a'::text AS a", &["a"])).await, Err(Failure::Unavailable));
    assert_eq!(call(&pool, ask("SELECT (1/0)::text AS a", &["a"])).await, Err(Failure::Refused(*b"22012")));
    let mut limited = ask("SELECT g::text AS a FROM generate_series(1, 100) g", &["a"]);
    limited.limit = Some(5);
    assert!(call(&pool, limited).await.unwrap().more);
    assert_eq!(call(&pool, ask("SELECT '1'::text AS b", &["a"])).await, Err(Failure::Stale));
    assert_eq!(call(&pool, write("INSERT INTO t VALUES (1), (2)", &[])).await.unwrap().affected, 2);
    assert_eq!(call(&pool, write("INSERT INTO t VALUES (1)", &[])).await, Err(Failure::Constraint));
    // A failed write is told before its rollback has an answer.
    eventually("no transaction is left open", || server.psql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'") == "0")
        .await;
}

#[tokio::test]
async fn a_plain_session_is_refused_by_it_and_cancel_works_through_it() {
    let server = Server::start();
    let bouncer = Bouncer::start(&server);
    let mut place = bouncer.place(2);
    // Startup parameters that it doesn't know: said at once, not lost.
    place.plan.pooler = Pooler::None;
    let target = Source::new(&place.plan).read().unwrap();
    let refused = connect(&target, Access::ReadOnly, Instant::now() + Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused(_)), "{refused}");
    place.plan.pooler = Pooler::Transaction;
    let pool = place.pool();
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()";
    for n in 0..20_u64 {
        let receiver = pool.submit(ask("SELECT pg_sleep(300)::text AS a", &["a"]));
        eventually("it sleeps", || server.psql(sleeping) == "1").await;
        drop(receiver);
        assert_eq!(call(&pool, ask("SELECT pg_sleep(0.01)::text AS a", &["a"])).await.map(|a| a.rows.len()), Ok(1), "{n}");
        eventually("it is cancelled", || server.psql(sleeping) == "0").await;
    }
}

#[tokio::test]
async fn idempotency_through_it() {
    let server = Server::start();
    server.psql(
        "CREATE TABLE t(a serial PRIMARY KEY); CREATE TABLE idem (caller text, key text, query text, arguments text, affected bigint, \
         more boolean, row_count int, result bytea, created_at timestamptz DEFAULT now(), PRIMARY KEY (caller, key))",
    );
    let bouncer = Bouncer::start(&server);
    let place = bouncer.place(8);
    let pool = place.pool();
    let sql = "INSERT INTO t SELECT nextval('t_a_seq') FROM pg_sleep(0.1) RETURNING a::text AS a";
    let calls: Vec<_> = (0..10).map(|_| pool.submit(keyed(sql, &["a"], "idem", "k", "x"))).collect();
    let mut answered = 0;
    for call in calls {
        match collect(call, 1).await {
            Ok(answer) => {
                assert_eq!(answer.one(), "1");
                answered += 1;
            }
            Err(failure) => assert_eq!(failure, Failure::IdempotencyRunning),
        }
    }
    assert!(answered >= 1);
    assert!(call(&pool, keyed(sql, &["a"], "idem", "k", "x")).await.unwrap().repeated);
    assert_eq!(server.psql("SELECT count(*) FROM t"), "1");
}
