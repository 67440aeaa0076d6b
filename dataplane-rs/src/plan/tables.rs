//! What a thread serves from: a snapshot whose indices were checked, with everything worked out that a call would otherwise
//! have to. Compiled off the serving threads, shared by all of them, never changed.
//! May reject: a snapshot that contradicts itself (`Invalid`); then the old tables stay. IO: none (the secret is an argument).
use super::backend::Backend;
use super::coalescing::{Coalesced, Verdict};
use super::snapshot::{
    CoalescePlan, ColumnPlan, ConnectionPlan, Engine, Grant, KeyPlan, MaskPlan, Missing, PagePlan, QueryPlan, Returns, SCHEMA_VERSION,
    Snapshot, StatementPlan,
};
use crate::auth::keys::Keys;
use crate::cache::Identity;
use crate::codes::Code;
use crate::encode::{CursorKey, MaskKey, RowWriter};
use crate::observe::Observer;
use crate::observe::meter::Slot;
use crate::params::{Bound, Spec};
use crate::runs::Names;
use ipnet::IpNet;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Why a snapshot is refused whole. Names of units may be in it; values, SQL and digests never are.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// Not the schema that this build reads.
    #[error("schema version {0} is not known")]
    Schema(u32),
    /// An index beyond its list, or a list that must not be empty.
    #[error("{unit}: {what} does not exist")]
    Index {
        /// Where.
        unit: String,
        /// What it points to.
        what: &'static str,
    },
    /// Two units of one name.
    #[error("{0}: there are two of this name")]
    Twice(String),
    /// A value out of its form.
    #[error("{unit}: {what} is not valid")]
    Form {
        /// Where.
        unit: String,
        /// What.
        what: &'static str,
    },
    /// Masks or cursors need `gateway-secret`.
    #[error("gateway-secret cannot be read, and masks or cursors need it")]
    Secret,
}

/// A statement that can be prepared.
#[derive(Debug)]
pub struct Statement {
    /// As it came.
    pub plan: Arc<StatementPlan>,
    /// Tells the statements of one query version apart; last character of a prepared name.
    pub variant: Variant,
}

/// Which statement of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Without paging.
    Plain,
    /// First page.
    First,
    /// A page after a cursor.
    Next,
    /// What many callers ask at once without paging.
    Batch,
}

/// Keyset paging.
#[derive(Debug)]
pub struct Page {
    /// Order and sizes.
    pub plan: PagePlan,
    /// Without a cursor.
    pub first: Statement,
    /// After a cursor.
    pub next: Statement,
}

/// One saved query.
#[derive(Debug)]
pub struct Query {
    /// Path segment.
    pub name: Arc<str>,
    /// 16 hex digits.
    pub version: Arc<str>,
    /// The same as a number.
    pub version_id: u64,
    /// Stays with (name, version) from snapshot to snapshot; threads keep what they learned about a query under it.
    pub slot: u32,
    /// Index in `backends`.
    pub connection: u32,
    /// POST only.
    pub write: bool,
    /// Shape.
    pub returns: Returns,
    /// Of `one` without a row.
    pub missing: Missing,
    /// Of a call, queueing included.
    pub timeout: Duration,
    /// Parameters go into the run.
    pub record_params: bool,
    /// May be promoted to the shared lane.
    pub shared: bool,
    /// Why no role may call it.
    pub refused: Option<Code>,
    /// Declared parameters.
    pub spec: Spec,
    /// Names of parameters, for key bindings.
    pub params: Box<[Box<str>]>,
    /// What a Prepare must describe.
    pub columns: Arc<[ColumnPlan]>,
    /// Without paging.
    pub statement: Statement,
    /// With paging.
    pub page: Option<Page>,
    /// JSON of `many` without paging is a stream of every row.
    pub unbounded: bool,
    /// How many callers are asked for at once.
    pub coalesced: Option<Coalesced>,
    /// How old an answer may be that is given again.
    pub cache_ttl: Option<Duration>,
    /// Bindings of a key that binds nothing.
    pub unbound: Arc<Bound>,
}

/// A query version whose callers share no statement any more, as `GET /plans` tells it.
#[derive(Debug, Serialize)]
pub struct Uncoalesced<'a> {
    /// Its name.
    query: &'a str,
    /// 16 hex digits.
    version: &'a str,
    /// Of `Stopped`.
    reason: &'static str,
}

/// What one role sees of one query. Roles with equal masks share it.
#[derive(Debug)]
pub struct Sight {
    /// Writes rows with the role's masks.
    pub writer: RowWriter,
    /// Why this role may name the query and not call it.
    pub refused: Option<Code>,
    /// What its answers are kept under, of a query that is cached.
    pub kept_as: Option<Identity>,
}

/// No grant in `Role::sights`.
const NONE: u32 = u32::MAX;

/// What keys of a role may call.
#[derive(Debug)]
pub struct Role {
    /// By query: index in `Tables::sights`, or NONE.
    sights: Box<[u32]>,
}

/// Everything that a thread serves from.
#[derive(Debug)]
pub struct Tables {
    /// Of the snapshot.
    pub version: u64,
    /// A valid key without the grant gets 404 instead of 403.
    pub hide_forbidden: bool,
    /// Whose X-Forwarded-For counts.
    pub trusted_proxies: Box<[IpNet]>,
    /// Databases.
    pub backends: Vec<Arc<Backend>>,
    /// Queries, as in the snapshot.
    pub queries: Vec<Query>,
    /// Who may call.
    pub keys: Keys,
    /// By query: its counters.
    pub meters: Vec<Slot>,
    /// What runs call queries and keys.
    pub names: Arc<Names>,
    /// Seals cursors.
    pub cursor_key: Option<CursorKey>,
    by_name: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    roles: Vec<Role>,
    sights: Vec<Sight>,
    /// (name, version) → slot.
    slots: HashMap<(Arc<str>, u64), u32>,
}

impl Tables {
    /// Compiles a snapshot. `secret` is what `gateway-secret` holds; `before` keeps slots stable.
    pub fn compile(
        snapshot: &Snapshot,
        secret: Option<&[u8; 32]>,
        before: Option<&Self>,
        observer: &Arc<Observer>,
    ) -> Result<Self, Invalid> {
        if snapshot.schema != SCHEMA_VERSION {
            return Err(Invalid::Schema(snapshot.schema));
        }
        let Snapshot { version, api, connections, queries, roles, keys, .. } = snapshot;
        unique("connection", connections.iter().map(|connection| &*connection.name))?;
        unique("query", queries.iter().map(|query| &*query.name))?;
        unique("role", roles.iter().map(|role| &*role.name))?;
        let trusted_proxies = networks(&api.trusted_proxies).ok_or_else(|| form("api", "trustedProxies"))?;
        let slots = assign(before.map(|tables| &tables.slots), queries)?;
        let queries = queries.iter().map(|plan| query(plan, connections, &slots, before)).collect::<Result<Vec<_>, _>>()?;
        let mask_key = secret.map(MaskKey::derive);
        let cursor_key = secret.map(CursorKey::derive);
        if cursor_key.is_none() && queries.iter().any(|query| query.page.is_some()) {
            return Err(Invalid::Secret);
        }
        let mut sights = Sights { list: Vec::new(), known: HashMap::new() };
        let roles = roles
            .iter()
            .map(|role| {
                let mut table = vec![NONE; queries.len()];
                for grant in &role.grants {
                    let unit = || format!("role {}", role.name);
                    let query = queries.get(grant.query as usize).ok_or_else(|| index(unit(), "a granted query"))?;
                    let slot = table.get_mut(grant.query as usize).ok_or_else(|| index(unit(), "a granted query"))?;
                    if *slot != NONE {
                        return Err(Invalid::Twice(format!("role {}: query {}", role.name, query.name)));
                    }
                    *slot = sights.add(query, grant, mask_key.as_ref(), &role.name, |masks| kept_as(snapshot, grant, masks, secret))?;
                }
                Ok(Role { sights: table.into() })
            })
            .collect::<Result<Vec<_>, Invalid>>()?;
        let keys = Keys::compile(keys, roles.len(), before.map(|tables| &tables.keys))?;
        Ok(Self {
            version: *version,
            hide_forbidden: api.hide_forbidden,
            trusted_proxies,
            backends: connections.iter().map(|plan| backend(plan, before, observer)).collect(),
            by_name: queries.iter().zip(0..).map(|(query, at)| (query.name.as_bytes().into(), at)).collect(),
            keys,
            meters: queries.iter().map(|query| observer.slots.slot(&query.name)).collect(),
            names: Names::of(snapshot),
            queries,
            cursor_key,
            roles,
            sights: sights.list,
            slots,
        })
    }

    /// The query of that name and its index.
    #[inline]
    pub fn query(&self, name: &[u8]) -> Option<(u32, &Query)> {
        let at = *self.by_name.get(name)?;
        Some((at, self.queries.get(at as usize)?))
    }

    /// Index of what a role sees of a query.
    #[inline]
    pub fn sight_of(&self, role: u32, query: u32) -> Option<u32> {
        let at = *self.roles.get(role as usize)?.sights.get(query as usize)?;
        (at != NONE).then_some(at)
    }

    /// By `sight_of`'s index.
    #[inline]
    pub fn sight(&self, at: u32) -> Option<&Sight> {
        self.sights.get(at as usize)
    }

    /// Queries whose batches stopped on their own.
    pub fn uncoalesced(&self) -> impl Iterator<Item = Uncoalesced<'_>> {
        self.queries.iter().filter_map(|query| {
            let stopped = query.coalesced.as_ref()?.verdict.stopped()?;
            Some(Uncoalesced { query: &query.name, version: &query.version, reason: stopped.name() })
        })
    }

    /// One more than the highest slot of a query.
    pub fn slot_count(&self) -> usize {
        self.slots.values().max().map_or(0, |&slot| slot as usize + 1)
    }

    /// (role, query) pairs that were decided, and what they share.
    pub fn pairs(&self) -> (usize, usize) {
        (self.roles.iter().flat_map(|role| &role.sights).filter(|&&at| at != NONE).count(), self.sights.len())
    }
}

/// The one that stands already, if its plan is the same.
fn backend(plan: &ConnectionPlan, before: Option<&Tables>, observer: &Arc<Observer>) -> Arc<Backend> {
    let same = before.and_then(|tables| tables.backends.iter().find(|backend| backend.plan == *plan));
    same.cloned().unwrap_or_else(|| Arc::new(Backend::new(plan.clone(), observer.reach(&plan.name))))
}

fn index(unit: String, what: &'static str) -> Invalid {
    Invalid::Index { unit, what }
}

fn form(unit: &str, what: &'static str) -> Invalid {
    Invalid::Form { unit: unit.to_owned(), what }
}

fn unique<'a>(kind: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Invalid> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Invalid::Twice(format!("{kind} {name}")));
        }
    }
    Ok(())
}

/// Networks of CIDR texts; a bare address counts as itself.
pub(crate) fn networks(texts: &[String]) -> Option<Box<[IpNet]>> {
    texts.iter().map(|text| text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))).collect()
}

/// The code that a refused unit answers with.
fn refusal(reason: &str) -> Code {
    if reason == "database_unreachable" { Code::DatabaseUnavailable } else { Code::QueryRefused }
}

/// Queries that stay keep their slots; new ones take what is free.
fn assign(before: Option<&HashMap<(Arc<str>, u64), u32>>, queries: &[QueryPlan]) -> Result<HashMap<(Arc<str>, u64), u32>, Invalid> {
    let mut slots = HashMap::with_capacity(queries.len());
    let mut fresh = Vec::new();
    for query in queries {
        let version = u64::from_str_radix(&query.version, 16).ok().filter(|_| query.version.len() == 16);
        let id = (Arc::from(&*query.name), version.ok_or_else(|| form(&format!("query {}", query.name), "version"))?);
        match before.and_then(|before| before.get(&id)) {
            Some(&slot) => drop(slots.insert(id, slot)),
            None => fresh.push(id),
        }
    }
    let taken: std::collections::HashSet<u32> = before.into_iter().flat_map(HashMap::values).chain(slots.values()).copied().collect();
    let free = (0..).filter(|slot| !taken.contains(slot));
    slots.extend(fresh.into_iter().zip(free));
    Ok(slots)
}

fn query(
    plan: &QueryPlan,
    connections: &[ConnectionPlan],
    slots: &HashMap<(Arc<str>, u64), u32>,
    before: Option<&Tables>,
) -> Result<Query, Invalid> {
    let unit = format!("query {}", plan.name);
    let connection = connections.get(plan.connection as usize).ok_or_else(|| index(unit.clone(), "its connection"))?;
    let untyped = connection.engine == Engine::Sqlite;
    let check = |statement: &StatementPlan, places: usize| {
        let known = statement.params.iter().all(|&param| (param as usize) < plan.params.len());
        let typed = untyped || statement.oids.len() == places;
        if known && typed { Ok(()) } else { Err(index(unit.clone(), "a parameter of its statement")) }
    };
    if plan.refused.is_none() {
        if let Some(page) = &plan.page {
            let keys = page.keys.iter().all(|key| (key.column as usize) < plan.columns.len());
            let sizes = 1 <= page.default_size && page.default_size <= page.max_size;
            if page.keys.is_empty() || !keys || !sizes || plan.write || plan.returns != Returns::Many {
                return Err(form(&unit, "page"));
            }
            check(&page.first, page.first.params.len() + 1)?;
            check(&page.next, page.next.params.len() + page.keys.len() + 1)?;
        } else {
            check(&plan.statement, plan.statement.params.len())?;
        }
        if plan.unbounded && (plan.returns != Returns::Many || plan.page.is_some() || plan.write || plan.cache_ttl_ms.is_some()) {
            return Err(form(&unit, "unbounded"));
        }
    }
    let version_id = u64::from_str_radix(&plan.version, 16).map_err(|_| form(&unit, "version"))?;
    let name: Arc<str> = plan.name.as_str().into();
    let slot = *slots.get(&(name.clone(), version_id)).ok_or_else(|| form(&unit, "version"))?;
    let spec = Spec::compile(&plan.params, plan.page.as_ref(), connection.engine).map_err(|_| form(&unit, "params"))?;
    let unbound = spec.bound(&serde_json::Map::new()).map_err(|_| form(&unit, "params"))?;
    let shared = plan.shared && !plan.write && !untyped && plan.returns != Returns::None;
    let coalesced = match &plan.coalesce {
        Some(coalesce) if shared && plan.refused.is_none() => {
            Some(coalesced(coalesce, plan, version_id, before).ok_or_else(|| form(&unit, "coalesce"))?)
        }
        Some(_) | None => None,
    };
    let statement = |plan: &StatementPlan, variant| Statement { plan: Arc::new(plan.clone()), variant };
    Ok(Query {
        name,
        version: plan.version.as_str().into(),
        version_id,
        slot,
        connection: plan.connection,
        write: plan.write,
        returns: plan.returns,
        missing: plan.missing,
        timeout: Duration::from_millis(plan.timeout_ms),
        record_params: plan.record_params,
        shared,
        coalesced,
        refused: plan.refused.as_deref().map(refusal),
        spec,
        params: plan.params.iter().map(|param| param.name.as_str().into()).collect(),
        columns: plan.columns.as_slice().into(),
        page: plan.page.as_ref().map(|page| Page {
            first: statement(&page.first, Variant::First),
            next: statement(&page.next, Variant::Next),
            plan: page.clone(),
        }),
        statement: statement(&plan.statement, Variant::Plain),
        unbounded: plan.unbounded,
        cache_ttl: plan.cache_ttl_ms.filter(|_| !plan.write && plan.returns != Returns::None).map(Duration::from_millis),
        unbound: Arc::new(unbound),
    })
}

/// The batch statement, with what is known about it if it stands already; None when it contradicts the query.
fn coalesced(coalesce: &CoalescePlan, plan: &QueryPlan, version: u64, before: Option<&Tables>) -> Option<Coalesced> {
    let CoalescePlan { statement, max_batch, max_in_flight, shadow } = coalesce;
    // Its places are the single's, each as an array.
    let fits = statement.params == plan.statement.params && statement.oids.len() == statement.params.len() && !statement.params.is_empty();
    if !fits || plan.page.is_some() {
        return None;
    }
    let stands = before.and_then(|tables| tables.query(plan.name.as_bytes())).map(|(_, query)| query);
    let stands = stands.filter(|query| query.version_id == version).and_then(|query| query.coalesced.as_ref());
    let known = stands.filter(|coalesced| *coalesced.statement == *statement).map(|coalesced| coalesced.verdict.clone());
    Some(Coalesced {
        statement: Arc::new(statement.clone()),
        most: u16::try_from(*max_batch).ok().filter(|most| (2..=1024).contains(most))?,
        in_flight: u8::try_from(*max_in_flight).ok().filter(|most| (1..=16).contains(most))?,
        verdict: known.unwrap_or_else(|| Arc::new(Verdict::new(*shadow))),
    })
}

/// What answers of a query with these masks are kept under.
fn kept_as(snapshot: &Snapshot, grant: &Grant, masks: &[MaskPlan], secret: Option<&[u8; 32]>) -> Option<Identity> {
    let query = snapshot.queries.get(grant.query as usize)?;
    query.cache_ttl_ms?;
    Some(Identity::of(query, snapshot.connections.get(query.connection as usize)?, masks, secret))
}

/// Query, masks and refusal.
type SightId = (u32, Vec<(u32, u8)>, Option<Code>);

struct Sights {
    list: Vec<Sight>,
    known: HashMap<SightId, u32>,
}

impl Sights {
    fn add(
        &mut self,
        query: &Query,
        grant: &Grant,
        key: Option<&MaskKey>,
        role: &str,
        kept_as: impl FnOnce(&[MaskPlan]) -> Option<Identity>,
    ) -> Result<u32, Invalid> {
        let refused = grant.refused.as_deref().map(refusal);
        // A refused pair shows nothing: its masks may not fit.
        let masks: &[MaskPlan] = if refused.is_some() || query.refused.is_some() { &[] } else { &grant.masks };
        let id = (grant.query, masks.iter().map(|mask| (mask.column, mask.mask as u8)).collect(), refused);
        if let Some(&at) = self.known.get(&id) {
            return Ok(at);
        }
        let unit = || format!("role {role}: query {}", query.name);
        let writer = RowWriter::compile(&query.columns, masks, key).map_err(|refused| match refused {
            crate::encode::rows::Refused::NoMaskKey => Invalid::Secret,
            _ => form(&unit(), "masks or columns"),
        })?;
        // What is compared to find the next row must not be covered.
        if let Some(page) = &query.page
            && page.plan.keys.iter().any(|key| masks.iter().any(|mask| mask.column == key.column))
        {
            return Err(form(&unit(), "a masked page key"));
        }
        let at = u32::try_from(self.list.len()).map_err(|_| form(&unit(), "grants"))?;
        self.list.push(Sight { writer, refused, kept_as: kept_as(masks).filter(|_| query.cache_ttl.is_some()) });
        self.known.insert(id, at);
        Ok(at)
    }
}

/// A key's validity, checked when compiled.
pub(crate) fn key_form(plan: &KeyPlan, what: &'static str) -> Invalid {
    form(&format!("key {}", plan.id), what)
}
