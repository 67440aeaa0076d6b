//! Connections to real servers: sessions pinned, sockets, authentication, TLS, failover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod postgres_server;

use postgres_server::Server;
use std::time::Duration;
use tailrace_dataplane::engine::postgres::{Access, ConnectError, Connection, Source, connect};
use tailrace_dataplane::plan::snapshot::{ConnectionPlan, Engine, Pooler};
use tokio::time::Instant;

struct Place {
    folder: tempfile::TempDir,
    plan: ConnectionPlan,
}

impl Place {
    fn new(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url");
        std::fs::write(&path, format!("{url}\n")).unwrap();
        let plan = ConnectionPlan {
            name: "main".into(),
            engine: Engine::Postgres,
            url_file: path.to_str().unwrap().to_owned(),
            ca_file: None,
            certificate_file: None,
            key_file: None,
            max_connections: 4,
            statement_timeout_ms: 2500,
            session: vec![],
            pooler: Pooler::None,
            idempotency_table: None,
        };
        Self { folder, plan }
    }

    async fn connect(&self, access: Access) -> Result<Connection, ConnectError> {
        let target = Source::new(&self.plan).read()?;
        connect(&target, access, Instant::now() + Duration::from_secs(10)).await
    }
}

async fn one(connection: &mut Connection, sql: &str) -> String {
    let rows = connection.simple(sql).await.unwrap();
    String::from_utf8(rows[0][4..].to_vec()).unwrap()
}

#[tokio::test]
async fn sessions_are_pinned() {
    let server = Server::start();
    // Whatever the owner of database and role says, text depends on our pins alone.
    server.psql("ALTER DATABASE postgres SET TimeZone='Asia/Tokyo'");
    server.psql("ALTER DATABASE postgres SET DateStyle='German'; ");
    server.psql("ALTER ROLE postgres SET bytea_output='escape'");
    server.psql("ALTER ROLE postgres SET extra_float_digits=0");
    let mut place = Place::new(&server.url());
    place.plan.session = vec![("search_path".into(), "pg_catalog, public".into()), ("app.tenant".into(), "it's \\ 7".into())];
    let mut connection = place.connect(Access::ReadOnly).await.unwrap();
    assert!(connection.version >= 130_000);
    for (name, value) in [
        ("TimeZone", "UTC"),
        ("bytea_output", "hex"),
        ("extra_float_digits", "1"),
        ("IntervalStyle", "iso_8601"),
        ("lc_monetary", "C"),
        ("client_encoding", "UTF8"),
        ("default_transaction_read_only", "on"),
        ("statement_timeout", "2500ms"),
        ("application_name", "tailrace"),
        ("search_path", "pg_catalog, public"),
        ("app.tenant", "it's \\ 7"),
    ] {
        assert_eq!(one(&mut connection, &format!("SHOW {name}")).await, value, "{name}");
    }
    assert!(one(&mut connection, "SHOW DateStyle").await.starts_with("ISO,"));
    assert_eq!(connection.simple("CREATE TABLE public.t(a int)").await, Err(ConnectError::Refused(*b"25006")));
    let mut writer = place.connect(Access::ReadWrite).await.unwrap();
    writer.simple("CREATE TABLE public.t(a int)").await.unwrap();
    for (name, value) in [("TimeZone", "UTC"), ("statement_timeout", "0"), ("no space", "x"), ("user", "root"), ("no_such_setting", "1")] {
        place.plan.session = vec![(name.into(), value.into())];
        assert!(place.connect(Access::ReadOnly).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn unix_sockets_and_refusals() {
    let server = Server::start();
    let folder = server.home().display().to_string().replace('/', "%2F");
    let mut connection =
        Place::new(&format!("postgres://postgres@{folder}:{}/postgres", server.port)).connect(Access::ReadOnly).await.unwrap();
    assert!(connection.transport.is_unix());
    assert_eq!(one(&mut connection, "SELECT 7").await, "7");
    let none = Place::new(&format!("{}&application_name=x", server.url().replace("/postgres?", "/nowhere?")));
    assert_eq!(none.connect(Access::ReadOnly).await.unwrap_err(), ConnectError::Refused(*b"3D000"));
    let closed = Place::new("postgres://a@127.0.0.1:1/b");
    assert_eq!(closed.connect(Access::ReadOnly).await.unwrap_err(), ConnectError::Io(std::io::ErrorKind::ConnectionRefused));
    assert!(closed.folder.path().exists());
}
