//! Bodies with several calls: no panic; what is found are the elements of the only member, as a reader of JSON has them; what is written around answers is JSON.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::http::bulk;
use tailrace_dataplane::http::response::{Date, Form};

fuzz_target!(|bytes: &[u8]| {
    let found = if bulk::begins(bytes) { bulk::calls(bytes) } else { None };
    if let Some(calls) = &found {
        let whole: serde_json::Value = match serde_json::from_slice(bytes) {
            Ok(whole) => whole,
            Err(_) => return, // deeper than that reader goes, or a number beyond its range
        };
        let elements = whole["calls"].as_array().unwrap();
        assert_eq!((whole.as_object().unwrap().len(), elements.len()), (1, calls.len()));
        for (range, element) in calls.iter().zip(elements) {
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&bytes[range.clone()]).unwrap(), *element);
        }
        let mut parts = Vec::new();
        for range in calls {
            parts.extend_from_slice(b"{\"status\":200,\"body\":");
            parts.extend_from_slice(&bytes[range.clone()]);
            parts.extend_from_slice(b"},");
        }
        let mut out = Vec::new();
        bulk::answer(Form::default(), &Date::default(), &parts, &mut out);
        let at = out.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&out[at + 4..]).unwrap();
        assert_eq!(answer.as_array().unwrap().len(), calls.len());
    }
});
