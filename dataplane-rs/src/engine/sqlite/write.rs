//! A write: `BEGIN IMMEDIATE` on the one writer thread, with its Idempotency-Key and outcome in the same transaction (twin of the
//! gateway's `serve/sqlite/idempotent.py`; table and order by `tailrace_contract.idempotency`). Rows are shown after the COMMIT.
//! Until then a caller who leaves, a deadline or any failure rolls everything back. IO: the database file.
use super::session::{Current, Session, bind, failure_of, fits, over, put_row, send, set_current};
use crate::engine::{Ask, Event, Failure, Idempotency};
use rusqlite::{Connection, OptionalExtension, params};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;

/// A write whose kept rows are longer is rolled back (contract: RESULT_LIMIT_BYTES).
const RESULT_LIMIT: usize = 16 << 20;
/// A COMMIT is tried this long, whatever the caller's deadline.
const COMMIT: Duration = Duration::from_secs(5);
/// A caller takes committed rows within this.
const TAKE: Duration = Duration::from_secs(30);

/// What a write did.
struct Outcome {
    affected: u64,
    more: bool,
    count: u32,
    rows: Vec<u8>,
    repeated: bool,
}

/// Runs the write and sends its rows.
pub(super) fn answer(session: &mut Session, ask: &Ask, events: &Sender<Event>) -> Result<Event, Failure> {
    let began = Instant::now();
    let result = session.connection().and_then(|connection| transact(connection, ask));
    let result = match result {
        Err(failure) => {
            let rolled_back = session.connection().is_ok_and(|c| c.is_autocommit() || c.execute_batch("ROLLBACK").is_ok());
            if !rolled_back || failure == Failure::Unavailable {
                session.close();
            }
            Err(failure)
        }
        done => done,
    };
    let Outcome { affected, more, count, rows, repeated } = result?;
    let database_us = began.elapsed().as_micros() as u64;
    if count > 0 {
        // Committed: nothing but a caller who takes nothing for long keeps it from being told.
        set_current(Some(Current { deadline: Instant::now() + TAKE, events: None }));
        match send(events, Event::Rows { count, bytes: rows }) {
            Ok(()) | Err(Failure::Cancelled) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(Event::Done { affected, more, database_us, repeated })
}

fn transact(connection: &Connection, ask: &Ask) -> Result<Outcome, Failure> {
    let failed = |error: rusqlite::Error| failure_of(&error, true);
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    let key = ask.write.as_ref().and_then(|write| write.idempotency.as_ref());
    if let Some(key) = key
        && let Some(first) = claim(connection, key)?
    {
        connection.execute_batch("ROLLBACK").map_err(failed)?;
        return Ok(first);
    }
    let outcome = run(connection, ask)?;
    if let Some(key) = key {
        keep(connection, key, &outcome)?;
    }
    // The last moment at which leaving undoes everything.
    if let Some(failure) = over() {
        return Err(failure);
    }
    set_current(Some(Current { deadline: Instant::now() + COMMIT, events: None }));
    connection.execute_batch("COMMIT").map_err(failed)?;
    Ok(outcome)
}

/// The first answer when there is one.
fn claim(connection: &Connection, key: &Idempotency) -> Result<Option<Outcome>, Failure> {
    let failed = |error: rusqlite::Error| failure_of(&error, true);
    let sql = format!("SELECT arguments, affected, more, row_count, result FROM {} WHERE caller = ?1 AND key = ?2", key.table);
    let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
    let stored = statement.query_row(params![&*key.caller, key.key], |row| {
        let rows: Vec<u8> = row.get(4)?;
        let outcome = Outcome { affected: row.get::<_, i64>(1)? as u64, more: row.get(2)?, count: row.get(3)?, rows, repeated: true };
        Ok((row.get::<_, String>(0)?, outcome))
    });
    match stored.optional().map_err(|error| match error {
        rusqlite::Error::SqliteFailure(..) => failed(error),
        // Another's table, or another's row in it.
        _ => Failure::Protocol,
    })? {
        None => Ok(None),
        Some((arguments, _)) if arguments != key.arguments => Err(Failure::IdempotencyMismatch),
        Some((_, outcome)) => Ok(Some(outcome)),
    }
}

fn run(connection: &Connection, ask: &Ask) -> Result<Outcome, Failure> {
    let failed = |error: rusqlite::Error| failure_of(&error, true);
    let mut statement = connection.prepare_cached(&ask.statement.sql).map_err(failed)?;
    bind(&mut statement, &ask.values)?;
    let limit = ask.limit.unwrap_or(u32::MAX);
    let mut outcome = Outcome { affected: 0, more: false, count: 0, rows: Vec::new(), repeated: false };
    {
        let mut rows = statement.raw_query();
        // All of it: a limit can't stop a write half-way.
        while let Some(row) = rows.next().map_err(failed)? {
            if outcome.count == 0 && !fits(row.as_ref(), &ask.columns) {
                return Err(Failure::Stale);
            }
            if outcome.count >= limit {
                outcome.more = true;
                continue;
            }
            put_row(&mut outcome.rows, row, ask.columns.len())?;
            outcome.count += 1;
            if outcome.rows.len() > RESULT_LIMIT {
                return Err(Failure::Refused(*b"00018"));
            }
        }
    }
    if outcome.count == 0 && !fits(&statement, &ask.columns) {
        return Err(Failure::Stale);
    }
    drop(statement);
    outcome.affected = connection.changes();
    Ok(outcome)
}

fn keep(connection: &Connection, key: &Idempotency, outcome: &Outcome) -> Result<(), Failure> {
    let sql = format!(
        "INSERT INTO {} (caller, key, query, arguments, affected, more, row_count, result) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        key.table
    );
    let kept = connection.prepare_cached(&sql).and_then(|mut statement| {
        let affected = outcome.affected as i64;
        let values = params![&*key.caller, key.key, &*key.query, key.arguments, affected, outcome.more, outcome.count, outcome.rows];
        statement.execute(values)
    });
    match kept {
        Ok(_) => Ok(()),
        Err(error) => Err(match failure_of(&error, true) {
            Failure::Constraint => Failure::IdempotencyRunning,
            failure => failure,
        }),
    }
}
