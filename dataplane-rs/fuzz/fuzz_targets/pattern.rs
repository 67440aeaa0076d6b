//! Patterns of parameters: what the subset admits compiles, in bounded size, and matches anything without panic.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::params::pattern;

// Input: the pattern, a line feed, a text.
fuzz_target!(|text: &str| {
    let (source, text) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(rewritten) = pattern::portable(source) {
        assert!(rewritten.is_ascii());
        let _ = pattern::compile(source).unwrap().is_match(text);
    }
});
