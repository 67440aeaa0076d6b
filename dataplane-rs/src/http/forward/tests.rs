use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::task::LocalSet;

const RUN: RunId = RunId { epoch: 1, sequence: 2 };

fn asked<'a>(method: &'a str, headers: &'a [(String, Vec<u8>)]) -> Asked<'a> {
    Asked { method, target: b"/catalog?a=%20b", headers, run: RUN, client: "192.0.2.7".parse().unwrap() }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
}

/// Reads one request: its head and `body` bytes.
async fn read(socket: &mut UnixStream, body: usize) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        assert_eq!(socket.read(&mut byte).await.unwrap(), 1, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    let mut rest = vec![0; body];
    socket.read_exact(&mut rest).await.unwrap();
    String::from_utf8([text, rest].concat()).unwrap()
}

async fn whole(answer: &mut Answer<'_>) -> Result<Vec<u8>, Unanswered> {
    let mut body = Vec::new();
    while let Some(piece) = answer.piece().await? {
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn private_and_hop_headers_stay_here() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let gateway = Gateway::new(path);
        let server = tokio::task::spawn_local(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let first = read(&mut socket, 4).await;
            socket
                .write_all(
                    b"HTTP/1.1 404 Not Found\r\nX-Tailrace-Rows: 3\r\nX-Tailrace-Database-Us: 17\r\nX-Tailrace-Code: not_found\r\n\
                      X-Tailrace-Key: a/b\r\nX-Tailrace-Query: q\r\nX-Tailrace-Query-Version: v\r\nX-Tailrace-Connection: c\r\n\
                      X-Tailrace-Else: x\r\nConnection: X-Hop\r\nX-Hop: 1\r\nLink: </n>\r\nContent-Length: 2\r\n\r\nok",
                )
                .await
                .unwrap();
            // The same connection again, now with a chunked answer.
            let second = read(&mut socket, 0).await;
            socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").await.unwrap();
            (first, second)
        });
        let sent = pairs(&[
            ("Host", "shop"),
            ("X-API-Key", "k"),
            ("X-Tailrace-Run-Id", "forged"),
            ("x-tailrace-client", "forged"),
            ("X-Tailrace-Else", "forged"),
            ("Connection", "keep-alive, X-Mine, x-api-key"),
            ("X-Mine", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Expect", "100-continue"),
            ("TE", "trailers"),
        ]);
        let mut answer = gateway.ask(asked("POST", &sent), b"body".to_vec()).await.unwrap();
        assert_eq!(answer.status, 404);
        let facts = Facts {
            rows: 3,
            database_us: 17,
            code: "not_found".into(),
            key: "a/b".into(),
            query: "q".into(),
            version: "v".into(),
            connection: "c".into(),
        };
        assert_eq!(answer.facts, facts);
        let names: Vec<_> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["link", "content-length"]);
        assert_eq!(answer.length(), Some(2));
        assert_eq!(whole(&mut answer).await.unwrap(), b"ok");
        drop(answer);
        let mut answer = gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap();
        assert_eq!(answer.length(), None);
        assert_eq!(whole(&mut answer).await.unwrap(), b"abcde");
        let (first, second) = server.await.unwrap();
        let mut lines: Vec<_> = first.lines().collect();
        assert_eq!(lines.remove(0), "POST /catalog?a=%20b HTTP/1.1");
        lines.sort_unstable();
        let wanted = [
            "",
            "body",
            "content-length: 4",
            "host: shop",
            "x-api-key: k",
            "x-tailrace-client: 192.0.2.7",
            "x-tailrace-run-id: 0000000000000001-000000000002",
        ];
        assert_eq!(lines, wanted);
        assert!(second.starts_with("GET /catalog?a=%20b HTTP/1.1\r\n"));
    });
}

#[test]
fn a_gateway_that_is_down_or_breaks_off_is_told() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.sock");
        let gateway = Gateway::new(path.clone());
        assert_eq!(gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap_err(), Unanswered::Down);
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::task::spawn_local(async move {
            for answer in [&b""[..], b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"] {
                let (mut socket, _) = listener.accept().await.unwrap();
                read(&mut socket, 0).await;
                socket.write_all(answer).await.unwrap();
            }
        });
        assert_eq!(gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap_err(), Unanswered::Down);
        assert_eq!(gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap_err(), Unanswered::Down);
        let mut cut = gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap();
        assert_eq!(whole(&mut cut).await, Err(Unanswered::Down));
        server.await.unwrap();
        drop(cut);
        assert_eq!(gateway.calls.get(), 0);
    });
}

#[test]
fn a_kept_connection_that_was_closed_is_replaced() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let gateway = Gateway::new(path);
        let server = tokio::task::spawn_local(async move {
            for _ in 0..3 {
                let (mut socket, _) = listener.accept().await.unwrap();
                read(&mut socket, 0).await;
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
                // Closed without a word, as by a restart.
            }
        });
        for _ in 0..3 {
            let mut answer = gateway.ask(asked("POST", &[]), Vec::new()).await.unwrap();
            assert_eq!(whole(&mut answer).await.unwrap(), b"ok");
            drop(answer);
            tokio::task::yield_now().await;
        }
        server.await.unwrap();
    });
}

#[test]
fn a_client_that_leaves_closes_the_connection() {
    local(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let gateway = Gateway::new(path);
        let server = tokio::task::spawn_local(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            read(&mut socket, 0).await;
            socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").await.unwrap();
            assert_eq!(socket.read(&mut [0; 8]).await.unwrap(), 0);
        });
        let mut answer = gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap();
        assert_eq!(answer.piece().await.unwrap().unwrap(), "a");
        drop(answer);
        server.await.unwrap();
    });
}

#[test]
fn more_calls_than_the_limit_are_refused_at_once() {
    local(async {
        let gateway = Gateway::new("/nowhere".into());
        gateway.calls.set(CALLS_LIMIT);
        assert_eq!(gateway.ask(asked("GET", &[]), Vec::new()).await.unwrap_err(), Unanswered::Busy);
    });
}

#[test]
fn what_is_no_target_is_not_sent() {
    for target in [&b"no slash"[..], b"/\x00", b"/\xff"] {
        let strange = Asked { target, ..asked("GET", &[]) };
        let made = request(strange, Bytes::new());
        if let Ok(made) = made {
            assert!(made.uri().path().starts_with('/'), "{target:?}");
        }
    }
}
