//! What a connection's bytes travel by: TCP, or TLS on it. May reject: what the socket does. IO: the socket.
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// One client's.
#[derive(Debug)]
pub enum Transport {
    /// In the clear.
    Plain(TcpStream),
    /// By rustls.
    Tls(Box<Encrypted>),
}

/// A TLS session and whether the kernel has all that it made.
#[derive(Debug)]
pub struct Encrypted {
    stream: TlsStream<TcpStream>,
    unflushed: bool,
}

impl Transport {
    /// After a handshake.
    pub fn encrypted(stream: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(Encrypted { stream, unflushed: false }))
    }

    /// ALPN chose h2.
    pub fn agreed_on_http2(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.stream.get_ref().1.alpn_protocol() == Some(b"h2"))
    }

    /// Hands on what it can without waiting; Pending when that is nothing. `task` is woken when more can be (TLS only: what waits
    /// for a plain socket asks `poll_ready`).
    #[inline]
    pub fn write_now(&mut self, task: &Waker, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => match socket.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
                written => Poll::Ready(written),
            },
            Self::Tls(tls) => {
                tls.unflushed = true;
                Pin::new(&mut tls.stream).poll_write(&mut Context::from_waker(task), bytes)
            }
        }
    }

    /// Has what was encrypted leave, as far as that goes now.
    #[inline]
    pub fn flush_now(&mut self, task: &Waker) -> io::Result<()> {
        let Self::Tls(tls) = self else { return Ok(()) };
        if tls.unflushed {
            match Pin::new(&mut tls.stream).poll_flush(&mut Context::from_waker(task)) {
                Poll::Ready(flushed) => {
                    flushed?;
                    tls.unflushed = false;
                }
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Encrypted bytes wait for the kernel.
    #[inline]
    pub fn unflushed(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.unflushed)
    }

    /// Ready when a write may go on.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_write_ready(cx),
            Self::Tls(tls) => {
                ready!(Pin::new(&mut tls.stream).poll_flush(cx))?;
                tls.unflushed = false;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(cx),
        }
    }
}
