//! Snapshots as they come over the socket: no panic on the way to the tables.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::Snapshot;
use tailrace_dataplane::plan::tables::Tables;

fuzz_target!(|bytes: &[u8]| {
    let Ok(snapshot) = serde_json::from_slice::<Snapshot>(bytes) else { return };
    let observer = Observer::silent();
    if let Ok(tables) = Tables::compile(&snapshot, Some(&[7; 32]), None, &observer) {
        let _ = Tables::compile(&snapshot, None, Some(&tables), &observer);
    }
});
