//! The exclusive lane: one call at a time on a connection, killed in the database when its caller leaves or its time is up.
//!
//! Reads run alone in a read-only session. Their result's shape is compared with the plan at the Prepare and at every execution.
//! A connection that breaks before the first row is replaced once. IO: through `Member`. May reject: as `Failure` says.
use super::failure::{is_fatal, is_unprepared, of_error};
use super::member::{Broken, Member, Phase, Step};
use super::shape::{is_described, shown};
use super::value::{self, Kind};
use super::wire::{self, ServerError};
use super::write;
use crate::engine::postgres::statements::Prepared;
use crate::engine::postgres::{Stay, leave};
use crate::engine::{Ask, Event, Failure};
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

pub(super) type Shared = crate::engine::pool::Shared<Member>;
pub(super) type Lent = crate::engine::pool::Lent<Member>;

/// Rows go to the caller in pieces of about this many bytes.
pub(super) const CHUNK: usize = 64 << 10;
/// So many rows behind the limit are read to their end; of more the statement is killed.
const REST: u32 = 256;
/// What cannot be bound (docs/contract.md: `database_error`).
const UNBINDABLE: Failure = Failure::Refused(*b"22000");

/// Why one attempt did not end well, and what that makes of its connection.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is fine, the answer is a failure.
    Failed(Failure),
    /// Something is under way that nobody wants: kill, read to the end.
    Stop(Failure),
    /// The server lost the prepared statement; nothing ran.
    Unprepared,
    /// The connection is lost.
    Broken(Failure),
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Lost => Self::Broken(Failure::Unavailable),
            Broken::Protocol => Self::Broken(Failure::Protocol),
            Broken::TooLong | Broken::Unwritable => Self::Broken(Failure::Refused(*b"54000")),
        }
    }
}

/// What a server's no makes of the attempt.
pub(super) fn trouble(error: ServerError, write: bool, timed_out: bool) -> Trouble {
    match of_error(error, write, timed_out) {
        _ if is_unprepared(error) => Trouble::Unprepared,
        failure if is_fatal(error) => Trouble::Broken(failure),
        failure => Trouble::Failed(failure),
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
                    // What is behind the limit is of no use to anybody.
                    if member.phase() == Phase::Idle {
                        lent.give_back();
                    } else {
                        lent.recover();
                    }
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
        Some(name) => member.close(name).map_err(|_| Failure::Protocol),
        None => Ok(()),
    }
}

/// The server's number of the statement, prepared and compared with the plan if it is new.
pub(super) async fn prepare(member: &mut Member, ask: &Ask) -> Result<u32, Trouble> {
    let name = match member.statements.get(ask) {
        Prepared::Known(name) => match member.numbers.get(&name) {
            Some(number) => return Ok(*number),
            // Its Prepare was left half-way.
            None => name,
        },
        Prepared::New { name, evicted } => {
            if let Some(evicted) = evicted {
                member.close(evicted)?;
            }
            name
        }
    };
    member.command(wire::COM_STMT_PREPARE, |out| {
        out.extend_from_slice(ask.statement.sql.as_bytes());
        Ok(())
    })?;
    let (mut prepared, mut error, mut same, mut at) = (None, None, true, 0);
    let described = member.settle(|step| {
        match step {
            Step::Prepared(answer) => prepared = Some(answer),
            Step::Definition(definition) => {
                same &= ask.columns.get(at).is_some_and(|plan| is_described(&definition, plan));
                at += 1;
            }
            Step::Failed(failed) => error = Some(failed),
            _ => {}
        }
        Ok(())
    });
    described.await?;
    if let Some(error) = error {
        member.statements.forget(ask);
        return Err(trouble(error, ask.write.is_some(), false));
    }
    let Some(prepared) = prepared else { return Err(Trouble::Broken(Failure::Protocol)) };
    member.numbers.insert(name, prepared.statement);
    // MariaDB describes no columns of a write with RETURNING; then the execution's alone are compared.
    let silent = ask.write.is_some() && at == 0;
    if !same || (at != ask.columns.len() && !silent) || usize::from(prepared.places) != ask.statement.oids.len() {
        return Err(if forget(member, ask).is_ok() { Trouble::Failed(Failure::Stale) } else { Trouble::Broken(Failure::Stale) });
    }
    Ok(prepared.statement)
}

/// Begins an execution.
pub(super) fn execute(member: &mut Member, number: u32, places: &[u32], values: &[u8]) -> Result<(), Trouble> {
    let mut unbindable = false;
    let begun = member.command(wire::COM_STMT_EXECUTE, |out| {
        value::execution(number, places, values, out).map_err(|_| {
            unbindable = true;
            Broken::Unwritable
        })
    });
    match begun {
        Err(_) if unbindable => Err(Trouble::Failed(UNBINDABLE)),
        other => Ok(other?),
    }
}

/// The columns of an execution, as they come.
#[derive(Debug, Default)]
pub(super) struct Shape {
    pub kinds: Vec<Kind>,
    wrong: Option<Failure>,
}

impl Shape {
    /// One more.
    pub fn take(&mut self, definition: &wire::Definition<'_>, ask: &Ask) {
        match ask.columns.get(self.kinds.len()).map_or(Err(Failure::Stale), |plan| shown(definition, plan)) {
            Ok(kind) => self.kinds.push(kind),
            Err(failure) => self.wrong = self.wrong.take().or(Some(failure)),
        }
    }

    /// Why none of its rows may be shown.
    pub fn wrong(&self, ask: &Ask) -> Option<Failure> {
        self.wrong.clone().or_else(|| (self.kinds.len() != ask.columns.len()).then_some(Failure::Stale))
    }
}

/// Executes and passes the rows on as they come. Dropped at any point, the member can still be recovered. True: stopped at the limit.
async fn read(member: &mut Member, ask: &Ask, events: &Sender<Event>, sent: &mut bool) -> Result<bool, Trouble> {
    let timeout = member.target().settings.statement_timeout();
    let number = prepare(member, ask).await?;
    let began = Instant::now();
    execute(member, number, &ask.statement.oids, &ask.values)?;
    member.flush().await?;
    let (mut shape, mut error) = (Shape::default(), None);
    let (mut count, mut total, mut rest, mut chunk) = (0_u32, 0_u32, 0_u32, Vec::new());
    let limit = ask.limit.unwrap_or(u32::MAX);
    let (mut unreadable, mut wrong) = (false, None);
    while member.phase() != Phase::Idle {
        let stepped = member.step(|step| match step {
            Step::Definition(definition) => shape.take(&definition, ask),
            Step::Row(_) if total >= limit => rest += 1,
            Step::Row(body) => {
                if total == 0 {
                    wrong = shape.wrong(ask);
                }
                if wrong.is_none() {
                    unreadable = value::row(body, &shape.kinds, &mut chunk).is_err();
                    (count, total) = (count + 1, total + 1);
                }
            }
            Step::Done(_) if total == 0 => wrong = shape.wrong(ask),
            Step::Failed(failed) => error = Some(failed),
            _ => {}
        })?;
        if stepped.is_none() {
            // What has come goes on before we wait for more.
            consume_budget().await;
            if !member.poll()? {
                pass_on(events, &mut count, &mut chunk, sent).await?;
                member.fill().await?;
            }
            continue;
        }
        if unreadable {
            return Err(Trouble::Stop(Failure::Protocol));
        }
        if let Some(failure) = wrong.take() {
            return Err(if member.phase() == Phase::Idle { Trouble::Failed(failure) } else { Trouble::Stop(failure) });
        }
        if rest > REST {
            break;
        }
        if chunk.len() >= CHUNK {
            pass_on(events, &mut count, &mut chunk, sent).await?;
        }
    }
    if let Some(error) = error {
        return Err(trouble(error, false, began.elapsed() >= timeout));
    }
    pass_on(events, &mut count, &mut chunk, sent).await?;
    Ok(total >= limit)
}

/// Hands rows over; waits while the channel is full, and then the wire is not read.
async fn pass_on(events: &Sender<Event>, count: &mut u32, chunk: &mut Vec<u8>, sent: &mut bool) -> Result<(), Trouble> {
    if *count > 0 {
        *sent = true;
        let rows = Event::Rows { count: std::mem::take(count), bytes: std::mem::take(chunk) };
        events.send(rows).await.map_err(|_| Trouble::Stop(Failure::Cancelled))?;
    }
    Ok(())
}
