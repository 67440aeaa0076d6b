//! One keep-alive connection: connecting, calls under way in order, bytes not yet written, bytes of a half answer.
//! May reject: nothing; every failure is a `Loss`. IO: one non-blocking TCP socket.
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::answer::Reader;

/// First pause after a failed connect; doubles up to `PAUSE_MOST_NS`.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_MOST_NS: u64 = 64_000_000;

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Which template.
    pub template: u32,
    /// Which key.
    pub key: u64,
    /// When it should have been sent, ns since the start.
    pub intended: u64,
    /// When it was sent.
    pub sent: u64,
}

/// How a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The connect failed.
    Refused,
    /// Reset by the server.
    Reset,
    /// Ended by the server.
    Ended,
    /// We gave up waiting.
    Timeout,
    /// Not HTTP.
    Malformed,
    /// The server had said that it would close.
    Announced,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Tried again at this time.
    Waiting(u64),
    /// The handshake is under way.
    Connecting,
    /// Calls can be sent.
    Open,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// The socket of the current life.
    pub stream: Option<TcpStream>,
    /// Where it is.
    pub phase: Phase,
    /// Unanswered, oldest first.
    pub flights: VecDeque<Flight>,
    /// Of the answers.
    pub reader: Reader,
    /// Bytes of an unfinished head or chunk line.
    pub partial: Vec<u8>,
    /// Requests not yet written.
    pub output: Vec<u8>,
    /// Waits in the open loop's list of free connections.
    pub listed: bool,
    /// The epoll registration asks for writability.
    pub wants_write: bool,
    pause_ns: u64,
}

impl Connection {
    /// Not connected; tried at once.
    pub fn new() -> Self {
        Self {
            stream: None,
            phase: Phase::Waiting(0),
            flights: VecDeque::new(),
            reader: Reader::default(),
            partial: Vec::new(),
            output: Vec::new(),
            listed: false,
            wants_write: false,
            pause_ns: 0,
        }
    }

    /// Starts a connect. Loopback mostly finishes at once.
    pub fn connect(&mut self, target: SocketAddr) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        self.phase = match socket.connect(&target.into()) {
            Ok(()) => Phase::Open,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Phase::Connecting,
            Err(error) => return Err(error),
        };
        self.stream = Some(socket.into());
        Ok(())
    }

    /// The handshake has ended: well, or with an error.
    pub fn finish_connect(&mut self) -> io::Result<()> {
        let stream = self.stream.as_ref().ok_or(ErrorKind::NotConnected)?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        stream.peer_addr()?;
        self.phase = Phase::Open;
        Ok(())
    }

    /// An answer came: the next failure starts with a short pause again.
    pub const fn healthy(&mut self) {
        self.pause_ns = 0;
    }

    /// Writes what waits; false: the socket is full and something is left.
    pub fn write(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let mut written = 0;
        while let Some(rest) = self.output.get(written..).filter(|rest| !rest.is_empty()) {
            match stream.write(rest) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..written);
        Ok(self.output.is_empty())
    }

    /// Reads once behind what is left of the last read; None: nothing there. 0 bytes more: the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match stream.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the socket and everything half done; the next try is after a pause that grows while tries fail.
    pub fn close(&mut self, now: u64, loss: Loss) {
        self.stream = None;
        self.partial.clear();
        self.output.clear();
        self.reader.reset();
        self.flights.clear();
        self.wants_write = false;
        let pause = if loss == Loss::Announced { 0 } else { self.pause_ns };
        self.phase = Phase::Waiting(now + pause);
        self.pause_ns = (self.pause_ns * 2).clamp(PAUSE_NS, PAUSE_MOST_NS);
    }
}

impl Default for Connection {
    fn default() -> Self {
        Self::new()
    }
}
