//! What a connection speaks, from its first bytes: the same whether they come whole or in parts; and heads of streams as a client may
//! send them: no panic.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::http::head;
use tailrace_dataplane::http::http2::{PREFACE, Sniffed, sniff};

fuzz_target!(|input: (u8, &[u8], usize)| {
    let (common, more, cut) = input;
    let mut text = PREFACE[..usize::from(common) % (PREFACE.len() + 1)].to_vec();
    text.extend_from_slice(more);
    let whole = sniff(&[], &text);
    assert_eq!(whole == Sniffed::Http2, text.starts_with(PREFACE));
    let (first, second) = text.split_at(cut % (text.len() + 1));
    let early = sniff(&[], first);
    assert_eq!(if early == Sniffed::Perhaps { sniff(first, second) } else { early }, whole);
    // A stream's head, as the protocol's own decoder would hand it on: lines of a name, a colon and a value.
    let Ok(text) = std::str::from_utf8(more) else { return };
    let mut lines = text.lines();
    let (method, target) = (lines.next().unwrap_or("GET"), lines.next().unwrap_or("/"));
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| head::Header { name: name.as_bytes(), value: value.as_bytes() })
        .collect();
    if let Ok(head) = head::of_stream(method, target.as_bytes(), &headers, 100) {
        assert!(head.keep_alive && head.length == 0);
        let _ = head::decode_path(head.path, &mut Vec::new());
    }
});
