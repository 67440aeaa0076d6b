//! The generator over HTTP/2 and TLS, against servers of other hands: the h2 crate and rustls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clap::Parser as _;
use http::Response;
use tailrace_generator::report::Report;
use tailrace_generator::settings::Arguments;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A certificate for localhost: the server's configuration, and the PEM file to trust.
fn certificate(protocol: &[u8]) -> (TlsAcceptor, tempfile::NamedTempFile) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    (TlsAcceptor::from(Arc::new(config)), file)
}

/// Serves until the test's process ends; each connection in its own thread, so that a server that waits holds up nobody.
fn serve<F>(handle: impl Fn(tokio::net::TcpStream) -> F + Send + Sync + 'static) -> u16
where
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, handle) = (listener.local_addr().unwrap().port(), Arc::new(handle));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, handle) = (stream.unwrap(), Arc::clone(&handle));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    handle(tokio::net::TcpStream::from_std(stream).unwrap()).await;
                });
            });
        }
    });
    port
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

fn next() -> (u64, String) {
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    (number, format!("00000000000000ab-{number:012x}"))
}

/// Answers each stream with its path and body; `fault` may do something else with it: true when it did.
async fn h2(io: impl AsyncRead + AsyncWrite + Unpin, fault: impl Fn(u64, &mut h2::server::SendResponse<Bytes>) -> bool, most: u64) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let mut accepted = 0;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        accepted += 1;
        if accepted == most {
            connection.graceful_shutdown();
        }
        let (number, id) = next();
        if fault(number, &mut respond) {
            continue;
        }
        let key = request.headers().get("x-api-key").map_or("none", |value| value.to_str().unwrap()).to_owned();
        let text = format!("{} {} {key} ", request.method(), request.uri().path_and_query().unwrap());
        let mut body = request.into_body();
        tokio::task::spawn_local(async move {
            let mut text = text.into_bytes();
            while let Some(part) = body.data().await {
                text.extend_from_slice(&part.unwrap());
            }
            let response = Response::builder().header("content-type", "text/plain").header("x-run-id", id).body(()).unwrap();
            respond.send_response(response, false).unwrap().send_data(Bytes::from(text), true).unwrap();
        });
    }
}

fn run(url: &str, words: &[&str]) -> Report {
    let base = ["tailrace-generator", "--url", url, "--connections", "3", "--duration", "20s"];
    tailrace_generator::drive::run(&Arguments::try_parse_from(base.iter().chain(words)).unwrap().load().unwrap()).unwrap()
}

const CALLS: [&str; 7] = ["--path", "/q/a?id={}", "--keys", "1..1000", "--contains", "GET /q/a?id={} none ", "--h2"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&CALLS[..], words].concat()
}

#[test]
fn streams_are_answered_each_with_its_own() {
    let port = serve(|stream| h2(stream, |_, _| false, u64::MAX));
    let file = tempfile::NamedTempFile::new().unwrap();
    for depth in ["1", "16"] {
        let report = run(
            &format!("http://127.0.0.1:{port}"),
            &with(&["--calls", "600", "--depth", depth, "--run-ids", file.path().to_str().unwrap()]),
        );
        assert_eq!(
            (report.stats.right, report.run_ids, report.exit_code()),
            (600, 600, 0),
            "{:?} {:?}",
            report.stats.samples,
            report.stats.errors
        );
    }
    let report = run(&format!("http://127.0.0.1:{port}"), &with(&["--calls", "300", "--depth", "4", "--rate", "3000"]));
    assert_eq!((report.stats.right, report.stats.unsent), (300, 0));
}

#[test]
fn bodies_keys_and_headers_go_over_h2() {
    let port = serve(|stream| h2(stream, |_, _| false, u64::MAX));
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    let words = [
        "--h2",
        "--path",
        "/q/a",
        "--method",
        "POST",
        "--body",
        "{\"id\":{}}",
        "--keys",
        "1..99",
        "--contains",
        "POST /q/a secret {\"id\":{}}",
    ];
    let report = run(
        &format!("http://localhost:{port}"),
        &[&words[..], &["--calls", "100", "--depth", "4", "--api-keys", keys.path().to_str().unwrap()]].concat(),
    );
    assert_eq!((report.stats.right, report.exit_code()), (100, 0), "{:?}", report.stats.samples);
}

#[test]
fn a_reset_stream_costs_one_call_and_no_other() {
    let fault = |number: u64, respond: &mut h2::server::SendResponse<Bytes>| {
        let chosen = number.is_multiple_of(10);
        if chosen {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        chosen
    };
    let port = serve(move |stream| h2(stream, fault, u64::MAX));
    let report = run(&format!("http://127.0.0.1:{port}"), &with(&["--calls", "200", "--depth", "8"]));
    assert!((10..=60).contains(&report.stats.errors.reset), "{:?}", report.stats.errors);
    assert_eq!((report.stats.right + report.stats.errors.reset, report.reopened), (200, 0));
}

#[test]
fn a_connection_that_goes_away_is_replaced() {
    let port = serve(|stream| h2(stream, |_, _| false, 20));
    let report = run(&format!("http://127.0.0.1:{port}"), &with(&["--calls", "300", "--depth", "4"]));
    assert!(report.reopened >= 5, "{}", report.reopened);
    assert_eq!(report.stats.right + report.lost, 300, "{:?}", report.stats.errors);
    assert!(report.stats.right > 250, "{}", report.stats.right);
}

#[test]
fn tls_carries_either_protocol() {
    let (acceptor, trusted) = certificate(b"h2");
    let port = serve(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                h2(stream, |_, _| false, u64::MAX).await;
            }
        }
    });
    let ca = trusted.path().to_str().unwrap();
    let report = run(&format!("https://localhost:{port}"), &with(&["--calls", "300", "--depth", "8", "--ca", ca]));
    assert_eq!((report.stats.right, report.exit_code()), (300, 0), "{:?}", report.stats.errors);

    let (acceptor, trusted) = certificate(b"http/1.1");
    let port = serve(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                held.extend_from_slice(&buffer[..count]);
                while let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                    let head = String::from_utf8(held.drain(..end + 4).collect()).unwrap();
                    let body = head.split("id=").nth(1).unwrap().split(' ').next().unwrap().repeat(2000);
                    let text = format!("HTTP/1.1 200 OK\r\nX-Run-Id: {}\r\nContent-Length: {}\r\n\r\n{body}", next().1, body.len());
                    stream.write_all(text.as_bytes()).await.unwrap();
                }
            }
        }
    });
    let (url, ca) = (format!("https://localhost:{port}"), trusted.path().to_str().unwrap());
    let words = ["--path", "/q/a?id={}", "--keys", "100..999", "--prefix", "{}{}", "--calls", "200", "--depth", "4", "--ca", ca];
    let report = run(&url, &words);
    assert_eq!((report.stats.right, report.exit_code()), (200, 0), "{:?}", report.stats.errors);
    let other = certificate(b"http/1.1").1;
    let report = run(&url, &[&words[..10], &["--ca", other.path().to_str().unwrap(), "--duration", "300ms"]].concat());
    assert_eq!((report.stats.answered, report.is_void()), (0, true), "a server that nobody vouches for is not loaded");
}
