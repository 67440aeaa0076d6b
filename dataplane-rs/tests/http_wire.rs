//! What is not quite HTTP, too large or too slow, on raw sockets; no database is needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use std::time::Duration;

/// No database behind it: every call that passes the checks is 503.
fn plane() -> Plane {
    let plane = Plane::start();
    let url = plane.data.path().join("none");
    let mut write = user_by_id(0);
    write["name"] = "write".into();
    write["version"] = "00000000000000aa".into();
    write["write"] = true.into();
    write["shared"] = false.into();
    plane.pushed(&snapshot(1, &url, vec![user_by_id(0), write]));
    plane
}

#[test]
fn before_the_first_snapshot_nothing_is_served() {
    let plane = Plane::start();
    let answer = plane.get("/q/user?id=1");
    assert_eq!((answer.status, answer.code(), answer.header("Retry-After")), (503, "not_ready".to_owned(), Some("1")));
    assert_eq!(plane.admin("/readyz").status, 503);
}

#[test]
fn what_is_not_http_gets_a_bare_answer_and_the_end() {
    let plane = plane();
    let long = "a".repeat(20_000);
    let many = (0..101).map(|n| format!("X-{n}: a\r\n")).collect::<String>();
    for (text, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03 hello\r\n\r\n", 400),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        (&format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 431),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431),
    ] {
        let mut wire = plane.connect();
        // What follows must not be taken for another request.
        wire.send(text);
        let _reset_is_fine_too = std::io::Write::write_all(&mut wire.socket, b"GET /q/user HTTP/1.1\r\nHost: a\r\n\r\n");
        let rest = wire.rest();
        assert!(rest.starts_with(&format!("HTTP/1.1 {status} ")), "{text:.80?}: {rest}");
        assert!(rest.contains("\r\nConnection: close\r\n") && rest.ends_with("\r\n\r\n"), "{text:.80?}: {rest}");
        assert_eq!(rest.matches("HTTP/1.1").count(), 1, "{text:.80?}: {rest}");
    }
}

#[test]
fn a_bad_request_is_answered_behind_those_before_it() {
    let plane = plane();
    let mut wire = plane.connect();
    wire.send("GET /q/user HTTP/1.1\r\nHost: a\r\n\r\nGET /q/user HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n");
    let rest = wire.rest();
    let statuses: Vec<_> = rest.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["401", "401", "400"]);
}

#[test]
fn bodies_come_in_all_ways() {
    let plane = plane();
    let head =
        |more: &str| format!("POST /q/write HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n{more}\r\n");
    let mut wire = plane.connect();
    let faulty = "{\"id\":\"x\"}";
    // By length, in pieces; chunked, in pieces; both say which parameter is wrong.
    wire.send(&head("Content-Length: 10\r\n"));
    for piece in faulty.as_bytes().chunks(3) {
        wire.send(std::str::from_utf8(piece).unwrap());
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(wire.answer().json()["errors"][0]["pointer"], "/id");
    wire.send(&head("Transfer-Encoding: chunked\r\n"));
    for piece in ["4\r", "\n{\"id", "\r\n6;x=y\r\n\":\"x", "\"}\r\n0\r\nX-Trailer: a\r", "\n\r\n"] {
        wire.send(piece);
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(wire.answer().json()["errors"][0]["pointer"], "/id");
    // The client waits for leave to send.
    wire.send(&head("Content-Length: 10\r\nExpect: 100-continue\r\n"));
    let leave = wire.head();
    assert_eq!((leave.status, leave.headers.len()), (100, 0));
    wire.send(faulty);
    assert_eq!(wire.answer().status, 422);
    // Without a Content-Type.
    wire.send(&format!("POST /q/write HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}"));
    assert_eq!(wire.answer().code(), "unsupported_media_type");
    // Too large, declared and not: the checks before it come first.
    wire.send(&head("Content-Length: 1048577\r\n"));
    let answer = wire.answer();
    assert_eq!((answer.status, answer.code(), answer.header("Connection")), (413, "body_too_large".to_owned(), Some("close")));
    assert_eq!(wire.rest(), "");
    let mut wire = plane.connect();
    wire.send(&head("Transfer-Encoding: chunked\r\n"));
    for _ in 0..17 {
        wire.send(&format!("10000\r\n{}\r\n", "a".repeat(65536)));
    }
    assert_eq!(wire.answer().code(), "body_too_large");
    let mut wire = plane.connect();
    wire.send("POST /q/write HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(wire.answer().status, 401);
    // As large as may be: a faulty parameter of 1,000,000 characters.
    let mut wire = plane.connect();
    let body = format!("{{\"id\":\"{}\"}}", "a".repeat(1_000_000));
    wire.send(&(head(&format!("Content-Length: {}\r\n", body.len())) + &body));
    assert_eq!(wire.answer().status, 422);
}

#[test]
fn slow_clients_are_told_so() {
    let plane = Plane::start_with(|config| {
        let limits = &mut config.limits;
        (limits.head_time, limits.body_time, limits.idle_time) =
            (Duration::from_millis(300), Duration::from_millis(300), Duration::from_millis(600));
    });
    let mut wire = plane.connect();
    wire.send("GET /q/user HTTP/1.1\r\nHo");
    assert!(wire.rest().starts_with("HTTP/1.1 408 "));
    let mut wire = plane.connect();
    wire.send("POST /q/user HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
    assert!(wire.rest().starts_with("HTTP/1.1 408 "));
    // One byte at a time doesn't help.
    let mut wire = plane.connect();
    wire.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut sent = 0;
    eventually("the slow head is ended", || {
        let _ended = std::io::Write::write_all(&mut wire.socket, b"a");
        sent += 1;
        wire.rest().contains(" 408 ") || sent > 2000
    });
    assert!(sent <= 2000);
    let mut idle = plane.connect();
    assert_eq!(idle.rest(), "");
}

#[test]
fn old_http_and_other_forms() {
    let plane = plane();
    let mut wire = plane.connect();
    wire.send(&format!("GET http://api.test/q/%75ser?id=x HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n"));
    assert_eq!(wire.answer().code(), "invalid_parameters");
    wire.send(&format!("\r\nGET /q/user?id=x HTTP/1.0\r\nConnection: keep-alive\r\nX-API-Key: {KEY}\r\n\r\n"));
    let answer = wire.answer();
    assert_eq!((answer.status, answer.header("Connection")), (422, Some("keep-alive")));
    wire.send(&format!("GET /q/user?id=x HTTP/1.0\r\nX-API-Key: {KEY}\r\n\r\n"));
    assert!(wire.rest().contains("\r\nConnection: close\r\n"));
    let mut wire = plane.connect();
    wire.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nHEAD /q/user HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let rest = wire.rest();
    assert!(rest.starts_with("HTTP/1.1 204 ") && rest.contains("HTTP/1.1 401 ") && rest.ends_with("\r\n\r\n"), "{rest}");
}

#[test]
fn connections_end_when_they_are_old_and_when_the_process_ends() {
    let plane = Plane::start_with(|config| {
        config.limits.connection_age = Duration::from_millis(200);
        config.lame_duck = Duration::from_millis(500);
    });
    let mut wire = plane.connect();
    let ask = "GET /q/user HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut asked = 0;
    loop {
        wire.send(ask);
        asked += 1;
        if wire.answer().header("Connection") == Some("close") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(asked > 3);
    assert_eq!(wire.rest(), "");
    // The lame duck accepts on, and says that each connection ends.
    let mut early = plane.connect();
    early.send(ask);
    early.answer();
    plane.signal();
    eventually("not ready", || plane.admin("/readyz?verbose").text().contains("draining"));
    early.send(ask);
    assert_eq!(early.answer().header("Connection"), Some("close"));
    let mut late = plane.connect();
    late.send(ask);
    assert_eq!(late.answer().header("Connection"), Some("close"));
    let listen = plane.listen;
    assert_eq!(plane.join().calls_cut, 0);
    assert!(std::net::TcpStream::connect(listen).is_err());
}
