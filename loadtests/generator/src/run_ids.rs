//! The log of run ids of complete answers: one line each (29 characters), buffered, flushed at least every 100 ms and at the end.
//! May reject: nothing. IO: one file.
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Text form of a run id.
pub type RunId = [u8; 29];

/// Flush at least this often.
pub const FLUSH_NS: u64 = 100_000_000;
const FULL: usize = 1 << 16;

/// Reads the text form: 16 hex digits, `-`, 12 hex digits.
pub fn parse(text: &[u8]) -> Option<RunId> {
    let id: RunId = text.try_into().ok()?;
    let hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let (epoch, rest) = id.split_at(16);
    (epoch.iter().all(hex) && rest.first() == Some(&b'-') && rest.iter().skip(1).all(hex)).then_some(id)
}

/// An open log, or none.
#[derive(Debug)]
pub struct RunIds {
    file: Option<File>,
    buffer: Vec<u8>,
    flushed_ns: u64,
}

impl RunIds {
    /// Creates or truncates the file (`append`: keeps what is there); None keeps nothing.
    pub fn open(path: Option<&Path>, append: bool) -> io::Result<Self> {
        let open = |path: &Path| {
            if append { File::options().create(true).append(true).open(path) } else { File::create(path) }
        };
        Ok(Self { file: path.map(open).transpose()?, buffer: Vec::with_capacity(FULL + 64), flushed_ns: 0 })
    }

    /// Adds one id.
    pub fn push(&mut self, id: &RunId) -> io::Result<()> {
        if self.file.is_some() {
            self.buffer.extend_from_slice(id);
            self.buffer.push(b'\n');
            if self.buffer.len() >= FULL {
                return self.flush();
            }
        }
        Ok(())
    }

    /// Flushes when the last time is 100 ms ago; `now_ns` counts from the start.
    pub fn tick(&mut self, now_ns: u64) -> io::Result<()> {
        if now_ns < self.flushed_ns + FLUSH_NS {
            return Ok(());
        }
        self.flushed_ns = now_ns;
        self.flush()
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.buffer)?;
        }
        self.buffer.clear();
        Ok(())
    }
}
