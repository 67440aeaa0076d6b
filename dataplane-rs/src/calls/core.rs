//! Admission: one request → one call on its way, or its answer at once. The order of the checks is the contract's ("A call").
//! May reject: everything that the contract lists before the database is asked. IO: none.
use super::admission::{self, ALLOW, ALLOW_WRITE, Refusal};
use super::call::{Call, Pinned, Ticket};
use super::desk::{Cost, Desk};
use super::forwarded::Forward;
use super::kept::Kept;
use crate::auth::address;
use crate::cache::Cache;
use crate::codes::Code;
use crate::config::Limits;
use crate::encode::Format;
use crate::engine::pool::Refusal as _;
use crate::engine::shared::Session;
use crate::engine::{Ask, Event, mysql, postgres};
use crate::http::bulk;
use crate::http::client::Body;
use crate::http::head::{self, Credential, Field, Head, Method, Protocol};
use crate::http::output::Output;
use crate::http::response::{self, Form};
use crate::http::worker::Worker;
use crate::lanes::database::Database;
use crate::lanes::lane::{LaneError, Link};
use crate::lanes::standing::Standing;
use crate::observe::meter::Meter;
use crate::observe::{Observation, Observer};
use crate::params::{Bound, url};
use crate::plan::backend::Backend;
use crate::plan::snapshot::{Engine, OnFull, Returns};
use crate::plan::tables::{Query, Tables};
use crate::runs::{Client, Recorder, Spool};
use slab::Slab;
use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;

/// One attempt to connect a lane, over all hosts.
const CONNECT: Duration = Duration::from_secs(10);

/// Longest wait for room for a connection among `maxConnections`.
const ROOM: Duration = Duration::from_secs(2);

/// A lane's connection, or why there is none.
#[derive(Debug)]
pub struct Letter {
    /// Index of the database.
    pub database: usize,
    /// Which of its lanes.
    pub lane: usize,
    /// What came of it.
    pub result: Result<Link, LaneError>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Admitted {
    /// Its answer is in the output.
    Told,
    /// It waits for a shared lane.
    Queued,
    /// Likewise, in a crowd: what its client asks next is not read before it is answered.
    Crowded,
    /// It goes on by itself at a database.
    Exclusive(Box<Call>),
    /// It goes on by itself at the gateway.
    Forward(Box<Forward>),
    /// It holds several calls, which begin as soon as its connection is let go (`calls::bulk`).
    Several(Box<Call>, Box<Items>),
}

/// Several calls of one body, not admitted yet.
#[derive(Debug)]
pub struct Items {
    /// Index of what the key's role sees of the query.
    sight: u32,
    /// What the key fixes.
    bound: Arc<Bound>,
    /// The request's.
    pub body: Vec<u8>,
    /// Where they stand in it.
    pub items: Vec<Range<usize>>,
}

/// What a call says, and what its key may.
struct Asking<'a> {
    sight: u32,
    bound: &'a Bound,
    /// Unless the arguments say another.
    format: Format,
    arguments: &'a [u8],
    body: Option<&'a [u8]>,
    /// None for one of several.
    head: Option<&'a Head<'a>>,
}

/// A thread's plans, lanes and desk.
#[derive(Debug)]
pub struct Core {
    /// What calls are admitted by; None before the first snapshot.
    pub plan: Option<Rc<Pinned>>,
    /// Ends calls.
    pub desk: Desk,
    /// Databases of this and, while calls are under way, of earlier snapshots.
    pub databases: Slab<Database>,
    /// By query slot: what was learned.
    pub standings: Vec<Standing>,
    /// Calls that must go on by the exclusive lane, found between two turns.
    pub late: Vec<Box<Call>>,
    /// The last commit failed: new calls are refused until one succeeds.
    pub spool_failed: bool,
    /// The thread's counters.
    pub meter: Arc<Meter>,
    /// What happens is reported there.
    pub observer: Arc<Observer>,
    spool_full: bool,
    reject_when_full: bool,
    threads: usize,
    waiting: usize,
    path: Vec<u8>,
    values: Vec<u8>,
    unrecorded: Vec<u8>,
    pub(super) kept: Kept,
}

enum Lane {
    Shared,
    Exclusive,
    /// Too many wait for its lane.
    Full,
    /// Not ours: no plan covers this path.
    Forward,
    /// The body holds several.
    Several(Box<Items>),
}

impl Core {
    /// Without plans.
    pub fn new(recorder: Recorder, threads: usize, limits: &Limits, observer: Arc<Observer>, cache: Arc<Cache>) -> Self {
        let meter = observer.meter();
        Self {
            plan: None,
            desk: Desk::new(recorder, meter.clone()),
            databases: Slab::new(),
            standings: Vec::new(),
            late: Vec::new(),
            spool_failed: false,
            meter,
            observer,
            spool_full: false,
            reject_when_full: true,
            threads,
            waiting: limits.waiting,
            path: Vec::new(),
            values: Vec::new(),
            unrecorded: Vec::new(),
            kept: Kept::new(cache),
        }
    }

    /// Reads the clock if this is the first that a wake-up does; the turn's time.
    #[inline]
    pub fn tick_if(&mut self, first: bool) -> Instant {
        if first {
            self.desk.tick();
        }
        self.desk.clock.now
    }

    /// Swaps the plans: calls admitted from here on know only these.
    pub fn pin(&mut self, serial: u64, tables: Arc<Tables>) {
        let now = self.desk.clock.now;
        for (_, database) in &mut self.databases {
            database.retired = true;
        }
        let mut databases = Vec::with_capacity(tables.backends.len());
        for backend in &tables.backends {
            let same = self.databases.iter_mut().find(|(_, database)| Arc::ptr_eq(&database.backend, backend));
            databases.push(match same {
                Some((at, database)) => {
                    database.retired = false;
                    at
                }
                None => self.databases.insert(Database::new(backend.clone(), backend.lanes(self.threads), self.waiting, now)),
            });
        }
        self.standings.resize(tables.slot_count().max(self.standings.len()), Standing::new(0));
        let mut versions = vec![0; self.standings.len()];
        for query in &tables.queries {
            if let (Some(standing), Some(version)) = (self.standings.get_mut(query.slot as usize), versions.get_mut(query.slot as usize)) {
                *version = query.version_id;
                if standing.version != query.version_id {
                    *standing = Standing::new(query.version_id);
                }
            }
        }
        for (_, database) in &mut self.databases {
            database.forget(|slot, version| versions.get(slot as usize) == Some(&version));
        }
        self.plan = Some(Rc::new(Pinned { serial, tables, databases, bound: RefCell::default() }));
    }

    /// What is done about once a second.
    pub fn look_after(&mut self, spool: &Spool) {
        self.reject_when_full = spool.on_full() == OnFull::Reject;
        self.spool_failed = false; // the next commit tells anew
        let now = self.desk.clock.now;
        self.kept.tidy(now, &self.observer);
        let (mut queued, mut flying, mut lanes) = (0, 0, 0);
        self.databases.retain(|_, database| {
            let (waiting, under_way) = database.load();
            (queued, flying, lanes) = (queued + waiting, flying + under_way, lanes + database.connected());
            database.renew(database.backend.lane_source.generation(), now);
            !database.retired || waiting + under_way > 0
        });
        self.meter.queued.set(queued as u64);
        self.meter.in_flight.set(flying as u64);
        self.meter.shared_lanes.set(lanes as u64);
    }

    /// What a client gets in place of answers whose runs could not be recorded.
    pub fn unrecorded(&mut self) -> &[u8] {
        self.unrecorded.clear();
        let mut body = Vec::new();
        crate::encode::problem::write(Code::SpoolFull, None, &[], &mut body);
        let form = Form { close: true, ..Form::default() };
        response::problem(form, &self.desk.date, Code::SpoolFull, None, None, body.len(), &mut self.unrecorded);
        self.unrecorded.extend_from_slice(&body);
        &self.unrecorded
    }

    /// Takes one request.
    #[inline]
    pub fn admit(&mut self, head: &Head<'_>, body: Body<'_>, peer: IpAddr, ticket: Ticket, output: &mut Output) -> Admitted {
        let mut call = self.desk.call();
        call.ticket = ticket;
        call.form = Form { head: head.method == Method::Head, protocol: head.protocol, close: !head.keep_alive, ..Form::default() };
        if head.method == Method::Options {
            self.options(head, call, output);
            return Admitted::Told;
        }
        match self.check(head, body, peer, &mut call) {
            Ok(lane @ (Lane::Shared | Lane::Exclusive)) => {
                call.shares = matches!(lane, Lane::Shared);
                if matches!(head.method, Method::Get | Method::Head) && call.is_cached() {
                    admission::condition(head, &mut call.if_none_match);
                }
                if call.is_cached() { self.look(call, output) } else { self.go(call, output) }
            }
            Ok(Lane::Full) => {
                self.desk.refuse(call, Code::Overloaded, Cost::default(), Some(output));
                Admitted::Told
            }
            Ok(Lane::Several(items)) => Admitted::Several(call, items),
            Ok(Lane::Forward) => match body {
                Body::Whole(body) => Admitted::Forward(Box::new(Forward::new(head, body, call))),
                Body::TooLarge => {
                    self.desk.refuse(call, Code::BodyTooLarge, Cost::default(), Some(output));
                    Admitted::Told
                }
            },
            Err(refusal) => {
                let Refusal { code, faults, allow } = *refusal;
                self.desk.refuse_with(call, code, &faults, allow, Cost::default(), Some(output));
                Admitted::Told
            }
        }
    }

    #[cold]
    fn options(&mut self, head: &Head<'_>, call: Box<Call>, output: &mut Output) {
        let name = head::decode_path(head.path, &mut self.path).then(|| self.path.strip_prefix(b"/q/")).flatten();
        let tables = self.plan.as_ref().map(|plan| &plan.tables).filter(|tables| !tables.hide_forbidden);
        let query = name.and_then(|name| Some(tables?.query(name)?.1));
        let allow = if query.is_some_and(|query| query.write) { ALLOW_WRITE } else { ALLOW };
        let number = call.ticket.number;
        let mut form = call.form;
        form.close = output.says_close(number, form.close);
        let date = &self.desk.date;
        output.answer(number, |out| response::options(form, date, allow, out));
        self.desk.recycle(call);
    }

    /// To the database.
    #[inline]
    pub(super) fn go(&mut self, call: Box<Call>, output: &mut Output) -> Admitted {
        if call.shares {
            return self.queue(call, output);
        }
        // Refused here it costs no task, and those who have a connection go on.
        let at = call.plan.as_ref().zip(call.query()).and_then(|(plan, query)| plan.databases.get(query.connection as usize));
        if at.and_then(|&at| self.databases.get(at)).is_some_and(|database| database.exclusive.is_full()) {
            self.desk.refuse(call, Code::PoolFull, Cost::default(), Some(output));
            return Admitted::Told;
        }
        Admitted::Exclusive(call)
    }

    #[inline]
    fn queue(&mut self, call: Box<Call>, output: &mut Output) -> Admitted {
        let now = self.desk.clock.now;
        let at = call.plan.as_ref().zip(call.query()).and_then(|(plan, query)| plan.databases.get(query.connection as usize));
        let Some(database) = at.and_then(|&at| self.databases.get_mut(at)) else {
            self.desk.refuse(call, Code::InternalError, Cost::default(), Some(output));
            return Admitted::Told;
        };
        if database.is_down(now) {
            self.desk.refuse(call, Code::DatabaseUnavailable, Cost::default(), Some(output));
            return Admitted::Told;
        }
        self.meter.shared_calls.add(1);
        match database.push(call, now) {
            Ok(()) if database.crowded() => Admitted::Crowded,
            Ok(()) => Admitted::Queued,
            Err(call) => {
                self.desk.refuse(call, Code::Overloaded, Cost::default(), Some(output));
                Admitted::Told
            }
        }
    }

    #[inline]
    fn check(&mut self, head: &Head<'_>, body: Body<'_>, peer: IpAddr, call: &mut Call) -> Result<Lane, Box<Refusal>> {
        let refuse = |code: Code| Err(Box::new(Refusal::from(code)));
        let timed = admission::timing(head).then(Instant::now);
        call.client = Client::of(peer);
        if let Field::Once(value) = head.traceparent
            && let Some((id, sampled)) = head::trace(value)
        {
            call.trace = Some(id);
            call.traceparent = sampled.then(|| String::from_utf8_lossy(value).into());
        }
        let valid_path = head::decode_path(head.path, &mut self.path);
        let name = if valid_path { self.path.strip_prefix(b"/q/").filter(|name| !name.is_empty() && !name.contains(&b'/')) } else { None };
        let Some(plan) = &self.plan else {
            return if name.is_some() || !valid_path { refuse(Code::NotReady) } else { Ok(Lane::Forward) };
        };
        let tables = &*plan.tables;
        let forwarded = match head.forwarded_for {
            Field::Absent => None,
            Field::Once(value) => Some(value.to_vec()),
            Field::Several => Some(head.joined("x-forwarded-for")),
        };
        let caller = address::caller(peer, &tables.trusted_proxies, forwarded.as_deref());
        call.client = Client::of(caller);
        call.plan = Some(plan.clone());
        let planned = !valid_path || name.is_some();
        if self.spool_failed || (self.reject_when_full && self.spool_full()) {
            return refuse(Code::SpoolFull);
        }
        if !planned {
            return Ok(Lane::Forward);
        }
        let Some(plan) = call.plan.clone() else { return refuse(Code::NotReady) };
        let tables = &*plan.tables;
        let Credential::Key(text) = head.credential else { return refuse(Code::Unauthorized) };
        let Some((key_at, key)) = tables.keys.admit(text, self.desk.clock.wall_us, caller) else { return refuse(Code::Unauthorized) };
        (call.key, call.key_slot) = (Some(key_at), key.slot);
        let name = self.path.strip_prefix(b"/q/").unwrap_or_default();
        if !valid_path {
            return refuse(Code::MalformedRequest);
        }
        let Some((query_at, query)) = tables.query(name) else { return refuse(Code::QueryNotFound) };
        call.query = Some(query_at);
        let hidden = if tables.hide_forbidden { Code::QueryNotFound } else { Code::Forbidden };
        let Some(sight_at) = tables.sight_of(key.role, query_at) else { return refuse(hidden) };
        let own;
        let bound = match &key.bind {
            None => &query.unbound,
            Some(bind) => match admission::bindings(&plan, key_at, query_at, query, bind) {
                Some(bound) => {
                    own = bound;
                    &own
                }
                None => return refuse(hidden),
            },
        };
        let allowed = if query.write { head.method == Method::Post } else { head.method != Method::Other };
        if !allowed {
            let allow = Some(if query.write { ALLOW_WRITE } else { ALLOW });
            return Err(Box::new(Refusal { allow, ..Code::MethodNotAllowed.into() }));
        }
        let refused = query.refused.or_else(|| tables.sight(sight_at)?.refused);
        if let Some(code) = refused {
            return refuse(code);
        }
        let format = admission::format(head).map_err(|code| Box::new(Refusal::from(code)))?;
        let body = admission::check_body(head, body)?;
        if body.is_none() && call.traceparent.is_none() && self.full(&plan, query, format) {
            return Ok(Lane::Full);
        }
        call.timing = timed.map(|start| start.elapsed().as_nanos() as u64);
        call.form.coding = admission::coding(head);
        if let Some(text) = body
            && bulk::begins(text)
            && !query.spec.declares(bulk::MEMBER)
            && let Some(items) = bulk::calls(text)
        {
            let refused = match items.len() {
                _ if format != Format::Json => Some(Code::NotAcceptable),
                _ if query.write || !matches!(head.arguments, b"" | b"format=json") => Some(Code::BulkUnsupported),
                1..=bulk::CALLS => None,
                _ => Some(Code::BulkSize),
            };
            return match refused {
                Some(code) => refuse(code),
                None => Ok(Lane::Several(Box::new(Items { sight: sight_at, bound: bound.clone(), body: text.to_vec(), items }))),
            };
        }
        let asking = Asking { sight: sight_at, bound, format, arguments: head.arguments, body, head: Some(head) };
        self.fill(call, &plan, &asking)
    }

    /// A call of this query without a body would be refused, whatever its arguments are: they need not be read. Not of one whose
    /// answer may be kept, whose parameters are recorded, or that is a stream.
    #[inline]
    fn full(&self, plan: &Pinned, query: &Query, format: Format) -> bool {
        let database = plan.databases.get(query.connection as usize).and_then(|&at| self.databases.get(at));
        database.is_some_and(|database| database.full() && !database.is_down(self.desk.clock.now))
            && query.shared
            && self.standings.get(query.slot as usize).is_some_and(Standing::shared)
            && database.is_some_and(Database::ready)
            && query.cache_ttl.is_none()
            && !query.record_params
            && (format == Format::Json || query.returns != Returns::Many || query.page.is_some())
    }

    /// Takes a call's arguments: their values go to the places of its statement. Which lane it is for.
    #[inline]
    fn fill(&mut self, call: &mut Call, plan: &Pinned, asking: &Asking<'_>) -> Result<Lane, Box<Refusal>> {
        let internal = || Box::new(Refusal::from(Code::InternalError));
        let Asking { bound, format, arguments, body, .. } = *asking;
        let tables = &*plan.tables;
        let query_at = call.query.ok_or_else(internal)?;
        let query = tables.queries.get(query_at as usize).ok_or_else(internal)?;
        let key = call.key.and_then(|key| tables.keys.get(key)).ok_or_else(internal)?;
        self.values.clear();
        let given = query.spec.decode(bound, arguments, body, &mut self.values);
        let given = given.map_err(|refused| Box::new(Refusal { code: refused.code, faults: refused.faults, allow: None }))?;
        call.form.format = given.format.unwrap_or(format);
        if call.form.protocol == Protocol::Part && call.form.format != Format::Json {
            return Err(Box::new(Code::NotAcceptable.into()));
        }
        call.values.clear();
        admission::place(call, tables, query, query_at, asking.sight, &self.values, &given, &key.id)?;
        if query.page.is_some() {
            call.link.extend_from_slice(b"/q/");
            call.link.extend_from_slice(query.name.as_bytes());
            call.link.push(b'?');
            let start = call.link.len();
            if body.is_none_or(<[u8]>::is_empty) {
                url::without_cursor(arguments, &mut call.link);
            }
            if call.link.len() > start {
                call.link.push(b'&');
            }
        }
        if query.write
            && let Some(head) = asking.head
        {
            admission::idempotency(call, head, tables, query, &self.values)?;
        }
        if query.record_params {
            call.params = Some(admission::record(query, &self.values));
        }
        call.deadline = call.began + query.timeout;
        let shared = query.shared && !call.is_stream() && call.traceparent.is_none() && {
            let standing = self.standings.get(query.slot as usize);
            standing.is_some_and(Standing::shared)
                && plan.databases.get(query.connection as usize).and_then(|&at| self.databases.get(at)).is_some_and(Database::ready)
        };
        Ok(if shared { Lane::Shared } else { Lane::Exclusive })
    }

    /// Takes one of several calls in a body: it is asked, answered and recorded as if it were alone. `from` is the request that holds it.
    pub fn admit_part(&mut self, from: &Call, items: &Items, item: &[u8], ticket: Ticket, output: &mut Output) -> Admitted {
        let mut call = self.desk.call();
        call.ticket = ticket;
        call.form = Form { protocol: Protocol::Part, ..Form::default() };
        (call.plan, call.key, call.key_slot, call.query) = (from.plan.clone(), from.key, from.key_slot, from.query);
        (call.client, call.trace, call.traceparent) = (from.client, from.trace, from.traceparent.clone());
        let asking = Asking { sight: items.sight, bound: &items.bound, format: Format::Json, arguments: b"", body: Some(item), head: None };
        let lane = match (item.first(), &from.plan) {
            (Some(b'{'), Some(plan)) => self.fill(&mut call, plan, &asking),
            _ => Err(Box::new(Code::MalformedBody.into())),
        };
        match lane {
            Ok(lane @ (Lane::Shared | Lane::Exclusive)) => {
                call.shares = matches!(lane, Lane::Shared);
                if call.is_cached() { self.look(call, output) } else { self.go(call, output) }
            }
            Ok(Lane::Full | Lane::Forward | Lane::Several(_)) => {
                self.desk.refuse(call, Code::InternalError, Cost::default(), Some(output));
                Admitted::Told
            }
            Err(refusal) => {
                let Refusal { code, faults, allow } = *refusal;
                self.desk.refuse_with(call, code, &faults, allow, Cost::default(), Some(output));
                Admitted::Told
            }
        }
    }

    #[inline]
    fn spool_full(&mut self) -> bool {
        self.spool_full = self.desk.recorder.is_full();
        self.spool_full
    }

    /// Hands a statement to the exclusive lane of its database.
    pub fn submit(&mut self, plan: &Pinned, connection: u32, ask: Ask) -> Option<Receiver<Event>> {
        let at = *plan.databases.get(connection as usize)?;
        Some(self.databases.get(at)?.exclusive.submit(ask))
    }

    /// What an exclusive answer says of its query.
    pub fn learn(&mut self, call: &Call, database_us: u64, bytes: usize) {
        let Some(query) = call.query().filter(|query| query.shared && !call.is_stream()) else { return };
        let Some(standing) = self.standings.get_mut(query.slot as usize) else { return };
        if standing.version != query.version_id {
            return;
        }
        if standing.answered(database_us, bytes) {
            self.observer.report(&Observation::QueryPromoted { query: query.name.clone() });
        }
        // Also one that earned it at another database of the same name: this one has no lane yet.
        if standing.shared()
            && let Some(&at) = call.plan.as_ref().and_then(|plan| plan.databases.get(query.connection as usize))
            && let Some(database) = self.databases.get_mut(at)
        {
            database.want();
        }
    }
}

/// Connects a lane and hands the connection to the driver. One that replaces another takes room of its own.
pub async fn connect(worker: Rc<Worker>, database: usize, lane: usize, replaces: bool, backend: Arc<Backend>) {
    let result = open(&backend, replaces).await;
    worker.mailbox.borrow_mut().push(Letter { database, lane, result });
    worker.wake();
}

async fn open(backend: &Backend, replaces: bool) -> Result<Link, LaneError> {
    let permit = if replaces {
        backend.budget.try_acquire()
    } else {
        tokio::time::timeout(ROOM, backend.budget.acquire_shared()).await.ok().flatten()
    };
    let Some(permit) = permit else {
        backend.budget.want();
        return Err(LaneError::NoRoom);
    };
    let deadline = tokio::time::Instant::now() + CONNECT;
    let session = match backend.plan.engine {
        Engine::Mysql => mysql::open(&backend.lane_source, deadline).await.map(Session::Mysql).map_err(|error| error.reason()),
        Engine::Postgres | Engine::Sqlite => {
            postgres::open(&backend.lane_source, deadline).await.map(Session::Postgres).map_err(|error| error.reason())
        }
    };
    Ok(Link { session: session.map_err(LaneError::Connect)?, permit })
}
