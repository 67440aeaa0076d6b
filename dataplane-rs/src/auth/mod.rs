//! Who calls: keys by digest, validity at the call's time, the caller's address. Every failure looks alike from outside.
pub mod address;
pub mod keys;
