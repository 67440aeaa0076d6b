//! JSON of a query that is `unbounded`: a stream of every row, with the bytes that a whole answer of these rows would have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
mod http_support;
mod postgres_server;
use http_support::*;
use postgres_server::Server;
use serde_json::{Value, json};

const SERIES: &str = "SELECT n, repeat('\"x', 20) AS pad FROM generate_series(1::bigint, $1) n";

fn series(name: &str, sql: &str, unbounded: bool) -> Value {
    let columns = vec![column("n", "raw", 20, 0, 0), column("pad", "string", 25, 0, 0)];
    let mut series = query(name, "many", vec![param("rows", "integer")], columns, statement(sql, &[20]));
    series["timeoutMs"] = json!(60_000);
    series["unbounded"] = json!(unbounded);
    series
}

fn plane(server: &Server) -> Plane {
    let plane = Plane::start();
    let url = url_file(&plane, &server.url());
    let fails = "SELECT n, (100 / (150000 - n))::text AS pad FROM generate_series(1::bigint, $1) n";
    plane.pushed(&snapshot(1, &url, vec![series("all", SERIES, true), series("some", SERIES, false), series("fails", fails, true)]));
    plane
}

#[test]
fn every_row_is_streamed_as_json() {
    let server = Server::start();
    let plane = plane(&server);
    let whole = plane.get("/q/some?rows=10000");
    assert_eq!((whole.header("X-Row-Count"), whole.header("X-Truncated")), (Some("10000"), Some("false")));
    for rows in [0, 1, 2, 10_000] {
        let streamed = plane.get(&format!("/q/all?rows={rows}"));
        assert_eq!(streamed.body, plane.get(&format!("/q/some?rows={rows}")).body, "{rows} rows");
        assert_eq!((streamed.header("X-Row-Count"), streamed.header("X-Truncated")), (None, Some("false")));
        assert_eq!((streamed.header("Transfer-Encoding"), streamed.header("Trailer")), (Some("chunked"), None));
        assert_eq!(streamed.header("Content-Type"), Some("application/json"));
    }
    let streamed = plane.get("/q/all?rows=123456").json();
    let rows = streamed.as_array().unwrap();
    assert_eq!((rows.len(), &rows[123_455]["n"]), (123_456, &json!(123_456)));
    let mut wire = plane.connect();
    wire.send(&format!("HEAD /q/all?rows=20000 HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n"));
    assert_eq!(wire.head().status, 200);
    wire.get("/q/all?rows=1");
    assert_eq!(wire.answer().json().as_array().unwrap().len(), 1);
    // HTTP/1.0 knows no chunks: the end of the connection is the end.
    let mut wire = plane.connect();
    wire.send(&format!("GET /q/all?rows=20000 HTTP/1.0\r\nX-API-Key: {KEY}\r\n\r\n"));
    let text = wire.rest();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Connection: close") && !head.contains("chunked"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(body).unwrap().as_array().unwrap().len(), 20_000);
    // One answer among several has the bound of any.
    let mut wire = plane.connect();
    let body = r#"{"calls":[{"rows":3},{"rows":20000}]}"#;
    let head = format!("POST /q/all HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n");
    wire.send(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    let both = wire.answer().json();
    assert_eq!((&both[0]["rows"], &both[1]["body"]["code"]), (&json!(3), &json!("answer_too_large")));
    let runs = plane.recorded();
    assert!(runs.contains(&("all".to_owned(), 200, String::new(), 123_456)), "{runs:?}");
}

#[test]
fn a_failure_cuts_the_body() {
    let server = Server::start();
    let plane = plane(&server);
    let mut wire = plane.connect();
    wire.get("/q/fails?rows=200000");
    assert_eq!(wire.head().status, 200);
    let text = wire.rest();
    assert!(text.contains("{\"n\":1,\"pad\":\"0\"}") && !text.contains(']') && !text.ends_with("0\r\n\r\n"));
    let mut wire = plane.connect();
    wire.send(&format!("GET /q/fails?rows=200000 HTTP/1.0\r\nX-API-Key: {KEY}\r\n\r\n"));
    let text = wire.rest();
    assert!(serde_json::from_str::<Value>(text.split_once("\r\n\r\n").unwrap().1).is_err());
    let runs = plane.recorded();
    assert_eq!(runs.iter().map(|run| (run.1, run.2.as_str())).collect::<Vec<_>>(), [(200, "database_error"); 2]);
    assert!(runs.iter().all(|run| (1..150_000).contains(&run.3)), "{runs:?}");
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let plane = Plane::start();
    let url = url_file(&plane, "postgresql://u@127.0.0.1:1/d");
    for (field, value) in [("returns", json!("one")), ("cacheTtlMs", json!(1000)), ("write", json!(true))] {
        let mut wrong = series("all", SERIES, true);
        wrong[field] = value;
        assert_ne!(plane.push(&snapshot(1, &url, vec![wrong])).0, 200, "{field}");
    }
    plane.pushed(&snapshot(1, &url, vec![series("all", SERIES, true)]));
}
