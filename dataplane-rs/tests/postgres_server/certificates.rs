//! Certificates for tests: a CA, servers, clients.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType, SignatureAlgorithm};

pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key, PEM.
    pub fn issue(&self, common_name: &str, names: &[SanType]) -> (String, String) {
        self.issue_with(common_name, names, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub fn issue_with(&self, common_name: &str, names: &[SanType], algorithm: &'static SignatureAlgorithm) -> (String, String) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = names.to_vec();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Signed by its own key, so that the hash of its signature is that of `algorithm`.
pub fn self_signed(names: &[SanType], algorithm: &'static SignatureAlgorithm) -> (String, String) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.subject_alt_names = names.to_vec();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

pub fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

pub fn ip(address: &str) -> SanType {
    SanType::IpAddress(address.parse().unwrap())
}
