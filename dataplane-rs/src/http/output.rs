//! One connection's answers, in the order of its requests, whichever lane is first. May reject: nothing. IO: none.
//!
//! Bytes leave only after `commit` and `release`: until a turn's runs are recorded, its answers can still be taken back.

/// Answers of one connection.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// The first `sent` bytes are with the kernel.
    sent: usize,
    /// The first `committed` bytes stand for runs that are recorded.
    committed: usize,
    /// The first `released` bytes may leave.
    released: usize,
    /// Bytes that were in front of these.
    base: u64,
    asked: u32,
    answered: u32,
    /// Answers that came before their turn. Bounded by the pipeline depth.
    early: Vec<(u32, Vec<u8>)>,
    /// After this answer the connection ends.
    last: Option<u32>,
    /// The newest answer is to be the last.
    retiring: bool,
    /// Counts that follow the answer where trailers are not among its bytes.
    counts: Option<(u64, bool)>,
    stream: Stream,
}

/// The answer whose turn it is, if it comes in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stream {
    #[default]
    None,
    /// Its head was written since the last commit.
    Fresh,
    /// Its head is recorded.
    Recorded,
}

/// What taking back has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retracted {
    /// The connection ends with another answer.
    Replaced,
    /// So it does; a stream's head was among what was taken back.
    StreamLost,
    /// A stream is in its middle: the connection can only be cut.
    Cut,
}

/// An empty buffer above this is given back, bytes.
const KEEP: usize = 16 << 10;

impl Output {
    /// Draws the number of the next request.
    pub fn ask(&mut self) -> u32 {
        let number = self.asked;
        self.asked = self.asked.wrapping_add(1);
        number
    }

    /// Requests without an answer.
    pub fn open(&self) -> u32 {
        self.asked.wrapping_sub(self.answered)
    }

    /// No request waits for its answer.
    pub fn idle(&self) -> bool {
        self.asked == self.answered
    }

    /// It is this request's turn: all before it are answered.
    pub fn turn(&self, number: u32) -> bool {
        self.answered == number
    }

    /// How many answers stand before this one.
    pub fn ahead(&self, number: u32) -> u32 {
        number.wrapping_sub(self.answered)
    }

    /// No request was read after this one.
    pub fn newest(&self, number: u32) -> bool {
        number.wrapping_add(1) == self.asked
    }

    /// Rows and whether they are all, for trailers of an answer whose bytes don't hold them (HTTP/2).
    pub fn end_with_counts(&mut self, counts: Option<(u64, bool)>) {
        self.counts = counts;
    }

    /// These counts.
    pub fn counts(&self) -> Option<(u64, bool)> {
        self.counts
    }

    /// All that was asked is answered, and nothing is held back of it.
    pub fn whole(&self) -> bool {
        self.idle() && self.released == self.bytes.len()
    }

    /// Says that the connection ends with this answer.
    pub fn end_with(&mut self, number: u32) {
        self.last = Some(number);
    }

    /// The connection is to end when it can without leaving a request unanswered.
    pub fn retire(&mut self) {
        self.retiring = true;
    }

    /// It ends as soon as it can.
    pub fn retiring(&self) -> bool {
        self.retiring
    }

    /// Whether this answer says `Connection: close`, because its request did or because the connection retires.
    #[inline]
    pub fn says_close(&mut self, number: u32, asked: bool) -> bool {
        let close = asked || (self.retiring && self.newest(number));
        if close {
            self.end_with(number);
        }
        close
    }

    /// Some answer was said to be the last: no further request is read.
    pub fn closing(&self) -> bool {
        self.last.is_some()
    }

    /// The answer that ends the connection was given (or nothing is asked and it may end).
    pub fn ended(&self) -> bool {
        self.last.is_some_and(|last| self.answered.wrapping_sub(last) as i32 > 0)
    }

    /// Puts a whole answer at its place.
    #[inline]
    pub fn answer(&mut self, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
        if number == self.answered {
            write(&mut self.bytes);
            self.close(number);
        } else {
            let mut bytes = Vec::new();
            write(&mut bytes);
            self.early.push((number, bytes));
        }
    }

    /// A stream begins: its turn must have come.
    pub fn begin(&mut self) -> &mut Vec<u8> {
        self.stream = Stream::Fresh;
        &mut self.bytes
    }

    /// Bytes of a stream whose turn it is, or of something before any answer (`100 Continue`).
    pub fn part(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The stream with this number has ended; what waited behind it follows.
    #[inline]
    pub fn close(&mut self, number: u32) {
        debug_assert_eq!(number, self.answered);
        self.stream = Stream::None;
        self.answered = self.answered.wrapping_add(1);
        while !self.early.is_empty() && !self.ended() {
            let Some(at) = self.early.iter().position(|(number, _)| *number == self.answered) else { break };
            let (_, bytes) = self.early.swap_remove(at);
            self.bytes.extend_from_slice(&bytes);
            self.answered = self.answered.wrapping_add(1);
        }
    }

    /// What was written so far is recorded. Returns the position for `release`.
    #[inline]
    pub fn commit(&mut self) -> u64 {
        self.committed = self.bytes.len();
        if self.stream == Stream::Fresh {
            self.stream = Stream::Recorded;
        }
        self.base + self.committed as u64
    }

    /// What stands before a position that `commit` returned may leave.
    #[inline]
    pub fn release(&mut self, position: u64) {
        let end = usize::try_from(position.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.released = self.released.max(end.min(self.committed));
    }

    /// Takes back what was not committed and ends the connection with `last` in its place.
    pub fn retract(&mut self, last: &[u8]) -> Retracted {
        if self.stream == Stream::Recorded {
            return Retracted::Cut;
        }
        self.bytes.truncate(self.committed);
        self.early.clear();
        self.bytes.extend_from_slice(last);
        self.answered = self.asked;
        self.last = Some(self.asked.wrapping_sub(1));
        if std::mem::take(&mut self.stream) == Stream::None { Retracted::Replaced } else { Retracted::StreamLost }
    }

    /// Bytes that may leave now.
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.sent..self.released).unwrap_or_default()
    }

    /// Bytes that were written and not yet taken by the kernel.
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The kernel took so many of `pending`.
    pub fn took(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            // A stream's next piece is likely as large as its last one.
            if self.bytes.capacity() > KEEP && self.stream == Stream::None {
                self.bytes.shrink_to(KEEP);
            }
            self.base += self.sent as u64;
            (self.sent, self.committed, self.released) = (0, 0, 0);
        } else if self.sent > KEEP && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.base += self.sent as u64;
            self.committed -= self.sent;
            self.released -= self.sent;
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(output: &mut Output) -> Vec<u8> {
        let position = output.commit();
        output.release(position);
        let bytes = output.pending().to_vec();
        output.took(bytes.len());
        bytes
    }

    #[test]
    fn nothing_follows_the_last_answer() {
        let mut output = Output::default();
        let (a, b) = (output.ask(), output.ask());
        output.end_with(a);
        output.answer(b, |out| out.push(b'b'));
        output.answer(a, |out| out.push(b'a'));
        assert!(output.ended());
        assert_eq!(text(&mut output), b"a");
    }

    #[test]
    fn what_was_not_released_can_be_taken_back() {
        let mut output = Output::default();
        let (a, b) = (output.ask(), output.ask());
        output.answer(a, |out| out.push(b'a'));
        let position = output.commit();
        output.answer(b, |out| out.push(b'b'));
        output.release(position);
        assert_eq!(output.pending(), b"a");
        assert_eq!(output.retract(b"x"), Retracted::Replaced);
        assert!(output.ended());
        assert_eq!(text(&mut output), b"ax");
    }

    #[test]
    fn a_stream_is_taken_back_only_before_its_head_is_recorded() {
        let mut output = Output::default();
        output.ask();
        output.begin().push(b'1');
        assert_eq!(output.retract(b"x"), Retracted::StreamLost);
        assert_eq!(text(&mut output), b"x");
        let mut output = Output::default();
        let a = output.ask();
        output.begin().push(b'1');
        output.commit();
        output.part().push(b'2');
        assert_eq!(output.retract(b"x"), Retracted::Cut);
        output.close(a);
        assert_eq!(text(&mut output), b"12");
    }

    #[test]
    fn a_stream_holds_those_behind_it() {
        let mut output = Output::default();
        let (a, b) = (output.ask(), output.ask());
        output.part().push(b'1');
        output.answer(b, |out| out.push(b'b'));
        assert_eq!(text(&mut output), b"1");
        output.part().push(b'2');
        output.close(a);
        assert!(output.idle());
        assert_eq!(text(&mut output), b"2b");
    }

    proptest! {
        #[test]
        fn answers_leave_in_the_order_of_their_requests(order in Just((0u32..20).collect::<Vec<_>>()).prop_shuffle(), start in any::<u32>(), takes in prop::collection::vec(1usize..9, 1..40)) {
            let mut output = Output { asked: start, answered: start, ..Output::default() };
            (0..20).for_each(|_| { output.ask(); });
            let mut sent = Vec::new();
            let mut takes = takes.into_iter().cycle();
            for n in order {
                output.answer(start.wrapping_add(n), |out| out.push(n as u8));
                let position = output.commit();
                output.release(position);
                let take = output.pending().len().min(takes.next().unwrap_or(1));
                sent.extend_from_slice(output.pending().get(..take).unwrap_or_default());
                output.took(take);
            }
            sent.extend_from_slice(&text(&mut output));
            prop_assert_eq!(sent, (0u8..20).collect::<Vec<_>>());
        }
    }
}
