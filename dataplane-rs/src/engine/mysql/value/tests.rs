use super::*;
use crate::golden::folder;
use proptest::prelude::*;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("vectors/mysql_values.json")).unwrap()).unwrap()
}

fn definition(case: &Value) -> Definition<'static> {
    let number = |name: &str| case[name].as_u64().unwrap();
    Definition::of(number("type") as u8, number("charset") as u16, number("length") as u32, number("flags") as u16)
}

fn bytes(case: &Value) -> Vec<u8> {
    unhex(case["hex"].as_str().unwrap().as_bytes()).unwrap()
}

/// A row of one column that is not NULL.
fn packet(value: &[u8]) -> Vec<u8> {
    [&[0, 0], value].concat()
}

#[test]
fn columns_are_read_as_the_contract_says() {
    for case in vectors()["columns"].as_array().unwrap() {
        let definition = definition(case);
        let kind = Kind::of(&definition);
        let mut out = Vec::new();
        row(&packet(&bytes(case)), &[kind], &mut out).unwrap_or_else(|error| unreachable!("{case}: {error}"));
        assert_eq!(std::str::from_utf8(&out[4..]).unwrap(), case["text"].as_str().unwrap(), "{case}");
        let planned: Encoding = serde_json::from_value(case["encoding"].clone()).unwrap();
        assert_eq!(kind.encoding(), planned, "{case}");
        assert_eq!(u64::from(definition.type_oid()), case["typeOid"].as_u64().unwrap(), "{case}");
    }
}

#[test]
fn malformed_rows_are_refused() {
    for case in vectors()["malformed"].as_array().unwrap() {
        let mut out = vec![7];
        assert!(row(&packet(&bytes(case)), &[Kind::of(&definition(case))], &mut out).is_err(), "{case}");
        assert_eq!(out, [7]);
    }
}

#[test]
fn parameters_are_sent_as_the_contract_says() {
    for case in vectors()["parameters"].as_array().unwrap() {
        let mut out = BytesMut::new();
        let kind = parameter(case["place"].as_u64().unwrap() as u32, case["text"].as_str().unwrap().as_bytes(), &mut out);
        let flag = if case["unsigned"].as_bool().unwrap() { UNSIGNED } else { 0 };
        assert_eq!(kind, Ok(case["type"].as_u64().unwrap() as u16 | flag), "{case}");
        assert_eq!(&out[..], bytes(case), "{case}");
    }
    for case in vectors()["refused"].as_array().unwrap() {
        let refused = parameter(case["place"].as_u64().unwrap() as u32, case["text"].as_str().unwrap().as_bytes(), &mut BytesMut::new());
        assert_eq!(refused, Err(Unbindable), "{case}");
    }
}

#[test]
fn singles_are_written_as_postgresql_writes_them() {
    for case in vectors()["singles"].as_array().unwrap() {
        let bits = u32::from_str_radix(case["bits"].as_str().unwrap(), 16).unwrap();
        let mut out = Vec::new();
        float::write_single(f32::from_bits(bits), &mut out);
        assert_eq!(std::str::from_utf8(&out).unwrap(), case["text"].as_str().unwrap(), "{case}");
    }
}

#[test]
fn kinds_fit_encodings_and_columns_their_tables() {
    let all = ["raw", "number", "quoted", "boolean", "string", "timestamp", "timestamptz", "base64", "json"];
    for case in vectors()["fits"].as_array().unwrap() {
        let kind = Kind::of(&definition(case));
        for encoding in all {
            let planned: Encoding = serde_json::from_value(encoding.into()).unwrap();
            assert_eq!(kind.fits(planned), case["encodings"].as_array().unwrap().contains(&encoding.into()), "{case} {encoding}");
        }
    }
    for case in vectors()["tables"].as_array().unwrap() {
        let part = |name: &str| case[name].as_str().unwrap().as_bytes().to_vec();
        let (schema, table, name) = (part("schema"), part("orgTable"), part("orgName"));
        let definition = Definition::of(8, 63, 20, 0).from(&schema, &table, &name);
        assert_eq!(u64::from(definition.table_oid()), case["tableOid"].as_u64().unwrap());
    }
}

#[test]
fn nulls_stand_in_their_bitmap() {
    // Nine columns: the bitmap begins at bit 2 and has two bytes.
    let mut out = Vec::new();
    row(&[0, 0b1111_1000, 0b0000_0111, 1, 7], &[vec![Kind::Unsigned(1); 1], vec![Kind::Text; 8]].concat(), &mut out).unwrap_err();
    row(&[0, 0b1111_1000, 0b0000_0111, 7], &[vec![Kind::Unsigned(1); 1], vec![Kind::Text; 8]].concat(), &mut out).unwrap();
    assert_eq!(out[..5], [0, 0, 0, 1, b'7']);
    assert_eq!(out.len(), 5 + 8 * 4);
    let mut sent = BytesMut::new();
    execution(9, &[8, 253], &[&[255, 255, 255, 255, 0, 0, 0, 1][..], b"x"].concat(), &mut sent).unwrap();
    assert_eq!(&sent[..], [9, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 8, 0, 253, 0, 1, b'x']);
    assert_eq!(execution(9, &[8], b"", &mut sent), Err(Unbindable));
}

proptest! {
    #[test]
    fn rows_never_panic(packet: Vec<u8>, types in proptest::collection::vec((any::<u8>(), prop_oneof![Just(63u16), Just(45)], any::<u16>()), 0..6)) {
        let kinds: Vec<Kind> = types.iter().map(|(kind, charset, flags)| Kind::of(&Definition::of(*kind, *charset, 1, *flags))).collect();
        let mut out = Vec::new();
        if row(&packet, &kinds, &mut out).is_ok() {
            let mut rest = &out[..];
            for _ in &kinds {
                prop_assert!(crate::encode::rows::next(&mut rest).is_ok());
            }
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn parameters_never_panic(place: u32, text: Vec<u8>) {
        let _ = parameter(place, &text, &mut BytesMut::new());
        let _ = parameter(12, &text, &mut BytesMut::new());
        let _ = parameter(246, &text, &mut BytesMut::new());
    }
}
