//! One declared parameter: what its texts must be, and what is bound. Rejects by `Fault`. IO: none.
use super::json::{self, Item, Kind};
use super::{SpecError, decimal, grammar, literal, pattern, url};
use crate::codes::Fault;
use crate::encode::text::{string, unescape};
use crate::plan::snapshot::{Engine, ParamPlan, ParamType};
use regex::Regex;
use serde_json::Value;
use std::cmp::Ordering;

/// A compiled declaration.
#[derive(Debug)]
pub struct Param {
    /// As callers write it.
    pub name: String,
    pub required: bool,
    /// Bound when absent: length and value.
    pub default: Vec<u8>,
    kind: ParamType,
    array: bool,
    nullable: bool,
    engine: Engine,
    allowed: Option<Vec<Vec<u8>>>,
    minimum: Option<Limit>,
    maximum: Option<Limit>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    pattern: Option<Regex>,
}

/// One end of the range that a number may be in.
#[derive(Debug)]
enum Limit {
    /// Of an integer, where the limit is one: compared without cutting texts up.
    Whole(i64),
    /// Any other.
    Decimal(String),
}

impl Limit {
    fn of(kind: ParamType, text: &str) -> Self {
        match text.parse() {
            Ok(whole) if kind == ParamType::Integer => Self::Whole(whole),
            _ => Self::Decimal(text.to_owned()),
        }
    }

    /// A value's text against this limit.
    #[inline]
    fn compare(&self, text: &[u8]) -> Ordering {
        match self {
            Self::Decimal(limit) => decimal::compare(text, limit.as_bytes()),
            Self::Whole(limit) => whole(text).cmp(limit),
        }
    }
}

/// The number that a text of the integer grammar means.
#[inline]
fn whole(text: &[u8]) -> i64 {
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    // Downwards, because the least int64 has no positive twin. The grammar has shown that it fits.
    let below = digits.iter().fold(0i64, |n, &b| n.wrapping_mul(10).wrapping_sub(i64::from(b - b'0')));
    if negative { below } else { below.wrapping_neg() }
}

/// NULL in the framing of values.
const NULL: [u8; 4] = (-1i32).to_be_bytes();

impl Param {
    pub fn compile(plan: &ParamPlan, engine: Engine) -> Result<Self, SpecError> {
        let wrong = |what| SpecError { parameter: plan.name.clone(), what };
        let numeric = matches!(plan.kind, ParamType::Integer | ParamType::Number);
        for bound in [&plan.minimum, &plan.maximum].into_iter().flatten() {
            if !numeric || !grammar::number(bound.as_bytes()) {
                return Err(wrong("minimum and maximum are decimals, of integer and number"));
            }
        }
        if (plan.min_length.is_some() || plan.max_length.is_some() || plan.pattern.is_some()) && plan.kind != ParamType::String {
            return Err(wrong("minLength, maxLength and pattern are of string"));
        }
        let pattern = match &plan.pattern {
            Some(text) => Some(pattern::compile(text).map_err(|_| wrong("the pattern is outside the portable subset"))?),
            None => None,
        };
        let length = |n: Option<u32>| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let mut param = Self {
            name: plan.name.clone(),
            required: plan.required,
            default: NULL.to_vec(),
            kind: plan.kind,
            array: plan.array,
            nullable: plan.nullable,
            engine,
            allowed: None,
            minimum: plan.minimum.as_deref().map(|text| Limit::of(plan.kind, text)),
            maximum: plan.maximum.as_deref().map(|text| Limit::of(plan.kind, text)),
            min_length: length(plan.min_length),
            max_length: length(plan.max_length),
            pattern,
        };
        if let Some(values) = &plan.allowed {
            if plan.kind == ParamType::Json {
                return Err(wrong("enum cannot be of json"));
            }
            let mut allowed = Vec::with_capacity(values.len());
            for value in values {
                let mut text = literal::text(plan.kind, value).ok_or(wrong("a value of enum has another type"))?;
                param.normalise(&mut text, 0).map_err(|_| wrong("a value of enum has another type"))?;
                allowed.push(text);
            }
            param.allowed = Some(allowed);
        }
        if !plan.default.is_null() {
            let mut default = Vec::new();
            param.fixed(&plan.default, &mut default).map_err(|_| wrong("the default is not acceptable"))?;
            param.default = default;
        }
        Ok(param)
    }

    /// Appends a value that the plan holds (a default, a key binding).
    pub fn fixed(&self, value: &Value, out: &mut Vec<u8>) -> Result<(), Fault> {
        if value.is_null() {
            return self.null(out);
        }
        let start = begin(out);
        if self.array {
            let Value::Array(elements) = value else { return Err(Fault::Type) };
            let mut list = List::begin(self, out);
            for element in elements {
                let text = if element.is_null() { None } else { literal::text(self.kind, element) };
                list.element(|out| text.map(|text| out.extend_from_slice(&text)).ok_or(Fault::Type))?;
            }
            list.end()?;
        } else {
            self.scalar(|out| literal::text(self.kind, value).map(|text| out.extend_from_slice(&text)).ok_or(Fault::Type), out)?;
        }
        finish(start, out)
    }

    /// Appends a value of the URL (its escapes are checked).
    #[inline]
    pub fn url(&self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = begin(out);
        if self.array {
            let text = url::decoded(raw).map_err(|_| Fault::Type)?;
            let mut list = List::begin(self, out);
            if !text.is_empty() {
                for element in text.split(|&b| b == b',') {
                    list.element(|out| {
                        out.extend_from_slice(element);
                        Ok(())
                    })?;
                }
            }
            list.end()?;
        } else {
            self.scalar(|out| url::decode(raw, out).map_err(|_| Fault::Type), out)?;
        }
        finish(start, out)
    }

    /// Appends a value of the body.
    pub fn json(&self, item: Item<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        if item.kind == Kind::Null {
            return self.null(out);
        }
        let start = begin(out);
        if self.array {
            if item.kind != Kind::Array {
                return Err(Fault::Type);
            }
            let mut list = List::begin(self, out);
            let mut failed = Ok(());
            json::elements(item, |element| {
                if failed.is_ok() {
                    failed = list.element(|out| self.token(element, out));
                }
            })
            .map_err(|_| Fault::Type)?;
            failed?;
            list.end()?;
        } else {
            self.scalar(|out| self.token(item, out), out)?;
        }
        finish(start, out)
    }

    fn null(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if !self.nullable {
            return Err(Fault::Null);
        }
        out.extend_from_slice(&NULL);
        Ok(())
    }

    /// Appends the text that a JSON token of the right type stands for.
    fn token(&self, item: Item<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        match (self.kind, item.kind) {
            (_, Kind::Null) => Err(Fault::Type), // inside a list
            (ParamType::Json, _) if !item.nul => {
                out.extend_from_slice(item.bytes);
                Ok(())
            }
            (ParamType::Integer | ParamType::Number, Kind::Number) | (ParamType::Boolean, Kind::Boolean) => {
                out.extend_from_slice(item.bytes);
                Ok(())
            }
            (ParamType::String | ParamType::Date | ParamType::Time | ParamType::Timestamp | ParamType::Uuid, Kind::String) if !item.nul => {
                let inside = item.bytes.get(1..item.bytes.len() - 1).ok_or(Fault::Type)?;
                unescape(inside, out).ok_or(Fault::Type)
            }
            _ => Err(Fault::Type),
        }
    }

    /// Appends one value that is no list: `write` appends its text.
    #[inline]
    fn scalar(&self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let tag = out.len();
        if self.engine == Engine::Sqlite {
            out.push(b't');
        }
        let start = out.len();
        write(out)?;
        self.normalise(out, start)?;
        self.constraints(out.get(start..).unwrap_or_default()).map_or(Ok(()), Err)?;
        if self.engine == Engine::Sqlite {
            self.store(out, tag);
        }
        Ok(())
    }

    /// Checks the text at `out[start..]` against the grammar and gives it its bound form.
    #[inline]
    fn normalise(&self, out: &mut Vec<u8>, start: usize) -> Result<(), Fault> {
        let text = out.get_mut(start..).ok_or(Fault::Type)?;
        let sound = match self.kind {
            ParamType::Integer => grammar::integer(text),
            ParamType::Number => grammar::number(text),
            ParamType::String => !text.contains(&0),
            ParamType::Boolean => text == b"true" || text == b"false",
            ParamType::Date => grammar::date(text),
            ParamType::Time => grammar::time(text),
            ParamType::Timestamp => grammar::timestamp(text),
            ParamType::Uuid => grammar::uuid(text),
            ParamType::Json => json::text(text).is_ok_and(|item| !item.nul),
        };
        if !sound {
            return Err(Fault::Type);
        }
        match self.kind {
            ParamType::Uuid => text.make_ascii_lowercase(),
            ParamType::Integer if text == b"-0" => {
                out.truncate(start);
                out.push(b'0');
            }
            _ => {}
        }
        Ok(())
    }

    /// The first thing that is wrong with a text of the right type, in the order of `Fault`.
    #[inline]
    fn constraints(&self, text: &[u8]) -> Option<Fault> {
        let numeric = matches!(self.kind, ParamType::Integer | ParamType::Number);
        if let Some(allowed) = &self.allowed {
            let equal = |value: &Vec<u8>| if numeric { decimal::compare(value, text) == Ordering::Equal } else { value == text };
            if !allowed.iter().any(equal) {
                return Some(Fault::Enum);
            }
        }
        if self.minimum.as_ref().is_some_and(|minimum| minimum.compare(text) == Ordering::Less) {
            return Some(Fault::Minimum);
        }
        if self.maximum.as_ref().is_some_and(|maximum| maximum.compare(text) == Ordering::Greater) {
            return Some(Fault::Maximum);
        }
        if self.min_length.is_some() || self.max_length.is_some() {
            let length = text.iter().filter(|&&b| b & 0xc0 != 0x80).count();
            if self.min_length.is_some_and(|least| length < least) {
                return Some(Fault::MinLength);
            }
            if self.max_length.is_some_and(|most| length > most) {
                return Some(Fault::MaxLength);
            }
        }
        match &self.pattern {
            Some(pattern) if !std::str::from_utf8(text).is_ok_and(|text| pattern.is_match(text)) => Some(Fault::Pattern),
            _ => None,
        }
    }

    /// Gives the text behind `out[tag]` the storage class that SQLite binds.
    fn store(&self, out: &mut Vec<u8>, tag: usize) {
        let text = std::str::from_utf8(out.get(tag + 1..).unwrap_or_default()).unwrap_or_default();
        let (class, value) = match self.kind {
            ParamType::Integer => (b'i', None),
            ParamType::Boolean => (b'i', Some(if text == "true" { b"1".to_vec() } else { b"0".to_vec() })),
            ParamType::Number => match text.parse::<i64>() {
                Ok(0) => (b'i', Some(b"0".to_vec())),
                Ok(_) => (b'i', None),
                Err(_) => (b'r', Some(text.parse::<f64>().unwrap_or(f64::NAN).to_be_bytes().to_vec())),
            },
            _ => return,
        };
        if let Some(value) = value {
            out.truncate(tag + 1);
            out.extend_from_slice(&value);
        }
        if let Some(place) = out.get_mut(tag) {
            *place = class;
        }
    }
}

/// Writes a list: a PostgreSQL array literal, or on SQLite and MySQL a compact JSON array.
struct List<'a> {
    param: &'a Param,
    out: &'a mut Vec<u8>,
    first: bool,
    /// The first of all elements' faults, in the order of `Fault`.
    fault: Option<Fault>,
}

impl<'a> List<'a> {
    fn begin(param: &'a Param, out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(match param.engine {
            Engine::Postgres => b"{",
            Engine::Sqlite => b"t[",
            Engine::Mysql => b"[",
        });
        Self { param, out, first: true, fault: None }
    }

    fn element(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), Fault>) -> Result<(), Fault> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        let json = self.param.engine != Engine::Postgres;
        let bare = json && matches!(self.param.kind, ParamType::Integer | ParamType::Number | ParamType::Boolean | ParamType::Json);
        if !bare {
            self.out.push(b'"');
        }
        let start = self.out.len();
        write(self.out)?;
        self.param.normalise(self.out, start)?; // the first of all faults that are left
        let text = self.out.get(start..).unwrap_or_default();
        if let Some(fault) = self.param.constraints(text) {
            self.fault = Some(self.fault.map_or(fault, |other| if (other as u8) < fault as u8 { other } else { fault }));
        }
        if bare {
            return Ok(());
        }
        if json {
            let text = self.out.split_off(start);
            self.out.pop();
            return string(&text, self.out).map_err(|_| Fault::Type);
        }
        if memchr::memchr2(b'"', b'\\', text).is_some() {
            for byte in self.out.split_off(start) {
                if matches!(byte, b'"' | b'\\') {
                    self.out.push(b'\\');
                }
                self.out.push(byte);
            }
        }
        self.out.push(b'"');
        Ok(())
    }

    fn end(self) -> Result<(), Fault> {
        self.out.push(if self.param.engine == Engine::Postgres { b'}' } else { b']' });
        self.fault.map_or(Ok(()), Err)
    }
}

/// Leaves room for a length; returns where.
fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    start
}

/// Fills the length in.
fn finish(start: usize, out: &mut [u8]) -> Result<(), Fault> {
    let length = i32::try_from(out.len() - start - 4).map_err(|_| Fault::Type)?;
    out.get_mut(start..start + 4).ok_or(Fault::Type)?.copy_from_slice(&length.to_be_bytes());
    Ok(())
}
