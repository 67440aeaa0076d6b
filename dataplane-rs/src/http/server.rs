//! One serving thread: a current-thread runtime, its own listener and database connections, nothing shared on the hot path.
//!
//! A connection's task only reads and admits. One driver task reads the lanes, dispatches, commits the turn's runs, and writes
//! each dirty connection once. It is queued behind the connections that are ready, so that a turn needs no timer.
//! IO: the listener, the clients' sockets. May reject: connections beyond the bound.
use super::client::{Body, Client, Taken, Way};
use super::head::Head;
use super::http2::{self, Sniffed};
use super::tls::{Door, Doors};
use super::transport::Transport;
use super::worker::{Clients, Worker, abandon, deliver};
use crate::cache::Cache;
use crate::calls::call::{Call, Ticket};
use crate::calls::core::{Admitted, Core, Items};
use crate::calls::{bulk, exclusive, forwarded};
use crate::config::Limits;
use crate::http::forward::Gateway;
use crate::lanes::hands::Hands;
use crate::plan::store::Store;
use crate::runs::Spool;
use crate::shutdown::Phase;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_local;

/// Room of one read, bytes. Shared by all connections of a thread.
const READ: usize = 64 << 10;
/// Before a connection is closed, what the client still sends is read and dropped for so long, so that it gets its answer.
const LINGER: Duration = Duration::from_secs(1);
/// Deadlines of calls on the shared lane are kept to within this.
const PULSE: Duration = Duration::from_millis(20);
/// Events that tokio takes between two looks at its timers and sockets.
const EVENT_INTERVAL: u32 = 1024;

/// What one thread is given.
#[derive(Debug)]
pub struct Settings {
    /// Its number.
    pub thread: usize,
    /// How many there are.
    pub threads: usize,
    /// Its own listener.
    pub listener: std::net::TcpListener,
    /// Bounds on clients.
    pub limits: Limits,
    /// Where plans come from.
    pub store: Arc<Store>,
    /// Where runs go.
    pub spool: Arc<Spool>,
    /// What happens is reported there.
    pub observer: Arc<crate::observe::Observer>,
    /// Whether new connections speak TLS.
    pub doors: Arc<Doors>,
    /// Answers that all threads share.
    pub cache: Arc<Cache>,
    /// `DIR/run/gateway.sock`.
    pub gateway: std::path::PathBuf,
    /// The end.
    pub phase: watch::Receiver<Phase>,
}

/// Serves until the end. Returns how many calls were cut off.
pub fn serve(settings: Settings) -> std::io::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(run(settings))
}

async fn run(settings: Settings) -> std::io::Result<u64> {
    let Settings { thread, threads, listener, limits, store, spool, observer, doors, cache, gateway, phase } = settings;
    let recorder = spool.recorder().map_err(std::io::Error::other)?;
    let synced = recorder.synced();
    let listener = TcpListener::from_std(listener)?;
    let worker = Rc::new(Worker {
        core: RefCell::new(Core::new(recorder, threads, &limits, observer.clone(), cache)),
        clients: RefCell::default(),
        dirty: RefCell::default(),
        mailbox: RefCell::default(),
        driver: RefCell::default(),
        woken: Cell::new(false),
        pulse: Notify::new(),
        pulsing: Cell::new(false),
        held: RefCell::default(),
        sync_wanted: Notify::new(),
        generations: Cell::new(0),
        phase: Cell::new(*phase.borrow()),
        scratch: RefCell::new(vec![0; READ].into()),
        lane_scratch: RefCell::new(vec![0; READ].into()),
        doors,
        bundles: RefCell::default(),
        sessions: RefCell::default(),
        sockets: Cell::new(0),
        limits,
        spool,
        observer,
        gateway: Gateway::new(gateway),
    });
    spawn_local(drive(worker.clone()));
    spawn_local(follow(worker.clone(), store, thread));
    spawn_local(pulse(worker.clone()));
    spawn_local(sweep(worker.clone()));
    spawn_local(release_synced(worker.clone(), synced));
    accept(worker.clone(), listener, phase.clone()).await;
    let cut = finish(&worker, phase).await;
    // What the last turn said is written by now; what it recorded, too.
    worker.turn_over();
    Ok(cut)
}

/// Takes connections until draining begins.
async fn accept(worker: Rc<Worker>, listener: TcpListener, mut phase: watch::Receiver<Phase>) {
    loop {
        let accepted = tokio::select! {
            biased;
            changed = phase.changed() => {
                let now = if changed.is_err() { Phase::Over } else { *phase.borrow_and_update() };
                worker.enter(now);
                if now >= Phase::Draining {
                    return;
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) if worker.sockets.get() < worker.limits.connections => {
                let _best_effort = socket.set_nodelay(true);
                spawn_local(connection(worker.clone(), socket, peer));
            }
            Ok(_) => {}
            // Out of descriptors, or a peer that left: not worth more than another try.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits until every connection has ended, or the grace is over; how many calls were cut off then.
async fn finish(worker: &Rc<Worker>, mut phase: watch::Receiver<Phase>) -> u64 {
    while !(worker.clients.borrow().is_empty() && worker.sessions.borrow().is_empty()) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            changed = phase.changed() => if changed.is_err() || *phase.borrow_and_update() == Phase::Over { break },
        }
    }
    let clients = worker.clients.borrow();
    clients.iter().map(|(_, client)| u64::from(client.output.open())).sum()
}

enum End {
    Left,
    Finished,
    /// It speaks HTTP/2.
    Http2,
}

/// Counts a socket for as long as it lives.
struct Place(Rc<Worker>);

impl Place {
    fn take(worker: &Rc<Worker>) -> Self {
        worker.sockets.set(worker.sockets.get() + 1);
        worker.core.borrow().meter.connections_opened.add(1);
        Self(worker.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.sockets.set(self.0.sockets.get().saturating_sub(1));
        if let Ok(core) = self.0.core.try_borrow() {
            core.meter.connections_closed.add(1);
        }
    }
}

/// In the clear or by TLS, as the door says; None when it is shut or the handshake fails.
async fn enter(worker: &Worker, socket: TcpStream) -> Option<Transport> {
    let config = match &*worker.doors.door() {
        Door::Plain => return Some(Transport::Plain(socket)),
        Door::Shut => return None,
        Door::Tls(config) => config.clone(),
    };
    // In a box, as HTTP/2 is: a connection in the clear does not pay for the room.
    let handshake = Box::pin(tokio_rustls::TlsAcceptor::from(config).accept(socket));
    match tokio::time::timeout(worker.limits.head_time, handshake).await {
        Ok(Ok(stream)) => Some(Transport::encrypted(stream)),
        Ok(Err(_)) | Err(_) => {
            worker.core.borrow().meter.handshakes_failed.add(1);
            None
        }
    }
}

async fn connection(worker: Rc<Worker>, socket: TcpStream, peer: SocketAddr) {
    let _place = Place::take(&worker);
    let Some(socket) = enter(&worker, socket).await else { return };
    if socket.agreed_on_http2() {
        return Box::pin(http2::serve(worker, socket, Vec::new(), peer.ip())).await;
    }
    let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let id = {
        let now = tokio::time::Instant::now().into_std();
        let age = worker.limits.connection_age.mul_f64(rand::random_range(0.9..1.1));
        let mut client = Client::new(Way::Socket(socket), peer.ip(), worker.generation(), task, now, now + age);
        if worker.phase.get() >= Phase::LameDuck {
            client.output.retire();
        }
        worker.clients.borrow_mut().insert(client) as u32
    };
    let end = poll_fn(|cx| turn(&worker, id, cx)).await;
    let client = worker.clients.borrow_mut().try_remove(id as usize);
    let Some(mut client) = client else { return };
    client.gone = true;
    client.notify();
    abandon(&mut worker.clients.borrow_mut(), std::mem::take(&mut client.bundles));
    let (Way::Socket(socket), input) = client.into_parts() else { return };
    match end {
        End::Left => {}
        End::Finished => linger(socket).await,
        End::Http2 => Box::pin(http2::serve(worker, socket, input, peer.ip())).await,
    }
}

/// Says that nothing more comes, and reads what the client still sends: a reset would take its answer away.
async fn linger(mut socket: Transport) {
    let rest = async {
        socket.shutdown().await?;
        let mut sink = [0; 4096];
        while tokio::io::AsyncReadExt::read(&mut socket, &mut sink).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _either_way = tokio::time::timeout(LINGER, rest).await;
}

/// Reads and admits, as far as the socket and the bounds allow. Ready when the connection has ended.
fn turn(worker: &Rc<Worker>, id: u32, cx: &mut Context<'_>) -> Poll<End> {
    let mut started = Vec::new();
    let end = loop {
        let mut clients = worker.clients.borrow_mut();
        let Some(client) = clients.get_mut(id as usize) else { return Poll::Ready(End::Left) };
        if client.gone {
            break Poll::Ready(End::Left);
        }
        let owes = client.owes();
        let Way::Socket(socket) = &mut client.way else { break Poll::Ready(End::Left) };
        if owes {
            match socket.poll_ready(cx) {
                Poll::Ready(Ok(())) => {
                    let now = worker.core.borrow_mut().tick_if(!worker.woken.get());
                    client.write(now);
                    client.notify();
                    continue;
                }
                Poll::Ready(Err(_)) => break Poll::Ready(End::Left),
                Poll::Pending => {}
            }
        }
        if client.finished() {
            break Poll::Ready(End::Finished);
        }
        let mut scratch = worker.scratch.borrow_mut();
        let mut room = ReadBuf::new(&mut scratch);
        if !client.blocked || !can_resume(client) {
            if !client.reads(&worker.limits) {
                break Poll::Pending;
            }
            let Way::Socket(socket) = &mut client.way else { break Poll::Ready(End::Left) };
            match Pin::new(socket).poll_read(cx, &mut room) {
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Err(_)) => break Poll::Ready(End::Left),
                Poll::Ready(Ok(())) if room.filled().is_empty() => break Poll::Ready(End::Left),
                Poll::Ready(Ok(())) => {}
            }
        }
        if client.fresh {
            let now = worker.core.borrow_mut().tick_if(!worker.woken.get());
            match client.sniff(room.filled(), now) {
                Sniffed::Perhaps => continue,
                Sniffed::Http2 => {
                    client.keep_all(room.filled());
                    break Poll::Ready(End::Http2);
                }
                Sniffed::Http1 => {}
            }
        }
        take(worker, id, client, room.filled(), &mut started);
    };
    for start in started {
        start.spawn(worker);
    }
    end
}

/// Requests that stood blocked may be taken now.
fn can_resume(client: &Client) -> bool {
    client.output.idle()
}

/// A call that goes on in a task of its own.
#[derive(Debug)]
pub enum Start {
    /// At a database.
    Exclusive(Box<Call>),
    /// At the gateway.
    Forward(Box<forwarded::Forward>),
    /// As several, each of which goes on by itself.
    Several(Box<Call>, Box<Items>),
}

impl Start {
    /// Begins it.
    pub fn spawn(self, worker: &Rc<Worker>) {
        match self {
            Self::Exclusive(call) => drop(spawn_local(exclusive::run(worker.clone(), call))),
            Self::Forward(forward) => drop(spawn_local(forwarded::run(worker.clone(), forward))),
            Self::Several(call, items) => bulk::start(worker, call, &items),
        }
    }
}

#[inline]
fn take(worker: &Worker, id: u32, client: &mut Client, data: &[u8], started: &mut Vec<Start>) {
    let core = &mut *worker.core.borrow_mut();
    let now = core.tick_if(!worker.woken.get());
    let written = client.output.backlog();
    let peer: IpAddr = client.peer;
    client.grow_old(now);
    client.take(data, &worker.limits, now, &mut |head: &Head<'_>, body: Body<'_>, client: &mut Client, number: u32| {
        let ticket = Ticket { connection: id, generation: client.generation, number };
        match core.admit(head, body, peer, ticket, &mut client.output) {
            Admitted::Told | Admitted::Queued => Taken::Done,
            Admitted::Crowded => Taken::Alone,
            Admitted::Exclusive(call) => {
                started.push(Start::Exclusive(call));
                Taken::Done
            }
            Admitted::Forward(forward) => {
                started.push(Start::Forward(forward));
                Taken::Done
            }
            Admitted::Several(call, items) => {
                started.push(Start::Several(call, items));
                Taken::Done
            }
        }
    });
    core.meter.malformed.add(std::mem::take(&mut client.malformed));
    if client.output.backlog() != written && !std::mem::replace(&mut client.dirty, true) {
        worker.dirty.borrow_mut().push(id);
    }
    worker.wake();
}

async fn drive(worker: Rc<Worker>) {
    let mut escaped = Vec::new();
    let mut wanted = Vec::new();
    poll_fn(|cx: &mut Context<'_>| -> Poll<()> {
        let admitted = worker.woken.replace(false);
        if worker.driver.borrow().is_none() {
            *worker.driver.borrow_mut() = Some(cx.waker().clone());
        }
        {
            let Core { desk, databases, standings, observer, .. } = &mut *worker.core.borrow_mut();
            let mut clients = worker.clients.borrow_mut();
            let mut dirty = worker.dirty.borrow_mut();
            let mut scratch = worker.lane_scratch.borrow_mut();
            // The last that the clock was read: when this turn began, if something was read from clients in it.
            let began = desk.clock.now;
            desk.tick();
            let now = desk.clock.now;
            let began = if admitted { began } else { now };
            let mut outputs = Clients { slab: &mut clients, dirty: &mut dirty };
            let mut hands = Hands { desk, outputs: &mut outputs, standings, escaped: &mut escaped, scratch: &mut scratch, observer };
            for letter in worker.mailbox.borrow_mut().drain(..) {
                if let Some(database) = databases.get_mut(letter.database) {
                    database.connected_to(letter.lane, letter.result, &mut hands);
                }
            }
            for (at, database) in databases.iter_mut() {
                database.receive(cx, began, &mut hands);
                database.dispatch(cx, &mut hands);
                if database.wants() {
                    database.wanted(now, &mut wanted);
                    for (lane, replaces) in wanted.drain(..) {
                        spawn_local(crate::calls::core::connect(worker.clone(), at, lane, replaces, database.backend.clone()));
                    }
                }
                if database.busy() && !worker.pulsing.replace(true) {
                    worker.pulse.notify_one();
                }
            }
        }
        worker.turn_over();
        escaped.append(&mut worker.core.borrow_mut().late);
        for call in escaped.drain(..) {
            Start::Exclusive(call).spawn(&worker);
        }
        Poll::Pending
    })
    .await
}

/// Pins each publication between two turns.
async fn follow(worker: Rc<Worker>, store: Arc<Store>, thread: usize) {
    let mut publications = store.subscribe();
    loop {
        let published = publications.borrow_and_update().clone();
        if let Some(published) = published {
            worker.core.borrow_mut().pin(published.serial, published.tables);
            store.acknowledge(thread, published.serial);
            worker.wake();
        }
        if publications.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps deadlines while calls are on shared lanes.
async fn pulse(worker: Rc<Worker>) {
    loop {
        worker.pulse.notified().await;
        while {
            tokio::time::sleep(PULSE).await;
            worker.sweep_databases()
        } {}
        worker.pulsing.set(false);
    }
}

/// Ends what clients take too long for, and looks after what is done once a second.
async fn sweep(worker: Rc<Worker>) {
    let limits = &worker.limits;
    let shortest =
        [limits.head_time, limits.body_time, limits.idle_time, limits.stall_time].into_iter().min().unwrap_or(Duration::from_secs(1));
    let pause = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        tokio::time::sleep(pause).await;
        let now = {
            let mut core = worker.core.borrow_mut();
            core.desk.tick();
            core.look_after(&worker.spool);
            core.desk.clock.now
        };
        let draining = worker.phase.get() >= Phase::Draining;
        let mut dirty = worker.dirty.borrow_mut();
        for (id, client) in worker.clients.borrow_mut().iter_mut() {
            if client.sweep(now, limits, draining) {
                if client.output.backlog() > 0 && !std::mem::replace(&mut client.dirty, true) {
                    dirty.push(id as u32);
                }
                client.task.wake_by_ref();
            }
        }
        drop(dirty);
        worker.wake_sessions();
        worker.wake();
    }
}

/// `durability: disk`: answers leave when their runs are synced.
async fn release_synced(worker: Rc<Worker>, mut synced: watch::Receiver<u64>) {
    loop {
        worker.sync_wanted.notified().await;
        while !worker.held.borrow().is_empty() {
            let done = *synced.borrow_and_update();
            let now = worker.core.borrow_mut().tick_if(true);
            loop {
                // Not in the condition: the borrow would last for the whole body.
                let next = worker.held.borrow_mut().pop_front_if(|(number, ..)| *number <= done);
                let Some((_, id, generation, position)) = next else { break };
                let clients = &mut *worker.clients.borrow_mut();
                let known = clients.get(id as usize).is_some_and(|client| client.generation == generation);
                if known && deliver(clients, id, position, now) {
                    let core = worker.core.borrow();
                    worker.complete(clients, &mut vec![id], &core.desk.date);
                }
            }
            if !worker.held.borrow().is_empty() && synced.changed().await.is_err() {
                return;
            }
        }
    }
}
