//! The generator against tiny servers that behave well or badly: what it must notice, count and keep.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser as _;
use tailrace_generator::report::Report;
use tailrace_generator::settings::Arguments;

/// What a server does with one request: writes to the socket; false ends the connection.
type Behaviour = dyn Fn(&mut TcpStream, &str, u64) -> bool + Send + Sync;

/// Serves each connection on its own thread until the test's process ends.
fn serve(behaviour: impl Fn(&mut TcpStream, &str, u64) -> bool + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (behaviour, count): (Arc<Behaviour>, _) = (Arc::new(behaviour), Arc::new(AtomicU64::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (behaviour, count) = (Arc::clone(&behaviour), Arc::clone(&count));
            std::thread::spawn(move || connection(stream.unwrap(), &*behaviour, &count));
        }
    });
    port
}

fn connection(mut stream: TcpStream, behaviour: &Behaviour, count: &AtomicU64) {
    stream.set_nodelay(true).unwrap();
    let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(held[..end + 4].to_vec()).unwrap();
            let length = head.split("Content-Length: ").nth(1).map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
            if held.len() < end + 4 + length {
                break;
            }
            let request = String::from_utf8(held.drain(..end + 4 + length).collect()).unwrap();
            if !behaviour(&mut stream, &request, count.fetch_add(1, Ordering::SeqCst) + 1) {
                return;
            }
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => held.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
}

fn id(number: u64) -> String {
    format!("00000000000000ab-{number:012x}")
}

/// The id in `…id=N…`.
fn key(request: &str) -> &str {
    request.split("id=").nth(1).unwrap().split([' ', '&', '\r']).next().unwrap()
}

fn answer(body: &str, number: u64) -> String {
    format!("HTTP/1.1 200 OK\r\nX-Run-Id: {}\r\nContent-Length: {}\r\n\r\n{body}", id(number), body.len())
}

fn good(stream: &mut TcpStream, request: &str, number: u64) -> bool {
    stream.write_all(answer(&format!("{{\"id\":{}}}", key(request)), number).as_bytes()).is_ok()
}

fn run(port: u16, words: &[&str]) -> Report {
    let url = format!("http://127.0.0.1:{port}");
    let base = ["tailrace-generator", "--url", &url, "--connections", "4", "--duration", "20s"];
    tailrace_generator::drive::run(&Arguments::try_parse_from(base.iter().chain(words)).unwrap().load().unwrap()).unwrap()
}

const CALLS: [&str; 6] = ["--path", "/q/a?id={}", "--keys", "1..1000", "--contains", "\"id\":{}}"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&CALLS[..], words].concat()
}

#[test]
fn right_answers_are_counted_and_their_ids_kept() {
    let port = serve(good);
    let file = tempfile::NamedTempFile::new().unwrap();
    for depth in ["1", "7"] {
        let report = run(port, &with(&["--calls", "500", "--depth", depth, "--run-ids", file.path().to_str().unwrap()]));
        assert_eq!((report.stats.right, report.stats.answered, report.run_ids, report.exit_code()), (500, 500, 500, 0));
        assert_eq!(report.stats.latency.len(), 500);
        let kept = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(kept.lines().collect::<HashSet<_>>().len(), 500);
    }
}

#[test]
fn wrong_answers_are_found() {
    let port = serve(|stream, request, number| {
        let key = if number % 10 == 0 { "0" } else { key(request) };
        let status = if number % 50 == 1 { "503 Service Unavailable" } else { "200 OK" };
        stream.write_all(answer(&format!("{{\"id\":{key}}}"), number).replacen("200 OK", status, 1).as_bytes()).is_ok()
    });
    let report = run(port, &with(&["--calls", "200"]));
    assert_eq!((report.stats.wrong, report.stats.other_status, report.stats.right, report.exit_code()), (20, 4, 176, 1));
    assert_eq!((report.stats.statuses[&200], report.stats.statuses[&503]), (196, 4));
    let report = run(port, &["--path", "/q/a?id={}", "--keys", "1..9", "--calls", "100", "--tolerate", "503"]);
    assert_eq!((report.stats.other_status, report.stats.right, report.exit_code()), (0, 98, 0));
}

#[test]
fn an_answer_that_breaks_off_is_an_error_and_its_id_is_not_kept() {
    let port = serve(|stream, request, number| {
        let text = answer(&format!("{{\"id\":{}}}", key(request)), number);
        let cut = if number % 10 == 0 { text.len() - 3 } else { text.len() };
        stream.write_all(&text.as_bytes()[..cut]).unwrap();
        number % 10 != 0 && number % 25 != 0
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let report = run(port, &with(&["--connections", "1", "--calls", "100", "--run-ids", file.path().to_str().unwrap()]));
    // A call may cross the end that follows every 25th answer; it is lost then, and nothing else is.
    let (errors, right) = (report.stats.errors, report.stats.right);
    assert!(errors.closed + errors.reset <= 4 && errors.closed_mid_answer >= 9, "{errors:?}");
    assert_eq!((errors.closed + errors.reset + errors.closed_mid_answer + right, right), (100, report.run_ids));
    let kept = std::fs::read_to_string(file.path()).unwrap();
    assert!(!kept.contains(&id(10)) && kept.contains(&id(11)));
    assert!(report.reopened >= 10);
}

#[test]
fn chunks_and_slow_bytes_are_read_as_one_answer() {
    let port = serve(|stream, request, number| {
        let body = format!("{{\"id\":{}}}", key(request));
        let (one, two) = body.split_at(number as usize % body.len());
        let mut text = format!("HTTP/1.1 200 OK\r\nX-Run-Id: {}\r\nTransfer-Encoding: chunked\r\n\r\n", id(number));
        for part in [one, two] {
            if !part.is_empty() {
                text += &format!("{:X}\r\n{part}\r\n", part.len());
            }
        }
        text += "0\r\n\r\n";
        if number % 5 == 0 { text.bytes().all(|byte| stream.write_all(&[byte]).is_ok()) } else { stream.write_all(text.as_bytes()).is_ok() }
    });
    let report = run(port, &with(&["--calls", "100", "--depth", "3"]));
    assert_eq!((report.stats.right, report.run_ids, report.exit_code()), (100, 100, 0));
}

#[test]
fn connection_close_is_followed() {
    let port = serve(|stream, request, number| {
        let text = answer(&format!("{{\"id\":{}}}", key(request)), number).replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let _ = stream.write_all(text.as_bytes());
        false
    });
    let report = run(port, &with(&["--calls", "40"]));
    assert_eq!((report.stats.right, report.reopened), (40, 40));
}

#[test]
fn no_answer_in_time_is_a_timeout_and_ends() {
    let port = serve(|_, _, _| true);
    let report = run(port, &with(&["--calls", "8", "--timeout", "50ms"]));
    assert_eq!((report.stats.errors.timeout, report.stats.answered), (8, 0));
    assert!(report.is_void() && report.exit_code() == 3);
}

#[test]
fn a_server_that_is_not_there_is_refused_until_the_end() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let report = run(port, &with(&["--duration", "200ms"]));
    assert!(report.stats.errors.refused > 4 && report.stats.answered == 0 && report.is_void());
}

#[test]
fn nonsense_is_malformed() {
    let port = serve(|stream, _, _| stream.write_all(b"nonsense\r\n\r\n").is_ok());
    let report = run(port, &with(&["--calls", "6"]));
    assert_eq!((report.stats.errors.malformed, report.stats.answered), (6, 0));
}

#[test]
fn templates_bodies_and_keys_go_round() {
    let port = serve(|stream, request, number| {
        let key = request.split("X-API-Key: ").nth(1).unwrap().split("\r\n").next().unwrap();
        let body = request.split("\r\n\r\n").nth(1).unwrap();
        let body = format!("{} {key} {body}", request.split(' ').next().unwrap());
        if request.starts_with("HEAD") {
            return stream.write_all(answer("", number).replace("Length: 0", "Length: 99").as_bytes()).is_ok();
        }
        stream.write_all(answer(&body, number).as_bytes()).is_ok()
    });
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("keys"), "one\ntwo\n").unwrap();
    std::fs::write(at("lines"), "1\tx\n22\tyy\n").unwrap();
    let plan = format!(
        r#"{{"requests": [{{"name": "get", "path": "/a", "expect": {{"prefix": "GET "}}}}, {{"name": "head", "method": "HEAD", "path": "/a"}},
        {{"name": "post", "weight": 2, "method": "POST", "path": "/a", "body": "{{\"id\":{{0}},\"n\":\"{{1}}\"}}", "keys": "@{}",
          "expect": {{"contains": "{{\"id\":{{0}},\"n\":\"{{1}}\"}}"}}}}]}}"#,
        at("lines")
    );
    std::fs::write(at("plan"), plan).unwrap();
    let report = run(port, &["--plan", &at("plan"), "--api-keys", &at("keys"), "--calls", "400"]);
    assert_eq!((report.stats.right, report.exit_code()), (400, 0), "{:?}", report.stats.samples);
    assert!(report.stats.templates[2] > 150 && report.stats.templates[1] > 50 && report.stats.templates[0] > 50);
}

#[test]
fn an_open_loop_that_is_not_delivered_is_void() {
    let port = serve(good);
    let report = run(port, &with(&["--rate", "1000", "--calls", "200", "--arrivals", "poisson"]));
    assert_eq!((report.stats.offered, report.stats.right, report.exit_code()), (200, 200, 0));
    // One connection and 5 ms an answer: at most 200 a second of the 2,000 offered.
    let slow = serve(|stream, request, number| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        good(stream, request, number)
    });
    let report = run(slow, &with(&["--connections", "1", "--rate", "2000", "--duration", "300ms"]));
    assert!((590..=600).contains(&report.stats.offered), "{}", report.stats.offered);
    assert!(report.delivered() < 0.5 && report.exit_code() == 3);
    let (fast, late) = (report.stats.latency.value_at_quantile(0.01), report.stats.latency.max());
    assert!(late > 10 * fast, "latency counts from the intended time: {fast} {late}");
}

#[test]
fn the_warm_up_does_not_count_but_its_ids_do() {
    let port = serve(good);
    let report = run(port, &with(&["--rate", "500", "--duration", "600ms", "--warm-up", "300ms"]));
    assert!((140..=160).contains(&report.stats.offered) && report.run_ids >= 290, "{} {}", report.stats.offered, report.run_ids);
}

#[test]
fn a_file_that_appears_ends_the_load_without_losing_a_call() {
    let path = std::env::temp_dir().join(format!("tailrace-generator-until-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let seen = path.clone();
    let port = serve(move |stream, request, number| {
        if number == 20 {
            std::fs::write(&seen, "").unwrap();
        }
        good(stream, request, number)
    });
    let report = run(port, &with(&["--rate", "200", "--until", path.to_str().unwrap(), "--duration", "10m"]));
    std::fs::remove_file(&path).unwrap();
    assert!(report.stats.answered >= 20, "it went on until the file was there");
    assert_eq!((report.stats.right, report.lost), (report.stats.answered, 0));
    assert_eq!((report.stats.offered, report.stats.unsent), (report.stats.answered, 0), "all that came due was sent");
}

#[test]
fn what_no_connection_had_room_for_is_unsent() {
    let port = serve(|stream, request, number| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        good(stream, request, number)
    });
    let report = run(port, &with(&["--connections", "1", "--rate", "500", "--duration", "300ms"]));
    assert!(report.stats.unsent > 100 && report.stats.unsent + report.stats.answered == report.stats.offered, "{}", report.stats.unsent);
}

#[test]
fn targets_are_read_from_a_list() {
    let port = serve(good);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "/q/a?id=1&x=2\t1\n/q/b?id=22\t22\n").unwrap();
    let keys = format!("@{}", file.path().to_str().unwrap());
    let report = run(port, &["--path", "{0}", "--keys", &keys, "--contains", "{\"id\":{1}}", "--calls", "50"]);
    assert_eq!((report.stats.right, report.exit_code()), (50, 0), "{:?}", report.stats.samples);
}

#[test]
fn a_bulk_is_judged_call_by_call() {
    let port = serve(|stream, request, number| {
        let body = request.split("\r\n\r\n").nth(1).unwrap().strip_prefix("{\"calls\":[").unwrap().strip_suffix("]}").unwrap();
        let entries = body.split(',').enumerate().map(|(n, call)| {
            let key: u64 = call.strip_prefix("{\"id\":").unwrap().strip_suffix('}').unwrap().parse().unwrap();
            // Every tenth request has its first entry wrong, a problem as its second, and lacks its last.
            let (key, status) =
                if number % 10 == 0 && n == 0 { (0, 200) } else { (key, if number % 10 == 0 && n == 1 { 503 } else { 200 }) };
            format!(
                "{{\"status\":{status},\"run\":\"{}\",\"rows\":1,\"truncated\":false,\"body\":{{\"id\":{key}}}}}",
                id(number * 1000 + n as u64)
            )
        });
        let entries: Vec<String> = entries.take(if number % 10 == 0 { 7 } else { 8 }).collect();
        let body = format!("[{}]", entries.join(","));
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).is_ok()
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let words =
        ["--path", "/q/a", "--method", "POST", "--body", "{\"id\":{}}", "--keys", "1..1000", "--contains", "\"id\":{}}", "--bulk", "8"];
    let report = run(port, &[&words[..], &["--calls", "800", "--run-ids", file.path().to_str().unwrap()]].concat());
    let stats = &report.stats;
    assert_eq!((stats.offered, stats.answered, stats.right), (800, 800, 770), "{:?}", stats.samples);
    assert_eq!((stats.wrong, stats.other_status, stats.without_run_id), (10, 20, 10));
    assert_eq!((stats.statuses[&200], stats.statuses[&503], stats.statuses[&0], stats.latency.len()), (780, 10, 10, 800));
    assert_eq!(std::fs::read_to_string(file.path()).unwrap().lines().collect::<HashSet<_>>().len(), 790);
}
