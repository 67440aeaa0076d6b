//! TLS and authentication against a real PostgreSQL: every sslmode, every method, a man in the middle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/certificates.rs"]
mod certificates;
#[path = "postgres_server/lane.rs"]
mod lane;
mod postgres_server;

use certificates::{Authority, dns, ip, self_signed};
use lane::{Place, ask, call, eventually};
use postgres_server::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tailrace_dataplane::engine::Failure;
use tailrace_dataplane::engine::postgres::auth::AuthError;
use tailrace_dataplane::engine::postgres::tls::TlsError;
use tailrace_dataplane::engine::postgres::{Access, ConnectError, Connection, Source, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const HBA: &str = "local all all trust
hostssl all certificate 127.0.0.1/32 cert
hostssl all tls_only 127.0.0.1/32 trust
hostnossl all plain_only 127.0.0.1/32 trust
host all md5_user 127.0.0.1/32 md5
host all scram_user 127.0.0.1/32 scram-sha-256
host all password_user 127.0.0.1/32 password
host all postgres 127.0.0.1/32 trust
";

struct Tls {
    server: Server,
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Tls {
    fn new(server_certificate: impl FnOnce(&Authority) -> (String, String)) -> Self {
        let authority = Authority::new();
        let (certificate, key) = server_certificate(&authority);
        let files = [
            ("server.crt", certificate.as_str()),
            ("server.key", &key),
            ("ca.crt", &authority.pem),
            ("postgresql.auto.conf", "ssl = on\nssl_ca_file = 'ca.crt'\n"),
        ];
        let server = Server::start_with(HBA, &files);
        server.psql(
            "CREATE ROLE certificate LOGIN; CREATE ROLE tls_only LOGIN; CREATE ROLE plain_only LOGIN; \
             SET password_encryption = 'md5'; CREATE ROLE md5_user LOGIN PASSWORD 's3cret'; \
             SET password_encryption = 'scram-sha-256'; CREATE ROLE scram_user LOGIN PASSWORD 'IX \u{2168} é'; \
             CREATE ROLE password_user LOGIN PASSWORD 's3cret'",
        );
        let tls = Self { server, folder: tempfile::tempdir().unwrap(), authority };
        tls.file("ca.pem", &tls.authority.pem);
        tls
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// `CA` stands for the authority's file.
    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        let ca = self.folder.path().join("ca.pem").display().to_string();
        format!("postgres://{user}@{host}:{}/postgres?{}", self.server.port, parameters.replace("CA", &ca))
    }

    async fn open(&self, user: &str, host: &str, parameters: &str) -> Result<Connection, ConnectError> {
        open(&self.url(user, host, parameters)).await
    }

    /// Whether it was under TLS.
    async fn tls(&self, user: &str, host: &str, parameters: &str) -> Result<bool, ConnectError> {
        let mut connection = self.open(user, host, parameters).await?;
        let rows = connection.simple("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await.unwrap();
        assert_eq!(&rows[0][4..] == b"t", connection.transport.is_tls());
        Ok(connection.transport.is_tls())
    }
}

async fn open(url: &str) -> Result<Connection, ConnectError> {
    let place = Place::new(url, 1);
    connect(&Source::new(&place.plan).read()?, Access::ReadOnly, Instant::now() + Duration::from_secs(10)).await
}

const HANDSHAKE: Result<bool, ConnectError> = Err(ConnectError::Handshake);
const NOT_AUTHORISED: Result<bool, ConnectError> = Err(ConnectError::Refused(*b"28000"));

#[tokio::test]
async fn every_sslmode_means_what_libpq_says() {
    let tls = Tls::new(|authority| authority.issue("somebody", &[dns("localhost")]));
    let other = tls.file("other.pem", &Authority::new().pem);
    let other = other.to_str().unwrap();
    let (name, number) = ("localhost", "127.0.0.1");
    for (user, host, parameters, expected) in [
        ("postgres", number, "sslmode=disable", Ok(false)),
        ("postgres", number, "", Ok(true)),
        ("postgres", number, "sslmode=require", Ok(true)),
        // A root that is given is believed even by `require`; the name is not looked at.
        ("postgres", number, "sslmode=require&sslrootcert=CA", Ok(true)),
        ("postgres", number, &format!("sslmode=require&sslrootcert={other}"), HANDSHAKE),
        ("postgres", number, "sslmode=verify-ca&sslrootcert=CA", Ok(true)),
        ("postgres", number, &format!("sslmode=verify-ca&sslrootcert={other}"), HANDSHAKE),
        ("postgres", number, "sslmode=verify-full&sslrootcert=CA", HANDSHAKE),
        ("postgres", name, "sslmode=verify-full&sslrootcert=CA", Ok(true)),
        ("postgres", name, &format!("sslmode=verify-full&sslrootcert={other}"), HANDSHAKE),
        // The system's store does not know this authority.
        ("postgres", name, "sslrootcert=system", HANDSHAKE),
        // prefer goes on without TLS where that alone is let in; nothing else does.
        ("plain_only", number, "sslmode=prefer", Ok(false)),
        ("plain_only", number, "sslmode=require", NOT_AUTHORISED),
        ("tls_only", number, "sslmode=disable", NOT_AUTHORISED),
        ("tls_only", number, "sslmode=prefer", Ok(true)),
    ] {
        assert_eq!(tls.tls(user, host, parameters).await, expected, "{user} {host} {parameters}");
    }
    let absent = tls.open("postgres", number, "sslmode=verify-ca&sslrootcert=/nowhere").await;
    assert_eq!(absent.unwrap_err(), ConnectError::Tls(TlsError::Roots));
}

#[tokio::test]
async fn names_addresses_and_common_names() {
    let addressed = Tls::new(|authority| authority.issue("somebody", &[ip("127.0.0.1"), dns("*.example.org")]));
    assert_eq!(addressed.tls("postgres", "127.0.0.1", "sslmode=verify-full&sslrootcert=CA").await, Ok(true));
    assert_eq!(addressed.tls("postgres", "localhost", "sslmode=verify-full&sslrootcert=CA").await, HANDSHAKE);
    let common = Tls::new(|authority| authority.issue("LocalHost", &[]));
    assert_eq!(common.tls("postgres", "localhost", "sslmode=verify-full&sslrootcert=CA").await, Ok(true));
    assert_eq!(common.tls("postgres", "127.0.0.1", "sslmode=verify-full&sslrootcert=CA").await, HANDSHAKE);
    // A common name beside other names does not count.
    let both = Tls::new(|authority| authority.issue("localhost", &[dns("elsewhere")]));
    assert_eq!(both.tls("postgres", "localhost", "sslmode=verify-full&sslrootcert=CA").await, HANDSHAKE);
    // A self-signed certificate as its own root.
    let mut alone = None;
    let own = Tls::new(|_| {
        let pair = self_signed(&[dns("localhost")], &rcgen::PKCS_ECDSA_P256_SHA256);
        alone = Some(pair.0.clone());
        pair
    });
    let root = own.file("own.pem", &alone.unwrap());
    let parameters = format!("sslmode=verify-full&sslrootcert={}", root.display());
    assert_eq!(own.tls("postgres", "localhost", &parameters).await, Ok(true));
    assert_eq!(own.tls("postgres", "127.0.0.1", &parameters).await, HANDSHAKE);
}

#[tokio::test]
async fn every_method_of_authentication() {
    let tls = Tls::new(|authority| authority.issue("somebody", &[dns("localhost")]));
    let scram = "scram_user:IX%20%E2%85%A8%20%C3%A9";
    let unbound: Result<bool, ConnectError> = Err(ConnectError::Auth(AuthError::Unbound));
    for (user, parameters, expected) in [
        ("md5_user:s3cret", "sslmode=disable", Ok(false)),
        ("md5_user:s3cret", "sslmode=require", Ok(true)),
        ("md5_user:wrong", "", Err(ConnectError::Refused(*b"28P01"))),
        ("md5_user", "", Err(ConnectError::Auth(AuthError::NoPassword))),
        (scram, "sslmode=disable", Ok(false)),
        (scram, "sslmode=require", Ok(true)),
        (scram, "sslmode=require&channel_binding=disable", Ok(true)),
        (scram, "sslmode=require&channel_binding=require", Ok(true)),
        (scram, "sslmode=disable&channel_binding=require", unbound.clone()),
        ("md5_user:s3cret", "sslmode=require&channel_binding=require", unbound.clone()),
        ("postgres", "sslmode=require&channel_binding=require", unbound),
        ("scram_user:wrong", "sslmode=require", Err(ConnectError::Refused(*b"28P01"))),
        ("password_user:s3cret", "sslmode=require", Ok(true)),
        // The password as it is never leaves for the open, nor under TLS that was only preferred.
        ("password_user:s3cret", "sslmode=disable", Err(ConnectError::Auth(AuthError::Cleartext))),
        ("password_user:s3cret", "sslmode=prefer", Err(ConnectError::Auth(AuthError::Cleartext))),
    ] {
        assert_eq!(tls.tls(user, "127.0.0.1", parameters).await, expected, "{user} {parameters}");
    }
    // SASLprep: the same password in compatibility form.
    assert_eq!(tls.tls("scram_user:IX%20IX%20e%CC%81", "127.0.0.1", "").await, Ok(true));
}

#[tokio::test]
async fn client_certificates() {
    let tls = Tls::new(|authority| authority.issue("somebody", &[dns("localhost")]));
    let (certificate, key) = tls.authority.issue("certificate", &[]);
    let (stranger, strange_key) = Authority::new().issue("certificate", &[]);
    let (certificate, key) = (tls.file("c.pem", &certificate), tls.file("k.pem", &key));
    let pair = |certificate: &Path, key: &Path| format!("sslmode=require&sslcert={}&sslkey={}", certificate.display(), key.display());
    assert_eq!(tls.tls("certificate", "127.0.0.1", &pair(&certificate, &key)).await, Ok(true));
    assert_eq!(tls.tls("postgres", "127.0.0.1", &pair(&certificate, &key)).await, Ok(true));
    assert_eq!(tls.tls("certificate", "127.0.0.1", "sslmode=require").await, NOT_AUTHORISED);
    let (stranger, strange_key) = (tls.file("sc.pem", &stranger), tls.file("sk.pem", &strange_key));
    assert!(tls.tls("certificate", "127.0.0.1", &pair(&stranger, &strange_key)).await.is_err());
    let mixed = tls.open("certificate", "127.0.0.1", &pair(&certificate, &strange_key)).await;
    assert_eq!(mixed.unwrap_err(), ConnectError::Tls(TlsError::Key));
    let absent = tls.open("certificate", "127.0.0.1", &pair(Path::new("/nowhere"), &key)).await;
    assert_eq!(absent.unwrap_err(), ConnectError::Tls(TlsError::Certificate));
    // The plan's own files stand for the URL's, and are read again at each connect.
    let mut place = Place::new(&tls.url("certificate", "127.0.0.1", "sslmode=verify-ca"), 1);
    place.plan.ca_file = Some(tls.folder.path().join("ca.pem").to_str().unwrap().into());
    place.plan.certificate_file = Some(certificate.to_str().unwrap().into());
    place.plan.key_file = Some(key.to_str().unwrap().into());
    let pool = place.pool();
    assert_eq!(call(&pool, ask("SELECT current_user::text AS a", &["a"])).await.unwrap().one(), "certificate");
    // A statement is cancelled over TLS, too.
    let receiver = pool.submit(ask("SELECT pg_sleep(300)::text AS a", &["a"]));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND usename = 'certificate'";
    eventually("it sleeps", || tls.server.psql(sleeping) == "1").await;
    drop(receiver);
    assert_eq!(call(&pool, ask("SELECT 'x'::text AS a", &["a"])).await.unwrap().one(), "x");
    assert_eq!((tls.server.psql(sleeping).as_str(), pool.stats().connects), ("0", 1));
    // A megabyte each way through TLS records.
    let long = "y".repeat(1 << 20);
    let big = lane::bind(ask("SELECT $1::text AS a", &["a"]), &[25], &[&long]);
    assert_eq!(call(&pool, big).await.unwrap().one(), long);
}

#[tokio::test]
async fn binding_follows_the_certificates_hash() {
    let names = [dns("localhost")];
    for (algorithm, bound) in [(&rcgen::PKCS_ECDSA_P256_SHA256, true), (&rcgen::PKCS_ECDSA_P384_SHA384, true)] {
        let tls = Tls::new(|_| self_signed(&names, algorithm));
        let result = tls.tls("scram_user:IX%20%E2%85%A8%20%C3%A9", "127.0.0.1", "sslmode=require&channel_binding=require").await;
        assert_eq!(result.is_ok(), bound, "{result:?}");
    }
}

/// Terminates TLS with a certificate of its own and makes another TLS connection to the server.
async fn man_in_the_middle(server: u16, pair: (String, String)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let certificate = CertificateDer::from_pem_slice(pair.0.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.1.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut request = [0; 8];
                client.read_exact(&mut request).await.unwrap();
                client.write_all(b"S").await.unwrap();
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut upstream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                upstream.write_all(&request).await.unwrap();
                assert_eq!(upstream.read_u8().await.unwrap(), b'S');
                let url = format!("postgres://x@127.0.0.1:{server}/x?sslmode=require");
                let uri = tailrace_dataplane::engine::postgres::uri::Uri::parse(&url, &Default::default()).unwrap();
                let tls = tailrace_dataplane::engine::postgres::tls::client(&uri, &uri.hosts[0]).unwrap();
                let socket = tailrace_dataplane::engine::postgres::transport::Socket::Tcp(upstream);
                let mut upstream = tailrace_dataplane::engine::postgres::transport::Transport::new(socket);
                upstream.secure(tls).await.unwrap();
                _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn a_man_in_the_middle_is_found_by_the_binding() {
    let tls = Tls::new(|authority| authority.issue("somebody", &[dns("localhost")]));
    let port = man_in_the_middle(tls.server.port, self_signed(&[dns("localhost")], &rcgen::PKCS_ECDSA_P256_SHA256)).await;
    let url = |parameters: &str| {
        let ca = tls.folder.path().join("ca.pem").display().to_string();
        format!("postgres://scram_user:IX%20%E2%85%A8%20%C3%A9@localhost:{port}/postgres?{}", parameters.replace("CA", &ca))
    };
    // Without verification and binding he reads along: that is what these modes mean.
    assert!(open(&url("sslmode=require&channel_binding=disable")).await.is_ok());
    for parameters in ["sslmode=require", "sslmode=require&channel_binding=require"] {
        assert!(matches!(open(&url(parameters)).await, Err(ConnectError::Refused(_))), "{parameters}");
    }
    assert_eq!(open(&url("sslmode=verify-ca&sslrootcert=CA")).await.unwrap_err(), ConnectError::Handshake);
}

#[tokio::test]
async fn no_tls_on_the_server() {
    let server = Server::start();
    let url = server.url().replace("sslmode=disable", "sslmode=require");
    assert_eq!(open(&url).await.unwrap_err(), ConnectError::NoTls);
    assert!(!open(&server.url().replace("sslmode=disable", "sslmode=prefer")).await.unwrap().transport.is_tls());
    let place = Place::new(&url, 1);
    assert_eq!(call(&place.pool(), ask("SELECT 'x'::text AS a", &["a"])).await, Err(Failure::Unavailable));
}
