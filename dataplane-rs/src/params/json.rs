//! A strict scanner of JSON (RFC 8259) that keeps every value's own bytes. Rejects what is not JSON, lone surrogates, invalid UTF-8,
//! anything behind the text, and nesting deeper than `DEPTH`. IO: none, no allocation, no recursion.

/// Not the JSON that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON that was wanted")]
pub struct Malformed;

/// Arrays and objects inside each other, of one value.
pub const DEPTH: u32 = 128;

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// null
    Null,
    /// true, false
    Boolean,
    /// A number token.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// One value as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its own bytes, without blanks around.
    pub bytes: &'a [u8],
    /// Whether a `\u0000` is anywhere in it.
    pub nul: bool,
}

/// One JSON text that holds a single value.
pub fn text(text: &[u8]) -> Result<Item<'_>, Malformed> {
    std::str::from_utf8(text).map_err(|_| Malformed)?;
    let mut scanner = Scanner { text, at: 0, nul: false };
    scanner.blanks();
    let item = scanner.value()?;
    scanner.end()?;
    Ok(item)
}

/// Every member of the object that `body` is, in order: the inside of the name's string, and the value. All of the body is checked.
pub fn members<'a>(body: &'a [u8], mut each: impl FnMut(&'a [u8], Item<'a>)) -> Result<(), Malformed> {
    std::str::from_utf8(body).map_err(|_| Malformed)?;
    let mut scanner = Scanner { text: body, at: 0, nul: false };
    scanner.blanks();
    scanner.expect(b'{')?;
    scanner.blanks();
    if scanner.skip(b'}') {
        return scanner.end();
    }
    loop {
        let name = scanner.string()?;
        scanner.blanks();
        scanner.expect(b':')?;
        scanner.blanks();
        let item = scanner.value()?;
        each(name.get(1..name.len() - 1).ok_or(Malformed)?, item);
        scanner.blanks();
        if scanner.skip(b'}') {
            return scanner.end();
        }
        scanner.expect(b',')?;
        scanner.blanks();
    }
}

/// Every element of the array that `item` is (already checked as a whole).
pub fn elements<'a>(item: Item<'a>, mut each: impl FnMut(Item<'a>)) -> Result<(), Malformed> {
    let mut scanner = Scanner { text: item.bytes, at: 0, nul: false };
    scanner.expect(b'[')?;
    scanner.blanks();
    if scanner.skip(b']') {
        return Ok(());
    }
    loop {
        each(scanner.value()?);
        scanner.blanks();
        if scanner.skip(b']') {
            return Ok(());
        }
        scanner.expect(b',')?;
        scanner.blanks();
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// A `\u0000` since this was last cleared.
    nul: bool,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.skip(byte) { Ok(()) } else { Err(Malformed) }
    }

    fn end(&mut self) -> Result<(), Malformed> {
        self.blanks();
        if self.rest().is_empty() { Ok(()) } else { Err(Malformed) }
    }

    /// One value, with all that is in it.
    fn value(&mut self) -> Result<Item<'a>, Malformed> {
        let (start, mut kind) = (self.at, None);
        self.nul = false;
        // A bit for each open container: 1 is an object.
        let (mut open, mut depth) = (0u128, 0u32);
        loop {
            // A value begins here.
            let found = match self.peek().ok_or(Malformed)? {
                b'"' => {
                    self.string()?;
                    Kind::String
                }
                b'-' | b'0'..=b'9' => {
                    self.number()?;
                    Kind::Number
                }
                b'[' | b'{' if depth == DEPTH => return Err(Malformed),
                b'[' => {
                    self.at += 1;
                    self.blanks();
                    kind = kind.or(Some(Kind::Array));
                    if self.peek() != Some(b']') {
                        (open, depth) = (open << 1, depth + 1);
                        continue;
                    }
                    self.at += 1;
                    Kind::Array
                }
                b'{' => {
                    self.at += 1;
                    self.blanks();
                    kind = kind.or(Some(Kind::Object));
                    if self.peek() != Some(b'}') {
                        (open, depth) = (open << 1 | 1, depth + 1);
                        self.name()?;
                        continue;
                    }
                    self.at += 1;
                    Kind::Object
                }
                _ => self.word()?,
            };
            kind = kind.or(Some(found));
            // A value ended here: close what ends with it.
            loop {
                if depth == 0 {
                    let bytes = self.text.get(start..self.at).ok_or(Malformed)?;
                    return Ok(Item { kind: kind.ok_or(Malformed)?, bytes, nul: self.nul });
                }
                self.blanks();
                let object = open & 1 == 1;
                if self.skip(b',') {
                    self.blanks();
                    if object {
                        self.name()?;
                    }
                    break;
                }
                self.expect(if object { b'}' } else { b']' })?;
                (open, depth) = (open >> 1, depth - 1);
            }
        }
    }

    fn name(&mut self) -> Result<(), Malformed> {
        self.string()?;
        self.blanks();
        self.expect(b':')?;
        self.blanks();
        Ok(())
    }

    fn word(&mut self) -> Result<Kind, Malformed> {
        for (word, kind) in [(&b"null"[..], Kind::Null), (b"true", Kind::Boolean), (b"false", Kind::Boolean)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(kind);
            }
        }
        Err(Malformed)
    }

    fn number(&mut self) -> Result<(), Malformed> {
        self.skip(b'-');
        if !self.skip(b'0') {
            self.digits()?;
        }
        if self.skip(b'.') {
            self.digits()?;
        }
        if self.skip(b'e') || self.skip(b'E') {
            if !self.skip(b'+') {
                self.skip(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let count = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(Malformed) } else { Ok(()) }
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        self.expect(b'"')?;
        loop {
            let plain = memchr::memchr2(b'"', b'\\', self.rest()).ok_or(Malformed)?;
            if self.rest().get(..plain).ok_or(Malformed)?.iter().fold(false, |any, &b| any | (b < 0x20)) {
                return Err(Malformed);
            }
            self.at += plain + 1;
            if self.text.get(self.at - 1) == Some(&b'"') {
                return self.text.get(start..self.at).ok_or(Malformed);
            }
            self.at += 1;
            match self.text.get(self.at - 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {}
                Some(b'u') => match self.unit()? {
                    0 => self.nul = true,
                    0xdc00..0xe000 => return Err(Malformed),
                    0xd800..0xdc00 => {
                        self.expect(b'\\')?;
                        self.expect(b'u')?;
                        if !(0xdc00..0xe000).contains(&self.unit()?) {
                            return Err(Malformed);
                        }
                    }
                    _ => {}
                },
                _ => return Err(Malformed),
            }
        }
    }

    fn unit(&mut self) -> Result<u32, Malformed> {
        let digits = self.rest().get(..4).ok_or(Malformed)?;
        self.at += 4;
        digits.iter().try_fold(0, |n, &b| char::from(b).to_digit(16).map(|d| n << 4 | d)).ok_or(Malformed)
    }
}
