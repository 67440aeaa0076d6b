//! Who we are, told to MySQL and MariaDB: mysql_native_password, caching_sha2_password, client_ed25519. Pure.
//! May reject: methods that we do not have, and those that would show the password where nothing protects it.
use curve25519_dalek::{EdwardsPoint, Scalar};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

/// Why authentication ended on our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Neither of the methods above.
    #[error("the server asks for an unsupported method")]
    Unsupported,
    /// caching_sha2_password wants the password itself, and nothing protects it: use TLS (we do not encrypt it by RSA for whoever answers).
    #[error("the server asks for an unprotected password; use TLS")]
    Unprotected,
    /// Out of order or not of its form.
    #[error("the server's part of the authentication cannot be read")]
    Malformed,
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// SHA-1 of MySQL 4.1.
    Native,
    /// MySQL 8's own.
    CachingSha2,
    /// MariaDB's.
    Ed25519,
}

impl Method {
    /// By the plugin's name.
    pub fn of(plugin: &[u8]) -> Result<Self, AuthError> {
        match plugin {
            b"mysql_native_password" => Ok(Self::Native),
            b"caching_sha2_password" => Ok(Self::CachingSha2),
            b"client_ed25519" => Ok(Self::Ed25519),
            _ => Err(AuthError::Unsupported),
        }
    }

    /// The plugin's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "mysql_native_password",
            Self::CachingSha2 => "caching_sha2_password",
            Self::Ed25519 => "client_ed25519",
        }
    }

    /// What answers the server's nonce.
    pub fn answer(self, password: &[u8], nonce: &[u8]) -> Vec<u8> {
        // 20 bytes and a NUL; ed25519's are 32.
        let short = nonce.get(..20).unwrap_or(nonce);
        match self {
            Self::Native | Self::CachingSha2 if password.is_empty() => Vec::new(),
            Self::Native => {
                let once = Sha1::digest(password);
                let mask = Sha1::new().chain_update(short).chain_update(Sha1::digest(once)).finalize();
                once.iter().zip(mask).map(|(a, b)| a ^ b).collect()
            }
            Self::CachingSha2 => {
                let once = Sha256::digest(password);
                let mask = Sha256::new().chain_update(Sha256::digest(once)).chain_update(short).finalize();
                once.iter().zip(mask).map(|(a, b)| a ^ b).collect()
            }
            Self::Ed25519 => sign(password, nonce.get(..32).unwrap_or(nonce)),
        }
    }
}

/// Ed25519 whose secret is the password itself, of any length.
fn sign(password: &[u8], nonce: &[u8]) -> Vec<u8> {
    let expanded: [u8; 64] = Sha512::digest(password).into();
    let (secret, prefix) = expanded.split_at(32);
    let clamped = curve25519_dalek::scalar::clamp_integer(<[u8; 32]>::try_from(secret).unwrap_or_default());
    let secret = Scalar::from_bytes_mod_order(clamped);
    let public = EdwardsPoint::mul_base(&secret).compress();
    let wide = |digest: Sha512| Scalar::from_bytes_mod_order_wide(&digest.finalize().into());
    let once = wide(Sha512::new().chain_update(prefix).chain_update(nonce));
    let point = EdwardsPoint::mul_base(&once).compress();
    let challenge = wide(Sha512::new().chain_update(point.as_bytes()).chain_update(public.as_bytes()).chain_update(nonce));
    let proof = challenge * secret + once;
    [point.to_bytes(), proof.to_bytes()].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn empty_passwords_say_nothing() {
        assert!(Method::Native.answer(b"", &[7; 21]).is_empty());
        assert!(Method::CachingSha2.answer(b"", &[7; 21]).is_empty());
    }

    #[test]
    fn the_server_can_check_what_we_answer() {
        let nonce: Vec<u8> = (1..=20).chain([0]).collect();
        // As the servers do it: they know SHA(SHA(password)) only.
        let known = Sha1::digest(Sha1::digest(b"secret"));
        let mask = Sha1::new().chain_update(nonce.get(..20).unwrap()).chain_update(known).finalize();
        let once: Vec<u8> = Method::Native.answer(b"secret", &nonce).iter().zip(mask).map(|(a, b)| a ^ b).collect();
        assert_eq!(Sha1::digest(once), known);
        let known = Sha256::digest(Sha256::digest(b"secret"));
        let mask = Sha256::new().chain_update(known).chain_update(nonce.get(..20).unwrap()).finalize();
        let once: Vec<u8> = Method::CachingSha2.answer(b"secret", &nonce).iter().zip(mask).map(|(a, b)| a ^ b).collect();
        assert_eq!(Sha256::digest(once), known);
    }

    // RFC 8032, 7.1, test 2: its secret is the 32 bytes that stand for the password here.
    #[test]
    fn signatures_are_ed25519() {
        let secret = [
            0x4c, 0xcd, 0x08, 0x9b, 0x28, 0xff, 0x96, 0xda, 0x9d, 0xb6, 0xc3, 0x46, 0xec, 0x11, 0x4e, 0x0f, 0x5b, 0x8a, 0x31, 0x9f, 0x35,
            0xab, 0xa6, 0x24, 0xda, 0x8c, 0xf6, 0xed, 0x4f, 0xb8, 0xa6, 0xfb,
        ];
        let expected = "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
                        085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
        assert_eq!(hex(&Method::Ed25519.answer(&secret, &[0x72])), expected);
    }

    #[test]
    fn other_methods_are_refused() {
        for plugin in [&b"mysql_clear_password"[..], b"mysql_old_password", b"dialog", b"sha256_password", b""] {
            assert_eq!(Method::of(plugin), Err(AuthError::Unsupported));
        }
        for method in [Method::Native, Method::CachingSha2, Method::Ed25519] {
            assert_eq!(Method::of(method.name().as_bytes()), Ok(method));
        }
    }
}
