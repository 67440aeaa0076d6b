//! The data plane of Tailrace: answers governed SQL calls from compiled plans and records every one (docs/contract.md).
//!
//! A call's way: `http` (bytes → request) → `auth` → `plan` → `params` → `lanes` → `engine` → `encode` → `runs` → `http`.
#[rustfmt::skip]
pub mod codes;
pub mod engine;
pub mod plan;
pub mod runs;
