//! Where a call comes from: the peer's address, or what trusted proxies say of it. May reject: nothing. IO: none.
use super::keys::contains;
use ipnet::IpNet;
use std::net::IpAddr;

/// The caller's address. `forwarded` (X-Forwarded-For, all lines joined) counts only from a trusted peer: it is read from the
/// right, skipping trusted proxies; the first other address is the caller. What cannot be read ends the search at the last
/// address that was sure, so that nobody gets past a CIDR by writing nonsense.
pub fn caller(peer: IpAddr, trusted: &[IpNet], forwarded: Option<&[u8]>) -> IpAddr {
    let peer = peer.to_canonical();
    let Some(forwarded) = forwarded.filter(|_| contains(trusted, peer)) else { return peer };
    let mut sure = peer;
    for entry in forwarded.rsplit(|&b| b == b',') {
        let Some(address) = std::str::from_utf8(entry).ok().and_then(|text| parse(text.trim())) else { return sure };
        sure = address;
        if !contains(trusted, address) {
            break;
        }
    }
    sure
}

/// `1.2.3.4`, `1.2.3.4:5`, `::1`, `[::1]`, `[::1]:5`.
fn parse(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(address, _)| address);
    let address = bare.unwrap_or(text).parse::<IpAddr>().ok().or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|a| a.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_peers_are_believed() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        for (peer, forwarded, expected) in [
            ("192.0.2.1", Some("198.51.100.1"), "192.0.2.1"),
            ("10.0.0.1", None, "10.0.0.1"),
            ("10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
            ("::ffff:10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
            ("10.0.0.1", Some("203.0.113.9, 198.51.100.1, 10.0.0.2"), "198.51.100.1"),
            ("10.0.0.1", Some("203.0.113.9, nonsense, 10.0.0.2"), "10.0.0.2"),
            ("10.0.0.1", Some("10.0.0.3, 10.0.0.2"), "10.0.0.3"),
            ("10.0.0.1", Some(""), "10.0.0.1"),
            ("fd00::1", Some("[2001:db8::1]:443"), "2001:db8::1"),
            ("10.0.0.1", Some("198.51.100.1:5000"), "198.51.100.1"),
        ] {
            let caller = caller(peer.parse().unwrap(), &trusted, forwarded.map(str::as_bytes));
            assert_eq!(caller, expected.parse::<IpAddr>().unwrap(), "{peer} {forwarded:?}");
        }
    }
}
