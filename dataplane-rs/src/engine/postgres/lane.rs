//! The shared lane's protocol on one PostgreSQL connection: many callers' statements in one flush, each its own Bind and
//! Execute, one Sync for all. Bytes in, bytes out, no IO of its own.
//!
//! When one fails, the server skips the rest up to the Sync: those are asked again, each with a Sync of its own, so that only
//! the guilty caller fails. May reject: bytes that are not PostgreSQL's protocol, or an answer beyond `LARGEST` (`Broken`): the
//! connection is of no further use, and whoever waits is handed back by `abandon`.
use super::frontend;
use super::wire::{self, Frame, ServerError};
use crate::engine::Failure;
use crate::engine::shared::{Answer, Broken, LARGEST, Place, Question, Rows};
use crate::plan::tables::Variant;
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;

#[derive(Debug)]
struct Flight<Q> {
    call: Q,
    /// Its messages begin with Close, Parse and Describe.
    prepares: bool,
    /// Asked a second time after its statement had to be prepared anew.
    renewed: bool,
    /// Already answered otherwise (its deadline passed): what comes is dropped.
    told: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    /// Parse and Describe are on their way.
    Sent,
    Ready,
    /// Described otherwise than planned.
    Stale,
}

#[derive(Clone, Copy, Debug, Default)]
struct Prepared {
    version: u64,
    states: [State; 3],
}

/// One connection's protocol state.
#[derive(Debug)]
pub struct Pipeline<Q> {
    out: BytesMut,
    input: Vec<u8>,
    flying: VecDeque<Flight<Q>>,
    /// Syncs that were sent and not answered by ReadyForQuery.
    syncs: u32,
    /// Each call in flight has its own Sync.
    singly: bool,
    /// An error was read; the rest of this flush is skipped.
    failed: bool,
    /// The error was a timeout: the rest is asked elsewhere.
    slow: bool,
    /// Of `input`: messages before this were looked at.
    scanned: usize,
    /// Rows of the first call in flight, from where `scanned` counts.
    rows: Vec<Place>,
    prepared: Vec<Prepared>,
}

impl<Q: Question> Default for Pipeline<Q> {
    fn default() -> Self {
        Self {
            out: BytesMut::new(),
            input: Vec::new(),
            flying: VecDeque::new(),
            syncs: 0,
            singly: false,
            failed: false,
            slow: false,
            scanned: 0,
            rows: Vec::new(),
            prepared: Vec::new(),
        }
    }
}

impl<Q: Question> Pipeline<Q> {
    /// Nothing is under way.
    pub fn idle(&self) -> bool {
        self.syncs == 0 && self.flying.is_empty()
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        self.flying.len()
    }

    /// No call is under way.
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// Calls under way, first the one whose answer comes next, each with whether it was told otherwise.
    pub fn calls(&mut self, mut each: impl FnMut(&mut Q, &mut bool)) {
        self.flying.iter_mut().for_each(|flight| each(&mut flight.call, &mut flight.told));
    }

    /// Bytes to be sent.
    pub fn out(&mut self) -> &mut BytesMut {
        &mut self.out
    }

    /// Adds a call to the flush that `sync` ends. Only while `idle`, or between two of these.
    #[inline]
    pub fn ask(&mut self, call: Q) {
        let prepares = encode(&mut self.prepared, &mut self.out, &call);
        self.flying.push_back(Flight { call, prepares, renewed: false, told: false });
    }

    /// Ends the flush.
    pub fn sync(&mut self) {
        frontend::sync(&mut self.out);
        self.syncs += 1;
        self.singly = false;
    }

    /// Closes the statements of versions that `keep` doesn't know. Goes out with the next flush.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool) {
        for (prepared, slot) in self.prepared.iter_mut().zip(0u32..) {
            if prepared.states != [State::Unknown; 3] && !keep(slot, prepared.version) {
                close_all(prepared, &mut self.out);
            }
        }
    }

    /// Takes what the connection brought.
    #[inline]
    pub fn feed(&mut self, data: &[u8], tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        if self.input.is_empty() {
            let used = self.scan(data, tell)?;
            self.input.extend_from_slice(data.get(used..).unwrap_or_default());
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(data);
            let used = self.scan(&input, tell)?;
            if used == input.len() {
                input.clear();
            } else {
                input.drain(..used);
            }
            self.input = input;
        }
        if self.input.is_empty() && self.input.capacity() > 256 << 10 {
            self.input = Vec::new();
        }
        if self.input.len() > LARGEST { Err(Broken::TooLarge) } else { Ok(()) }
    }

    /// Hands back everybody: after `Broken::TooLarge` the first as `Slow`, the others as `Again`.
    pub fn abandon(&mut self, why: Broken, tell: &mut impl FnMut(Q, Answer<'_>)) {
        let mut guilty = why == Broken::TooLarge;
        for flight in self.flying.drain(..).filter(|flight| !flight.told) {
            tell(flight.call, if std::mem::take(&mut guilty) { Answer::Slow } else { Answer::Again });
        }
    }

    fn scan(&mut self, data: &[u8], tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<usize, Broken> {
        let (mut at, mut done) = (self.scanned, 0);
        while let Some(frame) = wire::frame(data.get(at..).unwrap_or_default(), 1 << 30).map_err(|_| Broken::Protocol)? {
            let end = at + frame.size();
            match frame.tag {
                b'D' => {
                    // Behind the tag, the length and the column count.
                    let place = u32::try_from(at + 7).ok().zip(u32::try_from(end).ok()).filter(|(start, end)| start <= end);
                    let (start, end) = place.ok_or(Broken::Protocol)?;
                    self.rows.push(Place { ord: 0, start, end });
                }
                b'C' | b's' | b'I' => {
                    let mut places = std::mem::take(&mut self.rows);
                    let told = self.complete(Rows::new(data, &places), tell);
                    places.clear();
                    self.rows = places;
                    told?;
                }
                _ => self.message(frame, tell)?,
            }
            at = end;
            if self.rows.is_empty() {
                done = end;
            }
        }
        self.scanned = at - done;
        for place in &mut self.rows {
            (place.start, place.end) = (place.start.saturating_sub(done as u32), place.end.saturating_sub(done as u32));
        }
        Ok(done)
    }

    /// The first call in flight has all its rows.
    #[inline]
    fn complete(&mut self, rows: Rows<'_>, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        let flight = self.flying.pop_front().ok_or(Broken::Protocol)?;
        if !flight.told {
            let stale = self.state(&flight.call).is_some_and(|state| *state == State::Stale);
            tell(flight.call, if stale { Answer::Failed(Failure::Stale) } else { Answer::Rows(rows) });
        }
        Ok(())
    }

    fn state(&mut self, call: &Q) -> Option<&mut State> {
        let (slot, version) = call.identity();
        let prepared = self.prepared.get_mut(slot as usize).filter(|prepared| prepared.version == version)?;
        prepared.states.get_mut(call.variant() as usize)
    }

    fn message(&mut self, frame: Frame<'_>, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        match frame.tag {
            b'2' | b'1' | b'3' | b'N' | b'S' | b'A' => Ok(()), // BindComplete and its like; notices; settings
            b't' => {
                let flight = self.flying.front().ok_or(Broken::Protocol)?;
                let mut rest = frame.body.get(2..).ok_or(Broken::Protocol)?;
                let same = flight.call.statement().oids.iter().all(|&oid| rest.try_get_u32() == Ok(oid)) && rest.is_empty();
                self.described(same)
            }
            b'T' => {
                let flight = self.flying.front().ok_or(Broken::Protocol)?;
                let same = wire::matches(frame.body, flight.call.columns()).map_err(|_| Broken::Protocol)?;
                self.described(same)
            }
            b'n' => {
                let none = self.flying.front().ok_or(Broken::Protocol)?.call.columns().is_empty();
                self.described(none)
            }
            b'E' => self.error(wire::server_error(frame.body).map_err(|_| Broken::Protocol)?, tell),
            b'Z' => self.ready(tell),
            _ => Err(Broken::Protocol),
        }
    }

    fn described(&mut self, same: bool) -> Result<(), Broken> {
        let Self { flying, prepared, .. } = self;
        let call = &flying.front().ok_or(Broken::Protocol)?.call;
        let (slot, version) = call.identity();
        let prepared = prepared.get_mut(slot as usize).filter(|prepared| prepared.version == version).ok_or(Broken::Protocol)?;
        if let Some(state) = prepared.states.get_mut(call.variant() as usize) {
            *state = match (*state, same) {
                (State::Stale, _) | (_, false) => State::Stale,
                (State::Unknown, true) => State::Unknown, // forgotten meanwhile: its Close is on its way
                (State::Sent | State::Ready, true) => State::Ready,
            };
        }
        Ok(())
    }

    fn error(&mut self, error: ServerError, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        self.rows.clear();
        if error.fatal {
            return Err(Broken::Closing);
        }
        let mut flight = self.flying.pop_front().ok_or(Broken::Protocol)?;
        // A statement whose Parse or Describe failed, or that the server doesn't know (any more), is prepared anew.
        let lost = error.revalidate || &error.code == b"26000";
        if let Some(state) = self.state(&flight.call)
            && (*state == State::Sent || lost)
        {
            *state = State::Unknown;
        }
        self.failed = true;
        if flight.told {
            return Ok(());
        }
        if lost && !flight.renewed {
            flight.renewed = true;
            // Asked again behind the others; its Sync is its own.
            if self.singly {
                self.again_singly(flight);
            } else {
                self.flying.push_front(flight);
            }
            return Ok(());
        }
        match failure(&error) {
            Some(failure) => tell(flight.call, Answer::Failed(failure)),
            None => {
                self.slow = !self.singly;
                tell(flight.call, Answer::Slow);
            }
        }
        Ok(())
    }

    fn again_singly(&mut self, mut flight: Flight<Q>) {
        flight.prepares = encode(&mut self.prepared, &mut self.out, &flight.call);
        frontend::sync(&mut self.out);
        self.syncs += 1;
        self.flying.push_back(flight);
    }

    fn ready(&mut self, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        self.syncs = self.syncs.checked_sub(1).ok_or(Broken::Protocol)?;
        let (failed, slow) = (std::mem::take(&mut self.failed), std::mem::take(&mut self.slow));
        if self.singly {
            return Ok(());
        }
        if !failed {
            return if self.flying.is_empty() { Ok(()) } else { Err(Broken::Protocol) };
        }
        let skipped = std::mem::take(&mut self.flying);
        // A Parse that was skipped with the rest never reached the server.
        for flight in skipped.iter().filter(|flight| flight.prepares) {
            if let Some(state) = self.state(&flight.call)
                && *state == State::Sent
            {
                *state = State::Unknown;
            }
        }
        self.singly = true;
        for flight in skipped.into_iter().filter(|flight| !flight.told) {
            if slow {
                tell(flight.call, Answer::Again);
            } else {
                self.again_singly(flight);
            }
        }
        Ok(())
    }
}

/// What the guilty caller is told; None for a timeout.
fn failure(error: &ServerError) -> Option<Failure> {
    match &error.code {
        b"57014" => None,
        [b'0', b'8', ..] | [b'5', b'3', ..] | b"25006" => Some(Failure::Unavailable),
        [b'5', b'7', b'P', ..] => Some(Failure::Unavailable),
        b"0A000" if error.revalidate => Some(Failure::Stale),
        code => Some(Failure::Refused(*code)),
    }
}

/// Appends a call's messages; true when they prepare its statement first.
#[inline]
fn encode<Q: Question>(prepared: &mut Vec<Prepared>, out: &mut BytesMut, call: &Q) -> bool {
    let (slot, version) = call.identity();
    let at = slot as usize;
    if at >= prepared.len() {
        prepared.resize(at + 1, Prepared::default());
    }
    let Some(prepared) = prepared.get_mut(at) else { return false };
    if prepared.version != version {
        close_all(prepared, out);
        prepared.version = version;
    }
    let name = frontend::name(version, call.variant());
    let statement = call.statement();
    let mut prepares = false;
    if let Some(state @ (State::Unknown | State::Stale)) = prepared.states.get_mut(call.variant() as usize) {
        *state = State::Sent;
        prepares = true;
        frontend::close(&name, out);
        frontend::parse(&name, &statement.sql, &statement.oids, out);
        frontend::describe(&name, out);
    }
    frontend::bind(&name, statement.oids.len() as u16, call.values(), out);
    frontend::execute(call.limit(), out);
    prepares
}

fn close_all(prepared: &mut Prepared, out: &mut BytesMut) {
    for (state, variant) in prepared.states.iter_mut().zip([Variant::Plain, Variant::First, Variant::Next]) {
        if std::mem::take(state) != State::Unknown {
            frontend::close(&frontend::name(prepared.version, variant), out);
        }
    }
}
