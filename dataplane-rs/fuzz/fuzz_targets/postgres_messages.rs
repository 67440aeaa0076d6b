//! Everything that reads a backend message, and the URL, over arbitrary bytes: no panic, and what `row` admits adds up.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::engine::postgres::session::{Standing, local_holds};
use tailrace_dataplane::engine::postgres::uri::{Files, Uri};
use tailrace_dataplane::engine::postgres::{idempotency, wire};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(frame)) = wire::frame(rest, 1 << 16) {
        let body = frame.body;
        let _ = wire::server_error(body);
        let _ = wire::columns(body, |_| {});
        let _ = wire::matches(body, &[]);
        let _ = wire::affected(body);
        let _ = wire::parameter(body);
        if let Ok((count, values)) = wire::row(body) {
            assert_eq!(wire::values(values).count(), usize::from(count));
            let used: usize = wire::values(values).map(|value| 4 + value.map_or(0, <[u8]>::len)).sum();
            assert_eq!(used, values.len());
        }
        let _ = Standing::read(body);
        let _ = local_holds(body);
        let _ = idempotency::stored(body);
        rest = &rest[frame.size()..];
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Uri::parse(text, &Files::default());
    }
});
