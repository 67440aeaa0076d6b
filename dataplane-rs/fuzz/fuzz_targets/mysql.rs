//! Whatever a MySQL server sends, reading it ends or fails: greeting, packets by phase, rows of any columns.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::engine::mysql::connect::greeting;
use tailrace_dataplane::engine::mysql::member::{Phase, Step, read};
use tailrace_dataplane::engine::mysql::value::{Kind, row};
use tailrace_dataplane::engine::mysql::wire::packet;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let _ = greeting(rest);
    let mut phase = if first & 1 == 0 { Phase::Head } else { Phase::Prepare };
    let (mut kinds, mut out) = (Vec::new(), Vec::new());
    while let Ok(Some(packet)) = packet(rest, 1 << 20) {
        let size = packet.size;
        let Ok((step, next, _)) = read(phase, &packet.body) else { return };
        match step {
            Step::Definition(definition) => kinds.push(Kind::of(&definition)),
            Step::Row(body) => {
                if row(body, &kinds, &mut out).is_ok() {
                    let mut values = &out[..];
                    for _ in &kinds {
                        tailrace_dataplane::encode::rows::next(&mut values).expect("a whole row");
                    }
                    assert!(values.is_empty());
                    out.clear();
                }
            }
            _ => {}
        }
        phase = next;
        rest = &rest[size..];
    }
});
