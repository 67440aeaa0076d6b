//! The threads of one database. Serving threads put their asks into one queue; a thread that wakes takes several at once, so that at
//! load a look-up costs no hand-off of its own: another thread is woken only when those awake are at slow statements or the
//! queue grows. Statements known to be slow never wait for each other while a thread is free.
//!
//! May reject: `PoolFull` when the queue is full or the deadline passes in it. IO: through `Session`.
use super::session::{Current, Session, set_current};
use super::write;
use crate::engine::{Ask, Event, Failure};
use crate::observe::reach::Reach;
use crate::plan::snapshot::ConnectionPlan;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, OwnedPermit, Receiver, Sender};

/// Events a caller may have waiting: some 256 KiB of rows, and the last event, whose place is kept.
const EVENTS: usize = 5;
/// Asks in the queue for each thread. More get `PoolFull` at once.
const WAITERS: usize = 64;
/// Asks that a thread takes at once.
const TAKEN: usize = 16;
/// Asks in the queue for each thread that is awake, before another is woken.
const BACKLOG: usize = 8;
/// A statement that takes longer has a thread to itself next time.
const SLOW: Duration = Duration::from_micros(500);
/// How often queued asks are looked at, while there are any: they expire, or wait behind a statement that turned out slow.
const WATCH: Duration = Duration::from_millis(5);
/// An idle thread ends, and its connection with it.
const IDLE: Duration = Duration::from_secs(60);
/// Versions whose speed is remembered.
const VERSIONS: usize = 4_096;

struct Job {
    ask: Ask,
    events: Sender<Event>,
    last: OwnedPermit<Event>,
}

#[derive(Default)]
struct State {
    reads: VecDeque<Job>,
    writes: VecDeque<Job>,
    /// Threads for reads: all, those that wait for work and nobody has woken, those woken that haven't run yet, those at a slow
    /// statement.
    threads: usize,
    idle: usize,
    woken: usize,
    slow: usize,
    writer: bool,
    watcher: bool,
    closed: bool,
    /// Whether a version took long the last time. Unknown ones count as slow.
    speeds: HashMap<Arc<str>, bool>,
}

impl State {
    fn is_slow(&self, ask: &Ask) -> bool {
        self.speeds.get(&ask.version).copied().unwrap_or(true)
    }

    /// Takes out asks whose deadline has passed or whose caller has left.
    fn reap(&mut self) {
        let now = Instant::now();
        for queue in [&mut self.reads, &mut self.writes] {
            let mut at = 0;
            while let Some(job) = queue.get(at) {
                let failure = match (now >= job.ask.deadline, job.events.is_closed()) {
                    (true, _) => Failure::PoolFull,
                    (_, true) => Failure::Cancelled,
                    _ => {
                        at += 1;
                        continue;
                    }
                };
                if let Some(job) = queue.remove(at) {
                    job.last.send(Event::never(failure));
                }
            }
        }
    }

    /// Wakes an idle thread, once.
    fn wake(&mut self, shared: &Shared) {
        if self.idle > 0 {
            self.idle -= 1;
            self.woken += 1;
            shared.reads.notify_one();
        }
    }

    /// Whether another thread should look at the queue.
    fn wants_thread(&self) -> bool {
        let quick = self.threads - self.idle - self.slow;
        !self.reads.is_empty()
            && (quick == 0 || self.reads.len() > quick * BACKLOG || self.reads.front().is_some_and(|j| self.is_slow(&j.ask)))
    }
}

struct Shared {
    url_file: String,
    limit: usize,
    reach: Arc<Reach>,
    state: Mutex<State>,
    reads: Condvar,
    writes: Condvar,
    watch: Condvar,
}

/// One database's threads: at most `maxConnections` for reads and one for writes, started as they are needed.
pub struct Pool {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Of a connection; opens nothing yet. Share it between serving threads by `Arc`.
    pub fn new(plan: &ConnectionPlan, reach: Arc<Reach>) -> Self {
        Self {
            shared: Arc::new(Shared {
                url_file: plan.url_file.clone(),
                limit: plan.max_connections.max(1) as usize,
                reach,
                state: Mutex::new(State::default()),
                reads: Condvar::new(),
                writes: Condvar::new(),
                watch: Condvar::new(),
            }),
        }
    }

    /// Runs one statement. Dropping the receiver interrupts it.
    pub fn submit(&self, ask: Ask) -> Receiver<Event> {
        let (events, receiver) = mpsc::channel(EVENTS);
        let Ok(last) = events.clone().try_reserve_owned() else { return receiver };
        let shared = &self.shared;
        let mut state = shared.state();
        let job = Job { ask, events, last };
        if state.reads.len() + state.writes.len() >= WAITERS * shared.limit {
            state.reap();
        }
        let queued = state.reads.len() + state.writes.len();
        if queued >= WAITERS * shared.limit {
            drop(state);
            job.last.send(Event::never(Failure::PoolFull));
            return receiver;
        }
        if job.ask.write.is_some() {
            state.writes.push_back(job);
            if !state.writer {
                state.writer = spawn("sqlite-writer", shared, writer);
            }
            shared.writes.notify_one();
        } else {
            state.reads.push_back(job);
            wake(shared, &mut state);
        }
        if !state.watcher {
            state.watcher = spawn("sqlite-watch", shared, watcher);
        } else if queued == 0 {
            shared.watch.notify_one();
        }
        receiver
    }

    /// Asks in the queue and threads that are running, for metrics.
    pub fn waiting(&self) -> usize {
        let state = self.shared.state();
        state.reads.len() + state.writes.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        for condition in [&self.shared.reads, &self.shared.writes, &self.shared.watch] {
            condition.notify_all();
        }
    }
}

/// Starts a thread; false if the system has none.
fn spawn(name: &str, shared: &Arc<Shared>, work: fn(&Shared)) -> bool {
    let shared = shared.clone();
    thread::Builder::new().name(name.into()).spawn(move || work(&shared)).is_ok()
}

/// Wakes or starts a thread for reads, if one is wanted and allowed.
fn wake(shared: &Arc<Shared>, state: &mut State) {
    if !state.wants_thread() {
        return;
    }
    if state.idle > 0 {
        state.wake(shared);
    } else if state.threads < shared.limit && spawn("sqlite-reader", shared, reader) {
        state.threads += 1;
    }
}

/// Answers one ask; how long it took.
fn answer(
    job: Job,
    session: &mut Session,
    reach: &Reach,
    run: fn(&mut Session, &Ask, &Sender<Event>) -> Result<Event, Failure>,
) -> Duration {
    let Job { ask, events, last } = job;
    let began = Instant::now();
    if began >= ask.deadline {
        last.send(Event::never(Failure::PoolFull));
        return Duration::ZERO;
    }
    if events.is_closed() {
        last.send(Event::never(Failure::Cancelled));
        return Duration::ZERO;
    }
    set_current(Some(Current { deadline: ask.deadline, events: Some(events.clone()) }));
    let event =
        run(session, &ask, &events).unwrap_or_else(|failure| Event::Failed { failure, database_us: began.elapsed().as_micros() as u64 });
    set_current(None);
    match &event {
        Event::Failed { failure: Failure::Unavailable, .. } => reach.failed("unreachable"),
        // Its deadline may have passed before it came to the file.
        Event::Failed { failure: Failure::Timeout | Failure::Cancelled, .. } => {}
        _ => reach.worked(),
    }
    last.send(event);
    began.elapsed()
}

fn reader(shared: &Shared) {
    let mut session = Session::new(shared.url_file.clone(), false);
    let mut taken = VecDeque::with_capacity(TAKEN);
    let mut state = shared.state();
    loop {
        if state.reads.is_empty() {
            if state.closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (back, waited) = shared.reads.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = back;
            // Whoever wakes takes a wake-up; the one it was meant for then counts as one that woke by itself.
            match state.woken.checked_sub(1) {
                Some(woken) => state.woken = woken,
                None => state.idle -= 1,
            }
            if waited.timed_out() && state.reads.is_empty() {
                state.threads -= 1;
                return;
            }
            continue;
        }
        // One slow ask, or several quick ones.
        let slow = state.reads.front().is_some_and(|job| state.is_slow(&job.ask));
        while taken.len() < if slow { 1 } else { TAKEN } {
            match state.reads.pop_front() {
                Some(job) if !slow && state.is_slow(&job.ask) => {
                    state.reads.push_front(job);
                    break;
                }
                Some(job) => taken.push_back(job),
                None => break,
            }
        }
        state.slow += usize::from(slow);
        if state.wants_thread() {
            state.wake(shared);
        }
        drop(state);
        let mut speeds: [Option<(Arc<str>, bool)>; TAKEN] = [const { None }; TAKEN];
        let mut counted = speeds.iter_mut();
        while let Some(job) = taken.pop_front() {
            let version = job.ask.version.clone();
            let was_slow = answer(job, &mut session, &shared.reach, Session::read) > SLOW;
            if let Some(speed) = counted.next() {
                *speed = Some((version, was_slow));
            }
            if was_slow {
                break;
            }
        }
        state = shared.state();
        state.slow -= usize::from(slow);
        // Those behind one that turned out slow are others' too.
        while let Some(job) = taken.pop_back() {
            state.reads.push_front(job);
        }
        if state.speeds.len() > VERSIONS {
            state.speeds.clear();
        }
        for (version, was_slow) in speeds.into_iter().flatten() {
            state.speeds.insert(version, was_slow);
        }
    }
}

fn writer(shared: &Shared) {
    let mut session = Session::new(shared.url_file.clone(), true);
    let mut state = shared.state();
    loop {
        if let Some(job) = state.writes.pop_front() {
            drop(state);
            answer(job, &mut session, &shared.reach, write::answer);
            state = shared.state();
            continue;
        }
        let (back, waited) = shared.writes.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = back;
        if state.writes.is_empty() && (state.closed || waited.timed_out()) {
            state.writer = false;
            return;
        }
    }
}

/// Looks at queued asks while there are any.
fn watcher(shared: &Shared) {
    let mut state = shared.state();
    loop {
        if state.reads.is_empty() && state.writes.is_empty() {
            if state.closed {
                state.watcher = false;
                return;
            }
            state = shared.watch.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        state = shared.watch.wait_timeout(state, WATCH).unwrap_or_else(PoisonError::into_inner).0;
        state.reap();
        // Whatever is still here has waited: let every thread that is allowed look.
        if !state.reads.is_empty() {
            state.wake(shared);
        }
    }
}
