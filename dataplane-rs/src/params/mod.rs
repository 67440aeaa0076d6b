//! A call's arguments → values to bind, by the declarations of one query (docs/contract.md, "A call" and "Parameter grammar").
//! May reject: everything a caller can get wrong, as `Refused`. IO: none; no allocation for scalar URL arguments that are right.
pub mod decimal;
pub mod grammar;
pub mod json;
mod literal;
mod param;
pub mod pattern;
pub mod url;

use crate::codes::{Code, Fault};
use crate::encode::Format;
use crate::encode::rows::next;
use crate::plan::snapshot::{Engine, PagePlan, ParamPlan};
use foldhash::fast::RandomState;
use json::{Item, Kind};
use param::Param;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A declaration that cannot be compiled; the query is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter {parameter}: {what}")]
pub struct SpecError {
    /// Its name.
    pub parameter: String,
    /// What is wrong.
    pub what: &'static str,
}

/// A key's bindings that do not fit a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The query lacks this parameter: the key may not call it (403).
    #[error("the query has no parameter {0}")]
    Undeclared(String),
    /// The value is not acceptable: the key is refused.
    #[error("the binding of {0} is not acceptable")]
    Fault(String, Fault),
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", code.name())]
pub struct Refused {
    /// `malformed_body`, `malformed_arguments`, `not_acceptable`, `bound_parameter`, `invalid_parameters`.
    pub code: Code,
    /// (Parameter, fault), in the order of docs/contract.md. Only with the last two.
    pub faults: Vec<(String, Fault)>,
}

/// What a call said besides its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given<'a> {
    /// Rows of a page, within 1…maxSize.
    pub page_size: Option<u32>,
    /// As the caller sent it, not opened.
    pub cursor: Option<Cow<'a, [u8]>>,
    /// `format` of the URL or the body.
    pub format: Option<Format>,
}

/// A key's fixed values for one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Per declared parameter: length and value. Empty when the key fixes nothing.
    values: Vec<Option<Vec<u8>>>,
}

/// The declarations of one query, compiled.
#[derive(Debug)]
pub struct Spec {
    params: Vec<Param>,
    /// Name → index, when there are too many to look through.
    index: Option<HashMap<String, usize, RandomState>>,
    /// Largest page; None without paging.
    max_size: Option<u32>,
}

/// Names with a meaning of their own.
const RESERVED: [&str; 3] = ["page_size", "cursor", "format"];
/// Up to here names are compared one by one.
const FEW: usize = 8;
/// Up to here a call's arguments are kept on the stack.
const ON_STACK: usize = 8;

/// Where one parameter was given.
#[derive(Clone, Copy, Default)]
struct Slot<'a> {
    source: Source<'a>,
    duplicate: bool,
}

#[derive(Clone, Copy, Default)]
enum Source<'a> {
    #[default]
    Absent,
    Url(&'a [u8]),
    Body(Item<'a>),
}

impl<'a> Slot<'a> {
    fn give(&mut self, source: Source<'a>) {
        if matches!(self.source, Source::Absent) {
            self.source = source;
        } else {
            self.duplicate = true;
        }
    }
}

/// What a call gave, by name.
struct Arguments<'a, 's> {
    spec: &'s Spec,
    slots: &'s mut [Slot<'a>],
    reserved: [Slot<'a>; 3],
    unknown: Vec<String>,
    /// Of the unknown names; made when there is one.
    seen: Option<HashSet<String>>,
}

impl<'a> Arguments<'a, '_> {
    fn give(&mut self, name: &[u8], source: Source<'a>) {
        if let Some(slot) = self.spec.position(name).and_then(|n| self.slots.get_mut(n)) {
            return slot.give(source);
        }
        if let Some((_, slot)) = RESERVED.iter().zip(&mut self.reserved).find(|(reserved, _)| reserved.as_bytes() == name) {
            return slot.give(source);
        }
        let name = String::from_utf8_lossy(name).into_owned();
        if self.seen.get_or_insert_default().insert(name.clone()) {
            self.unknown.push(name);
        }
    }
}

impl Spec {
    /// Of a query's declarations.
    pub fn compile(params: &[ParamPlan], page: Option<&PagePlan>, engine: Engine) -> Result<Self, SpecError> {
        let mut index = HashMap::with_capacity_and_hasher(params.len(), RandomState::default());
        let mut compiled = Vec::with_capacity(params.len());
        for (n, plan) in params.iter().enumerate() {
            let wrong = |what| SpecError { parameter: plan.name.clone(), what };
            if RESERVED.contains(&plan.name.as_str()) {
                return Err(wrong("the name is reserved"));
            }
            if index.insert(plan.name.clone(), n).is_some() {
                return Err(wrong("is declared twice"));
            }
            compiled.push(Param::compile(plan, engine)?);
        }
        Ok(Self { index: (params.len() > FEW).then_some(index), params: compiled, max_size: page.map(|page| page.max_size) })
    }

    #[inline]
    fn position(&self, name: &[u8]) -> Option<usize> {
        match &self.index {
            None => self.params.iter().position(|param| param.name.as_bytes() == name),
            Some(index) => index.get(std::str::from_utf8(name).ok()?).copied(),
        }
    }

    /// There is a parameter of this name.
    pub fn declares(&self, name: &str) -> bool {
        self.position(name.as_bytes()).is_some()
    }

    /// A key's bindings, checked like a caller's values.
    pub fn bound(&self, bind: &Map<String, Value>) -> Result<Bound, BindError> {
        if bind.is_empty() {
            return Ok(Bound::default());
        }
        let mut values = vec![None; self.params.len()];
        for (name, value) in bind {
            let n = self.position(name.as_bytes()).ok_or_else(|| BindError::Undeclared(name.clone()))?;
            let (Some(param), Some(place)) = (self.params.get(n), values.get_mut(n)) else { continue };
            let mut bytes = Vec::new();
            param.fixed(value, &mut bytes).map_err(|fault| BindError::Fault(name.clone(), fault))?;
            *place = Some(bytes);
        }
        Ok(Bound { values })
    }

    /// Appends one value per declared parameter (i32 length, -1 for NULL, then the value); on an error `out` is as before.
    /// `body` is None without one, and may be empty.
    pub fn decode<'a>(&self, bound: &Bound, query: &'a [u8], body: Option<&'a [u8]>, out: &mut Vec<u8>) -> Result<Given<'a>, Refused> {
        let start = out.len();
        let mut few = [Slot::default(); ON_STACK];
        let mut many = Vec::new();
        let slots = match few.get_mut(..self.params.len()) {
            Some(slots) => slots,
            None => {
                many.resize(self.params.len(), Slot::default());
                &mut many
            }
        };
        let result = self.read(bound, query, body, slots, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn read<'a>(
        &self,
        bound: &Bound,
        query: &'a [u8],
        body: Option<&'a [u8]>,
        slots: &mut [Slot<'a>],
        out: &mut Vec<u8>,
    ) -> Result<Given<'a>, Refused> {
        let refused = |code| Refused { code, faults: Vec::new() };
        let mut arguments = Arguments { spec: self, slots, reserved: Default::default(), unknown: Vec::new(), seen: None };
        let mut malformed = false;
        for (name, value) in url::pairs(query) {
            match url::check(value).and_then(|()| url::decoded(name)) {
                Ok(name) => arguments.give(&name, Source::Url(value)),
                Err(url::Malformed) => malformed = true,
            }
        }
        if let Some(body) = body.filter(|body| !body.is_empty()) {
            let mut plain = Vec::new();
            json::members(body, |name, item| {
                let name = if name.contains(&b'\\') {
                    plain.clear();
                    // The scanner has checked the escapes.
                    let _checked = crate::encode::text::unescape(name, &mut plain);
                    plain.as_slice()
                } else {
                    name
                };
                arguments.give(name, Source::Body(item));
            })
            .map_err(|_| refused(Code::MalformedBody))?;
        }
        if malformed {
            return Err(refused(Code::MalformedArguments));
        }
        let Arguments { slots, reserved: [page_size, cursor, format], unknown, .. } = arguments;
        let mut given = Given { format: requested(format).map_err(|()| refused(Code::NotAcceptable))?, ..Given::default() };
        let mut faults = Vec::new();
        for (n, (param, slot)) in self.params.iter().zip(slots.iter()).enumerate() {
            let fixed = bound.values.get(n).and_then(Option::as_deref);
            let value = match slot {
                Slot { duplicate: true, .. } => Err(Fault::Duplicate),
                Slot { source: Source::Absent, .. } => match fixed {
                    None if param.required => Err(Fault::Missing),
                    fixed => {
                        out.extend_from_slice(fixed.unwrap_or(&param.default));
                        continue;
                    }
                },
                _ if fixed.is_some() => Err(Fault::Bound),
                Slot { source: Source::Url(raw), .. } => param.url(raw, out),
                Slot { source: Source::Body(item), .. } => param.json(*item, out),
            };
            if let Err(fault) = value {
                faults.push((param.name.clone(), fault));
            }
        }
        match self.page_size(page_size) {
            Ok(size) => given.page_size = size,
            Err(fault) => faults.push((RESERVED[0].to_owned(), fault)),
        }
        match self.cursor(cursor) {
            Ok(text) => given.cursor = text,
            Err(fault) => faults.push((RESERVED[1].to_owned(), fault)),
        }
        if format.duplicate {
            faults.push((RESERVED[2].to_owned(), Fault::Duplicate));
        }
        faults.extend(unknown.into_iter().map(|name| (name, Fault::Unknown)));
        if faults.is_empty() {
            return Ok(given);
        }
        let bound = faults.iter().any(|(_, fault)| *fault == Fault::Bound);
        Err(Refused { code: if bound { Code::BoundParameter } else { Code::InvalidParameters }, faults })
    }

    fn page_size(&self, slot: Slot<'_>) -> Result<Option<u32>, Fault> {
        let text = match slot.source {
            Source::Absent => return Ok(None),
            _ if self.max_size.is_none() => return Err(Fault::Unknown),
            _ if slot.duplicate => return Err(Fault::Duplicate),
            Source::Url(raw) => url::decoded(raw).map_err(|_| Fault::Type)?,
            Source::Body(Item { kind: Kind::Null, .. }) => return Err(Fault::Null),
            Source::Body(Item { kind: Kind::Number, bytes, .. }) => Cow::Borrowed(bytes),
            Source::Body(_) => return Err(Fault::Type),
        };
        if !grammar::integer(&text) {
            return Err(Fault::Type);
        }
        match std::str::from_utf8(&text).ok().and_then(|text| text.parse::<i64>().ok()) {
            Some(size) if size < 1 => Err(Fault::Minimum),
            Some(size) if size > i64::from(self.max_size.unwrap_or(0)) => Err(Fault::Maximum),
            size => Ok(size.and_then(|size| u32::try_from(size).ok())),
        }
    }

    fn cursor<'a>(&self, slot: Slot<'a>) -> Result<Option<Cow<'a, [u8]>>, Fault> {
        match slot.source {
            Source::Absent => Ok(None),
            _ if self.max_size.is_none() => Err(Fault::Unknown),
            _ if slot.duplicate => Err(Fault::Duplicate),
            Source::Url(raw) => url::decoded(raw).map(Some).map_err(|_| Fault::Type),
            Source::Body(Item { kind: Kind::Null, .. }) => Err(Fault::Null),
            Source::Body(item) => own_string(item).map(Some).ok_or(Fault::Type),
        }
    }
}

/// The word of `format`, wherever it stands; anything but a format is not acceptable.
fn requested(slot: Slot<'_>) -> Result<Option<Format>, ()> {
    let word = match slot.source {
        Source::Absent => return Ok(None),
        Source::Url(raw) => url::decoded(raw).map_err(|_| ())?,
        Source::Body(item) => own_string(item).ok_or(())?,
    };
    Format::parse(&word).map(Some).ok_or(())
}

fn own_string(item: Item<'_>) -> Option<Cow<'_, [u8]>> {
    if item.kind != Kind::String {
        return None;
    }
    let inside = item.bytes.get(1..item.bytes.len() - 1)?;
    if !inside.contains(&b'\\') {
        return Some(Cow::Borrowed(inside));
    }
    let mut text = Vec::new();
    crate::encode::text::unescape(inside, &mut text)?;
    Some(Cow::Owned(text))
}

/// Appends the values of a statement's places: `values` holds one per declared parameter, `params` names one per place.
/// None if they do not fit each other.
pub fn place(values: &[u8], params: &[u32], out: &mut Vec<u8>) -> Option<()> {
    if params.iter().enumerate().all(|(n, &param)| usize::try_from(param).is_ok_and(|param| param == n)) {
        // In order: the places are the beginning of the values.
        let mut rest = values;
        for _ in params {
            next(&mut rest).ok()?;
        }
        out.extend_from_slice(values.get(..values.len() - rest.len())?);
        return Some(());
    }
    let mut starts = Vec::new();
    let mut rest = values;
    while !rest.is_empty() {
        let before = rest;
        next(&mut rest).ok()?;
        starts.push(before.get(..before.len() - rest.len())?);
    }
    for &param in params {
        out.extend_from_slice(starts.get(usize::try_from(param).ok()?)?);
    }
    Some(())
}

/// Appends an integer value, such as the limit of a page.
pub fn push_integer(n: u64, engine: Engine, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(n).as_bytes();
    let tag: &[u8] = if engine == Engine::Sqlite { b"i" } else { b"" };
    let length = i32::try_from(tag.len() + digits.len()).unwrap_or(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(tag);
    out.extend_from_slice(digits);
}

#[cfg(test)]
mod tests;
