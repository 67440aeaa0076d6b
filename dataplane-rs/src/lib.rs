//! The data plane of Tailrace: answers governed SQL calls from compiled plans and records every one (docs/contract.md).
//!
//! A call's way: `http` (bytes → request) → `auth` → `plan` → `params` → `lanes` → `engine` → `encode` → `runs` → `http`.
pub mod admin;
#[rustfmt::skip]
pub mod codes;
pub mod encode;
pub mod engine;
#[cfg(test)]
pub(crate) mod golden;
pub mod http;
pub mod observe;
pub mod params;
pub mod plan;
pub mod runs;
