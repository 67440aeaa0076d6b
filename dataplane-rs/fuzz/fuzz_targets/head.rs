//! Requests as a client may send them: no panic, a head is no longer than its input, and the same whether it comes whole or in two parts.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::http::body::Chunked;
use tailrace_dataplane::http::head::{self, Framing};
use tailrace_dataplane::params::url;

const BODY_LIMIT: usize = 1 << 12;

fuzz_target!(|bytes: &[u8]| {
    let whole = head::parse(bytes, 16 << 10, 100, |head| {
        assert!(head.length <= bytes.len());
        let mut path = Vec::new();
        let _ = head::decode_path(head.path, &mut path);
        let _ = url::requested(head.arguments);
        url::without_cursor(head.arguments, &mut path);
        let _ = head.joined("accept");
        (head.length, head.framing, head.keep_alive)
    });
    let Ok(Some((length, framing, _))) = whole else { return };
    // One byte less is not a head yet, or was none.
    assert!(!matches!(head::parse(&bytes[..length - 1], 16 << 10, 100, |head| head.length), Ok(Some(n)) if n != length));
    if framing != Framing::Chunked {
        return;
    }
    let rest = &bytes[length..];
    let mut once = Chunked::default();
    let all = once.feed(rest, BODY_LIMIT);
    let mut split = Chunked::default();
    let mut at = 0;
    let mut failed = false;
    for end in 0..=rest.len() {
        match split.feed(&rest[at..end], BODY_LIMIT) {
            Ok(used) => at += used,
            Err(_) => {
                failed = true;
                break;
            }
        }
        if split.done() || split.too_large {
            break;
        }
    }
    assert!(once.body.len() <= BODY_LIMIT && split.body.len() <= BODY_LIMIT);
    if let Ok(used) = all
        && once.done()
    {
        assert!(!failed && split.done() && at == used && split.body == once.body);
    }
});
