//! The bytes' way to one PostgreSQL server: TCP or a Unix socket, plain or under TLS, without a lock or a task of its own.
//!
//! Reading and writing never wait (`try_read`, `try_write`); `readable` and `writable` do. IO: this socket.
//! May reject: a TLS alert or a broken record, as an `io::Error`.
use bytes::{Buf, BufMut, BytesMut};
use rustls::ClientConnection;
use std::io::{self, ErrorKind, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The socket below TLS.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Socket {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(into),
            Self::Unix(stream) => stream.try_read(into),
        }
    }

    /// Appends what there is, and needs no zeros to be written over.
    fn try_read_buf(&self, into: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(into),
            Self::Unix(stream) => stream.try_read_buf(into),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }
}

/// rustls reads and writes its records through this.
struct Records<'a>(&'a Socket);

impl Read for Records<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connected socket, perhaps under TLS.
#[derive(Debug)]
pub struct Transport {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Transport {
    /// Takes a connected socket.
    pub fn new(socket: Socket) -> Self {
        Self { socket, tls: None }
    }

    /// The socket, for its options.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether it is a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// Whether TLS covers it.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The server's certificate (DER), under TLS.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer_certificates()?.first().map(|der| der.as_ref())
    }

    /// Makes the TLS handshake. Give it a deadline.
    pub async fn secure(&mut self, mut tls: ClientConnection) -> io::Result<()> {
        // Bounds what try_write accepts beyond what the socket takes; more is refused for the moment (WouldBlock).
        tls.set_buffer_limit(Some(256 << 10));
        while tls.is_handshaking() {
            while tls.wants_write() {
                match tls.write_tls(&mut Records(&self.socket)) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                    other => drop(other?),
                }
            }
            if tls.wants_read() && tls.is_handshaking() {
                match tls.read_tls(&mut Records(&self.socket)) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.readable().await?,
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    other => drop(other?),
                }
                if let Err(error) = tls.process_new_packets() {
                    // The alert that says why; the peer may be gone already.
                    _ = tls.write_tls(&mut Records(&self.socket));
                    return Err(io::Error::new(ErrorKind::InvalidData, error));
                }
            }
        }
        self.tls = Some(Box::new(tls));
        self.flush().await
    }

    /// Bytes that arrived; 0 at the end. `WouldBlock` when there are none now.
    pub fn try_read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.try_read(into) };
        loop {
            match tls.reader().read(into) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The server closes without close_notify: PostgreSQL frames its messages itself.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            let ended = tls.read_tls(&mut Records(&self.socket))? == 0;
            tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if ended {
                return match tls.reader().read(into) {
                    Ok(n) => Ok(n),
                    Err(_) => Ok(0),
                };
            }
        }
    }

    /// Bytes that were taken, maybe not all. `WouldBlock` when none can be taken now.
    /// Under TLS taken bytes may still stand here: call `try_flush` until it is true.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.try_write(bytes) };
        let taken = tls.writer().write(bytes)?;
        match self.try_flush() {
            Ok(_) => {}
            Err(e) if taken == 0 => return Err(e),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if taken == 0 && !bytes.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Whether everything that was taken has left for the kernel.
    pub fn try_flush(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            match tls.write_tls(&mut Records(&self.socket)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Waits until `try_read` may have something. May wake for nothing.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Waits until `try_write` or `try_flush` may get further. May wake for nothing.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// `readable` for a driver that polls many.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_read_ready(cx)
    }

    /// `writable` for a driver that polls many.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_write_ready(cx)
    }

    /// Writes everything. Give it a deadline.
    pub async fn write_all(&mut self, out: &mut BytesMut) -> io::Result<()> {
        while !out.is_empty() {
            match self.try_write(out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => out.advance(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                Err(e) => return Err(e),
            }
        }
        self.flush().await
    }

    /// Waits until everything that was taken has left. Give it a deadline.
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.try_flush()? {
            self.socket.writable().await?;
        }
        Ok(())
    }

    /// Appends what arrives next to `input`, at most `most` bytes; 0 at the end. Cancel safe. Give it a deadline.
    pub async fn read_some(&mut self, input: &mut BytesMut, most: usize) -> io::Result<usize> {
        loop {
            match self.try_read_some(input, most) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.socket.readable().await?,
                other => return other,
            }
        }
    }

    /// `read_some` that never waits.
    pub fn try_read_some(&mut self, input: &mut BytesMut, most: usize) -> io::Result<usize> {
        if self.tls.is_none() {
            input.reserve(most);
            return self.socket.try_read_buf(&mut input.limit(most));
        }
        let at = input.len();
        input.resize(at + most, 0);
        let got = self.try_read(input.get_mut(at..).unwrap_or_default());
        input.truncate(at + *got.as_ref().unwrap_or(&0));
        got
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.try_read(buf.initialize_unfilled()) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => ready!(self.socket.poll_read_ready(cx))?,
                Err(e) => return Poll::Ready(Err(e)),
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(bytes) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => ready!(self.socket.poll_write_ready(cx))?,
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.try_flush()? {
            ready!(self.socket.poll_write_ready(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        ready!(self.as_mut().poll_flush(cx))?;
        match &mut self.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
