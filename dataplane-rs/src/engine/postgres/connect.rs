//! A new connection: names resolved, hosts tried in order, TLS, authentication, session pinned and proved. Under one deadline.
//!
//! May reject: everything that `ConnectError` lists; no variant carries a host, a user or a server's message.
//! IO: name resolution, the socket, the certificate files.
use super::auth::{Auth, AuthError, Policy};
use super::session::{Access, Standing, local_holds};
use super::target::{Target, TargetError};
use super::tls::{self, TlsError};
use super::transport::{Socket, Transport};
use super::uri::{Host, SessionAttrs, SslMode};
use super::wire::{self, ServerError, WireError};
use crate::plan::snapshot::Pooler;
use bytes::{Buf, BytesMut};
use postgres_protocol::message::{backend, frontend};
use rand::seq::SliceRandom;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, UnixStream};
use tokio::time::{Instant, timeout_at};

/// Bytes of one message before a session stands; notices and errors are small.
const MOST: usize = 256 << 10;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The URL or the settings.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Certificate files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The name has no address.
    #[error("a host's name cannot be resolved")]
    Unresolved,
    /// The system's word: refused, unreachable, no such socket, broken while connecting.
    #[error("not connected: {0}")]
    Io(io::ErrorKind),
    /// connect_timeout or the deadline.
    #[error("not connected in time")]
    Timeout,
    /// sslmode asks for TLS and the server has none.
    #[error("the server offers no TLS")]
    NoTls,
    /// The handshake failed; the certificate did not verify.
    #[error("the TLS handshake failed")]
    Handshake,
    /// Authentication on our side.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The server's refusal (wrong password, no such database, too many connections …).
    #[error("the server refuses: {}", String::from_utf8_lossy(.0))]
    Refused([u8; 5]),
    /// No host has a session of the wanted kind.
    #[error("no host suits target_session_attrs")]
    Unsuitable,
    /// A pinned setting does not hold.
    #[error("the session setting {0} does not hold")]
    Unpinned(&'static str),
    /// What it sent cannot be read.
    #[error("not PostgreSQL's protocol")]
    Protocol,
}

impl ConnectError {
    /// The server has no room for more (53300): who already has connections waits for those.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Refused(code) if code == b"53300" || code == b"53400")
    }

    /// Credentials are wrong (or not yet, or no longer, right).
    pub fn is_credentials(&self) -> bool {
        matches!(self, Self::Auth(_)) || matches!(self, Self::Refused([b'2', b'8', ..]))
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

impl From<WireError> for ConnectError {
    fn from(_: WireError) -> Self {
        Self::Protocol
    }
}

/// Where a connection ended up, after resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// Path of the Unix socket.
    Unix(String),
}

/// What cancels a connection's statement: BackendKeyData, and how to reach the same server again.
#[derive(Clone, Debug)]
pub struct CancelKey {
    /// The connection's own address.
    pub address: Address,
    /// For the certificate's name.
    pub host: Host,
    /// Backend process.
    pub process: i32,
    /// Its secret.
    pub secret: i32,
    /// Whether the connection is under TLS (the request then is, too).
    pub tls: bool,
}

/// A session that stands: idle, pinned, proved.
#[derive(Debug)]
pub struct Connection {
    /// Bytes in and out.
    pub transport: Transport,
    /// Bytes that arrived and are not read; empty on a new session.
    pub input: BytesMut,
    /// For CancelRequest.
    pub cancel: CancelKey,
    /// server_version_num, 0 if it did not say (poolers).
    pub version: u32,
    /// What the session may do by default.
    pub access: Access,
    /// Of the files it was opened with.
    pub generation: u64,
}

/// Opens a session. `deadline` bounds the whole attempt over all hosts; connect_timeout each address.
pub async fn connect(target: &Target, access: Access, deadline: Instant) -> Result<Connection, ConnectError> {
    let mut hosts: Vec<&Host> = target.uri.hosts.iter().collect();
    if target.uri.load_balance_hosts {
        hosts.shuffle(&mut rand::rng());
    }
    let attrs = target.uri.target_session_attrs;
    let mut rounds = vec![attrs];
    if attrs == SessionAttrs::PreferStandby {
        rounds.push(SessionAttrs::Any);
    }
    let mut last = ConnectError::Unsuitable;
    for attrs in rounds {
        for host in &hosts {
            let mut addresses = match resolve(host, deadline, target.uri.connect_timeout).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            if target.uri.load_balance_hosts {
                addresses.shuffle(&mut rand::rng());
            }
            for address in addresses {
                let limit = deadline.min(Instant::now() + target.uri.connect_timeout);
                match timeout_at(limit, server(target, host, &address, access, attrs)).await.unwrap_or(Err(ConnectError::Timeout)) {
                    Ok(connection) => return Ok(connection),
                    // Another host may be unreachable; that this one answered and refused says more.
                    Err(error) => last = error,
                }
                if Instant::now() >= deadline {
                    return Err(last);
                }
            }
        }
    }
    Err(last)
}

async fn resolve(host: &Host, deadline: Instant, limit: Duration) -> Result<Vec<Address>, ConnectError> {
    if host.is_unix() {
        return Ok(vec![Address::Unix(format!("{}/.s.PGSQL.{}", host.name.trim_end_matches('/'), host.port))]);
    }
    let limit = deadline.min(Instant::now() + limit);
    let found = timeout_at(limit, tokio::net::lookup_host((host.name.as_str(), host.port))).await;
    let addresses: Vec<Address> = match found {
        Err(_) => return Err(ConnectError::Timeout),
        Ok(Err(_)) => return Err(ConnectError::Unresolved),
        Ok(Ok(addresses)) => addresses.map(Address::Tcp).collect(),
    };
    if addresses.is_empty() { Err(ConnectError::Unresolved) } else { Ok(addresses) }
}

/// Connects the socket, with keep-alives and tcp_user_timeout set before the first byte.
async fn dial(target: &Target, address: &Address) -> Result<Transport, ConnectError> {
    let uri = &target.uri;
    let socket = match address {
        Address::Unix(path) => return Ok(Transport::new(Socket::Unix(UnixStream::connect(path).await?))),
        Address::Tcp(address @ SocketAddr::V4(_)) => (TcpSocket::new_v4()?, address),
        Address::Tcp(address @ SocketAddr::V6(_)) => (TcpSocket::new_v6()?, address),
    };
    let (socket, address) = socket;
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    if uri.keepalives {
        let seconds = |n: u32| (n > 0).then(|| Duration::from_secs(n.into()));
        let mut alive = TcpKeepalive::new();
        if let Some(idle) = seconds(uri.keepalives_idle) {
            alive = alive.with_time(idle);
        }
        if let Some(interval) = seconds(uri.keepalives_interval) {
            alive = alive.with_interval(interval);
        }
        if uri.keepalives_count > 0 {
            alive = alive.with_retries(uri.keepalives_count);
        }
        options.set_tcp_keepalive(&alive)?;
    }
    if uri.tcp_user_timeout > 0 {
        options.set_tcp_user_timeout(Some(Duration::from_millis(uri.tcp_user_timeout.into())))?;
    }
    Ok(Transport::new(Socket::Tcp(socket.connect(*address).await?)))
}

/// Asks for TLS as sslmode says; false: the server has none and that is acceptable.
async fn secure(target: &Target, host: &Host, transport: &mut Transport) -> Result<bool, ConnectError> {
    // Made first, so that unusable files are told whatever the server says.
    let client = tls::client(&target.uri, host)?;
    let mut out = BytesMut::new();
    frontend::ssl_request(&mut out);
    transport.write_all(&mut out).await?;
    // Exactly one byte: what a man in the middle put behind it must not be read as if TLS had brought it.
    let mut answer = BytesMut::new();
    transport.read_some(&mut answer, 1).await?;
    match answer.first() {
        Some(b'S') => transport.secure(client).await.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ConnectError::Handshake,
            kind => ConnectError::Io(kind),
        })?,
        Some(b'N') if target.uri.sslmode == SslMode::Prefer => return Ok(false),
        Some(b'N') => return Err(ConnectError::NoTls),
        None => return Err(ConnectError::Io(io::ErrorKind::UnexpectedEof)),
        // An error before TLS: nobody vouches for its text.
        Some(_) => return Err(ConnectError::Protocol),
    }
    Ok(true)
}

async fn server(target: &Target, host: &Host, address: &Address, access: Access, attrs: SessionAttrs) -> Result<Connection, ConnectError> {
    let mut transport = dial(target, address).await?;
    // libpq: sslmode is ignored on Unix sockets.
    if transport.is_unix() || target.uri.sslmode == SslMode::Disable {
        return session(target, host, address, transport, access, attrs).await;
    }
    let tls = secure(target, host, &mut transport).await;
    let retry = match tls {
        Ok(false) => return session(target, host, address, transport, access, attrs).await,
        Ok(true) => match session(target, host, address, transport, access, attrs).await {
            Err(error @ ConnectError::Refused([b'2', b'8', ..])) => error,
            other => return other,
        },
        Err(error @ (ConnectError::Handshake | ConnectError::Io(_))) => error,
        Err(error) => return Err(error),
    };
    if target.uri.sslmode != SslMode::Prefer {
        return Err(retry);
    }
    // prefer: what TLS did not bring may come without it (`hostnossl` in pg_hba.conf).
    let transport = dial(target, address).await?;
    session(target, host, address, transport, access, attrs).await.map_err(|_| retry)
}

/// Startup, authentication, settings.
async fn session(
    target: &Target,
    host: &Host,
    address: &Address,
    transport: Transport,
    access: Access,
    attrs: SessionAttrs,
) -> Result<Connection, ConnectError> {
    let uri = &target.uri;
    let policy = Policy {
        cleartext: transport.is_unix() || (transport.is_tls() && uri.sslmode >= SslMode::Require),
        binding: uri.channel_binding,
        end_point: transport.certificate().and_then(tls::end_point),
        tls: transport.is_tls(),
    };
    let cancel = CancelKey { address: address.clone(), host: host.clone(), process: 0, secret: 0, tls: transport.is_tls() };
    let mut connection = Connection { transport, input: BytesMut::new(), cancel, version: 0, access, generation: target.generation };
    let settings = target.settings.startup(access, target.pooler, uri.target_session_attrs);
    let own = [("user", uri.user.as_str()), ("database", &uri.dbname), ("application_name", &uri.application_name)];
    let options = uri.options.as_deref().map(|options| ("options", options));
    let parameters = own.into_iter().chain(options).chain(settings.iter().map(|(name, value)| (*name, value.as_str())));
    let mut out = BytesMut::new();
    frontend::startup_message(parameters, &mut out).map_err(|_| ConnectError::Protocol)?;
    let mut auth = Auth::new(&uri.user, uri.password.as_ref().map(super::uri::Secret::reveal), policy);
    loop {
        connection.transport.write_all(&mut out).await?;
        match connection.message().await? {
            backend::Message::ErrorResponse(body) => return Err(refused(&body)?.into()),
            backend::Message::BackendKeyData(body) if auth.done() => {
                connection.cancel.process = body.process_id();
                connection.cancel.secret = body.secret_key();
            }
            backend::Message::ParameterStatus(body) => {
                if body.name().is_ok_and(|name| name == "server_version") {
                    connection.version = body.value().map_or(0, version);
                }
            }
            backend::Message::NoticeResponse(_) => {}
            backend::Message::ReadyForQuery(_) if auth.done() => break,
            message if !auth.done() => auth.step(&message, &mut out)?,
            _ => return Err(ConnectError::Protocol),
        }
    }
    if target.pooler == Pooler::Transaction {
        // Nothing of this session is ours. Each transaction sets and proves its own pins; here only that they can hold.
        let local = format!("BEGIN READ ONLY; {}; {}; ROLLBACK", target.settings.ask(), target.settings.local());
        let rows = connection.simple(&local).await?;
        let standing = rows.first().and_then(|row| Standing::read(row)).ok_or(ConnectError::Protocol)?;
        if !standing.suits(attrs) {
            return Err(ConnectError::Unsuitable);
        }
        if !rows.get(1).is_some_and(|row| local_holds(row)) {
            return Err(ConnectError::Unpinned("of a transaction"));
        }
        return Ok(connection);
    }
    let rows = connection.simple(&format!("{}; {}", target.settings.ask(), target.settings.enforce(access))).await?;
    let standing = rows.first().and_then(|row| Standing::read(row)).ok_or(ConnectError::Protocol)?;
    if let Some(name) = standing.unpinned {
        return Err(ConnectError::Unpinned(name));
    }
    if !target.settings.holds(&standing) {
        return Err(ConnectError::Unpinned("statement_timeout"));
    }
    if !standing.suits(attrs) {
        return Err(ConnectError::Unsuitable);
    }
    let enforced = rows.get(1).and_then(|row| wire::values(row).next()).flatten();
    if access == Access::ReadOnly && enforced != Some(b"on") {
        return Err(ConnectError::Unpinned("default_transaction_read_only"));
    }
    Ok(connection)
}

fn refused(body: &backend::ErrorResponseBody) -> Result<ServerError, WireError> {
    let mut error = ServerError { code: *b"XX000", fatal: true, revalidate: false };
    let mut fields = body.fields();
    while let Some(field) = fallible_iterator::FallibleIterator::next(&mut fields).map_err(|_| WireError::Malformed)? {
        if field.type_() == b'C' {
            error.code = field.value_bytes().try_into().map_err(|_| WireError::Malformed)?;
        }
    }
    Ok(error)
}

impl From<ServerError> for ConnectError {
    fn from(error: ServerError) -> Self {
        Self::Refused(error.code)
    }
}

/// `15.14 (Debian …)` → 150014; 0 when unreadable.
fn version(text: &str) -> u32 {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let major = numbers.next().unwrap_or(0);
    major.saturating_mul(10_000).saturating_add(numbers.next().unwrap_or(0))
}

impl Connection {
    async fn message(&mut self) -> Result<backend::Message, ConnectError> {
        loop {
            // Bounds the length before the message is awaited.
            if let Some(frame) = wire::frame(&self.input, MOST)? {
                let mut whole = self.input.split_to(frame.size());
                return backend::Message::parse(&mut whole).ok().flatten().ok_or(ConnectError::Protocol);
            }
            if self.transport.read_some(&mut self.input, 8 << 10).await? == 0 {
                return Err(ConnectError::Io(io::ErrorKind::UnexpectedEof));
            }
        }
    }

    /// Runs SQL of ours by the simple protocol and returns all rows of all its statements, in DataRow form. Give it a deadline;
    /// dropped before its end, the connection is of no further use.
    pub async fn simple(&mut self, sql: &str) -> Result<Vec<Vec<u8>>, ConnectError> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out).map_err(|_| ConnectError::Protocol)?;
        self.transport.write_all(&mut out).await?;
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let Some(frame) = wire::frame(&self.input, MOST)? else {
                if self.transport.read_some(&mut self.input, 8 << 10).await? == 0 {
                    return Err(error.unwrap_or(ConnectError::Io(io::ErrorKind::UnexpectedEof)));
                }
                continue;
            };
            let size = frame.size();
            match frame.tag {
                backend::DATA_ROW_TAG => rows.push(wire::row(frame.body)?.1.to_vec()),
                backend::ERROR_RESPONSE_TAG => error = Some(wire::server_error(frame.body)?.into()),
                backend::READY_FOR_QUERY_TAG => {
                    self.input.advance(size);
                    return error.map_or(Ok(rows), Err);
                }
                _ => {}
            }
            self.input.advance(size);
        }
    }
}

/// Asks the server to stop what the connection does, on a second connection of the same kind; returns when the server has
/// closed it, that is when the signal was sent. Within `deadline`.
pub async fn cancel(target: &Target, key: &CancelKey, deadline: Instant) -> Result<(), ConnectError> {
    timeout_at(deadline, async {
        let mut transport = dial(target, &key.address).await?;
        if key.tls && !secure(target, &key.host, &mut transport).await? {
            return Err(ConnectError::NoTls);
        }
        let mut out = BytesMut::new();
        frontend::cancel_request(key.process, key.secret, &mut out);
        transport.write_all(&mut out).await?;
        let mut rest = BytesMut::new();
        while transport.read_some(&mut rest, 64).await.unwrap_or(0) > 0 {}
        Ok(())
    })
    .await
    .unwrap_or(Err(ConnectError::Timeout))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::engine::postgres::session::Settings;
    use crate::engine::postgres::uri::{Files, Uri};

    #[test]
    fn versions() {
        assert_eq!(version("15.14 (Debian 15.14-0+deb12u1)"), 150_014);
        assert_eq!(version("18beta1"), 180_000);
        assert_eq!(version("1.18.0/bouncer"), 10_018);
        assert_eq!(version("x"), 0);
    }

    #[tokio::test]
    async fn sockets_have_their_options() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        for (parameters, alive, idle, user_timeout) in [
            ("", true, 30, 30_000),
            ("keepalives_idle=7&tcp_user_timeout=1500", true, 7, 1500),
            ("keepalives=0&tcp_user_timeout=0", false, 0, 0),
        ] {
            let uri = Uri::parse(&format!("postgres://u@h?{parameters}"), &Files::default()).unwrap();
            let settings = Settings::new(&[], Duration::from_secs(1)).unwrap();
            let target = Target { uri, settings, pooler: Pooler::None, generation: 1 };
            let transport = dial(&target, &address).await.unwrap();
            let Socket::Tcp(stream) = transport.socket() else { unreachable!() };
            let options = SockRef::from(stream);
            assert_eq!(options.keepalive().unwrap(), alive);
            if alive {
                assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(idle));
                assert_eq!(options.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
                assert_eq!(options.tcp_keepalive_retries().unwrap(), 3);
            }
            assert_eq!(options.tcp_user_timeout().unwrap().unwrap_or_default(), Duration::from_millis(user_timeout));
            assert!(stream.nodelay().unwrap());
        }
    }
}
