//! Row bytes → JSON, NDJSON and CSV; problems; cursors. Byte-identical with `tailrace_gateway.serve`, held together by
//! `crds/golden/vectors`. May reject: bytes that no database should have sent (`Malformed`). IO: none.
pub mod array;
pub mod cursor;
pub mod float;
pub mod mask;
mod narrow;
pub mod problem;
pub mod rows;
pub mod text;
pub mod value;

pub use cursor::CursorKey;
pub use mask::MaskKey;
pub use rows::RowWriter;

/// A value, or a row, that cannot be read: the answer is `database_error`, never a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the database sent a value that cannot be read")]
pub struct Malformed;

/// The form of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One object or one array.
    Json,
    /// A row a line, and a completion record.
    Ndjson,
    /// RFC 4180 with a header line.
    Csv,
}

impl Format {
    /// Every format, in the order that breaks ties.
    pub const ALL: [Self; 3] = [Self::Json, Self::Ndjson, Self::Csv];

    /// The word of `format=`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }

    /// The format that a word of `format=` names.
    pub fn parse(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name().as_bytes() == word)
    }

    /// `Content-Type` of an answer.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }
}

#[cfg(test)]
mod tests;
