//! One keep-alive connection: connecting, calls under way in order, bytes not yet written, bytes of a half answer.
//! HTTP/1.1 or HTTP/2, plain or through TLS. May reject: nothing; every failure is a `Loss`. IO: one non-blocking TCP socket.
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Socket, Type};

use crate::answer::Reader;
use crate::h2;

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
    /// Of HTTP/2; 0 on HTTP/1.1.
    pub stream: u32,
    /// In its body; 1 unless it is a bulk.
    pub calls: u32,
}

/// How servers are spoken to.
#[derive(Clone, Debug)]
pub struct Transport {
    /// HTTP/2 from the first byte.
    pub is_h2: bool,
    /// Whom to trust and whose name to expect; None: plain.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
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
    /// Of the answers of HTTP/1.1.
    pub reader: Reader,
    /// Of the answers of HTTP/2, when that is spoken.
    pub h2: Option<Box<h2::Reader>>,
    /// The server takes no more calls on this connection.
    pub is_draining: bool,
    next_stream: u32,
    tls: Option<Box<ClientConnection>>,
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
            h2: None,
            is_draining: false,
            next_stream: 1,
            tls: None,
            partial: Vec::new(),
            output: Vec::new(),
            listed: false,
            wants_write: false,
            pause_ns: 0,
        }
    }

    /// Starts a connect. Loopback mostly finishes at once.
    pub fn connect(&mut self, target: SocketAddr, transport: &Transport) -> io::Result<()> {
        if let Some((config, name)) = &transport.tls {
            let client = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
            self.tls = Some(Box::new(client));
        }
        if transport.is_h2 {
            self.h2 = Some(Box::default());
            (self.next_stream, self.is_draining) = (1, false);
            h2::preface(&mut self.output);
        }
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

    /// The number of the next call's stream; 0 on HTTP/1.1.
    pub fn stream(&mut self) -> u32 {
        if self.h2.is_none() {
            return 0;
        }
        let number = self.next_stream;
        self.next_stream = number.saturating_add(2);
        number
    }

    /// TLS has something to say, as at the end of a handshake.
    pub fn has_handshake(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Writes what waits; false: the socket is full and something is left.
    pub fn write(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        if let Some(tls) = &mut self.tls {
            // What the session doesn't take yet (its own buffer is bounded) stays here.
            let taken = tls.writer().write(&self.output)?;
            self.output.drain(..taken);
            while tls.wants_write() {
                match tls.write_tls(stream) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(self.output.is_empty());
        }
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
        let nothing = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
        let Some(tls) = &mut self.tls else { return stream.read(buffer).map(Some).or_else(nothing) };
        match tls.read_tls(stream) {
            Ok(_) => {}
            Err(error) => return nothing(error),
        }
        tls.process_new_packets().map_err(io::Error::other)?;
        // One read of the socket never holds more plain text than `buffer` has room for.
        tls.reader().read(buffer).map(Some).or_else(nothing)
    }

    /// Drops the socket and everything half done; the next try is after a pause that grows while tries fail.
    pub fn close(&mut self, now: u64, loss: Loss) {
        (self.stream, self.tls, self.h2) = (None, None, None);
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
