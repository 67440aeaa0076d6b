//! A problem's bytes as they were last written, for the next of the same kind within the second: whoever is refused because there is too
//! much to do must cost little. May reject: nothing. IO: none.
use crate::codes::Code;
use crate::encode::problem;
use crate::http::response::{self, Date, Form};
use crate::runs::RunId;

/// One thread's last refusal over HTTP/1.1, less the run id.
#[derive(Debug, Default)]
pub struct Refused {
    of: Option<(Code, u64)>,
    bytes: Vec<u8>,
    /// Where the run id stands in it: in the head and in the body.
    ids: [usize; 2],
    /// Bytes of its body.
    body: usize,
}

impl Refused {
    /// Appends head and body; the body's length.
    #[inline]
    pub fn write(&mut self, code: Code, run: RunId, date: &Date, out: &mut Vec<u8>) -> usize {
        if self.of != Some((code, date.second())) {
            self.prepare(code, run, date);
        }
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let mut id = [0; RunId::TEXT];
        run.write(&mut id);
        for at in self.ids {
            if let Some(place) = out.get_mut(start + at..start + at + RunId::TEXT) {
                place.copy_from_slice(&id);
            }
        }
        self.body
    }

    #[cold]
    fn prepare(&mut self, code: Code, run: RunId, date: &Date) {
        let mut body = Vec::new();
        problem::write(code, Some(run), &[], &mut body);
        self.bytes.clear();
        response::problem(Form::default(), date, code, Some(run), None, body.len(), &mut self.bytes);
        let head = self.bytes.len();
        self.bytes.extend_from_slice(&body);
        let mut id = [0; RunId::TEXT];
        run.write(&mut id);
        let find = |from: usize| self.bytes.get(from..)?.windows(id.len()).position(|window| window == id).map(|at| from + at);
        // Both are always there; without, the next is prepared anew.
        (self.of, self.ids) = match find(0).zip(find(head)) {
            Some((first, second)) => (Some((code, date.second())), [first, second]),
            None => (None, [0; 2]),
        };
        self.body = body.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(code: Code, run: RunId, date: &Date) -> Vec<u8> {
        let (mut body, mut out) = (Vec::new(), Vec::new());
        problem::write(code, Some(run), &[], &mut body);
        response::problem(Form::default(), date, code, Some(run), None, body.len(), &mut out);
        [out, body].concat()
    }

    #[test]
    fn as_if_it_were_written_anew() {
        let (mut refused, mut date) = (Refused::default(), Date::default());
        for second in [1, 1, 2] {
            date.tick(second);
            for code in Code::ALL {
                for sequence in 1..3 {
                    let run = RunId { epoch: 7, sequence: sequence << 40 };
                    let mut out = b"before".to_vec();
                    let length = refused.write(code, run, &date, &mut out);
                    let whole = whole(code, run, &date);
                    assert_eq!(out, [b"before", &whole[..]].concat());
                    let mut body = Vec::new();
                    problem::write(code, Some(run), &[], &mut body);
                    assert_eq!(length, body.len());
                }
            }
        }
    }
}
