//! Cursors as callers send them: none that was not sealed opens.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::encode::CursorKey;
use tailrace_dataplane::encode::cursor::Subject;
use tailrace_dataplane::plan::snapshot::{Engine, PageKeyPlan};

fuzz_target!(|bytes: &[u8]| {
    let key = CursorKey::derive(&[7; 32]);
    let subject = Subject { key: "a/b", query: "q", version: "v" };
    for engine in [Engine::Postgres, Engine::Sqlite] {
        assert!(key.open(subject, bytes, 1, engine, &mut Vec::new()).is_err());
        // As the last row's only column: what seals, opens to the same.
        let mut row = i32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
        row.extend_from_slice(bytes);
        let (mut cursor, mut opened) = (Vec::new(), Vec::new());
        if key.seal(subject, &row, &[PageKeyPlan { column: 0, descending: false }], engine, &mut cursor).is_ok()
            && key.open(subject, &cursor, 1, engine, &mut opened).is_ok()
        {
            assert!(opened == row || engine == Engine::Sqlite && bytes[0] == b'r');
        }
    }
});
