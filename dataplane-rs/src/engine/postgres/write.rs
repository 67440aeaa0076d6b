//! A write: its own read-write transaction, with its Idempotency-Key and outcome in the same one.
//!
//! Rows are shown only after the COMMIT. Until COMMIT is sent a caller who leaves, a deadline or any failure rolls everything
//! back; once it is sent its outcome is awaited and told, whoever has left. If the connection breaks between the two, the outcome
//! is unknown: `Unavailable`, and a repeat with the same key finds the truth. Nothing that may have run is ever run again by us.
//!
//! On a connection that was in use until just now BEGIN and the statement leave in one flight; on an older one, which may have died
//! unnoticed, BEGIN goes ahead, so that another can take its place. COMMIT and what undoes the session's changes are one flight.
//! IO: through `Member`. May reject: as `Failure` says.
use super::Lent;
use super::Shared;
use super::exclusive::{CHUNK, Stay, Trouble, borrow, forget, leave, prepare};
use super::failure::of_sqlstate;
use super::idempotency::{self, Outcome, RESULT_LIMIT_BYTES};
use super::member::{Broken, Member};
use super::session::local_holds;
use super::wire::{self, ServerError};
use crate::engine::{Ask, Event, Failure, Idempotency};
use postgres_protocol::message::backend;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

/// A COMMIT under way is awaited this long, whatever the caller's deadline: its outcome must be known.
const COMMIT: Duration = Duration::from_secs(5);
/// A caller takes committed rows within this, beyond its deadline.
const TAKE: Duration = Duration::from_secs(30);

/// A connection that rested no longer is taken for alive.
const WARM: Duration = Duration::from_secs(1);

/// Names of our own prepared statements.
const BEGIN: (&str, &str) = ("begin write", "BEGIN READ WRITE");
const END: (&str, &str) = ("commit write", "COMMIT");

/// An answer waits this long for its rollback.
const UNLOCK: Duration = Duration::from_secs(1);

/// Places of our own statements.
const TEXT: u32 = 25;
const INT8: u32 = 20;

pub(super) async fn answer(pool: &Arc<Shared>, ask: &Ask, events: &Sender<Event>, stay: &mut Stay) -> Result<Event, Failure> {
    let deadline = Instant::from_std(ask.deadline);
    let idempotency = ask.write.as_ref().and_then(|write| write.idempotency.as_ref());
    let (mut replaced, mut reprepared) = (false, false);
    let (outcome, repeated) = loop {
        let mut lent = borrow(pool, events, deadline).await?;
        stay.begin();
        let member = lent.member()?;
        let warm = idempotency.is_none() && member.write_prepared && member.idle_since().elapsed() < WARM;
        // The transaction is open and the key is ours before anything of the write is sent: up to here another connection will do.
        let begun = if warm {
            Ok(None)
        } else {
            tokio::select! {
                biased;
                begun = begin(member, idempotency) => begun,
                failure = leave(events, deadline) => Err(Trouble::Stop(failure)),
            }
        };
        match begun {
            Ok(None) => {}
            Ok(Some(outcome)) => {
                // A transaction that did nothing; the connection then goes back.
                roll_back(lent, idempotency).await;
                break (outcome, true);
            }
            Err(Trouble::Broken(Failure::Unavailable)) if !replaced => {
                replaced = true;
                stay.end();
                continue;
            }
            Err(Trouble::Broken(failure)) => return Err(failure),
            Err(Trouble::Failed(failure) | Trouble::Stop(failure)) => {
                roll_back(lent, idempotency).await;
                return Err(failure);
            }
            Err(Trouble::Unprepared) => return Err(Failure::Protocol),
        }
        let ran = tokio::select! {
            biased;
            ran = run(member, ask, warm) => ran,
            failure = leave(events, deadline) => Err(Trouble::Stop(failure)),
        };
        let outcome = match ran {
            Ok(outcome) => outcome,
            Err(Trouble::Broken(failure)) => return Err(failure),
            Err(Trouble::Failed(failure) | Trouble::Stop(failure)) => {
                roll_back(lent, idempotency).await;
                return Err(failure);
            }
            Err(Trouble::Unprepared) => {
                // Refused at Bind: nothing ran.
                forget(member, ask)?;
                member.write_prepared = false;
                roll_back(lent, idempotency).await;
                if reprepared {
                    return Err(Failure::Stale);
                }
                reprepared = true;
                stay.end();
                continue;
            }
        };
        // The last moment at which leaving undoes everything.
        if events.is_closed() || Instant::now() >= deadline {
            roll_back(lent, idempotency).await;
            return Err(if events.is_closed() { Failure::Cancelled } else { Failure::Timeout });
        }
        if idempotency.is_none() && member.write_prepared {
            let mut committed = false;
            let ended = timeout(COMMIT, end(member, &mut committed)).await;
            match ended {
                Ok(Ok(true)) => lent.give_back(),
                // Committed, but not as it was: closed.
                _ if committed => drop(lent),
                Ok(Ok(false)) => return Err(Failure::Unavailable),
                Ok(Err(Trouble::Failed(failure) | Trouble::Stop(failure))) => {
                    lent.recover();
                    return Err(failure);
                }
                Ok(Err(Trouble::Broken(_) | Trouble::Unprepared)) | Err(_) => return Err(Failure::Unavailable),
            }
            break (outcome, false);
        }
        match timeout(COMMIT, commit(member, idempotency, &outcome)).await {
            Ok(Ok(())) => {
                lent.restore();
                break (outcome, false);
            }
            Ok(Err(Trouble::Failed(failure) | Trouble::Stop(failure))) => {
                roll_back(lent, idempotency).await;
                return Err(failure);
            }
            Ok(Err(Trouble::Broken(_) | Trouble::Unprepared)) | Err(_) => return Err(Failure::Unavailable),
        }
    };
    stay.end();
    let done = Event::Done { affected: outcome.affected, more: outcome.more, database_us: stay.us(), repeated };
    let columns = ask.columns.len();
    match timeout(TAKE, tell(events, outcome, columns)).await {
        Ok(true) => Ok(done),
        Ok(false) => Err(Failure::Protocol),
        Err(_) => Err(Failure::Timeout),
    }
}

/// Rolls back and gives the connection back. The key's lock is free before anything is told: who repeats the call at once, knowing its
/// answer, must not find it still running.
async fn roll_back(lent: Lent, idempotency: Option<&Idempotency>) {
    match idempotency {
        Some(_) => lent.recovered(UNLOCK).await,
        None => lent.recover(),
    }
}

/// Opens the transaction; with a key also takes its lock and looks it up. Some: the stored outcome, nothing is to run.
async fn begin(member: &mut Member, idempotency: Option<&Idempotency>) -> Result<Option<Outcome>, Trouble> {
    let pooled = member.pooled();
    if pooled {
        let local = member.target().settings.local();
        member.query(&format!("BEGIN READ WRITE; {local}"))?;
    } else {
        if !member.write_prepared {
            // One of them may stand from before.
            member.write_prepared = true;
            for (name, sql) in [BEGIN, END] {
                member.close(name)?;
                member.parse(name, sql, &[])?;
            }
        }
        member.run(BEGIN.0, &[])?;
        member.sync();
    }
    if let Some(idempotency) = idempotency {
        let mut lock = Vec::new();
        idempotency::put(&mut lock, idempotency::lock_id(idempotency).to_string().as_bytes());
        member.parse("", idempotency::LOCK, &[INT8])?;
        member.run("", &lock)?;
        let mut key = Vec::new();
        idempotency::put(&mut key, idempotency.caller.as_bytes());
        idempotency::put(&mut key, idempotency.key.as_bytes());
        member.parse("", &idempotency::lookup(&idempotency.table), &[TEXT, TEXT])?;
        member.run("", &key)?;
        member.sync();
    }
    // Rows in order: the pins' (behind a pooler), the lock's, the stored outcome's.
    let mut rows: Vec<Vec<u8>> = Vec::new();
    let error = member
        .settle(|frame| {
            if frame.tag == backend::DATA_ROW_TAG {
                rows.push(wire::row(frame.body)?.1.to_vec());
            }
            Ok(())
        })
        .await?;
    if let Some(error) = error {
        member.write_prepared = false;
        // Somebody dropped our own statements: another connection has them.
        return Err(if &error.code == b"26000" { Trouble::Broken(Failure::Unavailable) } else { unbegun(error) });
    }
    let mut rows = rows.into_iter();
    if pooled && !rows.next().is_some_and(|row| local_holds(&row)) {
        return Err(Trouble::Failed(Failure::Unavailable));
    }
    let Some(idempotency) = idempotency else { return Ok(None) };
    let locked = rows.next().is_some_and(|row| wire::values(&row).next().flatten() == Some(b"t"));
    match rows.next() {
        _ if !locked => Err(Trouble::Failed(Failure::IdempotencyRunning)),
        None => Ok(None),
        Some(row) => match idempotency::stored(&row) {
            Some((arguments, _)) if arguments != idempotency.arguments => Err(Trouble::Failed(Failure::IdempotencyMismatch)),
            Some((_, outcome)) => Ok(Some(outcome)),
            None => Err(Trouble::Failed(Failure::Protocol)),
        },
    }
}

/// The transaction could not be opened.
fn unbegun(error: ServerError) -> Trouble {
    match of_sqlstate(error, true, false) {
        failure if error.fatal => Trouble::Broken(failure),
        // "cannot set transaction read-write mode during recovery": it is a standby now.
        Failure::Refused(code) if &code == b"0A000" => Trouble::Failed(Failure::Unavailable),
        failure => Trouble::Failed(failure),
    }
}

/// Runs the statement to its end (a limit cannot stop a write half-way) and keeps at most `limit` of its rows. `begins`: the transaction
/// is opened in the same flight.
async fn run(member: &mut Member, ask: &Ask, begins: bool) -> Result<Outcome, Trouble> {
    if begins {
        member.run(BEGIN.0, &[])?;
    }
    let mut begun = !begins;
    let pooled = member.pooled();
    let known_before = member.statements.next_name();
    let name = prepare(member, ask)?;
    let fresh = member.statements.next_name() != known_before;
    member.bind(&name, &ask.values)?;
    member.describe()?;
    member.execute(0)?;
    member.sync();
    let (limit, began, timeout) = (ask.limit.unwrap_or(u32::MAX), Instant::now(), member.target().settings.statement_timeout());
    let (mut outcome, mut stale, mut shaped, mut parsed, mut bound) = (Outcome::default(), false, false, false, false);
    let (mut too_long, mut copies) = (false, false);
    let error = member
        .settle(|frame| {
            match frame.tag {
                backend::COMMAND_COMPLETE_TAG if !begun => begun = true,
                backend::PARSE_COMPLETE_TAG => parsed = true,
                backend::BIND_COMPLETE_TAG => bound |= begun,
                backend::ROW_DESCRIPTION_TAG => {
                    shaped = wire::matches(frame.body, &ask.columns)?;
                    stale |= !shaped;
                }
                backend::NO_DATA_TAG => stale |= !ask.columns.is_empty(),
                backend::DATA_ROW_TAG if shaped => {
                    let (columns, values) = wire::row(frame.body)?;
                    if usize::from(columns) != ask.columns.len() {
                        return Err(Broken::Protocol);
                    }
                    if outcome.count >= limit {
                        outcome.more = true;
                    } else if outcome.rows.len() + values.len() > RESULT_LIMIT_BYTES {
                        too_long = true;
                    } else {
                        outcome.count += 1;
                        outcome.rows.extend_from_slice(values);
                    }
                }
                backend::COMMAND_COMPLETE_TAG => outcome.affected = wire::affected(frame.body),
                backend::COPY_IN_RESPONSE_TAG | backend::COPY_OUT_RESPONSE_TAG | backend::EMPTY_QUERY_RESPONSE_TAG => {
                    copies = true;
                    return Err(Broken::Protocol);
                }
                _ => {}
            }
            Ok(())
        })
        .await;
    let error = match error {
        Err(_) if copies => return Err(Trouble::Broken(Failure::Refused(*b"0A000"))),
        other => other?,
    };
    if error.is_some() && fresh && !parsed {
        member.statements.forget(ask);
    }
    match error {
        Some(error) if error.fatal => Err(Trouble::Broken(of_sqlstate(error, true, false))),
        // Somebody dropped our own statements: nothing ran.
        Some(ServerError { code, .. }) if !begun && &code == b"26000" => Err(Trouble::Unprepared),
        Some(error) if !begun => Err(unbegun(error)),
        Some(ServerError { code, revalidate, .. }) if !bound && !fresh && (revalidate || (&code == b"26000" && !pooled)) => {
            Err(Trouble::Unprepared)
        }
        Some(error) => Err(Trouble::Failed(of_sqlstate(error, true, began.elapsed() >= timeout))),
        None if stale => Err(Trouble::Failed(Failure::Stale)),
        None if too_long => Err(Trouble::Failed(Failure::Refused(*b"54000"))),
        None => Ok(outcome),
    }
}

/// Commits, undoes what the statement left in the session and has that proven, in one flight. `committed` is set as soon as that is known.
/// False: the session is not as it was. `Failed`: nothing was committed. `Broken`: unknown, unless `committed`.
async fn end(member: &mut Member, committed: &mut bool) -> Result<bool, Trouble> {
    member.run(END.0, &[])?;
    member.prove()?;
    member.sync();
    let (tainted, mut rows) = (member.tainted(), Vec::new());
    let error = member
        .settle(|frame| {
            match frame.tag {
                backend::COMMAND_COMPLETE_TAG => *committed |= frame.body == b"COMMIT\0",
                backend::DATA_ROW_TAG => rows.push(wire::row(frame.body)?.1.to_vec()),
                _ => {}
            }
            Ok(())
        })
        .await?;
    match error {
        None if *committed => Ok(member.proven(&rows, tainted)),
        _ if *committed => Ok(false),
        Some(error) if error.fatal => Err(Trouble::Broken(Failure::Unavailable)),
        // Deferred constraints speak here.
        Some(error) => Err(Trouble::Failed(of_sqlstate(error, true, false))),
        None => Err(Trouble::Failed(Failure::Refused(*b"25P02"))),
    }
}

/// Stores the outcome and commits. `Failed`: nothing was committed. `Broken`: unknown.
async fn commit(member: &mut Member, idempotency: Option<&Idempotency>, outcome: &Outcome) -> Result<(), Trouble> {
    let storing = idempotency.is_some();
    if let Some(idempotency) = idempotency {
        member.parse("", &idempotency::insert(&idempotency.table), &[TEXT, TEXT, TEXT, TEXT, INT8, 16, 23, 17])?;
        member.run("", &idempotency::values(idempotency, outcome))?;
        member.parse("", "COMMIT", &[])?;
        member.run("", &[])?;
        member.sync();
    } else {
        member.query("COMMIT")?;
    }
    let (mut committed, mut inserted) = (false, !storing);
    let error = member
        .settle(|frame| {
            if frame.tag == backend::COMMAND_COMPLETE_TAG {
                inserted |= frame.body == b"INSERT 0 1\0";
                committed |= frame.body == b"COMMIT\0";
            }
            Ok(())
        })
        .await?;
    match error {
        // Said before the COMMIT took effect, but the server's end may have come in between: unknown.
        Some(error) if error.fatal => Err(Trouble::Broken(Failure::Unavailable)),
        // Another process stored the key first (its lock is ours, so under a stricter isolation level only).
        Some(error) if !inserted && &error.code == b"23505" => Err(Trouble::Failed(Failure::IdempotencyRunning)),
        // Deferred constraints speak here.
        Some(error) => Err(Trouble::Failed(of_sqlstate(error, true, false))),
        None if committed => Ok(()),
        None => Err(Trouble::Failed(Failure::Refused(*b"25P02"))),
    }
}

/// Sends the rows in pieces. False: they are not whole rows of so many columns.
pub(in crate::engine) async fn tell(events: &Sender<Event>, outcome: Outcome, columns: usize) -> bool {
    let mut rest = &outcome.rows[..];
    let (mut count, mut told, mut piece) = (0_u32, 0_u32, Vec::new());
    while told + count < outcome.count {
        let mut used = 0;
        let values = wire::values(rest).take(columns).inspect(|value| used += 4 + value.map_or(0, <[u8]>::len)).count();
        let Some((row, after)) = rest.split_at_checked(used).filter(|_| values == columns) else { return false };
        piece.extend_from_slice(row);
        rest = after;
        count += 1;
        if piece.len() >= CHUNK || told + count == outcome.count {
            told += count;
            let rows = Event::Rows { count: std::mem::take(&mut count), bytes: std::mem::take(&mut piece) };
            // A caller who left does not change what was committed.
            _ = events.send(rows).await;
        }
    }
    rest.is_empty()
}
