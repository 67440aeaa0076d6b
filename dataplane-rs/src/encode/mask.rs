//! Masks over encoded values (docs/contract.md). May reject: nothing; what cannot be shown in part becomes null. IO: none.
use super::text;
use crate::plan::snapshot::Mask;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Keys `hash` masks; the API's own.
#[derive(Clone)]
pub struct MaskKey(Hmac<Sha256>);

impl std::fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MaskKey")
    }
}

impl MaskKey {
    /// From the 32 bytes of `DIR/gateway-secret`.
    pub fn derive(secret: &[u8; 32]) -> Self {
        Self::of(&super::cursor::hmac::<Hmac<Sha256>>(secret, b"tailrace mask v1"))
    }

    fn of(key: &[u8]) -> Self {
        Self(super::cursor::keyed(key))
    }
}

/// Covers the JSON value at `out[start..]`. NULL stays null.
pub fn cover(mask: Mask, key: Option<&MaskKey>, out: &mut Vec<u8>, start: usize) {
    if out.get(start..) == Some(b"null") {
        return;
    }
    match mask {
        Mask::Null => null(out, start),
        Mask::Redact => {
            out.truncate(start);
            out.extend_from_slice(b"\"***\"");
        }
        Mask::Hash => {
            let Some(MaskKey(state)) = key else { return null(out, start) };
            let mut state = state.clone();
            state.update(out.get(start..).unwrap_or_default());
            let digest = state.finalize().into_bytes();
            let mut text = [0; 22];
            out.truncate(start);
            match digest.get(..16).map(|half| URL_SAFE_NO_PAD.encode_slice(half, &mut text)) {
                Some(Ok(_)) => {
                    out.push(b'"');
                    out.extend_from_slice(&text);
                    out.push(b'"');
                }
                _ => out.extend_from_slice(b"null"),
            }
        }
        Mask::Partial => partial(out, start),
    }
}

fn null(out: &mut Vec<u8>, start: usize) {
    out.truncate(start);
    out.extend_from_slice(b"null");
}

fn partial(out: &mut Vec<u8>, start: usize) {
    if !text::own(out, start) {
        return null(out, start);
    }
    let whole = out.split_off(start);
    let shown = std::str::from_utf8(&whole).ok().and_then(|whole| {
        let first = whole.chars().next().map_or(0, char::len_utf8);
        let (first, _) = whole.split_at_checked(first)?;
        let mut shown = first.to_owned() + "***";
        if let Some(domain) = domain(whole) {
            shown.push('@');
            shown.push_str(domain);
        } else if whole.chars().nth(5).is_some() {
            let tail = whole.char_indices().nth_back(1).map_or(0, |(at, _)| at);
            shown.push_str(whole.get(tail..)?);
        }
        Some(shown)
    });
    if shown.is_none_or(|shown| text::string(shown.as_bytes(), out).is_err()) {
        null(out, start);
    }
}

/// What stands behind the only `@`, if the local part has at least two characters and the domain a dot.
fn domain(text: &str) -> Option<&str> {
    let (local, domain) = text.split_once('@')?;
    (!domain.contains('@') && domain.contains('.') && local.chars().nth(1).is_some()).then_some(domain)
}
