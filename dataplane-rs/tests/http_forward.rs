//! Calls that no plan covers: through the front door to a gateway of the test's own, and into the run store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;
use tailrace_dataplane::config::{Config, Limits};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::process::{self, Started};
use tailrace_dataplane::shutdown::Signal;

/// Asks the process to end, once, when its other half is dropped.
struct Hangup(Option<tokio::sync::oneshot::Receiver<()>>);

impl Signal for Hangup {
    async fn next(&mut self) {
        match self.0.take() {
            Some(half) => drop(half.await),
            None => std::future::pending().await,
        }
    }
}

struct DataPlane {
    address: SocketAddr,
    hangup: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl DataPlane {
    fn start(folder: &Path) -> Self {
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            admin: "127.0.0.1:0".parse().unwrap(),
            data: folder.to_path_buf(),
            secret: folder.join("gateway-secret"),
            threads: 1,
            cache_bytes: 0,
            lame_duck: Duration::ZERO,
            drain_grace: Duration::from_secs(5),
            limits: Limits::default(),
        };
        let (hangup, signal) = tokio::sync::oneshot::channel();
        let (tell, told) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(process::run(config, Hangup(Some(signal)), Observer::stderr(), tell)).unwrap();
        });
        let Started { listen, .. } = told.blocking_recv().unwrap();
        Self { address: listen, hangup: Some(hangup), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// Drains: every run is in the store then.
    fn end(&mut self) {
        self.hangup.take();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Head and body of one answer.
struct Answer {
    status: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn head(socket: &mut impl Read) -> (String, BTreeMap<String, String>) {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).unwrap_or_else(|e| panic!("{e} after {}", String::from_utf8_lossy(&text)));
        text.push(byte[0]);
    }
    let text = String::from_utf8(text).unwrap();
    let mut lines = text.trim_end().lines();
    let first = lines.next().unwrap().to_owned();
    (first, lines.map(|line| line.split_once(": ").unwrap()).map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())).collect())
}

fn answer(socket: &mut impl Read, is_head: bool) -> Answer {
    let (status, headers) = head(socket);
    let mut body = Vec::new();
    if is_head {
    } else if let Some(length) = headers.get("content-length") {
        body = vec![0; length.parse().unwrap()];
        socket.read_exact(&mut body).unwrap();
    } else if headers.contains_key("transfer-encoding") {
        loop {
            let mut size = Vec::new();
            let mut byte = [0];
            while !size.ends_with(b"\r\n") {
                socket.read_exact(&mut byte).unwrap();
                size.push(byte[0]);
            }
            let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            socket.read_exact(&mut chunk).unwrap();
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
    Answer { status, headers, body }
}

/// Answers one connection after the other, each in a thread.
fn gateway(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            std::thread::spawn(move || serve(socket.unwrap()));
        }
    });
}

fn serve(mut socket: UnixStream) {
    // Ends when the data plane closes it.
    let mut peeked = [0];
    while matches!(socket.read(&mut peeked), Ok(1)) {
        let (first, headers) = head(&mut peeked.as_slice().chain(&mut socket));
        let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
        socket.read_exact(&mut body).unwrap();
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let seen = format!("{first}|{}|{}|{}", headers["x-tailrace-client"], headers["x-tailrace-run-id"], String::from_utf8_lossy(&body));
        let facts = "X-Tailrace-Rows: 3\r\nX-Tailrace-Database-Us: 1234\r\nX-Tailrace-Key: retail/k\r\nX-Tailrace-Query: q\r\n\
                     X-Tailrace-Query-Version: 0123456789abcdef\r\nX-Tailrace-Connection: orders\r\n";
        let sent = match path.as_str() {
            "/echo" => write!(
                socket,
                "HTTP/1.1 200 OK\r\n{facts}Server: x\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{seen}",
                seen.len()
            ),
            "/missing" => write!(socket, "HTTP/1.1 404 Not Found\r\nX-Tailrace-Code: not_found\r\nContent-Length: 2\r\n\r\n{{}}"),
            "/stream" => {
                write!(socket, "HTTP/1.1 200 OK\r\n{facts}Transfer-Encoding: chunked\r\n\r\n").unwrap();
                let piece = "x".repeat(50_000);
                (0..100).try_for_each(|_| write!(socket, "{:x}\r\n{piece}\r\n", piece.len())).and_then(|()| write!(socket, "0\r\n\r\n"))
            }
            "/head" => write!(socket, "HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n"),
            "/endless" => {
                write!(socket, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").unwrap();
                // Until the data plane goes away, because its client did.
                let _end = socket.read(&mut [0]);
                return;
            }
            "/cut" => {
                write!(socket, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").unwrap();
                return;
            }
            other => panic!("{other}"),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// status, code, rows, database_us, query, key, connection, bytes, served_by by run id.
fn runs(folder: &Path) -> BTreeMap<String, String> {
    let store = rusqlite::Connection::open(folder.join("runs.sqlite")).unwrap();
    let mut rows = store
        .prepare(
            "SELECT printf('%016x-%012x', epoch, seq), status, (SELECT name FROM names WHERE id = code), rows, database_us,
                    (SELECT name FROM names WHERE id = query), (SELECT name FROM names WHERE id = key),
                    (SELECT name FROM names WHERE id = connection), bytes, served_by FROM runs",
        )
        .unwrap();
    let text = |row: &rusqlite::Row<'_>, n| match row.get_ref(n).unwrap() {
        rusqlite::types::ValueRef::Integer(n) => n.to_string(),
        rusqlite::types::ValueRef::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        _ => String::new(),
    };
    rows.query_map([], |row| Ok((row.get(0)?, (1..10).map(|n| text(row, n)).collect::<Vec<_>>().join(" "))))
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

/// As the first snapshot does; until then runs stay in the spool.
fn say_where_runs_go(folder: &Path) {
    let snapshot = r#"{"schema":1,"version":1,"api":{"namespace":"n","name":"a","bigNumbers":"number","hideForbidden":false,"trustedProxies":[],
        "spoolSizeBytes":16777216,"onFull":"reject","durability":"process","runStore":{"embedded":{}}},"sources":[],"connections":[],
        "queries":[],"roles":[],"keys":[]}"#;
    let mut socket = UnixStream::connect(folder.join("run/dataplane.sock")).unwrap();
    write!(socket, "PUT /plans HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{snapshot}", snapshot.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn forwarded_calls_are_answered_in_order_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut dataplane = DataPlane::start(folder.path());
    let mut wanted = BTreeMap::new();
    let mut client = dataplane.connect();

    // Nobody is there yet.
    write!(client, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let down = answer(&mut client, false);
    assert_eq!(down.status, "HTTP/1.1 502 Bad Gateway");
    let problem: serde_json::Value = serde_json::from_slice(&down.body).unwrap();
    assert_eq!(problem["code"], "bad_gateway");
    assert_eq!(problem["instance"], format!("urn:tailrace:run:{}", down.headers["x-run-id"]));
    assert_eq!(down.headers["retry-after"], "1");
    wanted.insert(down.headers["x-run-id"].clone(), format!("502 bad_gateway 0 0    {} 2", down.body.len()));

    gateway(&folder.path().join("run/gateway.sock"));

    // Pipelined: the order of the answers is that of the requests, whatever they take.
    write!(
        client,
        "GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /missing HTTP/1.1\r\nHost: a\r\n\r\nHEAD /head HTTP/1.1\r\nHost: a\r\n\r\n\
         GET /echo HTTP/1.1\r\nHost: a\r\nX-Tailrace-Client: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n\
         POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
    )
    .unwrap();
    let stream = answer(&mut client, false);
    assert_eq!(stream.status, "HTTP/1.1 200 OK");
    assert_eq!(stream.body, vec![b'x'; 5_000_000]);
    wanted.insert(stream.headers["x-run-id"].clone(), "200  3 1234 q retail/k orders 5000000 2".into());
    let missing = answer(&mut client, false);
    assert_eq!((missing.status.as_str(), missing.body.as_slice()), ("HTTP/1.1 404 Not Found", &b"{}"[..]));
    wanted.insert(missing.headers["x-run-id"].clone(), "404 not_found 0 0    2 2".into());
    let only_head = answer(&mut client, true);
    assert_eq!(only_head.headers["content-length"], "77");
    wanted.insert(only_head.headers["x-run-id"].clone(), "200  0 0    0 2".into());
    for (method, body) in [("GET", ""), ("POST", "body")] {
        let echo = answer(&mut client, false);
        let run = &echo.headers["x-run-id"];
        assert_eq!(String::from_utf8(echo.body).unwrap(), format!("{method} /echo HTTP/1.1|127.0.0.1|{run}|{body}"));
        assert_eq!(echo.headers["content-type"], "text/plain");
        assert!(echo.headers.keys().all(|name| !name.starts_with("x-tailrace") && name != "server"));
        wanted.insert(run.clone(), format!("200  3 1234 q retail/k orders {} 2", echo.headers["content-length"]));
    }

    // Cut short: the client must not take it for whole.
    write!(client, "GET /cut HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (_, headers) = head(&mut client);
    assert_eq!(headers["content-length"], "10");
    let mut rest = Vec::new();
    let _reset = client.read_to_end(&mut rest);
    assert!(rest.len() < 10);
    wanted.insert(headers["x-run-id"].clone(), format!("200 bad_gateway 0 0    {} 2", rest.len()));

    // The client leaves in the middle.
    let mut client = dataplane.connect();
    write!(client, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (_, headers) = head(&mut client);
    client.read_exact(&mut [0; 6]).unwrap();
    drop(client);
    wanted.insert(headers["x-run-id"].clone(), "499 client_closed 0 0    1 2".into());

    say_where_runs_go(folder.path());
    dataplane.end();
    assert_eq!(runs(folder.path()), wanted);
}
