//! A new connection: name resolved, TLS, authentication, session pinned and proved. Under one deadline.
//!
//! May reject: everything that `ConnectError` lists. IO: name resolution, the socket, the certificate files.
use super::auth::{AuthError, Method};
use super::failure::ConnectError;
use super::target::{Target, proof};
use super::uri::{SslMode, Uri};
use super::wire::{self, Reader};
use crate::engine::postgres::tls::{self, Check};
use crate::engine::postgres::transport::{Socket, Transport};
use crate::engine::postgres::uri::Secret;
use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, UnixStream};
use tokio::time::{Instant, timeout_at};

/// Bytes of one packet before a session stands.
const MOST: usize = 256 << 10;
/// A broken peer is noticed within these, as PostgreSQL's connections do by default.
const ALIVE: (Duration, Duration, u32, Duration) = (Duration::from_secs(30), Duration::from_secs(10), 3, Duration::from_secs(30));
/// utf8mb4_general_ci, until SET NAMES.
const CHARSET: u8 = 45;

/// LONG_PASSWORD, FOUND_ROWS, LONG_FLAG, CONNECT_WITH_DB, PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH.
const CAPABILITIES: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19;
/// What a server must have.
const NEEDED: u32 = 1 << 9 | 1 << 15 | 1 << 19;
const SSL: u32 = 1 << 11;

/// Where a connection ended up, after resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// Path of the Unix socket.
    Unix(String),
}

/// A session that stands.
#[derive(Debug)]
pub struct Connection {
    /// Bytes in and out.
    pub transport: Transport,
    /// What came and was not read.
    pub input: BytesMut,
    /// How to reach the same server again.
    pub address: Address,
    /// Name of a lock that this session alone holds: how KILL finds it, on the server that it is on and on no other.
    pub mark: String,
    /// MariaDB, not MySQL.
    pub mariadb: bool,
    /// Of the files it was opened with.
    pub generation: u64,
}

/// A server's first packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Greeting {
    mariadb: bool,
    capabilities: u32,
    nonce: Vec<u8>,
    plugin: Vec<u8>,
}

/// Reads the greeting (protocol 10).
pub fn greeting(body: &[u8]) -> Result<Greeting, ConnectError> {
    let mut reader = Reader(body);
    match reader.byte()? {
        10 => {}
        0xFF => return Err(ConnectError::Refused(wire::server_error(body)?)),
        _ => return Err(ConnectError::Protocol),
    }
    let mariadb = reader.text()?.windows(7).any(|part| part.eq_ignore_ascii_case(b"mariadb"));
    reader.take(4)?; // The session's number. A proxy in between tells one of its own.
    let mut nonce = reader.take(8)?.to_vec();
    reader.byte()?;
    let [low, lower] = reader.array()?;
    reader.take(3)?;
    let [high, higher] = reader.array()?;
    let capabilities = u32::from_le_bytes([low, lower, high, higher]);
    if capabilities & NEEDED != NEEDED {
        return Err(ConnectError::Protocol);
    }
    let length = usize::from(reader.byte()?);
    reader.take(10)?;
    nonce.extend_from_slice(reader.take(length.saturating_sub(8).max(13))?);
    let plugin = reader.text().unwrap_or(reader.0).to_vec();
    Ok(Greeting { mariadb, capabilities, nonce, plugin })
}

/// Opens a session, by `deadline`: each address of the host in turn.
pub async fn connect(target: &Target, deadline: Instant) -> Result<Connection, ConnectError> {
    let mut last = ConnectError::Unresolved;
    for address in resolve(&target.uri, deadline).await? {
        let limit = deadline.min(Instant::now() + target.uri.connect_timeout);
        match timeout_at(limit, session(target, &address)).await.unwrap_or(Err(ConnectError::Timeout)) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(last)
}

async fn resolve(uri: &Uri, deadline: Instant) -> Result<Vec<Address>, ConnectError> {
    if uri.is_unix() {
        return Ok(vec![Address::Unix(uri.host.clone())]);
    }
    let limit = deadline.min(Instant::now() + uri.connect_timeout);
    match timeout_at(limit, tokio::net::lookup_host((uri.host.as_str(), uri.port))).await {
        Err(_) => Err(ConnectError::Timeout),
        Ok(Err(_)) => Err(ConnectError::Unresolved),
        Ok(Ok(addresses)) => Ok(addresses.map(Address::Tcp).collect()),
    }
}

async fn dial(address: &Address) -> Result<Transport, ConnectError> {
    let (socket, address) = match address {
        Address::Unix(path) => return Ok(Transport::new(Socket::Unix(UnixStream::connect(path).await?))),
        Address::Tcp(address @ SocketAddr::V4(_)) => (TcpSocket::new_v4()?, address),
        Address::Tcp(address @ SocketAddr::V6(_)) => (TcpSocket::new_v6()?, address),
    };
    socket.set_nodelay(true)?;
    let (idle, interval, count, unacknowledged) = ALIVE;
    let options = SockRef::from(&socket);
    options.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(count))?;
    options.set_tcp_user_timeout(Some(unacknowledged))?;
    Ok(Transport::new(Socket::Tcp(socket.connect(*address).await?)))
}

/// Pinned, and proved to be.
async fn session(target: &Target, address: &Address) -> Result<Connection, ConnectError> {
    let mut connection = log_in(target, address).await?;
    for pin in target.settings.pins(connection.mariadb) {
        connection.query(&pin).await?;
    }
    match connection.query(&format!("DO {}", taking(&connection.mark))).await {
        // A server without such locks: what the session does can't be stopped, and it is closed instead.
        Ok(_) | Err(ConnectError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    connection.is_read_only().await?.then_some(connection).ok_or(ConnectError::Unpinned)
}

/// Greeting, TLS, authentication.
async fn log_in(target: &Target, address: &Address) -> Result<Connection, ConnectError> {
    let uri = &target.uri;
    let transport = dial(address).await?;
    let (address, generation) = (address.clone(), target.generation);
    let mark = format!("tailrace-session-{:032x}", rand::random::<u128>());
    let mut connection = Connection { transport, input: BytesMut::new(), address, mark, mariadb: false, generation };
    let (body, mut sequence) = connection.packet().await?;
    let greeting = greeting(&body)?;
    connection.mariadb = greeting.mariadb;
    let wants_tls = !connection.transport.is_unix() && uri.ssl_mode != SslMode::Disabled;
    let offers_tls = greeting.capabilities & SSL != 0;
    if wants_tls && !offers_tls && uri.ssl_mode > SslMode::Preferred {
        return Err(ConnectError::NoTls);
    }
    let tls = wants_tls && offers_tls;
    let capabilities = CAPABILITIES | if tls { SSL } else { 0 };
    let mut out = BytesMut::new();
    if tls {
        let check = match (uri.ssl_mode, &uri.ssl_ca) {
            (SslMode::VerifyIdentity, _) => Check::ChainAndName,
            (_, Some(_)) => Check::Chain,
            (_, None) => Check::Nothing,
        };
        let client = tls::checking(check, uri.ssl_ca.as_ref(), uri.ssl_cert.as_ref(), &uri.host)?;
        // What a man in the middle put behind the greeting must not be read as if TLS had brought it.
        if !connection.input.is_empty() {
            return Err(ConnectError::Protocol);
        }
        sequence = sequence.wrapping_add(1);
        let start = wire::open(&mut out);
        head(capabilities, &mut out);
        wire::close(&mut out, start, sequence);
        connection.transport.write_all(&mut out).await?;
        connection.transport.secure(client).await.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ConnectError::Handshake,
            kind => ConnectError::Io(kind),
        })?;
    }
    let password = uri.password.as_ref().map(Secret::reveal).unwrap_or_default().as_bytes();
    // One that we don't have: the server is told another and asks for its own, if there is one.
    let method = Method::of(&greeting.plugin).unwrap_or(Method::Native);
    let answer = method.answer(password, &greeting.nonce);
    let start = wire::open(&mut out);
    head(capabilities, &mut out);
    for text in
        [uri.user.as_bytes(), b"\0", &[answer.len() as u8], &answer, uri.database.as_bytes(), b"\0", method.name().as_bytes(), b"\0"]
    {
        out.extend_from_slice(text);
    }
    if !wire::close(&mut out, start, sequence.wrapping_add(1)) {
        return Err(ConnectError::Protocol);
    }
    connection.transport.write_all(&mut out).await?;
    connection.authenticate(password, method).await?;
    Ok(connection)
}

/// What a login and a request for TLS begin with.
fn head(capabilities: u32, out: &mut BytesMut) {
    out.extend_from_slice(&capabilities.to_le_bytes());
    out.extend_from_slice(&(1u32 << 30).to_le_bytes());
    out.extend_from_slice(&[CHARSET]);
    out.extend_from_slice(&[0; 23]);
}

impl Connection {
    async fn packet(&mut self) -> Result<(Vec<u8>, u8), ConnectError> {
        loop {
            if let Some(packet) = wire::packet(&self.input, MOST)? {
                let (body, size, sequence) = (packet.body.to_vec(), packet.size, packet.sequence);
                self.input.advance(size);
                return Ok((body, sequence));
            }
            // Nothing beyond the packet while TLS is still to come: the greeting is small.
            if self.transport.read_some(&mut self.input, 8 << 10).await? == 0 {
                return Err(ConnectError::Io(io::ErrorKind::UnexpectedEof));
            }
        }
    }

    async fn reply(&mut self, body: &[u8], sequence: u8) -> Result<(), ConnectError> {
        let mut out = BytesMut::new();
        let start = wire::open(&mut out);
        out.extend_from_slice(body);
        if !wire::close(&mut out, start, sequence.wrapping_add(1)) {
            return Err(ConnectError::Protocol);
        }
        Ok(self.transport.write_all(&mut out).await?)
    }

    async fn authenticate(&mut self, password: &[u8], mut method: Method) -> Result<(), ConnectError> {
        // A switch of the method, its further word, and the end: never more.
        for _ in 0..4 {
            let (body, sequence) = self.packet().await?;
            match body.split_first() {
                Some((0x00, _)) => return Ok(()),
                Some((0xFF, _)) => return Err(ConnectError::Refused(wire::server_error(&body)?)),
                Some((0xFE, [])) => return Err(AuthError::Unsupported.into()),
                Some((0xFE, switch)) => {
                    let mut reader = Reader(switch);
                    method = Method::of(reader.text().map_err(|_| AuthError::Malformed)?)?;
                    let answer = method.answer(password, reader.0);
                    self.reply(&answer, sequence).await?;
                }
                // It knew us.
                Some((0x01, [3])) if method == Method::CachingSha2 => {}
                // It wants the password itself.
                Some((0x01, [4])) if method == Method::CachingSha2 => {
                    if !self.transport.is_tls() && !self.transport.is_unix() {
                        return Err(AuthError::Unprotected.into());
                    }
                    self.reply(&[password, b"\0"].concat(), sequence).await?;
                }
                _ => return Err(AuthError::Malformed.into()),
            }
        }
        Err(AuthError::Malformed.into())
    }

    /// Runs SQL of ours by the text protocol and returns its rows, NULL as the empty text. Give it a deadline; dropped before its
    /// end, the connection is of no further use.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Vec<u8>>>, ConnectError> {
        let mut out = BytesMut::new();
        if !wire::command(&mut out, wire::COM_QUERY, sql.as_bytes()) {
            return Err(ConnectError::Protocol);
        }
        self.transport.write_all(&mut out).await?;
        let (body, _) = self.packet().await?;
        let columns = match body.first() {
            Some(0x00) => return Ok(Vec::new()),
            Some(0xFF) => return Err(ConnectError::Refused(wire::server_error(&body)?)),
            _ => Reader(&body).length()?,
        };
        for _ in 0..columns {
            self.packet().await?;
        }
        if !wire::is_end(&self.packet().await?.0) {
            return Err(ConnectError::Protocol);
        }
        let mut rows = Vec::new();
        loop {
            let (body, _) = self.packet().await?;
            if wire::is_end(&body) {
                return Ok(rows);
            }
            if body.first() == Some(&0xFF) {
                return Err(ConnectError::Refused(wire::server_error(&body)?));
            }
            let (mut reader, mut row) = (Reader(&body), Vec::new());
            for _ in 0..columns {
                if reader.0.first() == Some(&0xFB) {
                    reader.byte()?;
                    row.push(Vec::new());
                } else {
                    row.push(reader.counted()?.to_vec());
                }
            }
            rows.push(row);
        }
    }

    /// Whether the next transaction is read-only unless it says otherwise, and commits by itself.
    pub async fn is_read_only(&mut self) -> Result<bool, ConnectError> {
        Ok(self.query(proof(self.mariadb)).await? == [[b"1".to_vec(), b"1".to_vec()]])
    }
}

/// An expression that takes a session's mark.
pub fn taking(mark: &str) -> String {
    format!("GET_LOCK('{mark}', 0)")
}

/// Asks the server to stop what a session does, on a second connection to the same address; returns when it has taken the order.
///
/// The server itself looks up whose the mark is, in the statement that kills: behind a proxy, or an address that several servers share, the
/// second connection may lead to another one, where the session's number would be somebody else's. There nobody holds the mark, and
/// the answer is error 1094 (no such thread): nothing was stopped, `Refused`.
pub async fn kill(target: &Target, address: &Address, mark: &str, deadline: Instant) -> Result<(), ConnectError> {
    timeout_at(deadline, async {
        let mut second = log_in(target, address).await?;
        second.query(&format!("KILL QUERY IS_USED_LOCK('{mark}')")).await.map(drop)
    })
    .await
    .unwrap_or(Err(ConnectError::Timeout))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greetings_are_read() {
        let mut body = vec![10];
        body.extend(b"5.5.5-10.11.6-MariaDB-0+deb12u1\0");
        body.extend(7u32.to_le_bytes());
        body.extend(b"abcdefgh\0");
        body.extend([0xFE, 0xF7, 45, 2, 0, 0xFF, 0x81, 21]);
        body.extend([0; 10]);
        body.extend(b"ijklmnopqrst\0mysql_native_password\0");
        let read = greeting(&body).unwrap();
        assert_eq!((read.mariadb, &read.nonce[..]), (true, &b"abcdefghijklmnopqrst\0"[..]));
        assert_eq!(read.plugin, b"mysql_native_password");
        assert_eq!(greeting(b"\xff\x10\x04Too many"), Err(ConnectError::Refused(wire::ServerError { number: 1040, state: *b"HY000" })));
    }

    proptest! {
        #[test]
        fn greetings_never_panic(body: Vec<u8>) {
            let _ = greeting(&body);
            let _ = greeting(&[&[10], &body[..]].concat());
        }
    }
}
