//! Values as a database may send them, under every encoding, mask and format: no panic, an error leaves nothing behind, what is written is
//! UTF-8 and one row long.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tailrace_dataplane::encode::{Format, MaskKey, RowWriter};
use tailrace_dataplane::plan::snapshot::{ColumnPlan, Encoding, Mask, MaskPlan};

const ENCODINGS: [Encoding; 11] = [
    Encoding::Raw,
    Encoding::Number,
    Encoding::Quoted,
    Encoding::Boolean,
    Encoding::String,
    Encoding::Timestamp,
    Encoding::Timestamptz,
    Encoding::Base64,
    Encoding::Json,
    Encoding::Storage,
    Encoding::StorageQuoted,
];
const MASKS: [Option<Mask>; 5] = [None, Some(Mask::Null), Some(Mask::Redact), Some(Mask::Hash), Some(Mask::Partial)];

// Input: encoding, array or not, mask, then the value.
fuzz_target!(|bytes: &[u8]| {
    let &[encoding, array, mask, ref value @ ..] = bytes else { return };
    let column = ColumnPlan {
        name: "v".into(),
        encoding: ENCODINGS[usize::from(encoding) % ENCODINGS.len()],
        array: array & 1 == 1,
        delimiter: if array & 2 == 2 { ";" } else { "," }.into(),
        type_oid: 0,
        table_oid: 0,
        column_number: 0,
    };
    let mask = MASKS[usize::from(mask) % MASKS.len()];
    let masks: Vec<_> = mask.map(|mask| MaskPlan { column: 0, mask }).into_iter().collect();
    let Ok(writer) = RowWriter::compile(std::slice::from_ref(&column), &masks, Some(&MaskKey::derive(&[7; 32]))) else { return };
    let mut row = i32::try_from(value.len()).unwrap().to_be_bytes().to_vec();
    row.extend_from_slice(value);
    for format in Format::ALL {
        let (mut rest, mut out) = (row.as_slice(), Vec::new());
        if writer.row(format, &mut rest, &mut out).is_err() {
            assert!(out.is_empty());
            continue;
        }
        assert!(rest.is_empty());
        let text = std::str::from_utf8(&out).unwrap();
        let json = || serde_json::from_str::<serde_json::Value>(text);
        match format {
            // JSON columns are the database's word, and digits are checked only as far as they cannot break out.
            Format::Json
                if mask.is_some() && mask != Some(Mask::Hash) || matches!(column.encoding, Encoding::String | Encoding::Base64) =>
            {
                drop(json().unwrap())
            }
            Format::Ndjson if column.encoding != Encoding::Json => assert_eq!(text.matches('\n').count(), 1),
            Format::Csv => assert!(text.ends_with("\r\n")),
            _ => {}
        }
    }
    // Raw bytes as rows.
    let mut rest = value;
    while writer.row(Format::Json, &mut rest, &mut Vec::new()).is_ok() {}
});
