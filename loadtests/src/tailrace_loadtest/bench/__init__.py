"""Figures: CPU a call, latency alone, memory, snapshots, p99 under change. Ratios in one session, interleaved (docs/performance.md)."""
