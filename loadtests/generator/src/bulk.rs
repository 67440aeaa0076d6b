//! Answers of several calls in one body: an array with one entry a call, `{"status":200,"run":"ID",…,"body":…}`, in their order. Pure.
//! Entries are told apart by how they begin, which no value of a load's own tables looks like; rejects nothing, finds fewer instead.
use crate::run_ids::{self, RunId};

const BEGIN: &[u8] = b"{\"status\":";
const RUN: &[u8] = b",\"run\":\"";

/// One call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// 0: not a number.
    pub status: u16,
    /// Of its run, if it was recorded.
    pub run_id: Option<RunId>,
    /// The whole entry.
    pub text: &'a [u8],
}

/// Every entry of a body.
pub fn entries(body: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut begins = memchr::memmem::find_iter(body, BEGIN).peekable();
    std::iter::from_fn(move || {
        let begin = begins.next()?;
        let text = body.get(begin..begins.peek().copied().unwrap_or(body.len()))?;
        let rest = text.get(BEGIN.len()..)?;
        let (digits, rest) = rest.split_at_checked(3).unwrap_or((b"", rest));
        let status = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let run_id = rest.strip_prefix(RUN).and_then(|rest| rest.get(..29)).and_then(run_ids::parse);
        Some(Entry { status, run_id, text })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn entries_are_told_apart() {
        let body = br#"[{"status":200,"run":"0000019f2b3c4d5e-00000000002a","rows":1,"truncated":false,"body":{"id":1}},{"status":422,"body":{"x":1}},{"status":"#;
        let found: Vec<_> = entries(body).collect();
        assert_eq!(
            found.iter().map(|entry| (entry.status, entry.run_id.is_some())).collect::<Vec<_>>(),
            [(200, true), (422, false), (0, false)]
        );
        assert!(found[0].text.ends_with(b"{\"id\":1}},") && found[1].text.ends_with(b"{\"x\":1}},"));
        assert_eq!(entries(b"[]").count() + entries(b"").count() + entries(b"{\"title\":\"no\"}").count(), 0);
    }
}
