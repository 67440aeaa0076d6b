//! `pattern` of parameters: the portable subset of regular expressions, read here and rewritten so that nothing depends on an engine's own
//! rules (the same text as `tailrace_contract.pattern` makes). Matching is linear in the text. Rejects what is outside the subset. IO: none.
use std::fmt::Write;

/// Longest pattern, in characters.
pub const LIMIT: usize = 1000;
/// Most that a pattern may be when its counts are written out, in atoms.
pub const EXPANDED_LIMIT: u64 = 2000;
/// Most that counts inside each other may multiply to.
pub const COUNT_LIMIT: u64 = 1000;
/// Groups inside each other.
pub const GROUP_LIMIT: u32 = 50;

/// Outside the portable subset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern is outside the portable subset")]
pub struct NotPortable;

/// Compiles a pattern of the subset.
pub fn compile(pattern: &str) -> Result<regex::Regex, NotPortable> {
    let text = portable(pattern)?.replace("\\b", "(?-u:\\b)");
    regex::RegexBuilder::new(&text).size_limit(64 << 20).build().map_err(|_| NotPortable)
}

/// Rewrites a pattern: every character is `\x{…}`, every class its ranges, groups do not capture, `^` is `\A` and `$` is `\z`.
pub fn portable(pattern: &str) -> Result<String, NotPortable> {
    if pattern.chars().nth(LIMIT).is_some() {
        return Err(NotPortable);
    }
    let mut reader = Reader { rest: pattern.chars(), out: String::new(), depth: 0 };
    let size = reader.alternation()?;
    if reader.peek().is_some() || size.atoms > EXPANDED_LIMIT {
        return Err(NotPortable);
    }
    Ok(reader.out)
}

/// How big a piece is when its counts are written out, and what its counts multiply to.
#[derive(Clone, Copy)]
struct Size {
    atoms: u64,
    count: u64,
}

/// Inclusive ranges of code points, surrogates left out.
type Ranges = Vec<(u32, u32)>;

const DIGIT: &[(u32, u32)] = &[(0x30, 0x39)];
const WORD: &[(u32, u32)] = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];
const SPACE: &[(u32, u32)] = &[(0x09, 0x0d), (0x20, 0x20)];
const LINE_FEED: &[(u32, u32)] = &[(0x0a, 0x0a)];

enum Escape {
    Character(char),
    Class(Ranges),
    Boundary,
}

struct Reader<'a> {
    rest: std::str::Chars<'a>,
    out: String,
    depth: u32,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn skip(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.rest.next();
        }
        found
    }

    fn alternation(&mut self) -> Result<Size, NotPortable> {
        let mut size = Size { atoms: 0, count: 1 };
        loop {
            while !matches!(self.peek(), None | Some('|' | ')')) {
                let piece = self.piece()?;
                size = Size { atoms: size.atoms.saturating_add(piece.atoms), count: size.count.max(piece.count) };
            }
            if !self.skip('|') {
                return Ok(size);
            }
            self.out.push('|');
        }
    }

    fn piece(&mut self) -> Result<Size, NotPortable> {
        let one = Size { atoms: 1, count: 1 };
        let (size, repeatable) = match self.rest.next().ok_or(NotPortable)? {
            '(' => (self.group()?, true),
            '[' => {
                let class = self.class()?;
                self.write_class(&class)?;
                (one, true)
            }
            '.' => {
                self.write_class(&negated(LINE_FEED.to_vec()))?;
                (one, true)
            }
            '^' => {
                self.out.push_str("\\A");
                (one, false)
            }
            '$' => {
                self.out.push_str("\\z");
                (one, false)
            }
            '\\' => match self.escape()? {
                Escape::Boundary => {
                    self.out.push_str("\\b");
                    (one, false)
                }
                Escape::Character(c) => {
                    self.write_character(c);
                    (one, true)
                }
                Escape::Class(class) => {
                    self.write_class(&class)?;
                    (one, true)
                }
            },
            '*' | '+' | '?' | '{' | '}' | ']' | ')' | '|' => return Err(NotPortable),
            c => {
                self.write_character(c);
                (one, true)
            }
        };
        self.quantifier(size, repeatable)
    }

    fn group(&mut self) -> Result<Size, NotPortable> {
        self.depth += 1;
        if self.depth > GROUP_LIMIT || (self.skip('?') && !self.skip(':')) {
            return Err(NotPortable);
        }
        self.out.push_str("(?:");
        let size = self.alternation()?;
        if !self.skip(')') {
            return Err(NotPortable);
        }
        self.out.push(')');
        self.depth -= 1;
        Ok(Size { atoms: size.atoms + 1, ..size })
    }

    fn quantifier(&mut self, size: Size, repeatable: bool) -> Result<Size, NotPortable> {
        let count = match self.peek() {
            Some(sign @ ('*' | '+' | '?')) => {
                self.rest.next();
                self.out.push(sign);
                1
            }
            Some('{') => {
                self.rest.next();
                self.counts()?
            }
            _ => return Ok(size),
        };
        if !repeatable {
            return Err(NotPortable);
        }
        // Greedy or not is the same when only the existence of a match matters.
        self.skip('?');
        if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
            return Err(NotPortable);
        }
        let size = Size { atoms: size.atoms.saturating_mul(count), count: size.count.saturating_mul(count) };
        if size.count > COUNT_LIMIT || size.atoms > EXPANDED_LIMIT {
            return Err(NotPortable);
        }
        Ok(size)
    }

    /// `n}`, `n,}`, `n,m}`: what it multiplies by.
    fn counts(&mut self) -> Result<u64, NotPortable> {
        let least = self.count()?;
        let most = match (self.skip(','), self.peek()) {
            (false, _) => Some(least),
            (true, Some('}')) => None,
            (true, _) => Some(self.count()?),
        };
        if !self.skip('}') || most.is_some_and(|most| most < least) {
            return Err(NotPortable);
        }
        let written = match most {
            Some(most) if most == least => write!(self.out, "{{{least}}}"),
            Some(most) => write!(self.out, "{{{least},{most}}}"),
            None => write!(self.out, "{{{least},}}"),
        };
        written.map_err(|_| NotPortable)?;
        Ok(most.unwrap_or(least + 1).max(1))
    }

    fn count(&mut self) -> Result<u64, NotPortable> {
        let mut digits = String::new();
        while let Some(digit @ '0'..='9') = self.peek() {
            digits.push(digit);
            self.rest.next();
        }
        digits.parse().ok().filter(|n| *n <= COUNT_LIMIT && digits.len() <= 4).ok_or(NotPortable)
    }

    fn escape(&mut self) -> Result<Escape, NotPortable> {
        let character = match self.rest.next().ok_or(NotPortable)? {
            'd' => return Ok(Escape::Class(DIGIT.to_vec())),
            'D' => return Ok(Escape::Class(negated(DIGIT.to_vec()))),
            'w' => return Ok(Escape::Class(WORD.to_vec())),
            'W' => return Ok(Escape::Class(negated(WORD.to_vec()))),
            's' => return Ok(Escape::Class(SPACE.to_vec())),
            'S' => return Ok(Escape::Class(negated(SPACE.to_vec()))),
            'b' => return Ok(Escape::Boundary),
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'f' => '\u{c}',
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            c if c.is_ascii_punctuation() => c,
            _ => return Err(NotPortable),
        };
        Ok(Escape::Character(character))
    }

    fn hex(&mut self, digits: u32) -> Result<char, NotPortable> {
        let mut code = 0;
        for _ in 0..digits {
            code = code << 4 | self.rest.next().and_then(|c| c.to_digit(16)).ok_or(NotPortable)?;
        }
        char::from_u32(code).ok_or(NotPortable)
    }

    /// What stands behind `[`, the closing bracket included.
    fn class(&mut self) -> Result<Ranges, NotPortable> {
        let not = self.skip('^');
        let mut ranges = Ranges::new();
        let mut first = true;
        loop {
            let low = match self.rest.next().ok_or(NotPortable)? {
                ']' if first => return Err(NotPortable),
                ']' => break,
                '[' | '^' => return Err(NotPortable),
                '-' if first || self.peek() == Some(']') => '-',
                '-' => return Err(NotPortable),
                '\\' => match self.escape()? {
                    Escape::Character(c) => c,
                    Escape::Class(class) => {
                        ranges.extend(class);
                        first = false;
                        // `\d-z` is no range.
                        if self.peek() == Some('-') && !self.rest.as_str().starts_with("-]") {
                            return Err(NotPortable);
                        }
                        continue;
                    }
                    Escape::Boundary => return Err(NotPortable),
                },
                c => c,
            };
            first = false;
            if self.peek() != Some('-') || self.rest.as_str().starts_with("-]") {
                ranges.push((u32::from(low), u32::from(low)));
                continue;
            }
            self.rest.next();
            let high = match self.rest.next().ok_or(NotPortable)? {
                '[' | '^' | '-' => return Err(NotPortable),
                '\\' => match self.escape()? {
                    Escape::Character(c) => c,
                    _ => return Err(NotPortable),
                },
                c => c,
            };
            if high < low {
                return Err(NotPortable);
            }
            ranges.push((u32::from(low), u32::from(high)));
        }
        Ok(if not { negated(ranges) } else { merged(ranges) })
    }

    fn write_character(&mut self, c: char) {
        self.out.push_str(&format!("\\x{{{:X}}}", u32::from(c)));
    }

    fn write_class(&mut self, ranges: &[(u32, u32)]) -> Result<(), NotPortable> {
        if ranges.is_empty() {
            return Err(NotPortable);
        }
        self.out.push('[');
        for (low, high) in ranges {
            let end = if high > low { format!("-\\x{{{high:X}}}") } else { String::new() };
            self.out.push_str(&format!("\\x{{{low:X}}}{end}"));
        }
        self.out.push(']');
        Ok(())
    }
}

/// Sorted, without overlap or touch.
fn merged(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut out = Ranges::new();
    for (low, high) in ranges {
        match out.last_mut() {
            Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
            _ => out.push((low, high)),
        }
    }
    out
}

/// Every other code point.
fn negated(ranges: Ranges) -> Ranges {
    let mut out = Ranges::new();
    let mut next = 0;
    for (low, high) in merged(ranges) {
        if low > next {
            out.push((next, low - 1));
        }
        next = high + 1;
    }
    if next <= 0x10_ffff {
        out.push((next, 0x10_ffff));
    }
    // The ends must be characters.
    let ends = |(low, high): (u32, u32)| {
        let low = if (0xd800..0xe000).contains(&low) { 0xe000 } else { low };
        let high = if (0xd800..0xe000).contains(&high) { 0xd7ff } else { high };
        (low <= high).then_some((low, high))
    };
    out.into_iter().filter_map(ends).collect()
}
