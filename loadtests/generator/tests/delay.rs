//! The delaying proxy hands on every byte, in order, both ways, no sooner than it should.
#![allow(clippy::unwrap_used, missing_docs)]
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn bytes_come_whole_and_no_sooner_than_the_round_trip() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut stream = server.accept().unwrap().0;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        stream.write_all(&text).unwrap();
    });
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_tailrace-delay"));
    let mut proxy = proxy.args(["--to", &to, "--delay-us", "20000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let began = Instant::now();
    let mut client = TcpStream::connect(("127.0.0.1", line.trim().parse().unwrap())).unwrap();
    let sent: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    let took = began.elapsed();
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    assert!(received == sent && took >= Duration::from_millis(40), "{} bytes in {took:?}", received.len());
}

#[test]
fn only_loopback_is_proxied() {
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_tailrace-delay"));
    let done = proxy.args(["--to", "192.0.2.1:80", "--delay-us", "1"]).stderr(Stdio::null()).status().unwrap();
    assert_eq!(done.code(), Some(64));
}
