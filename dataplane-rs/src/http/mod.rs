//! HTTP: bytes → request, answer → bytes.
pub mod negotiate;
