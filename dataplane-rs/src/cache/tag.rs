//! ETags: strong, over the bytes of a body exactly as they are sent, so that each coding has its own; and the test of `If-None-Match`
//! (RFC 9110, 8.8.3 and 13.1.2). Pure. May reject: nothing; a list that can't be read matches nothing. The twin of
//! `tailrace_gateway.serve.etag`.
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// An entity tag with its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag([u8; Self::TEXT]);

impl Tag {
    /// Its length: the first 16 bytes of a SHA-256 in base64url, and the quotes.
    pub const TEXT: usize = 24;

    /// Of a body.
    pub fn of(sent: &[u8]) -> Self {
        let digest = Sha256::digest(sent);
        let mut text = [b'"'; Self::TEXT];
        if let (Some(half), Some(middle)) = (digest.get(..16), text.get_mut(1..Self::TEXT - 1)) {
            // 16 bytes are exactly 22 characters.
            let _always_fits = URL_SAFE_NO_PAD.encode_slice(half, middle);
        }
        Self(text)
    }

    /// As headers hold it.
    pub const fn text(&self) -> &[u8] {
        &self.0
    }

    /// Whether a client that sent this `If-None-Match` has the body already. Compared weakly, as the RFC says.
    pub fn is_in(&self, list: &[u8]) -> bool {
        if list.trim_ascii() == b"*" {
            return true;
        }
        let mut rest = list;
        loop {
            rest = rest.trim_ascii_start();
            if let Some(after) = rest.strip_prefix(b",") {
                rest = after;
                continue;
            }
            let Some(quoted) = rest.strip_prefix(b"W/").unwrap_or(rest).strip_prefix(b"\"") else { return false };
            let Some(end) = memchr::memchr(b'"', quoted) else { return false };
            let (opaque, after) = quoted.split_at(end);
            let after = after.strip_prefix(b"\"").unwrap_or_default().trim_ascii_start();
            if self.0.strip_prefix(b"\"").and_then(|own| own.strip_suffix(b"\"")) == Some(opaque) {
                return true;
            }
            match after.strip_prefix(b",") {
                Some(after) => rest = after,
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        let tag = Tag::of(b"{\"id\":7}");
        let own = String::from_utf8_lossy(tag.text()).into_owned();
        let (yes, no) = (true, false);
        for (list, matches) in [
            (own.clone(), yes),
            (format!("W/{own}"), yes),
            (format!("\"a\", {own}"), yes),
            (format!("\"a,b\" ,, W/\"c\",{own} , \"d\""), yes),
            ("*".to_owned(), yes),
            (" * ".to_owned(), yes),
            (String::new(), no),
            ("\"a\"".to_owned(), no),
            (own.trim_matches('"').to_owned(), no),
            (format!("w/{own}"), no),
            (format!("\"a {own}"), no),
            (format!("\"a\" {own}"), no),
            (format!("*, {own}"), no),
        ] {
            assert_eq!(tag.is_in(list.as_bytes()), matches, "{list}");
        }
    }

    #[test]
    fn the_same_as_in_python() {
        assert_eq!(Tag::of(b"").text(), b"\"47DEQpj8HBSa-_TImW-5JA\"");
    }

    proptest! {
        #[test]
        fn any_list_is_read_without_harm(list in prop::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'W'), Just(b'/'), Just(b'*'), any::<u8>()], 0..60)) {
            prop_assert!(!Tag::of(b"x").is_in(&list) || list.trim_ascii() == b"*");
        }
    }
}
