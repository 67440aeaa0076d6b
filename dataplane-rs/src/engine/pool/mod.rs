//! The exclusive lane's connections of one thread, whatever the engine: lent one call at a time, bounded by the shared `Budget`, replaced when they age.
//!
//! IO: connects; a janitor task looks after idle connections about once a second and ends with the pool.
//! May reject: `PoolFull` when the queue is full or no connection came free within half of the time that a call has (what is left then would
//! mostly end in a cancelled statement, which costs the connection more than it was asked for), `Unavailable` when none can be opened.
mod backoff;
mod budget;
mod janitor;
mod lent;

pub use backoff::Limits;
pub use budget::{Budget, Permit};
pub use lent::Lent;

use crate::engine::{Ask, Event, Failure};
use crate::observe::reach::Reach;
use backoff::Backoff;
use janitor::janitor;
use rand::RngExt;
use std::collections::VecDeque;
use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Events of one call that wait for its reader, of about 64 KiB each, one of them kept free for the end. Full: the wire isn't read.
const EVENTS: usize = 4;
/// A connection serves at least this long before it is closed for the sake of another thread: opening one costs more than most calls.
const HELD: Duration = Duration::from_millis(200);
/// Failed connects in a row whose pauses (at most 0.7 s in all) a call waits for.
const SHORT: u32 = 3;

/// Why there is no connection, as far as a pool cares.
pub trait Refusal: Clone + Debug + Display + Send {
    /// The server has no room for more: who already has connections waits for those.
    fn is_full(&self) -> bool;
    /// Credentials are wrong (or not yet, or no longer, right).
    fn is_credentials(&self) -> bool;
    /// What was configured: another attempt won't help.
    fn is_configuration(&self) -> bool;
    /// In a word that shows no host.
    fn reason(&self) -> &'static str;
}

/// One engine's session of the exclusive lane.
pub trait Pooled: Sized + Debug + Send + 'static {
    /// Where the connections lead; re-read at each connect.
    type Source: Debug + Send + Sync;
    /// What it says now.
    type Target: Debug + Send + Sync;
    /// An open connection.
    type Connection: Send;
    /// Why there is none.
    type Error: Refusal;

    /// Of the source's files as they stand.
    fn source_generation(source: &Self::Source) -> u64;
    /// What the source says now.
    fn read(source: &Self::Source) -> Result<Self::Target, Self::Error>;
    /// Of the files that it was read from.
    fn target_generation(target: &Self::Target) -> u64;
    /// Opens a read-only connection.
    fn connect(target: &Self::Target, deadline: Instant) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;
    /// Takes a new connection; `life` is how long it may serve.
    fn of(connection: Self::Connection, target: Arc<Self::Target>, permit: Permit, life: Duration) -> Self;
    /// When it was opened.
    fn opened(&self) -> Instant;
    /// Of the files it was opened with.
    fn generation(&self) -> u64;
    /// Whether another borrower may have it.
    fn clean(&self, now: Instant) -> bool;
    /// Whether an idle one still lives, without waiting.
    fn alive(&mut self, now: Instant) -> bool;
    /// Puts it to rest.
    fn rest(&mut self, now: Instant);
    /// Since when it has been idle.
    fn idle_since(&self) -> Instant;
    /// Stops what it does and makes it fit again. None: it could not be saved and is closed.
    fn recover(self) -> impl Future<Output = Option<Self>> + Send + 'static;
    /// Undoes what a write may have left. False: close it.
    fn restore(&mut self) -> impl Future<Output = bool> + Send;
    /// Answers one `Ask`; the last event always has its place.
    fn answer(pool: Arc<Shared<Self>>, ask: Ask, events: mpsc::Sender<Event>) -> impl Future<Output = ()> + Send + 'static;
}

#[derive(Debug)]
struct State<M: Pooled> {
    pub idle: Vec<M>,
    /// Who waits for a returned connection, in order; those who left are skipped.
    waiters: VecDeque<oneshot::Sender<M>>,
    waiting: usize,
    /// Connections that stand: lent, idle, recovering.
    pub live: usize,
    /// The database cannot be reached.
    down: Backoff,
    /// It can, but takes no more (53300, or wrong credentials beside connections that work).
    crowded: Backoff,
    /// The newest generation of files that a connection was opened with.
    pub proven: u64,
    /// Its target: still tried when the credentials of newer files are refused (the Secret may change before the server).
    good: Option<Arc<M::Target>>,
    /// The next connection that comes back makes room for a trial of newer files.
    pub trial: bool,
    /// Newer files that do not work yet are tried less and less often.
    pub unproven: Backoff,
    pub closed: bool,
}

impl<M: Pooled> Default for State<M> {
    fn default() -> Self {
        Self {
            idle: Vec::new(),
            waiters: VecDeque::new(),
            waiting: 0,
            live: 0,
            down: Backoff::default(),
            crowded: Backoff::default(),
            proven: 0,
            good: None,
            trial: false,
            unproven: Backoff::default(),
            closed: false,
        }
    }
}

/// Counts for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Open connections.
    pub live: usize,
    /// Of these, not lent.
    pub idle: usize,
    /// Calls that wait.
    pub waiting: usize,
    /// Connects since the start.
    pub connects: u64,
    /// Failed ones.
    pub failures: u64,
    /// Why the last connect failed, until one works. Safe to show.
    pub last_failure: Option<String>,
}

/// A new connection. None: it could not be had, but a returned one or a later attempt may do.
type Opened<M> = Result<Lent<M>, Option<Failure>>;

/// What a pool's calls and its janitor share.
#[derive(Debug)]
pub struct Shared<M: Pooled> {
    source: Arc<M::Source>,
    budget: Arc<Budget>,
    reach: Arc<Reach>,
    limits: Limits,
    /// This pool's part of the budget's hungry.
    hungry: AtomicUsize,
    state: Mutex<State<M>>,
    connects: AtomicU64,
    failures: AtomicU64,
    last_failure: Mutex<Option<M::Error>>,
}

/// One thread's pool of one connection plan. Dropped: idle connections close, lent ones when they come back.
#[derive(Debug)]
pub struct Pool<M: Pooled> {
    shared: Arc<Shared<M>>,
}

impl<M: Pooled> Pool<M> {
    /// Opens nothing yet. Must be called in the thread's tokio runtime.
    pub fn new(source: Arc<M::Source>, budget: Arc<Budget>, reach: Arc<Reach>, limits: Limits) -> Self {
        let shared = Arc::new(Shared {
            source,
            budget,
            reach,
            limits,
            hungry: AtomicUsize::new(0),
            state: Mutex::default(),
            connects: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
        });
        shared.budget.join();
        tokio::spawn(janitor(Arc::downgrade(&shared), Arc::clone(&shared.budget)));
        Self { shared }
    }

    /// Runs one statement; see `Event` for what comes and how to leave.
    pub fn submit(&self, ask: Ask) -> mpsc::Receiver<Event> {
        let (events, receiver) = mpsc::channel(EVENTS);
        tokio::spawn(M::answer(Arc::clone(&self.shared), ask, events));
        receiver
    }

    /// As many wait as may: the next would be told `PoolFull`.
    pub fn is_full(&self) -> bool {
        let state = self.shared.state();
        state.waiting >= self.shared.limits.queue && state.idle.is_empty()
    }

    /// Counts for metrics.
    pub fn stats(&self) -> Stats {
        let state = self.shared.state();
        Stats {
            live: state.live,
            idle: state.idle.len(),
            waiting: state.waiting,
            connects: self.shared.connects.load(Ordering::Relaxed),
            failures: self.shared.failures.load(Ordering::Relaxed),
            last_failure: self.shared.last_failure().as_ref().map(ToString::to_string),
        }
    }
}

impl<M: Pooled> Drop for Pool<M> {
    fn drop(&mut self) {
        self.shared.budget.leave();
        let idle = {
            let mut state = self.shared.state();
            state.closed = true;
            state.live -= state.idle.len();
            std::mem::take(&mut state.idle)
        };
        drop(idle);
    }
}

/// Counts a waiting call as long as it lives.
struct Waiting<'a, M: Pooled>(&'a Shared<M>);

impl<M: Pooled> Drop for Waiting<'_, M> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl<M: Pooled> Shared<M> {
    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn last_failure(&self) -> MutexGuard<'_, Option<M::Error>> {
        self.last_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn lost(&self) {
        self.state().live -= 1;
    }

    fn lend(self: &Arc<Self>, member: M) -> Lent<M> {
        Lent::new(member, Arc::clone(self))
    }

    /// The youngest idle connection that lives.
    fn idle(self: &Arc<Self>) -> Option<Lent<M>> {
        let now = Instant::now();
        loop {
            let mut member = self.state().idle.pop()?;
            if member.alive(now) {
                return Some(self.lend(member));
            }
            drop(member);
            self.lost();
        }
    }

    /// Whether a returned connection is closed for another thread that waits: only what is above the fair share, so that threads
    /// that all wait don't close each other's connections call by call.
    fn owes(&self, state: &State<M>, member: &M, now: Instant) -> bool {
        now >= member.opened() + HELD && state.live > self.budget.fair_share() && self.budget.others_hungry(&self.hungry)
    }

    pub(super) fn give_back(&self, mut member: M) {
        let now = Instant::now();
        let mut state = self.state();
        let old = member.generation() < state.proven || std::mem::take(&mut state.trial);
        if state.closed || old || !member.clean(now) || self.owes(&state, &member, now) {
            state.live -= 1;
            drop(state);
            return;
        }
        member.rest(now);
        self.reach.worked();
        while let Some(waiter) = state.waiters.pop_front() {
            match waiter.send(member) {
                Ok(()) => return,
                Err(back) => member = back,
            }
        }
        state.idle.push(member);
    }

    /// A connection for one call, by its deadline.
    pub async fn acquire(self: &Arc<Self>, deadline: Instant) -> Result<Lent<M>, Failure> {
        if let Some(lent) = self.idle() {
            return Ok(lent);
        }
        let mut permit = self.budget.try_acquire();
        let _waiting = {
            let mut state = self.state();
            if permit.is_none() && state.waiting >= self.limits.queue {
                return Err(Failure::PoolFull);
            }
            state.waiting += 1;
            Waiting(self)
        };
        let mut opening: Option<oneshot::Receiver<Opened<M>>> = None;
        let began = Instant::now();
        let patience = began + deadline.saturating_duration_since(began) / 2;
        loop {
            if let Some(room) = permit.take() {
                match self.open(room) {
                    Ok(receiver) => opening = Some(receiver),
                    Err(Some(failure)) => return Err(failure),
                    Err(None) => {}
                }
            }
            let (sender, mut returned) = oneshot::channel();
            let alone = opening.is_none();
            let (paused, busy) = {
                let mut state = self.state();
                state.waiters.push_back(sender);
                // Those who left are only skipped when a connection comes back; keep the queue in bounds until then.
                if state.waiters.len() > 2 * self.limits.queue {
                    state.waiters.retain(|waiter| !waiter.is_closed());
                }
                let now = Instant::now();
                (state.down.paused(now).or_else(|| state.crowded.paused(now)), alone && state.live > 0)
            };
            // Others have what it waits for; while a connection is being made it has until its deadline.
            let until = if busy { patience } else { deadline };
            // A connection may have come back before we stood in the queue.
            if let Some(lent) = self.idle() {
                return Ok(lent);
            }
            let mut opened = None;
            tokio::select! {
                biased;
                Ok(member) = &mut returned => return Ok(self.lend(member)),
                result = of(&mut opening), if !alone => opened = Some(result),
                () = sleep_until(until) => {}
                () = sleep_until(paused.unwrap_or(deadline)), if alone && paused.is_some() => permit = self.budget.try_acquire(),
                room = self.budget.acquire(&self.hungry), if alone && paused.is_none() => permit = Some(room),
            }
            returned.close();
            if let Ok(member) = returned.try_recv() {
                return Ok(self.lend(member));
            }
            match opened {
                Some(Ok(Ok(lent))) => return Ok(lent),
                Some(Ok(Err(Some(failure)))) => return Err(failure),
                Some(Ok(Err(None)) | Err(_)) => opening = None,
                None => {}
            }
            if Instant::now() >= until {
                // Nobody of ours holds one, so they cannot be had.
                return Err(if self.state().live == 0 { Failure::Unavailable } else { Failure::PoolFull });
            }
        }
    }

    /// Begins to open a connection, beside: a caller who leaves meanwhile leaves it to others. None: wait, for a returned one or
    /// for the end of a pause.
    pub(super) fn open(self: &Arc<Self>, permit: Permit) -> Result<oneshot::Receiver<Opened<M>>, Option<Failure>> {
        let now = Instant::now();
        {
            let mut state = self.state();
            if let Some(until) = state.down.paused(now) {
                // The first pauses are short enough to wait for; later ones are not, and one attempt at their end is enough.
                return Err(if state.down.failures <= SHORT && until > now { None } else { Some(Failure::Unavailable) });
            }
            if state.crowded.paused(now).is_some() {
                return Err(None);
            }
            if state.down.failures > 0 {
                state.down.failed(&self.limits, now);
            }
        }
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let opened = shared.connect(permit).await;
            if let Err(Ok(lent)) = sender.send(opened) {
                lent.give_back();
            }
        });
        Ok(receiver)
    }

    async fn connect(self: Arc<Self>, permit: Permit) -> Opened<M> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let jitter = rand::rng().random_range(0.9..1.1);
        let limit = Instant::now() + self.limits.connect;
        let (opened, refused) = self.newest_or_good(limit).await;
        let error = match opened {
            Ok((connection, target)) => {
                let member = M::of(connection, Arc::clone(&target), permit, self.limits.life.mul_f64(jitter));
                let old = {
                    let mut state = self.state();
                    state.live += 1;
                    state.down.worked();
                    state.crowded.worked();
                    if refused.is_some() {
                        state.unproven.failed(&self.limits, Instant::now());
                    } else if member.generation() >= state.proven {
                        state.unproven.worked();
                        state.proven = member.generation();
                        state.good = Some(target);
                    }
                    let proven = state.proven;
                    let old: Vec<M> = state.idle.extract_if(.., |idle: &mut M| idle.generation() < proven).collect();
                    state.live -= old.len();
                    old
                };
                drop(old);
                self.budget.set_refused(false);
                self.reach.worked();
                *self.last_failure() = refused;
                return Ok(self.lend(member));
            }
            Err(error) => error,
        };
        drop(permit);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut state = self.state();
        let crowded = error.is_full() || (error.is_credentials() && state.live > 0);
        let result = if crowded {
            // Whoever has connections goes on with them; other threads are asked for those that are idle.
            state.crowded.failed(&self.limits, now);
            None
        } else {
            if state.down.paused(now).is_none() {
                state.down.failed(&self.limits, now);
            }
            let short = state.down.failures <= SHORT && !error.is_configuration();
            if short { None } else { Some(Failure::Unavailable) }
        };
        let none_left = state.live == 0;
        drop(state);
        if none_left {
            self.reach.failed(error.reason());
        }
        if error.is_credentials() {
            self.budget.set_refused(true);
        } else if crowded {
            self.budget.want();
        }
        *self.last_failure() = Some(error);
        Err(result)
    }

    /// By the files as they stand; if their credentials are refused, by those that worked last. Beside: that refusal.
    async fn newest_or_good(&self, limit: Instant) -> (Result<(M::Connection, Arc<M::Target>), M::Error>, Option<M::Error>) {
        let newest = match M::read(&self.source) {
            Ok(target) => Arc::new(target),
            Err(error) => return (Err(error), None),
        };
        let refused = match M::connect(&newest, limit).await {
            Ok(connection) => return (Ok((connection, newest)), None),
            Err(error) => error,
        };
        let good =
            self.state().good.clone().filter(|good| refused.is_credentials() && M::target_generation(good) < M::target_generation(&newest));
        match good {
            Some(good) => match M::connect(&good, limit).await {
                Ok(connection) => (Ok((connection, good)), Some(refused)),
                Err(_) => (Err(refused), None),
            },
            None => (Err(refused), None),
        }
    }
}

async fn of<M: Pooled>(opening: &mut Option<oneshot::Receiver<Opened<M>>>) -> Result<Opened<M>, oneshot::error::RecvError> {
    match opening {
        Some(receiver) => receiver.await,
        None => std::future::pending().await,
    }
}
