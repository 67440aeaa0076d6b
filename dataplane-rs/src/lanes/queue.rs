//! Calls that wait for a lane: drawn round-robin across API keys, so that one key's crowd can't hold up another's single call.
//! May reject: what is beyond the bound. IO: none.
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;

/// A fair queue. `T` waits under its key's slot.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Those that were sent once already and came back: they leave first.
    again: VecDeque<T>,
    /// By key slot: its line, or NONE.
    line_of: Vec<u32>,
    lines: Vec<Line<T>>,
    free: Vec<u32>,
    /// Lines with someone in them; the first is drawn from next.
    turn: VecDeque<u32>,
    len: usize,
    bound: usize,
}

#[derive(Debug)]
struct Line<T> {
    slot: u32,
    calls: VecDeque<T>,
}

impl<T> FairQueue<T> {
    /// Holds at most `bound`; more are refused at once.
    pub fn new(bound: usize) -> Self {
        Self { again: VecDeque::new(), line_of: Vec::new(), lines: Vec::new(), free: Vec::new(), turn: VecDeque::new(), len: 0, bound }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes one in, or gives it back when the queue is full.
    pub fn push(&mut self, slot: u32, call: T) -> Result<(), T> {
        if self.len >= self.bound {
            return Err(call);
        }
        let at = slot as usize;
        if at >= self.line_of.len() {
            self.line_of.resize(at + 1, NONE);
        }
        let Some(line_of) = self.line_of.get_mut(at) else { return Err(call) };
        if *line_of == NONE {
            let line = self.free.pop().unwrap_or_else(|| {
                self.lines.push(Line { slot, calls: VecDeque::new() });
                u32::try_from(self.lines.len() - 1).unwrap_or(NONE)
            });
            *line_of = line;
            self.turn.push_back(line);
        }
        let Some(line) = self.lines.get_mut(*line_of as usize) else { return Err(call) };
        line.slot = slot;
        line.calls.push_back(call);
        self.len += 1;
        Ok(())
    }

    /// Puts one back in front of all: it was drawn before. Not bounded: there are no more of these than were on lanes.
    pub fn push_again(&mut self, call: T) {
        self.again.push_back(call);
        self.len += 1;
    }

    /// Draws the next.
    pub fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        if let Some(call) = self.again.pop_front() {
            self.len -= 1;
            return Some(call);
        }
        let at = self.turn.pop_front()?;
        let line = self.lines.get_mut(at as usize)?;
        let call = line.calls.pop_front()?;
        self.len -= 1;
        if line.calls.is_empty() {
            let slot = line.slot as usize;
            self.leave(slot, at);
        } else {
            self.turn.push_back(at);
        }
        Some(call)
    }

    fn leave(&mut self, slot: usize, line: u32) {
        if let Some(line_of) = self.line_of.get_mut(slot) {
            *line_of = NONE;
        }
        self.free.push(line);
    }

    /// Takes out all that `gone` says, in no particular order.
    pub fn remove(&mut self, mut gone: impl FnMut(&T) -> bool, mut take: impl FnMut(T)) {
        let mut sift = |calls: &mut VecDeque<T>| {
            let before = calls.len();
            for _ in 0..before {
                if let Some(call) = calls.pop_front() {
                    if gone(&call) { take(call) } else { calls.push_back(call) }
                }
            }
            before - calls.len()
        };
        self.len -= sift(&mut self.again);
        let turn = std::mem::take(&mut self.turn);
        for at in turn {
            let Some(line) = self.lines.get_mut(at as usize) else { continue };
            self.len -= sift(&mut line.calls);
            if line.calls.is_empty() {
                let slot = line.slot as usize;
                self.leave(slot, at);
            } else {
                self.turn.push_back(at);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_call_does_not_wait_behind_a_crowd() {
        let mut queue = FairQueue::new(1000);
        (0..100).for_each(|n| queue.push(7, (7, n)).unwrap());
        queue.push(3, (3, 0)).unwrap();
        queue.push(9, (9, 0)).unwrap();
        let first: Vec<_> = (0..4).filter_map(|_| queue.pop()).collect();
        assert_eq!(first, [(7, 0), (3, 0), (9, 0), (7, 1)]);
    }

    #[test]
    fn beyond_the_bound_is_given_back() {
        let mut queue = FairQueue::new(2);
        assert_eq!((queue.push(0, 1), queue.push(1, 2), queue.push(2, 3)), (Ok(()), Ok(()), Err(3)));
        queue.push_again(0);
        assert_eq!((queue.pop(), queue.pop(), queue.pop(), queue.pop()), (Some(0), Some(1), Some(2), None));
    }

    proptest! {
        #[test]
        fn all_leave_once_in_order_of_their_key(calls in prop::collection::vec((0u32..6, any::<bool>()), 0..60), drop_odd in any::<bool>()) {
            let mut queue = FairQueue::new(1000);
            let mut left = Vec::new();
            for (n, (slot, pop)) in calls.iter().enumerate() {
                queue.push(*slot, (*slot, n)).unwrap();
                if *pop { left.extend(queue.pop()); }
            }
            let mut removed = Vec::new();
            if drop_odd { queue.remove(|(_, n)| n % 2 == 1, |call| removed.push(call)); }
            let rest = queue.len();
            let drained: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            prop_assert_eq!(rest, drained.len());
            left.extend(drained);
            for slot in 0..6 {
                let own: Vec<_> = left.iter().filter(|(s, _)| *s == slot).map(|(_, n)| *n).collect();
                prop_assert!(own.is_sorted());
            }
            left.extend(removed);
            left.sort_by_key(|(_, n)| *n);
            prop_assert_eq!(left, calls.iter().enumerate().map(|(n, (slot, _))| (*slot, n)).collect::<Vec<_>>());
        }
    }
}
