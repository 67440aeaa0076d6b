//! One client's connection: what it sent and was not read yet, what it is owed, and since when. Requests are taken from its input
//! in order, several a read. May reject: what is not HTTP, too large or too slow (a bare answer, then the end). IO: its socket.
use super::body::Chunked;
use super::head::{self, Fault, Framing, Head, Method};
use super::http2::{self, Sniffed};
use super::output::Output;
use super::response;
use super::stream::Stream;
use super::transport::Transport;
use crate::calls::bulk::Bundle;
use crate::config::Limits;
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;
use tokio::sync::Notify;

/// Tells the tasks of exclusive calls what becomes of their client.
#[derive(Debug, Default)]
pub struct Signal {
    /// It has left: nobody reads an answer.
    pub gone: Cell<bool>,
    /// The run of its stream's beginning could not be recorded: there is none to close.
    pub lost: Cell<bool>,
    /// Something changed: it left, took output, or an answer was given.
    pub changed: Notify,
}

/// What the client is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing.
    Idle,
    /// A head.
    Head,
    /// A body.
    Body,
}

/// A request's body as far as the limit lets it be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// All of it; empty when there is none.
    Whole(&'a [u8]),
    /// Larger than the limit.
    TooLarge,
}

/// What the taker of requests made of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Go on.
    Done,
    /// It must be answered before the next is read: its method is not safe, or many wait.
    Alone,
}

/// How a client is reached.
#[derive(Debug)]
pub enum Way {
    /// By a connection that speaks HTTP/1.
    Socket(Transport),
    /// By a stream of one that speaks HTTP/2: it asks once.
    Stream(Stream),
    /// As one of several calls in a body: what they get is gathered.
    Bundle(Bundle),
}

/// One connection, or what asks like one.
#[derive(Debug)]
pub struct Client {
    /// How it is reached.
    pub way: Way,
    /// Its address.
    pub peer: IpAddr,
    /// Tells connections of one index apart.
    pub generation: u32,
    /// What it is owed.
    pub output: Output,
    /// In this turn's list of those to write.
    pub dirty: bool,
    /// Its task: woken when output is left over, or input can be read again.
    pub task: Waker,
    /// For tasks of exclusive calls; there is none until one needs it.
    pub signal: Option<Rc<Signal>>,
    /// Bundles of calls that it asked and that are not whole yet: index and generation.
    pub bundles: Vec<(u32, u32)>,
    /// The end came: nothing more is read or written.
    pub gone: bool,
    /// Bare answers given.
    pub malformed: u64,
    /// Nothing is known yet of what it speaks.
    pub fresh: bool,
    /// Requests stand in `input` that could not be taken yet.
    pub blocked: bool,
    input: Vec<u8>,
    /// More must be there before another look is worth while.
    need: usize,
    chunked: Option<(usize, Chunked)>,
    continued: bool,
    alone: bool,
    reading: Reading,
    /// Since when `reading`.
    since: Instant,
    /// Last byte in or out.
    active: Instant,
    /// After this its answers say `Connection: close`.
    expires: Instant,
}

impl Client {
    /// Of an accepted socket.
    pub fn new(way: Way, peer: IpAddr, generation: u32, task: Waker, now: Instant, expires: Instant) -> Self {
        Self {
            way,
            fresh: true,
            bundles: Vec::new(),
            peer,
            generation,
            output: Output::default(),
            dirty: false,
            task,
            signal: None,
            gone: false,
            malformed: 0,
            blocked: false,
            input: Vec::new(),
            need: 0,
            chunked: None,
            continued: false,
            alone: false,
            reading: Reading::Idle,
            since: now,
            active: now,
            expires,
        }
    }

    /// The signal for a task of this client.
    pub fn signal(&mut self) -> Rc<Signal> {
        self.signal.get_or_insert_default().clone()
    }

    /// Tells the tasks that wait.
    pub fn notify(&self) {
        if let Some(signal) = &self.signal {
            signal.gone.set(self.gone);
            signal.changed.notify_waiters();
        }
    }

    /// Its time is over: the next answer after which nothing is open is its last.
    pub fn grow_old(&mut self, now: Instant) {
        if now >= self.expires {
            self.output.retire();
        }
    }

    /// Requests may be read.
    pub fn reads(&self, limits: &Limits) -> bool {
        !self.gone && !self.blocked && !self.output.closing() && self.output.backlog() <= limits.high_water
    }

    /// Takes all whole requests from what stood over and `data`.
    #[inline]
    pub fn take(
        &mut self,
        data: &[u8],
        limits: &Limits,
        now: Instant,
        each: &mut impl FnMut(&Head<'_>, Body<'_>, &mut Self, u32) -> Taken,
    ) {
        if !data.is_empty() {
            self.active = now;
        }
        if self.input.is_empty() {
            let used = self.take_from(data, limits, now, each);
            self.keep(data, used);
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(data);
            if input.len() < self.need && !self.output.closing() {
                self.input = input;
                return;
            }
            let used = self.take_from(&input, limits, now, each);
            if used == 0 && self.chunked.is_none() {
                self.input = input;
            } else {
                self.keep(&input, used);
            }
        }
    }

    fn keep(&mut self, data: &[u8], used: usize) {
        let mut rest = data.get(used..).unwrap_or_default();
        if self.output.closing() {
            rest = &[]; // nothing is read after the last request
        }
        if let Some((head, chunked)) = &self.chunked
            && !chunked.done()
        {
            rest = rest.get(..*head).unwrap_or_default(); // the body's bytes are in `chunked`
        }
        self.input = rest.to_vec();
    }

    fn take_from(
        &mut self,
        data: &[u8],
        limits: &Limits,
        now: Instant,
        each: &mut impl FnMut(&Head<'_>, Body<'_>, &mut Self, u32) -> Taken,
    ) -> usize {
        let mut used = 0;
        self.blocked = false;
        self.need = 0;
        if data.is_empty() {
            self.reading = Reading::Idle;
        }
        while used < data.len() && !self.output.closing() {
            self.alone &= !self.output.idle();
            // Answers that are there at once (problems, kept ones) open nothing: their bytes are what is bounded.
            if self.alone || self.output.open() >= limits.pipelined || self.output.backlog() > limits.high_water {
                self.blocked = true;
                break;
            }
            let rest = data.get(used..).unwrap_or_default();
            match head::parse(rest, limits.head_bytes, limits.headers, |head| self.request(&head, rest, limits, now, each)) {
                Ok(Some(Next::Took(length))) => {
                    used += length;
                    self.enter(Reading::Idle, now);
                }
                Ok(Some(Next::Waits)) => break,
                Ok(Some(Next::Blocked)) => {
                    self.blocked = true;
                    break;
                }
                Ok(Some(Next::Bad(status))) => {
                    self.refuse(status);
                    break;
                }
                Ok(None) => {
                    self.enter(Reading::Head, now);
                    break;
                }
                Err(Fault::Malformed) => self.refuse(400),
                Err(Fault::TooLarge) => self.refuse(431),
            }
        }
        used
    }

    fn request(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        limits: &Limits,
        now: Instant,
        each: &mut impl FnMut(&Head<'_>, Body<'_>, &mut Self, u32) -> Taken,
    ) -> Next {
        let safe = matches!(head.method, Method::Get | Method::Head | Method::Options);
        // What is not safe runs neither beside nor before what was asked earlier.
        if !safe && !self.output.idle() {
            return Next::Blocked;
        }
        let after = rest.get(head.length..).unwrap_or_default();
        let (length, taken) = match head.framing {
            Framing::None => (head.length, self.admit(head, Body::Whole(&[]), each)),
            Framing::Length(length) if length > limits.body_bytes as u64 => {
                self.output.retire();
                (rest.len(), self.admit_last(head, each))
            }
            Framing::Length(length) => match after.get(..length as usize) {
                Some(body) => (head.length + body.len(), self.admit(head, Body::Whole(body), each)),
                None => {
                    self.need = head.length + length as usize;
                    return self.wait(head, now);
                }
            },
            Framing::Chunked => {
                let (_, mut chunked) = self.chunked.take().unwrap_or((head.length, Chunked::default()));
                let Ok(count) = chunked.feed(after, limits.body_bytes) else { return Next::Bad(400) };
                if chunked.too_large {
                    self.output.retire();
                    (rest.len(), self.admit_last(head, each))
                } else if chunked.done() {
                    (head.length + count, self.admit(head, Body::Whole(&chunked.body), each))
                } else {
                    self.chunked = Some((head.length, chunked));
                    return self.wait(head, now);
                }
            }
        };
        self.alone = taken == Taken::Alone || !safe;
        self.continued = false;
        Next::Took(length)
    }

    fn admit(&mut self, head: &Head<'_>, body: Body<'_>, each: &mut impl FnMut(&Head<'_>, Body<'_>, &mut Self, u32) -> Taken) -> Taken {
        let number = self.output.ask();
        if !head.keep_alive {
            self.output.end_with(number);
        }
        each(head, body, self, number)
    }

    /// A request whose body is not read: its answer is the last.
    fn admit_last(&mut self, head: &Head<'_>, each: &mut impl FnMut(&Head<'_>, Body<'_>, &mut Self, u32) -> Taken) -> Taken {
        let number = self.output.ask();
        self.output.end_with(number);
        each(head, Body::TooLarge, self, number)
    }

    fn wait(&mut self, head: &Head<'_>, now: Instant) -> Next {
        self.enter(Reading::Body, now);
        if head.expects && !self.continued && self.output.idle() {
            self.continued = true;
            self.output.part().extend_from_slice(response::CONTINUE);
        }
        Next::Waits
    }

    fn enter(&mut self, reading: Reading, now: Instant) {
        if self.reading != reading {
            (self.reading, self.since) = (reading, now);
        }
    }

    /// A bare answer at the next place, and the end.
    fn refuse(&mut self, status: u16) {
        let number = self.output.ask();
        self.output.end_with(number);
        self.output.answer(number, |out| out.extend_from_slice(response::bare(status)));
        (self.need, self.chunked) = (0, None);
        self.malformed += 1;
    }

    /// Ends what takes too long; true when the connection is to be looked after now.
    pub fn sweep(&mut self, now: Instant, limits: &Limits, draining: bool) -> bool {
        if matches!(self.way, Way::Bundle(_)) {
            return false;
        }
        let after = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        self.grow_old(now);
        if self.output.backlog() > 0 || self.unflushed() {
            if after(self.active, limits.stall_time) {
                self.gone = true;
                return true;
            }
            return false;
        }
        if self.output.closing() || matches!(self.way, Way::Stream(_)) {
            return false;
        }
        match self.reading {
            Reading::Head if after(self.since, limits.head_time) => self.refuse(408),
            Reading::Body if after(self.since, limits.body_time) => self.refuse(408),
            Reading::Idle if self.output.idle() && (after(self.active, limits.idle_time) || draining) => self.gone = true,
            _ => return false,
        }
        true
    }

    /// Sends what may leave. An error is the end.
    #[inline]
    pub fn write(&mut self, now: Instant) {
        let socket = match &mut self.way {
            Way::Socket(socket) => socket,
            Way::Stream(stream) => {
                let before = self.output.backlog();
                self.gone |= stream.send(&mut self.output, &self.task).is_err();
                if self.output.backlog() < before {
                    self.active = now;
                }
                return;
            }
            Way::Bundle(_) => return,
        };
        while !self.output.pending().is_empty() && !self.gone {
            match socket.write_now(&self.task, self.output.pending()) {
                Poll::Ready(Ok(count)) => {
                    self.output.took(count);
                    self.active = now;
                }
                Poll::Pending => break,
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Poll::Ready(Err(_)) => self.gone = true,
            }
        }
        self.gone |= socket.flush_now(&self.task).is_err();
    }

    /// Something waits for the socket, or for the stream's window.
    pub fn owes(&self) -> bool {
        !self.output.pending().is_empty() || self.unflushed()
    }

    fn unflushed(&self) -> bool {
        matches!(&self.way, Way::Socket(socket) if socket.unflushed())
    }

    /// It asked once and has its answer.
    pub fn served(&self) -> bool {
        matches!(&self.way, Way::Stream(stream) if stream.ended())
    }

    /// An answer that may be large may be made for it now.
    pub fn take_place(&mut self, limits: &Limits) -> bool {
        match &mut self.way {
            Way::Stream(stream) => stream.take_place(limits.beside),
            Way::Socket(_) | Way::Bundle(_) => true,
        }
    }

    /// Looks at the first bytes of a connection for HTTP/2. They are kept while that can't be told.
    pub fn sniff(&mut self, data: &[u8], now: Instant) -> Sniffed {
        let sniffed = http2::sniff(&self.input, data);
        match sniffed {
            Sniffed::Perhaps => {
                self.input.extend_from_slice(data);
                self.active = now;
                self.enter(Reading::Head, now);
            }
            Sniffed::Http1 | Sniffed::Http2 => self.fresh = false,
        }
        sniffed
    }

    /// Keeps what is for whoever takes the connection over.
    pub fn keep_all(&mut self, data: &[u8]) {
        self.input.extend_from_slice(data);
    }

    /// What was read and not taken.
    pub fn into_parts(self) -> (Way, Vec<u8>) {
        (self.way, self.input)
    }

    /// All answers were given and sent, and the last one said so.
    pub fn finished(&self) -> bool {
        self.output.ended() && self.output.backlog() == 0 && !self.unflushed()
    }
}

enum Next {
    Took(usize),
    /// For more of its body.
    Waits,
    /// Until those before it are answered.
    Blocked,
    Bad(u16),
}
