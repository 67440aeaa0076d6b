use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn normal(uri: &Uri) -> Value {
    let word = |debug: String| {
        debug.chars().enumerate().fold(String::new(), |mut word, (n, c)| {
            if c.is_ascii_uppercase() && n > 0 {
                word.push('-');
            }
            word.push(c.to_ascii_lowercase());
            word
        })
    };
    json!({
        "hosts": uri.hosts.iter().map(|host| json!([host.name, host.port])).collect::<Vec<_>>(),
        "user": uri.user,
        "password": uri.password.as_ref().map(Secret::reveal),
        "dbname": uri.dbname,
        "connect_timeout": uri.connect_timeout.as_secs(),
        "application_name": uri.application_name,
        "sslmode": word(format!("{:?}", uri.sslmode)),
        "sslrootcert": uri.sslrootcert.as_ref().map(|root| match root { RootCert::System => "system", RootCert::File(path) => path }),
        "sslcert": uri.sslcert.as_ref().map(|pair| &pair.0),
        "sslkey": uri.sslcert.as_ref().map(|pair| &pair.1),
        "channel_binding": word(format!("{:?}", uri.channel_binding)),
        "target_session_attrs": word(format!("{:?}", uri.target_session_attrs)),
        "load_balance_hosts": if uri.load_balance_hosts { "random" } else { "disable" },
        "keepalives": u32::from(uri.keepalives),
        "keepalives_idle": uri.keepalives_idle,
        "keepalives_interval": uri.keepalives_interval,
        "keepalives_count": uri.keepalives_count,
        "tcp_user_timeout": uri.tcp_user_timeout,
        "options": uri.options,
    })
}

#[test]
fn vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/golden/vectors/postgres_uri.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let uri = case["uri"].as_str().unwrap();
        let named = |name: &str| case["files"][name].as_str().map(str::to_owned);
        let files = Files { ca: named("ca"), certificate: named("certificate"), key: named("key") };
        match (Uri::parse(uri, &files), case.get("error")) {
            (Ok(got), None) => {
                let mut wanted = file["defaults"].clone();
                wanted.as_object_mut().unwrap().extend(case["normal"].as_object().unwrap().clone());
                assert_eq!(normal(&got), wanted, "{uri}");
            }
            (Err(error), Some(wanted)) => {
                let problem = format!("{:?}", error.problem).to_ascii_lowercase();
                assert_eq!(&json!([error.parameter, problem]), wanted, "{uri}");
            }
            (got, _) => panic!("{uri}: {:?}", got.err()),
        }
    }
}

fn encode(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

proptest! {
    #[test]
    fn round_trip(user in "[^\0]{1,20}", password in "[^\0]{1,20}", dbname in "[^\0]{1,20}", options in "[^\0]{1,20}", port in 1u16..) {
        let text = format!("postgresql://{}:{}@h:{port}/{}?options={}", encode(&user), encode(&password), encode(&dbname), encode(&options));
        let uri = Uri::parse(&text, &Files::default()).unwrap();
        prop_assert_eq!((&uri.user, &uri.dbname, &uri.options, uri.hosts[0].port), (&user, &dbname, &Some(options), port));
        prop_assert_eq!(uri.password.as_ref().map(Secret::reveal), Some(password.as_str()));
    }

    #[test]
    fn never_panics_nor_tells(text in "[postgres:/u@h?=&%20,\\[\\]#ü]{0,40}") {
        for candidate in [text.clone(), format!("postgres://{text}"), format!("postgres://u@h?{text}")] {
            if let Err(error) = Uri::parse(&candidate, &Files::default()) {
                prop_assert!(error.parameter.len() <= 40);
            }
        }
    }
}

#[test]
fn shows_nothing() {
    let uri = Uri::parse("postgres://someone:secret@inside/db", &Files::default()).unwrap();
    assert_eq!(format!("{uri:?} {:?}", uri.password), "Uri(***) Some(***)");
}
