//! What a turn with a database needs from its thread, and what becomes of a call when its lane has an answer.
//! May reject: as the engine's answers say. IO: none.
use super::quarantine::Quarantine;
use super::queue::FairQueue;
use super::standing::Standing;
use crate::calls::call::Call;
use crate::calls::desk::{Cost, Desk, Outputs, lane_rows};
use crate::codes::Code;
use crate::engine::Failure;
use crate::engine::shared::{Answer, Ended, How, Protocol, Question};
use crate::observe::{Observation, Observer};
use crate::plan::coalescing::Stopped;
use std::sync::Arc;
use std::time::Instant;

/// Times a call may be sent.
const SENT_AT_MOST: u8 = 3;

/// What a turn with a database needs from its thread.
pub struct Hands<'a, O> {
    /// Ends calls.
    pub desk: &'a mut Desk,
    /// Where answers go.
    pub outputs: &'a mut O,
    /// By query slot.
    pub standings: &'a mut Vec<Standing>,
    /// Calls that must go on by the exclusive lane.
    pub escaped: &'a mut Vec<Box<Call>>,
    /// Room to read into.
    pub scratch: &'a mut [u8],
    /// What happens is reported there.
    pub observer: &'a Observer,
}

impl<O: Outputs> Hands<'_, O> {
    pub(super) fn refuse(&mut self, call: Box<Call>, code: Code) {
        let output = self.outputs.find(call.ticket);
        let cost = Cost { queue_us: self.desk.clock.since_us(call.began), ..Cost::default() };
        self.desk.refuse(call, code, cost, output);
    }

    fn demoted(&self, call: &Call, reason: &'static str) {
        if let Some(query) = call.query() {
            self.observer.report(&Observation::QueryDemoted { query: query.name.clone(), reason });
        }
    }

    fn standing(&mut self, call: &Call) -> Option<&mut Standing> {
        let query = call.query()?;
        self.standings.get_mut(query.slot as usize).filter(|standing| standing.version == query.version_id)
    }
}

/// What its way to the database took, and how many shared its statement.
pub(super) fn cost(call: &Call, now: Instant) -> Cost {
    let us = |from: Instant, to: Instant| to.saturating_duration_since(from).as_micros() as u64;
    Cost { queue_us: us(call.began, call.sent), database_us: us(call.sent, now), batch: call.batch, cached: false }
}

#[inline]
pub(super) fn answered<O: Outputs>(
    mut call: Box<Call>,
    answer: Answer<'_>,
    queue: &mut FairQueue<Box<Call>>,
    quarantine: &mut Quarantine,
    hands: &mut Hands<'_, O>,
) {
    let now = hands.desk.clock.now;
    match answer {
        Answer::Rows(rows) => {
            let cost = cost(&call, now);
            if let Some(standing) = hands.standing(&call)
                && standing.seen(rows.size(), cost.database_us)
            {
                hands.demoted(&call, "large");
            }
            let output = hands.outputs.find(call.ticket);
            hands.desk.rows(call, lane_rows(rows), cost, output);
        }
        Answer::Failed(failure) => {
            if failure == Failure::Stale
                && let Some(query) = call.query()
            {
                hands.observer.report(&Observation::PlanStale { query: query.name.clone() });
            }
            if matches!(failure, Failure::Refused(_)) && call.coalesced().is_some() {
                quarantine.failed(call.identity(), call.key_slot, &call.values, now);
            }
            let cost = cost(&call, now);
            let output = hands.outputs.find(call.ticket);
            hands.desk.refuse(call, failure.code(), cost, output);
        }
        Answer::Slow => {
            if let Some(standing) = hands.standing(&call)
                && standing.slow()
            {
                hands.demoted(&call, "timeout");
            }
            hands.escaped.push(call);
        }
        // Its own time is longer than a batch's: it goes on by itself, and its query no longer waits here with others.
        Answer::Timeout if call.deadline > now => {
            if let Some(standing) = hands.standing(&call)
                && standing.batch_cut_short()
            {
                hands.demoted(&call, "timeout");
            }
            hands.escaped.push(call);
        }
        Answer::Timeout => {
            let cost = cost(&call, now);
            let output = hands.outputs.find(call.ticket);
            hands.desk.refuse(call, Code::QueryTimeout, cost, output);
        }
        Answer::Again => {
            call.sent_times = call.sent_times.saturating_add(1);
            hands.desk.meter.retries.add(1);
            if call.deadline <= now {
                hands.refuse(call, Code::QueryTimeout);
            } else if call.sent_times >= SENT_AT_MOST {
                hands.refuse(call, Code::DatabaseUnavailable);
            } else {
                queue.push_again(call);
            }
        }
    }
}

/// What a batch's end teaches.
pub(super) fn ended<O: Outputs>(ended: Ended, hands: &mut Hands<'_, O>) {
    let Ended { identity: (slot, version), query, callers, asked, how } = ended;
    hands.desk.meter.batches.ended(callers, asked, how);
    let stopped = match how {
        How::Answered | How::Equal | How::Failed(false) => return,
        How::Unequal => Stopped::Unequal,
        How::Shape => Stopped::Shape,
        How::Failed(true) => Stopped::Refused,
        How::Timeout => {
            let standing = hands.standings.get_mut(slot as usize).filter(|standing| standing.version == version);
            if standing.is_some_and(Standing::batch_late) {
                hands.observer.report(&Observation::QueryDemoted { query, reason: "timeout" });
            }
            return;
        }
    };
    hands.observer.report(&Observation::CoalescingStopped { query, reason: stopped.name() });
}

/// A flush brought nothing for long: its only query moves out; of several, those that are always near.
pub(super) fn suspect(pipeline: &mut Protocol<Box<Call>>, standings: &mut [Standing], observer: &Observer) {
    let mut slots: Vec<(u32, Arc<str>)> = Vec::new();
    pipeline.calls(|call, _| slots.extend(call.query().map(|query| (query.slot, query.name.clone()))));
    slots.sort_unstable();
    slots.dedup();
    let alone = slots.len() == 1;
    for (slot, query) in slots {
        let Some(standing) = standings.get_mut(slot as usize).filter(|standing| standing.shared()) else { continue };
        let out = if alone { standing.slow() } else { standing.suspect() };
        if out {
            observer.report(&Observation::QueryDemoted { query, reason: "slow" });
        }
    }
}
