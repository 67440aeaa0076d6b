//! Connections to real servers: sessions pinned, sockets, authentication, TLS, failover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use lane::Place;
use postgres_server::Server;
use std::time::Duration;
use tailrace_dataplane::engine::postgres::{Access, ConnectError, Connection, Source, connect};
use tokio::time::Instant;

async fn open(place: &Place, access: Access) -> Result<Connection, ConnectError> {
    let target = Source::new(&place.plan).read()?;
    connect(&target, access, Instant::now() + Duration::from_secs(10)).await
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
    let mut place = Place::new(&server.url(), 1);
    place.plan.statement_timeout_ms = 2500;
    place.plan.session = vec![("search_path".into(), "pg_catalog, public".into()), ("app.tenant".into(), "it's \\ 7".into())];
    let mut connection = open(&place, Access::ReadOnly).await.unwrap();
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
    let mut writer = open(&place, Access::ReadWrite).await.unwrap();
    writer.simple("CREATE TABLE public.t(a int)").await.unwrap();
    for (name, value) in [("TimeZone", "UTC"), ("statement_timeout", "0"), ("no space", "x"), ("user", "root"), ("no_such_setting", "1")] {
        place.plan.session = vec![(name.into(), value.into())];
        assert!(open(&place, Access::ReadOnly).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn unix_sockets_and_refusals() {
    let server = Server::start();
    let folder = server.home().display().to_string().replace('/', "%2F");
    let place = Place::new(&format!("postgres://postgres@{folder}:{}/postgres", server.port), 1);
    let mut connection = open(&place, Access::ReadOnly).await.unwrap();
    assert!(connection.transport.is_unix());
    assert_eq!(one(&mut connection, "SELECT 7").await, "7");
    let none = Place::new(&format!("{}&application_name=x", server.url().replace("/postgres?", "/nowhere?")), 1);
    assert_eq!(open(&none, Access::ReadOnly).await.unwrap_err(), ConnectError::Refused(*b"3D000"));
    let closed = Place::new("postgres://a@127.0.0.1:1/b", 1);
    assert_eq!(open(&closed, Access::ReadOnly).await.unwrap_err(), ConnectError::Io(std::io::ErrorKind::ConnectionRefused));
}
