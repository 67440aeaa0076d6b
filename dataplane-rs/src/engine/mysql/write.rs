//! A write: its own read-write transaction, with its Idempotency-Key and outcome in the same one.
//!
//! As on PostgreSQL: rows are shown only after the COMMIT; until it is sent a caller who leaves, a deadline or any failure rolls
//! everything back; once it is sent its outcome is awaited and told. If the connection breaks between the two, the outcome is unknown:
//! `Unavailable`, and a repeat with the same key finds the truth. Nothing that may have run is ever run again by us.
//! IO: through `Member`. May reject: as `Failure` says.
use super::exclusive::{Lent, Shape, Shared, Trouble, borrow, execute, forget, prepare, trouble};
use super::failure::of_error;
use super::member::{Member, Step};
use super::value;
use super::wire::ServerError;
use crate::engine::postgres::idempotency::{self, Outcome, RESULT_LIMIT_BYTES};
use crate::engine::postgres::{Stay, leave, tell};
use crate::engine::{Ask, Event, Failure, Idempotency};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

/// A COMMIT under way is awaited this long, whatever the caller's deadline: its outcome must be known.
const COMMIT: Duration = Duration::from_secs(5);
/// A caller takes committed rows within this, beyond its deadline.
const TAKE: Duration = Duration::from_secs(30);
/// An answer waits this long for its rollback.
const UNLOCK: Duration = Duration::from_secs(1);

/// Places of our own statements (`MysqlPlace`).
const BOOLEAN: u32 = 1;
const INTEGER: u32 = 8;
const BYTES: u32 = 252;
const TEXT: u32 = 253;

pub(super) async fn answer(pool: &Arc<Shared>, ask: &Ask, events: &Sender<Event>, stay: &mut Stay) -> Result<Event, Failure> {
    let deadline = Instant::from_std(ask.deadline);
    let idempotency = ask.write.as_ref().and_then(|write| write.idempotency.as_ref());
    let (mut replaced, mut reprepared) = (false, false);
    let (outcome, repeated) = loop {
        let mut lent = borrow(pool, events, deadline).await?;
        stay.begin();
        let member = lent.member()?;
        // The transaction is open and the key is ours before anything of the write is sent: up to here another connection will do.
        let begun = tokio::select! {
            biased;
            begun = begin(member, idempotency) => begun,
            failure = leave(events, deadline) => Err(Trouble::Stop(failure)),
        };
        match begun {
            Ok(None) => {}
            Ok(Some(outcome)) => {
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
            ran = run(member, ask) => ran,
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
                forget(member, ask)?;
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
        match timeout(COMMIT, commit(member, idempotency, &outcome)).await {
            Ok(Ok(())) => {
                match idempotency {
                    // The key's lock is free before anything is told: who repeats the call at once must not find it still running.
                    Some(_) => lent.recovered(UNLOCK).await,
                    None => lent.restore(),
                }
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
    match timeout(TAKE, tell(events, outcome, ask.columns.len())).await {
        Ok(true) => Ok(done),
        Ok(false) => Err(Failure::Protocol),
        Err(_) => Err(Failure::Timeout),
    }
}

async fn roll_back(lent: Lent, idempotency: Option<&Idempotency>) {
    match idempotency {
        Some(_) => lent.recovered(UNLOCK).await,
        None => lent.recover(),
    }
}

/// GET_LOCK's name: twin of `tailrace_contract.idempotency.lock_name`.
pub fn lock_name(idempotency: &Idempotency) -> String {
    let digest = Sha256::digest(format!("tailrace idempotency v1\n{}\n{}", idempotency.caller, idempotency.key));
    digest.iter().take(16).fold("tailrace-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// What a no means before the write itself has begun.
fn refused(error: ServerError) -> Trouble {
    match trouble(error, true, false) {
        Trouble::Unprepared => Trouble::Broken(Failure::Unavailable),
        other => other,
    }
}

/// Opens the transaction; with a key also takes its lock and looks it up. Some: the stored outcome, nothing is to run.
async fn begin(member: &mut Member, idempotency: Option<&Idempotency>) -> Result<Option<Outcome>, Trouble> {
    member.run("START TRANSACTION READ WRITE").await?.map_err(refused)?;
    let Some(idempotency) = idempotency else { return Ok(None) };
    // The name is hex: nothing in it needs an escape.
    let locked = member.run(&format!("SELECT GET_LOCK('{}', 0)", lock_name(idempotency))).await?.map_err(refused)?;
    if locked != [b"\x011".to_vec()] {
        return Err(Trouble::Failed(Failure::IdempotencyRunning));
    }
    let sql = format!("SELECT arguments, affected, more, row_count, result FROM {} WHERE caller = ? AND `key` = ?", idempotency.table);
    let number = member.own(&sql).await?.map_err(refused)?;
    let mut key = Vec::new();
    idempotency::put(&mut key, idempotency.caller.as_bytes());
    idempotency::put(&mut key, idempotency.key.as_bytes());
    execute(member, number, &[TEXT, TEXT], &key)?;
    let (mut kinds, mut rows, mut error, mut unreadable) = (Vec::new(), Vec::new(), None, false);
    member
        .settle(|step| {
            match step {
                Step::Definition(definition) => kinds.push(value::Kind::of(&definition)),
                Step::Row(body) => {
                    let mut row = Vec::new();
                    unreadable |= value::row(body, &kinds, &mut row).is_err();
                    rows.push(row);
                }
                Step::Failed(failed) => error = Some(failed),
                _ => {}
            }
            Ok(())
        })
        .await?;
    if let Some(error) = error {
        return Err(refused(error));
    }
    match rows.first() {
        _ if unreadable => Err(Trouble::Failed(Failure::Protocol)),
        None => Ok(None),
        Some(row) => match idempotency::stored(row) {
            Some((arguments, _)) if arguments != idempotency.arguments => Err(Trouble::Failed(Failure::IdempotencyMismatch)),
            Some((_, outcome)) => Ok(Some(outcome)),
            None => Err(Trouble::Failed(Failure::Protocol)),
        },
    }
}

/// Runs the statement to its end (a limit cannot stop a write half-way) and keeps at most `limit` of its rows.
async fn run(member: &mut Member, ask: &Ask) -> Result<Outcome, Trouble> {
    let (limit, timeout) = (ask.limit.unwrap_or(u32::MAX), member.target().settings.statement_timeout());
    let number = prepare(member, ask).await?;
    let began = Instant::now();
    execute(member, number, &ask.statement.oids, &ask.values)?;
    let (mut outcome, mut shape, mut error, mut returned) = (Outcome::default(), Shape::default(), None, 0_u64);
    let (mut wrong, mut too_long, mut result) = (None, false, false);
    member
        .settle(|step| {
            match step {
                Step::Columns(_) => result = true,
                Step::Definition(definition) => shape.take(&definition, ask),
                Step::Row(body) => {
                    if returned == 0 {
                        wrong = shape.wrong(ask);
                    }
                    returned += 1;
                    if wrong.is_some() {
                    } else if outcome.count >= limit {
                        outcome.more = true;
                    } else if outcome.rows.len() + body.len() > RESULT_LIMIT_BYTES {
                        too_long = true;
                    } else if value::row(body, &shape.kinds, &mut outcome.rows).is_ok() {
                        outcome.count += 1;
                    } else {
                        wrong = Some(Failure::Protocol);
                    }
                }
                Step::Done(affected) => outcome.affected = affected,
                Step::Failed(failed) => error = Some(failed),
                _ => {}
            }
            Ok(())
        })
        .await?;
    if let Some(error) = error {
        return Err(trouble(error, true, began.elapsed() >= timeout));
    }
    if let Some(failure) = wrong.or_else(|| (result || !ask.columns.is_empty()).then(|| shape.wrong(ask)).flatten()) {
        return Err(Trouble::Failed(failure));
    }
    if too_long {
        return Err(Trouble::Failed(Failure::Refused(*b"54000")));
    }
    // RETURNING: it changed as many as it returned.
    if result {
        outcome.affected = returned;
    }
    Ok(outcome)
}

/// Stores the outcome and commits. `Failed`: nothing was committed. `Broken`: unknown.
async fn commit(member: &mut Member, idempotency: Option<&Idempotency>, outcome: &Outcome) -> Result<(), Trouble> {
    if let Some(idempotency) = idempotency {
        let sql = format!(
            "INSERT INTO {} (caller, `key`, query, arguments, affected, more, row_count, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            idempotency.table
        );
        let number = member.own(&sql).await?.map_err(refused)?;
        let places = [TEXT, TEXT, TEXT, TEXT, INTEGER, BOOLEAN, INTEGER, BYTES];
        execute(member, number, &places, &idempotency::values(idempotency, outcome))?;
        let mut error = None;
        member
            .settle(|step| {
                if let Step::Failed(failed) = step {
                    error = Some(failed);
                }
                Ok(())
            })
            .await?;
        match error {
            Some(ServerError { number: 1062, .. }) => return Err(Trouble::Failed(Failure::IdempotencyRunning)),
            Some(error) => return Err(refused(error)),
            None => {}
        }
    }
    match member.run("COMMIT").await? {
        Ok(_) => Ok(()),
        // Said before it took effect or not: unknown if the connection ends with it.
        Err(error) if super::failure::is_fatal(error) => Err(Trouble::Broken(Failure::Unavailable)),
        Err(error) => Err(Trouble::Failed(of_error(error, true, false))),
    }
}
