//! Where calls end: an outcome becomes bytes at its place in the connection's output, and a run. One for each thread.
//! May reject: rows that cannot be read (the caller gets `database_error`). IO: none until the recorder commits.
use super::call::{Call, Ticket};
use super::clock::Clock;
use super::refused::Refused;
use crate::cache::{Answer, Entry, LARGEST, Tag};
use crate::codes::{Code, Fault};
use crate::encode::{self, Malformed, cursor::Subject, problem};
use crate::engine::shared;
use crate::http::bulk;
use crate::http::compress;
use crate::http::head::Protocol;
use crate::http::negotiate::Coding;
use crate::http::output::Output;
use crate::http::response::{self, Date, Fresh, Length, Success};
use crate::observe::meter::Meter;
use crate::plan::snapshot::{Engine, Missing, Returns};
use crate::runs::{Names, Open, Recorder, Run, RunId, ServedBy};
use std::sync::Arc;
use std::time::Instant;

/// Bodies up to this are sent as they are, bytes.
pub const COMPRESS_FROM: usize = 1024;
/// The client has the body.
const NOT_MODIFIED: u16 = 304;
/// Boxes kept for reuse. More are given back.
const SPARE: usize = 2048;

/// What a call cost besides its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Waiting for a lane, µs.
    pub queue_us: u64,
    /// At the database, µs.
    pub database_us: u64,
    /// Calls that shared the statement; 0 counts as 1.
    pub batch: u16,
    /// Answered from the response cache: no statement was asked.
    pub cached: bool,
}

impl Cost {
    /// As runs and `Server-Timing` say it: 0 from the response cache.
    pub const fn callers(self) -> u16 {
        match self.batch {
            _ if self.cached => 0,
            0 => 1,
            batch => batch,
        }
    }
}

/// Rows in DataRow form, wherever they stand.
pub trait Rows<'a> {
    /// How many.
    fn count(&self) -> u64;
    /// Bytes that begin with the next row.
    fn next(&mut self) -> Option<&'a [u8]>;
    /// What the writer left of them.
    fn rest(&mut self, rest: &'a [u8]);
}

/// As the shared lane has them.
#[derive(Debug)]
pub struct LaneRows<'a, I: Iterator<Item = &'a [u8]>>(I, u64);

/// Rows of the shared lane.
pub fn lane_rows(rows: shared::Rows<'_>) -> LaneRows<'_, impl Iterator<Item = &[u8]>> {
    LaneRows(rows.iter(), rows.count())
}

impl<'a, I: Iterator<Item = &'a [u8]>> Rows<'a> for LaneRows<'a, I> {
    fn count(&self) -> u64 {
        self.1
    }
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next()
    }
    fn rest(&mut self, _: &'a [u8]) {}
}

/// One row after the other, as engines send them.
#[derive(Clone, Copy, Debug)]
pub struct FlatRows<'a> {
    /// Their bytes.
    pub bytes: &'a [u8],
    /// How many.
    pub count: u64,
}

impl<'a> Rows<'a> for FlatRows<'a> {
    fn count(&self) -> u64 {
        self.count
    }
    fn next(&mut self) -> Option<&'a [u8]> {
        Some(self.bytes)
    }
    fn rest(&mut self, rest: &'a [u8]) {
        self.bytes = rest;
    }
}

/// A thread's.
#[derive(Debug)]
pub struct Desk {
    /// The turn's time.
    pub clock: Clock,
    /// The thread's recorder.
    pub recorder: Recorder,
    /// The Date header.
    pub date: Date,
    body: Vec<u8>,
    packed: Vec<u8>,
    next: Vec<u8>,
    refused: Refused,
    unnamed: Arc<Names>,
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Call>>,
    /// The thread's counters.
    pub meter: Arc<Meter>,
}

impl Desk {
    /// With the thread's recorder.
    pub fn new(recorder: Recorder, meter: Arc<Meter>) -> Self {
        let mut desk = Self {
            clock: Clock::read(),
            recorder,
            date: Date::default(),
            body: Vec::new(),
            packed: Vec::new(),
            next: Vec::new(),
            refused: Refused::default(),
            unnamed: Arc::default(),
            spare: Vec::new(),
            meter,
        };
        desk.tick();
        desk
    }

    /// Reads the clock: once a wake-up.
    #[inline]
    pub fn tick(&mut self) {
        self.clock = Clock::read();
        self.date.tick((self.clock.wall_us / 1_000_000).max(0) as u64);
    }

    /// A fresh call that begins now.
    #[inline]
    pub fn call(&mut self) -> Box<Call> {
        let now = self.clock.now;
        let mut call = self.spare.pop().unwrap_or_else(|| Box::new(Call::new(now)));
        call.began = now;
        call
    }

    /// Takes a call's box back.
    #[inline]
    pub fn recycle(&mut self, mut call: Box<Call>) {
        if self.spare.len() < SPARE {
            call.reset();
            self.spare.push(call);
        }
    }

    /// Appends a call's run.
    #[inline]
    pub fn record(&mut self, call: &Call, code: Option<Code>, rows: u64, bytes: u64, cost: Cost) -> RunId {
        self.record_as(call, code.map_or(200, Code::status), code, rows, bytes, cost)
    }

    fn record_as(&mut self, call: &Call, status: u16, code: Option<Code>, rows: u64, bytes: u64, cost: Cost) -> RunId {
        let duration_us = self.clock.since_us(call.began);
        self.meter.call(call.meter_slot(), status, duration_us);
        if code.is_none() {
            self.meter.queue_wait.observe(cost.queue_us);
            self.meter.rows.add(rows);
            self.meter.bytes.add(bytes);
        }
        self.recorder.append(&Run {
            names: call.tables().map_or(&self.unnamed, |tables| &tables.names),
            query: call.query,
            key: call.key,
            time_us: self.clock.wall_us.max(0) as u64,
            duration_us,
            queue_us: cost.queue_us,
            database_us: cost.database_us,
            status,
            code,
            rows,
            bytes,
            batch: cost.callers(),
            trace: call.trace,
            client: call.client,
            params: call.params.as_deref(),
        })
    }

    /// Appends the beginning of a stream, or of a call that another process answers (its `status` is not known yet).
    pub fn open(&mut self, call: &Call, status: u16, served_by: ServedBy) -> RunId {
        self.recorder.open(&Open {
            names: call.tables().map_or(&self.unnamed, |tables| &tables.names),
            query: call.query,
            key: call.key,
            time_us: self.clock.wall_us.max(0) as u64,
            status,
            trace: call.trace,
            client: call.client,
            served_by,
            params: call.params.as_deref(),
        })
    }

    /// Its client left before the answer.
    pub fn gone(&mut self, call: Box<Call>, cost: Cost) {
        self.record(&call, Some(Code::ClientClosed), 0, 0, cost);
        self.recycle(call);
    }

    /// A write whose client left before it was told that it happened: 499 without an error code.
    pub fn committed(&mut self, call: Box<Call>, cost: Cost) {
        self.record_as(&call, Code::ClientClosed.status(), None, 0, 0, cost);
        self.recycle(call);
    }

    /// A stream has ended, its close is appended.
    pub fn closed(&mut self, call: Box<Call>, status: u16) {
        self.meter.call(call.meter_slot(), status, self.clock.since_us(call.began));
        self.recycle(call);
    }

    /// Ends a call with a problem.
    pub fn refuse(&mut self, call: Box<Call>, code: Code, cost: Cost, output: Option<&mut Output>) {
        self.refuse_with(call, code, &[], None, cost, output);
    }

    /// Ends a call with a problem that says more.
    pub fn refuse_with(
        &mut self,
        mut call: Box<Call>,
        code: Code,
        faults: &[(String, Fault)],
        allow: Option<&str>,
        cost: Cost,
        output: Option<&mut Output>,
    ) {
        // Who waits for its answer asks for itself, unless only this client has left.
        if code != Code::ClientClosed
            && let Some(lead) = call.lead.take()
        {
            lead.fail();
        }
        let Some(output) = output else { return self.gone(call, cost) };
        if matches!(code, Code::Overloaded | Code::PoolFull) && call.form.protocol == Protocol::Http11 && !call.form.head {
            let number = call.ticket.number;
            if !output.says_close(number, call.form.close) {
                let (run, mut length) = (self.recorder.next_id(), 0);
                output.answer(number, |out| length = self.refused.write(code, run, &self.date, out));
                self.record(&call, Some(code), 0, length as u64, cost);
                return self.recycle(call);
            }
        }
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        // A run that can't be recorded has no id: the spool is full.
        let run = (code != Code::SpoolFull).then(|| self.recorder.next_id());
        problem::write(code, run, faults, &mut body);
        let number = call.ticket.number;
        let mut form = call.form;
        form.close = output.says_close(number, form.close);
        let date = &self.date;
        output.answer(number, |out| {
            response::problem(form, date, code, run, allow, body.len(), out);
            if !form.head {
                out.extend_from_slice(&body);
            }
            bulk::end(form, out);
        });
        if run.is_some() {
            self.record(&call, Some(code), 0, body.len() as u64, cost);
        }
        self.body = body;
        self.recycle(call);
    }

    /// Ends a write, or a call that changes nothing and says how much.
    pub fn affected(&mut self, call: Box<Call>, count: u64, cost: Cost, output: Option<&mut Output>) {
        let Some(output) = output else { return self.gone(call, cost) };
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        encode::rows::affected(call.form.format, count, &mut body);
        self.finish(call, &body, None, Some(0), None, None, cost, output);
        self.body = body;
    }

    /// Ends a call with rows that are all here.
    #[inline]
    pub fn rows<'a>(&mut self, mut call: Box<Call>, rows: impl Rows<'a>, cost: Cost, output: Option<&mut Output>) {
        let Some(output) = output else {
            self.keep_only(&mut call, rows);
            return self.gone(call, cost);
        };
        let mut body = std::mem::take(&mut self.body);
        let mut next = std::mem::take(&mut self.next);
        body.clear();
        next.clear();
        let start = call.timing.map(|_| Instant::now());
        match write(&call, rows, &mut body, &mut next) {
            Ok(Written { rows, truncated }) => {
                let encode_ns = start.map(|start| start.elapsed().as_nanos() as u64);
                let next = (!next.is_empty()).then_some(&*next);
                self.finish(call, &body, Some(truncated), Some(rows), next, encode_ns, cost, output);
            }
            Err(code) => self.refuse(call, code, cost, Some(output)),
        }
        (self.body, self.next) = (body, next);
    }

    /// Of a call whose client has left: others may wait for its answer.
    fn keep_only<'a>(&mut self, call: &mut Call, rows: impl Rows<'a>) {
        let Some(lead) = call.lead.take() else { return };
        let (mut body, mut next) = (Vec::new(), Vec::new());
        match write(call, rows, &mut body, &mut next) {
            Ok(Written { rows, truncated }) if body.len() <= LARGEST => {
                let next = (!next.is_empty()).then_some(&*next);
                let answer = Answer { body: &body, tag: Tag::of(&body), rows, truncated: Some(truncated), next };
                self.meter.cache_evictions.add(lead.keep(answer, self.clock.now));
            }
            Ok(_) | Err(_) => lead.fail(),
        }
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what a 200 says; there is one caller a kind")]
    fn finish(
        &mut self,
        mut call: Box<Call>,
        body: &[u8],
        truncated: Option<bool>,
        rows: Option<u64>,
        next: Option<&[u8]>,
        encode_ns: Option<u64>,
        cost: Cost,
        output: &mut Output,
    ) {
        let form = call.form;
        let mut packed = std::mem::take(&mut self.packed);
        let (mut coding, mut sent) = (Coding::Identity, body);
        if form.coding != Coding::Identity && body.len() > COMPRESS_FROM {
            packed.clear();
            if compress::whole(form.coding, body, &mut packed) {
                (coding, sent) = (form.coding, &packed);
            }
        }
        let mut tag = None;
        if let Some(ttl) = call.query().and_then(|query| query.cache_ttl) {
            tag = self.keep(&mut call, body, truncated, rows, next).map(|plain| (if sent == body { plain } else { Tag::of(sent) }, ttl));
        }
        let timing = call.timing.map(|auth_ns| server_timing(auth_ns, encode_ns.unwrap_or(0), cost));
        let fresh = tag.as_ref().map(|(tag, ttl)| Fresh { max_age_s: ttl.as_secs(), age_s: None, tag });
        let timing = timing.as_deref();
        self.send(call, Ready { body, sent, coding, rows, truncated, next, timing, fresh }, cost, output);
        self.packed = packed;
    }

    /// Keeps a cached query's answer for those who wait and those who come; its tag. None when it is too large.
    fn keep(&mut self, call: &mut Call, body: &[u8], truncated: Option<bool>, rows: Option<u64>, next: Option<&[u8]>) -> Option<Tag> {
        let tag = (body.len() <= LARGEST && !call.is_stream()).then(|| Tag::of(body));
        if let Some(lead) = call.lead.take() {
            match tag {
                Some(tag) => {
                    let answer = Answer { body, tag, rows: rows.unwrap_or(0), truncated, next };
                    self.meter.cache_evictions.add(lead.keep(answer, self.clock.now));
                }
                None => lead.fail(),
            }
        }
        tag
    }

    /// Ends a call with an answer that was kept. Bytes that were made for its coding.
    #[inline]
    pub fn cached(&mut self, call: Box<Call>, entry: &Entry, cost: Cost, output: Option<&mut Output>) -> usize {
        let mut made = 0;
        let Some(output) = output else {
            self.gone(call, cost);
            return 0;
        };
        let max_age_s = call.query().and_then(|query| query.cache_ttl).unwrap_or_default().as_secs();
        let (coding, sent, tag) = match entry.packed(call.form.coding, COMPRESS_FROM, &mut made) {
            Some(packed) => (call.form.coding, &*packed.body, &packed.tag),
            None => (Coding::Identity, &*entry.body, &entry.tag),
        };
        let timing = call.timing.map(|auth_ns| server_timing(auth_ns, 0, cost));
        let ready = Ready {
            body: &entry.body,
            sent,
            coding,
            rows: Some(entry.rows),
            truncated: entry.truncated,
            next: entry.next.as_deref(),
            timing: timing.as_deref(),
            fresh: Some(Fresh { max_age_s, age_s: Some(entry.age_s(self.clock.now)), tag }),
        };
        self.send(call, ready, cost, output);
        made
    }

    /// Ends a call with a 200, or with a 304 if its client has that body.
    #[inline]
    fn send(&mut self, call: Box<Call>, ready: Ready<'_>, cost: Cost, output: &mut Output) {
        let Ready { body, sent, coding, rows, truncated, next, timing, fresh } = ready;
        let number = call.ticket.number;
        let mut form = call.form;
        if form.protocol == Protocol::Part && body.len() > bulk::ANSWER {
            return self.refuse(call, Code::AnswerTooLarge, cost, Some(output));
        }
        form.close = output.says_close(number, form.close);
        let run = self.recorder.next_id();
        let date = &self.date;
        if let Some(fresh) = fresh.filter(|fresh| !call.if_none_match.is_empty() && fresh.tag.is_in(&call.if_none_match)) {
            output.answer(number, |out| response::not_modified(form, date, run, fresh, out));
            self.record_as(&call, NOT_MODIFIED, None, 0, 0, cost);
            return self.recycle(call);
        }
        let answer = Success { run, rows, truncated, next, timing, fresh, length: Length::Known(sent.len()), coding };
        output.answer(number, |out| {
            out.reserve(512 + sent.len());
            response::success(form, date, answer, out);
            if !form.head {
                out.extend_from_slice(sent);
            }
            bulk::end(form, out);
        });
        self.record(&call, None, rows.unwrap_or(0), body.len() as u64, cost);
        self.recycle(call);
    }
}

/// An answer that is all here.
struct Ready<'a> {
    /// Before compression, and as it is sent.
    body: &'a [u8],
    sent: &'a [u8],
    coding: Coding,
    rows: Option<u64>,
    truncated: Option<bool>,
    next: Option<&'a [u8]>,
    timing: Option<&'a str>,
    fresh: Option<Fresh<'a>>,
}

/// What `Server-Timing` says.
pub fn server_timing(auth_ns: u64, encode_ns: u64, cost: Cost) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    let (auth, encode) = (auth_ns as f64 / 1e6, encode_ns as f64 / 1e6);
    let (queue, database, batch) = (ms(cost.queue_us), ms(cost.database_us), cost.callers());
    format!("auth;dur={auth:.3}, queue;dur={queue:.3}, db;dur={database:.3}, encode;dur={encode:.3}, batch;desc=\"{batch}\"")
}

struct Written {
    rows: u64,
    truncated: bool,
}

/// Writes the body; and into `next` the target of the next page, if there is one.
#[inline]
fn write<'a>(call: &Call, mut rows: impl Rows<'a>, body: &mut Vec<u8>, next: &mut Vec<u8>) -> Result<Written, Code> {
    let (Some(query), Some(sight)) = (call.query(), call.sight()) else { return Err(Code::InternalError) };
    let (format, returns, count) = (call.form.format, query.returns, rows.count());
    let shown = count.min(if returns == Returns::One { 1 } else { call.asked.rows.into() });
    if shown == 0 && returns == Returns::One && query.missing == Missing::Error {
        return Err(Code::RowNotFound);
    }
    let truncated = count > shown;
    let malformed = |Malformed| Code::DatabaseError;
    sight.writer.begin(format, returns, body);
    let mut last = None;
    for n in 0..shown {
        if n > 0 {
            sight.writer.separator(format, body);
        }
        let row = rows.next().ok_or(Code::DatabaseError)?;
        let mut rest = row;
        sight.writer.row(format, &mut rest, body).map_err(malformed)?;
        rows.rest(rest);
        last = Some(row);
    }
    sight.writer.end(format, returns, shown, truncated, body);
    if truncated && let (Some(page), Some(last), Some(tables)) = (&query.page, last, call.tables()) {
        let key = call.key.and_then(|key| tables.keys.get(key)).ok_or(Code::InternalError)?;
        let seal = tables.cursor_key.as_ref().ok_or(Code::InternalError)?;
        let subject = Subject { key: &key.id, query: &query.name, version: &query.version };
        let engine = tables.backends.get(query.connection as usize).map_or(Engine::Postgres, |backend| backend.plan.engine);
        next.extend_from_slice(&call.link);
        next.extend_from_slice(b"cursor=");
        seal.seal(subject, last, &page.plan.keys, engine, next).map_err(malformed)?;
    }
    Ok(Written { rows: shown, truncated })
}

/// Connections by ticket.
pub trait Outputs {
    /// The output that a ticket leads to, marked to be written this turn; None when its client has left.
    fn find(&mut self, ticket: Ticket) -> Option<&mut Output>;
}
