//! One call under way: who asks what, in which form, until when. Boxes are reused, so that a call allocates nothing.
use crate::cache::{Lead, Waiting};
use crate::engine::shared::Question;
use crate::http::response::Form;
use crate::observe::meter::Slot;
use crate::plan::coalescing::Coalesced;
use crate::plan::snapshot::{ColumnPlan, StatementPlan};
use crate::plan::tables::{Query, Sight, Statement, Tables, Variant};
use crate::runs::Client;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Index of the connection on its thread.
    pub connection: u32,
    /// Tells connections of one index apart.
    pub generation: u32,
    /// Of the request on its connection.
    pub number: u32,
}

impl Ticket {
    /// Goes nowhere.
    pub const NONE: Self = Self { connection: u32::MAX, generation: 0, number: 0 };
}

/// By (key, query): a key's fixed values for it; None when it may not call it.
pub type Bindings = HashMap<(u32, u32), Option<Arc<crate::params::Bound>>>;

/// The tables as one thread pinned them.
#[derive(Debug)]
pub struct Pinned {
    /// Which publication.
    pub serial: u64,
    /// Shared by all threads.
    pub tables: Arc<Tables>,
    /// By connection: index of the thread's own `Database`.
    pub databases: Vec<usize>,
    /// Bindings of (key, query) that bind something, compiled at their first call. Bounded by what is granted.
    pub bound: RefCell<Bindings>,
}

/// What a call asks, once its query is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Index of the query.
    pub query: u32,
    /// Index of what the key's role sees of it.
    pub sight: u32,
    /// Which of its statements.
    pub variant: Variant,
    /// Rows shown at most; `u32::MAX` for a stream.
    pub rows: u32,
    /// What Execute or the engine is told: one more than is shown, or 0 where the statement limits itself.
    pub limit: u32,
}

impl Asked {
    const NOTHING: Self = Self { query: u32::MAX, sight: u32::MAX, variant: Variant::Plain, rows: 0, limit: 0 };
}

/// One call.
#[derive(Debug)]
pub struct Call {
    /// Where its answer goes.
    pub ticket: Ticket,
    /// What it was admitted by; None before the first snapshot.
    pub plan: Option<Rc<Pinned>>,
    /// Index of the key.
    pub key: Option<u32>,
    /// Its place in queues.
    pub key_slot: u32,
    /// Index of the query, once it is known to exist.
    pub query: Option<u32>,
    /// What is asked.
    pub asked: Asked,
    /// Shape of its answer.
    pub form: Form,
    /// Its last byte was read.
    pub began: Instant,
    /// It left for the database.
    pub sent: Instant,
    /// The caller waits no longer.
    pub deadline: Instant,
    /// Where from.
    pub client: Client,
    /// W3C trace id.
    pub trace: Option<[u8; 16]>,
    /// The `traceparent` of a sampled call.
    pub traceparent: Option<Box<str>>,
    /// `Prefer: timing`; ns that the checks took.
    pub timing: Option<u64>,
    /// Times that it was sent to a database and came back unanswered.
    pub sent_times: u8,
    /// Callers that its statement answers; 0 until it is asked.
    pub batch: u16,
    /// One value per place.
    pub values: Vec<u8>,
    /// `/q/NAME?` and the caller's URL arguments without `cursor`, for the next page's Link.
    pub link: Vec<u8>,
    /// JSON object of parameters, if the query records them.
    pub params: Option<String>,
    /// May go by the shared lane.
    pub shares: bool,
    /// `If-None-Match`, of a query that is cached; empty without.
    pub if_none_match: Vec<u8>,
    /// Its answer is waited for by others, or kept for them.
    pub lead: Option<Lead>,
    /// It waits for another's answer.
    pub waiting: Option<Waiting>,
    /// Checked Idempotency-Key, and what it stands for.
    pub idempotency: Option<Box<(String, String)>>,
}

impl Call {
    /// A fresh one.
    pub fn new(now: Instant) -> Self {
        Self {
            ticket: Ticket::NONE,
            plan: None,
            key: None,
            key_slot: 0,
            query: None,
            asked: Asked::NOTHING,
            form: Form::default(),
            began: now,
            sent: now,
            deadline: now,
            client: Client::Loopback,
            trace: None,
            traceparent: None,
            timing: None,
            sent_times: 0,
            batch: 0,
            values: Vec::new(),
            link: Vec::new(),
            params: None,
            shares: false,
            if_none_match: Vec::new(),
            lead: None,
            waiting: None,
            idempotency: None,
        }
    }

    /// Makes it fresh again, keeping its buffers.
    pub fn reset(&mut self) {
        /// Larger buffers are given back, bytes.
        const KEEP: usize = 4096;
        for buffer in [&mut self.values, &mut self.link, &mut self.if_none_match] {
            buffer.clear();
            if buffer.capacity() > KEEP {
                buffer.shrink_to(KEEP);
            }
        }
        (self.ticket, self.plan, self.key, self.key_slot, self.query, self.asked) = (Ticket::NONE, None, None, 0, None, Asked::NOTHING);
        (self.form, self.trace, self.traceparent, self.timing) = (Form::default(), None, None, None);
        (self.sent_times, self.batch) = (0, 0);
        (self.params, self.idempotency) = (None, None);
        (self.shares, self.lead, self.waiting) = (false, None, None);
    }

    /// The tables that admitted it.
    pub fn tables(&self) -> Option<&Arc<Tables>> {
        self.plan.as_ref().map(|plan| &plan.tables)
    }

    /// The query that it asks.
    pub fn query(&self) -> Option<&Query> {
        self.tables()?.queries.get(self.asked.query as usize)
    }

    /// What its key's role sees.
    pub fn sight(&self) -> Option<&Sight> {
        self.tables()?.sight(self.asked.sight)
    }

    /// The statement that answers it.
    pub fn asked_statement(&self) -> Option<&Statement> {
        let query = self.query()?;
        Some(match (self.asked.variant, &query.page) {
            (Variant::First, Some(page)) => &page.first,
            (Variant::Next, Some(page)) => &page.next,
            _ => &query.statement,
        })
    }

    /// Its query's counters.
    pub fn meter_slot(&self) -> Slot {
        let slot = self.query.zip(self.tables()).and_then(|(query, tables)| tables.meters.get(query as usize));
        slot.copied().unwrap_or(Slot::NONE)
    }

    /// Its answer may be one that is kept.
    pub fn is_cached(&self) -> bool {
        !self.is_stream() && self.query().is_some_and(|query| query.cache_ttl.is_some())
    }

    /// Rows without bound.
    pub fn is_stream(&self) -> bool {
        self.asked.rows == u32::MAX
    }
}

/// What a call without a statement asks; it never reaches a lane.
static NO_STATEMENT: StatementPlan = StatementPlan { sql: String::new(), params: Vec::new(), oids: Vec::new() };

impl Question for Box<Call> {
    fn identity(&self) -> (u32, u64) {
        self.query().map_or((0, 0), |query| (query.slot, query.version_id))
    }
    fn variant(&self) -> Variant {
        self.asked.variant
    }
    fn statement(&self) -> &StatementPlan {
        self.asked_statement().map_or(&NO_STATEMENT, |statement| &statement.plan)
    }
    fn columns(&self) -> &[ColumnPlan] {
        self.query().map_or(&[], |query| &query.columns)
    }
    fn values(&self) -> &[u8] {
        &self.values
    }
    fn limit(&self) -> u32 {
        self.asked.limit
    }
    fn coalesced(&self) -> Option<&Coalesced> {
        self.query()?.coalesced.as_ref()
    }
    fn shares(&mut self, callers: u16) {
        self.batch = callers;
    }
    fn query_name(&self) -> Arc<str> {
        self.query().map_or_else(Arc::default, |query| query.name.clone())
    }
}
