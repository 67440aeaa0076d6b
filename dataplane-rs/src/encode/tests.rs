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
