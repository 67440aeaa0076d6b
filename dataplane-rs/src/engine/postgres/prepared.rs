//! Which statements a shared lane's connection has prepared, and the messages that ask them. Pure. May reject: nothing.
use super::{arrays, frontend};
use crate::engine::batch::Batch;
use crate::engine::shared::Question;
use crate::plan::tables::Variant;
use bytes::BytesMut;

/// All kinds of statements that a query has, as `Prepared::states` has them.
const VARIANTS: [Variant; 4] = [Variant::Plain, Variant::First, Variant::Next, Variant::Batch];

/// One statement on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Not prepared.
    #[default]
    Unknown,
    /// Parse and Describe are on their way.
    Sent,
    /// Described as planned.
    Ready,
    /// Described otherwise than planned.
    Stale,
}

/// One query's statements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prepared {
    /// Of the query.
    pub version: u64,
    /// By `Variant`.
    pub states: [State; VARIANTS.len()],
}

impl Prepared {
    /// There is something to be closed.
    pub fn any(&self) -> bool {
        self.states != [State::Unknown; VARIANTS.len()]
    }
}

/// The entry of a query's version; statements of another one are closed first.
fn entry<'a>(prepared: &'a mut Vec<Prepared>, out: &mut BytesMut, (slot, version): (u32, u64)) -> Option<&'a mut Prepared> {
    let at = slot as usize;
    if at >= prepared.len() {
        prepared.resize(at + 1, Prepared::default());
    }
    let prepared = prepared.get_mut(at)?;
    if prepared.version != version {
        close_all(prepared, out);
        prepared.version = version;
    }
    Some(prepared)
}

/// Appends Close, Parse and Describe unless the statement is prepared; whether it did.
#[inline]
fn prepare(prepared: &mut Prepared, variant: Variant, name: &[u8], sql: &str, oids: &[u32], out: &mut BytesMut) -> bool {
    let Some(state @ (State::Unknown | State::Stale)) = prepared.states.get_mut(variant as usize) else { return false };
    *state = State::Sent;
    frontend::close(name, out);
    frontend::parse(name, sql, oids, out);
    frontend::describe(name, out);
    true
}

/// Appends a call's messages; true when they prepare its statement first.
#[inline]
pub fn encode<Q: Question>(prepared: &mut Vec<Prepared>, out: &mut BytesMut, call: &Q) -> bool {
    let identity = call.identity();
    let Some(prepared) = entry(prepared, out, identity) else { return false };
    let name = frontend::name(identity.1, call.variant());
    let statement = call.statement();
    let prepares = prepare(prepared, call.variant(), &name, &statement.sql, &statement.oids, out);
    frontend::bind(&name, statement.oids.len() as u16, call.values(), out);
    frontend::execute(call.limit(), out);
    prepares
}

/// Appends a batch's messages; whether they prepare its statement first. None: it can't be bound, nothing was appended that matters.
pub fn encode_batch<Q: Question>(prepared: &mut Vec<Prepared>, out: &mut BytesMut, batch: &mut Batch<Q>) -> Option<bool> {
    let call = batch.any()?;
    let identity = call.identity();
    let statement = call.coalesced()?.statement.clone();
    let prepared = entry(prepared, out, identity)?;
    let name = frontend::name(identity.1, Variant::Batch);
    let start = out.len();
    let before = *prepared;
    let prepares = prepare(prepared, Variant::Batch, &name, &statement.sql, &statement.oids, out);
    if !arrays::bind(&name, &statement.oids, batch, out) {
        out.truncate(start);
        *prepared = before;
        return None;
    }
    frontend::execute(0, out);
    Some(prepares)
}

/// Appends a statement of ours.
pub fn own(out: &mut BytesMut, sql: &str) {
    const UNNAMED: &[u8] = b"\0";
    frontend::parse(UNNAMED, sql, &[], out);
    frontend::bind(UNNAMED, 0, &[], out);
    frontend::execute(0, out);
}

/// Appends Close of all that is prepared.
pub fn close_all(prepared: &mut Prepared, out: &mut BytesMut) {
    for (state, variant) in prepared.states.iter_mut().zip(VARIANTS) {
        if std::mem::take(state) != State::Unknown {
            frontend::close(&frontend::name(prepared.version, variant), out);
        }
    }
}
