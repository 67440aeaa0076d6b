//! The shared lane's protocol on one PostgreSQL connection: many callers' statements in one flush, each its own Bind and
//! Execute or many of one query as a batch, one Sync for all. Bytes in, bytes out, no IO of its own.
//!
//! When one fails, the server skips the rest up to the Sync: those are asked again, each with a Sync of its own, so that only
//! the guilty caller fails; of a batch that failed each caller is asked alone. May reject: bytes that are not PostgreSQL's protocol, or
//! an answer beyond `LARGEST` (`Broken`): the connection is of no further use, and whoever waits is handed back by `abandon`.
use super::frontend;
use super::prepared::{Prepared, State, close_all, encode, encode_batch, own};
use super::wire::{self, Frame, ServerError};
use crate::engine::Failure;
use crate::engine::batch::{Batch, Shadow, ordinal};
use crate::engine::shared::{Answer, Broken, Ended, How, LARGEST, Place, Question, Rows};
use crate::plan::coalescing::Stopped;
use crate::plan::tables::Variant;
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::time::Duration;

/// Batches kept for reuse. More are given back.
const SPARE: usize = 8;

#[derive(Debug)]
struct Flight<Q> {
    call: Q,
    /// Its messages begin with Close, Parse and Describe.
    prepares: bool,
    /// Asked a second time after its statement had to be prepared anew.
    renewed: bool,
    /// Already answered otherwise (its deadline passed): what comes is dropped.
    told: bool,
    /// Of a batch that failed.
    dissolved: bool,
}

impl<Q> Flight<Q> {
    const fn new(call: Q) -> Self {
        Self { call, prepares: false, renewed: false, told: false, dissolved: false }
    }
}

#[derive(Debug)]
struct Many<Q> {
    batch: Box<Batch<Q>>,
    prepares: bool,
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
    /// A statement of ours. True: one that chooses how plans are made.
    Own(bool),
    /// ReadyForQuery is its answer.
    Sync,
}

/// How the server plans what comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// As the session began.
    #[default]
    Usual,
    /// Generic plans, which assume ten elements an array: batches of fewer callers would be planned anew each time. And the time limit of
    /// batches: what is little for one may be what many take on a busy machine.
    Generic,
    /// A change of it may have been undone.
    Unknown,
}

/// One connection's protocol state.
#[derive(Debug)]
pub struct Pipeline<Q> {
    out: BytesMut,
    input: Vec<u8>,
    flying: VecDeque<Item<Q>>,
    /// Something was asked since the last Sync.
    open: bool,
    /// Asked behind the next Sync: calls with one of their own, batches in a transaction of their own.
    apart: Vec<Q>,
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    shadowed: Vec<Box<Batch<Q>>>,
    /// The batch whose questions are being answered one by one.
    shadow: Option<Shadow<Q>>,
    /// Asked again at the next ReadyForQuery; true: each caller alone.
    back: Vec<(Item<Q>, bool)>,
    /// An error was read; the rest up to the Sync is skipped.
    failed: bool,
    /// The error was a timeout: the rest is asked elsewhere.
    slow: bool,
    /// Of `input`: messages before this were looked at.
    scanned: usize,
    /// Rows of the first item in flight.
    rows: Vec<Place>,
    prepared: Vec<Prepared>,
    mode: Mode,
    /// It was ever another than the usual: an error may undo the return to it, too.
    chose: bool,
    /// The server knows no such choice.
    modeless: bool,
    /// Time limit of a batch, ms.
    batch_ms: u32,
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
            open: false,
            apart: Vec::new(),
            shadowed: Vec::new(),
            shadow: None,
            back: Vec::new(),
            failed: false,
            slow: false,
            scanned: 0,
            rows: Vec::new(),
            prepared: Vec::new(),
            mode: Mode::Usual,
            chose: false,
            modeless: false,
            batch_ms: 1000,
            batches: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl<Q: Question> Pipeline<Q> {
    /// A statement that answers many callers may take so long; a caller's own takes what the session began with.
    pub fn new(batch: Duration) -> Self {
        Self { batch_ms: u32::try_from(batch.as_millis()).unwrap_or(u32::MAX).max(1), ..Self::default() }
    }

    /// What is answered next was asked for many.
    pub fn batch_is_next(&self) -> bool {
        self.shadow.is_some() || matches!(self.flying.front(), Some(Item::Many(_)))
    }

    /// Nothing is under way.
    #[inline]
    pub fn idle(&self) -> bool {
        self.flying.is_empty()
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        let flying = self.flying.iter().chain(self.back.iter().map(|(item, _)| item)).map(|item| match item {
            Item::One(_) => 1,
            Item::Many(many) => many.batch.len(),
            Item::Echo | Item::Own(_) | Item::Sync => 0,
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
        for item in self.flying.iter_mut().chain(self.back.iter_mut().map(|(item, _)| item)) {
            match item {
                Item::One(flight) => each(&mut flight.call, &mut flight.told),
                Item::Many(many) => many.batch.each(&mut each),
                Item::Echo | Item::Own(_) | Item::Sync => {}
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

    /// Adds a call to the flush that `sync` ends. Only while `idle`, or between two of these.
    #[inline]
    pub fn ask(&mut self, mut call: Q) {
        if self.mode != Mode::Usual && call.coalesced().is_none() {
            // A generic plan may be far from what its values deserve; of a query that is coalesced it was compared with the other.
            self.choose(Mode::Usual);
        }
        call.shares(1);
        self.one(Flight::new(call));
    }

    /// Adds a call with a Sync of its own.
    pub fn ask_apart(&mut self, mut call: Q) {
        call.shares(1);
        self.apart.push(call);
    }

    /// Adds calls of one query as one statement, in the same flush.
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
        if shadowed {
            self.shadowed.push(batch);
        } else {
            self.choose(Mode::Generic);
            self.many(Many { batch, prepares: false, renewed: false, shadowed: false });
        }
    }

    /// Ends the flush.
    pub fn sync(&mut self) {
        if self.open {
            self.end();
        }
        while let Some(call) = self.apart.pop() {
            self.one(Flight::new(call));
            self.end();
        }
        while let Some(batch) = self.shadowed.pop() {
            self.shadowed(batch);
        }
    }

    /// Ends a group of statements.
    fn end(&mut self) {
        frontend::sync(&mut self.out);
        self.flying.push_back(Item::Sync);
        self.open = false;
    }

    #[inline]
    fn one(&mut self, mut flight: Flight<Q>) {
        flight.prepares = encode(&mut self.prepared, &mut self.out, &flight.call);
        self.flying.push_back(Item::One(flight));
        self.open = true;
    }

    fn many(&mut self, mut many: Many<Q>) {
        match encode_batch(&mut self.prepared, &mut self.out, &mut many.batch) {
            Some(prepares) => {
                many.prepares = prepares;
                self.flying.push_back(Item::Many(many));
                self.open = true;
            }
            // A value is missing: only each caller's own statement can tell whose.
            None => self.dissolve(many.batch),
        }
    }

    fn own(&mut self, sql: &str, mode: bool) {
        own(&mut self.out, sql);
        self.flying.push_back(Item::Own(mode));
        self.open = true;
    }

    fn choose(&mut self, mode: Mode) {
        if self.mode == mode || self.modeless {
            return;
        }
        (self.mode, self.chose) = (mode, true);
        if mode == Mode::Generic {
            self.own("SET plan_cache_mode = force_generic_plan", true);
            let limit = format!("SET statement_timeout = {}", self.batch_ms);
            self.own(&limit, false);
        } else {
            self.own("RESET plan_cache_mode", true);
            self.own("RESET statement_timeout", false);
        }
    }

    /// A batch and each of its questions alone, in one snapshot.
    fn shadowed(&mut self, batch: Box<Batch<Q>>) {
        self.choose(Mode::Generic);
        if self.open {
            self.end();
        }
        let questions = batch.asked();
        self.own("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", false);
        let at = self.flying.len();
        self.many(Many { batch, prepares: false, renewed: false, shadowed: true });
        for question in 0..questions {
            let Some(Item::Many(many)) = self.flying.get(at) else { break };
            let Some(asker) = many.batch.asker(question) else { break };
            encode(&mut self.prepared, &mut self.out, asker);
            self.flying.push_back(Item::Echo);
        }
        self.own("COMMIT", false);
        self.end();
    }

    /// Asks each caller of a batch alone.
    fn dissolve(&mut self, mut batch: Box<Batch<Q>>) {
        if self.open {
            self.end();
        }
        batch.hand_out(|mut call| {
            call.shares(1);
            self.one(Flight { dissolved: true, ..Flight::new(call) });
            self.end();
        });
        self.recycle(batch);
    }

    fn recycle(&mut self, mut batch: Box<Batch<Q>>) {
        batch.clear();
        if self.spare.len() < SPARE {
            self.spare.push(batch);
        }
    }

    /// Closes the statements of versions that `keep` doesn't know. Goes out with the next flush.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool) {
        for (prepared, slot) in self.prepared.iter_mut().zip(0u32..) {
            if prepared.any() && !keep(slot, prepared.version) {
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
        if let Some(mut shadow) = self.shadow.take() {
            let was_guilty = std::mem::take(&mut guilty);
            shadow.batch.hand_out(|call| tell(call, if was_guilty { Answer::Slow } else { Answer::Again }));
        }
        let back = std::mem::take(&mut self.back);
        for item in self.flying.drain(..).chain(back.into_iter().map(|(item, _)| item)) {
            match item {
                Item::One(Flight { call, told: false, .. }) => {
                    tell(call, if std::mem::take(&mut guilty) { Answer::Slow } else { Answer::Again });
                }
                Item::Many(mut many) => {
                    let was_guilty = std::mem::take(&mut guilty);
                    many.batch.hand_out(|call| tell(call, if was_guilty { Answer::Slow } else { Answer::Again }));
                }
                Item::One(_) | Item::Echo | Item::Own(_) | Item::Sync => {}
            }
        }
        self.apart.drain(..).for_each(|call| tell(call, Answer::Again));
        self.shadowed.drain(..).for_each(|mut batch| batch.hand_out(|call| tell(call, Answer::Again)));
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
                    let told = self.complete(data, &mut places, frame.tag, tell);
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

    /// The first item in flight has all its rows.
    #[inline]
    fn complete(&mut self, data: &[u8], places: &mut [Place], tag: u8, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        if self.failed {
            return Err(Broken::Protocol);
        }
        match self.flying.pop_front() {
            Some(Item::One(flight)) => {
                if !flight.told {
                    let stale = state(&mut self.prepared, &flight.call, flight.call.variant()).is_some_and(|state| *state == State::Stale);
                    tell(flight.call, if stale { Answer::Failed(Failure::Stale) } else { Answer::Rows(Rows::new(data, places)) });
                }
                Ok(())
            }
            Some(Item::Many(many)) if tag == b'C' => self.complete_batch(many, data, places, tell),
            Some(Item::Echo) => {
                let Self { shadow, prepared, .. } = self;
                let Some(shadow) = shadow else { return Ok(()) };
                let asker = shadow.asker().ok_or(Broken::Protocol)?;
                let stale = state(prepared, asker, asker.variant()).is_some_and(|state| *state == State::Stale);
                if stale {
                    // Its callers are told so one by one.
                    self.back_from_shadow();
                } else {
                    shadow.single(data, places);
                }
                Ok(())
            }
            Some(Item::Own(_)) if places.is_empty() => Ok(()),
            Some(Item::Many(many)) => {
                self.flying.push_front(Item::Many(many));
                Err(Broken::Protocol)
            }
            Some(Item::Own(_) | Item::Sync) | None => Err(Broken::Protocol),
        }
    }

    fn complete_batch(
        &mut self,
        mut many: Many<Q>,
        data: &[u8],
        places: &mut [Place],
        tell: &mut impl FnMut(Q, Answer<'_>),
    ) -> Result<(), Broken> {
        let Some(call) = many.batch.any() else { return Err(Broken::Protocol) };
        if state(&mut self.prepared, call, Variant::Batch).is_some_and(|state| *state == State::Stale) {
            if call.coalesced().is_some_and(|coalesced| coalesced.verdict.stop(Stopped::Shape)) {
                self.end_of(&many.batch, How::Shape);
            }
            self.back.push((Item::Many(many), true));
            return Ok(());
        }
        let read = places.iter_mut().try_for_each(|place| ordinal(data, place)).and_then(|()| many.batch.sort(places));
        if let Err(broken) = read {
            self.flying.push_front(Item::Many(many));
            return Err(broken);
        }
        if many.shadowed {
            self.shadow = Some(Shadow::new(many.batch, data, places));
            return Ok(());
        }
        if let Some(coalesced) = many.batch.any().and_then(Question::coalesced) {
            coalesced.verdict.answered();
        }
        self.end_of(&many.batch, How::Answered);
        many.batch.answer(data, places, tell);
        self.recycle(many.batch);
        Ok(())
    }

    fn back_from_shadow(&mut self) {
        if let Some(Shadow { batch, .. }) = self.shadow.take() {
            self.back.push((Item::Many(Many { batch, prepares: false, renewed: false, shadowed: true }), true));
        }
    }

    fn end_of(&mut self, batch: &Batch<Q>, how: How) {
        if let Some(call) = batch.any() {
            let (identity, query) = (call.identity(), call.query_name());
            self.ended.push(Ended { identity, query, callers: batch.len(), asked: batch.asked(), how });
        }
    }

    fn message(&mut self, frame: Frame<'_>, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        match frame.tag {
            b'2' | b'1' | b'3' | b'N' | b'S' | b'A' => Ok(()), // BindComplete and its like; notices; settings
            b't' | b'T' | b'n' => self.described(frame),
            b'E' => self.error(wire::server_error(frame.body).map_err(|_| Broken::Protocol)?, tell),
            b'Z' => self.ready(frame.body.first().copied().unwrap_or(b'I'), tell),
            _ => Err(Broken::Protocol),
        }
    }

    /// The server tells of a statement's places or columns.
    fn described(&mut self, frame: Frame<'_>) -> Result<(), Broken> {
        let Self { flying, prepared, shadow, .. } = self;
        let (call, batch) = match flying.front() {
            Some(Item::One(flight)) => (&flight.call, false),
            Some(Item::Many(many)) => (many.batch.any().ok_or(Broken::Protocol)?, true),
            Some(Item::Echo) => match shadow {
                Some(shadow) => (shadow.asker().ok_or(Broken::Protocol)?, false),
                None => return Ok(()), // given up meanwhile
            },
            // Of a statement of ours nothing is asked.
            Some(Item::Own(_) | Item::Sync) | None => return Err(Broken::Protocol),
        };
        let statement = if batch { &call.coalesced().ok_or(Broken::Protocol)?.statement } else { call.statement() };
        let same = match frame.tag {
            b't' => {
                let mut rest = frame.body.get(2..).ok_or(Broken::Protocol)?;
                statement.oids.iter().all(|&oid| rest.try_get_u32() == Ok(oid)) && rest.is_empty()
            }
            b'T' if batch => wire::matches_behind_ord(frame.body, call.columns()).map_err(|_| Broken::Protocol)?,
            b'T' => wire::matches(frame.body, call.columns()).map_err(|_| Broken::Protocol)?,
            _ => !batch && call.columns().is_empty(),
        };
        let variant = if batch { Variant::Batch } else { call.variant() };
        let state = state(prepared, call, variant).ok_or(Broken::Protocol)?;
        *state = match (*state, same) {
            (State::Stale, _) | (_, false) => State::Stale,
            (State::Unknown, true) => State::Unknown, // forgotten meanwhile: its Close is on its way
            (State::Sent | State::Ready, true) => State::Ready,
        };
        Ok(())
    }

    fn error(&mut self, error: ServerError, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        self.rows.clear();
        if error.fatal {
            return Err(Broken::Closing);
        }
        if self.failed {
            return Err(Broken::Protocol);
        }
        self.failed = true;
        if self.chose {
            self.mode = Mode::Unknown;
        }
        // A statement whose Parse or Describe failed, or that the server doesn't know (any more), is prepared anew.
        let lost = error.revalidate || &error.code == b"26000";
        let mut unprepare = |call: &Q, variant| {
            if let Some(state) = state(&mut self.prepared, call, variant)
                && (*state == State::Sent || lost)
            {
                *state = State::Unknown;
            }
        };
        match self.flying.pop_front() {
            Some(Item::One(mut flight)) => {
                unprepare(&flight.call, flight.call.variant());
                if flight.told {
                    return Ok(());
                }
                if lost && !flight.renewed {
                    flight.renewed = true;
                    self.back.push((Item::One(flight), false));
                    return Ok(());
                }
                match failure(&error) {
                    Some(failure) => {
                        if flight.dissolved
                            && let Some(coalesced) = flight.call.coalesced()
                        {
                            coalesced.verdict.excused();
                        }
                        tell(flight.call, Answer::Failed(failure));
                    }
                    None => {
                        self.slow = true;
                        tell(flight.call, Answer::Slow);
                    }
                }
            }
            Some(Item::Many(mut many)) => {
                if let Some(call) = many.batch.any() {
                    unprepare(call, Variant::Batch);
                    if many.shadowed {
                        unprepare(call, call.variant()); // its questions are skipped
                    }
                }
                if lost && !many.renewed && !many.shadowed {
                    many.renewed = true;
                    self.back.push((Item::Many(many), false));
                } else if failure(&error).is_none() {
                    self.out_of_time(many.batch, tell);
                } else {
                    let given_up = many.batch.any().and_then(Question::coalesced).is_some_and(|coalesced| coalesced.verdict.failed());
                    self.end_of(&many.batch, How::Failed(given_up));
                    self.back.push((Item::Many(many), true));
                }
            }
            Some(Item::Echo) => {
                if let Some(asker) = self.shadow.as_ref().and_then(Shadow::asker) {
                    unprepare(asker, asker.variant());
                }
                if failure(&error).is_none() {
                    if let Some(Shadow { batch, .. }) = self.shadow.take() {
                        self.out_of_time(batch, tell);
                    }
                } else {
                    self.back_from_shadow();
                }
            }
            Some(Item::Own(mode)) => self.modeless |= mode && failure(&error).is_some(),
            Some(Item::Sync) | None => return Err(Broken::Protocol),
        }
        Ok(())
    }

    /// Nobody of a batch that took too long is asked again.
    fn out_of_time(&mut self, mut batch: Box<Batch<Q>>, tell: &mut impl FnMut(Q, Answer<'_>)) {
        self.slow = true;
        self.end_of(&batch, How::Timeout);
        batch.hand_out(|call| tell(call, Answer::Timeout));
        self.recycle(batch);
    }

    /// A group of statements has ended. `status`: `I` unless a transaction is open.
    fn ready(&mut self, status: u8, tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        let (failed, slow) = (std::mem::take(&mut self.failed), std::mem::take(&mut self.slow));
        if !failed && !matches!(self.flying.front(), Some(Item::Sync)) {
            return Err(Broken::Protocol);
        }
        if status != b'I' {
            self.own("ROLLBACK", false);
            self.end();
        }
        let mut skipped = std::mem::take(&mut self.back);
        loop {
            match self.flying.pop_front() {
                Some(Item::Sync) => break,
                Some(Item::Many(many)) => {
                    if let Some(call) = many.batch.any().filter(|_| many.shadowed)
                        && let Some(state) = state(&mut self.prepared, call, call.variant())
                        && *state == State::Sent
                    {
                        *state = State::Unknown; // its questions are skipped with it
                    }
                    let alone = many.shadowed;
                    skipped.push((Item::Many(many), alone));
                }
                Some(item) => skipped.push((item, false)),
                None => return Err(Broken::Protocol),
            }
        }
        if let Some(shadow) = self.shadow.take() {
            if failed {
                skipped.push((Item::Many(Many { batch: shadow.batch, prepares: false, renewed: false, shadowed: true }), true));
            } else {
                self.settle(shadow, tell);
            }
        }
        // A Parse that was skipped with the rest never reached the server.
        for (item, _) in &skipped {
            let (call, variant, prepares) = match item {
                Item::One(flight) => (Some(&flight.call), flight.call.variant(), flight.prepares),
                Item::Many(many) => (many.batch.any(), Variant::Batch, many.prepares),
                Item::Echo | Item::Own(_) | Item::Sync => continue,
            };
            if prepares
                && let Some(call) = call
                && let Some(state) = state(&mut self.prepared, call, variant)
                && *state == State::Sent
            {
                *state = State::Unknown;
            }
        }
        for (item, alone) in skipped.drain(..) {
            match item {
                Item::One(flight) if flight.told => {}
                Item::One(flight) if slow => tell(flight.call, Answer::Again),
                Item::One(flight) => {
                    if self.mode != Mode::Usual && flight.call.coalesced().is_none() {
                        self.choose(Mode::Usual);
                    }
                    self.one(flight);
                    self.end();
                }
                Item::Many(mut many) if slow => {
                    many.batch.hand_out(|call| tell(call, Answer::Again));
                    self.recycle(many.batch);
                }
                Item::Many(many) if alone => self.dissolve(many.batch),
                Item::Many(many) => {
                    self.choose(Mode::Generic);
                    self.many(many);
                    self.end();
                }
                Item::Echo | Item::Own(_) | Item::Sync => {}
            }
        }
        self.back = skipped;
        Ok(())
    }

    fn settle(&mut self, shadow: Shadow<Q>, tell: &mut impl FnMut(Q, Answer<'_>)) {
        let Some(call) = shadow.batch.any() else { return };
        let mut ended = Ended {
            identity: call.identity(),
            query: call.query_name(),
            callers: shadow.batch.len(),
            asked: shadow.batch.asked(),
            how: How::Equal,
        };
        // What a caller holds may go with it.
        let equal = shadow.equal();
        if let Some(coalesced) = call.coalesced() {
            if equal {
                coalesced.verdict.equal();
                coalesced.verdict.answered();
            } else {
                ended.how = How::Unequal;
                coalesced.verdict.stop(Stopped::Unequal);
            }
        }
        self.ended.push(ended);
        let batch = shadow.answer(tell);
        self.recycle(batch);
    }
}

fn state<'a, Q: Question>(prepared: &'a mut [Prepared], call: &Q, variant: Variant) -> Option<&'a mut State> {
    let (slot, version) = call.identity();
    let prepared = prepared.get_mut(slot as usize).filter(|prepared| prepared.version == version)?;
    prepared.states.get_mut(variant as usize)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;
