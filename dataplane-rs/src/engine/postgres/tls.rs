//! TLS to PostgreSQL by rustls (ring), with the meaning that libpq documents for each sslmode.
//!
//! May reject: certificate files that cannot be read or used, a server whose certificate does not verify.
//! IO: reads the PEM files, anew at each connect (mounted Secrets change).
use super::uri::{Files, Host, RootCert, SslMode, Uri};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::net::IpAddr;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Why a TLS client cannot be made. Names the parameter, never a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The root certificates cannot be read, or there are none.
    #[error("sslrootcert: cannot be used")]
    Roots,
    /// The client certificate cannot be read.
    #[error("sslcert: cannot be used")]
    Certificate,
    /// The client's key cannot be read or does not belong to the certificate.
    #[error("sslkey: cannot be used")]
    Key,
    /// rustls refused the configuration or the host's name.
    #[error("TLS cannot be configured")]
    Configuration,
}

/// What of a server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Anybody may answer.
    Nothing,
    /// It leads to a root that is trusted.
    Chain,
    /// And it is of the host.
    ChainAndName,
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    roots: RootCertStore,
    /// Also trusted when the server's own certificate is one of them (a self-signed certificate used as its own root).
    exact: Vec<CertificateDer<'static>>,
    host: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.check == Check::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if self.exact.contains(end_entity) {
            valid_now(end_entity, now)?;
        } else {
            verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, self.algorithms.all)?;
        }
        if self.check == Check::ChainAndName {
            match verify_server_name(&parsed, server_name) {
                Err(_) if common_name_covers(end_entity, &self.host) => {}
                other => other?,
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn valid_now(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// libpq's fallback: the common name counts only if there is no subject alternative name of a DNS name or an address.
fn common_name_covers(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let names = match parsed.subject_alternative_name() {
        Ok(Some(names)) => &names.value.general_names[..],
        Ok(None) => &[],
        Err(_) => return false,
    };
    if names.iter().any(|name| matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_))) {
        return false;
    }
    let mut common = parsed.subject().iter_common_name();
    let (Some(Ok(name)), None) = (common.next().map(|name| name.as_str()), common.next()) else { return false };
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    let wild = name.strip_prefix("*.").filter(|rest| rest.contains('.')).zip(host.split_once('.'));
    host.parse::<IpAddr>().is_err() && wild.is_some_and(|(rest, (label, parent))| !label.is_empty() && rest.eq_ignore_ascii_case(parent))
}

/// `Debug` without a path, and no certificate when the server asks for none.
fn client_certificate(provider: &CryptoProvider, paths: &(String, String)) -> Result<Arc<dyn ResolvesClientCert>, TlsError> {
    let chain = CertificateDer::pem_file_iter(&paths.0).and_then(Iterator::collect).map_err(|_| TlsError::Certificate)?;
    let chain: Vec<CertificateDer<'static>> = chain;
    if chain.is_empty() {
        return Err(TlsError::Certificate);
    }
    let key = PrivateKeyDer::from_pem_file(&paths.1).map_err(|_| TlsError::Key)?;
    let certified = rustls::sign::CertifiedKey::from_der(chain, key, provider).map_err(|_| TlsError::Key)?;
    Ok(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
}

/// A TLS client for one host; reads the certificate files.
pub fn client(uri: &Uri, host: &Host) -> Result<ClientConnection, TlsError> {
    let check = match (uri.sslmode, &uri.sslrootcert) {
        (SslMode::VerifyFull, _) => Check::ChainAndName,
        (SslMode::VerifyCa, _) | (SslMode::Require, Some(_)) => Check::Chain,
        (SslMode::Require | SslMode::Prefer | SslMode::Disable, _) => Check::Nothing,
    };
    checking(check, uri.sslrootcert.as_ref(), uri.sslcert.as_ref(), &host.name)
}

/// A TLS client that checks so much of a server; `certificate` is the PEM file of our own and that of its key.
pub fn checking(
    check: Check,
    root: Option<&RootCert>,
    certificate: Option<&(String, String)>,
    host: &str,
) -> Result<ClientConnection, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let exact = match root {
        None => Vec::new(),
        Some(RootCert::System) => rustls_native_certs::load_native_certs().certs,
        Some(RootCert::File(path)) => CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|_| TlsError::Roots)?,
    };
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(exact.iter().cloned());
    if check != Check::Nothing && good == 0 {
        return Err(TlsError::Roots);
    }
    let verifier = Arc::new(Verifier { check, roots, exact, host: host.to_owned(), algorithms });
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| TlsError::Configuration)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match certificate {
        Some(paths) => builder.with_client_cert_resolver(client_certificate(&provider, paths)?),
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Configuration)?;
    ClientConnection::new(Arc::new(config), name).map_err(|_| TlsError::Configuration)
}

/// tls-server-end-point of RFC 5929: the certificate hashed by the hash of its own signature, SHA-256 for MD5 and SHA-1.
/// None where that is not defined (Ed25519).
pub fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    use x509_parser::signature_algorithm::SignatureAlgorithm;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm = parsed.signature_algorithm.algorithm.to_id_string();
    let hash = match SignatureAlgorithm::try_from(&parsed.signature_algorithm) {
        Ok(SignatureAlgorithm::RSASSA_PSS(params)) => params.hash_algorithm_oid().to_id_string(),
        _ => algorithm,
    };
    match hash.as_str() {
        // MD5 and SHA-1 with RSA, SHA-1 with ECDSA and DSA, SHA-1 itself, then SHA-256 in the same order.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.2.840.10040.4.3" | "1.3.14.3.2.26" => {
            Some(Sha256::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" | "2.16.840.1.101.3.4.2.1" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" | "2.16.840.1.101.3.4.2.2" => Some(Sha384::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" | "2.16.840.1.101.3.4.2.3" => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The files of a connection, as the plan names them.
pub fn files(plan: &crate::plan::snapshot::ConnectionPlan) -> Files {
    Files { ca: plan.ca_file.clone(), certificate: plan.certificate_file.clone(), key: plan.key_file.clone() }
}
