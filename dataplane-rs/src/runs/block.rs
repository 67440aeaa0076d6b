//! Many whole runs of one epoch as columns: the form of `run_blocks.body` in the embedded store (docs/contract.md, "Blocks of runs").
//! A column has one width for all its values: a reader takes it as an array, a writer needs no more than its lowest and highest value.
//! Pure. `decode` may reject: what is cut, too long, or names what isn't in its dictionaries.
use super::store::Row;
use foldhash::{HashMap, HashMapExt};

/// First byte of a body.
const FORM: u8 = 1;
/// Most runs in a block: what a reader of one page unpacks at least.
pub const RUNS_MOST: usize = 8192;
/// Numbers of a run, in the order of the columns.
pub const FIELDS: usize = 14;
/// The sequence and the time are stored as what they are above those of the run before.
const DELTAS: usize = 2;
/// Places in the columns.
const TIME: usize = 1;
const STATUS: usize = 7;
/// Larger names go by rows: the dictionaries are looked up by number.
const NAMES_MOST: usize = 1 << 22;
/// Larger sequences and times go by rows: the step between two of them is then always one of 64 bits.
const STEP_MOST: u64 = 1 << 62;

/// Runs that become one block. Reused: it allocates only until it has seen its largest block.
#[derive(Debug)]
pub struct Block {
    columns: [Vec<i64>; FIELDS],
    traces: Vec<Option<[u8; 16]>>,
    traced: bool,
    /// Distinct names in order of appearance, and where a name is among them.
    keys: Vec<u32>,
    key_at: Vec<u32>,
    queries: Vec<[u32; 3]>,
    query_at: HashMap<[u32; 3], u32>,
    last: ([u32; 3], u32),
}

/// What a reader needs before it unpacks a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Lowest sequence.
    pub first: i64,
    /// Highest sequence.
    pub last: i64,
    /// How many runs.
    pub count: usize,
    /// Lowest and highest time, µs.
    pub times: (i64, i64),
    /// Lowest and highest status.
    pub statuses: (i64, i64),
}

impl Default for Block {
    fn default() -> Self {
        Self {
            columns: Default::default(),
            traces: Vec::new(),
            traced: false,
            keys: Vec::new(),
            key_at: Vec::new(),
            queries: Vec::new(),
            query_at: HashMap::new(),
            last: ([u32::MAX; 3], 0),
        }
    }
}

fn name(id: i64) -> Option<u32> {
    u32::try_from(id).ok().filter(|&id| (id as usize) < NAMES_MOST)
}

impl Block {
    /// How many runs.
    pub fn len(&self) -> usize {
        self.columns[0].len()
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sequences, rising.
    pub fn sequences(&self) -> &[i64] {
        &self.columns[0]
    }

    /// Adds a run; false if it isn't one for a block: it must be stored by itself.
    #[inline]
    pub fn push(&mut self, row: &Row<'_>) -> bool {
        let r = &row.record;
        let above = self.columns[0].last().is_none_or(|&last| r.sequence > last as u64);
        if r.params.is_some() || !above || r.sequence >= STEP_MOST || r.time_us >= STEP_MOST {
            return false;
        }
        let (Some(key), [Some(query), Some(version), Some(connection)]) = (name(row.key), row.query.map(name)) else { return false };
        let key = self.key(key);
        let query = self.query([query, version, connection]);
        let numbers: [i64; FIELDS] = [
            r.sequence as i64,
            r.time_us as i64,
            r.duration_us as i64,
            r.queue_us.into(),
            r.database_us as i64,
            query.into(),
            key.into(),
            r.status.into(),
            row.code,
            r.rows as i64,
            r.bytes as i64,
            r.batch.into(),
            r.client.into(),
            r.served_by.into(),
        ];
        for (column, number) in self.columns.iter_mut().zip(numbers) {
            column.push(number);
        }
        self.traced |= r.trace.is_some();
        self.traces.push(r.trace);
        true
    }

    #[inline]
    fn key(&mut self, id: u32) -> u32 {
        let at = id as usize;
        if at >= self.key_at.len() {
            self.key_at.resize(at + 1, u32::MAX);
        }
        let Some(slot) = self.key_at.get_mut(at) else { return 0 };
        if *slot == u32::MAX {
            *slot = self.keys.len() as u32;
            self.keys.push(id);
        }
        *slot
    }

    #[inline]
    fn query(&mut self, ids: [u32; 3]) -> u32 {
        if self.last.0 != ids {
            let at = *self.query_at.entry(ids).or_insert_with(|| {
                self.queries.push(ids);
                self.queries.len() as u32 - 1
            });
            self.last = (ids, at);
        }
        self.last.1
    }

    /// None when it is empty.
    pub fn extent(&self) -> Option<Extent> {
        let range = |at: usize| {
            let column = self.columns.get(at)?;
            Some((column.iter().min().copied()?, column.iter().max().copied()?))
        };
        let (first, last) = range(0)?;
        Some(Extent { first, last, count: self.len(), times: range(TIME)?, statuses: range(STATUS)? })
    }

    /// The dictionary of keys: numbers of names, four bytes each.
    pub fn keys(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.keys.iter().flat_map(|id| id.to_le_bytes()));
    }

    /// The dictionary of queries: numbers of the names of query, version and connection, four bytes each.
    pub fn queries(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.queries.iter().flatten().flat_map(|id| id.to_le_bytes()));
    }

    /// The columns.
    pub fn body(&mut self, out: &mut Vec<u8>) {
        out.clear();
        out.push(FORM);
        for (at, column) in self.columns.iter_mut().enumerate() {
            if at < DELTAS {
                let mut before = 0;
                for number in column.iter_mut() {
                    (*number, before) = (*number - before, *number);
                }
                // The first is the column's own: it would widen all others.
                let first = std::mem::take(column.first_mut().unwrap_or(&mut 0));
                out.extend_from_slice(&first.to_le_bytes());
                if let Some(second) = column.get(1).copied()
                    && let Some(first) = column.first_mut()
                {
                    *first = second;
                }
            }
            encode(column, out);
        }
        out.push(self.traced.into());
        if self.traced {
            out.extend(self.traces.iter().map(|trace| u8::from(trace.is_some())));
            out.extend(self.traces.iter().flatten().flatten());
        }
        self.clear();
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.columns.iter_mut().for_each(Vec::clear);
        self.traces.clear();
        self.traced = false;
        for id in self.keys.drain(..) {
            if let Some(slot) = self.key_at.get_mut(id as usize) {
                *slot = u32::MAX;
            }
        }
        self.queries.clear();
        self.query_at.clear();
        self.last = ([u32::MAX; 3], 0);
    }
}

/// The lowest `W` bytes of each number.
fn put<const W: usize>(numbers: impl Iterator<Item = u64>, count: usize, out: &mut Vec<u8>) {
    out.push(W as u8);
    let start = out.len();
    out.resize(start + W * count, 0);
    for (slot, number) in out.get_mut(start..).unwrap_or_default().as_chunks_mut::<W>().0.iter_mut().zip(numbers) {
        if let Some(bytes) = number.to_le_bytes().first_chunk::<W>() {
            *slot = *bytes;
        }
    }
}

/// Lowest value, width of what is above it, then that of each.
fn encode(column: &[i64], out: &mut Vec<u8>) {
    let (low, high) = column.iter().fold((i64::MAX, i64::MIN), |(low, high), &n| (low.min(n), high.max(n)));
    out.extend_from_slice(&low.to_le_bytes());
    let (above, count) = (column.iter().map(|&n| n.wrapping_sub(low) as u64), column.len());
    match high.wrapping_sub(low) as u64 {
        0 => out.push(0),
        1..=0xff => put::<1>(above, count, out),
        0x100..=0xffff => put::<2>(above, count, out),
        0x1_0000..=0xffff_ffff => put::<4>(above, count, out),
        _ => put::<8>(above, count, out),
    }
}

/// The body is not of this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a block of runs")]
pub struct Unreadable;

/// A run out of a block. Numbers are in the order of the columns, query and key replaced by what the dictionaries say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// As stored; those of query and key are places in the dictionaries.
    pub numbers: [i64; FIELDS],
    /// Numbers of the names of query, version and connection.
    pub query: [u32; 3],
    /// Number of the key's name.
    pub key: u32,
    /// W3C trace id.
    pub trace: Option<[u8; 16]>,
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        self.take(1)?.first().copied().ok_or(Unreadable)
    }

    fn number(&mut self) -> Result<i64, Unreadable> {
        let bytes = self.take(8)?.try_into().map_err(|_| Unreadable)?;
        Ok(i64::from_le_bytes(bytes))
    }

    fn column(&mut self, count: usize) -> Result<Vec<i64>, Unreadable> {
        let low = self.number()?;
        let width = usize::from(self.byte()?);
        if width == 0 {
            return Ok(vec![low; count]);
        }
        if !matches!(width, 1 | 2 | 4 | 8) {
            return Err(Unreadable);
        }
        let values = self.take(width.checked_mul(count).ok_or(Unreadable)?)?.chunks_exact(width);
        Ok(values.map(|bytes| low.wrapping_add(bytes.iter().rev().fold(0, |n: u64, &b| n << 8 | u64::from(b)) as i64)).collect())
    }
}

fn ids(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect()
}

/// The runs of a block.
pub fn decode(count: usize, keys: &[u8], queries: &[u8], body: &[u8]) -> Result<Vec<Unpacked>, Unreadable> {
    if count == 0 || count > RUNS_MOST {
        return Err(Unreadable);
    }
    let mut rest = Bytes(body);
    if rest.byte()? != FORM {
        return Err(Unreadable);
    }
    let mut columns = Vec::with_capacity(FIELDS);
    for at in 0..FIELDS {
        let first = if at < DELTAS { Some(rest.number()?) } else { None };
        let mut column = rest.column(count)?;
        if let Some(mut sum) = first {
            for (n, number) in column.iter_mut().enumerate() {
                sum = if n == 0 { sum } else { sum.wrapping_add(*number) };
                *number = sum;
            }
        }
        columns.push(column);
    }
    let mut traces = vec![None; count];
    if rest.byte()? == 1 {
        let present = rest.take(count)?;
        for (trace, _) in traces.iter_mut().zip(present).filter(|(_, present)| **present == 1) {
            *trace = Some(rest.take(16)?.try_into().map_err(|_| Unreadable)?);
        }
    }
    if !rest.0.is_empty() {
        return Err(Unreadable);
    }
    let (keys, queries) = (ids(keys), ids(queries));
    let queries = queries.as_chunks::<3>().0;
    let run = |(n, trace): (usize, Option<[u8; 16]>)| {
        let mut numbers = [0; FIELDS];
        for (number, column) in numbers.iter_mut().zip(&columns) {
            *number = *column.get(n).ok_or(Unreadable)?;
        }
        let [_, _, _, _, _, query, key, ..] = numbers;
        let query = usize::try_from(query).ok().and_then(|at| queries.get(at)).ok_or(Unreadable)?;
        let key = usize::try_from(key).ok().and_then(|at| keys.get(at)).ok_or(Unreadable)?;
        Ok(Unpacked { numbers, query: *query, key: *key, trace })
    };
    traces.into_iter().enumerate().map(run).collect()
}

#[cfg(test)]
mod tests;
