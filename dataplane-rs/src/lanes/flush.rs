//! What leaves together on one lane: calls are drawn fairly, then grouped by query. Enough of one query that may share a statement
//! leave as batches, all others each with its own. Buffers are reused. May reject: calls whose time is over or whose caller left.
//! IO: none.
use super::hands::Hands;
use super::quarantine::Quarantine;
use super::queue::FairQueue;
use super::standing::Standing;
use crate::calls::call::Call;
use crate::calls::desk::{Cost, Outputs};
use crate::codes::Code;
use crate::engine::shared::{Protocol, Question};

/// Calls in one flush, unless the first one's query takes larger batches.
pub const LARGEST_FLUSH: usize = 256;
/// Bytes of one flush; a call that goes beyond is the last of it.
const FLUSH_BYTES: usize = 256 << 10;
/// What a call takes besides its values, about.
const MESSAGE_BYTES: usize = 64;
/// Fewer of one query leave as statements of their own: measured, two in a batch cost more than two singles.
const FEWEST: usize = 4;

/// One thread's buffers for one database.
#[derive(Debug, Default)]
pub struct Flush {
    /// With slot and version of their query: a slot may be another query's by the time that a call which waited long is drawn.
    drawn: Vec<((u32, u64), Box<Call>)>,
    /// Those that leave in batches.
    #[allow(clippy::vec_box, reason = "calls move as boxes")]
    batched: Vec<Box<Call>>,
    /// How many of `batched` make one batch, from the first on.
    sizes: Vec<usize>,
}

impl Flush {
    /// Draws at most `most` calls and hands them to an idle lane; how many left. `elsewhere`: batches of a query under way on other
    /// lanes of this thread.
    pub fn fill<O: Outputs>(
        &mut self,
        most: usize,
        queue: &mut FairQueue<Box<Call>>,
        lane: &mut Protocol<Box<Call>>,
        elsewhere: impl Fn(u32) -> usize,
        quarantine: &Quarantine,
        hands: &mut Hands<'_, O>,
    ) -> usize {
        self.draw(most, queue, hands);
        if self.drawn.len() < FEWEST {
            let size = self.drawn.len();
            self.drawn.drain(..).for_each(|(_, call)| lane.ask(call));
            return size;
        }
        let drawn = self.drawn.len();
        let kept = self.group(lane, elsewhere, quarantine, queue, hands);
        for size in self.sizes.drain(..) {
            lane.ask_batch(self.batched.drain(..size.min(self.batched.len())));
        }
        drawn - kept
    }

    fn draw<O: Outputs>(&mut self, most: usize, queue: &mut FairQueue<Box<Call>>, hands: &mut Hands<'_, O>) {
        let now = hands.desk.clock.now;
        let (mut most, mut bytes) = (most, 0);
        while self.drawn.len() < most && bytes < FLUSH_BYTES {
            let Some(mut call) = queue.pop() else { break };
            if call.deadline <= now {
                hands.refuse(call, Code::QueryTimeout);
                continue;
            }
            if hands.outputs.find(call.ticket).is_none() {
                hands.desk.gone(call, Cost::default());
                continue;
            }
            if self.drawn.is_empty() && most == LARGEST_FLUSH {
                most = call.coalesced().map_or(most, |coalesced| most.max(coalesced.most.into()));
            }
            call.sent = now;
            bytes += call.values.len() + MESSAGE_BYTES;
            self.drawn.push((call.query().map_or((u32::MAX, 0), |query| (query.slot, query.version_id)), call));
        }
    }

    /// Asks singly what is asked singly, and puts the rest into `batched` and `sizes`. How many went back into the queue: of their query
    /// as many batches are under way as may be.
    fn group<O: Outputs>(
        &mut self,
        lane: &mut Protocol<Box<Call>>,
        elsewhere: impl Fn(u32) -> usize,
        quarantine: &Quarantine,
        queue: &mut FairQueue<Box<Call>>,
        hands: &mut Hands<'_, O>,
    ) -> usize {
        let Self { drawn, batched, sizes } = self;
        if !drawn.is_sorted_by_key(|(identity, _)| *identity) {
            drawn.sort_unstable_by_key(|(identity, _)| *identity);
        }
        let now = hands.desk.clock.now;
        let (mut rest, mut kept) = (drawn.drain(..).peekable(), 0);
        while let Some((identity, _)) = rest.peek() {
            let (slot, version) = *identity;
            let start = batched.len();
            while let Some((_, call)) = rest.next_if(|(other, _)| *other == (slot, version)) {
                if call.coalesced().is_some() && quarantine.holds(call.identity(), call.key_slot, &call.values, now) {
                    lane.ask_apart(call);
                } else {
                    batched.push(call);
                }
            }
            let count = batched.len() - start;
            let room = batched.get(start).filter(|_| count >= FEWEST).and_then(|call| {
                let coalesced = call.coalesced().filter(|coalesced| coalesced.verdict.stopped().is_none())?;
                let standing = hands.standings.get(slot as usize).filter(|standing| standing.version == version);
                let size = standing.map_or(FEWEST, |standing| Standing::batch(standing, coalesced.most.into()));
                Some((size, usize::from(coalesced.in_flight).saturating_sub(elsewhere(slot)))).filter(|(size, _)| *size >= FEWEST)
            });
            let Some((size, batches)) = room else {
                batched.drain(start..).for_each(|call| lane.ask(call));
                continue;
            };
            let mut left = count;
            for _ in 0..batches {
                if left < FEWEST {
                    break;
                }
                sizes.push(left.min(size));
                left -= left.min(size);
            }
            let end = batched.len() - left;
            // Too few for a batch go along by themselves; more wait until one of those under way is answered.
            for call in batched.drain(end..) {
                if left < FEWEST {
                    lane.ask(call);
                } else {
                    queue.push_again(call);
                    kept += 1;
                }
            }
        }
        kept
    }
}
