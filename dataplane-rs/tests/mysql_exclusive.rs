//! The exclusive lane against a real MariaDB: values, parameters, limits, cancellation, restarts, writes, logins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "mysql_server/lane.rs"]
mod lane;
mod mysql_server;

use lane::{Again, Place, call, collect, eventually, keyed, within, write};
use mysql_server::Server;
use std::time::Duration;
use tailrace_dataplane::engine::mysql::ConnectError;
use tailrace_dataplane::engine::{Event, Failure};

const SLEEPERS: &str = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(%' AND id <> connection_id()";

#[tokio::test]
async fn values_are_exact() {
    let server = Server::start();
    server.sql(
        "USE shop; SET sql_mode = ''; CREATE TABLE v (a BIGINT UNSIGNED, b BIT(1), c BIT(9), d DECIMAL(38,4), e FLOAT, f DOUBLE, g DATE, \
         h DATETIME(6), i TIMESTAMP(3) NULL, j TIME(2), k YEAR, l JSON, m BLOB, n ENUM('x','y'), o SET('p','q'), p VARCHAR(9), q TINYINT, \
         r CHAR(3), s VARBINARY(4)); SET time_zone = '+00:00'; \
         INSERT INTO v VALUES (18446744073709551615, 1, 257, -1234567890123456789012345678901234.5000, 1.1, 1e20, '0000-00-00', \
         '2026-01-31 09:30:00.120000', '2026-01-31 09:30:00.5', '-838:59:59', 2026, '{\"a\": 1}', x'fbff', 'y', 'p,q', 'é😀', -128, 'ab', x'00'), \
         (NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL)",
    );
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let answer = call(&pool, place.ask("SELECT * FROM v ORDER BY a IS NULL").await).await.unwrap();
    let expected = [
        "18446744073709551615",
        "t",
        "257",
        "-1234567890123456789012345678901234.5000",
        "1.1",
        "1e+20",
        "0000-00-00",
        "2026-01-31 09:30:00.12",
        "2026-01-31 09:30:00.5+00",
        "-838:59:59",
        "2026",
        "{\"a\": 1}",
        "\\xfbff",
        "y",
        "p,q",
        "é😀",
        "-128",
        "ab",
        "\\x00",
    ];
    assert_eq!(answer.row(), expected);
    assert!(answer.rows[1].iter().all(Option::is_none));
    // Places, as the contract sends them.
    let sql = "SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e, ? AS f, ? AS g, ? AS h";
    let values = ["18446744073709551615", "true", "1.10", "2.5", "2026-01-31", "2026-01-31T09:30:00+02:00", "\\x00ff", "é"];
    let places = [8, 1, 246, 5, 10, 12, 252, 253];
    let columns: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"]
        .map(|name| lane::column(name, tailrace_dataplane::plan::snapshot::Encoding::String, 0))
        .into();
    let mut ask = place.ask_with(sql, &places, &values.map(Some)).await;
    // What a Prepare without values says of them is not what an execution shows: the names are compared, the texts are free.
    let prepared: Vec<_> = ask
        .columns
        .iter()
        .zip(columns)
        .map(|(said, ours)| tailrace_dataplane::plan::snapshot::ColumnPlan { type_oid: said.type_oid, ..ours })
        .collect();
    ask.columns = prepared.into();
    let answer = call(&pool, ask).await.unwrap();
    assert_eq!(answer.row(), ["18446744073709551615", "1", "1.10", "2.5", "2026-01-31", "2026-01-31 07:30:00", "\\x00ff", "é"]);
    assert_eq!(pool.stats().connects, 1);
}

#[tokio::test]
async fn limits_streams_and_refusals() {
    let server = Server::start();
    server.sql("USE shop; CREATE TABLE t (a INT PRIMARY KEY)");
    let mut place = Place::new(&server.url(), 1);
    let pool = place.pool();
    for (limit, rows, more) in [(None, 100, false), (Some(7), 7, true), (Some(101), 100, false)] {
        let mut many = place.ask("SELECT seq AS a FROM seq_1_to_100").await;
        many.limit = limit;
        let answer = call(&pool, many).await.unwrap();
        assert_eq!((answer.rows.len(), answer.more), (rows, more), "{limit:?}");
    }
    // A limit of a large result: the rest is not read.
    let mut many = place.ask("SELECT seq AS a FROM seq_1_to_50000000").await;
    many.limit = Some(10);
    assert_eq!(call(&pool, many).await.unwrap().rows.len(), 10);
    eventually("it is killed", || {
        server.sql("SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%seq_1_to_5%' AND id <> connection_id()") == "0"
    })
    .await;
    // Many rows in pieces, flat.
    let mut receiver = pool.submit(place.ask("SELECT REPEAT('x', 100) AS a FROM seq_1_to_200000").await);
    let mut total = 0;
    while let Some(event) = receiver.recv().await {
        match event {
            Event::Rows { count, bytes } => {
                assert!(bytes.len() < 80 << 10);
                total += count;
            }
            Event::Done { .. } => assert_eq!(total, 200_000),
            Event::Failed { failure, .. } => panic!("{failure}"),
        }
    }
    assert_eq!(total, 200_000);
    assert_eq!(call(&pool, place.ask("INSERT INTO t VALUES (1)").await).await, Err(Failure::Unavailable));
    assert_eq!(call(&pool, place.ask("SELECT nonsense").await).await, Err(Failure::Refused(*b"42S22")));
    let mut stale = place.ask("SELECT 1 AS a").await;
    stale.columns = place.ask("SELECT 1 AS b").await.columns;
    assert_eq!(call(&pool, stale).await, Err(Failure::Stale));
    assert_eq!(call(&pool, place.ask_with("SELECT ? AS a", &[8], &[Some("x")]).await).await, Err(Failure::Refused(*b"22000")));
    // An ALTER TABLE between two executions.
    let read = place.ask("SELECT a FROM t").await;
    assert_eq!(call(&pool, read.again()).await.unwrap().rows.len(), 0);
    server.sql("ALTER TABLE shop.t RENAME COLUMN a TO b, ADD COLUMN a VARCHAR(3); INSERT INTO shop.t VALUES (1, 'x')");
    assert_eq!(call(&pool, read).await, Err(Failure::Protocol));
    place.plan.statement_timeout_ms = 200;
    assert_eq!(call(&place.pool(), place.ask("SELECT SLEEP(20) AS a").await).await, Err(Failure::Timeout));
}

// Cases 1 and 3.
#[tokio::test]
async fn callers_who_leave_are_killed_and_nobody_else() {
    let server = Server::start();
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let sleep = place.ask("SELECT SLEEP(300) AS a").await;
    let calls: Vec<_> = (0..2).map(|_| pool.submit(sleep.again())).collect();
    eventually("all sleep", || server.sql(SLEEPERS) == "2").await;
    drop(calls);
    assert_eq!(call(&pool, place.ask("SELECT 'next' AS a").await).await.unwrap().one(), "next");
    eventually("none sleeps", || server.sql(SLEEPERS) == "0").await;
    eventually("all are idle again", || pool.stats().idle == 2).await;
    assert_eq!(pool.stats().connects, 2);
    let (short, shorter) = (place.ask("SELECT SLEEP(0.003) AS a").await, place.ask("SELECT SLEEP(0.001) AS a").await);
    for n in 0..60_u64 {
        let receiver = pool.submit(short.again());
        tokio::time::sleep(Duration::from_micros(n * 100)).await;
        drop(receiver);
        for _ in 0..3 {
            assert_eq!(call(&pool, shorter.again()).await.unwrap().one(), "0", "{n}");
        }
    }
    let late = within(place.ask("SELECT SLEEP(300) AS a").await, Duration::from_millis(300));
    assert_eq!(call(&pool, late).await, Err(Failure::Timeout));
    eventually("none sleeps", || server.sql(SLEEPERS) == "0").await;
}

/// One address for two servers: its first connection goes to one, all others to the other.
async fn shared_address(first: u16, others: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for n in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let to = if n == 0 { first } else { others };
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn behind_an_address_of_two_servers_nobody_elses_statement_is_killed() {
    let (ours, other) = (Server::start(), Server::start());
    // Sessions of the same account, one for each number that ours can have over there.
    let direct = Place::new(&other.url(), 24);
    let pool = direct.pool();
    let sleep = direct.ask("SELECT SLEEP(300) AS a").await;
    let _others: Vec<_> = (0..24).map(|_| pool.submit(sleep.again())).collect();
    eventually("the others sleep", || other.sql(SLEEPERS) == "24").await;
    let ids = |server: &Server| -> Vec<u64> {
        let all = server.sql("SELECT id FROM information_schema.processlist WHERE info LIKE '%SLEEP(%' AND id <> connection_id()");
        all.lines().map(|id| id.parse().unwrap()).collect()
    };
    let (least, most) = (*ids(&other).iter().min().unwrap(), *ids(&other).iter().max().unwrap());
    while ours.sql("SELECT connection_id()").parse::<u64>().unwrap() < least + 6 {}
    let port = shared_address(ours.port, other.port).await;
    let place = Place::new(&ours.url().replace(&ours.port.to_string(), &port.to_string()), 1);
    let pool = place.pool();
    let call_of_ours = pool.submit(sleep.again());
    eventually("ours sleeps", || ours.sql(SLEEPERS) == "1").await;
    assert!(ids(&ours).iter().all(|id| (least..=most).contains(id)), "{:?} within {least}..={most}", ids(&ours));
    drop(call_of_ours);
    // Its connection is given up, and the next one leads to the other server.
    assert_eq!(call(&pool, place.ask("SELECT 'next' AS a").await).await.unwrap().one(), "next");
    assert_eq!(pool.stats().connects, 2);
    assert_eq!(other.sql(SLEEPERS), "24");
}

#[tokio::test]
async fn a_restart_of_the_server_goes_unnoticed() {
    let mut server = Server::start();
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let ask = place.ask("SELECT 1 AS a").await;
    for _ in 0..3 {
        assert_eq!(call(&pool, ask.again()).await.unwrap().one(), "1");
        server.crash();
        server.run();
        assert_eq!(call(&pool, ask.again()).await.unwrap().one(), "1");
    }
    server.crash();
    assert_eq!(call(&pool, within(ask, Duration::from_millis(500))).await, Err(Failure::Unavailable));
}

#[tokio::test]
async fn writes_commit_once() {
    let server = Server::start();
    server.sql(
        "USE shop; CREATE TABLE t (a INT PRIMARY KEY); CREATE TABLE idem (caller varchar(400) NOT NULL, `key` varchar(255) NOT NULL, \
         query varchar(255) NOT NULL, arguments varchar(64) NOT NULL, affected bigint NOT NULL, more tinyint NOT NULL, row_count int NOT NULL, \
         result longblob NOT NULL, created_at timestamp(6) NOT NULL DEFAULT current_timestamp(6), PRIMARY KEY (caller, `key`)) \
         ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    );
    let place = Place::new(&server.url(), 2);
    let pool = place.pool();
    let insert = place.ask_with("INSERT INTO t VALUES (?)", &[8], &[Some("1")]).await;
    assert_eq!(call(&pool, write(insert.again())).await.unwrap().affected, 1);
    assert_eq!(call(&pool, write(insert)).await, Err(Failure::Constraint));
    // The session is read-only again, whichever serves.
    for _ in 0..4 {
        assert_eq!(call(&pool, place.ask("DELETE FROM t").await).await, Err(Failure::Unavailable));
    }
    let returning = "INSERT INTO t VALUES (2), (3) RETURNING a, a + 1 AS b";
    let mut ask = place.ask("SELECT a, a + 1 AS b FROM t").await;
    ask.statement = place.ask(returning).await.statement;
    let first = call(&pool, keyed(ask.again(), "idem", "k1", "x")).await.unwrap();
    assert_eq!((first.affected, first.repeated, first.rows.len()), (2, false, 2));
    let again = call(&pool, keyed(ask.again(), "idem", "k1", "x")).await.unwrap();
    assert_eq!((again.affected, again.repeated, again.rows), (2, true, first.rows));
    assert_eq!(call(&pool, keyed(ask, "idem", "k1", "y")).await, Err(Failure::IdempotencyMismatch));
    assert_eq!(server.sql("SELECT count(*) FROM shop.t"), "3");
    // Two at once with the same key, and one that leaves.
    let slow = place.ask("INSERT INTO t SELECT 10 + SLEEP(0.3)").await;
    let pair = tokio::join!(call(&pool, keyed(slow.again(), "idem", "k2", "x")), call(&pool, keyed(slow, "idem", "k2", "x")));
    assert!(matches!(pair, (Ok(_), Err(Failure::IdempotencyRunning)) | (Err(Failure::IdempotencyRunning), Ok(_))), "{pair:?}");
    let leaver = pool.submit(write(place.ask("INSERT INTO t SELECT 20 + SLEEP(100)").await));
    eventually("it sleeps", || server.sql(SLEEPERS) == "1").await;
    drop(leaver);
    eventually("it is killed", || server.sql(SLEEPERS) == "0").await;
    assert_eq!(server.sql("SELECT count(*) FROM shop.t WHERE a >= 10"), "1");
}

#[tokio::test]
async fn logins_by_each_method_and_tls() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::Builder::new().prefix("tailrace-my-").tempdir_in("/var/tmp").unwrap();
    let (certificate, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    for path in [folder.path(), &certificate, &key] {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let (cert_setting, key_setting) = (format!("ssl-cert={}", certificate.display()), format!("ssl-key={}", key.display()));
    let server = Server::start_with(&[&cert_setting, &key_setting, "plugin-load-add=auth_ed25519"]);
    server.sql(
        "CREATE USER native IDENTIFIED VIA mysql_native_password USING PASSWORD('pä ss'); GRANT SELECT ON *.* TO native; \
                CREATE USER curve IDENTIFIED VIA ed25519 USING PASSWORD('pä ss'); GRANT SELECT ON *.* TO curve; \
                CREATE USER secure IDENTIFIED BY 'x' REQUIRE SSL; GRANT SELECT ON *.* TO secure",
    );
    let url = |user: &str, password: &str, host: &str, parameters: &str| {
        format!("mysql://{user}:{password}@{host}:{}/shop?{parameters}", server.port)
    };
    let ca = format!("ssl-mode=verify-identity&ssl-ca={}", certificate.display());
    for (url, tls) in [
        (url("native", "p%C3%A4%20ss", "127.0.0.1", "ssl-mode=disabled"), false),
        (url("curve", "p%C3%A4%20ss", "127.0.0.1", "ssl-mode=disabled"), false),
        (url("curve", "p%C3%A4%20ss", "127.0.0.1", "ssl-mode=preferred"), true),
        (url("native", "p%C3%A4%20ss", "127.0.0.1", "ssl-mode=required"), true),
        (url("secure", "x", "localhost", &ca), true),
        (format!("mysql://root@{}/shop", server.home().join("sock").display().to_string().replace('/', "%2F")), false),
    ] {
        let connection = Place::new(&url, 1).connect().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(connection.transport.is_tls(), tls, "{url}");
        assert!(connection.mariadb);
    }
    let refused = |number| move |error: &ConnectError| matches!(error, ConnectError::Refused(refused) if refused.number == number);
    for url in [
        url("native", "wrong", "127.0.0.1", "ssl-mode=disabled"),
        url("curve", "wrong", "127.0.0.1", "ssl-mode=disabled"),
        url("secure", "x", "127.0.0.1", "ssl-mode=disabled"),
    ] {
        let error = Place::new(&url, 1).connect().await.unwrap_err();
        assert!(refused(1045)(&error), "{url}: {error}");
    }
    let wrong_name = Place::new(&url("secure", "x", "127.0.0.1", &ca), 1).connect().await.unwrap_err();
    assert_eq!(wrong_name, ConnectError::Handshake);
    let no_database = format!("mysql://root@127.0.0.1:{}/nowhere?ssl-mode=disabled", server.port);
    assert!(refused(1049)(&Place::new(&no_database, 1).connect().await.unwrap_err()));
    // One call through the pool, under TLS.
    let place = Place::new(&url("curve", "p%C3%A4%20ss", "127.0.0.1", "ssl-mode=required"), 1);
    let pool = place.pool();
    let ask = place.ask("SELECT 'covered' AS a").await;
    let columns = ask.columns.len();
    assert_eq!(collect(pool.submit(ask), columns).await.unwrap().one(), "covered");
}
