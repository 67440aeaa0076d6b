//! Arguments and bodies against a query that declares one parameter of every kind: no panic, and what is accepted is framed for each of
//! them, the same by both engines.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tailrace_dataplane::encode::rows::next;
use tailrace_dataplane::params::{Bound, Spec, place};
use tailrace_dataplane::plan::snapshot::{Engine, PagePlan, ParamPlan};

fn declarations() -> Vec<ParamPlan> {
    let kinds = [
        ("in", "integer"),
        ("nu", "number"),
        ("st", "string"),
        ("bo", "boolean"),
        ("da", "date"),
        ("ti", "time"),
        ("tz", "timestamp"),
        ("uu", "uuid"),
        ("js", "json"),
    ];
    let plans = kinds.iter().flat_map(|(name, kind)| {
        [false, true].map(|array| {
            let numeric = matches!(*kind, "integer" | "number");
            let text = *kind == "string";
            serde_json::json!({
                "name": format!("{name}{}", if array { "s" } else { "" }), "type": kind, "array": array, "required": false,
                "nullable": array, "default": null, "enum": null, "minimum": numeric.then_some("-1e2"), "maximum": numeric.then_some("99.5"),
                "minLength": text.then_some(1), "maxLength": text.then_some(5), "pattern": text.then_some("^[a-y]|é"),
            })
        })
    });
    plans.map(|plan| serde_json::from_value(plan).unwrap()).collect()
}

static SPECS: LazyLock<[Spec; 2]> = LazyLock::new(|| {
    let statement = serde_json::json!({"sql": "", "params": [], "oids": []});
    let page = serde_json::json!({"keys": [], "defaultSize": 1, "maxSize": 100, "first": statement, "next": statement});
    let page: PagePlan = serde_json::from_value(page).unwrap();
    [Engine::Postgres, Engine::Sqlite].map(|engine| Spec::compile(&declarations(), Some(&page), engine).unwrap())
});

// Input: URL arguments, a line feed, the body (none without a line feed).
fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|&b| b == b'\n');
    let (query, body) = cut.map_or((bytes, None), |at| (&bytes[..at], Some(&bytes[at + 1..])));
    let [postgres, sqlite] = &*SPECS;
    let bound = Bound::default();
    let (mut texts, mut tagged) = (Vec::new(), Vec::new());
    let given = postgres.decode(&bound, query, body, &mut texts);
    assert_eq!(given, sqlite.decode(&bound, query, body, &mut tagged));
    match given {
        Ok(_) => {
            for (values, least) in [(&texts, 0), (&tagged, 1)] {
                let mut rest = values.as_slice();
                for _ in 0..18 {
                    if let Some(value) = next(&mut rest).unwrap() {
                        assert!(value.len() >= least);
                        assert!(least == 1 || std::str::from_utf8(value).is_ok());
                    }
                }
                assert!(rest.is_empty());
                let mut places = Vec::new();
                place(values, &[17, 0, 17], &mut places).unwrap();
            }
        }
        Err(refused) => {
            assert!(texts.is_empty() && tagged.is_empty());
            let status = refused.code.status();
            assert!(matches!(status, 400 | 406 | 422));
            assert_eq!(status == 422, !refused.faults.is_empty());
            let mut problem = Vec::new();
            tailrace_dataplane::encode::problem::write(refused.code, None, &refused.faults, &mut problem);
            serde_json::from_slice::<serde_json::Value>(&problem).unwrap();
        }
    }
});
