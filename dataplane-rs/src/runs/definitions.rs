//! Which names a recorder's segment has defined: a record refers to them by numbers. Pure. May reject: nothing.
use super::layout;
use super::run::{Forwarded, Names};
use crate::codes::Code;
use std::collections::HashMap;
use std::sync::Arc;

/// Snapshots of which a recorder remembers what it has defined. An older one's names are defined again.
const REMEMBERED_SNAPSHOTS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Mark {
    id: u32,
    generation: u32,
}

struct Remembered {
    names: Arc<Names>,
    queries: Vec<Mark>,
    keys: Vec<Mark>,
}

/// Which names the current segment has defined. Ids begin at 1; a mark counts only in its generation.
pub(super) struct Definitions {
    generation: u32,
    /// How many are defined.
    pub queries: u32,
    /// How many are defined.
    pub texts: u32,
    snapshots: Vec<Remembered>,
    codes: [Mark; Code::ALL.len()],
    query_ids: HashMap<Box<str>, u32>,
    text_ids: HashMap<Box<str>, u32>,
}

impl Definitions {
    pub fn new() -> Self {
        Self {
            generation: 1,
            queries: 0,
            texts: 0,
            snapshots: Vec::with_capacity(REMEMBERED_SNAPSHOTS),
            codes: [Mark::default(); Code::ALL.len()],
            query_ids: HashMap::new(),
            text_ids: HashMap::new(),
        }
    }

    /// Nothing is defined (any more).
    pub fn forget(&mut self) {
        self.generation += 1;
        self.query_ids.clear();
        self.text_ids.clear();
    }

    fn snapshot(&mut self, names: &Arc<Names>) -> Option<&mut Remembered> {
        if self.snapshots.first().is_none_or(|s| !Arc::ptr_eq(&s.names, names)) {
            match self.snapshots.iter().position(|s| Arc::ptr_eq(&s.names, names)) {
                Some(at) => self.snapshots.swap(0, at),
                None => {
                    self.snapshots.truncate(REMEMBERED_SNAPSHOTS - 1);
                    let (queries, keys) = (vec![Mark::default(); names.queries.len()], vec![Mark::default(); names.keys.len()]);
                    self.snapshots.insert(0, Remembered { names: names.clone(), queries, keys });
                }
            }
        }
        self.snapshots.first_mut()
    }

    pub fn query(&mut self, names: &Arc<Names>, index: Option<u32>, out: &mut Vec<u8>) -> u32 {
        let (generation, next) = (self.generation, self.queries + 1);
        let Some(index) = index else { return 0 };
        let Some(mark) = self.snapshot(names).and_then(|s| s.queries.get_mut(index as usize)) else { return 0 };
        if mark.generation != generation {
            *mark = Mark { id: next, generation };
            if let Some(q) = names.queries.get(index as usize) {
                layout::define_query(out, next, &q.name, &q.version, &q.connection);
            }
            self.queries = next;
            return next;
        }
        mark.id
    }

    pub fn key(&mut self, names: &Arc<Names>, index: Option<u32>, out: &mut Vec<u8>) -> u32 {
        let (generation, next) = (self.generation, self.texts + 1);
        let Some(index) = index else { return 0 };
        let Some(mark) = self.snapshot(names).and_then(|s| s.keys.get_mut(index as usize)) else { return 0 };
        if mark.generation != generation {
            *mark = Mark { id: next, generation };
            if let Some(key) = names.keys.get(index as usize) {
                layout::define_text(out, next, key);
            }
            self.texts = next;
            return next;
        }
        mark.id
    }

    pub fn code(&mut self, code: Option<Code>, out: &mut Vec<u8>) -> u32 {
        let Some(code) = code else { return 0 };
        let Some(mark) = self.codes.get_mut(code as usize) else { return 0 };
        if mark.generation != self.generation {
            self.texts += 1;
            *mark = Mark { id: self.texts, generation: self.generation };
            layout::define_text(out, mark.id, code.name());
        }
        mark.id
    }

    pub fn text(&mut self, text: &str, out: &mut Vec<u8>) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        self.texts += 1;
        layout::define_text(out, self.texts, text);
        self.text_ids.insert(text.into(), self.texts);
        self.texts
    }

    pub fn forwarded_query(&mut self, f: &Forwarded<'_>, out: &mut Vec<u8>) -> u32 {
        if f.query.is_empty() {
            return 0;
        }
        let whole = [f.query, f.version, f.connection].join("\0");
        if let Some(id) = self.query_ids.get(whole.as_str()) {
            return *id;
        }
        self.queries += 1;
        layout::define_query(out, self.queries, f.query, f.version, f.connection);
        self.query_ids.insert(whole.into(), self.queries);
        self.queries
    }
}
