//! Several requests in one write of a client: answered in their order, however long each takes, up to the one that ends the connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n")
}

fn post(target: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn answers_come_in_the_order_of_their_requests() {
    let server = Server::start();
    let table = users(&server, 100);
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let sleep = query(
        "sleep",
        "one",
        vec![param("s", "number")],
        vec![column("n", "raw", 23, 0, 0)],
        statement("SELECT 1 AS n FROM pg_sleep($1)", &[701]),
    );
    plane.pushed(&snapshot(1, &url, vec![user_by_id(table), sleep]));
    let mut wire = plane.connect();
    // Slow ones before fast ones, refusals between, a body, a HEAD, several calls in a body.
    for _ in 0..5 {
        wire.send(
            &[
                get("/q/sleep?s=0.2"),
                get("/q/user?id=1"),
                get("/q/user?id=1000"),
                get("/q/user?id=x"),
                get("/q/none"),
                get("/q/user?id=2").replace("GET", "HEAD"),
                get("/q/sleep?s=0.1"),
                post("/q/user", "{\"id\":3}"),
                get("/q/user?id=4").replace("GET", "OPTIONS"),
                post("/q/user", "{\"calls\":[{\"id\":5},{\"id\":6}]}"),
                get("/q/user?id=7"),
            ]
            .concat(),
        );
        let mut told = Vec::new();
        for n in 0..11 {
            let answer = if n == 5 { wire.head() } else { wire.answer() };
            let id = if n == 5 || n == 8 { String::new() } else { answer.json()["id"].to_string() };
            told.push((answer.status, id));
            if n == 9 {
                assert_eq!((&answer.json()[0]["body"]["id"], &answer.json()[1]["body"]["id"]), (&5.into(), &6.into()));
            }
        }
        let wanted = [200, 200, 404, 422, 404, 200, 200, 200, 204, 200, 200];
        assert_eq!(told.iter().map(|(status, _)| *status).collect::<Vec<_>>(), wanted);
        assert_eq!([&told[1].1, &told[7].1, &told[10].1], ["1", "3", "7"]);
    }
    // The one that asks for the end is the last that is answered; so is one that is no request.
    for last in [get("/q/user?id=9").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), "nonsense\r\n\r\n".to_owned()] {
        let mut wire = plane.connect();
        wire.send(&[get("/q/sleep?s=0.1"), get("/q/user?id=8"), last, get("/q/user?id=1"), get("/q/user?id=2")].concat());
        assert_eq!(wire.answer().json()["n"], 1);
        assert_eq!(wire.answer().json()["id"], 8);
        let rest = wire.rest();
        assert_eq!(rest.matches("HTTP/1.1 ").count(), 1, "{rest}");
        assert!(rest.contains("\r\nConnection: close\r\n"));
    }
    // In pieces that end anywhere.
    let mut wire = plane.connect();
    let text = (1..=20).map(|id| get(&format!("/q/user?id={id}"))).collect::<String>();
    for piece in text.as_bytes().chunks(37) {
        wire.send(std::str::from_utf8(piece).unwrap());
    }
    for id in 1..=20 {
        assert_eq!(wire.answer().json()["id"], id);
    }
}
