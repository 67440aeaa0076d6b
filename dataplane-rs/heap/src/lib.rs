//! Gives freed memory back to the system. IO: none. May reject: nothing.
//!
//! glibc keeps what is freed in the middle of its heaps. Each snapshot leaves there what it was parsed from and, a little later, the tables
//! that it replaced: with 1,000 queries and 10,000 keys more than the tables in use take. Only `malloc_trim` gives that back, and there is no
//! safe way to it: hence this crate, which holds nothing else, so that the data plane's own code stays under `forbid(unsafe_code)`.

/// Returns the whole pages that the allocator holds free; whether it had any. Takes about a millisecond for each 10 MB of heap and locks one
/// arena after the other while it looks: for threads that don't serve, after much was freed. Without glibc it does nothing.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() -> bool {
    // SAFETY: takes no pointer and leaves every live allocation where it is; glibc lets any thread call it at any time.
    unsafe { libc::malloc_trim(0) == 1 }
}

/// As with glibc, whose function there is none of.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() -> bool {
    false
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    /// Resident anonymous memory, KiB.
    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    #[test]
    fn what_is_freed_between_what_is_kept_goes_back() {
        let all: Vec<Vec<u8>> = (0..10_000).map(|_| vec![1; 4096]).collect();
        let kept: Vec<_> = all.into_iter().step_by(100).collect();
        let before = resident_kib();
        super::give_back();
        let after = resident_kib();
        assert!(after + 20_000 < before, "{before} KiB, then {after}");
        assert_eq!(kept.len(), 100);
    }
}
