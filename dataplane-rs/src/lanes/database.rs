//! One thread's shared lanes to one database. Dispatch clocks itself: an idle lane takes a call at once; while it is
//! busy calls gather and leave together. Another lane opens only for a full flush or when the oldest waiter has waited two
//! round trips. May reject: calls beyond the queue's bound, expired ones, all while the database is down. IO: its connections.
use super::drain::Drain;
use super::exclusive::Exclusive;
use super::flush::{Flush, LARGEST_FLUSH};
use super::hands::{Hands, answered, cost, ended, suspect};
use super::lane::{Lane, LaneError, Link};
use super::quarantine::Quarantine;
use super::queue::FairQueue;
use super::standing::SLOW_US;
use crate::calls::call::Call;
use crate::calls::desk::Outputs;
use crate::codes::Code;
use crate::engine::shared::Broken;
use crate::plan::backend::Backend;
use bytes::Buf;
use std::io::ErrorKind;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Fewest that a slow query's flush is cut down to.
const SMALLEST_FLUSH: usize = 8;
/// A flush is cut so that it takes about this long,
const FLUSH_TIME: Duration = Duration::from_millis(10);
/// or this part of all that waits: when many do, smaller flushes would only make all of them wait longer.
const FLUSH_PART: usize = 8;
/// A lane that brings nothing for so long beyond `statement_timeout` is broken.
const SILENCE: Duration = Duration::from_secs(1);
/// After so long without any lane, calls are refused at once.
const DOWN: Duration = Duration::from_secs(3);
/// Back-off between two attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// One thread's lanes to one database.
#[derive(Debug)]
pub struct Database {
    /// What all threads share of it.
    pub backend: Arc<Backend>,
    /// No snapshot names it any more: it goes when nothing waits.
    pub retired: bool,
    /// Its exclusive lane.
    pub exclusive: Exclusive,
    /// Of its mounted files, as last looked at.
    pub generation: u64,
    /// Some query has earned the shared lane.
    wanted: bool,
    queue: FairQueue<Box<Call>>,
    drain: Drain,
    lanes: Vec<Lane>,
    flush: Flush,
    quarantine: Quarantine,
    /// Since when something waits.
    waiting: Instant,
    /// Of a flush, smoothed.
    round_trip: Duration,
    /// Of one call in a flush, smoothed, ns.
    call_ns: u64,
    /// Since when there is no lane although there was one.
    down: Option<Instant>,
    /// Since then an attempt to connect has failed.
    refused: bool,
}

impl Database {
    /// Without connections; `lanes` are opened when they are wanted, none when it is 0.
    pub fn new(backend: Arc<Backend>, lanes: usize, bound: usize, now: Instant) -> Self {
        Self {
            exclusive: Exclusive::new(&backend),
            generation: backend.lane_source.generation(),
            backend,
            retired: false,
            wanted: false,
            queue: FairQueue::new(bound),
            drain: Drain::new(bound),
            lanes: (0..lanes).map(|_| Lane::new(now)).collect(),
            flush: Flush::default(),
            quarantine: Quarantine::default(),
            waiting: now,
            round_trip: Duration::from_millis(1),
            call_ns: 100_000,
            down: None,
            refused: false,
        }
    }

    /// Somebody wants a lane.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Connections may be wanted: `wanted` is worth while.
    pub fn wants(&self) -> bool {
        self.wanted && !self.lanes.is_empty()
    }

    /// Calls wait or are under way, or the database is down.
    pub fn busy(&self) -> bool {
        self.down.is_some() || !self.queue.is_empty() || self.lanes.iter().any(|lane| !lane.pipeline.idle())
    }

    /// There is a lane, or was until just now: calls may be queued.
    pub fn ready(&self) -> bool {
        self.down.is_some() || self.lanes.iter().any(|lane| lane.session.is_some())
    }

    /// No lane for so long that waiting is in vain.
    pub fn is_down(&self, now: Instant) -> bool {
        self.refused && self.down.is_some_and(|since| now.saturating_duration_since(since) > DOWN)
    }

    /// Calls that wait, and calls under way.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.lanes.iter().map(|lane| lane.pipeline.len()).sum())
    }

    /// Lanes that are connected.
    pub fn connected(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.session.is_some()).count()
    }

    /// As many wait as may: a further one is refused.
    #[inline]
    pub fn full(&self) -> bool {
        self.queue.len() >= self.drain.room()
    }

    /// So many wait that nobody should ask for several at a time.
    #[inline]
    pub fn crowded(&self) -> bool {
        self.queue.len() >= self.drain.room() / 2
    }

    /// Takes a call in, or gives it back when too many wait.
    #[inline]
    pub fn push(&mut self, call: Box<Call>, now: Instant) -> Result<(), Box<Call>> {
        if self.full() {
            return Err(call);
        }
        if self.queue.is_empty() {
            self.waiting = now;
        }
        self.queue.push(call.key_slot, call)
    }

    /// Lanes that want a connection now; they count as connecting from here on.
    pub fn wanted(&mut self, now: Instant, wanted: &mut Vec<(usize, bool)>) {
        let waited = self.overdue(now);
        let full = self.queue.len() >= LARGEST_FLUSH;
        let any = self.lanes.iter().any(|lane| lane.session.is_some() || lane.connecting);
        let all_busy = self.lanes.iter().filter(|lane| lane.session.is_some()).all(|lane| !lane.pipeline.idle());
        let connecting = self.lanes.iter().any(|lane| lane.connecting);
        let more = !any || (all_busy && (full || waited) && !self.queue.is_empty() && !connecting);
        let mut room = usize::from(more && !self.retired);
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let again = lane.session.is_none() && lane.attempts > 0;
            let first = lane.session.is_none() && room > 0;
            let replace = lane.session.is_some() && lane.successor.is_none() && now >= lane.expires;
            if !lane.connecting && now >= lane.retry && !self.retired && (again || first || replace) {
                room = room.saturating_sub(usize::from(first));
                lane.connecting = true;
                wanted.push((at, replace));
            }
        }
    }

    /// The mounted files changed: connections are replaced, one after the other as they are idle.
    pub fn renew(&mut self, generation: u64, now: Instant) {
        self.generation = generation;
        for lane in &mut self.lanes {
            if lane.session.as_ref().is_some_and(|session| session.generation() != generation) {
                lane.expires = lane.expires.min(now);
            }
        }
    }

    /// A wanted connection, or why there is none.
    pub fn connected_to<O: Outputs>(&mut self, at: usize, result: Result<Link, LaneError>, hands: &mut Hands<'_, O>) {
        let now = hands.desk.clock.now;
        let Some(lane) = self.lanes.get_mut(at) else { return };
        lane.connecting = false;
        match result {
            Ok(link) => {
                self.backend.reach.worked();
                lane.attempts = 0;
                if lane.session.is_some() {
                    lane.successor = Some(link);
                } else {
                    lane.take(link, self.backend.batch_timeout, now);
                }
                (self.down, self.refused) = (None, false);
                self.drain.forget();
            }
            Err(error) => {
                lane.attempts += 1;
                let back_off = BACK_OFF.0.saturating_mul(1 << lane.attempts.min(10)).min(BACK_OFF.1);
                lane.retry = now + back_off.mul_f64(rand::random_range(0.5..1.0));
                if lane.session.is_some() {
                    return; // the old one serves on
                }
                if error == LaneError::NoRoom && self.lanes.iter().all(|lane| lane.session.is_none()) {
                    // There are connections, only not for lanes: calls go by the exclusive lane.
                    (self.down, self.refused) = (None, false);
                    hands.escaped.extend(std::iter::from_fn(|| self.queue.pop()));
                    return;
                }
                self.refused = true;
                if let LaneError::Connect(reason) = error
                    && self.lanes.iter().all(|lane| lane.session.is_none())
                {
                    self.backend.reach.failed(reason);
                }
                if self.is_down(now) {
                    self.refuse_all(hands);
                }
            }
        }
    }

    fn refuse_all<O: Outputs>(&mut self, hands: &mut Hands<'_, O>) {
        while let Some(call) = self.queue.pop() {
            hands.refuse(call, Code::DatabaseUnavailable);
        }
    }

    /// Reads what the lanes brought and ends the calls that it answers. `began`: when the turn did; what was brought since then waited for
    /// us, and no statement is to blame for that.
    pub fn receive<O: Outputs>(&mut self, cx: &mut Context<'_>, began: Instant, hands: &mut Hands<'_, O>) {
        for at in 0..self.lanes.len() {
            self.receive_lane(at, cx, began, hands);
        }
    }

    fn receive_lane<O: Outputs>(&mut self, at: usize, cx: &mut Context<'_>, began: Instant, hands: &mut Hands<'_, O>) {
        let Self { backend, lanes, queue, quarantine, round_trip, call_ns, .. } = self;
        let Some(lane) = lanes.get_mut(at) else { return };
        let Some(session) = &mut lane.session else { return };
        let now = hands.desk.clock.now;
        let mut broken = None;
        while let Poll::Ready(ready) = session.transport().poll_read_ready(cx) {
            let read = ready.and_then(|()| session.transport().try_read(hands.scratch));
            let count = match read {
                Ok(0) => {
                    broken = Some(Broken::Closing);
                    break;
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => {
                    broken = Some(Broken::Closing);
                    break;
                }
            };
            let (size, sent) = (lane.size, lane.sent);
            let silence = began.saturating_duration_since(lane.heard);
            lane.heard = now;
            // Beyond the timeout the server itself says who it was.
            let told = silence >= backend.lane_timeout && !lane.pipeline.batch_is_next();
            if silence.as_micros() as u64 > SLOW_US && !told && !lane.pipeline.is_empty() {
                suspect(&mut lane.pipeline, hands.standings, hands.observer);
            }
            let scratch = std::mem::take(&mut hands.scratch);
            let data = scratch.get(..count).unwrap_or_default();
            let fed = lane.pipeline.feed(data, &mut |call, answer| answered(call, answer, queue, quarantine, hands));
            hands.scratch = scratch;
            lane.pipeline.ended().for_each(|batch| ended(batch, hands));
            if let Err(why) = fed {
                broken = Some(why);
                break;
            }
            if lane.pipeline.idle() && size > 0 {
                backend.reach.worked();
                let took = now.saturating_duration_since(sent);
                *round_trip = (*round_trip * 3 + took) / 4;
                *call_ns = (*call_ns * 3 + took.as_nanos() as u64 / size as u64) / 4;
                lane.size = 0;
            }
        }
        if let Some(why) = broken {
            self.broke(at, why, hands);
        } else if lane.pipeline.idle()
            && let Some(successor) = lane.successor.take()
        {
            lane.take(successor, backend.batch_timeout, now);
        }
    }

    fn broke<O: Outputs>(&mut self, at: usize, why: Broken, hands: &mut Hands<'_, O>) {
        let Self { backend, lanes, queue, quarantine, .. } = self;
        let Some(lane) = lanes.get_mut(at) else { return };
        let now = hands.desk.clock.now;
        let mut pipeline = std::mem::take(&mut lane.pipeline);
        pipeline.abandon(why, &mut |call, answer| answered(call, answer, queue, quarantine, hands));
        (lane.session, lane.permit, lane.size) = (None, None, 0);
        if let Some(successor) = lane.successor.take() {
            return lane.take(successor, backend.batch_timeout, now);
        }
        // At once: after a restart the server may be back already.
        (lane.attempts, lane.retry) = (lane.attempts.max(1), now);
        if self.lanes.iter().all(|lane| lane.session.is_none()) {
            self.down.get_or_insert(now);
        }
    }

    fn overdue(&self, now: Instant) -> bool {
        !self.queue.is_empty() && now.saturating_duration_since(self.waiting) > self.round_trip * 2
    }

    /// Sends what waits, as far as lanes are free.
    pub fn dispatch<O: Outputs>(&mut self, cx: &mut Context<'_>, hands: &mut Hands<'_, O>) {
        let now = hands.desk.clock.now;
        let most = (FLUSH_TIME.as_nanos() as u64 / self.call_ns.max(1)).clamp(SMALLEST_FLUSH as u64, LARGEST_FLUSH as u64) as usize;
        let most = most.max((self.queue.len() / FLUSH_PART).min(LARGEST_FLUSH));
        let mut busy = self.lanes.iter().any(|lane| lane.session.is_some() && !lane.pipeline.idle());
        for at in 0..self.lanes.len() {
            if self.queue.is_empty() {
                break;
            }
            let overdue = self.overdue(now);
            let Self { lanes, queue, drain, flush, quarantine, .. } = self;
            let (before, rest) = lanes.split_at_mut(at);
            let Some((lane, after)) = rest.split_first_mut() else { break };
            if lane.session.is_none() || !lane.pipeline.idle() || (busy && !overdue && queue.len() < most) {
                continue;
            }
            let others = before.iter().chain(after.iter());
            let elsewhere = |slot| others.clone().map(|lane| lane.pipeline.batches(slot)).sum();
            let size = flush.fill(most, queue, &mut lane.pipeline, elsewhere, quarantine, hands);
            drain.left(size, queue.len(), now);
            if size > 0 {
                lane.pipeline.sync();
                (lane.size, lane.sent, lane.heard) = (size, now, now);
                busy = true;
            }
            self.waiting = now;
        }
        for at in 0..self.lanes.len() {
            self.send(at, cx, hands);
        }
    }

    fn send<O: Outputs>(&mut self, at: usize, cx: &mut Context<'_>, hands: &mut Hands<'_, O>) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(session) = &mut lane.session else { return };
        let transport = session.transport();
        let out = lane.pipeline.out();
        loop {
            let sent = if out.is_empty() { transport.try_flush().map(|_| 0) } else { transport.try_write(out) };
            match sent {
                Ok(count) => {
                    out.advance(count.min(out.len()));
                    if out.is_empty() && matches!(transport.try_flush(), Ok(true)) {
                        out.clear();
                        return;
                    }
                    if out.is_empty() && transport.poll_write_ready(cx).is_pending() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if transport.poll_write_ready(cx).is_pending() {
                        return;
                    }
                }
                Err(_) => return self.broke(at, Broken::Closing, hands),
            }
        }
    }

    /// Ends calls whose deadline passed, wherever they are, and connections that bring nothing any more. True while there is
    /// something to look after.
    pub fn sweep<O: Outputs>(&mut self, hands: &mut Hands<'_, O>) -> bool {
        let now = hands.desk.clock.now;
        let expired = if self.down.is_some() { Code::DatabaseUnavailable } else { Code::QueryTimeout };
        self.queue.remove(|call| call.deadline <= now, |call| hands.refuse(call, expired));
        self.quarantine.tidy(now);
        let timeout = self.backend.lane_timeout.max(self.backend.batch_timeout);
        for at in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(at) else { break };
            lane.pipeline.calls(|call, told| {
                if call.deadline <= now && !*told {
                    *told = true;
                    let mut stays = hands.desk.call();
                    (stays.plan, stays.asked) = (call.plan.clone(), call.asked);
                    stays.deadline = call.deadline;
                    let call = std::mem::replace(call, stays);
                    let cost = cost(&call, now);
                    let output = hands.outputs.find(call.ticket);
                    hands.desk.refuse(call, Code::QueryTimeout, cost, output);
                }
            });
            if !lane.pipeline.idle() && now.saturating_duration_since(lane.heard) > timeout + SILENCE {
                self.broke(at, Broken::Closing, hands);
            }
        }
        self.busy()
    }

    /// Closes the prepared statements of versions that `keep` doesn't know.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool) {
        for lane in &mut self.lanes {
            lane.pipeline.forget(&keep);
        }
    }
}
