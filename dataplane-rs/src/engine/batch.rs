//! Calls of one query that leave as one statement, whatever the engine: identical ones are asked once, answers find their callers by
//! `ord`. Buffers are reused. May reject: an `ord` that nobody asked (`Broken::Protocol`). IO: none.
use super::shared::{Answer, Broken, Place, Question, Rows};
use std::hash::BuildHasher;

/// One of a batch's callers.
#[derive(Debug)]
pub struct Caller<Q> {
    /// Who.
    pub call: Q,
    /// Already answered otherwise (its deadline passed): what comes is dropped.
    pub told: bool,
    /// What it asks, 0-based.
    asks: u32,
}

/// Callers of one statement.
#[derive(Debug)]
pub struct Batch<Q> {
    callers: Vec<Caller<Q>>,
    /// What is asked, in order: the first caller that asks it.
    asked: Vec<u32>,
    /// Open addressing: hash of values → place in `asked` + 1.
    index: Vec<u32>,
    /// By what is asked: where its rows stand among the places.
    ranges: Vec<(u32, u32)>,
    /// By what is asked: how far its values were read.
    read: Vec<u32>,
}

impl<Q> Default for Batch<Q> {
    fn default() -> Self {
        Self { callers: Vec::new(), asked: Vec::new(), index: Vec::new(), ranges: Vec::new(), read: Vec::new() }
    }
}

impl<Q: Question> Batch<Q> {
    /// Takes the calls in. All are of one query version, without paging.
    pub fn fill(&mut self, calls: impl Iterator<Item = Q>, hasher: &impl BuildHasher) {
        self.clear();
        self.callers.extend(calls.map(|call| Caller { call, told: false, asks: 0 }));
        let size = u16::try_from(self.callers.len()).unwrap_or(u16::MAX);
        self.index.resize((self.callers.len() * 2).next_power_of_two(), 0);
        let mask = self.index.len() - 1;
        for at in 0..self.callers.len() {
            let Some(caller) = self.callers.get(at) else { break };
            let values = caller.call.values();
            let mut slot = hasher.hash_one(values) as usize & mask;
            let asks = loop {
                match self.index.get(slot).copied().unwrap_or(0).checked_sub(1) {
                    None => break None,
                    Some(known) => {
                        let first = self.asked.get(known as usize).and_then(|&first| self.callers.get(first as usize));
                        if first.is_some_and(|first| first.call.values() == values) {
                            break Some(known);
                        }
                        slot = (slot + 1) & mask;
                    }
                }
            };
            let asks = asks.unwrap_or_else(|| {
                self.asked.push(at as u32);
                if let Some(entry) = self.index.get_mut(slot) {
                    *entry = self.asked.len() as u32;
                }
                self.asked.len() as u32 - 1
            });
            if let Some(caller) = self.callers.get_mut(at) {
                caller.asks = asks;
                caller.call.shares(size);
            }
        }
    }

    /// Nobody is in it any more.
    pub fn clear(&mut self) {
        self.callers.clear();
        self.asked.clear();
        self.index.clear();
    }

    /// Callers in it.
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// Nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// Different questions in it.
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// The caller that stands for all who ask this, 0-based.
    pub fn asker(&self, asked: usize) -> Option<&Q> {
        Some(&self.callers.get(*self.asked.get(asked)? as usize)?.call)
    }

    /// Any of its callers: the query's texts are the same for all.
    pub fn any(&self) -> Option<&Q> {
        Some(&self.callers.first()?.call)
    }

    /// Each caller, and whether it was told otherwise.
    pub fn each(&mut self, each: &mut impl FnMut(&mut Q, &mut bool)) {
        self.callers.iter_mut().for_each(|caller| each(&mut caller.call, &mut caller.told));
    }

    /// Starts reading values by column: then `column` once for each place of the statement.
    pub fn columns(&mut self) {
        self.read.clear();
        self.read.resize(self.asked.len(), 0);
    }

    /// The next place's value of each question, in order; None is NULL. False when one of them has no such value.
    pub fn column(&mut self, mut each: impl FnMut(Option<&[u8]>)) -> bool {
        let Self { callers, asked, read, .. } = self;
        for (first, read) in asked.iter().zip(read) {
            let values = callers.get(*first as usize).map_or(&[][..], |caller| caller.call.values());
            let mut rest = values.get(*read as usize..).unwrap_or_default();
            let Ok(value) = crate::encode::rows::next(&mut rest) else { return false };
            *read = (values.len() - rest.len()) as u32;
            each(value);
        }
        true
    }

    /// Sorts rows to who asked for them. `places` must have their `ord`.
    pub fn sort(&mut self, places: &mut [Place]) -> Result<(), Broken> {
        if !places.is_sorted_by_key(|place| place.ord) {
            // Rows of one asker keep the order in which they came.
            places.sort_unstable_by_key(|place| (place.ord, place.start));
        }
        self.ranges.clear();
        let mut at = 0;
        for ord in 1..=self.asked.len() as u32 {
            let start = at;
            while places.get(at).is_some_and(|place| place.ord == ord) {
                at += 1;
            }
            self.ranges.push((start as u32, at as u32));
        }
        // What is left is nobody's (0, or beyond the last).
        if at == places.len() { Ok(()) } else { Err(Broken::Protocol) }
    }

    /// Tells each caller its rows, once these are sorted, and is empty then.
    #[inline]
    pub fn answer(&mut self, data: &[u8], places: &[Place], tell: &mut impl FnMut(Q, Answer<'_>)) {
        for Caller { call, told, asks } in self.callers.drain(..) {
            let (start, end) = self.ranges.get(asks as usize).copied().unwrap_or_default();
            let own = places.get(start as usize..end as usize).unwrap_or_default();
            if !told {
                tell(call, Answer::Rows(Rows::new(data, own)));
            }
        }
        self.clear();
    }

    /// Hands the callers out that were not told otherwise, and is empty then.
    pub fn hand_out(&mut self, mut each: impl FnMut(Q)) {
        self.callers.drain(..).filter(|caller| !caller.told).for_each(|caller| each(caller.call));
        self.clear();
    }
}

/// A batch whose questions are also asked one by one, in one snapshot: its rows, and theirs.
#[derive(Debug)]
pub struct Shadow<Q> {
    /// Who waits for both.
    pub batch: Box<Batch<Q>>,
    bytes: Vec<u8>,
    places: Vec<Place>,
    singles: Vec<u8>,
    single_places: Vec<Place>,
    /// The question that is answered next, 0-based.
    next: u32,
}

impl<Q: Question> Shadow<Q> {
    /// Keeps a batch's rows; they must be sorted.
    pub fn new(batch: Box<Batch<Q>>, data: &[u8], places: &[Place]) -> Self {
        let mut shadow = Self { batch, bytes: Vec::new(), places: Vec::new(), singles: Vec::new(), single_places: Vec::new(), next: 0 };
        keep(data, places, None, &mut shadow.bytes, &mut shadow.places);
        shadow
    }

    /// Who asks what is answered next.
    pub fn asker(&self) -> Option<&Q> {
        self.batch.asker(self.next as usize)
    }

    /// Keeps what the next question's own statement brought.
    pub fn single(&mut self, data: &[u8], places: &[Place]) {
        self.next += 1;
        keep(data, places, Some(self.next), &mut self.singles, &mut self.single_places);
    }

    /// The batch said what the statements of its own questions said.
    pub fn equal(&self) -> bool {
        let row = |bytes: &'_ [u8], place: &Place| bytes.get(place.start as usize..place.end as usize).map(<[u8]>::to_vec);
        self.next as usize == self.batch.asked()
            && self.places.len() == self.single_places.len()
            && self
                .places
                .iter()
                .zip(&self.single_places)
                .all(|(ours, single)| ours.ord == single.ord && row(&self.bytes, ours) == row(&self.singles, single))
    }

    /// Tells each caller what its question's own statement brought.
    pub fn answer(mut self, tell: &mut impl FnMut(Q, Answer<'_>)) -> Box<Batch<Q>> {
        // The numbering is our own: this can't fail.
        let _ours = self.batch.sort(&mut self.single_places);
        self.batch.answer(&self.singles, &self.single_places, tell);
        self.batch
    }
}

/// Takes `ord` off the front of a batch's row.
#[inline]
pub fn ordinal(data: &[u8], place: &mut Place) -> Result<(), Broken> {
    let mut row = data.get(place.start as usize..place.end as usize).ok_or(Broken::Protocol)?;
    let digits = crate::encode::rows::next(&mut row).ok().flatten().ok_or(Broken::Protocol)?;
    if digits.is_empty() || digits.len() > 9 {
        return Err(Broken::Protocol);
    }
    let mut ord = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Broken::Protocol);
        }
        ord = ord * 10 + u32::from(digit);
    }
    (place.ord, place.start) = (ord, place.end - row.len() as u32);
    Ok(())
}

/// Appends rows, as those of `ord` if one is given.
fn keep(data: &[u8], places: &[Place], ord: Option<u32>, bytes: &mut Vec<u8>, kept: &mut Vec<Place>) {
    for place in places {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(data.get(place.start as usize..place.end as usize).unwrap_or_default());
        kept.push(Place { ord: ord.unwrap_or(place.ord), start, end: bytes.len() as u32 });
    }
}
