//! What a URL is made of. Pure. May reject: nothing; `uri` checks.
use std::fmt;

/// A text that no log may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) String);

impl Secret {
    /// Hides a text.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the wire only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How much of TLS is asked for, as libpq documents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server offers it; unverified.
    Prefer,
    /// Always; unverified unless a root certificate is given, then as `VerifyCa`.
    Require,
    /// The chain is verified.
    VerifyCa,
    /// The chain and the host's name are verified.
    VerifyFull,
}

/// Where trust begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCert {
    /// The system's store; only with verify-full.
    System,
    /// A PEM file.
    File(String),
}

/// Whether SCRAM is bound to the TLS channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// When the server offers it.
    Prefer,
    /// Else the server is not authenticated to.
    Require,
}

/// Which servers among the hosts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAttrs {
    /// All.
    Any,
    /// Those whose sessions may write by default.
    ReadWrite,
    /// Those whose sessions may not.
    ReadOnly,
    /// Not in recovery.
    Primary,
    /// In recovery.
    Standby,
    /// In recovery if one of the hosts is, else any.
    PreferStandby,
}

/// One server: a name or address with a port, or a directory with a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Name, IPv4, IPv6 (without brackets), or an absolute directory.
    pub name: String,
    /// Port; also part of the socket's file name.
    pub port: u16,
}

impl Host {
    /// Whether `name` is a directory.
    pub fn is_unix(&self) -> bool {
        self.name.starts_with('/')
    }
}

/// PEM files of a ConnectionPlan; each stands for the URI's parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// For sslrootcert.
    pub ca: Option<String>,
    /// For sslcert.
    pub certificate: Option<String>,
    /// For sslkey.
    pub key: Option<String>,
}
