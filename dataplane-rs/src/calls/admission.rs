//! The single checks of a request that is for a query, in the order in which `core` makes them. Pure.
//! May reject: with the contract's codes.
use super::call::{Asked, Call, Pinned};
use crate::codes::{Code, Fault};
use crate::encode::Format;
use crate::encode::cursor::Subject;
use crate::http::client::Body;
use crate::http::head::{Field, Head, Method, Protocol};
use crate::http::negotiate::{self, Coding};
use crate::params::{self, BindError, Bound, url};
use crate::plan::snapshot::Returns;
use crate::plan::tables::{Query, Tables, Variant};
use std::sync::Arc;

/// Rows of a JSON answer without paging, unless its query is unbounded.
const JSON_ROWS: u32 = 10_000;
/// Bindings that a thread remembers for one snapshot. Beyond it they are compiled at each call.
const BOUND: usize = 100_000;
/// Why a call is refused before it is sent.
#[derive(Debug)]
pub struct Refusal {
    /// What the caller is told.
    pub code: Code,
    /// Which parameters are wrong, and how.
    pub faults: Vec<(String, Fault)>,
    /// Methods that would be right.
    pub allow: Option<&'static str>,
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Self {
        Self { code, faults: Vec::new(), allow: None }
    }
}

/// Methods of reads.
pub const ALLOW: &str = "GET, HEAD, POST, OPTIONS";
/// Methods of writes.
pub const ALLOW_WRITE: &str = "POST, OPTIONS";

/// A key's fixed values for a query; None when the query lacks one of them, or can't take it.
#[cold]
pub fn bindings(
    plan: &Pinned,
    key_at: u32,
    query_at: u32,
    query: &Query,
    bind: &serde_json::Map<String, serde_json::Value>,
) -> Option<Arc<Bound>> {
    if let Some(known) = plan.bound.borrow().get(&(key_at, query_at)) {
        return known.clone();
    }
    let bound = match query.spec.bound(bind) {
        Ok(bound) => Some(Arc::new(bound)),
        // The second is refused when the key is compiled: here it fails closed.
        Err(BindError::Undeclared(_) | BindError::Fault(..)) => None,
    };
    let mut known = plan.bound.borrow_mut();
    if known.len() < BOUND {
        known.insert((key_at, query_at), bound.clone());
    }
    bound
}

/// The format of the answer, by `format=` in the URL, else `Accept`.
pub fn format(head: &Head<'_>) -> Result<Format, Code> {
    let requested = if head.arguments.is_empty() { None } else { url::requested(head.arguments).map_err(|_| Code::NotAcceptable)? };
    match head.accept {
        Field::Absent | Field::Once(b"*/*" | b"application/json") => Ok(requested.unwrap_or(Format::Json)),
        Field::Once(value) => negotiate::format(requested, [value]).map_err(|_| Code::NotAcceptable),
        Field::Several => negotiate::format(requested, values(head, "accept")).map_err(|_| Code::NotAcceptable),
    }
}

/// How the body may be compressed.
pub fn coding(head: &Head<'_>) -> Coding {
    match head.accept_encoding {
        Field::Absent => Coding::Identity,
        Field::Once(value) => negotiate::coding([value]),
        Field::Several => negotiate::coding(values(head, "accept-encoding")),
    }
}

/// All lines of a header.
pub fn values<'a>(head: &'a Head<'_>, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    head.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name.as_bytes())).map(|header| header.value)
}

/// Puts `If-None-Match`, all lines of it, where the answer's tag will be looked for.
pub fn condition(head: &Head<'_>, list: &mut Vec<u8>) {
    match head.if_none_match {
        Field::Absent => {}
        Field::Once(value) => list.extend_from_slice(value),
        Field::Several => list.extend_from_slice(&head.joined("if-none-match")),
    }
}

/// `Prefer: timing` was sent.
pub fn timing(head: &Head<'_>) -> bool {
    let asks = |value: &[u8]| value.split(|&b| b == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"timing"));
    match head.prefer {
        Field::Absent => false,
        Field::Once(value) => asks(value),
        Field::Several => values(head, "prefer").any(asks),
    }
}

/// The JSON body of a POST: media type (415) before size (413).
#[inline]
pub fn check_body<'a>(head: &Head<'_>, body: Body<'a>) -> Result<Option<&'a [u8]>, Box<Refusal>> {
    if head.method != Method::Post || body == Body::Whole(&[]) {
        return Ok(None);
    }
    let json = match head.content_type {
        Field::Once(value) => {
            let end = value.iter().position(|&b| b == b';').unwrap_or(value.len());
            value.get(..end).is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
        }
        Field::Absent | Field::Several => false,
    };
    let coded = match head.content_encoding {
        Field::Absent => false,
        Field::Once(coding) => !coding.eq_ignore_ascii_case(b"identity"),
        Field::Several => true,
    };
    if !json || coded {
        return Err(Box::new(Code::UnsupportedMediaType.into()));
    }
    match body {
        Body::Whole(body) => Ok(Some(body)),
        Body::TooLarge => Err(Box::new(Code::BodyTooLarge.into())),
    }
}

/// Puts the values in the places of the statement that answers the call.
#[inline]
#[allow(clippy::too_many_arguments, reason = "all that is known of the call by now")]
pub fn place(
    call: &mut Call,
    tables: &Tables,
    query: &Query,
    query_at: u32,
    sight: u32,
    values: &[u8],
    given: &params::Given<'_>,
    key: &str,
) -> Result<(), Box<Refusal>> {
    let mut asked = Asked { query: query_at, sight, variant: Variant::Plain, rows: JSON_ROWS, limit: 0 };
    let internal = || Box::new(Refusal::from(Code::InternalError));
    let Some(page) = &query.page else {
        (asked.rows, asked.limit) = match query.returns {
            Returns::One => (1, 2),
            Returns::None => (0, 0),
            // One answer among several is never a stream.
            Returns::Many if call.form.format == Format::Json && (!query.unbounded || call.form.protocol == Protocol::Part) => {
                (JSON_ROWS, JSON_ROWS + 1)
            }
            Returns::Many => (u32::MAX, 0),
        };
        call.asked = asked;
        return params::place(values, &query.statement.plan.params, &mut call.values).ok_or_else(internal);
    };
    asked.rows = given.page_size.unwrap_or(page.plan.default_size);
    let engine = tables.backends.get(query.connection as usize).ok_or_else(internal)?.plan.engine;
    match &given.cursor {
        None => {
            asked.variant = Variant::First;
            params::place(values, &page.first.plan.params, &mut call.values).ok_or_else(internal)?;
        }
        Some(cursor) => {
            asked.variant = Variant::Next;
            params::place(values, &page.next.plan.params, &mut call.values).ok_or_else(internal)?;
            let subject = Subject { key, query: &query.name, version: &query.version };
            let opener = tables.cursor_key.as_ref().ok_or_else(internal)?;
            let opened = opener.open(subject, cursor, page.plan.keys.len(), engine, &mut call.values);
            opened.map_err(|_| Box::new(Refusal::from(Code::InvalidCursor)))?;
        }
    }
    params::push_integer(u64::from(asked.rows) + 1, engine, &mut call.values);
    call.asked = asked;
    Ok(())
}

/// 1 to 255 printable ASCII characters, and a table to keep it in.
#[cold]
pub fn idempotency(call: &mut Call, head: &Head<'_>, tables: &Tables, query: &Query, values: &[u8]) -> Result<(), Box<Refusal>> {
    let key = match head.idempotency_key {
        Field::Absent => return Ok(()),
        Field::Several => return Err(Box::new(Code::InvalidIdempotencyKey.into())),
        Field::Once(key) => key,
    };
    let table = tables.backends.get(query.connection as usize).and_then(|backend| backend.plan.idempotency_table.as_ref());
    if table.is_none() {
        return Err(Box::new(Code::IdempotencyUnavailable.into()));
    }
    if key.is_empty() || key.len() > 255 || !key.iter().all(|b| matches!(b, b' '..=b'~')) {
        return Err(Box::new(Code::InvalidIdempotencyKey.into()));
    }
    let arguments = crate::engine::arguments(&query.name, values);
    call.idempotency = Some(Box::new((String::from_utf8_lossy(key).into_owned(), arguments)));
    Ok(())
}

/// The call's values by parameter, as a JSON object of texts.
#[cold]
pub fn record(query: &Query, values: &[u8]) -> String {
    let mut object = serde_json::Map::new();
    let mut rest = values;
    for name in &query.params {
        let value = crate::encode::rows::next(&mut rest).ok().flatten();
        let text = value.map_or(serde_json::Value::Null, |value| String::from_utf8_lossy(value).into_owned().into());
        object.insert(name.to_string(), text);
    }
    serde_json::Value::Object(object).to_string()
}
