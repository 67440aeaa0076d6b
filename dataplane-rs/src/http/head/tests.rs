use super::*;
use proptest::prelude::*;

fn fault(text: &str) -> Option<Fault> {
    match parse(text.as_bytes(), 16 << 10, 100, |_| ()) {
        Ok(Some(())) => None,
        Ok(None) => panic!("partial: {text:?}"),
        Err(fault) => Some(fault),
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for text in [
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n X-A: b\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /#f HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "{\"a\":1}\r\n\r\n",
    ] {
        assert_eq!(fault(text), Some(Fault::Malformed), "{text:?}");
    }
}

#[test]
fn large_heads_are_431() {
    let many = (0..101).map(|n| format!("X-{n}: a\r\n")).collect::<String>();
    assert_eq!(fault(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")), Some(Fault::TooLarge));
    let long = "a".repeat(16 << 10);
    assert_eq!(fault(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")), Some(Fault::TooLarge));
    assert_eq!(fault(&format!("GET /{long} HTTP/1.1\r\n")), Some(Fault::TooLarge));
}

#[test]
fn fields_are_read() {
    let text = "POST http://api.test/q/a%20b?x=1?&y HTTP/1.1\r\nhOst: a:80\r\nX-Api-Key:  k \r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\
                Connection: x, Close\r\nAccept: a\r\nAccept: b\r\n\r\nabc";
    let got = parse(text.as_bytes(), 16 << 10, 100, |head| {
        assert_eq!((head.method, head.path, head.arguments), (Method::Post, &b"/q/a%20b"[..], &b"x=1?&y"[..]));
        assert_eq!(head.credential, Credential::Key(b"k"));
        assert_eq!((head.framing, head.expects, head.keep_alive), (Framing::Length(3), true, false));
        assert_eq!((head.accept, head.joined("accept")), (Field::Several, b"a, b".to_vec()));
        head.length
    });
    assert_eq!(got, Ok(Some(text.len() - 3)));
}

#[test]
fn two_credentials_are_unusable() {
    let with = |lines: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        parse(text.as_bytes(), 16 << 10, 100, |head| match head.credential {
            Credential::None => "none".to_owned(),
            Credential::Key(key) => String::from_utf8_lossy(key).into_owned(),
            Credential::Unusable => "unusable".to_owned(),
        })
        .unwrap()
        .unwrap()
    };
    assert_eq!(with(""), "none");
    assert_eq!(with("Authorization: bEARER k\r\n"), "k");
    for lines in [
        "X-API-Key: a\r\nX-API-Key: a\r\n",
        "X-API-Key: a\r\nAuthorization: Bearer a\r\n",
        "Authorization: Basic a\r\n",
        "Authorization: Bearer\r\n",
        "X-API-Key: \r\n",
        "Authorization: Basic a\r\nX-API-Key: k\r\n",
    ] {
        assert_eq!(with(lines), "unusable", "{lines}");
    }
}

#[test]
fn paths_are_decoded() {
    let decode = |path: &str| {
        let mut out = Vec::new();
        decode_path(path.as_bytes(), &mut out).then(|| String::from_utf8(out).unwrap())
    };
    assert_eq!(decode("/q/a%2fb%C3%A9").as_deref(), Some("/q/a/bé"));
    for path in ["/%", "/%4", "/%zz", "/%ff", "/%00", "/%+1"] {
        assert_eq!(decode(path), None, "{path}");
    }
}

#[test]
fn traces_are_checked() {
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(trace(good.as_bytes()).map(|(id, sampled)| (id[0], id[15], sampled)), Some((0x0a, 0x9c, true)));
    for bad in [
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-*/",
    ] {
        assert_eq!(trace(bad.as_bytes()), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, 256, 10, |head| head.length);
    }

    #[test]
    fn a_head_in_two_parts_is_the_head_in_one(cut in 0usize..70) {
        let text = b"GET /q/a?b=c HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nAccept: */*\r\n\r\n";
        let part = text.get(..cut.min(text.len() - 1)).unwrap();
        prop_assert_eq!(parse(part, 256, 10, |head| head.length), Ok(None));
        prop_assert_eq!(parse(text, 256, 10, |head| head.length), Ok(Some(text.len())));
    }
}

/// What a head says, as text: all of it.
fn said(result: Result<Option<String>, Fault>) -> String {
    format!("{result:?}")
}

fn both(text: &[u8], limit_bytes: usize, limit_headers: usize) -> (String, String) {
    let say = |head: Head<'_>| format!("{head:?}");
    let window = text.get(..limit_bytes).unwrap_or(text);
    (said(parse(text, limit_bytes, limit_headers, say)), said(plain(window, limit_bytes <= text.len(), limit_headers, say)))
}

fn is_usual(text: &str) -> bool {
    usual::read(text.as_bytes(), &mut [Header::default(); USUAL], USUAL).is_some()
}

#[test]
fn usual_heads_are_read_by_words_and_others_are_not() {
    for text in [
        "GET /q/user?path=/users/7 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-API-Key: trk_abc\r\nAccept: */*\r\n\r\n",
        "POST /q/user HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
        "HEAD / HTTP/1.1\r\nhost:a\r\nX:\r\nY: \r\n\r\n",
    ] {
        assert!(is_usual(text), "{text:?}");
    }
    for text in [
        "GET /q/user HTTP/1.0\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \u{e9}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\tb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\x7f\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n",
    ] {
        assert!(!is_usual(text), "{text:?}");
    }
    let many = (0..USUAL).map(|n| format!("X-{n}: a\r\n")).collect::<String>();
    assert!(!is_usual(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")));
}

fn header() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        3 => prop::sample::select(vec![
            "Host", "x-api-key", "X-API-KEY", "accept", "Accept-Encoding", "Content-Length", "Transfer-Encoding", "Connection", "Prefer", "Expect",
            "traceparent", "Content-Type", "Authorization", "If-None-Match", "Idempotency-Key", "X-Forwarded-For", "Content-Encoding", "User-Agent",
        ]).prop_map(str::to_owned),
        1 => "[!-~]{0,20}",
        1 => "[A-Za-z@`\\[\\]^-]{1,17}",
    ];
    let value = prop_oneof![
        3 => prop::sample::select(vec!["a", "*/*", "1", "0", "chunked", "close, keep-alive", "Bearer abc", "bearer  x ", "100-continue", "127.0.0.1:80"]).prop_map(str::to_owned),
        2 => "[ -~]{0,30}",
        1 => "[ \t\u{e9}\u{7f}\0\r\n,a]{0,6}",
    ];
    (
        name,
        prop::sample::select(vec![":", ": ", ":  ", " : ", ":\t", ""]),
        value,
        prop::sample::select(vec!["\r\n", "\r\n", "\r\n", " \r\n", "\n", "\r"]),
    )
        .prop_map(|(name, colon, value, end)| format!("{name}{colon}{value}{end}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn heads_read_by_words_say_what_httparse_says(
        method in prop::sample::select(vec!["GET", "GET", "POST", "HEAD", "OPTIONS", "get", "", "G"]),
        target in prop_oneof![3 => "/[!-~]{0,40}", 1 => "[ -~\u{e9}]{0,12}", 1 => Just("http://a/b?c".to_owned())],
        version in prop::sample::select(vec![" HTTP/1.1", " HTTP/1.1", " HTTP/1.1", " HTTP/1.0", "  HTTP/1.1", " HTTP/2.0", " HTTP/1.1 ", ""]),
        headers in prop::collection::vec(header(), 0..30),
        end in prop::sample::select(vec!["\r\n", "\r\n", "", "\n", "\r\nGET /next HTTP/1.1\r\n\r\n"]),
        limits in (prop::sample::select(vec![40usize, 200, 16 << 10]), prop::sample::select(vec![2usize, 24, 100])),
        cut in any::<prop::sample::Index>(),
    ) {
        let text = format!("{method} {target}{version}\r\n{}{end}", headers.concat());
        let (words, plainly) = both(text.as_bytes(), limits.0, limits.1);
        prop_assert_eq!(words, plainly, "{:?}", text);
        let part = text.as_bytes().get(..cut.index(text.len() + 1)).unwrap_or_default();
        let (words, plainly) = both(part, limits.0, limits.1);
        prop_assert_eq!(words, plainly, "{:?}", part);
    }

    #[test]
    fn any_good_headers_are_usual(values in prop::collection::vec("[!-~]{1,70}( [!-~]{1,20})?", 0..20), target in "/[!-~]{0,90}") {
        let headers = values.iter().enumerate().map(|(n, value)| format!("X-{n}: {value}\r\n")).collect::<String>();
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\nrest\0");
        prop_assert!(is_usual(&text), "{:?}", text);
        let (words, plainly) = both(text.as_bytes(), 16 << 10, 100);
        prop_assert_eq!(words, plainly);
    }
}
