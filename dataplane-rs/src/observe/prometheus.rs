//! `/metrics`: the Prometheus text form (version 0.0.4) of everything counted. IO: none.
use super::Observer;
use super::meter::{BATCH_BOUNDS, BATCH_ENDS, BOUNDS_US, Histogram, Meter, Outcome, Single};
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

/// Every metric: name, type, help with its unit. docs/metrics.md has them all.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("tailrace_build_info", "gauge", "1; the label is the version."),
    ("tailrace_start_time_seconds", "gauge", "When the process began, seconds since 1970."),
    ("tailrace_calls_total", "counter", "Answered calls by query and outcome."),
    ("tailrace_call_duration_seconds", "histogram", "From the request's last byte to its answer's hand-over, seconds, by query."),
    ("tailrace_queue_wait_seconds", "histogram", "Waiting for a lane, seconds."),
    ("tailrace_calls_in_flight", "gauge", "Calls admitted and not answered yet."),
    ("tailrace_calls_queued", "gauge", "Calls waiting for a lane."),
    ("tailrace_shared_lanes", "gauge", "Open connections to databases on the shared lane."),
    ("tailrace_exclusive_calls", "gauge", "Statements under way on the exclusive lane."),
    ("tailrace_shared_calls_total", "counter", "Calls answered by the shared lane."),
    ("tailrace_batch_callers", "histogram", "Callers that one statement answered; its sum are the coalesced calls."),
    ("tailrace_batch_questions_total", "counter", "Different questions in those batches: identical ones are asked once."),
    ("tailrace_batches_total", "counter", "Batches by how they ended."),
    ("tailrace_cache_hits_total", "counter", "Calls answered from the response cache at once."),
    ("tailrace_cache_misses_total", "counter", "Calls of cached queries that asked the database."),
    ("tailrace_cache_waits_total", "counter", "Calls of cached queries that waited for the answer to another's."),
    ("tailrace_cache_evictions_total", "counter", "Answers thrown out of the response cache before their time, to make room."),
    ("tailrace_cache_bytes", "gauge", "Bytes of kept answers, about."),
    ("tailrace_forwarded_calls_total", "counter", "Calls handed to Python."),
    ("tailrace_malformed_requests_total", "counter", "What was not HTTP and got a bare answer; not recorded as runs."),
    ("tailrace_rows_total", "counter", "Rows in answers."),
    ("tailrace_body_bytes_total", "counter", "Bytes of answers' bodies before compression."),
    ("tailrace_statement_retries_total", "counter", "Statements sent again on another connection."),
    ("tailrace_connections", "gauge", "Open client connections."),
    ("tailrace_connections_total", "counter", "Accepted client connections."),
    ("tailrace_http2_connections_total", "counter", "Client connections that spoke HTTP/2."),
    ("tailrace_tls_handshake_failures_total", "counter", "TLS handshakes that failed or took too long."),
    ("tailrace_tls_certificate_expiry_seconds", "gauge", "When the API's certificate in use expires, seconds since 1970; 0 without TLS."),
    ("tailrace_tls_certificate_failing", "gauge", "1 if the certificate's files could not be used when they were read last."),
    ("tailrace_snapshot_version", "gauge", "Version of the snapshot that serves: µs since 1970 when it was built; 0 before the first."),
    ("tailrace_snapshot_age_seconds", "gauge", "Since that snapshot was swapped in, seconds."),
    ("tailrace_snapshot_queries", "gauge", "Queries in the snapshot, by whether every role is refused."),
    ("tailrace_snapshot_keys", "gauge", "Keys in the snapshot."),
    ("tailrace_gateway_up", "gauge", "1 if Python answered on its socket last and is heard on the plans socket."),
    ("tailrace_spool_bytes", "gauge", "Pre-allocated bytes of all run segments."),
    ("tailrace_spool_bound_bytes", "gauge", "Bound of the spool, bytes."),
    ("tailrace_spool_segments", "gauge", "Run segments."),
    ("tailrace_spool_unsynced_bytes", "gauge", "Bytes of runs that the kernel has and the disk perhaps not."),
    ("tailrace_spool_failing", "gauge", "1 if the last attempt to make or sync a segment failed."),
    ("tailrace_runs_dropped_total", "counter", "Runs dropped under onFull: drop."),
    ("tailrace_runs_shipped_total", "counter", "Runs carried to the store."),
    ("tailrace_runs_aborted_total", "counter", "Streams without an end, recorded as aborted."),
    ("tailrace_runs_waiting", "gauge", "Runs that are in the spool only."),
    ("tailrace_ship_lag_seconds", "gauge", "Age of the newest run in the store while others wait, seconds; 0 when none waits."),
    ("tailrace_ship_failures_total", "counter", "Failed attempts to write to the store."),
    ("tailrace_ship_failing", "gauge", "1 if the store takes nothing at the moment."),
    ("tailrace_log_lines_total", "counter", "Log lines by level, those held back included."),
];

fn head(out: &mut String, name: &str) {
    if let Some((_, kind, help)) = METRICS.iter().find(|m| m.0 == name) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
}

fn plain(out: &mut String, name: &str, value: impl std::fmt::Display) {
    head(out, name);
    let _ = writeln!(out, "{name} {value}");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Sums a histogram over threads and writes it with `labels` (empty, or `name="value",`).
fn histogram(out: &mut String, name: &str, labels: &str, parts: &[&Histogram]) {
    let sum_of = |of: &dyn Fn(&Histogram) -> u64| parts.iter().map(|part| of(part)).fold(0, u64::wrapping_add);
    let mut total = 0;
    for (n, bound) in BOUNDS_US.iter().enumerate() {
        total += sum_of(&|h| h.counts.get(n).map_or(0, Single::get));
        let _ = writeln!(out, "{name}_bucket{{{labels}le=\"{}\"}} {total}", *bound as f64 / 1e6);
    }
    total += sum_of(&|h| h.counts.last().map_or(0, Single::get));
    let _ = writeln!(out, "{name}_bucket{{{labels}le=\"+Inf\"}} {total}");
    let braced = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.trim_end_matches(',')) };
    let _ = writeln!(out, "{name}_sum{braced} {}", sum_of(&|h| h.sum_us.get()) as f64 / 1e6);
    let _ = writeln!(out, "{name}_count{braced} {total}");
}

/// The whole page.
pub fn render(observer: &Observer, now: SystemTime) -> String {
    let mut page = String::with_capacity(64 * 1024);
    let out = &mut page;
    let meters = observer.meters();
    let seconds = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let sum = |of: fn(&Meter) -> &Single| meters.iter().map(|m| of(m).get()).fold(0, u64::wrapping_add);

    head(out, "tailrace_build_info");
    let _ = writeln!(out, "tailrace_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    plain(out, "tailrace_start_time_seconds", seconds(observer.started()));
    queries(out, observer, &meters);
    head(out, "tailrace_queue_wait_seconds");
    histogram(out, "tailrace_queue_wait_seconds", "", &meters.iter().map(|m| &m.queue_wait).collect::<Vec<_>>());
    batches(out, &meters);
    let opened = sum(|m| &m.connections_opened);
    for (name, value) in [
        ("tailrace_calls_in_flight", sum(|m| &m.in_flight)),
        ("tailrace_calls_queued", sum(|m| &m.queued)),
        ("tailrace_shared_lanes", sum(|m| &m.shared_lanes)),
        ("tailrace_exclusive_calls", sum(|m| &m.exclusive_calls)),
        ("tailrace_shared_calls_total", sum(|m| &m.shared_calls)),
        ("tailrace_cache_hits_total", sum(|m| &m.cache_hits)),
        ("tailrace_cache_misses_total", sum(|m| &m.cache_misses)),
        ("tailrace_cache_waits_total", sum(|m| &m.cache_waits)),
        ("tailrace_cache_evictions_total", sum(|m| &m.cache_evictions)),
        ("tailrace_cache_bytes", observer.cache_bytes.load(Relaxed)),
        ("tailrace_forwarded_calls_total", sum(|m| &m.forwarded)),
        ("tailrace_malformed_requests_total", sum(|m| &m.malformed)),
        ("tailrace_rows_total", sum(|m| &m.rows)),
        ("tailrace_body_bytes_total", sum(|m| &m.bytes)),
        ("tailrace_statement_retries_total", sum(|m| &m.retries)),
        ("tailrace_connections", opened.saturating_sub(sum(|m| &m.connections_closed))),
        ("tailrace_connections_total", opened),
        ("tailrace_http2_connections_total", sum(|m| &m.http2_connections)),
        ("tailrace_tls_handshake_failures_total", sum(|m| &m.handshakes_failed)),
        ("tailrace_tls_certificate_expiry_seconds", observer.tls.not_after_s.load(Relaxed)),
        ("tailrace_tls_certificate_failing", u64::from(observer.tls.failing.load(Relaxed))),
    ] {
        plain(out, name, value);
    }
    let snapshot = observer.snapshot();
    plain(out, "tailrace_snapshot_version", snapshot.as_ref().map_or(0, |s| s.version));
    let age = snapshot.as_ref().map_or(0.0, |s| now.duration_since(s.applied).unwrap_or_default().as_secs_f64());
    plain(out, "tailrace_snapshot_age_seconds", age);
    let (total, refused, keys) = snapshot.as_ref().map_or((0, 0, 0), |s| (s.queries, s.refused, s.keys));
    head(out, "tailrace_snapshot_queries");
    let _ = writeln!(out, "tailrace_snapshot_queries{{refused=\"false\"}} {}", total - refused);
    let _ = writeln!(out, "tailrace_snapshot_queries{{refused=\"true\"}} {refused}");
    plain(out, "tailrace_snapshot_keys", keys);
    plain(out, "tailrace_gateway_up", u64::from(observer.is_gateway_up()));
    runs(out, observer, seconds(now));
    head(out, "tailrace_log_lines_total");
    for (level, lines) in ["info", "warning", "error"].into_iter().zip(observer.lines()) {
        let _ = writeln!(out, "tailrace_log_lines_total{{level=\"{level}\"}} {lines}");
    }
    page
}

/// By query: only what has been called, so that a thousand idle queries don't make a page of 1 MB.
fn queries(out: &mut String, observer: &Observer, meters: &[std::sync::Arc<Meter>]) {
    let mut calls = String::new();
    let mut durations = String::new();
    for (name, slot) in observer.slots.labels() {
        let parts: Vec<_> = meters.iter().filter_map(|m| m.query(slot)).collect();
        let mut called = false;
        for outcome in Outcome::ALL {
            let count = parts.iter().filter_map(|q| q.outcomes.get(outcome as usize)).map(Single::get).fold(0, u64::wrapping_add);
            if count > 0 {
                called = true;
                let _ = writeln!(calls, "tailrace_calls_total{{query=\"{}\",outcome=\"{}\"}} {count}", escape(&name), outcome.name());
            }
        }
        if called {
            let labels = format!("query=\"{}\",", escape(&name));
            histogram(&mut durations, "tailrace_call_duration_seconds", &labels, &parts.iter().map(|q| &q.duration).collect::<Vec<_>>());
        }
    }
    head(out, "tailrace_calls_total");
    out.push_str(&calls);
    head(out, "tailrace_call_duration_seconds");
    out.push_str(&durations);
}

fn batches(out: &mut String, meters: &[std::sync::Arc<Meter>]) {
    let sum = |of: &dyn Fn(&Meter) -> Option<&Single>| meters.iter().filter_map(|m| of(m)).map(Single::get).fold(0, u64::wrapping_add);
    head(out, "tailrace_batch_callers");
    let mut total = 0;
    for (n, bound) in BATCH_BOUNDS.iter().enumerate() {
        total += sum(&|m| m.batches.sizes.get(n));
        let _ = writeln!(out, "tailrace_batch_callers_bucket{{le=\"{bound}\"}} {total}");
    }
    total += sum(&|m| m.batches.sizes.last());
    let _ = writeln!(out, "tailrace_batch_callers_bucket{{le=\"+Inf\"}} {total}");
    let _ = writeln!(out, "tailrace_batch_callers_sum {}", sum(&|m| Some(&m.batches.callers)));
    let _ = writeln!(out, "tailrace_batch_callers_count {total}");
    plain(out, "tailrace_batch_questions_total", sum(&|m| Some(&m.batches.asked)));
    head(out, "tailrace_batches_total");
    for (n, end) in BATCH_ENDS.iter().enumerate() {
        let _ = writeln!(out, "tailrace_batches_total{{end=\"{end}\"}} {}", sum(&|m| m.batches.ends.get(n)));
    }
}

fn runs(out: &mut String, observer: &Observer, now_s: f64) {
    let spool = observer.spool().unwrap_or_default();
    let ship = &observer.ship;
    let waiting = ship.waiting.load(Relaxed);
    for (name, value) in [
        ("tailrace_spool_bytes", spool.bytes),
        ("tailrace_spool_bound_bytes", spool.bound_bytes),
        ("tailrace_spool_segments", spool.segments),
        ("tailrace_spool_unsynced_bytes", spool.unsynced_bytes),
        ("tailrace_spool_failing", u64::from(spool.failing)),
        ("tailrace_runs_dropped_total", spool.dropped),
        ("tailrace_runs_shipped_total", ship.shipped.load(Relaxed)),
        ("tailrace_runs_aborted_total", ship.aborted.load(Relaxed)),
        ("tailrace_runs_waiting", waiting),
    ] {
        plain(out, name, value);
    }
    let newest = ship.newest_us.load(Relaxed);
    let lag = if waiting == 0 || newest == 0 { 0.0 } else { (now_s - newest as f64 / 1e6).max(0.0) };
    plain(out, "tailrace_ship_lag_seconds", lag);
    plain(out, "tailrace_ship_failures_total", ship.failures.load(Relaxed));
    plain(out, "tailrace_ship_failing", u64::from(ship.failing.load(Relaxed)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::observe::Observation;

    fn page() -> String {
        let observer = Observer::silent();
        let meters = [observer.meter(), observer.meter()];
        let slot = observer.slots.slot("by\"id");
        for meter in &meters {
            meter.call(slot, 200, 300);
            meter.call(slot, 503, 3_000_000);
            meter.queue_wait.observe(5);
            meter.connections_opened.add(3);
            meter.connections_closed.add(1);
        }
        render(&observer, SystemTime::now())
    }

    #[test]
    fn threads_are_summed() {
        let page = page();
        for line in [
            r#"tailrace_calls_total{query="by\"id",outcome="ok"} 2"#,
            r#"tailrace_calls_total{query="by\"id",outcome="unavailable"} 2"#,
            r#"tailrace_call_duration_seconds_bucket{query="by\"id",le="0.0005"} 2"#,
            r#"tailrace_call_duration_seconds_bucket{query="by\"id",le="+Inf"} 4"#,
            r#"tailrace_call_duration_seconds_sum{query="by\"id"} 6.0006"#,
            "tailrace_queue_wait_seconds_count 2",
            "tailrace_connections 4",
            "tailrace_connections_total 6",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
    }

    #[test]
    fn each_metric_has_help_and_type_once_and_is_written() {
        let page = page();
        for (name, kind, _) in METRICS {
            assert_eq!(page.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
            assert_eq!(page.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
            assert!(page.lines().any(|l| l.starts_with(name)), "{name}");
        }
        for line in page.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let known = METRICS.iter().any(|m| name.strip_prefix(m.0).is_some_and(|r| ["", "_bucket", "_sum", "_count"].contains(&r)));
            assert!(known, "{line}");
        }
    }

    #[test]
    fn each_metric_and_event_is_documented() {
        let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
        for (name, _, _) in METRICS {
            assert!(docs.contains(&format!("`{name}`")), "docs/metrics.md lacks {name}");
        }
        for event in Observation::EVENTS {
            assert!(docs.contains(&format!("`{event}`")), "docs/metrics.md lacks the event {event}");
        }
    }
}
