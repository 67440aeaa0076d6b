//! Calls that no plan covers: the gateway answers them, at their place among the connection's answers.
//! IO: the gateway's Unix socket, by `http::forward`.
use super::call::{Call, Ticket};
use super::core::Core;
use super::desk::{Cost, Desk};
use crate::auth::address;
use crate::codes::Code;
use crate::encode::problem;
use crate::http::client::Signal;
use crate::http::forward::{Answer, Asked, Facts, Unanswered};
use crate::http::head::{Head, Protocol};
use crate::http::response;
use crate::http::worker::{Worker, room};
use crate::runs::{self, Close, RunId, ServedBy};
use std::net::IpAddr;
use std::rc::Rc;

/// A request as it came, and the call that it is recorded as.
#[derive(Debug)]
pub struct Forward {
    /// Where its answer goes; its `form` says what the client speaks.
    pub call: Box<Call>,
    /// Method.
    pub method: String,
    /// Path and arguments as they came.
    pub target: Vec<u8>,
    /// All headers, hop-by-hop ones and `X-Tailrace-*` included.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Forward {
    /// Copies what the connection's buffer holds.
    pub fn new(head: &Head<'_>, body: &[u8], call: Box<Call>) -> Self {
        let mut target = head.path.to_vec();
        if !head.arguments.is_empty() {
            target.push(b'?');
            target.extend_from_slice(head.arguments);
        }
        let headers =
            head.headers.iter().map(|header| (String::from_utf8_lossy(header.name).into_owned(), header.value.to_vec())).collect();
        Self { call, method: head.method_text.to_owned(), target, headers, body: body.to_vec() }
    }
}

/// Has the gateway answer. The run's beginning is appended before the request is sent; its end together with the answer's.
pub async fn run(worker: Rc<Worker>, forward: Box<Forward>) {
    let Forward { call, method, target, headers, body } = *forward;
    let ticket = call.ticket;
    let Some((signal, peer)) = client(&worker, ticket) else {
        return worker.tell(ticket, |core, _| core.desk.gone(call, Cost::default()));
    };
    let trusted = call.tables().map_or(&[][..], |tables| &tables.trusted_proxies);
    let client = address::caller(peer, trusted, forwarded_for(&headers).as_deref());
    let run = worker.tell(ticket, |core, _| {
        core.meter.forwarded.add(1);
        core.desk.open(&call, 0, ServedBy::Forwarded)
    });
    let forwarded = Forwarded { worker: &worker, call, run };
    let asked = Asked { method: &method, target: &target, headers: &headers, run, client };
    let answer = tokio::select! {
        biased;
        () = left(&signal) => return forwarded.end(499, Code::ClientClosed.name(), &Facts::default(), 0),
        answer = worker.gateway.ask(asked, body) => answer,
    };
    match &answer {
        Ok(_) => worker.observer.gateway(None),
        Err(Unanswered::Down) => worker.observer.gateway(Some("down")),
        Err(Unanswered::Slow) => worker.observer.gateway(Some("slow")),
        Err(Unanswered::Busy | Unanswered::Request) => {}
    }
    match answer {
        Ok(answer) => forwarded.relay(answer, &signal).await,
        Err(Unanswered::Busy) => forwarded.refuse(Code::Overloaded),
        Err(Unanswered::Request) => forwarded.refuse(Code::MalformedRequest),
        Err(Unanswered::Down | Unanswered::Slow) => forwarded.refuse(Code::BadGateway),
    }
}

/// How to learn that the client has left, and its address; None when it has.
fn client(worker: &Worker, ticket: Ticket) -> Option<(Rc<Signal>, IpAddr)> {
    let mut clients = worker.clients.borrow_mut();
    let client = clients.get_mut(ticket.connection as usize)?;
    (client.generation == ticket.generation && !client.gone).then(|| (client.signal(), client.peer))
}

/// All lines of X-Forwarded-For.
fn forwarded_for(headers: &[(String, Vec<u8>)]) -> Option<Vec<u8>> {
    let lines: Vec<_> =
        headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for")).map(|(_, value)| value.as_slice()).collect();
    (!lines.is_empty()).then(|| lines.join(&b','))
}

async fn left(signal: &Signal) {
    while !signal.gone.get() {
        signal.changed.notified().await;
    }
}

/// A call at the gateway.
struct Forwarded<'a> {
    worker: &'a Worker,
    call: Box<Call>,
    run: RunId,
}

impl Forwarded<'_> {
    /// Passes the answer on, in flat memory: no piece is taken while the client's output is above the high-water mark.
    async fn relay(mut self, mut answer: Answer<'_>, signal: &Signal) {
        let (ticket, worker) = (self.call.ticket, self.worker);
        let facts = std::mem::take(&mut answer.facts);
        let status = answer.status.as_u16();
        let empty = self.call.form.head || matches!(status, 100..200 | 204 | 304);
        let mut left_over = if empty { Some(0) } else { answer.length() };
        let mut bytes = 0u64;
        let mut head = Some(std::mem::take(&mut answer.headers));
        loop {
            let piece = if left_over == Some(0) {
                // Read to its end, so that the connection can be used again.
                let rest = tokio::select! { biased; () = left(signal) => Ok(None), rest = answer.piece() => rest };
                rest.map(|_| None)
            } else {
                tokio::select! {
                    biased;
                    () = left(signal) => return self.end(499, Code::ClientClosed.name(), &facts, bytes),
                    piece = answer.piece() => piece,
                }
            };
            let Ok(piece) = piece else {
                if head.is_some() {
                    return self.refuse(Code::BadGateway);
                }
                worker.cut(ticket);
                return self.end(status, Code::BadGateway.name(), &facts, bytes);
            };
            if !room(worker, ticket).await {
                return self.end(499, Code::ClientClosed.name(), &facts, bytes);
            }
            let data = piece.unwrap_or_default();
            bytes += data.len() as u64;
            left_over = left_over.map(|rest| rest.saturating_sub(data.len() as u64));
            let ended = data.is_empty() || left_over == Some(0);
            let written = worker.tell(ticket, |core, output| {
                let Some(output) = output else { return false };
                let call = &mut self.call;
                if let Some(headers) = head.take() {
                    let chunked = left_over.is_none() && !empty;
                    call.form.close =
                        output.says_close(ticket.number, call.form.close || (chunked && call.form.protocol == Protocol::Http10));
                    response::relayed(call.form, &core.desk.date, answer.status, &headers, self.run, chunked, output.part());
                }
                match left_over {
                    Some(_) => output.part().extend_from_slice(&data),
                    None => response::chunk(call.form, &data, output.part()),
                }
                if ended {
                    if left_over.is_none() {
                        response::last_chunk(call.form, None, output.part());
                    }
                    output.close(ticket.number);
                    // With the last bytes: nobody has a whole answer whose run is not.
                    close(core, &self.call, self.run, status, &facts.code, &facts, bytes);
                }
                true
            });
            if !written {
                return self.end(499, Code::ClientClosed.name(), &facts, bytes);
            }
            if ended {
                if !data.is_empty() {
                    let _ended = tokio::select! { biased; () = left(signal) => Ok(None), rest = answer.piece() => rest };
                }
                let call = self.call;
                return worker.tell(ticket, |core, _| core.desk.closed(call, status));
            }
        }
    }

    /// Answers with a problem of our own.
    fn refuse(self, code: Code) {
        let Self { worker, mut call, run } = self;
        let ticket = call.ticket;
        worker.tell(ticket, |core, output| {
            let Some(output) = output else {
                close(core, &call, run, 499, Code::ClientClosed.name(), &Facts::default(), 0);
                return core.desk.closed(call, 499);
            };
            let mut body = Vec::new();
            problem::write(code, Some(run), &[], &mut body);
            call.form.close = output.says_close(ticket.number, call.form.close);
            let (form, date) = (call.form, &core.desk.date);
            output.answer(ticket.number, |out| {
                response::problem(form, date, code, Some(run), None, body.len(), out);
                if !form.head {
                    out.extend_from_slice(&body);
                }
            });
            close(core, &call, run, code.status(), code.name(), &Facts::default(), body.len() as u64);
            core.desk.closed(call, code.status());
        });
    }

    /// Records the end of a call whose answer nobody gets, or not all of it.
    fn end(self, status: u16, code: &str, facts: &Facts, bytes: u64) {
        let Self { worker, call, run } = self;
        worker.tell(call.ticket, |core, _| {
            close(core, &call, run, status, code, facts, bytes);
            core.desk.closed(call, status);
        });
    }
}

/// Appends the end of a run.
fn close(core: &mut Core, call: &Call, run: RunId, status: u16, code: &str, facts: &Facts, bytes: u64) {
    let Desk { clock, recorder, .. } = &mut core.desk;
    recorder.close(
        run,
        &Close {
            time_us: clock.wall_us.max(0) as u64,
            duration_us: clock.since_us(call.began),
            queue_us: 0,
            database_us: facts.database_us,
            status,
            code,
            rows: facts.rows,
            bytes,
            forwarded: Some(runs::Forwarded {
                query: &facts.query,
                version: &facts.version,
                connection: &facts.connection,
                key: &facts.key,
            }),
        },
    );
}
