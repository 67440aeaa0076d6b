//! What happened: counts, latencies, CPU; and whether the run counts. Pure.
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// An open loop that delivered less of what it offered is void.
pub const DELIVERED: f64 = 0.99;
const SAMPLES: usize = 5;
const LOWEST_NS: u64 = 1 << 7;
const HIGHEST_NS: u64 = 120_000_000_000;

/// How calls failed to get an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Connects that were refused or failed (no call was lost by it).
    pub refused: u64,
    /// Calls lost to a reset connection.
    pub reset: u64,
    /// Calls lost to a connection that ended before a byte of their answer.
    pub closed: u64,
    /// Calls whose answer broke off.
    pub closed_mid_answer: u64,
    /// Calls without an answer in time.
    pub timeout: u64,
    /// Calls whose answer was not HTTP.
    pub malformed: u64,
}

/// Counted while running; only calls whose intended time is after the warm-up.
#[derive(Debug)]
pub struct Stats {
    /// Calls that came due (open loop) or were sent (closed loop).
    pub offered: u64,
    /// Of these, never sent: no connection had room until the end.
    pub unsent: u64,
    /// Complete answers.
    pub answered: u64,
    /// As expected.
    pub right: u64,
    /// Expected status, another body.
    pub wrong: u64,
    /// Another status that is not tolerated.
    pub other_status: u64,
    /// Complete answers without X-Run-Id.
    pub without_run_id: u64,
    /// Body bytes.
    pub bytes: u64,
    /// By status.
    pub statuses: BTreeMap<u16, u64>,
    /// By template.
    pub templates: Vec<u64>,
    /// Without an answer.
    pub errors: Errors,
    /// From the intended send time, ns.
    pub latency: Histogram<u64>,
    /// Of right answers, from when the call was sent, ns.
    pub answer: Histogram<u64>,
    /// Sent so long after the intended time, ns.
    pub behind: Histogram<u64>,
    /// First wrong ones, for people.
    pub samples: Vec<String>,
}

/// Histogram of ns.
fn histogram() -> Histogram<u64> {
    // The bounds are constants that the crate accepts; an empty auto-sized one stands in so that nothing can panic.
    Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, 3).unwrap_or_else(|_| Histogram::new(3).unwrap_or_else(|_| unreachable!()))
}

impl Stats {
    /// Nothing yet.
    pub fn new(templates: usize) -> Self {
        Self {
            offered: 0,
            unsent: 0,
            answered: 0,
            right: 0,
            wrong: 0,
            other_status: 0,
            without_run_id: 0,
            bytes: 0,
            statuses: BTreeMap::new(),
            templates: vec![0; templates],
            errors: Errors::default(),
            latency: histogram(),
            answer: histogram(),
            behind: histogram(),
            samples: Vec::new(),
        }
    }

    /// Keeps the first few.
    pub fn sample(&mut self, text: impl FnOnce() -> String) {
        if self.samples.len() < SAMPLES {
            self.samples.push(text());
        }
    }
}

/// CPU of a watched tree.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// As named.
    pub name: String,
    /// None: it was gone.
    pub used_ns: Option<u64>,
}

/// A finished run.
#[derive(Debug)]
pub struct Report {
    /// Open or closed.
    pub rate: Option<f64>,
    /// Connections.
    pub connections: usize,
    /// Calls at once a connection.
    pub depth: usize,
    /// Of keys and arrivals.
    pub seed: u64,
    /// Counted part, s.
    pub seconds: f64,
    /// The counts.
    pub stats: Stats,
    /// Names of templates.
    pub names: Vec<String>,
    /// Watched trees.
    pub cpu: Vec<Cpu>,
    /// Our own, ns.
    pub own_ns: u64,
    /// All complete answers with a run id, warm-up included.
    pub run_ids: u64,
    /// Connections opened after the first ones.
    pub reopened: u64,
    /// Calls under way whenever a connection was lost, warm-up included.
    pub lost: u64,
}

const fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let ms = |ns: u64| rounded(ns as f64 / 1e6, 1e4);
    let at = |quantile: f64| ms(histogram.value_at_quantile(quantile));
    json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": ms(histogram.max()), "mean": rounded(histogram.mean() / 1e6, 1e4)})
}

impl Report {
    /// Share of offered calls that were answered.
    pub fn delivered(&self) -> f64 {
        if self.stats.offered == 0 { 0.0 } else { self.stats.answered as f64 / self.stats.offered as f64 }
    }

    /// The figures say nothing: an open loop that wasn't delivered, or no answer at all.
    pub fn is_void(&self) -> bool {
        self.stats.answered == 0 || (self.rate.is_some() && self.delivered() < DELIVERED)
    }

    /// 1: wrong answers; 3: void; 0: fine.
    pub fn exit_code(&self) -> u8 {
        if self.stats.wrong + self.stats.other_status > 0 {
            1
        } else if self.is_void() {
            3
        } else {
            0
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        let stats = &self.stats;
        let per_call_us =
            |ns: u64| if stats.answered == 0 { Value::Null } else { json!(rounded(ns as f64 / 1e3 / stats.answered as f64, 1e3)) };
        let processes: Map<String, Value> = self.cpu.iter().map(|cpu| (cpu.name.clone(), cpu.used_ns.map_or(Value::Null, |ns| {
            json!({"us_per_call": per_call_us(ns), "cores": rounded(ns as f64 / 1e9 / self.seconds, 1e3), "calls_per_cpu_second": if ns == 0 { Value::Null } else { json!((stats.answered as f64 * 1e9 / ns as f64).round()) }})
        }))).collect();
        let statuses: Map<String, Value> = stats.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        let templates: Map<String, Value> = self.names.iter().cloned().zip(stats.templates.iter().map(|&count| json!(count))).collect();
        json!({
            "loop": if self.rate.is_some() { "open" } else { "closed" },
            "connections": self.connections,
            "depth": self.depth,
            "seed": self.seed,
            "seconds": rounded(self.seconds, 1e3),
            "offered": stats.offered,
            "unsent": stats.unsent,
            "offered_rate": self.rate,
            "answered": stats.answered,
            "achieved_rate": rounded(stats.answered as f64 / self.seconds, 1e1),
            "delivered": rounded(self.delivered(), 1e4),
            "void": self.is_void(),
            "right": stats.right,
            "wrong": stats.wrong,
            "other_status": stats.other_status,
            "wrong_samples": stats.samples,
            "statuses": statuses,
            "templates": templates,
            "errors": stats.errors,
            "lost": self.lost,
            "reopened": self.reopened,
            "run_ids": self.run_ids,
            "without_run_id": stats.without_run_id,
            "body_bytes": stats.bytes,
            "latency_ms": quantiles(&stats.latency),
            "answered_ms": quantiles(&stats.answer),
            "behind_ms": quantiles(&stats.behind),
            "own_us_per_call": per_call_us(self.own_ns),
            "cpu": processes,
        })
        .to_string()
    }
}
