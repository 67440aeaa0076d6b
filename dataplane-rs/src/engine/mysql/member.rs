//! One session of the exclusive lane: what the server still owes, which statements it has prepared, whether it is fit for another
//! borrower. One command at a time. IO: its own connection, and a second one to cancel. May reject: `Broken`.
use super::connect::{self, Connection};
use super::target::{Target, proof};
use super::wire::{self, Definition, PrepareOk, Reader, ServerError, WireError};
use crate::engine::pool::Permit;
use crate::engine::postgres::statements::Statements;
use bytes::{Buf, BytesMut};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

/// One packet at most, bytes: a longer row breaks the connection instead of the memory.
const MOST: usize = 64 << 20;
/// Read at once.
const READ: usize = 32 << 10;
/// An idle session gives back the memory of a long row.
const KEPT: usize = 256 << 10;
/// A statement that was cancelled must have ended within this, else its connection is closed.
const RECOVER: Duration = Duration::from_secs(5);
/// Statements of ours that are kept prepared.
const OWN: usize = 16;
/// Flags of a status.
const IN_TRANSACTION: u16 = 1;
const MORE_RESULTS: u16 = 8;

/// The connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Closed or failed.
    #[error("the connection broke")]
    Lost,
    /// Unreadable.
    #[error("not MySQL's protocol")]
    Protocol,
    /// A row of more than 64 MiB.
    #[error("a row is too long")]
    TooLong,
    /// What we wanted to send does not fit its packet.
    #[error("a packet cannot be written")]
    Unwritable,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Lost
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Malformed => Self::Protocol,
            WireError::TooLong => Self::TooLong,
        }
    }
}

/// What the server owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Idle,
    /// OK, an error, or how many columns.
    Head,
    /// So many column definitions and their end.
    Definitions(u64),
    /// Rows and their end.
    Rows,
    /// The answer to a Prepare.
    Prepare,
    /// Packets about places, then about columns, each with their end.
    Described(u32, u32),
}

/// One packet, by what it says.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Nothing of interest.
    Nothing,
    /// A result of so many columns begins.
    Columns(u64),
    /// One of them.
    Definition(Definition<'a>),
    /// A row.
    Row(&'a [u8]),
    /// A statement is prepared; its columns follow.
    Prepared(PrepareOk),
    /// The end; rows changed.
    Done(u64),
    /// The end.
    Failed(ServerError),
}

/// Reads a packet that was owed: what it says, what is owed then, and the status if it has one.
pub fn read(phase: Phase, body: &[u8]) -> Result<(Step<'_>, Phase, Option<u16>), WireError> {
    let ended = |body: &[u8]| -> Result<Option<u16>, WireError> {
        match body {
            [0xFE, _, _, low, high, ..] => Ok(Some(u16::from_le_bytes([*low, *high]))),
            [0xFE, ..] => Ok(None),
            _ => Err(WireError::Malformed),
        }
    };
    let first = body.first().copied().ok_or(WireError::Malformed)?;
    if first == 0xFF {
        return match phase {
            Phase::Head | Phase::Rows | Phase::Prepare => Ok((Step::Failed(wire::server_error(body)?), Phase::Idle, None)),
            _ => Err(WireError::Malformed),
        };
    }
    Ok(match phase {
        Phase::Idle => return Err(WireError::Malformed),
        Phase::Head if first == 0 => {
            let mut reader = Reader(body.get(1..).unwrap_or_default());
            let affected = reader.length()?;
            reader.length()?;
            let status = u16::from_le_bytes(reader.array()?);
            (Step::Done(affected), Phase::Idle, Some(status))
        }
        Phase::Head => {
            let mut reader = Reader(body);
            let columns = reader.length()?;
            if columns == 0 || columns > 4096 || !reader.0.is_empty() {
                return Err(WireError::Malformed);
            }
            (Step::Columns(columns), Phase::Definitions(columns), None)
        }
        Phase::Definitions(0) => (Step::Nothing, Phase::Rows, ended(body)?),
        Phase::Definitions(left) => (Step::Definition(Definition::read(body)?), Phase::Definitions(left - 1), None),
        Phase::Rows if wire::is_end(body) => (Step::Done(0), Phase::Idle, ended(body)?),
        Phase::Rows => (Step::Row(body), Phase::Rows, None),
        Phase::Prepare => {
            let prepared = wire::prepare_ok(body)?;
            let packets = |count: u16| if count == 0 { 0 } else { u32::from(count) + 1 };
            let (places, columns) = (packets(prepared.places), packets(prepared.columns));
            let next = if places + columns == 0 { Phase::Idle } else { Phase::Described(places, columns) };
            (Step::Prepared(prepared), next, None)
        }
        Phase::Described(1, 0) | Phase::Described(0, 1) => (Step::Nothing, Phase::Idle, ended(body)?),
        Phase::Described(0, 0) => return Err(WireError::Malformed),
        Phase::Described(0, columns) => (Step::Definition(Definition::read(body)?), Phase::Described(0, columns - 1), None),
        Phase::Described(places, columns) => (Step::Nothing, Phase::Described(places - 1, columns), None),
    })
}

/// One pooled session.
#[derive(Debug)]
pub struct Member {
    connection: Connection,
    target: Arc<Target>,
    /// Names of its prepared statements.
    pub statements: Statements,
    /// By name: the server's number.
    pub numbers: HashMap<u32, u32>,
    own: HashMap<String, u32>,
    out: BytesMut,
    phase: Phase,
    status: u16,
    /// Something changed that we cannot undo.
    tainted: bool,
    opened: Instant,
    retire: Instant,
    idle_since: Instant,
    _permit: Permit,
}

impl Member {
    /// Takes a new connection; `life` is how long it may serve.
    pub fn new(connection: Connection, target: Arc<Target>, permit: Permit, life: Duration) -> Self {
        let now = Instant::now();
        Self {
            connection,
            target,
            statements: Statements::default(),
            numbers: HashMap::new(),
            own: HashMap::new(),
            out: BytesMut::new(),
            phase: Phase::Idle,
            status: 0,
            tainted: false,
            opened: now,
            retire: now + life,
            idle_since: now,
            _permit: permit,
        }
    }

    /// What it was opened with.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Begins a command. `write` appends its body.
    pub fn command(&mut self, command: u8, write: impl FnOnce(&mut BytesMut) -> Result<(), Broken>) -> Result<(), Broken> {
        if self.phase != Phase::Idle {
            return Err(Broken::Protocol);
        }
        let start = wire::open(&mut self.out);
        self.out.extend_from_slice(&[command]);
        if let Err(error) = write(&mut self.out) {
            self.out.truncate(start - 4);
            return Err(error);
        }
        if !wire::close(&mut self.out, start, 0) {
            return Err(Broken::Unwritable);
        }
        self.phase = match command {
            wire::COM_STMT_PREPARE => Phase::Prepare,
            wire::COM_STMT_CLOSE => Phase::Idle,
            _ => Phase::Head,
        };
        Ok(())
    }

    /// Begins a statement of ours by the text protocol.
    pub fn query(&mut self, sql: &str) -> Result<(), Broken> {
        self.command(wire::COM_QUERY, |out| {
            out.extend_from_slice(sql.as_bytes());
            Ok(())
        })
    }

    /// Forgets a prepared statement.
    pub fn close(&mut self, name: u32) -> Result<(), Broken> {
        match self.numbers.remove(&name) {
            Some(number) => self.command(wire::COM_STMT_CLOSE, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }),
            None => Ok(()),
        }
    }

    /// Sends what is in `out`. Cancel safe.
    pub async fn flush(&mut self) -> Result<(), Broken> {
        Ok(self.connection.transport.write_all(&mut self.out).await?)
    }

    /// What the server owes.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Takes the next packet, if it is here whole, and shows it.
    #[inline]
    pub fn step<T>(&mut self, each: impl FnOnce(Step<'_>) -> T) -> Result<Option<T>, Broken> {
        let Some(packet) = wire::packet(&self.connection.input, MOST)? else { return Ok(None) };
        let (step, next, status) = read(self.phase, &packet.body)?;
        let told = each(step);
        let size = packet.size;
        self.connection.input.advance(size);
        if let Some(status) = status {
            self.status = status;
            if status & MORE_RESULTS != 0 {
                return Err(Broken::Protocol);
            }
        }
        self.phase = next;
        Ok(Some(told))
    }

    /// Takes what has arrived without waiting; false: nothing has.
    pub fn poll(&mut self) -> Result<bool, Broken> {
        match self.connection.transport.try_read_some(&mut self.connection.input, READ) {
            Ok(0) => Err(Broken::Lost),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for more. Cancel safe.
    pub async fn fill(&mut self) -> Result<(), Broken> {
        match self.connection.transport.read_some(&mut self.connection.input, READ).await? {
            0 => Err(Broken::Lost),
            _ => Ok(()),
        }
    }

    /// Sends, and shows all that is owed.
    pub async fn settle(&mut self, mut each: impl FnMut(Step<'_>) -> Result<(), Broken>) -> Result<(), Broken> {
        self.flush().await?;
        while self.phase != Phase::Idle {
            match self.step(&mut each)? {
                Some(told) => told?,
                None => {
                    consume_budget().await;
                    self.fill().await?;
                }
            }
        }
        Ok(())
    }

    /// Runs a statement of ours; the packets of its rows, or the server's no.
    pub async fn run(&mut self, sql: &str) -> Result<Result<Vec<Vec<u8>>, ServerError>, Broken> {
        self.query(sql)?;
        let (mut rows, mut error) = (Vec::new(), None);
        self.settle(|step| {
            match step {
                Step::Row(body) => rows.push(body.to_vec()),
                Step::Failed(failed) => error = Some(failed),
                _ => {}
            }
            Ok(())
        })
        .await?;
        Ok(error.map_or(Ok(rows), Err))
    }

    /// Prepares a statement of ours, once.
    pub async fn own(&mut self, sql: &str) -> Result<Result<u32, ServerError>, Broken> {
        if let Some(number) = self.own.get(sql) {
            return Ok(Ok(*number));
        }
        if self.own.len() >= OWN {
            self.tainted = true;
        }
        self.command(wire::COM_STMT_PREPARE, |out| {
            out.extend_from_slice(sql.as_bytes());
            Ok(())
        })?;
        let mut answer = Err(ServerError { number: 0, state: *b"HY000" });
        self.settle(|step| {
            match step {
                Step::Prepared(prepared) => answer = Ok(prepared.statement),
                Step::Failed(failed) => answer = Err(failed),
                _ => {}
            }
            Ok(())
        })
        .await?;
        if let Ok(number) = answer {
            self.own.insert(sql.to_owned(), number);
        }
        Ok(answer)
    }

    /// Not fit for anybody else.
    pub fn taint(&mut self) {
        self.tainted = true;
    }

    /// Whether another borrower may have it.
    pub fn clean(&self, now: Instant) -> bool {
        self.phase == Phase::Idle && self.out.is_empty() && self.status & IN_TRANSACTION == 0 && !self.tainted && now < self.retire
    }

    /// When it was opened.
    pub const fn opened(&self) -> Instant {
        self.opened
    }

    /// Puts it to rest.
    pub fn rest(&mut self, now: Instant) {
        self.idle_since = now;
        if self.connection.input.capacity() > KEPT {
            self.connection.input = BytesMut::from(&self.connection.input[..]);
        }
        if self.out.capacity() > KEPT {
            self.out = BytesMut::new();
        }
    }

    /// Since when it has been idle.
    pub const fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// Of the files it was opened with.
    pub const fn generation(&self) -> u64 {
        self.connection.generation
    }

    /// Whether an idle session still lives, without waiting: whatever a server says on its own makes it unfit.
    pub fn alive(&mut self, now: Instant) -> bool {
        self.clean(now) && matches!(self.poll(), Ok(false)) && self.connection.input.is_empty()
    }

    /// Stops what it does and makes it fit again: killed on a second connection, read to the end, rolled back, proved. None: it could
    /// not be saved and is closed.
    pub async fn recover(mut self) -> Option<Self> {
        let deadline = Instant::now() + RECOVER;
        // What was not sent whole cannot be taken back.
        if self.phase != Phase::Idle || !self.out.is_empty() {
            let target = Arc::clone(&self.target);
            let (address, mark) = (self.connection.address.clone(), self.connection.mark.clone());
            let drained = async { Ok(timeout_at(deadline, self.settle(|_| Ok(()))).await) };
            // What could not be stopped is not waited for.
            let ((), drained) = tokio::try_join!(connect::kill(&target, &address, &mark, deadline), drained).ok()?;
            drained.ok()?.ok()?;
        }
        self.restore().await.then_some(self)
    }

    /// Ends what may be open, and proves that the session is as it was. A late kill hits one of these statements, not the next
    /// borrower's. False: close it.
    pub async fn restore(&mut self) -> bool {
        let deadline = Instant::now() + RECOVER;
        timeout_at(deadline, self.restored()).await.is_ok_and(|restored| restored == Ok(true)) && !self.tainted
    }

    async fn restored(&mut self) -> Result<bool, Broken> {
        // All locks, and its own mark again.
        let locks = format!("DO RELEASE_ALL_LOCKS(), {}", connect::taking(&self.connection.mark));
        for sql in ["ROLLBACK", &locks] {
            let mut ended = false;
            for _ in 0..3 {
                ended = match self.run(sql).await? {
                    Ok(_) => true,
                    // An old server has no such function; some have no such locks.
                    Err(ServerError { number: 1235 | 1305, .. }) => true,
                    Err(ServerError { number: 1317, .. }) => false,
                    Err(_) => return Ok(false),
                };
                if ended {
                    break;
                }
            }
            if !ended {
                return Ok(false);
            }
        }
        let proof = self.run(proof(self.connection.mariadb)).await?;
        Ok(proof.is_ok_and(|rows| rows == [b"\x011\x011".to_vec()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Whatever a server sends, reading it ends or fails.
        #[test]
        fn packets_never_panic(bodies: Vec<Vec<u8>>, prepare: bool) {
            let mut phase = if prepare { Phase::Prepare } else { Phase::Head };
            for body in &bodies {
                match read(phase, body) {
                    Ok((_, next, _)) => phase = next,
                    Err(_) => break,
                }
            }
        }
    }
}
