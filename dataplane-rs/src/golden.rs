//! Golden vectors that both languages read (`crds/golden`), for tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use serde_json::Value;
use std::path::PathBuf;

/// Where the golden files are.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crds/golden")
}

/// One file of vectors.
pub fn vectors(name: &str) -> Value {
    let path = folder().join("vectors").join(name);
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The bytes that `text` or `hex` of a vector stand for.
pub fn bytes(vector: &Value) -> Vec<u8> {
    vector["text"].as_str().map_or_else(|| hex(vector["hex"].as_str().unwrap()), |text| text.as_bytes().to_vec())
}

/// Hex digits → bytes.
pub fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// One file of vectors drawn at random, from the folder that TAILRACE_VECTORS names if it does.
pub fn random(name: &str) -> Value {
    let path = std::env::var_os("TAILRACE_VECTORS").map_or_else(|| folder().join("vectors/random"), PathBuf::from).join(name);
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
