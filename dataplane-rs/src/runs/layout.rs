//! A spool segment as bytes. May reject: a foreign or damaged header, a damaged block. IO: none.
//!
//! ```text
//! segment = header (64 bytes), blocks, zeros up to its pre-allocated size
//! header  = "TLRSPOOL" version:u32 number:u32 epoch:u64 salt:u64 size:u64 zeros crc:u32
//! block   = length:u32 crc:u32 payload          crc over payload, seeded by the salt and the block's offset
//! payload = entries; an entry's first byte is its kind
//! run, open, close = 72 fixed bytes, then trace (16) and params (u32 length, text) if flagged
//! query definition = kind id:u32 three texts (name, version, connection); text definition = kind id:u32 text
//! text    = length:u16 bytes
//! ```
//!
//! Little endian throughout. Ids belong to their segment, which defines them before their first use: a segment is readable
//! alone. The salt never leaves the machine, so what a caller sends can't pass for a block. Length 0 is the clean end.

/// First bytes of a segment.
pub const MAGIC: [u8; 8] = *b"TLRSPOOL";
/// Raised with every change of the form.
pub const VERSION: u32 = 1;
/// Bytes of a segment's header; its first block begins there.
pub const HEADER: usize = 64;
/// Bytes before a block's payload.
pub const BLOCK_HEAD: usize = 8;
/// Fixed part of a record.
pub const RECORD: usize = 72;
/// Longest text of a definition, in bytes; what is longer is cut.
pub const TEXT_LIMIT: usize = 1000;

const RUN: u8 = 1;
const OPEN: u8 = 2;
const CLOSE: u8 = 3;
const QUERY: u8 = 16;
const TEXT: u8 = 17;
const HAS_TRACE: u8 = 1;
const HAS_PARAMS: u8 = 2;

/// Why bytes are not a segment, or end being one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Not a segment header.
    #[error("not a spool segment")]
    Header,
    /// A segment of another version of this program.
    #[error("a spool segment of another version")]
    Version,
    /// A block whose checksum or length doesn't hold.
    #[error("a damaged block")]
    Torn,
    /// A block whose checksum holds but whose content can't be read.
    #[error("a block with unreadable content")]
    Content,
}

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose.
    pub epoch: u64,
    /// 0, 1, … within the epoch.
    pub number: u32,
    /// Random; seeds every checksum.
    pub salt: u64,
    /// Pre-allocated bytes, header included.
    pub size: u64,
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        out[24..32].copy_from_slice(&self.salt.to_le_bytes());
        out[32..40].copy_from_slice(&self.size.to_le_bytes());
        let crc = crc32fast::hash(&out[0..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let bytes: &[u8; HEADER] = bytes.first_chunk().ok_or(LayoutError::Header)?;
        if bytes[0..8] != MAGIC || crc32fast::hash(&bytes[0..60]).to_le_bytes() != bytes[60..64] {
            return Err(LayoutError::Header);
        }
        let mut input = Input(&bytes[8..40]);
        let (version, number, epoch, salt, size) = (input.u32()?, input.u32()?, input.u64()?, input.u64()?, input.u64()?);
        if version == VERSION { Ok(Self { epoch, number, salt, size }) } else { Err(LayoutError::Version) }
    }
}

fn checksum(salt: u64, offset: u64, payload: &[u8]) -> u32 {
    let seed = salt ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hasher = crc32fast::Hasher::new_with_initial((seed ^ (seed >> 32)) as u32);
    hasher.update(payload);
    hasher.finalize()
}

/// Fills in the head of `block` (BLOCK_HEAD bytes kept free, then the payload) for its place in the segment.
pub fn seal(block: &mut [u8], salt: u64, offset: u64) {
    if let Some((head, payload)) = block.split_first_chunk_mut::<BLOCK_HEAD>() {
        head[0..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&checksum(salt, offset, payload).to_le_bytes());
    }
}

/// The block at `offset` of a segment, of whose bytes from there on `bytes` are known: its payload, None at the clean end.
pub fn block(bytes: &[u8], salt: u64, offset: u64) -> Result<Option<&[u8]>, LayoutError> {
    let Some((head, rest)) = bytes.split_first_chunk::<BLOCK_HEAD>() else {
        return if bytes.iter().all(|b| *b == 0) { Ok(None) } else { Err(LayoutError::Torn) };
    };
    let mut input = Input(head);
    let (length, crc) = (input.u32()? as usize, input.u32()?);
    if length == 0 && crc == 0 {
        return Ok(None);
    }
    let payload = rest.get(..length).filter(|_| length > 0).ok_or(LayoutError::Torn)?;
    if checksum(salt, offset, payload) == crc { Ok(Some(payload)) } else { Err(LayoutError::Torn) }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole call.
    Run,
    /// The beginning of a stream or a forwarded call.
    Open,
    /// Its end.
    Close,
}

/// One record. `query`, `key` and `code` are ids of this segment's definitions, 0 for unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it is.
    pub kind: Kind,
    /// Position in `ClientClass`.
    pub client: u8,
    /// Position in `ServedBy`.
    pub served_by: u8,
    /// HTTP status sent.
    pub status: u16,
    /// Calls that shared the statement; 0: none was asked, the answer came from the response cache.
    pub batch: u16,
    /// Of the run.
    pub sequence: u64,
    /// µs since 1970.
    pub time_us: u64,
    /// µs.
    pub duration_us: u64,
    /// µs.
    pub database_us: u64,
    /// µs.
    pub queue_us: u32,
    /// Query definition.
    pub query: u32,
    /// Text definition.
    pub key: u32,
    /// Text definition.
    pub code: u32,
    /// Rows of the answer.
    pub rows: u64,
    /// Bytes of the body.
    pub bytes: u64,
    /// W3C trace id.
    pub trace: Option<[u8; 16]>,
    /// JSON object.
    pub params: Option<&'a str>,
}

/// One entry of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A record.
    Record(Record<'a>),
    /// Names a query id.
    Query {
        /// The id.
        id: u32,
        /// Of the query.
        name: &'a str,
        /// Of its plan.
        version: &'a str,
        /// Of its connection.
        connection: &'a str,
    },
    /// Names a key or code id.
    Text {
        /// The id.
        id: u32,
        /// What it says.
        text: &'a str,
    },
}

impl Record<'_> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut record = [0; RECORD];
        let flags = if self.trace.is_some() { HAS_TRACE } else { 0 } | if self.params.is_some() { HAS_PARAMS } else { 0 };
        record[0] = match self.kind {
            Kind::Run => RUN,
            Kind::Open => OPEN,
            Kind::Close => CLOSE,
        };
        record[1] = self.client;
        record[2] = self.served_by;
        record[3] = flags;
        record[4..6].copy_from_slice(&self.status.to_le_bytes());
        record[6..8].copy_from_slice(&self.batch.to_le_bytes());
        record[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        record[16..24].copy_from_slice(&self.time_us.to_le_bytes());
        record[24..32].copy_from_slice(&self.duration_us.to_le_bytes());
        record[32..40].copy_from_slice(&self.database_us.to_le_bytes());
        record[40..44].copy_from_slice(&self.queue_us.to_le_bytes());
        record[44..48].copy_from_slice(&self.query.to_le_bytes());
        record[48..52].copy_from_slice(&self.key.to_le_bytes());
        record[52..56].copy_from_slice(&self.code.to_le_bytes());
        record[56..64].copy_from_slice(&self.rows.to_le_bytes());
        record[64..72].copy_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&record);
        if let Some(trace) = self.trace {
            out.extend_from_slice(&trace);
        }
        if let Some(params) = self.params {
            out.extend_from_slice(&(params.len() as u32).to_le_bytes());
            out.extend_from_slice(params.as_bytes());
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = text.get(..text.floor_char_boundary(TEXT_LIMIT)).unwrap_or("");
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends a query definition.
pub fn define_query(out: &mut Vec<u8>, id: u32, name: &str, version: &str, connection: &str) {
    out.push(QUERY);
    out.extend_from_slice(&id.to_le_bytes());
    for text in [name, version, connection] {
        put_text(out, text);
    }
}

/// Appends a text definition.
pub fn define_text(out: &mut Vec<u8>, id: u32, text: &str) {
    out.push(TEXT);
    out.extend_from_slice(&id.to_le_bytes());
    put_text(out, text);
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], LayoutError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(LayoutError::Content)?;
        self.0 = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], LayoutError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(LayoutError::Content)?;
        self.0 = rest;
        Ok(*taken)
    }
    fn u8(&mut self) -> Result<u8, LayoutError> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    fn u16(&mut self) -> Result<u16, LayoutError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, LayoutError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, LayoutError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn text(&mut self, length: usize) -> Result<&'a str, LayoutError> {
        std::str::from_utf8(self.take(length)?).map_err(|_| LayoutError::Content)
    }
    fn short_text(&mut self) -> Result<&'a str, LayoutError> {
        let length = self.u16()?.into();
        self.text(length)
    }
    fn record(&mut self, kind: Kind) -> Result<Record<'a>, LayoutError> {
        let (client, served_by, flags) = (self.u8()?, self.u8()?, self.u8()?);
        let mut record = Record {
            kind,
            client,
            served_by,
            status: self.u16()?,
            batch: self.u16()?,
            sequence: self.u64()?,
            time_us: self.u64()?,
            duration_us: self.u64()?,
            database_us: self.u64()?,
            queue_us: self.u32()?,
            query: self.u32()?,
            key: self.u32()?,
            code: self.u32()?,
            rows: self.u64()?,
            bytes: self.u64()?,
            trace: None,
            params: None,
        };
        if flags & HAS_TRACE != 0 {
            record.trace = Some(self.array()?);
        }
        if flags & HAS_PARAMS != 0 {
            let length = self.u32()? as usize;
            record.params = Some(self.text(length)?);
        }
        Ok(record)
    }
}

/// The entries of a payload, in order; the first error ends them.
pub struct Entries<'a>(Input<'a>);

/// Reads a payload.
pub const fn entries(payload: &[u8]) -> Entries<'_> {
    Entries(Input(payload))
}

impl<'a> Entries<'a> {
    fn read(&mut self) -> Result<Entry<'a>, LayoutError> {
        let input = &mut self.0;
        match input.u8()? {
            RUN => Ok(Entry::Record(input.record(Kind::Run)?)),
            OPEN => Ok(Entry::Record(input.record(Kind::Open)?)),
            CLOSE => Ok(Entry::Record(input.record(Kind::Close)?)),
            QUERY => {
                let id = input.u32()?;
                Ok(Entry::Query { id, name: input.short_text()?, version: input.short_text()?, connection: input.short_text()? })
            }
            TEXT => {
                let id = input.u32()?;
                Ok(Entry::Text { id, text: input.short_text()? })
            }
            _ => Err(LayoutError::Content),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, LayoutError>;

    fn next(&mut self) -> Option<Self::Item> {
        if (self.0).0.is_empty() {
            return None;
        }
        let entry = self.read();
        if entry.is_err() {
            self.0 = Input(&[]);
        }
        Some(entry)
    }
}
