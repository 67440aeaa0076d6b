//! CPU time of process trees and of ourselves. May reject: nothing (a process that is gone counts as none). IO: reads /proc.
use std::collections::BTreeMap;
use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// A process to watch, with everything that descends from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// How the report calls it.
    pub name: String,
    /// Root of the tree.
    pub pid: u32,
}

/// ns on a CPU by process id, of one moment.
pub type Sample = BTreeMap<u32, u64>;

/// Parent of a process from the text of /proc/PID/stat (the name may hold blanks and parentheses).
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn numbered(path: &str) -> Vec<u32> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The tree below `root`, itself first.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in numbered("/proc") {
        if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat"))
            && let Some(parent) = parent(&stat)
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// CPU time of each of these processes, over all its threads.
pub fn sample_of(pids: &[u32]) -> Sample {
    let threads = |pid: u32| {
        let of = |thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok();
        numbered(&format!("/proc/{pid}/task"))
            .into_iter()
            .filter_map(of)
            .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    pids.iter().map(|&pid| (pid, threads(pid))).collect()
}

/// ns used between two samples: processes that ended in between count nothing, new ones whole. None: the root is gone.
pub fn used(root: u32, before: &Sample, after: &Sample) -> Option<u64> {
    let (_, after_root) = (before.get(&root)?, after.get(&root)?);
    (*after_root > 0).then_some(())?;
    Some(after.iter().map(|(pid, ns)| ns.saturating_sub(before.get(pid).copied().unwrap_or(0))).sum())
}

/// Our own CPU time so far, in ns.
pub fn own() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_name_may_hold_anything() {
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent("nonsense"), None);
    }

    #[test]
    fn our_own_work_is_seen_by_both_clocks() {
        let pid = std::process::id();
        let (before, own_before) = (sample_of(&tree(pid)), own());
        let mut sum = 0u64;
        while own() - own_before < 30_000_000 {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        let seen = used(pid, &before, &sample_of(&[pid])).unwrap();
        assert!(sum > 0 && seen >= 15_000_000, "{seen}");
        assert_eq!(used(u32::MAX, &before, &before), None);
    }

    #[test]
    fn the_tree_begins_with_its_root() {
        assert_eq!(tree(std::process::id()).first(), Some(&std::process::id()));
    }
}
