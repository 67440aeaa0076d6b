//! TLS of the API's port: versions, large answers, certificates that change, break and come late, clients that are slow to shake hands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/certificates.rs"]
mod certificates;
mod http_support;
mod postgres_server;
use certificates::{Authority, dns};
use http_support::*;
use postgres_server::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn client(authority: &Authority, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn any(authority: &Authority) -> Arc<ClientConfig> {
    client(authority, &[&rustls::version::TLS13, &rustls::version::TLS12])
}

/// A connection whose handshake is over, or how it failed.
fn connect(to: SocketAddr, config: &Arc<ClientConfig>, name: &'static str) -> std::io::Result<Stream> {
    let socket = TcpStream::connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let session = ClientConnection::new(config.clone(), ServerName::try_from(name).unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn ask(stream: &mut Stream, target: &str) -> String {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n").unwrap();
    let mut text = String::new();
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended: {text}");
        text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            if body.len() >= length.parse().unwrap() {
                return text;
            }
        }
    }
}

fn write(plane: &Plane, (chain, key): &(String, String)) {
    for (name, text) in [("tls.crt", chain), ("tls.key", key)] {
        let fresh = plane.data.path().join("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, plane.data.path().join(name)).unwrap();
    }
}

fn with_tls(plane: &Plane, mut snapshot: Value) -> Value {
    let file = |name: &str| plane.data.path().join(name);
    snapshot["api"]["tls"] = json!({"certificateFile": file("tls.crt"), "keyFile": file("tls.key")});
    snapshot
}

fn metric(plane: &Plane, name: &str) -> u64 {
    let page = plane.admin("/metrics").text().to_owned();
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
}

/// No database behind it: every call that passes the checks is 503, every call without a parameter 422.
fn plane(pair: Option<&(String, String)>) -> Plane {
    let plane = Plane::start_with(|config| {
        (config.limits.head_time, config.limits.certificate_look) = (Duration::from_millis(500), Duration::from_millis(50));
    });
    if let Some(pair) = pair {
        write(&plane, pair);
    }
    let url = plane.data.path().join("none");
    plane.pushed(&with_tls(&plane, snapshot(1, &url, vec![user_by_id(0)])));
    plane
}

#[test]
fn both_versions_are_spoken_and_nothing_in_the_clear() {
    let authority = Authority::new();
    let plane = plane(Some(&authority.issue("api", &[dns("api.test")])));
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut stream = connect(plane.listen, &client(&authority, &[version]), "api.test").unwrap();
        for _ in 0..3 {
            assert!(ask(&mut stream, "/q/user").starts_with("HTTP/1.1 422 "));
        }
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    assert!(connect(plane.listen, &any(&authority), "other.test").is_err());
    let mut clear = plane.connect();
    clear.get("/q/user");
    assert!(!clear.rest().contains("HTTP/1.1"));
    assert_eq!(plane.admin("/readyz").status, 200);
    eventually("it is counted", || metric(&plane, "tailrace_tls_handshake_failures_total ") >= 1);
}

#[test]
fn a_certificate_that_changes_is_taken_and_loses_no_connection() {
    let authority = Authority::new();
    let plane = plane(Some(&authority.issue("api", &[dns("one.test")])));
    let config = any(&authority);
    let mut early = connect(plane.listen, &config, "one.test").unwrap();
    ask(&mut early, "/q/user");
    write(&plane, &authority.issue("api", &[dns("two.test")]));
    eventually("the new certificate", || connect(plane.listen, &config, "two.test").is_ok());
    assert!(connect(plane.listen, &config, "one.test").is_err());
    assert!(ask(&mut early, "/q/user").starts_with("HTTP/1.1 422 "));
    // What can't be used changes nothing but what is told: text, another's key, no file at all.
    let (chain, key) = authority.issue("api", &[dns("three.test")]);
    let other = authority.issue("api", &[dns("three.test")]).1;
    for broken in [("no certificate".to_owned(), key.clone()), (chain.clone(), other), (chain.clone(), "no key".to_owned())] {
        write(&plane, &broken);
        eventually("it is told", || metric(&plane, "tailrace_tls_certificate_failing ") == 1);
        connect(plane.listen, &config, "two.test").unwrap();
        write(&plane, &authority.issue("api", &[dns("two.test")]));
        eventually("mended", || metric(&plane, "tailrace_tls_certificate_failing ") == 0);
    }
    std::fs::remove_file(plane.data.path().join("tls.crt")).unwrap();
    eventually("it is told", || metric(&plane, "tailrace_tls_certificate_failing ") == 1);
    connect(plane.listen, &config, "two.test").unwrap();
    assert_eq!(plane.admin("/readyz").status, 200);
    write(&plane, &(chain, key));
    eventually("the third", || connect(plane.listen, &config, "three.test").is_ok());
    assert!(ask(&mut early, "/q/user").starts_with("HTTP/1.1 422 "));
}

#[test]
fn without_a_certificate_no_connection_is_taken() {
    let authority = Authority::new();
    let plane = plane(None);
    let mut clear = plane.connect();
    clear.get("/q/user");
    assert_eq!(clear.rest(), "");
    assert!(connect(plane.listen, &any(&authority), "api.test").is_err());
    let checks = plane.admin("/readyz?verbose");
    assert!(checks.status == 503 && checks.text().contains("no certificate"), "{}", checks.text());
    write(&plane, &authority.issue("api", &[dns("api.test")]));
    eventually("the certificate is there", || connect(plane.listen, &any(&authority), "api.test").is_ok());
    assert_eq!(plane.admin("/readyz").status, 200);
    // A snapshot without TLS is served in the clear.
    let url = plane.data.path().join("none");
    plane.pushed(&snapshot(2, &url, vec![user_by_id(0)]));
    assert_eq!(plane.get("/q/user").status, 422);
}

#[test]
fn who_does_not_shake_hands_is_sent_away() {
    let authority = Authority::new();
    let plane = plane(Some(&authority.issue("api", &[dns("api.test")])));
    let mut silent = plane.connect();
    assert_eq!(silent.rest(), "");
    let mut slow = plane.connect();
    slow.socket.write_all(&[22, 3, 1, 2]).unwrap();
    assert_eq!(slow.rest(), "");
    eventually("both are counted", || metric(&plane, "tailrace_tls_handshake_failures_total ") >= 2);
    eventually("nothing is left", || metric(&plane, "tailrace_connections ") == 0);
}

#[test]
fn a_large_answer_goes_through_as_fast_as_it_is_read() {
    let server = Server::start();
    let authority = Authority::new();
    let plane = Plane::start();
    write(&plane, &authority.issue("api", &[dns("api.test")]));
    let url = url_file(&plane, &server.url());
    let columns = vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)];
    let text = "SELECT n, repeat('x', 1000) AS pad FROM generate_series(1::bigint, $1) n";
    let big = query("big", "many", vec![param("rows", "integer")], columns, statement(text, &[20]));
    plane.pushed(&with_tls(&plane, snapshot(1, &url, vec![big])));
    let mut stream = connect(plane.listen, &any(&authority), "api.test").unwrap();
    write!(stream, "GET /q/big?rows=20000&format=ndjson HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-Key: {KEY}\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.len() > 20_000_000);
    assert!(text.ends_with("{\"$complete\":{\"rows\":20000,\"truncated\":false}}\n\r\n0\r\n\r\n"), "{:?}", &text[text.len() - 100..]);
}
