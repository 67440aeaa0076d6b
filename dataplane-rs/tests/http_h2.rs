//! HTTP/2: the same answers as HTTP/1.1, many streams at once, windows, clients that leave, and floods (on raw frames).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/certificates.rs"]
mod certificates;
mod http_support;
mod postgres_server;
use bytes::Bytes;
use certificates::{Authority, dns};
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response};
use http_support::*;
use postgres_server::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

type Asker = SendRequest<Bytes>;

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("in time") })
}

async fn shake(builder: &Builder, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (Asker, JoinHandle<Result<(), h2::Error>>) {
    let (asker, connection) = builder.handshake(io).await.unwrap();
    (asker, tokio::spawn(connection))
}

async fn connect(plane: &Plane) -> (Asker, JoinHandle<Result<(), h2::Error>>) {
    let socket = TcpStream::connect(plane.listen).await.unwrap();
    socket.set_nodelay(true).unwrap();
    shake(&Builder::new(), socket).await
}

fn request(method: &str, target: &str) -> Request<()> {
    let uri = format!("http://api.test{target}");
    let request = Request::builder().method(method).uri(uri).header("x-api-key", KEY).header("content-type", "application/json");
    request.body(()).unwrap()
}

/// Sends, with a body if there is one; the answer's head.
async fn send(asker: &Asker, request: Request<()>, body: Option<&[u8]>) -> Result<Response<RecvStream>, h2::Error> {
    let mut asker = asker.clone().ready().await?;
    let (answer, mut stream) = asker.send_request(request, body.is_none())?;
    if let Some(body) = body {
        stream.send_data(Bytes::copy_from_slice(body), true)?;
    }
    answer.await
}

async fn body(stream: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        all.extend_from_slice(&data);
    }
    Ok(all)
}

async fn ask(asker: &Asker, request: Request<()>, sent: Option<&[u8]>) -> Answer {
    let (head, mut stream) = send(asker, request, sent).await.unwrap().into_parts();
    let body = body(&mut stream).await.unwrap();
    let trailers = stream.trailers().await.unwrap().unwrap_or_default();
    let texts =
        |map: &HeaderMap| map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect::<Vec<_>>();
    let mut headers = texts(&head.headers);
    headers.extend(texts(&trailers));
    Answer { status: head.status.as_u16(), headers, body }
}

async fn get(asker: &Asker, target: &str) -> Answer {
    ask(asker, request("GET", target), None).await
}

struct Stack {
    server: Server,
    plane: Plane,
}

fn stack(change: impl FnOnce(&mut tailrace_dataplane::config::Config)) -> Stack {
    let server = Server::start();
    let table = users(&server, 1000);
    let plane = Plane::start_with(change);
    let url = url_file(&plane, &server.url());
    let big = |name: &str, text: &str| {
        let mut big = query(
            name,
            "many",
            vec![param("rows", "integer")],
            vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)],
            statement(text, &[20]),
        );
        big["timeoutMs"] = json!(60_000);
        big
    };
    let wide = big("big", "SELECT n, repeat('x', 1000) AS pad FROM generate_series(1::bigint, $1) n");
    let mut whole = big("whole", "SELECT n, repeat('x', 10) AS pad FROM generate_series(1::bigint, $1) n");
    whole["unbounded"] = json!(true);
    let sleep = query(
        "sleep",
        "one",
        vec![param("s", "number")],
        vec![column("n", "raw", 23, 0, 0)],
        statement("SELECT 1 AS n FROM pg_sleep($1)", &[701]),
    );
    plane.pushed(&snapshot(1, &url, vec![user_by_id(table), wide, sleep, whole]));
    Stack { server, plane }
}

/// No database: whatever passes the checks is 503.
fn alone(change: impl FnOnce(&mut tailrace_dataplane::config::Config)) -> Plane {
    let plane = Plane::start_with(change);
    let url = plane.data.path().join("none");
    plane.pushed(&snapshot(1, &url, vec![user_by_id(0)]));
    plane
}

/// What must be equal in both: all but what each connection or run has of its own.
fn common(answer: &Answer) -> (u16, Vec<(String, String)>, String) {
    let run = answer.header("x-run-id").unwrap_or("-").to_owned();
    let own = ["date", "x-run-id", "connection", "transfer-encoding"];
    let headers = answer.headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone()));
    let headers = headers.filter(|(name, _)| !own.contains(&name.as_str())).collect();
    (answer.status, headers, String::from_utf8_lossy(&answer.body).replace(&run, "RUN"))
}

#[test]
fn answers_are_those_of_http1() {
    let Stack { plane, server: _server } = stack(|_| {});
    run(async {
        let (asker, _connection) = connect(&plane).await;
        for (method, target, sent) in [
            ("GET", "/q/user?id=7", ""),
            ("GET", "/q/user?id=7000", ""),
            ("GET", "/q/user?id=x&y=1", ""),
            ("HEAD", "/q/user?id=7", ""),
            ("POST", "/q/user", "{\"id\":7}"),
            ("POST", "/q/user", "{\"id\":"),
            ("PUT", "/q/user", ""),
            ("OPTIONS", "/q/user", ""),
            ("GET", "/q/none", ""),
            ("GET", "/q/%ff", ""),
            ("GET", "/q/big?rows=3", ""),
            ("GET", "/q/big?rows=3&format=csv", ""),
            ("GET", "/q/big?rows=3&format=ndjson", ""),
            ("HEAD", "/q/big?rows=3&format=ndjson", ""),
            ("GET", "/q/whole?rows=0", ""),
            ("GET", "/q/whole?rows=30000", ""),
            ("GET", "/q/big?rows=20000", ""),
            ("GET", "/nowhere", ""),
        ] {
            let mut wire = plane.connect();
            let length = sent.len();
            let length = if sent.is_empty() { String::new() } else { format!("Content-Length: {length}\r\n") };
            wire.send(&format!(
                "{method} {target} HTTP/1.1\r\nHost: api.test\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n{length}\r\n{sent}"
            ));
            let one = if method == "HEAD" { wire.head() } else { wire.answer() };
            let sent = (!sent.is_empty()).then_some(sent.as_bytes());
            let two = ask(&asker, request(method, target), sent).await;
            assert_eq!(common(&two), common(&one), "{method} {target}");
        }
        let mut strange = request("GET", "/q/user?id=7");
        strange.headers_mut().remove("x-api-key");
        assert_eq!(ask(&asker, strange, None).await.status, 401);
    });
}

#[test]
fn many_streams_are_answered_each_with_its_own_and_recorded_once() {
    let Stack { plane, server: _server } = stack(|_| {});
    let mut runs = HashSet::new();
    run(async {
        let (asker, _connection) = connect(&plane).await;
        while !plane.admin("/metrics").text().contains("tailrace_shared_lanes 1") {
            runs.insert(get(&asker, "/q/user?id=1").await.header("x-run-id").unwrap().to_owned());
        }
        for round in 0..100u64 {
            let asked: Vec<_> = (0..16)
                .map(|n| {
                    let (asker, id) = (asker.clone(), (round * 16 + n) % 1000 + 1);
                    (id, tokio::spawn(async move { get(&asker, &format!("/q/user?id={id}")).await }))
                })
                .collect();
            for (id, answer) in asked {
                let answer = answer.await.unwrap();
                assert_eq!(answer.json(), json!({"id": id, "name": format!("User {id}")}));
                runs.insert(answer.header("x-run-id").unwrap().to_owned());
            }
        }
    });
    assert!(runs.len() > 1600);
    let page = plane.admin("/metrics").text().to_owned();
    let shared = page.lines().find_map(|line| line.strip_prefix("tailrace_shared_calls_total ")?.parse::<u64>().ok()).unwrap();
    assert!(shared > 0, "no call on the shared lane");
    assert!(page.contains("tailrace_http2_connections_total 1\n"));
    assert_eq!(plane.count_recorded(), runs.len() as i64);
}

#[test]
fn a_stream_that_nobody_reads_holds_up_none_beside_it() {
    let Stack { plane, server: _server } = stack(|_| {});
    run(async {
        let socket = TcpStream::connect(plane.listen).await.unwrap();
        let mut builder = Builder::new();
        builder.initial_connection_window_size(8 << 20);
        let (asker, _connection) = shake(&builder, socket).await;
        let (head, mut unread) = send(&asker, request("GET", "/q/big?rows=20000&format=ndjson"), None).await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        for id in 1..=50 {
            assert_eq!(get(&asker, &format!("/q/user?id={id}")).await.json()["id"], id);
        }
        // JSON of which not all is kept: counts as trailers.
        let large = get(&asker, "/q/big?rows=20000").await;
        assert_eq!((large.header("x-row-count"), large.header("x-truncated")), (Some("10000"), Some("true")));
        assert_eq!(large.json().as_array().unwrap().len(), 10_000);
        let all = body(&mut unread).await.unwrap();
        assert!(all.len() > 20_000_000 && all.ends_with(b"{\"$complete\":{\"rows\":20000,\"truncated\":false}}\n"));
    });
}

#[test]
fn who_cancels_a_stream_cancels_its_statement() {
    let Stack { plane, server } = stack(|_| {});
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()";
    run(async {
        let (asker, _connection) = connect(&plane).await;
        let mut ready = asker.clone().ready().await.unwrap();
        let (answer, mut stream) = ready.send_request(request("GET", "/q/sleep?s=1.9"), true).unwrap();
        let waits = tokio::task::spawn_blocking(move || {
            eventually("it sleeps", || server.psql(asleep) == "1");
            server
        });
        let server = waits.await.unwrap();
        stream.send_reset(Reason::CANCEL);
        assert!(answer.await.is_err());
        // A whole connection that goes takes its streams along.
        let (other, connection) = connect(&plane).await;
        let lost = tokio::spawn(async move { send(&other, request("GET", "/q/sleep?s=1.8"), None).await.is_err() });
        tokio::time::sleep(Duration::from_millis(50)).await;
        connection.abort();
        assert!(lost.await.unwrap());
        let waits = tokio::task::spawn_blocking(move || {
            eventually("nobody sleeps", || server.psql(asleep) == "0");
            server
        });
        let _server = waits.await.unwrap();
        assert_eq!(get(&asker, "/q/user?id=1").await.status, 200);
    });
    let left = ("sleep".to_owned(), 499, "client_closed".to_owned(), 0);
    assert_eq!(plane.recorded().iter().filter(|run| **run == left).count(), 2);
}

#[test]
fn connections_end_by_goaway_when_they_are_old_and_when_the_process_ends() {
    let Stack { plane, server: _server } = stack(|config| {
        (config.limits.connection_age, config.lame_duck) = (Duration::from_millis(1500), Duration::from_millis(500));
    });
    run(async {
        let (asker, old) = connect(&plane).await;
        let mut asked = 0;
        while let Ok(answer) = send(&asker, request("GET", "/q/user?id=1"), None).await {
            assert_eq!(answer.status(), 200);
            asked += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(asked > 10);
        old.await.unwrap().unwrap();
        // What is under way when the process is told to end is answered.
        let (asker, connection) = connect(&plane).await;
        let late = tokio::spawn(async move { get(&asker, "/q/sleep?s=0.4").await.status });
        tokio::time::sleep(Duration::from_millis(100)).await;
        plane.signal.send(()).await.unwrap();
        assert_eq!(late.await.unwrap(), 200);
        connection.await.unwrap().unwrap();
    });
    assert_eq!(plane.join().calls_cut, 0);
}

#[test]
fn bodies_and_heads_have_their_bounds() {
    let plane = alone(|config| (config.limits.body_time, config.limits.idle_time) = (Duration::from_secs(2), Duration::from_secs(3)));
    run(async {
        let (asker, connection) = connect(&plane).await;
        let large = vec![b' '; 1_100_000];
        let answer = send(&asker, request("POST", "/q/user"), Some(&large)).await.unwrap();
        assert_eq!(answer.status(), 413);
        let answer = ask(&asker, request("POST", "/q/user"), Some(b"{\"id\":\"x\"}")).await;
        assert_eq!((answer.status, answer.json()["errors"][0]["pointer"].as_str()), (422, Some("/id")));
        // A body that does not come.
        let mut ready = asker.clone().ready().await.unwrap();
        let (answer, _stream) = ready.send_request(request("POST", "/q/user"), false).unwrap();
        assert_eq!(answer.await.unwrap().status(), 408);
        // The client waits for leave to send.
        let mut waits = request("POST", "/q/user");
        waits.headers_mut().insert("expect", "100-continue".parse().unwrap());
        let (mut answer, mut stream) = ready.send_request(waits, false).unwrap();
        let leave = std::future::poll_fn(|cx| answer.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!(leave.status(), 100);
        stream.send_data(Bytes::from_static(b"{\"id\":\"x\"}"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 422);
        let mut many = request("GET", "/q/user");
        (0..120).for_each(|n| {
            many.headers_mut().insert(http::HeaderName::try_from(format!("x-{n}")).unwrap(), "a".parse().unwrap());
        });
        assert_eq!(send(&asker, many, None).await.unwrap().status(), 431);
        let mut long = request("GET", "/q/user");
        long.headers_mut().insert("x-long", "a".repeat(15_000).parse().unwrap());
        assert_eq!(send(&asker, long.clone(), None).await.unwrap().status(), 422);
        long.headers_mut().insert("x-longer", "a".repeat(15_000).parse().unwrap());
        assert_eq!(send(&asker, long, None).await.unwrap().status(), 431);
        // One that asks nothing any more is sent away.
        connection.await.unwrap().unwrap();
    });
}

#[test]
fn calls_that_no_plan_covers_are_forwarded() {
    let plane = alone(|_| {});
    let gateway = UnixListener::bind(plane.data.path().join("run/gateway.sock")).unwrap();
    let asked = std::thread::spawn(move || {
        let (mut socket, _) = gateway.accept().unwrap();
        let mut text = String::new();
        while !text.ends_with("\r\n\r\nhello") {
            let mut piece = [0; 4096];
            let count = socket.read(&mut piece).unwrap();
            text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        socket
            .write_all(
                b"HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            )
            .unwrap();
        text
    });
    run(async {
        let (asker, _connection) = connect(&plane).await;
        let mut request = request("POST", "/exports?a=1");
        request.headers_mut().insert("x-tailrace-client", "1.2.3.4".parse().unwrap());
        let answer = ask(&asker, request, Some(b"hello")).await;
        assert_eq!((answer.status, answer.header("content-type"), answer.text()), (201, Some("text/plain"), "abcde"));
        assert!(answer.header("x-run-id").is_some());
    });
    let asked = asked.join().unwrap().to_lowercase();
    assert!(asked.starts_with("post /exports?a=1 http/1.1\r\n") && asked.contains("\r\nhost: api.test\r\n"), "{asked}");
    assert!(asked.contains("\r\nx-tailrace-client: 127.0.0.1\r\n") && !asked.contains("1.2.3.4"), "{asked}");
}

#[test]
fn alpn_chooses_it_over_tls() {
    let authority = Authority::new();
    let (chain, key) = authority.issue("api", &[dns("api.test")]);
    let Stack { plane, server } = stack(|_| {});
    let file = |name: &str| plane.data.path().join(name);
    std::fs::write(file("tls.crt"), chain).unwrap();
    std::fs::write(file("tls.key"), key).unwrap();
    let table = server.psql("SELECT 'users'::regclass::oid").parse().unwrap();
    let mut sealed = snapshot(2, &url_file(&plane, &server.url()), vec![user_by_id(table)]);
    sealed["api"]["tls"] = json!({"certificateFile": file("tls.crt"), "keyFile": file("tls.key")});
    plane.pushed(&sealed);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    run(async {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let socket = TcpStream::connect(plane.listen).await.unwrap();
        let stream = connector.connect(ServerName::try_from("api.test").unwrap(), socket).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (asker, _connection) = shake(&Builder::new(), stream).await;
        for id in 1..=100 {
            let mut request = request("GET", &format!("/q/user?id={id}"));
            *request.method_mut() = Method::GET;
            assert_eq!(ask(&asker, request, None).await.json()["id"], id);
        }
    });
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET /q/user` of `a`, no key, by HPACK's static table.
fn headers(stream: u32) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x44, 7];
    block.extend(b"/q/user");
    block.extend([0x41, 1, b'a']);
    frame(1, 5, stream, &block)
}

/// Error code of the GOAWAY that the connection ends with, if it says one.
fn goaway(wire: &mut Wire) -> Option<u32> {
    let mut text = Vec::new();
    // Whoever floods may find the connection reset.
    let _end = wire.socket.read_to_end(&mut text);
    let (mut rest, mut code) = (&text[..], None);
    while rest.len() >= 9 {
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        if rest[3] == 7 && rest.len() >= 17 {
            code = Some(u32::from_be_bytes(rest[13..17].try_into().unwrap()));
        }
        rest = &rest[(9 + length).min(rest.len())..];
    }
    code
}

#[test]
fn floods_end_the_connection() {
    let plane = alone(|config| (config.limits.head_time, config.limits.cancelled) = (Duration::from_millis(400), 50));
    let opened = || {
        let mut wire = plane.connect();
        wire.socket.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
        wire
    };
    // Rapid reset: each stream is given up as soon as it is asked.
    let mut wire = opened();
    for n in 0..4000 {
        let stream = n * 2 + 1;
        let both = [headers(stream), frame(3, 0, stream, &8u32.to_be_bytes())].concat();
        if wire.socket.write_all(&both).is_err() {
            break;
        }
    }
    assert!(matches!(goaway(&mut wire), Some(11) | None));
    // A head without an end.
    let mut wire = opened();
    let mut taken = wire.socket.write_all(&frame(1, 0, 1, &[0x82])).is_ok();
    for _ in 0..100_000 {
        taken = taken && wire.socket.write_all(&frame(9, 0, 1, &[])).is_ok();
    }
    assert!(!taken || !matches!(goaway(&mut wire), Some(0)));
    // Half a preface, and one without settings.
    let mut wire = plane.connect();
    wire.socket.write_all(&PREFACE[..10]).unwrap();
    assert!(wire.rest().starts_with("HTTP/1.1 408 "));
    let mut wire = plane.connect();
    wire.socket.write_all(&[PREFACE, b"GET /q/user HTTP/1.1\r\nHost: a\r\n\r\n"].concat()).unwrap();
    assert!(!wire.rest().contains("HTTP/1.1"));
    // The preface in pieces is one.
    let mut wire = plane.connect();
    for piece in PREFACE.chunks(5) {
        wire.socket.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    wire.socket.write_all(&[frame(4, 0, 0, &[]), headers(1), frame(7, 0, 0, &[0; 8])].concat()).unwrap();
    let mut text = Vec::new();
    wire.socket.read_to_end(&mut text).unwrap();
    assert!(text.windows(13).any(|part| part == b"urn:tailrace:"), "{:?}", String::from_utf8_lossy(&text));
    assert_eq!(plane.get("/q/user?id=x").status, 422);
}

#[test]
fn large_answers_that_nobody_reads_are_few_at_a_time() {
    let Stack { plane, server: _server } = stack(|config| config.limits.beside = 2);
    run(async {
        let socket = TcpStream::connect(plane.listen).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let mut builder = Builder::new();
        builder.initial_connection_window_size(8 << 20);
        let (asker, _connection) = shake(&builder, socket).await;
        // Each is 600 KB and is not read: two are made, the others wait for them.
        let mut asked = Vec::new();
        for _ in 0..6 {
            let mut ready = asker.clone().ready().await.unwrap();
            asked.push(ready.send_request(request("GET", "/q/big?rows=600"), true).unwrap().0);
        }
        let (mut heads, mut waiting) = (Vec::new(), Vec::new());
        for mut answer in asked {
            match timeout(Duration::from_millis(700), &mut answer).await {
                Ok(head) => heads.push(head.unwrap()),
                Err(_) => waiting.push(answer),
            }
        }
        assert!(heads.len() <= 2 && waiting.len() >= 4, "{} were made", heads.len());
        for head in heads {
            assert!(body(&mut head.into_body()).await.unwrap().ends_with(b"\"}]"));
        }
        for answer in waiting {
            let mut stream = answer.await.unwrap().into_body();
            assert!(body(&mut stream).await.unwrap().ends_with(b"\"}]"));
        }
    });
}
