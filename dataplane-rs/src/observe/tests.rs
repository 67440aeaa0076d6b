use super::*;
use proptest::prelude::*;
use std::time::UNIX_EPOCH;

/// A sink that a test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_observation_is_one_line_of_json() {
    let sink = Shared::default();
    let observer = Observer::new(Box::new(sink.clone()));
    observer.report(&Observation::DatabaseDown { connection: "or\"d\ners".into(), reason: "refused" });
    let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["event"], "database_down");
    assert_eq!(value["level"], "error");
    assert_eq!(value["connection"], "or\"d\ners");
    assert_eq!(observer.lines(), [0, 0, 1]);
}

#[test]
fn a_flood_of_one_event_is_held_back_and_counted() {
    let sink = Shared::default();
    let observer = Observer::new(Box::new(sink.clone()));
    for _ in 0..1000 {
        observer.report(&Observation::PlanStale { query: "q".into() });
    }
    observer.report(&Observation::GatewayUp);
    let lines = String::from_utf8(lock(&sink.0).clone()).unwrap().lines().count() as u64;
    assert!((LINES_A_SECOND + 1..900).contains(&lines), "{lines}");
    assert_eq!(observer.lines(), [1, 1000, 0]);
}

#[test]
fn the_gateways_coming_and_going_is_told_once() {
    let sink = Shared::default();
    let observer = Observer::new(Box::new(sink.clone()));
    assert!(!observer.is_gateway_up(), "not heard yet");
    observer.gateway_heard();
    for down in [None, Some("down"), Some("slow"), None, None] {
        observer.gateway(down);
    }
    let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
    let events: Vec<_> = text.lines().map(|line| line.contains("gateway_down")).collect();
    assert_eq!(events, [true, false]);
    assert!(observer.is_gateway_up());
    observer.gateway_left();
    observer.gateway(Some("slow"));
    assert!(!observer.is_gateway_up());
    observer.gateway_heard();
    assert!(observer.is_gateway_up());
    let text = String::from_utf8(lock(&sink.0).clone()).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("gateway_")).count(), 4);
}

#[test]
fn timestamps() {
    let at = |s: u64, ms: u64| timestamp(UNIX_EPOCH + Duration::from_millis(s * 1000 + ms));
    assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
    assert_eq!(at(951_782_399, 999), "2000-02-28T23:59:59.999Z");
    assert_eq!(at(951_782_400, 1), "2000-02-29T00:00:00.001Z");
    assert_eq!(at(1_798_761_599, 0), "2026-12-31T23:59:59.000Z");
}

proptest! {
    #[test]
    fn timestamps_agree_with_another_implementation(seconds in 0u64..4_102_444_800) {
        let at = UNIX_EPOCH + Duration::from_secs(seconds);
        let http = httpdate::parse_http_date(&httpdate::fmt_http_date(at)).unwrap();
        prop_assert_eq!(timestamp(http), timestamp(at));
        let text = httpdate::fmt_http_date(at);
        prop_assert_eq!(&text[5..7], &timestamp(at)[8..10]);
        prop_assert_eq!(&text[12..16], &timestamp(at)[0..4]);
        prop_assert_eq!(&text[17..25], &timestamp(at)[11..19]);
    }
}

#[test]
fn readiness_needs_a_snapshot_and_a_spool_and_no_drain() {
    let observer = Observer::silent();
    let failing = |o: &Observer| o.readiness().into_iter().filter(|c| c.1.is_err()).map(|c| c.0).collect::<Vec<_>>();
    assert_eq!(failing(&observer), ["snapshot", "spool"]);
    observer.watch_spool(Box::new(SpoolStatus::default));
    let text = r#"{"schema":1,"version":7,"api":{"namespace":"n","name":"a","bigNumbers":"number","hideForbidden":false,
        "trustedProxies":[],"spoolSizeBytes":1048576,"onFull":"reject","durability":"process","runStore":{"embedded":{}}},
        "sources":[],"connections":[],"queries":[],"roles":[],"keys":[]}"#;
    observer.snapshot_applied(&serde_json::from_str(text).unwrap());
    assert_eq!(failing(&observer), [""; 0]);
    observer.report(&Observation::Draining { lame_duck_ms: 0 });
    assert_eq!(failing(&observer), ["serving"]);
}
