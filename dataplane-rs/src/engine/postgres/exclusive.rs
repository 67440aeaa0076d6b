//! The exclusive lane: one call at a time on a connection, cancelled in the database when its caller leaves or its time is up.
//!
//! A read runs in `BEGIN READ ONLY … ROLLBACK` in one flight with it, so nothing that it might set outlives it. Its result's shape
//! is compared with the plan at every execution. A connection that breaks before the first row is replaced once.
//! IO: through `Member`. May reject: as `Failure` says.
use super::Lent;
use super::Shared;
use super::failure::of_sqlstate;
use super::member::{Broken, Member};
use super::session::local_holds;
use super::statements::Prepared;
use super::wire::{self, Frame};
use super::write;
use crate::engine::{Ask, Event, Failure};
use postgres_protocol::message::backend;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

/// Rows go to the caller in pieces of about this many bytes.
pub(super) const CHUNK: usize = 64 << 10;

/// Longest that rows of a large answer wait for others to fill their piece.
const GATHER: Duration = Duration::from_millis(5);

/// Why one attempt did not end well, and what that makes of its connection.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is fine, the answer is a failure.
    Failed(Failure),
    /// Something is under way that nobody wants: cancel, read to the end, roll back.
    Stop(Failure),
    /// The prepared statement outlived its table or its server's memory; nothing ran.
    Unprepared,
    /// The connection is lost.
    Broken(Failure),
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Lost => Self::Broken(Failure::Unavailable),
            Broken::Protocol | Broken::Unwritable => Self::Broken(Failure::Protocol),
            Broken::TooLong => Self::Broken(Failure::Refused(*b"54000")),
        }
    }
}

impl From<wire::WireError> for Trouble {
    fn from(error: wire::WireError) -> Self {
        Broken::from(error).into()
    }
}

/// Answers one `Ask`; the last event always has its place.
pub(super) async fn run(pool: Arc<Shared>, ask: Ask, events: Sender<Event>) {
    let Ok(last) = events.clone().try_reserve_owned() else { return };
    let mut stay = Stay::default();
    let done = match ask.write {
        Some(_) => write::answer(&pool, &ask, &events, &mut stay).await,
        None => answer(&pool, &ask, &events, &mut stay).await,
    };
    last.send(done.unwrap_or_else(|failure| Event::Failed { failure, database_us: stay.us() }));
}

/// How long a call is at the database: while it has a connection, over all that it was given.
#[derive(Debug, Default)]
pub(in crate::engine) struct Stay {
    before: Duration,
    since: Option<Instant>,
}

impl Stay {
    /// It has a connection.
    pub fn begin(&mut self) {
        self.end();
        self.since = Some(Instant::now());
    }

    /// It has none, or waits for its caller.
    pub fn end(&mut self) {
        self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// So far, µs.
    pub fn us(&self) -> u64 {
        let now = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        u64::try_from((self.before + now).as_micros()).unwrap_or(u64::MAX)
    }
}

/// Resolves when the caller has left or its time is up.
pub(in crate::engine) async fn leave(events: &Sender<Event>, deadline: Instant) -> Failure {
    tokio::select! {
        biased;
        () = events.closed() => Failure::Cancelled,
        () = sleep_until(deadline) => Failure::Timeout,
    }
}

/// A connection for the call, unless its caller leaves before.
pub(super) async fn borrow(pool: &Arc<Shared>, events: &Sender<Event>, deadline: Instant) -> Result<Lent, Failure> {
    tokio::select! {
        biased;
        lent = pool.acquire(deadline) => lent,
        () = events.closed() => Err(Failure::Cancelled),
    }
}

async fn answer(pool: &Arc<Shared>, ask: &Ask, events: &Sender<Event>, stay: &mut Stay) -> Result<Event, Failure> {
    let deadline = Instant::from_std(ask.deadline);
    let (mut sent, mut replaced, mut reprepared) = (false, false, false);
    loop {
        let mut lent = borrow(pool, events, deadline).await?;
        stay.begin();
        loop {
            let member = lent.member()?;
            let done = tokio::select! {
                biased;
                done = read(member, ask, events, &mut sent) => done,
                failure = leave(events, deadline) => Err(Trouble::Stop(failure)),
            };
            match done {
                Ok(more) => {
                    lent.give_back();
                    return Ok(Event::Done { affected: 0, more, database_us: stay.us(), repeated: false });
                }
                Err(Trouble::Failed(failure)) => {
                    lent.give_back();
                    return Err(failure);
                }
                Err(Trouble::Stop(failure)) => {
                    lent.recover();
                    return Err(failure);
                }
                Err(Trouble::Unprepared) if !reprepared && !sent => {
                    reprepared = true;
                    forget(member, ask)?;
                }
                Err(Trouble::Unprepared) => {
                    lent.recover();
                    return Err(Failure::Stale);
                }
                Err(Trouble::Broken(Failure::Unavailable)) if !replaced && !sent => {
                    replaced = true;
                    stay.end();
                    break;
                }
                Err(Trouble::Broken(failure)) => return Err(failure),
            }
        }
    }
}

/// Closes the statement; the next attempt prepares it anew.
pub(super) fn forget(member: &mut Member, ask: &Ask) -> Result<(), Failure> {
    match member.statements.forget(ask) {
        Some(name) => member.close(&format!("t{name}")).map_err(|_| Failure::Protocol),
        None => Ok(()),
    }
}

/// The statement's SQL and name: unnamed behind a pooler, and when it carries a trace.
pub(super) fn prepare(member: &mut Member, ask: &Ask) -> Result<String, Broken> {
    let statement = &ask.statement;
    if let Some(trace) = ask.trace.as_deref().filter(|trace| trace.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')) {
        member.parse("", &format!("/*traceparent='{trace}'*/ {}", statement.sql), &statement.oids)?;
        return Ok(String::new());
    }
    if member.pooled() {
        member.parse("", &statement.sql, &statement.oids)?;
        return Ok(String::new());
    }
    match member.statements.get(ask) {
        Prepared::Known(name) => Ok(format!("t{name}")),
        Prepared::New { name, evicted } => {
            if let Some(evicted) = evicted {
                member.close(&format!("t{evicted}"))?;
            }
            let name = format!("t{name}");
            member.parse(&name, &statement.sql, &statement.oids)?;
            Ok(name)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Statement,
    End,
}

/// Sends begin, statement and end in one flight, and passes the rows on as they come. Dropped at any point, the member can
/// still be recovered. True: stopped at the limit.
async fn read(member: &mut Member, ask: &Ask, events: &Sender<Event>, sent: &mut bool) -> Result<bool, Trouble> {
    let pooled = member.pooled();
    // Commands before the statement. One Sync covers all, so that it cannot run without them.
    let mut before = 1;
    if pooled {
        let local = member.target().settings.local();
        for sql in ["BEGIN READ ONLY", &local] {
            member.parse("", sql, &[])?;
            member.run("", &[])?;
        }
        before = 2;
    } else {
        if !member.own_prepared {
            member.own_prepared = true;
            member.parse("begin", "BEGIN READ ONLY", &[])?;
            member.parse("rollback", "ROLLBACK", &[])?;
            member.parse("unlock", "SELECT pg_catalog.pg_advisory_unlock_all()", &[])?;
        }
        member.run("begin", &[])?;
    }
    let known_before = member.statements.next_name();
    let name = prepare(member, ask)?;
    member.bind(&name, &ask.values)?;
    member.describe()?;
    member.execute(ask.limit.unwrap_or(0))?;
    member.sync();
    if pooled {
        member.query("ROLLBACK")?;
    } else {
        member.run("rollback", &[])?;
        member.run("unlock", &[])?;
        member.sync();
    }
    let fresh = member.statements.next_name() != known_before;
    let timeout = member.target().settings.statement_timeout();
    let began = Instant::now();
    member.flush().await?;

    let (mut stage, mut shaped, mut parsed, mut more) = (Stage::Begin, false, false, false);
    // It has filled a piece.
    let mut large = false;
    let (mut count, mut chunk, mut failure) = (0_u32, Vec::new(), None);
    while member.owes() {
        if shaped && stage == Stage::Statement {
            count += member.rows(ask.columns.len(), &mut chunk, CHUNK)?;
            if chunk.len() >= CHUNK {
                pass_on(events, &mut count, &mut chunk, sent).await?;
                large = true;
                continue;
            }
        }
        let Some(Frame { tag, body }) = member.frame()? else {
            // What has come goes on before we wait for more.
            consume_budget().await;
            if !member.poll()? {
                // Of a large answer the rest of a piece is waited for: a server's writes are small, and each piece costs its reader, too.
                if large
                    && count > 0
                    && let Ok(filled) = tokio::time::timeout(GATHER, member.fill()).await
                {
                    filled?;
                    continue;
                }
                pass_on(events, &mut count, &mut chunk, sent).await?;
                member.fill().await?;
            }
            continue;
        };
        let size = body.len() + 5;
        match (stage, tag) {
            (_, backend::ERROR_RESPONSE_TAG) => {
                let error = wire::server_error(body)?;
                if error.fatal {
                    return Err(Trouble::Broken(of_sqlstate(error, false, false)));
                }
                let unprepared = error.revalidate || (&error.code == b"26000" && !pooled);
                match stage {
                    Stage::End => member.taint(),
                    // Somebody dropped our own statements.
                    Stage::Begin if &error.code == b"26000" => return Err(Trouble::Broken(Failure::Unavailable)),
                    _ if unprepared && !fresh => failure = failure.or(Some(Trouble::Unprepared)),
                    _ => {
                        let late = began.elapsed() >= timeout;
                        failure = failure.or(Some(Trouble::Failed(of_sqlstate(error, false, late))));
                    }
                }
            }
            (Stage::Begin, backend::DATA_ROW_TAG) if !local_holds(wire::row(body)?.1) => {
                return Err(Trouble::Stop(Failure::Unavailable));
            }
            (Stage::Begin, backend::COMMAND_COMPLETE_TAG) => {
                before -= 1;
                if before == 0 {
                    stage = Stage::Statement;
                }
            }
            (Stage::Statement | Stage::Begin, backend::READY_FOR_QUERY_TAG) => stage = Stage::End,
            (Stage::Statement, backend::PARSE_COMPLETE_TAG) => parsed = true,
            (Stage::Statement, backend::ROW_DESCRIPTION_TAG) => {
                if !wire::matches(body, &ask.columns)? {
                    return Err(Trouble::Stop(Failure::Stale));
                }
                shaped = true;
            }
            (Stage::Statement, backend::NO_DATA_TAG) if !ask.columns.is_empty() => return Err(Trouble::Stop(Failure::Stale)),
            // Once the shape is known rows are taken before this.
            (Stage::Statement, backend::DATA_ROW_TAG) => return Err(Trouble::Broken(Failure::Protocol)),
            (Stage::Statement, backend::PORTAL_SUSPENDED_TAG) => more = true,
            (Stage::Statement, backend::COPY_IN_RESPONSE_TAG | backend::COPY_OUT_RESPONSE_TAG | backend::EMPTY_QUERY_RESPONSE_TAG) => {
                return Err(Trouble::Broken(Failure::Refused(*b"0A000")));
            }
            _ => {}
        }
        member.take(size);
    }
    if failure.is_some() && fresh && !parsed {
        member.statements.forget(ask);
    }
    match failure {
        Some(trouble) => Err(trouble),
        None => {
            pass_on(events, &mut count, &mut chunk, sent).await?;
            Ok(more)
        }
    }
}

/// Hands rows over; waits while the channel is full, and then the wire is not read.
async fn pass_on(events: &Sender<Event>, count: &mut u32, chunk: &mut Vec<u8>, sent: &mut bool) -> Result<(), Trouble> {
    if *count > 0 {
        *sent = true;
        // Behind a full piece there is likely another: it needn't grow to its size by and by.
        let next = Vec::with_capacity(if chunk.len() >= CHUNK { chunk.len() + CHUNK / 4 } else { 0 });
        let rows = Event::Rows { count: std::mem::take(count), bytes: std::mem::replace(chunk, next) };
        events.send(rows).await.map_err(|_| Trouble::Stop(Failure::Cancelled))?;
    }
    Ok(())
}
