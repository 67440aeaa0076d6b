//! HTTP load for Tailrace's gates: open and closed loop, every answer checked against its key, every run id kept.
//!
//! Settings → `Load` → `drive` (one thread, one epoll) → `Report`. It must cost less CPU a call than what it loads.
pub mod answer;
pub mod arrivals;
pub mod bulk;
pub mod connection;
pub mod cpu;
pub mod drive;
pub mod h2;
pub mod hpack;
pub mod report;
pub mod run_ids;
pub mod settings;
pub mod template;
