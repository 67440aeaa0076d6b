//! Which statements a shared lane's connection has prepared, and what is known of their results. Pure. May reject: nothing.
use super::shape::{is_ordinal, shown, shown_in_batch};
use super::value::Kind;
use super::wire::{self, Definition, WireError};
use crate::engine::Failure;
use crate::plan::snapshot::ColumnPlan;
use crate::plan::tables::Variant;
use bytes::BytesMut;

const VARIANTS: usize = 4;

/// One statement on one connection.
#[derive(Debug, Default)]
pub enum State {
    /// Not prepared.
    #[default]
    Unknown,
    /// Its Prepare is on its way.
    Asked,
    /// Described as planned.
    Ready(Box<Ready>),
}

/// A statement that may be executed.
#[derive(Debug)]
pub struct Ready {
    /// The server's number.
    pub number: u32,
    /// The definitions that the last execution showed, one behind the other, and the end of each: equal ones aren't read again.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// How their values are read.
    pub kinds: Vec<Kind>,
}

impl Ready {
    /// Prepared just now.
    pub const fn new(number: u32) -> Self {
        Self { number, bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new() }
    }

    /// Column `at` of an execution. A batch's first is its ordinal.
    #[inline]
    pub fn take(&mut self, at: usize, body: &[u8], columns: &[ColumnPlan], batch: bool) -> Result<Option<Failure>, WireError> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        if let Some(&end) = self.ends.get(at)
            && self.bytes.get(start..end) == Some(body)
        {
            return Ok(None);
        }
        self.bytes.truncate(start);
        self.ends.truncate(at);
        self.kinds.truncate(at);
        let definition = Definition::read(body)?;
        let plan = || columns.get(at - usize::from(batch)).ok_or(Failure::Stale);
        let kind = match (batch, at) {
            (true, 0) => is_ordinal(&definition).ok_or(Failure::Stale),
            (true, _) => plan().and_then(|plan| shown_in_batch(&definition, plan)),
            (false, _) => plan().and_then(|plan| shown(&definition, plan)),
        };
        match kind {
            Ok(kind) => {
                self.bytes.extend_from_slice(body);
                self.ends.push(self.bytes.len());
                self.kinds.push(kind);
                Ok(None)
            }
            Err(failure) => Ok(Some(failure)),
        }
    }

    /// An execution showed so many.
    pub fn shown(&mut self, columns: usize) {
        self.ends.truncate(columns);
        self.kinds.truncate(columns);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

/// One query's statements.
#[derive(Debug, Default)]
pub struct Statements {
    /// Of the query.
    pub version: u64,
    states: [State; VARIANTS],
}

impl Statements {
    /// One of them.
    pub fn state(&mut self, variant: Variant) -> Option<&mut State> {
        self.states.get_mut(variant as usize)
    }

    /// Appends Close of all that is prepared.
    pub fn close_all(&mut self, out: &mut BytesMut) {
        for state in &mut self.states {
            // The answer to one that was asked for finds another version and is closed then.
            if let State::Ready(ready) = std::mem::take(state) {
                close(ready.number, out);
            }
        }
    }

    /// There is something to be closed.
    pub fn any(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::Ready(_)))
    }
}

/// Appends Close.
pub fn close(number: u32, out: &mut BytesMut) {
    wire::command(out, wire::COM_STMT_CLOSE, &number.to_le_bytes());
}

/// All queries' statements, by slot.
#[derive(Debug, Default)]
pub struct All(Vec<Statements>);

impl All {
    /// Of a query's version; statements of another one are closed first.
    pub fn entry(&mut self, (slot, version): (u32, u64), out: &mut BytesMut) -> Option<&mut Statements> {
        let at = slot as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, Statements::default);
        }
        let statements = self.0.get_mut(at)?;
        if statements.version != version {
            statements.close_all(out);
            statements.version = version;
        }
        Some(statements)
    }

    /// Of a query's version, if it is still this one.
    #[inline]
    pub fn known(&mut self, (slot, version): (u32, u64), variant: Variant) -> Option<&mut State> {
        self.0.get_mut(slot as usize).filter(|statements| statements.version == version)?.state(variant)
    }

    /// Closes what `keep` doesn't know.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool, out: &mut BytesMut) {
        for (statements, slot) in self.0.iter_mut().zip(0u32..) {
            if statements.any() && !keep(slot, statements.version) {
                statements.close_all(out);
                statements.version = 0;
            }
        }
    }
}
