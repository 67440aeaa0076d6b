//! Everything that may happen, and its form in the log: one JSON line. Fields are numbers, codes, and names that the API's owner chose.
//! Pure. May reject: nothing.
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Info,
    /// Works, but somebody should look.
    Warning,
    /// Something that should work doesn't.
    Error,
}

/// A field of a log line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// A number.
    Number(u64),
    /// A name or code.
    Text(&'a str),
}

macro_rules! observations {
    ($($(#[$doc:meta])* $name:ident => $event:literal, $level:ident $({ $($(#[$fdoc:meta])* $field:ident: $type:ident),* })?;)*) => {
        /// Everything that happens in the data plane and that somebody may want to know.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Observation {
            $($(#[$doc])* $name $({ $($(#[$fdoc])* $field: observations!(@type $type)),* })?,)*
        }

        impl Observation {
            /// Names of all events, for the documentation's test.
            pub const EVENTS: &'static [&'static str] = &[$($event),*];

            /// The event's name in the log.
            pub const fn event(&self) -> &'static str {
                match self { $(Self::$name $({ $($field: _),* })? => $event,)* }
            }

            /// How much it matters.
            pub const fn level(&self) -> Level {
                match self { $(Self::$name $({ $($field: _),* })? => Level::$level,)* }
            }

            /// Its fields in the log.
            pub fn fields(&self) -> Vec<(&'static str, Field<'_>)> {
                match self { $(Self::$name $({ $($field),* })? => vec![$($((stringify!($field), observations!(@field $type $field))),*)?],)* }
            }
        }
    };
    (@type number) => { u64 };
    (@type code) => { &'static str };
    (@type name) => { Arc<str> };
    (@field number $field:ident) => { Field::Number(*$field) };
    (@field code $field:ident) => { Field::Text($field) };
    (@field name $field:ident) => { Field::Text($field) };
}

observations! {
    /// The process has its settings.
    Starting => "starting", Info {
        /// Serving threads.
        threads: number
    };
    /// Calls are accepted.
    Listening => "listening", Info {
        /// TCP port.
        port: number
    };
    /// A snapshot serves on every thread.
    SnapshotApplied => "snapshot_applied", Info {
        /// Of the snapshot.
        version: number,
        /// In it.
        queries: number,
        /// In it.
        keys: number,
        /// From its last byte to the swap on the last thread.
        took_us: number
    };
    /// A pushed snapshot was refused whole; the old one serves on.
    SnapshotRefused => "snapshot_refused", Error {
        /// Why.
        reason: code
    };
    /// A database answers (again).
    DatabaseUp => "database_up", Info {
        /// Which.
        connection: name
    };
    /// A database doesn't answer.
    DatabaseDown => "database_down", Error {
        /// Which.
        connection: name,
        /// Why.
        reason: code
    };
    /// A mounted credential changed and is used from now on.
    CredentialsReloaded => "credentials_reloaded", Info {
        /// Whose.
        connection: name
    };
    /// The API's certificate was read: new connections get it.
    CertificateLoaded => "certificate_loaded", Info {
        /// When it expires, seconds since 1970.
        not_after_s: number
    };
    /// The API's certificate or its key cannot be used; the last good one serves on, or no connection is taken.
    CertificateUnusable => "certificate_unusable", Error {
        /// Why.
        reason: code
    };
    /// A query has shown itself fast.
    QueryPromoted => "query_promoted", Info {
        /// Which.
        query: name
    };
    /// A query has left the shared lane.
    QueryDemoted => "query_demoted", Warning {
        /// Which.
        query: name,
        /// Why.
        reason: code
    };
    /// Callers of a query version share no statement any more.
    CoalescingStopped => "coalescing_stopped", Warning {
        /// Which.
        query: name,
        /// Why.
        reason: code
    };
    /// The database describes other columns than the plan.
    PlanStale => "plan_stale", Warning {
        /// Which.
        query: name
    };
    /// Python doesn't answer on its socket.
    GatewayDown => "gateway_down", Warning {
        /// Why.
        reason: code
    };
    /// Python answers again.
    GatewayUp => "gateway_up", Info;
    /// No room for another segment.
    SpoolFull => "spool_full", Error {
        /// Pre-allocated.
        bytes: number,
        /// The bound.
        bound_bytes: number
    };
    /// There is room again.
    SpoolFree => "spool_free", Info {
        /// Pre-allocated.
        bytes: number
    };
    /// A segment could not be made, written or synced.
    SpoolFailing => "spool_failing", Error {
        /// The kind of IO error.
        reason: code
    };
    /// More than half of the bound is used.
    SpoolFilling => "spool_filling", Warning {
        /// Pre-allocated.
        bytes: number,
        /// The bound.
        bound_bytes: number
    };
    /// What former processes left has been carried to the store.
    SpoolReplayed => "spool_replayed", Info {
        /// Segments of former epochs.
        segments: number,
        /// Runs that the store lacked.
        runs: number,
        /// Streams that had no end.
        aborted: number
    };
    /// A segment ends with bytes that are no block: torn by a kill or power loss, never answered.
    SegmentTorn => "segment_torn", Warning {
        /// Number within its epoch.
        segment: number,
        /// Offset of the first unreadable byte.
        offset: number
    };
    /// A file in the spool that can't be read; it was renamed to `.bad` and is kept.
    SegmentUnreadable => "segment_unreadable", Error {
        /// Why.
        reason: code
    };
    /// Runs were dropped under `onFull: drop`.
    RunsDropped => "runs_dropped", Error {
        /// How many since the last such line.
        runs: number
    };
    /// The run store takes nothing; the spool grows.
    StoreFailing => "store_failing", Error {
        /// Why.
        reason: code
    };
    /// The run store takes runs again.
    StoreRecovered => "store_recovered", Info {
        /// How long it didn't.
        failing_ms: number
    };
    /// The snapshot names another run store. Runs go to the one of the first snapshot until this process is started anew.
    StoreChanged => "store_changed", Warning {};
    /// SIGTERM: the lame duck begins.
    Draining => "draining", Info {
        /// How long new connections are still taken.
        lame_duck_ms: number
    };
    /// All calls are answered or the grace is over.
    Drained => "drained", Info {
        /// Calls cut off.
        calls_cut: number,
        /// Runs that stay in the spool.
        runs_left: number
    };
    /// A defect of ours that was contained.
    InternalError => "internal_error", Error {
        /// Where.
        place: code
    };
}

/// One line of the log.
pub(super) fn line(observation: &Observation, now: SystemTime, suppressed: u64) -> String {
    let level = match observation.level() {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let mut out = format!("{{\"ts\":\"{}\",\"level\":\"{level}\",\"event\":\"{}\"", timestamp(now), observation.event());
    for (name, field) in observation.fields() {
        match field {
            Field::Number(n) => out.push_str(&format!(",\"{name}\":{n}")),
            Field::Text(text) => {
                out.push_str(&format!(",\"{name}\":{}", serde_json::Value::from(text)));
            }
        }
    }
    if suppressed > 0 {
        out.push_str(&format!(",\"suppressed\":{suppressed}"));
    }
    out.push_str("}\n");
    out
}

/// RFC 3339, UTC, milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    let ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let (days, ms) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    // Civil date from days since 1970-01-01, in eras of 400 years that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}
