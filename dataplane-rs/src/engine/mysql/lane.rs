//! The shared lane's protocol on one MySQL connection: many callers' executions in one flush, each its own or many of one query as a
//! batch. The server works commands off in order, and one that fails skips no other. Bytes in, bytes out, no IO of its own.
//!
//! A statement is prepared first: who asks it waits until the server has said its number, others go ahead meanwhile. May reject:
//! bytes that are not MySQL's protocol, or an answer beyond `LARGEST` (`Broken`): the connection is of no further use, and whoever waits
//! is handed back by `abandon`.
use super::failure::{is_fatal, is_unprepared, of_error};
use super::json;
use super::member::{Phase, Step, read};
use super::prepared::{All, Ready, State, close};
use super::shape::{is_described, is_ordinal, shown_in_batch};
use super::value;
use super::wire::{self, Definition, ServerError};
use crate::engine::Failure;
use crate::engine::batch::{Batch, Shadow};
use crate::engine::shared::{Answer, Broken, Ended, How, LARGEST, Place, Question, Rows};
use crate::plan::coalescing::Stopped;
use crate::plan::tables::Variant;
use bytes::BytesMut;
use std::collections::VecDeque;

/// Batches kept for reuse.
const SPARE: usize = 8;
/// A row of a shared lane has a packet of this size at most.
const MOST: usize = LARGEST;
/// What cannot be bound.
const UNBINDABLE: Failure = Failure::Refused(*b"22000");

#[derive(Debug)]
struct Flight<Q> {
    call: Q,
    /// Asked a second time after its statement had to be prepared anew.
    renewed: bool,
    /// Already answered otherwise (its deadline passed): what comes is dropped.
    told: bool,
    /// Of a batch that failed.
    dissolved: bool,
}

impl<Q> Flight<Q> {
    const fn new(call: Q) -> Self {
        Self { call, renewed: false, told: false, dissolved: false }
    }
}

#[derive(Debug)]
struct Many<Q> {
    batch: Box<Batch<Q>>,
    renewed: bool,
    /// In a transaction of its own, followed by its questions one by one.
    shadowed: bool,
}

/// What the server has been sent and not answered, in its order.
#[derive(Debug)]
enum Item<Q> {
    One(Flight<Q>),
    Many(Many<Q>),
    /// A question of the batch in `shadow`, by itself.
    Echo,
    /// A statement of ours; true: it ends the shadow's transaction.
    Own(bool),
    /// The answer to one of ours tells this call that it cannot be bound.
    Unbindable(Flight<Q>),
    /// The query's slot and version, and which of its statements.
    Prepare((u32, u64), Variant),
}

/// One connection's protocol state.
#[derive(Debug)]
pub struct Pipeline<Q> {
    out: BytesMut,
    input: Vec<u8>,
    flying: VecDeque<Item<Q>>,
    /// Who waits for a Prepare.
    waiting: Vec<Item<Q>>,
    /// Of the first item in flight.
    phase: Option<Phase>,
    /// Columns that it has shown.
    shown: usize,
    /// It showed what was not planned.
    wrong: Option<Failure>,
    /// Of a Prepare: the number that it said.
    number: Option<u32>,
    same: bool,
    /// Its rows in DataRow form, and where each stands.
    rows: Vec<u8>,
    places: Vec<Place>,
    prepared: All,
    /// The batch whose questions are being answered one by one.
    shadow: Option<Shadow<Q>>,
    /// A batch's value is made here.
    value: Vec<u8>,
    framed: Vec<u8>,
    /// Slots of the batches of this flush.
    batches: Vec<u32>,
    ended: Vec<Ended>,
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Batch<Q>>>,
    hasher: foldhash::fast::RandomState,
}

impl<Q: Question> Default for Pipeline<Q> {
    fn default() -> Self {
        Self {
            out: BytesMut::new(),
            input: Vec::new(),
            flying: VecDeque::new(),
            waiting: Vec::new(),
            phase: None,
            shown: 0,
            wrong: None,
            number: None,
            same: true,
            rows: Vec::new(),
            places: Vec::new(),
            prepared: All::default(),
            shadow: None,
            value: Vec::new(),
            framed: Vec::new(),
            batches: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl<Q: Question> Pipeline<Q> {
    /// A batch has the session's own time limit, as any other statement: the server says whose it was.
    pub const fn batch_is_next(&self) -> bool {
        false
    }

    /// Nothing is under way.
    #[inline]
    pub fn idle(&self) -> bool {
        self.flying.is_empty() && self.waiting.is_empty()
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        let flying = self.flying.iter().chain(&self.waiting).map(|item| match item {
            Item::One(_) | Item::Unbindable(_) => 1,
            Item::Many(many) => many.batch.len(),
            Item::Echo | Item::Own(_) | Item::Prepare(..) => 0,
        });
        flying.sum::<usize>() + self.shadow.as_ref().map_or(0, |shadow| shadow.batch.len())
    }

    /// No call is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls under way, each with whether it was told otherwise.
    pub fn calls(&mut self, mut each: impl FnMut(&mut Q, &mut bool)) {
        if let Some(shadow) = &mut self.shadow {
            shadow.batch.each(&mut each);
        }
        for item in self.flying.iter_mut().chain(&mut self.waiting) {
            match item {
                Item::One(flight) | Item::Unbindable(flight) => each(&mut flight.call, &mut flight.told),
                Item::Many(many) => many.batch.each(&mut each),
                Item::Echo | Item::Own(_) | Item::Prepare(..) => {}
            }
        }
    }

    /// Bytes to be sent.
    pub fn out(&mut self) -> &mut BytesMut {
        &mut self.out
    }

    /// Batches of a query in this flush.
    pub fn batches(&self, slot: u32) -> usize {
        if self.idle() { 0 } else { self.batches.iter().filter(|&&batch| batch == slot).count() }
    }

    /// Batches that ended since the last look.
    #[inline]
    pub fn ended(&mut self) -> std::vec::Drain<'_, Ended> {
        self.ended.drain(..)
    }

    /// Adds a call.
    #[inline]
    pub fn ask(&mut self, mut call: Q) {
        call.shares(1);
        self.start(Item::One(Flight::new(call)));
    }

    /// Adds a call: no other ever notices its failure.
    pub fn ask_apart(&mut self, call: Q) {
        self.ask(call);
    }

    /// Adds calls of one query as one statement.
    pub fn ask_batch(&mut self, calls: impl Iterator<Item = Q>) {
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.fill(calls, &self.hasher);
        let Some((coalesced, slot)) = batch.any().and_then(|call| Some((call.coalesced()?, call.identity().0))) else {
            // Nobody, or a query that can't be: each has its own.
            return batch.hand_out(|call| self.ask(call));
        };
        if self.idle() {
            self.batches.clear();
        }
        let shadowed = coalesced.verdict.shadowed();
        self.batches.push(slot);
        self.start(Item::Many(Many { batch, renewed: false, shadowed }));
    }

    /// Nothing holds what was asked back.
    pub fn sync(&mut self) {}

    /// Closes the statements of versions that `keep` doesn't know. Goes out with the next flush.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool) {
        self.prepared.forget(keep, &mut self.out);
    }

    /// The number of a statement; asks for it and says None when it has none yet.
    #[inline]
    fn number(&mut self, identity: (u32, u64), variant: Variant, sql: &str) -> Option<u32> {
        let Self { prepared, out, .. } = self;
        let state = prepared.entry(identity, out)?.state(variant)?;
        match state {
            State::Ready(ready) => return Some(ready.number),
            State::Asked => return None,
            State::Unknown => *state = State::Asked,
        }
        // The text of a statement is far below a packet's bound.
        wire::command(&mut self.out, wire::COM_STMT_PREPARE, sql.as_bytes());
        self.flying.push_back(Item::Prepare(identity, variant));
        None
    }

    /// Sends an item, or lets it wait for its statement.
    #[inline]
    fn start(&mut self, item: Item<Q>) {
        match item {
            Item::One(flight) => {
                let (identity, variant) = (flight.call.identity(), flight.call.variant());
                match self.number(identity, variant, &flight.call.statement().sql) {
                    Some(number) => self.execute(number, flight),
                    None => self.waiting.push(Item::One(flight)),
                }
            }
            Item::Many(many) => self.start_many(many),
            Item::Unbindable(_) | Item::Echo | Item::Own(_) | Item::Prepare(..) => {}
        }
    }

    #[inline]
    fn execute(&mut self, number: u32, flight: Flight<Q>) {
        if execution(&mut self.out, number, &flight.call.statement().oids, flight.call.values()) {
            self.flying.push_back(Item::One(flight));
        } else {
            wire::command(&mut self.out, wire::COM_QUERY, b"DO 0");
            self.flying.push_back(Item::Unbindable(flight));
        }
    }

    fn start_many(&mut self, many: Many<Q>) {
        let Some(call) = many.batch.any() else { return self.recycle(many.batch) };
        let Some(coalesced) = call.coalesced() else { return self.dissolve(many.batch) };
        let (identity, statement) = (call.identity(), coalesced.statement.clone());
        let batch = self.number(identity, Variant::Batch, &statement.sql);
        let own = if many.shadowed {
            let single = many.batch.any().map(|call| (call.variant(), call.statement().sql.clone()));
            let Some((variant, sql)) = single else { return };
            self.number(identity, variant, &sql)
        } else {
            Some(0)
        };
        let (Some(number), Some(own)) = (batch, own) else { return self.waiting.push(Item::Many(many)) };
        let Self { value, framed, out, .. } = self;
        if !json::write(&statement.oids, &many.batch, value) {
            return self.dissolve(many.batch);
        }
        let Ok(length) = i32::try_from(value.len()) else { return self.dissolve(many.batch) };
        framed.clear();
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(value);
        if !many.shadowed {
            if execution(out, number, &[253], framed) {
                self.flying.push_back(Item::Many(many));
            } else {
                self.dissolve(many.batch);
            }
            return;
        }
        let start = out.len();
        wire::command(out, wire::COM_QUERY, b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
        wire::command(out, wire::COM_QUERY, b"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY");
        let questions = many.batch.asked();
        let bound = execution(out, number, &[253], framed)
            && (0..questions).all(|question| {
                let asker = many.batch.asker(question);
                asker.is_some_and(|asker| execution(out, own, &asker.statement().oids, asker.values()))
            });
        if !bound {
            out.truncate(start);
            return self.dissolve(many.batch);
        }
        wire::command(out, wire::COM_QUERY, b"COMMIT");
        self.flying.extend([Item::Own(false), Item::Own(false), Item::Many(many)]);
        self.flying.extend((0..questions).map(|_| Item::Echo));
        self.flying.push_back(Item::Own(true));
    }

    /// Asks each caller of a batch alone.
    fn dissolve(&mut self, mut batch: Box<Batch<Q>>) {
        batch.hand_out(|mut call| {
            call.shares(1);
            self.start(Item::One(Flight { dissolved: true, ..Flight::new(call) }));
        });
        self.recycle(batch);
    }

    fn recycle(&mut self, mut batch: Box<Batch<Q>>) {
        batch.clear();
        if self.spare.len() < SPARE {
            self.spare.push(batch);
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
        Ok(())
    }

    fn scan(&mut self, data: &[u8], tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<usize, Broken> {
        let mut at = 0;
        loop {
            let packet = match wire::packet(data.get(at..).unwrap_or_default(), MOST) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(at),
                Err(wire::WireError::TooLong) => return Err(Broken::TooLarge),
                Err(wire::WireError::Malformed) => return Err(Broken::Protocol),
            };
            at += packet.size;
            self.packet(&packet.body, tell)?;
            if self.rows.len() > LARGEST {
                return Err(Broken::TooLarge);
            }
        }
    }

    #[inline]
    fn packet(&mut self, body: &[u8], tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        let phase = match (self.phase, self.flying.front()) {
            (Some(phase), Some(_)) => phase,
            (None, Some(Item::Prepare(..))) => Phase::Prepare,
            (None, Some(_)) => Phase::Head,
            // Said on its own: it closes the connection.
            (_, None) => return Err(if body.first() == Some(&0xFF) { Broken::Closing } else { Broken::Protocol }),
        };
        // A result's own definitions are compared as bytes: see `Ready`.
        if let Phase::Definitions(left @ 1..) = phase {
            self.definition(body)?;
            self.phase = Some(Phase::Definitions(left - 1));
            return Ok(());
        }
        let (step, next, status) = read(phase, body).map_err(|_| Broken::Protocol)?;
        if status.is_some_and(|status| status & 8 != 0) {
            return Err(Broken::Protocol);
        }
        self.phase = (next != Phase::Idle).then_some(next);
        match step {
            Step::Row(row) => self.row(row)?,
            Step::Definition(definition) => self.described(&definition)?,
            Step::Prepared(prepared) => (self.number, self.shown, self.same) = (Some(prepared.statement), 0, true),
            Step::Columns(_) => self.shown = 0,
            Step::Failed(error) => return self.failed(error, tell),
            Step::Done(_) | Step::Nothing => {}
        }
        if next == Phase::Idle { self.complete(matches!(phase, Phase::Head), tell) } else { Ok(()) }
    }

    /// A column of an execution.
    #[inline]
    fn definition(&mut self, body: &[u8]) -> Result<(), Broken> {
        let Self { flying, prepared, shadow, shown, wrong, .. } = self;
        let (call, batch) = match asker(flying.front(), shadow.as_ref()) {
            Some(found) => found,
            None => return Ok(()),
        };
        let variant = if batch { Variant::Batch } else { call.variant() };
        if let Some(State::Ready(ready)) = prepared.known(call.identity(), variant) {
            let failure =
                if wrong.is_some() { None } else { ready.take(*shown, body, call.columns(), batch).map_err(|_| Broken::Protocol)? };
            if failure.is_some() {
                *wrong = failure;
            }
        }
        *shown += 1;
        Ok(())
    }

    /// A column of a Prepare.
    fn described(&mut self, definition: &Definition<'_>) -> Result<(), Broken> {
        let Some(Item::Prepare(identity, variant)) = self.flying.front() else { return Ok(()) };
        let (identity, variant) = (*identity, *variant);
        let at = self.shown;
        self.shown += 1;
        // Somebody of those who wait for it knows what is planned.
        let Some((call, batch)) = waiter(&self.waiting, identity, variant) else { return Ok(()) };
        let planned = match (batch, at) {
            (true, 0) => is_ordinal(definition).is_some(),
            (true, _) => call.columns().get(at - 1).is_some_and(|plan| shown_in_batch(definition, plan).is_ok()),
            (false, _) => call.columns().get(at).is_some_and(|plan| is_described(definition, plan)),
        };
        self.same &= planned;
        Ok(())
    }

    #[inline]
    fn row(&mut self, body: &[u8]) -> Result<(), Broken> {
        let Self { flying, prepared, shadow, rows, places, wrong, .. } = self;
        let Some((call, batch)) = asker(flying.front(), shadow.as_ref()) else { return Ok(()) };
        if wrong.is_some() || (!batch && call.limit() > 0 && places.len() >= call.limit() as usize) {
            return Ok(());
        }
        let variant = if batch { Variant::Batch } else { call.variant() };
        let Some(State::Ready(ready)) = prepared.known(call.identity(), variant) else { return Ok(()) };
        let start = rows.len();
        if value::row(body, &ready.kinds, rows).is_err() {
            *wrong = Some(Failure::Protocol);
            return Ok(());
        }
        let place = |position: usize| u32::try_from(position).map_err(|_| Broken::TooLarge);
        let mut place = Place { ord: 0, start: place(start)?, end: place(rows.len())? };
        if batch {
            crate::engine::batch::ordinal(rows, &mut place)?;
        }
        places.push(place);
        Ok(())
    }

    /// The first item in flight has its whole answer. `bare`: an OK without a result.
    #[inline]
    fn complete(&mut self, bare: bool, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        let mut wrong = self.wrong.take();
        if let Some((call, batch)) = asker(self.flying.front(), self.shadow.as_ref()) {
            let expected = call.columns().len() + usize::from(batch);
            let shown = if bare { 0 } else { self.shown };
            if shown != expected {
                wrong = wrong.or(Some(Failure::Stale));
            }
            let variant = if batch { Variant::Batch } else { call.variant() };
            if let Some(State::Ready(ready)) = self.prepared.known(call.identity(), variant) {
                ready.shown(shown);
            }
        }
        match self.flying.pop_front() {
            Some(Item::One(flight)) => {
                if !flight.told {
                    tell(flight.call, wrong.map_or(Answer::Rows(Rows::new(&self.rows, &self.places)), Answer::Failed));
                }
            }
            Some(Item::Many(many)) => self.complete_batch(many, wrong, tell)?,
            Some(Item::Echo) => match &mut self.shadow {
                Some(shadow) if wrong.is_none() => shadow.single(&self.rows, &self.places),
                Some(_) => self.back_from_shadow(),
                None => {}
            },
            Some(Item::Own(true)) => self.settle(tell),
            Some(Item::Own(false)) => {}
            Some(Item::Unbindable(flight)) => self.refused(flight, UNBINDABLE, tell),
            Some(Item::Prepare(identity, variant)) => self.prepared(identity, variant, tell),
            None => return Err(Broken::Protocol),
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.places.clear();
        self.shown = 0;
        if self.rows.capacity() > 1 << 20 {
            self.rows = Vec::new();
        }
    }

    fn refused(&mut self, flight: Flight<Q>, failure: Failure, tell: &mut impl FnMut(Q, Answer<'_>)) {
        if flight.told {
            return;
        }
        if flight.dissolved
            && let Some(coalesced) = flight.call.coalesced()
        {
            coalesced.verdict.excused();
        }
        tell(flight.call, Answer::Failed(failure));
    }

    fn complete_batch(&mut self, mut many: Many<Q>, wrong: Option<Failure>, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        if wrong.is_some() {
            self.misshapen(many.batch);
            return Ok(());
        }
        if let Err(broken) = many.batch.sort(&mut self.places) {
            self.flying.push_front(Item::Many(many));
            return Err(broken);
        }
        if many.shadowed {
            self.shadow = Some(Shadow::new(many.batch, &self.rows, &self.places));
            return Ok(());
        }
        if let Some(coalesced) = many.batch.any().and_then(Question::coalesced) {
            coalesced.verdict.answered();
        }
        self.end_of(&many.batch, How::Answered);
        many.batch.answer(&self.rows, &self.places, tell);
        self.recycle(many.batch);
        Ok(())
    }

    /// The batch statement is not described as planned.
    fn misshapen(&mut self, batch: Box<Batch<Q>>) {
        if batch.any().and_then(Question::coalesced).is_some_and(|coalesced| coalesced.verdict.stop(Stopped::Shape)) {
            self.end_of(&batch, How::Shape);
        }
        self.dissolve(batch);
    }

    fn back_from_shadow(&mut self) {
        if let Some(shadow) = self.shadow.take() {
            self.dissolve(shadow.batch);
        }
    }

    fn end_of(&mut self, batch: &Batch<Q>, how: How) {
        if let Some(call) = batch.any() {
            let (identity, query) = (call.identity(), call.query_name());
            self.ended.push(Ended { identity, query, callers: batch.len(), asked: batch.asked(), how });
        }
    }

    /// The shadow's transaction has ended.
    fn settle(&mut self, tell: &mut impl FnMut(Q, Answer<'_>)) {
        let Some(shadow) = self.shadow.take() else { return };
        let equal = shadow.equal();
        if let Some(coalesced) = shadow.batch.any().and_then(Question::coalesced) {
            if equal {
                coalesced.verdict.equal();
                coalesced.verdict.answered();
            } else {
                coalesced.verdict.stop(Stopped::Unequal);
            }
        }
        self.end_of(&shadow.batch, if equal { How::Equal } else { How::Unequal });
        let batch = shadow.answer(tell);
        self.recycle(batch);
    }

    /// Takes those out who wait for this statement.
    fn waiters(&mut self, identity: (u32, u64), variant: Variant) -> Vec<Item<Q>> {
        let waits = |item: &mut Item<Q>| match item {
            Item::One(flight) => flight.call.identity() == identity && flight.call.variant() == variant,
            Item::Many(many) => many.batch.any().is_some_and(|call| {
                call.identity() == identity && (variant == Variant::Batch || (many.shadowed && call.variant() == variant))
            }),
            _ => false,
        };
        self.waiting.extract_if(.., waits).collect()
    }

    /// A statement has its number.
    fn prepared(&mut self, identity: (u32, u64), variant: Variant, tell: &mut impl FnMut(Q, Answer<'_>)) {
        let Some(number) = self.number.take() else { return };
        let expected = waiter(&self.waiting, identity, variant).map(|(call, batch)| call.columns().len() + usize::from(batch));
        let same = self.same && expected.is_none_or(|expected| expected == self.shown);
        let Self { prepared, out, .. } = self;
        match prepared.known(identity, variant) {
            Some(state) if same => *state = State::Ready(Box::new(Ready::new(number))),
            Some(state) => {
                *state = State::Unknown;
                close(number, out);
            }
            // Another version has taken the slot meanwhile.
            None => close(number, out),
        }
        for item in self.waiters(identity, variant) {
            match item {
                Item::One(flight) if flight.told => {}
                Item::Many(many) if !same && variant == Variant::Batch => self.misshapen(many.batch),
                Item::Many(many) if !same => self.dissolve(many.batch),
                Item::One(flight) if !same => self.refused(flight, Failure::Stale, tell),
                item => self.start(item),
            }
        }
    }

    fn failed(&mut self, error: ServerError, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        if is_fatal(error) {
            return Err(Broken::Closing);
        }
        self.wrong = None;
        let failure = match of_error(error, false, true) {
            Failure::Timeout => None,
            failure => Some(failure),
        };
        let lost = is_unprepared(error);
        let item = self.flying.pop_front();
        self.clear();
        match item {
            Some(Item::One(mut flight)) => {
                if lost {
                    self.unprepare(flight.call.identity(), flight.call.variant());
                }
                match failure {
                    _ if flight.told => {}
                    _ if lost && !flight.renewed => {
                        flight.renewed = true;
                        self.start(Item::One(flight));
                    }
                    Some(failure) => self.refused(flight, failure, tell),
                    None => tell(flight.call, Answer::Slow),
                }
            }
            Some(Item::Many(mut many)) => {
                if lost && let Some(identity) = many.batch.any().map(Question::identity) {
                    self.unprepare(identity, Variant::Batch);
                }
                if lost && !many.renewed && !many.shadowed {
                    many.renewed = true;
                    self.start(Item::Many(many));
                } else if failure.is_none() {
                    self.out_of_time(many.batch, tell);
                } else {
                    self.barren(many.batch);
                }
            }
            Some(Item::Echo) => match (self.shadow.take(), failure) {
                (Some(shadow), None) => self.out_of_time(shadow.batch, tell),
                (Some(shadow), Some(_)) => self.dissolve(shadow.batch),
                (None, _) => {}
            },
            Some(Item::Prepare(identity, variant)) => {
                if let Some(state) = self.prepared.known(identity, variant) {
                    *state = State::Unknown;
                }
                for item in self.waiters(identity, variant) {
                    match (item, failure.clone()) {
                        (Item::One(flight), Some(failure)) => self.refused(flight, failure, tell),
                        (Item::One(flight), None) if !flight.told => tell(flight.call, Answer::Slow),
                        (Item::Many(many), _) if variant == Variant::Batch => self.barren(many.batch),
                        (Item::Many(many), _) => self.dissolve(many.batch),
                        _ => {}
                    }
                }
            }
            Some(Item::Unbindable(flight)) => self.refused(flight, UNBINDABLE, tell),
            // A transaction may stand open or not at all: nothing that follows could be trusted.
            Some(Item::Own(_)) => return Err(Broken::Closing),
            None => return Err(Broken::Protocol),
        }
        Ok(())
    }

    /// A batch that the server refuses: each caller is asked alone.
    fn barren(&mut self, batch: Box<Batch<Q>>) {
        let given_up = batch.any().and_then(Question::coalesced).is_some_and(|coalesced| coalesced.verdict.failed());
        self.end_of(&batch, How::Failed(given_up));
        self.dissolve(batch);
    }

    fn unprepare(&mut self, identity: (u32, u64), variant: Variant) {
        let Self { prepared, out, .. } = self;
        if let Some(state @ State::Ready(_)) = prepared.known(identity, variant)
            && let State::Ready(ready) = std::mem::take(state)
        {
            close(ready.number, out);
        }
    }

    /// Nobody of a batch that took too long is asked again.
    fn out_of_time(&mut self, mut batch: Box<Batch<Q>>, tell: &mut impl FnMut(Q, Answer<'_>)) {
        self.end_of(&batch, How::Timeout);
        batch.hand_out(|call| tell(call, Answer::Timeout));
        self.recycle(batch);
    }

    /// Hands back everybody: after `Broken::TooLarge` the first as `Slow`, the others as `Again`.
    pub fn abandon(&mut self, why: Broken, tell: &mut impl FnMut(Q, Answer<'_>)) {
        let mut guilty = why == Broken::TooLarge;
        let mut back = |call: Q, guilty: bool| tell(call, if guilty { Answer::Slow } else { Answer::Again });
        if let Some(mut shadow) = self.shadow.take() {
            let was_guilty = std::mem::take(&mut guilty);
            shadow.batch.hand_out(|call| back(call, was_guilty));
        }
        for item in self.flying.drain(..).chain(self.waiting.drain(..)) {
            match item {
                Item::One(flight) | Item::Unbindable(flight) if !flight.told => back(flight.call, std::mem::take(&mut guilty)),
                Item::Many(mut many) => {
                    let was_guilty = std::mem::take(&mut guilty);
                    many.batch.hand_out(|call| back(call, was_guilty));
                }
                _ => {}
            }
        }
    }
}

/// Who is being answered, and whether as a batch.
#[inline]
fn asker<'a, Q: Question>(front: Option<&'a Item<Q>>, shadow: Option<&'a Shadow<Q>>) -> Option<(&'a Q, bool)> {
    match front? {
        Item::One(flight) => Some((&flight.call, false)),
        Item::Many(many) => Some((many.batch.any()?, true)),
        Item::Echo => Some((shadow?.asker()?, false)),
        Item::Own(_) | Item::Unbindable(_) | Item::Prepare(..) => None,
    }
}

/// One of those who wait for a statement, and whether as a batch.
fn waiter<Q: Question>(waiting: &[Item<Q>], identity: (u32, u64), variant: Variant) -> Option<(&Q, bool)> {
    waiting.iter().find_map(|item| match item {
        Item::One(flight) if flight.call.identity() == identity && flight.call.variant() == variant => Some((&flight.call, false)),
        Item::Many(many) => {
            let call = many.batch.any().filter(|call| call.identity() == identity)?;
            (variant == Variant::Batch || call.variant() == variant).then_some((call, variant == Variant::Batch))
        }
        _ => None,
    })
}

/// Appends one execution. False: its values cannot be bound, nothing was appended.
#[inline]
fn execution(out: &mut BytesMut, number: u32, places: &[u32], values: &[u8]) -> bool {
    let start = wire::open(out);
    out.extend_from_slice(&[wire::COM_STMT_EXECUTE]);
    if value::execution(number, places, values, out).is_err() {
        out.truncate(start - 4);
        return false;
    }
    wire::close(out, start, 0)
}
