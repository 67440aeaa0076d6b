//! One transaction of runs out of payloads: resolves their definitions, joins beginnings and ends that meet in it.
//! May reject: what the store rejects. IO: through the store.
use super::layout::{self, Entry, Kind, Record};
use super::store::{Cursor, Ended, Row, Store, StoreError};
use std::collections::HashMap;

/// What ids of one segment mean, as numbers of the store's names.
#[derive(Debug, Default)]
pub struct SegmentNames {
    // By id: a recorder counts them up from 1.
    queries: Vec<[i64; 3]>,
    texts: Vec<i64>,
}

/// Ids that a segment may define. A recorder gets nowhere near; what claims more is damaged.
const IDS_LIMIT: usize = 1 << 22;

fn set<T: Clone + Default>(names: &mut Vec<T>, id: u32, value: T) {
    let at = id as usize;
    if at >= names.len() && at < IDS_LIMIT {
        names.resize(at + 1, T::default());
    }
    if let Some(slot) = names.get_mut(at) {
        *slot = value;
    }
}

impl SegmentNames {
    fn row<'a>(&self, record: Record<'a>) -> Row<'a> {
        let text = |id: u32| self.texts.get(id as usize).copied().unwrap_or(0);
        let query = self.queries.get(record.query as usize).copied().unwrap_or_default();
        Row { query, key: text(record.key), code: text(record.code), record }
    }
}

/// What a transaction brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs that the store lacked, without the aborted ones.
    pub runs: u64,
    /// Recorded as aborted.
    pub aborted: u64,
    /// The latest `time_us` among what was inserted.
    pub newest_us: u64,
}

/// The beginning of a run whose end has not come.
#[derive(Debug)]
struct Opened {
    record: Record<'static>,
    query: [i64; 3],
    key: i64,
    params: Option<Box<str>>,
}

/// One transaction.
pub struct Batch<'a> {
    store: &'a mut dyn Store,
    /// Opened in this transaction and not closed in it yet.
    opened: HashMap<(u64, u64), Opened>,
    newest_us: u64,
}

impl<'a> Batch<'a> {
    /// Begins a transaction.
    pub fn begin(store: &'a mut dyn Store) -> Result<Self, StoreError> {
        store.begin()?;
        Ok(Self { store, opened: HashMap::new(), newest_us: 0 })
    }

    fn define(&mut self, entry: &Entry<'_>, names: &mut SegmentNames) -> Result<(), StoreError> {
        match entry {
            Entry::Query { id, name, version, connection } => {
                let ids = [self.store.name(name)?, self.store.name(version)?, self.store.name(connection)?];
                set(&mut names.queries, *id, ids);
            }
            Entry::Text { id, text } => set(&mut names.texts, *id, self.store.name(text)?),
            Entry::Record(_) => {}
        }
        Ok(())
    }

    /// Learns the definitions of a payload whose records are in the store already.
    pub fn learn(&mut self, payload: &[u8], names: &mut SegmentNames) -> Result<(), StoreError> {
        for entry in layout::entries(payload).map_while(Result::ok) {
            self.define(&entry, names)?;
        }
        Ok(())
    }

    /// Adds the records of one payload; raises `sequence` to the highest among them. `Ok(false)`: it ends with what can't be read,
    /// and the rest of it was left out.
    pub fn insert(&mut self, epoch: u64, payload: &[u8], names: &mut SegmentNames, sequence: &mut u64) -> Result<bool, StoreError> {
        let mut entries = layout::entries(payload);
        let mut next = entries.next();
        while let Some(entry) = next {
            match entry {
                Ok(Entry::Record(record)) if record.kind == Kind::Run => {
                    // Runs in a row go to the store together.
                    let (mut first, mut behind) = (Some(record), None);
                    let newest_us = &mut self.newest_us;
                    self.store.runs(
                        epoch,
                        &mut std::iter::from_fn(|| {
                            let record = match first.take() {
                                Some(record) => record,
                                None => match entries.next() {
                                    Some(Ok(Entry::Record(record))) if record.kind == Kind::Run => record,
                                    other => {
                                        behind = other;
                                        return None;
                                    }
                                },
                            };
                            *sequence = (*sequence).max(record.sequence);
                            *newest_us = (*newest_us).max(record.time_us);
                            Some(names.row(record))
                        }),
                    )?;
                    next = behind;
                    continue;
                }
                Ok(Entry::Record(record)) => {
                    *sequence = (*sequence).max(record.sequence);
                    self.part(epoch, names.row(record))?;
                }
                Ok(definition) => self.define(&definition, names)?,
                Err(_) => return Ok(false),
            }
            next = entries.next();
        }
        Ok(true)
    }

    /// A beginning or an end.
    fn part(&mut self, epoch: u64, row: Row<'_>) -> Result<(), StoreError> {
        let record = row.record;
        if record.kind == Kind::Open {
            let opened =
                Opened { record: Record { params: None, ..record }, query: row.query, key: row.key, params: record.params.map(Into::into) };
            self.opened.insert((epoch, record.sequence), opened);
            return Ok(());
        }
        self.newest_us = self.newest_us.max(record.time_us);
        let Some(opened) = self.opened.remove(&(epoch, record.sequence)) else {
            return self.store.closed(epoch, &row);
        };
        let joined = Record {
            kind: Kind::Run,
            client: opened.record.client,
            served_by: opened.record.served_by,
            batch: opened.record.batch,
            trace: opened.record.trace,
            params: opened.params.as_deref(),
            ..record
        };
        let query = if record.query != 0 { row.query } else { opened.query };
        let key = if record.key != 0 { row.key } else { opened.key };
        self.store.joined(epoch, &Row { record: joined, query, key, code: row.code })
    }

    /// See `Store::end`.
    pub fn end(&mut self, epochs: Ended<'_>) -> Result<(), StoreError> {
        self.store.end(epochs)
    }

    /// Inserts what is still open. Nothing may be inserted after this.
    pub fn close(&mut self) -> Result<(), StoreError> {
        for ((epoch, _), Opened { record, query, key, params }) in std::mem::take(&mut self.opened) {
            let record = Record { params: params.as_deref(), ..record };
            self.store.opened(epoch, &Row { record, query, key, code: 0 })?;
        }
        Ok(())
    }

    /// See `Store::set_cursor`.
    pub fn set_cursor(&mut self, epoch: u64, cursor: Option<Cursor>) -> Result<(), StoreError> {
        self.store.set_cursor(epoch, cursor)
    }

    /// Makes it true, on the store's disk.
    pub fn commit(mut self) -> Result<Counts, StoreError> {
        self.close()?;
        let committed = self.store.commit()?;
        Ok(Counts { runs: committed.runs, aborted: committed.aborted, newest_us: self.newest_us })
    }
}
