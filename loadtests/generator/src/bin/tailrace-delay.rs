//! A TCP proxy that hands every byte on after a fixed time, so that a server beside us seems some distance away.
//! Prints the port that it listens on. Two threads a direction and connection; what waits is bounded by `WAITING` pieces.
//! May reject: a target that is not loopback. IO: sockets on loopback; runs until it is ended.
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

/// Pieces of at most `PIECE` bytes under way in one direction; more are left in the socket.
const WAITING: usize = 4096;
const PIECE: usize = 64 << 10;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "tailrace-delay", version, about = "TCP proxy that hands every byte on after a fixed time")]
struct Arguments {
    /// The server, on loopback
    #[arg(long)]
    to: SocketAddr,
    /// Each way, in microseconds
    #[arg(long)]
    delay_us: u64,
}

type Piece = (Instant, Vec<u8>);

fn read(mut from: TcpStream, pieces: &SyncSender<Piece>, delay: Duration) {
    let mut buffer = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let piece = (Instant::now() + delay, buffer.get(..count).unwrap_or(b"").to_vec());
        if pieces.send(piece).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Read);
}

fn write(mut to: TcpStream, pieces: &Receiver<Piece>) {
    // Without it sleeps are up to 50 µs late.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    while let Ok((due, piece)) = pieces.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn join(client: TcpStream, to: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(to)?;
    for (from, into) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        into.set_nodelay(true)?;
        let (sender, receiver) = sync_channel(WAITING);
        thread::spawn(move || read(from, &sender, delay));
        thread::spawn(move || write(into, &receiver));
    }
    Ok(())
}

fn serve(arguments: &Arguments) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    let delay = Duration::from_micros(arguments.delay_us);
    for client in listener.incoming() {
        // A server that is away ends its client's connection, as it would without us.
        let _ = client.and_then(|client| join(client, arguments.to, delay));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.to.ip().is_loopback() {
        eprintln!("tailrace-delay: --to is not a loopback address");
        return ExitCode::from(64);
    }
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailrace-delay: {error}");
            ExitCode::from(2)
        }
    }
}
