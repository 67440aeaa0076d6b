//! What is asked and what must come back: request templates with keys, and expectations over the same key.
//! `{}` (or `{0}`) stands for the key, `{1}`, `{2}`, … for further tab-separated fields of the key's line. Pure but for `Keys::read`.
//! May reject: a field that a range of numbers cannot have, an empty file, a request that is not HTTP.
use std::path::Path;

use crate::arrivals::Random;
use crate::{h2, hpack};

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadTemplate {
    /// A range has only `{}`.
    #[error("{0:?} asks for field {1}, but the keys are a range of numbers or a line with fewer fields")]
    NoField(String, usize),
    /// Nothing to choose from.
    #[error("there are no keys")]
    NoKeys,
    /// Not FROM..TO or @FILE.
    #[error("keys must be FROM..TO (inclusive) or @FILE")]
    BadKeys,
    /// Cannot be read.
    #[error("the file of keys cannot be read: {0}")]
    Unreadable(String),
    /// Would be another request than meant.
    #[error("{0:?} holds a line break, or a blank where HTTP allows none")]
    NotHttp(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(usize),
}

/// Text with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

impl Pattern {
    /// Reads `{}` and `{digits}`; every other brace is text.
    pub fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('{') {
            let (before, after) = (rest.get(..at).unwrap_or(""), rest.get(at + 1..).unwrap_or(""));
            plain.push_str(before);
            match after.split_once('}') {
                Some((digits, tail)) if digits.len() <= 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain).into_bytes()));
                    }
                    pieces.push(Piece::Field(digits.parse().unwrap_or(0)));
                    rest = tail;
                }
                _ => {
                    plain.push('{');
                    rest = after;
                }
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain.into_bytes()));
        }
        Self(pieces)
    }

    /// Highest field asked for.
    fn fields(&self) -> Option<usize> {
        self.0.iter().filter_map(|piece| if let Piece::Field(n) = piece { Some(*n) } else { None }).max()
    }

    /// Appends the text for one key.
    pub fn render(&self, keys: &Keys, key: u64, out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Field(field) => keys.field(key, *field, out),
            }
        }
    }
}

/// Where keys come from: a key is a number of the range, or a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// One fixed request.
    None,
    /// Both ends inclusive.
    Range {
        /// First.
        from: u64,
        /// Last.
        to: u64,
    },
    /// Lines of a file: its text, and where each line begins and ends.
    Lines {
        /// Everything.
        text: Vec<u8>,
        /// Ranges of `text`.
        lines: Vec<(usize, usize)>,
    },
}

impl Keys {
    /// `FROM..TO` or `@FILE`.
    pub fn read(spec: &str) -> Result<Self, BadTemplate> {
        if let Some(path) = spec.strip_prefix('@') {
            let text = std::fs::read(Path::new(path)).map_err(|error| BadTemplate::Unreadable(error.to_string()))?;
            return Self::lines(text);
        }
        let (from, to) = spec.split_once("..").ok_or(BadTemplate::BadKeys)?;
        let (from, to) = (from.parse().map_err(|_| BadTemplate::BadKeys)?, to.parse().map_err(|_| BadTemplate::BadKeys)?);
        if from > to || to - from == u64::MAX { Err(BadTemplate::BadKeys) } else { Ok(Self::Range { from, to }) }
    }

    /// Lines of a text; empty ones are skipped.
    pub fn lines(text: Vec<u8>) -> Result<Self, BadTemplate> {
        let (mut lines, mut begin) = (Vec::new(), 0);
        for end in memchr::memchr_iter(b'\n', &text).chain([text.len()]) {
            if end > begin {
                lines.push((begin, end));
            }
            begin = end + 1;
        }
        if lines.is_empty() { Err(BadTemplate::NoKeys) } else { Ok(Self::Lines { text, lines }) }
    }

    /// Chooses one, uniformly.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::None => 0,
            Self::Range { from, to } => from + random.below(to - from + 1),
            Self::Lines { lines, .. } => random.below(lines.len() as u64),
        }
    }

    fn line(&self, key: u64) -> &[u8] {
        match self {
            Self::Lines { text, lines } => lines.get(key as usize).and_then(|&(from, to)| text.get(from..to)).unwrap_or(b""),
            _ => b"",
        }
    }

    fn field(&self, key: u64, field: usize, out: &mut Vec<u8>) {
        if let Self::Range { .. } = self {
            out.extend_from_slice(itoa::Buffer::new().format(key).as_bytes());
        } else if let Some(text) = self.line(key).split(|&byte| byte == b'\t').nth(field) {
            out.extend_from_slice(text);
        }
    }

    /// Fewest fields of any key.
    fn width(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Range { .. } => 1,
            Self::Lines { text, lines } => {
                let tabs = |&(from, to): &(usize, usize)| memchr::memchr_iter(b'\t', text.get(from..to).unwrap_or(b"")).count();
                lines.iter().map(tabs).min().unwrap_or(0) + 1
            }
        }
    }
}

/// What the body must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// Only the status counts.
    #[default]
    Any,
    /// Somewhere.
    Contains(Pattern),
    /// At its begin.
    Prefix(Pattern),
    /// All of it.
    Equals(Pattern),
}

/// What an answer must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Any of these.
    pub statuses: Vec<u16>,
    /// Of these statuses.
    pub body: Body,
}

/// How an answer turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As expected.
    Right,
    /// An expected status with another body.
    WrongBody,
    /// Another status.
    OtherStatus,
}

impl Expect {
    /// Compares; `scratch` is reused. `whole` is false when only the beginning of the body is at hand.
    pub fn check(&self, keys: &Keys, key: u64, status: u16, body: &[u8], whole: bool, scratch: &mut Vec<u8>) -> Verdict {
        if !self.statuses.contains(&status) {
            return Verdict::OtherStatus;
        }
        let (Body::Contains(pattern) | Body::Prefix(pattern) | Body::Equals(pattern)) = &self.body else { return Verdict::Right };
        scratch.clear();
        pattern.render(keys, key, scratch);
        let right = match &self.body {
            Body::Contains(_) => memchr::memmem::find(body, scratch).is_some(),
            Body::Prefix(_) => body.starts_with(scratch),
            Body::Equals(_) => whole && body == scratch.as_slice(),
            Body::Any => true,
        };
        if right { Verdict::Right } else { Verdict::WrongBody }
    }
}

/// One kind of call.
#[derive(Clone, Debug)]
pub struct Template {
    /// In the report.
    pub name: String,
    /// Share of calls, relative to the others.
    pub weight: u64,
    /// HEAD answers have no body.
    pub head: bool,
    /// Whose keys fill the holes.
    pub keys: Keys,
    /// What must come back; of several calls in one body, of each.
    pub expect: Expect,
    /// Calls in one request's body; None: the request is one call.
    pub bulk: Option<u32>,
    before_body: Pattern,
    body: Option<Pattern>,
    method: Vec<u8>,
    path: Pattern,
    host: Vec<u8>,
    /// Names in lower case, as HTTP/2 writes them.
    fields: Vec<(Vec<u8>, Pattern)>,
}

/// The parts of a template as they are written.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Token.
    pub method: &'a str,
    /// Request target with holes.
    pub path: &'a str,
    /// `Name: value` lines with holes.
    pub headers: &'a [String],
    /// With holes.
    pub body: Option<&'a str>,
    /// Of the Host header.
    pub host: &'a str,
}

impl Template {
    /// Checks and prepares it.
    pub fn new(name: String, weight: u64, parts: &Parts<'_>, keys: Keys, expect: Expect) -> Result<Self, BadTemplate> {
        let Parts { method, path, headers, body, host } = *parts;
        let blank = |text: &str| text.is_empty() || text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        for text in [method, path, host] {
            if blank(text) {
                return Err(BadTemplate::NotHttp(text.to_owned()));
            }
        }
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        for header in headers {
            let name = header.split(':').next().unwrap_or("");
            if !header.contains(':') || blank(name) || header.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Err(BadTemplate::NotHttp(header.clone()));
            }
            text.push_str(header);
            text.push_str("\r\n");
        }
        let field = |header: &String| {
            let (name, value) = header.split_once(':').unwrap_or((header, ""));
            (name.to_ascii_lowercase().into_bytes(), Pattern::parse(value.trim()))
        };
        let template = Self {
            name,
            weight,
            head: method == "HEAD",
            keys,
            expect,
            bulk: None,
            before_body: Pattern::parse(&text),
            body: body.map(Pattern::parse),
            method: method.as_bytes().to_vec(),
            path: Pattern::parse(path),
            host: host.as_bytes().to_vec(),
            fields: headers.iter().map(field).filter(|(name, _)| name != b"host").collect(),
        };
        let expected = match &template.expect.body {
            Body::Any => None,
            Body::Contains(pattern) | Body::Prefix(pattern) | Body::Equals(pattern) => Some(pattern),
        };
        let width = template.keys.width();
        for pattern in [Some(&template.before_body), template.body.as_ref(), expected].into_iter().flatten() {
            if let Some(field) = pattern.fields()
                && field >= width
            {
                return Err(BadTemplate::NoField(template.name, field));
            }
        }
        Ok(template)
    }

    /// Several calls a request: each is the body with a key of its own.
    pub fn in_bulk(mut self, calls: u32) -> Self {
        self.bulk = Some(calls);
        self
    }

    /// Calls of one request.
    pub fn calls(&self) -> u64 {
        self.bulk.map_or(1, u64::from)
    }

    /// What a request is about: a key, or what the keys of its calls are drawn from.
    pub fn draw(&self, random: &mut Random) -> u64 {
        if self.bulk.is_some() { random.bits() } else { self.keys.draw(random) }
    }

    /// The keys of a request's calls, in their order.
    pub fn keys_of(&self, drawn: u64) -> impl Iterator<Item = u64> + '_ {
        let mut random = Random::new(drawn);
        (0..self.bulk.unwrap_or(0)).map(move |_| self.keys.draw(&mut random))
    }

    fn render_body(&self, body: &Pattern, key: u64, out: &mut Vec<u8>) {
        if self.bulk.is_none() {
            return body.render(&self.keys, key, out);
        }
        out.extend_from_slice(b"{\"calls\":[");
        for (n, key) in self.keys_of(key).enumerate() {
            if n > 0 {
                out.push(b',');
            }
            body.render(&self.keys, key, out);
        }
        out.extend_from_slice(b"]}");
    }

    /// Appends one request: its own headers, the API key's, and the body with its length.
    pub fn render(&self, key: u64, api_key: &[u8], out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        self.before_body.render(&self.keys, key, out);
        if !api_key.is_empty() {
            out.extend_from_slice(b"X-API-Key: ");
            out.extend_from_slice(api_key);
            out.extend_from_slice(b"\r\n");
        }
        let Some(body) = &self.body else { return out.extend_from_slice(b"\r\n") };
        scratch.clear();
        self.render_body(body, key, scratch);
        out.extend_from_slice(b"Content-Length: ");
        out.extend_from_slice(itoa::Buffer::new().format(scratch.len()).as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(scratch);
    }
}

impl Template {
    /// Appends one request as HTTP/2 frames; fields are written out, so that it depends on no other request.
    pub fn render_h2(&self, key: u64, api_key: &[u8], stream: u32, secure: bool, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        h2::request(stream, self.body.is_some(), out, |out| {
            match self.method.as_slice() {
                b"GET" => out.push(0x82),
                b"POST" => out.push(0x83),
                other => {
                    out.push(0x02);
                    hpack::write_string(other, out);
                }
            }
            out.push(if secure { 0x87 } else { 0x86 });
            out.push(0x01);
            hpack::write_string(&self.host, out);
            let mut write = |prefix: u8, name: &[u8], value: &Pattern| {
                scratch.clear();
                value.render(&self.keys, key, scratch);
                out.push(prefix);
                if prefix == 0 {
                    hpack::write_string(name, out);
                }
                hpack::write_string(scratch, out);
            };
            write(0x04, b"", &self.path);
            self.fields.iter().for_each(|(name, value)| write(0, name, value));
            if !api_key.is_empty() {
                out.push(0);
                hpack::write_string(b"x-api-key", out);
                hpack::write_string(api_key, out);
            }
        });
        if let Some(body) = &self.body {
            scratch.clear();
            body.render(&self.keys, key, scratch);
            h2::body(stream, scratch, out);
        }
    }
}

/// Chooses templates by their weights.
#[derive(Clone, Debug)]
pub struct Mix(Vec<u64>);

impl Mix {
    /// Cumulative; templates of weight 0 are never chosen.
    pub fn new(templates: &[Template]) -> Self {
        let mut sum = 0;
        Self(
            templates
                .iter()
                .map(|template| {
                    sum += template.weight;
                    sum
                })
                .collect(),
        )
    }

    /// Index of the next template.
    pub fn draw(&self, random: &mut Random) -> usize {
        match self.0.as_slice() {
            [] | [_] => 0,
            sums => {
                let point = random.below(sums.last().copied().unwrap_or(1).max(1));
                sums.partition_point(|&sum| sum <= point)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn rendered(text: &str, keys: &Keys, key: u64) -> String {
        let mut out = Vec::new();
        Pattern::parse(text).render(keys, key, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn template(parts: &Parts<'_>, keys: Keys, body: Body) -> Result<Template, BadTemplate> {
        Template::new("t".to_owned(), 1, parts, keys, Expect { statuses: vec![200], body })
    }

    const GET: Parts<'_> = Parts { method: "GET", path: "/q/a?id={}", headers: &[], body: None, host: "h" };

    #[test]
    fn only_holes_are_filled() {
        let keys = Keys::lines(b"7\tseven\n\n8\teight".to_vec()).unwrap();
        assert_eq!(rendered("{}", &keys, 0), "7");
        assert_eq!(rendered(r#"{"id":{},"a":{},"n":"{1}{"}"#, &keys, 1), r#"{"id":8,"a":8,"n":"eight{"}"#);
        assert_eq!(rendered("{{}}{x}{100}{", &keys, 0), "{7}{x}{100}{");
        assert_eq!(rendered("é{}é", &Keys::Range { from: 1, to: 2 }, 2), "é2é");
    }

    proptest! {
        #[test]
        fn text_without_braces_is_text(text in "[^{]*") {
            prop_assert_eq!(rendered(&text, &Keys::None, 0), text);
        }

        #[test]
        fn any_pattern_is_read(text: String) {
            let _ = Pattern::parse(&text);
        }

        #[test]
        fn a_request_is_http(key: u64, path in "/[!-z]{0,20}", body in proptest::option::of("[a-z{}]{0,20}")) {
            let parts = Parts { method: "POST", path: &path, headers: &["A: b".to_owned()], body: body.as_deref(), host: "127.0.0.1:1" };
            if let Ok(template) = template(&parts, Keys::Range { from: 0, to: 9 }, Body::Any) {
                let (mut out, mut scratch) = (Vec::new(), Vec::new());
                template.render(key, b"k", &mut out, &mut scratch);
                let mut headers = [httparse::EMPTY_HEADER; 8];
                let mut request = httparse::Request::new(&mut headers);
                let end = request.parse(&out).unwrap().unwrap();
                prop_assert_eq!(request.method, Some("POST"));
                let value = |name: &str| request.headers.iter().find(|header| header.name == name).map(|header| header.value.to_vec());
                prop_assert_eq!(value("X-API-Key"), Some(b"k".to_vec()));
                let length = value("Content-Length").map_or(0, |text| String::from_utf8(text).unwrap().parse().unwrap());
                prop_assert_eq!(out.len() - end, length);
            }
        }

        #[test]
        fn keys_stay_in_their_range(from: u32, span: u32, seed: u64) {
            let keys = Keys::Range { from: from.into(), to: u64::from(from) + u64::from(span) };
            let key = keys.draw(&mut Random::new(seed));
            prop_assert!(key >= from.into() && key <= u64::from(from) + u64::from(span));
        }
    }

    #[test]
    fn weights_are_kept() {
        let some = |weight| Template::new(String::new(), weight, &GET, Keys::Range { from: 0, to: 1 }, Expect::default()).unwrap();
        let templates = [some(0), some(1), some(0), some(3), some(0)];
        let (mix, mut random, mut counts) = (Mix::new(&templates), Random::new(5), [0u32; 5]);
        for _ in 0..40_000 {
            *counts.get_mut(mix.draw(&mut random)).unwrap() += 1;
        }
        assert_eq!([counts[0], counts[2], counts[4]], [0; 3]);
        assert!((9_500..10_500).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn an_expectation_can_fail() {
        let keys = Keys::Range { from: 1, to: 9 };
        let mut scratch = Vec::new();
        let mut check =
            |body: Body, status, text: &[u8]| Expect { statuses: vec![200], body }.check(&keys, 5, status, text, true, &mut scratch);
        let pattern = || Pattern::parse("<{}>");
        assert_eq!(check(Body::Any, 500, b""), Verdict::OtherStatus);
        assert_eq!(check(Body::Contains(pattern()), 200, b"a<5>b"), Verdict::Right);
        assert_eq!(check(Body::Contains(pattern()), 200, b"a<6>b"), Verdict::WrongBody);
        assert_eq!(check(Body::Prefix(pattern()), 200, b"<5>b"), Verdict::Right);
        assert_eq!(check(Body::Prefix(pattern()), 200, b"a<5>b"), Verdict::WrongBody);
        assert_eq!(check(Body::Equals(pattern()), 200, b"<5>"), Verdict::Right);
        assert_eq!(check(Body::Equals(pattern()), 200, b"<5>b"), Verdict::WrongBody);
    }
}
