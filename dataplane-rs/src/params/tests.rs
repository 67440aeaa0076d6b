#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
use super::*;
use crate::golden::{hex, random, vectors};
use proptest::prelude::*;
use serde_json::json;

/// A declaration of the vectors, with the defaults that Python writes out.
fn declarations(params: &Value) -> Vec<ParamPlan> {
    let whole = |param: &Value| {
        let mut plan = json!({
            "array": false, "required": false, "nullable": false, "default": null, "enum": null, "minimum": null, "maximum": null,
            "minLength": null, "maxLength": null, "pattern": null,
        });
        plan.as_object_mut().unwrap().extend(param.as_object().unwrap().clone());
        serde_json::from_value(plan).unwrap()
    };
    params.as_array().unwrap().iter().map(whole).collect()
}

fn paging(max_size: &Value) -> Option<PagePlan> {
    let statement = json!({"sql": "", "params": [], "oids": []});
    let page = |size| json!({"keys": [], "defaultSize": 1, "maxSize": size, "first": statement, "next": statement});
    max_size.as_u64().map(|size| serde_json::from_value(page(size)).unwrap())
}

fn framed(values: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values.as_array().unwrap() {
        let Some(text) = value.as_str() else {
            out.extend_from_slice(&[0xff; 4]);
            continue;
        };
        let bytes = text.strip_prefix("r:").map_or_else(|| text.as_bytes().to_vec(), |bits| [b"r".as_slice(), &hex(bits)].concat());
        out.extend_from_slice(&i32::try_from(bytes.len()).unwrap().to_be_bytes());
        out.extend_from_slice(&bytes);
    }
    out
}

fn named(faults: &[(String, Fault)]) -> Value {
    faults.iter().map(|(name, fault)| json!([name, fault.code()])).collect()
}

fn check(spec: &Spec, bound: &Bound, case: &Value, values: &Value) {
    let query = case["query"].as_str().unwrap_or_default();
    let body = case["body_hex"].as_str().map(hex).or_else(|| case["body"].as_str().map(|body| body.as_bytes().to_vec()));
    let mut out = b"before".to_vec();
    match spec.decode(bound, query.as_bytes(), body.as_deref(), &mut out) {
        Ok(given) => {
            assert!(values.is_array(), "{case}");
            assert_eq!(String::from_utf8_lossy(&out[6..]), String::from_utf8_lossy(&framed(values)), "{case}");
            let wanted = &case["given"];
            assert_eq!(given.page_size.map(u64::from), wanted["pageSize"].as_u64(), "{case}");
            assert_eq!(given.cursor.as_deref(), wanted["cursor"].as_str().map(str::as_bytes), "{case}");
            assert_eq!(given.format.map(Format::name), wanted["format"].as_str(), "{case}");
        }
        Err(Refused { code, faults }) => {
            assert!(!values.is_array(), "{case}: {faults:?}");
            assert_eq!(out, b"before");
            assert_eq!(code.name(), case["code"].as_str().unwrap_or("invalid_parameters"), "{case}");
            assert_eq!(named(&faults), if case["faults"].is_array() { case["faults"].clone() } else { json!([]) }, "{case}");
        }
    }
}

#[test]
fn calls_as_the_vectors_say() {
    calls(&vectors("params.json"));
}

#[test]
fn random_calls_as_python_takes_them() {
    calls(&random("params.json"));
}

/// MySQL takes PostgreSQL's text, and of a list SQLite's; None when the vector doesn't say.
fn on_mysql(plans: &[ParamPlan], case: &Value) -> Option<Value> {
    let Some(values) = case["values"].as_array() else { return Some(Value::Null) };
    let of = |(n, value): (usize, &Value)| match (plans[n].array, value.is_null()) {
        (true, false) => Some(json!(case["sqlite"][n].as_str()?.strip_prefix('t')?)),
        _ => Some(value.clone()),
    };
    values.iter().enumerate().map(of).collect()
}

fn calls(file: &Value) {
    for group in file.as_array().unwrap() {
        let plans = declarations(&group["params"]);
        let bind = group["bind"].as_object().cloned().unwrap_or_default();
        for engine in [Engine::Postgres, Engine::Sqlite, Engine::Mysql] {
            let spec = Spec::compile(&plans, paging(&group["maxSize"]).as_ref(), engine).unwrap();
            let bound = spec.bound(&bind).unwrap();
            for case in group["cases"].as_array().unwrap() {
                match engine {
                    Engine::Postgres => check(&spec, &bound, case, &case["values"]),
                    Engine::Sqlite if case["values"].is_null() || case["sqlite"].is_array() => check(&spec, &bound, case, &case["sqlite"]),
                    Engine::Sqlite => {}
                    Engine::Mysql => {
                        if let Some(values) = on_mysql(&plans, case) {
                            check(&spec, &bound, case, &values);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn declarations_and_bindings_as_the_vectors_say() {
    let file = vectors("declarations.json");
    for case in file["invalid"].as_array().unwrap() {
        assert!(Spec::compile(&declarations(&case["params"]), None, Engine::Postgres).is_err(), "{case}");
    }
    let spec = Spec::compile(&declarations(&file["params"]), None, Engine::Postgres).unwrap();
    for case in file["bind"].as_array().unwrap() {
        match spec.bound(case["bind"].as_object().unwrap()) {
            Ok(bound) => {
                let mut out = Vec::new();
                spec.decode(&bound, b"", None, &mut out).unwrap();
                assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&framed(&case["values"])), "{case}");
            }
            Err(BindError::Undeclared(name)) => assert_eq!(case["undeclared"], json!(name)),
            Err(BindError::Fault(name, fault)) => assert_eq!(case["fault"], json!([name, fault.code()]), "{case}"),
        }
    }
}

#[test]
fn patterns_as_the_vectors_say() {
    patterns(&vectors("patterns.json"));
    patterns(&random("patterns.json"));
}

fn patterns(file: &Value) {
    for case in file["portable"].as_array().unwrap() {
        let pattern = case["pattern"].as_str().unwrap();
        let regex = pattern::compile(pattern).unwrap_or_else(|_| panic!("{pattern}"));
        for (texts, matches) in [("matches", true), ("not", false)] {
            for text in case[texts].as_array().unwrap() {
                assert_eq!(regex.is_match(text.as_str().unwrap()), matches, "{pattern} {text}");
            }
        }
        if let Some(rewritten) = case["rewritten"].as_str() {
            assert_eq!(pattern::portable(pattern).unwrap(), rewritten);
        }
    }
    for pattern in file["refused"].as_array().unwrap() {
        assert_eq!(pattern::compile(pattern.as_str().unwrap()).map(|_| ()), Err(pattern::NotPortable), "{pattern}");
    }
}

#[test]
fn the_largest_patterns_compile() {
    for pattern in ["[^a]{1000}", "(?:[^a]{2}){499}", "(?:\\W|\\S){400}", &"(x".repeat(50), &"[^é]".repeat(200)] {
        let closed = format!("{pattern}{}", ")".repeat(pattern.matches("(x").count()));
        pattern::compile(&closed).unwrap();
    }
}

#[test]
fn nesting_is_bounded() {
    let spec = Spec::compile(&declarations(&json!([{"name": "v", "type": "json"}])), None, Engine::Postgres).unwrap();
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let refused = |result: Result<Given<'_>, Refused>| result.unwrap_err().code;
    let mut out = Vec::new();
    let body = |depth| format!("{{\"v\":{}}}", nested(depth));
    assert!(spec.decode(&Bound::default(), b"", Some(body(128).as_bytes()), &mut out).is_ok());
    assert_eq!(refused(spec.decode(&Bound::default(), b"", Some(body(129).as_bytes()), &mut out)), Code::MalformedBody);
    let query = |depth| format!("v={}", nested(depth));
    assert!(spec.decode(&Bound::default(), query(128).as_bytes(), None, &mut out).is_ok());
    assert_eq!(refused(spec.decode(&Bound::default(), query(129).as_bytes(), None, &mut out)), Code::InvalidParameters);
    let objects = |depth: usize| format!("{{\"v\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert!(spec.decode(&Bound::default(), b"", Some(objects(128).as_bytes()), &mut out).is_ok());
    assert_eq!(refused(spec.decode(&Bound::default(), b"", Some(objects(129).as_bytes()), &mut out)), Code::MalformedBody);
}

#[test]
fn numbers_have_at_most_400_characters() {
    assert!(grammar::number("1".repeat(400).as_bytes()));
    assert!(!grammar::number("1".repeat(401).as_bytes()));
}

#[test]
fn thousands_of_parameters_and_long_values() {
    let plans: Vec<_> = (0..3000).map(|n| json!({"name": format!("p{n}"), "type": "string"})).collect();
    let spec = Spec::compile(&declarations(&Value::Array(plans)), None, Engine::Postgres).unwrap();
    let query: Vec<_> = (0..3000).rev().map(|n| format!("p{n}={n}")).collect();
    let unknown: String = (0..20_000).map(|n| format!("&u{n}=")).collect();
    let mut out = Vec::new();
    spec.decode(&Bound::default(), query.join("&").as_bytes(), None, &mut out).unwrap();
    assert!(out.starts_with(&[0, 0, 0, 1, b'0', 0, 0, 0, 1, b'1']));
    let refused = spec.decode(&Bound::default(), (query.join("&") + &unknown).as_bytes(), None, &mut out).unwrap_err();
    assert_eq!(refused.faults.len(), 20_000);
    let body = format!("{{\"p7\":\"{}\"}}", "\\u00e9".repeat(170_000));
    spec.decode(&Bound::default(), b"", Some(body.as_bytes()), &mut out).unwrap();
}

#[test]
fn places_follow_their_parameters() {
    let values = framed(&json!(["a", null, "c"]));
    let placed = |params: &[u32]| {
        let mut out = Vec::new();
        place(&values, params, &mut out).map(|()| out)
    };
    assert_eq!(placed(&[0, 1, 2]).unwrap(), values);
    assert_eq!(placed(&[0]).unwrap(), framed(&json!(["a"])));
    assert_eq!(placed(&[2, 0, 2, 1]).unwrap(), framed(&json!(["c", "a", "c", null])));
    assert_eq!(placed(&[]).unwrap(), b"");
    assert_eq!(placed(&[3]), None);
    assert_eq!(placed(&[0, 1, 2, 3]), None);
    let mut out = Vec::new();
    push_integer(51, Engine::Postgres, &mut out);
    push_integer(51, Engine::Sqlite, &mut out);
    assert_eq!(out, framed(&json!(["51", "i51"])));
}

#[test]
fn link_arguments_leave_the_cursor_out() {
    for (query, kept) in
        [("", ""), ("a=1&cursor=x&b=%20", "a=1&b=%20"), ("cursor=x", ""), ("&&c%75rsor=x&&a", "a"), ("cursors=1", "cursors=1")]
    {
        let mut out = b"?".to_vec();
        url::without_cursor(query.as_bytes(), &mut out);
        assert_eq!(std::str::from_utf8(&out[1..]).unwrap(), kept);
    }
}

#[test]
fn format_is_read_first() {
    use crate::http::negotiate::NotAcceptable;
    for (query, wanted) in [
        ("", Ok(None)),
        ("a=%zz&format=csv", Ok(Some(Format::Csv))),
        ("form%61t=nd%6Ason&format=x", Ok(Some(Format::Ndjson))),
        ("format=", Err(NotAcceptable)),
        ("format", Err(NotAcceptable)),
        ("format=%zz", Err(NotAcceptable)),
        ("format=xml", Err(NotAcceptable)),
    ] {
        assert_eq!(url::requested(query.as_bytes()), wanted, "{query}");
    }
}

proptest! {
    #[test]
    fn decimals_compare_as_numbers_do(a in "-?(0|[1-9][0-9]{0,6})(\\.[0-9]{1,5})?([eE][+-]?[0-9])?", b in "-?(0|[1-9][0-9]{0,6})(\\.[0-9]{1,5})?([eE][+-]?[0-9])?") {
        // Scaled by 10^15 every such number is an integer that fits.
        let scaled = |text: &str| {
            let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
            let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
            let digits: i128 = format!("{}{fraction}", whole.trim_start_matches('-')).parse().unwrap();
            let power = 15 + exponent.parse::<i32>().unwrap() - i32::try_from(fraction.len()).unwrap();
            digits * 10i128.pow(u32::try_from(power).unwrap()) * if text.starts_with('-') { -1 } else { 1 }
        };
        prop_assert!(grammar::number(a.as_bytes()));
        prop_assert_eq!(decimal::compare(a.as_bytes(), b.as_bytes()), scaled(&a).cmp(&scaled(&b)));
    }

    #[test]
    fn the_scanner_takes_what_a_json_reader_takes(text in "[\\[\\]{}:,\"\\\\ a0-9eE.+\\-ntu]{0,12}") {
        if let Ok(item) = json::text(text.as_bytes()) {
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok(), "{}", text);
            prop_assert_eq!(item.bytes, text.trim_ascii().as_bytes());
        } else {
            // The other reader does not look at escapes of ignored strings as closely, nothing else.
            prop_assert!(serde_json::from_str::<Value>(&text).is_err() || text.contains("\\u"), "{}", text);
        }
    }

    #[test]
    fn any_text_arrives_as_it_was(text in any::<String>()) {
        let spec = Spec::compile(&declarations(&json!([{"name": "v", "type": "string"}, {"name": "l", "type": "string", "array": true}])), None, Engine::Postgres).unwrap();
        let body = json!({"v": text, "l": [text]}).to_string();
        let escaped: String = text.bytes().map(|b| format!("%{b:02x}")).collect();
        let (mut by_body, mut by_url) = (Vec::new(), Vec::new());
        let result = spec.decode(&Bound::default(), b"", Some(body.as_bytes()), &mut by_body);
        if text.contains('\0') {
            prop_assert_eq!(result.unwrap_err().faults.len(), 2);
        } else {
            result.unwrap();
            let mut rest = by_body.as_slice();
            prop_assert_eq!(next(&mut rest).unwrap(), Some(text.as_bytes()));
            let literal = format!("{{\"{}\"}}", text.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(next(&mut rest).unwrap(), Some(literal.as_bytes()));
            spec.decode(&Bound::default(), format!("v={escaped}").as_bytes(), None, &mut by_url).unwrap();
            prop_assert!(by_body.starts_with(&by_url[..by_url.len() - 4]));
        }
    }

    #[test]
    fn nothing_panics(query in proptest::collection::vec(any::<u8>(), 0..40), body in proptest::collection::vec(any::<u8>(), 0..40)) {
        let plans = declarations(&json!([{"name": "a", "type": "json"}, {"name": "b", "type": "number", "array": true}]));
        for engine in [Engine::Postgres, Engine::Sqlite, Engine::Mysql] {
            let spec = Spec::compile(&plans, None, engine).unwrap();
            let mut out = Vec::new();
            let _any = spec.decode(&Bound::default(), &query, Some(&body), &mut out);
        }
    }
}
