//! The data plane of Tailrace: answers governed SQL calls from compiled plans and records every one (docs/contract.md).
//!
//! A call's way: `http` (bytes → request) → `auth` → `plan` → `params` → `lanes` → `engine` → `encode` → `runs` → `http`;
//! `calls` carries it from one to the next. `process` is the whole: Config → threads → drain.
pub mod admin;
pub mod auth;
pub mod cache;
pub mod calls;
#[rustfmt::skip]
pub mod codes;
pub mod config;
pub mod encode;
pub mod engine;
#[cfg(test)]
pub(crate) mod golden;
pub mod http;
pub mod lanes;
pub mod observe;
pub mod params;
pub mod plan;
pub mod process;
pub mod runs;
pub mod shutdown;
