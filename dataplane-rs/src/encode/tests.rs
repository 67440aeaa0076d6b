#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
use super::*;
use crate::golden::{bytes, hex, random, vectors};
use crate::plan::snapshot::{ColumnPlan, Encoding, Mask, MaskPlan, Returns};
use proptest::prelude::*;
use serde_json::{Value, json};

fn column(vector: &Value) -> ColumnPlan {
    serde_json::from_value(json!({
        "name": vector["name"].as_str().unwrap_or("v"), "encoding": vector["encoding"],
        "array": vector["array"] == true, "delimiter": vector["delimiter"].as_str().unwrap_or(","),
        "typeOid": 0, "tableOid": 0, "columnNumber": 0,
    }))
    .unwrap()
}

fn data_row(values: &[Option<&[u8]>]) -> Vec<u8> {
    let mut row = Vec::new();
    for value in values {
        row.extend_from_slice(&value.map_or(-1, |v| i32::try_from(v.len()).unwrap()).to_be_bytes());
        row.extend_from_slice(value.unwrap_or_default());
    }
    row
}

fn one(writer: &RowWriter, format: Format, row: &[u8]) -> Result<String, Malformed> {
    let (mut rest, mut out) = (row, b"before".to_vec());
    let result = writer.row(format, &mut rest, &mut out);
    assert!(out.starts_with(b"before"));
    if result.is_err() {
        assert_eq!(out, b"before", "an error leaves nothing behind");
    } else {
        assert!(rest.is_empty());
    }
    result.map(|()| String::from_utf8(out[6..].to_vec()).unwrap())
}

fn string_column(encoding: Encoding) -> ColumnPlan {
    ColumnPlan { encoding, ..column(&json!({"encoding": "string"})) }
}

#[test]
fn values_as_the_vectors_say() {
    for vector in vectors("values.json").as_array().unwrap() {
        let writer = RowWriter::compile(&[column(vector)], &[], None).unwrap();
        let row = data_row(&[Some(&bytes(vector))]);
        let (json, csv) = (one(&writer, Format::Json, &row), one(&writer, Format::Csv, &row));
        if vector["malformed"] == true {
            assert_eq!((json, csv), (Err(Malformed), Err(Malformed)), "{vector}");
            continue;
        }
        assert_eq!(json.unwrap(), format!("{{\"v\":{}}}", vector["json"].as_str().unwrap()), "{vector}");
        assert_eq!(csv.unwrap(), format!("{}\r\n", vector["csv"].as_str().unwrap()), "{vector}");
    }
}

#[test]
fn random_values_as_python_writes_them() {
    let key = MaskKey::derive(&std::array::from_fn(|n| u8::try_from(n).unwrap()));
    for vector in random("values.json").as_array().unwrap() {
        let mask = serde_json::from_value::<Option<Mask>>(vector["mask"].clone()).unwrap();
        let masks: Vec<_> = mask.map(|mask| MaskPlan { column: 0, mask }).into_iter().collect();
        let writer = RowWriter::compile(&[column(vector)], &masks, Some(&key)).unwrap();
        let row = data_row(&[Some(&bytes(vector))]);
        for (format, written) in [(Format::Json, &vector["row"]), (Format::Csv, &vector["line"])] {
            assert_eq!(one(&writer, format, &row).ok().as_deref(), written.as_str(), "{vector}");
        }
    }
}

#[test]
fn doubles_as_postgresql_writes_them() {
    for vector in vectors("floats.json").as_array().unwrap() {
        let real = f64::from_be_bytes(hex(vector["bits"].as_str().unwrap()).try_into().unwrap());
        let mut out = Vec::new();
        float::write(real, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), vector["text"].as_str().unwrap());
    }
}

#[test]
fn masks_as_the_vectors_say() {
    let file = vectors("masks.json");
    let key = MaskKey::derive(&hex(file["secret"].as_str().unwrap()).try_into().unwrap());
    for vector in file["cases"].as_array().unwrap() {
        let mask: Mask = serde_json::from_value(vector["mask"].clone()).unwrap();
        let mut out = [b"x", vector["value"].as_str().unwrap().as_bytes()].concat();
        mask::cover(mask, Some(&key), &mut out, 1);
        assert_eq!(std::str::from_utf8(&out[1..]).unwrap(), vector["covered"].as_str().unwrap(), "{vector}");
    }
}

#[test]
fn bodies_as_the_vectors_say() {
    let file = vectors("rows.json");
    let columns: Vec<_> = file["columns"].as_array().unwrap().iter().map(column).collect();
    let masks: Vec<MaskPlan> = serde_json::from_value(file["masks"].clone()).unwrap();
    let writer = RowWriter::compile(&columns, &masks, None).unwrap();
    for vector in file["bodies"].as_array().unwrap() {
        let format = Format::parse(vector["format"].as_str().unwrap().as_bytes()).unwrap();
        let returns: Returns = serde_json::from_value(vector["returns"].clone()).unwrap();
        let count = vector["rows"].as_u64().unwrap();
        let chunk: Vec<u8> = file["rows"].as_array().unwrap()[..usize::try_from(count).unwrap()]
            .iter()
            .flat_map(|row| {
                let values: Vec<_> = row.as_array().unwrap().iter().map(|v| v.as_str().map(str::as_bytes)).collect();
                data_row(&values)
            })
            .collect();
        let (mut rest, mut out) = (chunk.as_slice(), Vec::new());
        writer.begin(format, returns, &mut out);
        for n in 0..count {
            if n > 0 {
                writer.separator(format, &mut out);
            }
            writer.row(format, &mut rest, &mut out).unwrap();
        }
        writer.end(format, returns, count, vector["truncated"] == true, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), vector["body"].as_str().unwrap(), "{vector}");
    }
    for vector in file["affected"].as_array().unwrap() {
        let mut out = Vec::new();
        let format = Format::parse(vector["format"].as_str().unwrap().as_bytes()).unwrap();
        rows::affected(format, vector["count"].as_u64().unwrap(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), vector["body"].as_str().unwrap());
    }
}

#[test]
fn what_cannot_be_masked_is_refused() {
    let plan = [string_column(Encoding::String)];
    let mask = |column, mask| MaskPlan { column, mask };
    assert_eq!(RowWriter::compile(&plan, &[mask(1, Mask::Null)], None).unwrap_err(), rows::Refused::MaskColumn);
    assert_eq!(RowWriter::compile(&plan, &[mask(0, Mask::Null), mask(0, Mask::Redact)], None).unwrap_err(), rows::Refused::MaskColumn);
    assert_eq!(RowWriter::compile(&plan, &[mask(0, Mask::Hash)], None).unwrap_err(), rows::Refused::NoMaskKey);
    for bad in [json!({"encoding": "storage", "array": true}), json!({"encoding": "raw", "array": true, "delimiter": ""})] {
        assert_eq!(RowWriter::compile(&[column(&bad)], &[], None).unwrap_err(), rows::Refused::Array);
    }
}

#[test]
fn broken_rows_are_malformed() {
    let writer = RowWriter::compile(&[string_column(Encoding::Raw)], &[], None).unwrap();
    for row in [&b""[..], &[0, 0, 0], &[0, 0, 0, 2, b'1'], &[0xff, 0xff, 0xff, 0xfe]] {
        assert_eq!(one(&writer, Format::Json, row), Err(Malformed));
    }
}

proptest! {
    #[test]
    fn strings_read_back_as_they_were(text in any::<String>()) {
        let writer = RowWriter::compile(&[string_column(Encoding::String)], &[], None).unwrap();
        let json = one(&writer, Format::Json, &data_row(&[Some(text.as_bytes())])).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({"v": text}));
    }

    #[test]
    fn arrays_read_back_as_they_were(elements in proptest::collection::vec(proptest::option::of(any::<String>()), 0..8)) {
        let inside: Vec<_> = elements
            .iter()
            .map(|e| e.as_ref().map_or("NULL".into(), |e| format!("\"{}\"", e.replace('\\', "\\\\").replace('"', "\\\""))))
            .collect();
        let writer = RowWriter::compile(&[column(&json!({"encoding": "string", "array": true}))], &[], None).unwrap();
        let json = one(&writer, Format::Json, &data_row(&[Some(format!("{{{}}}", inside.join(",")).as_bytes())])).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({"v": elements}));
    }

    #[test]
    fn doubles_read_back_as_they_were(bits in any::<u64>()) {
        let real = f64::from_bits(bits);
        prop_assume!(real.is_finite());
        let mut out = Vec::new();
        float::write(real, &mut out);
        prop_assert_eq!(std::str::from_utf8(&out).unwrap().parse::<f64>().unwrap().to_bits(), bits);
    }

    #[test]
    fn nothing_panics_and_json_is_json(value in proptest::collection::vec(any::<u8>(), 0..64), n in 0..20usize) {
        let names = ["raw", "number", "quoted", "boolean", "string", "timestamp", "timestamptz", "base64", "storage", "storagequoted"];
        let vector = json!({"encoding": names[n % names.len()], "array": n >= names.len() && n % names.len() < 8});
        let writer = RowWriter::compile(&[column(&vector)], &[], None).unwrap();
        let row = data_row(&[Some(&value)]);
        let _csv = one(&writer, Format::Csv, &row);
        if let Ok(json) = one(&writer, Format::Json, &row) && names[n % names.len()] != "raw" && names[n % names.len()] != "number" && value.first() != Some(&b'i') {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{}", json);
        }
    }
}

/// Cells that are short and plain, and those that are not: NULL, long, escaped, quoted in CSV, beyond ASCII, not even text.
fn cell() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        4 => "[a-z0-9 ]{0,8}".prop_map(|text| Some(text.into_bytes())),
        4 => "-?[0-9]{1,20}(\\.[0-9]{1,3})?".prop_map(|text| Some(text.into_bytes())),
        2 => "[a-z]{25,40}".prop_map(|text| Some(text.into_bytes())),
        1 => any::<String>().prop_map(|text| Some(text.into_bytes())),
        1 => "[a-z\\\\\",\r\n\t/]{0,6}".prop_map(|text| Some(text.into_bytes())),
        1 => proptest::collection::vec(any::<u8>(), 0..5).prop_map(Some),
        1 => Just(None),
    ]
}

proptest! {
    #[test]
    fn a_stream_has_the_bytes_of_a_whole_answer(
        kinds in proptest::collection::vec(0..6usize, 1..4),
        cells in proptest::collection::vec(proptest::collection::vec(cell(), 3), 0..40),
        pieces in proptest::collection::vec(1..9usize, 1..9),
        mask in proptest::option::of(0..3usize),
    ) {
        let names = ["raw", "number", "quoted", "string", "string", "boolean"];
        let long = "n".repeat(40);
        let columns: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(n, kind)| column(&json!({"encoding": names[*kind], "name": if *kind == 4 { format!("{long}{n}") } else { format!("c\"{n}") }})))
            .collect();
        let masks: Vec<_> =
            mask.filter(|at| *at < columns.len()).map(|at| MaskPlan { column: u32::try_from(at).unwrap(), mask: Mask::Partial }).into_iter().collect();
        let writer = RowWriter::compile(&columns, &masks, None).unwrap();
        let rows: Vec<Vec<u8>> = cells
            .iter()
            .map(|row| data_row(&row.iter().take(columns.len()).map(Option::as_deref).collect::<Vec<_>>()))
            .filter(|row| one(&writer, Format::Json, row).is_ok())
            .collect();
        for format in Format::ALL {
            let mut whole = Vec::new();
            writer.begin(format, Returns::Many, &mut whole);
            for (n, row) in rows.iter().enumerate() {
                if n > 0 {
                    writer.separator(format, &mut whole);
                }
                writer.row(format, &mut row.as_slice(), &mut whole).unwrap();
            }
            writer.end(format, Returns::Many, rows.len() as u64, false, &mut whole);
            let (mut streamed, mut left, mut shown) = (Vec::new(), rows.as_slice(), 0);
            writer.begin(format, Returns::Many, &mut streamed);
            for size in pieces.iter().cycle() {
                let (piece, rest) = left.split_at((*size).min(left.len()));
                let bytes = piece.concat();
                let mut taken = bytes.as_slice();
                writer.rows(format, shown == 0, &mut taken, piece.len() as u64, &mut streamed).unwrap();
                prop_assert!(taken.is_empty());
                shown += piece.len() as u64;
                left = rest;
                if left.is_empty() {
                    break;
                }
            }
            writer.end(format, Returns::Many, shown, false, &mut streamed);
            prop_assert_eq!(String::from_utf8_lossy(&streamed), String::from_utf8_lossy(&whole));
        }
    }

    #[test]
    fn rows_that_are_no_rows_are_malformed_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), count in 0..4u64) {
        let writer = RowWriter::compile(&[string_column(Encoding::Raw), string_column(Encoding::String)], &[], None).unwrap();
        for format in Format::ALL {
            let (mut singly, mut rest) = (Vec::new(), bytes.as_slice());
            let one_by_one: Result<(), Malformed> = (0..count).try_for_each(|n| {
                if n > 0 {
                    writer.separator(format, &mut singly);
                }
                writer.row(format, &mut rest, &mut singly)
            });
            let mut together = Vec::new();
            prop_assert_eq!(writer.rows(format, true, &mut bytes.as_slice(), count, &mut together), one_by_one);
            if one_by_one.is_ok() {
                prop_assert_eq!(together, singly);
            }
        }
    }
}
