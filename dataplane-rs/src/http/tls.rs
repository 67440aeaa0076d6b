//! How new connections are served: in the clear, by TLS, or not at all. The certificate's files are read when a snapshot names them
//! and looked at every few seconds; connections that are there keep what they began with.
//! May reject: files that cannot be read, are no PEM, or do not belong together: the last good certificate serves on, and without
//! one no connection is taken. IO: reads the two files.
use crate::observe::{Observation, Observer};
use crate::plan::snapshot::TlsPlan;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Largest file that is read, bytes.
const LARGEST: u64 = 1 << 20;

/// Why a certificate is not used. Never names a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A file is not there, too large or cannot be read.
    #[error("unreadable")]
    Unreadable,
    /// No certificate in the one file, or what is no PEM.
    #[error("certificate")]
    Certificate,
    /// No private key in the other.
    #[error("key")]
    Key,
    /// The key is another certificate's, or of a kind that is not supported.
    #[error("mismatch")]
    Mismatch,
}

impl Unusable {
    /// For the log.
    const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Certificate => "certificate",
            Self::Key => "key",
            Self::Mismatch => "mismatch",
        }
    }
}

/// What a new connection gets.
#[derive(Clone, Debug)]
pub enum Door {
    /// It speaks in the clear.
    Plain,
    /// TLS is wanted and cannot be had: it is closed.
    Shut,
    /// TLS.
    Tls(Arc<ServerConfig>),
}

/// Chain and key as they stand in their files.
type Pair = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
struct Known {
    plan: Option<TlsPlan>,
    /// What was read last, good or not.
    pair: Option<Result<Pair, Unusable>>,
}

/// The process's door. Threads look at it for each connection that they accept.
#[derive(Debug)]
pub struct Doors {
    door: ArcSwap<Door>,
    known: Mutex<Known>,
}

impl Default for Doors {
    fn default() -> Self {
        Self { door: ArcSwap::from_pointee(Door::Plain), known: Mutex::default() }
    }
}

impl Doors {
    /// What a connection that is accepted now gets.
    pub fn door(&self) -> Arc<Door> {
        self.door.load_full()
    }

    /// Does as a snapshot says. Reads files.
    pub fn follow(&self, plan: Option<&TlsPlan>, observer: &Observer) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.plan.as_ref() != plan {
            (known.plan, known.pair) = (plan.cloned(), None);
        }
        self.read(&mut known, observer);
    }

    /// Whether files may change.
    pub fn watches(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).plan.is_some()
    }

    /// Looks whether the files are others. Reads them.
    pub fn look(&self, observer: &Observer) {
        self.read(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner), observer);
    }

    fn read(&self, known: &mut Known, observer: &Observer) {
        let health = &observer.tls;
        let Some(plan) = &known.plan else {
            self.door.store(Arc::new(Door::Plain));
            health.closed.store(false, Relaxed);
            health.failing.store(false, Relaxed);
            return health.not_after_s.store(0, Relaxed);
        };
        let pair = content(&plan.certificate_file).and_then(|chain| Ok((chain, content(&plan.key_file)?)));
        if known.pair.as_ref() == Some(&pair) {
            return;
        }
        let loaded = pair.as_ref().map_err(|error| *error).and_then(|(chain, key)| config(chain, key));
        known.pair = Some(pair);
        match loaded {
            Ok((config, not_after_s)) => {
                self.door.store(Arc::new(Door::Tls(config)));
                health.closed.store(false, Relaxed);
                health.failing.store(false, Relaxed);
                health.not_after_s.store(not_after_s, Relaxed);
                observer.report(&Observation::CertificateLoaded { not_after_s });
            }
            Err(error) => {
                health.failing.store(true, Relaxed);
                if !matches!(**self.door.load(), Door::Tls(_)) {
                    self.door.store(Arc::new(Door::Shut));
                    health.closed.store(true, Relaxed);
                }
                observer.report(&Observation::CertificateUnusable { reason: error.name() });
            }
        }
    }
}

fn content(path: &str) -> Result<Vec<u8>, Unusable> {
    let path = Path::new(path);
    let size = std::fs::metadata(path).map_err(|_| Unusable::Unreadable)?.len();
    if size > LARGEST {
        return Err(Unusable::Unreadable);
    }
    std::fs::read(path).map_err(|_| Unusable::Unreadable)
}

/// TLS 1.2 and later, h2 and http/1.1; and when the certificate expires, seconds since 1970.
fn config(chain: &[u8], key: &[u8]) -> Result<(Arc<ServerConfig>, u64), Unusable> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(|_| Unusable::Certificate)?;
    let first = chain.first().ok_or(Unusable::Certificate)?;
    let (_, parsed) = X509Certificate::from_der(first).map_err(|_| Unusable::Certificate)?;
    let not_after_s = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Unusable::Key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|_| Unusable::Mismatch)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(|_| Unusable::Mismatch)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), not_after_s))
}
