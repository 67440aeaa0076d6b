//! Calls that have a connection to themselves: unknown, slow and large ones, streams and writes. One task a call.
//!
//! What fits is answered with its length; what doesn't becomes a stream: chunked, in flat memory, because nothing is taken from
//! the engine while the client's output is above the high-water mark. A client that leaves cancels its statement.
//! May reject: what the engine rejects; a failure after the head cuts the body. IO: by the engine.
use super::call::{Call, Ticket};
use super::desk::{Cost, Desk, FlatRows};
use super::kept;
use crate::codes::Code;
use crate::engine::{Ask, Event, Failure, Idempotency, Write};
use crate::http::client::Signal;
use crate::http::compress::Stream as Packer;
use crate::http::head::Protocol;
use crate::http::negotiate::Coding;
use crate::http::response::{self, Length, Success};
use crate::http::worker::{Worker, room};
use crate::plan::snapshot::Returns;
use crate::runs::{Close, RunId, ServedBy};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::Receiver;

/// Rows that are kept to be answered with their length, bytes as the engine sends them. JSON beyond it is streamed, with its
/// counts as trailers.
const KEPT: usize = 4 << 20;
/// Times that a read is asked once more. A restart may have ended more than one idle connection.
const REPEATS: u8 = 2;
/// Answers before it in its connection's order, with which a call may run at the same time.
const BESIDE: u32 = 8;

/// How a call ended after its head.
struct Ended {
    code: Option<Code>,
    database_us: u64,
}

/// Runs one call to its end.
pub async fn run(worker: Rc<Worker>, mut call: Box<Call>) {
    let ticket = call.ticket;
    let Some(signal) = signal(&worker, ticket) else {
        return worker.tell(ticket, |core, _| core.desk.gone(call, Cost::default()));
    };
    if call.waiting.is_some() {
        match kept::wait(&worker, call, &signal).await {
            Some(asks) => call = asks,
            None => return,
        }
    }
    // A client that asks for many large answers at once gets few of them made ahead.
    if !near(&worker, &mut call, &signal).await {
        return worker.tell(ticket, |core, _| core.desk.gone(call, Cost::default()));
    }
    worker.core.borrow().meter.exclusive_calls.add(1);
    let sent = Instant::now();
    let queue_us = sent.saturating_duration_since(call.began).as_micros() as u64;
    let Some(events) = submit(&worker, &call) else {
        return worker.tell(ticket, |core, output| core.desk.refuse(call, Code::InternalError, Cost::default(), output));
    };
    Exclusive { worker, call, signal, events, queue_us, begun: false, repeats: 0, before_us: 0 }.answer().await;
}

fn signal(worker: &Worker, ticket: Ticket) -> Option<Rc<Signal>> {
    let mut clients = worker.clients.borrow_mut();
    let client = clients.get_mut(ticket.connection as usize)?;
    (client.generation == ticket.generation && !client.gone).then(|| client.signal())
}

/// Waits until few answers are before this one, none for a stream; false when the client left.
async fn near(worker: &Worker, call: &mut Call, signal: &Signal) -> bool {
    let most = if call.is_stream() { 0 } else { BESIDE };
    loop {
        if signal.gone.get() {
            return false;
        }
        {
            let mut clients = worker.clients.borrow_mut();
            let client = clients.get_mut(call.ticket.connection as usize).filter(|client| client.generation == call.ticket.generation);
            let Some(client) = client else { return false };
            if client.output.ahead(call.ticket.number) <= most && client.take_place(&worker.limits) {
                return true;
            }
        }
        // Nobody waits for a call that waits for others: they could be waiting for each other.
        call.lead = None;
        signal.changed.notified().await;
    }
}

fn submit(worker: &Worker, call: &Call) -> Option<Receiver<Event>> {
    let plan = call.plan.as_ref()?;
    let (query, statement) = (call.query()?, call.asked_statement()?);
    let backend = plan.tables.backends.get(query.connection as usize)?;
    let write = query.write.then(|| Write {
        idempotency: call.idempotency.as_ref().and_then(|given| {
            let (key, arguments) = (**given).clone();
            let table: Arc<str> = backend.plan.idempotency_table.as_deref()?.into();
            let caller = plan.tables.keys.get(call.key?)?.id.clone();
            Some(Idempotency { table, caller, query: query.name.clone(), key, arguments })
        }),
    });
    let ask = Ask {
        query: call.asked.query,
        version: query.version.clone(),
        statement: statement.plan.clone(),
        columns: query.columns.clone(),
        values: call.values.clone(),
        limit: (call.asked.limit > 0).then_some(call.asked.limit),
        deadline: call.deadline,
        write,
        trace: call.traceparent.clone(),
    };
    worker.core.borrow_mut().submit(plan, query.connection, ask)
}

struct Exclusive {
    worker: Rc<Worker>,
    call: Box<Call>,
    signal: Rc<Signal>,
    events: Receiver<Event>,
    queue_us: u64,
    /// Rows came.
    begun: bool,
    /// Times that it was asked once more.
    repeats: u8,
    /// At the database before that, µs.
    before_us: u64,
}

impl Exclusive {
    fn cost(&self, database_us: u64) -> Cost {
        let database_us = database_us.saturating_add(self.before_us);
        // What was not at the database was spent waiting for a connection to it.
        let waited = Instant::now().saturating_duration_since(self.call.began).as_micros() as u64;
        let queue_us = self.queue_us.max(waited.saturating_sub(database_us).min(waited));
        Cost { queue_us, database_us, ..Cost::default() }
    }

    /// The next event; None when the client left first. A read whose connection broke before its first row is asked
    /// again, at most REPEATS times.
    async fn next(&mut self) -> Option<Event> {
        match self.event().await {
            Some(Event::Failed { failure: Failure::Unavailable, database_us }) if self.may_repeat() => {
                self.before_us += database_us;
                self.repeats += 1;
                let again = submit(&self.worker, &self.call)?;
                self.events = again;
                Box::pin(self.next()).await
            }
            event => {
                self.begun |= matches!(event, Some(Event::Rows { .. }));
                event
            }
        }
    }

    fn may_repeat(&self) -> bool {
        let write = self.call.query().is_none_or(|query| query.write);
        !self.begun && !write && self.repeats < REPEATS && Instant::now() < self.call.deadline
    }

    async fn event(&mut self) -> Option<Event> {
        loop {
            if self.signal.gone.get() {
                return None;
            }
            tokio::select! {
                biased;
                event = self.events.recv() => return Some(event.unwrap_or(Event::never(Failure::Unavailable))),
                () = self.signal.changed.notified() => {}
            }
        }
    }

    async fn answer(mut self) {
        if self.call.is_stream() {
            return self.stream(Vec::new(), 0).await;
        }
        let (mut kept, mut count) = (Vec::new(), 0);
        loop {
            match self.next().await {
                Some(Event::Rows { count: more, bytes }) => {
                    count += u64::from(more);
                    if kept.is_empty() {
                        kept = bytes;
                    } else {
                        kept.extend_from_slice(&bytes);
                    }
                    let streams = self.call.query().is_some_and(|query| query.returns == Returns::Many && query.page.is_none());
                    if kept.len() > KEPT && self.call.form.protocol == Protocol::Part {
                        let database_us = self.leave().await.1;
                        return self.too_large(database_us);
                    }
                    if kept.len() > KEPT && streams {
                        return self.stream(kept, count).await;
                    }
                }
                Some(Event::Done { affected, database_us, .. }) => return self.done(&kept, count, affected, database_us),
                Some(Event::Failed { failure, database_us }) => return self.failed(&failure, database_us),
                None => return self.left().await,
            }
        }
    }

    fn done(self, kept: &[u8], count: u64, affected: u64, database_us: u64) {
        let (ticket, cost) = (self.call.ticket, self.cost(database_us));
        let none = self.call.query().is_some_and(|query| query.returns == Returns::None);
        let call = self.call;
        self.worker.tell(ticket, |core, output| {
            core.learn(&call, database_us, kept.len());
            if none {
                core.desk.affected(call, affected, cost, output);
            } else {
                core.desk.rows(call, FlatRows { bytes: kept, count }, cost, output);
            }
        });
    }

    /// Not to be one answer among several.
    fn too_large(self, database_us: u64) {
        let (ticket, cost) = (self.call.ticket, self.cost(database_us));
        let call = self.call;
        self.worker.tell(ticket, |core, output| core.desk.refuse(call, Code::AnswerTooLarge, cost, output));
    }

    fn failed(self, failure: &Failure, database_us: u64) {
        let (ticket, code, cost) = (self.call.ticket, failure.code(), self.cost(database_us));
        let call = self.call;
        self.worker.tell(ticket, |core, output| {
            core.learn(&call, u64::MAX, 0);
            core.desk.refuse(call, code, cost, output);
        });
    }

    /// Nothing more is wanted: the statement is cancelled unless it is over. Whether it was done, and its time at the database, µs.
    async fn leave(&mut self) -> (bool, u64) {
        self.events.close();
        let mut end = (false, 0);
        while let Some(event) = self.events.recv().await {
            match event {
                Event::Rows { .. } => {}
                Event::Done { database_us, .. } => end = (true, database_us),
                Event::Failed { database_us, .. } => end = (false, database_us),
            }
        }
        end
    }

    /// The client has left: a read is cancelled; of a write the true outcome is awaited and recorded.
    async fn left(mut self) {
        let write = self.call.query().is_some_and(|query| query.write);
        let (done, database_us) = self.leave().await;
        let cost = self.cost(database_us);
        let call = self.call;
        self.worker.tell(call.ticket, |core, _| match done && write {
            // It happened, though nobody was there to be told.
            true => core.desk.committed(call, cost),
            false => core.desk.gone(call, cost),
        });
    }

    /// Head now, rows as they come.
    async fn stream(mut self, kept: Vec<u8>, count: u64) {
        // What is streamed is not kept, and nobody waits for a client that reads slowly.
        if let Some(lead) = self.call.lead.take() {
            lead.fail();
        }
        let ticket = self.call.ticket;
        // The first event decides whether there is a head at all.
        let (mut kept, mut count, mut first) = (kept, count, None);
        if kept.is_empty() {
            match self.next().await {
                Some(Event::Rows { count: more, bytes }) => (kept, count) = (bytes, u64::from(more)),
                Some(Event::Failed { failure, database_us }) => return self.failed(&failure, database_us),
                Some(done) => first = Some(done),
                None => return self.left().await,
            }
        }
        if !room(&self.worker, ticket).await {
            return self.left().await;
        }
        let (run, mut body) = match self.open() {
            Some(opened) => opened,
            None => return self.left().await,
        };
        let mut bytes = 0;
        let ended = loop {
            let rows = FlatRows { bytes: &kept, count };
            let written = self.rows(&mut body, rows);
            bytes += body.raw;
            body.raw = 0;
            if let Err(code) = written {
                break Ended { code: Some(code), database_us: self.leave().await.1 };
            }
            if !room(&self.worker, ticket).await {
                break Ended { code: Some(Code::ClientClosed), database_us: self.leave().await.1 };
            }
            let event = match first.take() {
                Some(event) => Some(event),
                None => self.next().await,
            };
            match event {
                Some(Event::Rows { count: more, bytes }) => (kept, count) = (bytes, u64::from(more)),
                Some(Event::Done { database_us, .. }) => break Ended { code: None, database_us },
                Some(Event::Failed { failure, database_us }) => break Ended { code: Some(failure.code()), database_us },
                None => break Ended { code: Some(Code::ClientClosed), database_us: self.leave().await.1 },
            }
        };
        bytes += self.end(&mut body, ended.code);
        let cost = self.cost(ended.database_us);
        let (rows, status) = (body.shown, if ended.code == Some(Code::ClientClosed) { 499 } else { 200 });
        let (began, lost) = (self.call.began, self.signal.lost.get());
        let call = self.call;
        self.worker.tell(ticket, |core, _| {
            let Desk { clock, recorder, .. } = &mut core.desk;
            let code = ended.code.map_or("", Code::name);
            if lost {
                return core.desk.closed(call, Code::SpoolFull.status());
            }
            recorder.close(
                run,
                &Close {
                    time_us: clock.wall_us.max(0) as u64,
                    duration_us: clock.since_us(began),
                    queue_us: cost.queue_us,
                    database_us: cost.database_us,
                    status,
                    code,
                    rows,
                    bytes,
                    forwarded: None,
                },
            );
            core.desk.closed(call, status);
        });
    }

    /// Appends the run's beginning and the head.
    fn open(&mut self) -> Option<(RunId, Body)> {
        let Self { worker, call, .. } = self;
        worker.tell(call.ticket, |core, output| {
            let output = output?;
            let packer = Packer::new(call.form.coding).filter(|_| call.form.coding != Coding::Identity);
            let coding = if packer.is_some() { call.form.coding } else { Coding::Identity };
            call.form.close = output.says_close(call.ticket.number, call.form.close || call.form.protocol == Protocol::Http10);
            let json = !call.is_stream();
            let run = core.desk.open(call, 200, ServedBy::DataPlane);
            let answer = Success {
                run,
                rows: None,
                truncated: (!json).then_some(false),
                next: None,
                timing: None,
                fresh: None,
                length: Length::Streamed { trailers: json },
                coding,
            };
            response::success(call.form, &core.desk.date, answer, output.begin());
            Some((run, Body::new(packer, json)))
        })
    }

    /// Writes rows as one chunk.
    fn rows(&self, body: &mut Body, mut rows: FlatRows<'_>) -> Result<(), Code> {
        let (Some(query), Some(sight)) = (self.call.query(), self.call.sight()) else { return Err(Code::InternalError) };
        let format = self.call.form.format;
        body.plain.clear();
        if body.total == 0 && !body.begun {
            body.begun = true;
            sight.writer.begin(format, query.returns, &mut body.plain);
        }
        let room = if self.call.is_stream() { u64::MAX } else { u64::from(self.call.asked.rows).saturating_sub(body.shown) };
        let shown = rows.count.min(room);
        sight.writer.rows(format, body.shown == 0, &mut rows.bytes, shown, &mut body.plain).map_err(|_| Code::DatabaseError)?;
        body.shown += shown;
        body.total += rows.count;
        self.write(body)
    }

    fn write(&self, body: &mut Body) -> Result<(), Code> {
        body.raw += body.plain.len() as u64;
        let chunk = match &mut body.packer {
            None => &body.plain,
            Some(packer) => {
                body.packed.clear();
                if !packer.write(&body.plain, &mut body.packed) {
                    return Err(Code::InternalError);
                }
                &body.packed
            }
        };
        let form = self.call.form;
        if !form.head {
            self.worker.tell(self.call.ticket, |_, output| output.map(|output| response::chunk(form, chunk, output.part())));
        }
        Ok(())
    }

    /// Ends the body as it should, or cuts it; how many bytes that took.
    fn end(&self, body: &mut Body, code: Option<Code>) -> u64 {
        let (form, number) = (self.call.form, self.call.ticket.number);
        let Some((query, sight)) = self.call.query().zip(self.call.sight()).filter(|_| code.is_none()) else {
            self.worker.cut(self.call.ticket);
            return 0;
        };
        let truncated = body.total > body.shown;
        body.plain.clear();
        sight.writer.end(form.format, query.returns, body.shown, truncated, &mut body.plain);
        let raw = body.plain.len() as u64;
        if let Some(mut packer) = body.packer.take() {
            body.packed.clear();
            if !packer.write(&body.plain, &mut body.packed) || !packer.finish(&mut body.packed) {
                self.worker.cut(self.call.ticket);
                return 0;
            }
            std::mem::swap(&mut body.plain, &mut body.packed);
        }
        let trailers = body.json.then_some((body.shown, truncated));
        self.worker.tell(self.call.ticket, |_, output| {
            if let Some(output) = output {
                if !form.head {
                    response::chunk(form, &body.plain, output.part());
                    response::last_chunk(form, trailers, output.part());
                    output.end_with_counts(trailers);
                }
                output.close(number);
            }
        });
        raw
    }
}

/// A streamed body under way.
struct Body {
    packer: Option<Packer>,
    plain: Vec<u8>,
    packed: Vec<u8>,
    /// JSON that was too large to be kept: its counts are trailers.
    json: bool,
    begun: bool,
    /// Rows that came, and rows that were written.
    total: u64,
    shown: u64,
    /// Bytes since they were last counted, before compression.
    raw: u64,
}

impl Body {
    fn new(packer: Option<Packer>, json: bool) -> Self {
        Self { packer, plain: Vec::new(), packed: Vec::new(), json, begun: false, total: 0, shown: 0, raw: 0 }
    }
}
