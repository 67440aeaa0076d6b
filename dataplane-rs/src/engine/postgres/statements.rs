//! Which statements one connection has prepared: names by (query version, SQL), the least recently used closed for room.
//! IO: none. May reject: nothing.
use crate::engine::Ask;
use crate::plan::snapshot::StatementPlan;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Statements that a connection keeps. The server holds a plan of each, some tens of KiB.
const MOST: usize = 256;

#[derive(Debug)]
struct Entry {
    version: Arc<str>,
    statement: Arc<StatementPlan>,
    name: u32,
    used: u64,
}

/// What to send before Bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Nothing.
    Known(u32),
    /// Close the other first if there is one, then Parse under this name.
    New {
        /// Name of the new statement.
        name: u32,
        /// Name of the one that gives way.
        evicted: Option<u32>,
    },
}

/// The prepared statements of one connection.
#[derive(Debug, Default)]
pub struct Statements {
    entries: HashMap<u64, Entry>,
    hasher: RandomState,
    clock: u64,
    next: u32,
}

impl Statements {
    fn key(&self, ask: &Ask) -> u64 {
        self.hasher.hash_one((&*ask.version, &ask.statement.sql))
    }

    /// The statement's name, taken for it if it has none. Forget it again if Parse fails.
    pub fn get(&mut self, ask: &Ask) -> Prepared {
        let key = self.key(ask);
        self.clock += 1;
        let clock = self.clock;
        if let Some(entry) = self.entries.get_mut(&key) {
            let same = Arc::ptr_eq(&entry.statement, &ask.statement)
                || (entry.statement.sql == ask.statement.sql && entry.statement.oids == ask.statement.oids);
            if same && entry.version == ask.version {
                entry.used = clock;
                return Prepared::Known(entry.name);
            }
        }
        let mut evicted = self.entries.remove(&key).map(|entry| entry.name);
        if evicted.is_none() && self.entries.len() >= MOST {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            evicted = oldest.and_then(|key| self.entries.remove(&key)).map(|entry| entry.name);
        }
        self.next = self.next.wrapping_add(1);
        let name = self.next;
        let entry = Entry { version: Arc::clone(&ask.version), statement: Arc::clone(&ask.statement), name, used: clock };
        self.entries.insert(key, entry);
        Prepared::New { name, evicted }
    }

    /// Rises with every new name.
    pub const fn next_name(&self) -> u32 {
        self.next
    }

    /// Drops the statement; returns the name that was its own.
    pub fn forget(&mut self, ask: &Ask) -> Option<u32> {
        let key = self.key(ask);
        self.entries.remove(&key).map(|entry| entry.name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    fn ask(version: &str, sql: &str) -> Ask {
        Ask {
            query: 0,
            version: version.into(),
            statement: Arc::new(StatementPlan { sql: sql.into(), params: vec![], oids: vec![] }),
            columns: [].into(),
            values: vec![],
            limit: None,
            deadline: Instant::now(),
            write: None,
            trace: None,
        }
    }

    #[test]
    fn a_name_means_one_version_and_one_text() {
        let mut statements = Statements::default();
        assert_eq!(statements.get(&ask("a", "x")), Prepared::New { name: 1, evicted: None });
        assert_eq!(statements.get(&ask("a", "x")), Prepared::Known(1));
        assert_eq!(statements.get(&ask("a", "y")), Prepared::New { name: 2, evicted: None });
        assert_eq!(statements.get(&ask("b", "x")), Prepared::New { name: 3, evicted: None });
        assert_eq!(statements.forget(&ask("a", "x")), Some(1));
        assert_eq!(statements.get(&ask("a", "x")), Prepared::New { name: 4, evicted: None });
    }

    #[test]
    fn the_least_recently_used_gives_way() {
        let mut statements = Statements::default();
        for n in 0..MOST {
            statements.get(&ask("v", &n.to_string()));
        }
        assert_eq!(statements.get(&ask("v", "0")), Prepared::Known(1));
        assert_eq!(statements.get(&ask("v", "new")), Prepared::New { name: 257, evicted: Some(2) });
        assert_eq!(statements.entries.len(), MOST);
    }
}
