//! What the tasks of one serving thread share, and the end of a turn: runs are committed, then answers leave.
//! May reject: answers whose runs could not be recorded. IO: the spool and the clients' sockets, at a turn's end.
use super::client::{Client, Way};
use super::forward::Gateway;
use super::output::{Output, Retracted};
use super::response::Date;
use super::tls::Doors;
use crate::calls::bulk;
use crate::calls::call::Ticket;
use crate::calls::core::Core;
use crate::calls::desk::Outputs;
use crate::config::Limits;
use crate::lanes::hands::Hands;
use crate::plan::snapshot::Durability;
use crate::runs::Spool;
use crate::shutdown::Phase;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use tokio::sync::Notify;

/// A thread's state, shared by its tasks.
pub struct Worker {
    /// Plans, lanes and the desk.
    pub core: RefCell<Core>,
    /// Connections.
    pub clients: RefCell<Slab<Client>>,
    pub(super) dirty: RefCell<Vec<u32>>,
    /// Lanes to be connected, and connections that were made, wait here for the driver.
    pub mailbox: RefCell<Vec<crate::calls::core::Letter>>,
    pub(super) driver: RefCell<Option<Waker>>,
    pub(super) woken: Cell<bool>,
    pub(super) pulse: Notify,
    pub(super) pulsing: Cell<bool>,
    /// Outputs that wait for the disk: (commit number, connection, generation, position).
    pub(super) held: RefCell<VecDeque<(u64, u32, u32, u64)>>,
    pub(super) sync_wanted: Notify,
    pub(super) generations: Cell<u32>,
    pub(super) phase: Cell<Phase>,
    pub(super) scratch: RefCell<Box<[u8]>>,
    pub(super) lane_scratch: RefCell<Box<[u8]>>,
    /// Whether new connections speak TLS.
    pub(super) doors: Arc<Doors>,
    /// Bundles that may be whole; empty between turns, kept for its room.
    pub(super) bundles: RefCell<Vec<u32>>,
    /// Tasks of connections that speak HTTP/2.
    pub(super) sessions: RefCell<Slab<Waker>>,
    /// Sockets of clients, those in a handshake included.
    pub(super) sockets: Cell<usize>,
    /// Bounds on clients.
    pub limits: Limits,
    pub(super) spool: Arc<Spool>,
    /// What happens is reported there.
    pub observer: Arc<crate::observe::Observer>,
    /// Forwards what no plan covers.
    pub gateway: Gateway,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

/// The clients as the desk sees them.
pub struct Clients<'a> {
    pub(super) slab: &'a mut Slab<Client>,
    pub(super) dirty: &'a mut Vec<u32>,
}

impl Outputs for Clients<'_> {
    #[inline]
    fn find(&mut self, ticket: Ticket) -> Option<&mut Output> {
        let client = self.slab.get_mut(ticket.connection as usize)?;
        if client.generation != ticket.generation || client.gone {
            return None;
        }
        if !std::mem::replace(&mut client.dirty, true) {
            self.dirty.push(ticket.connection);
        }
        Some(&mut client.output)
    }
}

impl Worker {
    /// Has the driver run once more, behind what is ready now.
    #[inline]
    pub fn wake(&self) {
        if !self.woken.replace(true)
            && let Some(driver) = &*self.driver.borrow()
        {
            driver.wake_by_ref();
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        if phase >= Phase::LameDuck {
            for (_, client) in self.clients.borrow_mut().iter_mut() {
                client.output.retire();
                client.task.wake_by_ref();
            }
            self.wake_sessions();
        }
    }

    /// Has each connection of HTTP/2 look at the time and the phase.
    pub(super) fn wake_sessions(&self) {
        self.sessions.borrow().iter().for_each(|(_, task)| task.wake_by_ref());
    }

    /// Gives the requests of bundles that are whole their answers, which leave at the end of another turn.
    pub(super) fn complete(&self, clients: &mut Slab<Client>, bundles: &mut Vec<u32>, date: &Date) {
        for id in bundles.drain(..) {
            if let Some(asker) = bulk::complete(clients, id, date) {
                self.dirty.borrow_mut().push(asker);
            }
            self.wake();
        }
    }

    /// Has the driver look at a client's output at the turn's end.
    pub fn soil(&self, id: u32) {
        self.dirty.borrow_mut().push(id);
    }

    /// The driver is to run already.
    pub fn woken(&self) -> bool {
        self.woken.get()
    }

    /// Tells clients of one index apart.
    pub fn generation(&self) -> u32 {
        let generation = self.generations.get().wrapping_add(1);
        self.generations.set(generation);
        generation
    }

    /// Ends a call by its ticket, from a task: `with` gets the desk and the output, None when the client has left.
    pub fn tell<R>(&self, ticket: Ticket, with: impl FnOnce(&mut Core, Option<&mut Output>) -> R) -> R {
        let result = {
            let (mut core, mut clients, mut dirty) = (self.core.borrow_mut(), self.clients.borrow_mut(), self.dirty.borrow_mut());
            core.tick_if(!self.woken.get());
            let mut outputs = Clients { slab: &mut clients, dirty: &mut dirty };
            with(&mut core, outputs.find(ticket))
        };
        self.wake();
        result
    }

    /// Ends a connection in the middle of an answer: its client must not take it for whole.
    pub fn cut(&self, ticket: Ticket) {
        if let Some(client) = self.clients.borrow_mut().get_mut(ticket.connection as usize)
            && client.generation == ticket.generation
        {
            client.gone = true;
            client.notify();
            client.task.wake_by_ref();
        }
    }

    /// The turn's end: its runs are recorded, then its answers leave.
    pub(super) fn turn_over(&self) {
        let core = &mut *self.core.borrow_mut();
        let clients = &mut *self.clients.borrow_mut();
        let recorded = core.desk.recorder.commit();
        let disk = self.spool.durability() == Durability::Disk;
        let (number, now) = (core.desk.recorder.commit_number(), core.desk.clock.now);
        let mut held = self.held.borrow_mut();
        let mut bundles = std::mem::take(&mut *self.bundles.borrow_mut());
        for id in self.dirty.borrow_mut().drain(..) {
            let Some(client) = clients.get_mut(id as usize) else { continue };
            client.dirty = false;
            if recorded.is_err() {
                if let Way::Bundle(bundle) = &mut client.way {
                    bundle.unrecorded = true;
                }
                match client.output.retract(core.unrecorded()) {
                    Retracted::Replaced => {}
                    Retracted::StreamLost => client.signal().lost.set(true),
                    Retracted::Cut => client.gone = true,
                }
            }
            let position = client.output.commit();
            if disk {
                held.push_back((number, id, client.generation, position));
                settle(client);
            } else if deliver(clients, id, position, now) {
                bundles.push(id);
            }
        }
        self.complete(clients, &mut bundles, &core.desk.date);
        *self.bundles.borrow_mut() = bundles;
        if disk && !held.is_empty() {
            self.sync_wanted.notify_one();
        }
        if recorded.is_err() {
            core.spool_failed = true;
        }
    }

    /// Keeps the deadlines of calls on shared lanes; true while there are any.
    pub(super) fn sweep_databases(&self) -> bool {
        let mut escaped = Vec::new();
        let busy = {
            let Core { desk, databases, standings, observer, .. } = &mut *self.core.borrow_mut();
            let (mut clients, mut dirty) = (self.clients.borrow_mut(), self.dirty.borrow_mut());
            desk.tick();
            let mut outputs = Clients { slab: &mut clients, dirty: &mut dirty };
            let mut hands = Hands { desk, outputs: &mut outputs, standings, escaped: &mut escaped, scratch: &mut [], observer };
            databases.iter_mut().fold(false, |busy, (_, database)| database.sweep(&mut hands) | busy)
        };
        self.wake();
        self.core.borrow_mut().late.append(&mut escaped);
        busy
    }
}

/// Has what stands before a position leave; a client that asked once is forgotten when it has its answer. True when it is a bundle, which may be
/// whole.
pub(super) fn deliver(clients: &mut Slab<Client>, id: u32, position: u64, now: Instant) -> bool {
    let Some(client) = clients.get_mut(id as usize) else { return false };
    client.output.release(position);
    client.write(now);
    if client.served() {
        client.notify();
        clients.remove(id as usize);
        return false;
    }
    settle(client);
    matches!(client.way, Way::Bundle(_))
}

/// Takes leave of a client: tasks of its calls, and of those in its bundles, learn that it is gone.
pub(super) fn forget(clients: &mut Slab<Client>, mut client: Client) {
    client.gone = true;
    client.notify();
    abandon(clients, std::mem::take(&mut client.bundles));
}

/// Takes leave of a client's bundles.
pub(super) fn abandon(clients: &mut Slab<Client>, bundles: Vec<(u32, u32)>) {
    for (id, generation) in bundles {
        if clients.get(id as usize).is_some_and(|bundle| bundle.generation == generation) {
            let mut bundle = clients.remove(id as usize);
            bundle.gone = true;
            bundle.notify();
        }
    }
}

/// Wakes the tasks that something has become possible for.
pub(super) fn settle(client: &mut Client) {
    client.notify();
    if client.blocked || client.gone || client.output.ended() || client.owes() {
        client.task.wake_by_ref();
    }
}

/// Waits until it is a request's turn and there is room for its output; false when its client has left.
pub async fn room(worker: &Worker, ticket: Ticket) -> bool {
    loop {
        let signal = {
            let mut clients = worker.clients.borrow_mut();
            let Some(client) = clients.get_mut(ticket.connection as usize) else { return false };
            if client.generation != ticket.generation || client.gone {
                return false;
            }
            // Less than what may wait of small answers: what a slow reader has taken is asked for in pieces that hold up nobody.
            let most = worker.limits.high_water.min(worker.limits.stream_high_water);
            if client.output.turn(ticket.number) && client.output.backlog() <= most {
                return true;
            }
            client.signal()
        };
        signal.changed.notified().await;
    }
}
