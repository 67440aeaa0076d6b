//! Several calls in one body: `{"calls": [{…}, …]}` in, one JSON array of answers and problems out (docs/contract.md, "Bulk").
//! Pure. May reject: nothing; a body that is not of this form is that of one call.
use super::head::Protocol;
use super::negotiate::Coding;
use super::response::{self, Date, Form, Success};
use crate::codes::Code;
use crate::params::json::{self, Item, Kind};
use crate::runs::RunId;
use std::ops::Range;

/// The body's only member. A query that declares a parameter of this name is never asked so.
pub const MEMBER: &str = "calls";
/// Calls in a body at most.
pub const CALLS: usize = 256;
/// A larger body of one answer is refused, bytes.
pub const ANSWER: usize = 16 << 10;

/// Whether a body begins like several calls: `{`, `"calls"`, `:`, `[`, with any blanks between.
pub fn begins(body: &[u8]) -> bool {
    let mut rest = body;
    for token in [&b"{"[..], b"\"calls\"", b":", b"["] {
        let Some(after) = rest.trim_ascii_start().strip_prefix(token) else { return false };
        rest = after;
    }
    true
}

/// Where the calls of a body stand; None when it is not an object whose only member holds an array.
pub fn calls(body: &[u8]) -> Option<Vec<Range<usize>>> {
    let (mut found, mut members) = (None, 0);
    json::members(body, |name, item| {
        members += 1;
        found = (name == MEMBER.as_bytes() && item.kind == Kind::Array).then_some(item);
    })
    .ok()?;
    let array = found.filter(|_| members == 1)?;
    let start = offset(body, array.bytes)?;
    let mut calls = Vec::new();
    let mut inside = true;
    json::elements(array, |item: Item<'_>| match offset(array.bytes, item.bytes) {
        Some(at) => calls.push(start + at..start + at + item.bytes.len()),
        None => inside = false,
    })
    .ok()?;
    inside.then_some(calls)
}

/// Where a part of `whole` begins in it.
fn offset(whole: &[u8], part: &[u8]) -> Option<usize> {
    let at = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (at + part.len() <= whole.len()).then_some(at)
}

/// Appends what stands before the body of an answer.
pub fn success(answer: &Success<'_>, out: &mut Vec<u8>) {
    begin(200, Some(answer.run), out);
    if let Some(rows) = answer.rows {
        out.extend_from_slice(b",\"rows\":");
        out.extend_from_slice(itoa::Buffer::new().format(rows).as_bytes());
    }
    match answer.truncated {
        Some(false) => out.extend_from_slice(b",\"truncated\":false"),
        Some(true) => out.extend_from_slice(b",\"truncated\":true"),
        None => {}
    }
    if let Some(next) = answer.next {
        // A query's name and base64url: nothing in it is escaped.
        out.extend_from_slice(b",\"next\":\"");
        out.extend_from_slice(next);
        out.push(b'"');
    }
    out.extend_from_slice(b",\"body\":");
}

/// Appends what stands before the body of a problem.
pub fn problem(code: Code, run: Option<RunId>, out: &mut Vec<u8>) {
    begin(code.status(), run, out);
    out.extend_from_slice(b",\"body\":");
}

fn begin(status: u16, run: Option<RunId>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"status\":");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    if let Some(run) = run {
        let mut id = [0; RunId::TEXT];
        run.write(&mut id);
        out.extend_from_slice(b",\"run\":\"");
        out.extend_from_slice(&id);
        out.push(b'"');
    }
}

/// Ends an answer; another may follow.
#[inline]
pub fn end(form: Form, out: &mut Vec<u8>) {
    if form.protocol == Protocol::Part {
        out.extend_from_slice(b"},");
    }
}

/// Appends the whole answer that is made of `parts`, each as this module writes it. `packed`: room for compression.
pub fn answer(form: Form, date: &Date, parts: &[u8], out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(parts.len() + 1);
    body.push(b'[');
    body.extend_from_slice(parts.strip_suffix(b",").unwrap_or(parts));
    body.push(b']');
    let mut packed = Vec::new();
    let small = body.len() <= crate::calls::desk::COMPRESS_FROM || form.coding == Coding::Identity;
    let (coding, sent) = match !small && super::compress::whole(form.coding, &body, &mut packed) {
        true => (form.coding, &packed),
        false => (Coding::Identity, &body),
    };
    response::bulk(form, date, sent.len(), coding, out);
    out.extend_from_slice(sent);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(body: &str) -> Option<Vec<&str>> {
        let all = calls(body.as_bytes()).filter(|_| begins(body.as_bytes()))?;
        Some(all.into_iter().map(|range| body.get(range).unwrap()).collect())
    }

    #[test]
    fn calls_stand_as_they_were_written() {
        assert_eq!(found("{\"calls\":[]}"), Some(vec![]));
        let body = " {\t\"calls\" :\r\n [ {\"id\": 1} , null,[{}],\"é\",{} ] } ";
        assert_eq!(found(body), Some(vec!["{\"id\": 1}", "null", "[{}]", "\"é\"", "{}"]));
    }

    #[test]
    fn everything_else_is_one_call() {
        for body in [
            "",
            "{}",
            "[]",
            "{\"calls\":{}}",
            "{\"calls\":null}",
            "{\"calls\":[],\"a\":1}",
            "{\"a\":1,\"calls\":[]}",
            "{\"calls\":[],\"calls\":[]}",
            "{\"calls\":[1,]}",
            "{\"calls\":[1]",
            "{\"calls\":[1]}x",
            "{\"c\\u0061lls\":[]}",
            "{\"Calls\":[]}",
        ] {
            assert_eq!(found(body), None, "{body}");
        }
    }

    proptest! {
        #[test]
        fn what_begins_so_and_is_json_is_found(names in prop::collection::vec("[a-z\"é{}]{0,5}", 0..6)) {
            let items: Vec<_> = names.iter().map(|name| serde_json::json!({ "name": name }).to_string()).collect();
            let body = format!("{{\"calls\":[{}]}}", items.join(" ,"));
            prop_assert_eq!(found(&body).unwrap(), items);
        }
    }
}
