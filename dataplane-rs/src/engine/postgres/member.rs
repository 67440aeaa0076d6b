//! One session of the exclusive lane: what is to be sent, what the server still owes, and whether it is fit for another borrower.
//! IO: its own connection, and a second one to cancel. May reject: broken connections and unreadable messages (`Broken`).
use super::connect::{self, Connection};
use super::session::{PINS, RESTORE, Standing};
use super::statements::Statements;
use super::target::Target;
use super::wire::{self, Frame, ServerError, WireError};
use crate::engine::pool::Permit;
use crate::plan::snapshot::Pooler;
use bytes::{Buf, BufMut, BytesMut};
use postgres_protocol::message::{backend, frontend};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

/// One message at most, bytes: a longer row breaks the connection instead of the memory.
const MOST: usize = 64 << 20;
/// Read at once.
const READ: usize = 32 << 10;
/// An idle session gives back the memory of a long row.
const KEPT: usize = 256 << 10;
/// A statement that was cancelled must have ended within this, else its connection is closed.
const RECOVER: Duration = Duration::from_secs(5);

/// The connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Closed or failed, maybe with the server's last word.
    #[error("the connection broke")]
    Lost,
    /// Unreadable.
    #[error("not PostgreSQL's protocol")]
    Protocol,
    /// A row of more than 64 MiB.
    #[error("a row is too long")]
    TooLong,
    /// What we wanted to send does not fit its message.
    #[error("a message cannot be written")]
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

/// One pooled session.
#[derive(Debug)]
pub struct Member {
    connection: Connection,
    target: Arc<Target>,
    /// Its prepared statements.
    pub statements: Statements,
    /// Whether BEGIN, ROLLBACK and the like are prepared under their own names.
    pub own_prepared: bool,
    /// Whether a write's BEGIN and COMMIT are.
    pub write_prepared: bool,
    /// Whether the statements of `prove` are.
    proof_prepared: bool,
    out: BytesMut,
    /// ReadyForQuery that the server owes.
    owed: u32,
    /// Of the last ReadyForQuery.
    status: u8,
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
            own_prepared: false,
            write_prepared: false,
            proof_prepared: false,
            out: BytesMut::new(),
            owed: 0,
            status: b'I',
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

    /// Behind a transaction pooler: the session isn't ours.
    pub fn pooled(&self) -> bool {
        self.target.pooler == Pooler::Transaction
    }

    /// Ends a group of extended-protocol messages.
    pub fn sync(&mut self) {
        frontend::sync(&mut self.out);
        self.owed += 1;
    }

    /// A simple query of ours.
    pub fn query(&mut self, sql: &str) -> Result<(), Broken> {
        frontend::query(sql, &mut self.out).map_err(|_| Broken::Unwritable)?;
        self.owed += 1;
        Ok(())
    }

    /// Parse.
    pub fn parse(&mut self, name: &str, sql: &str, oids: &[u32]) -> Result<(), Broken> {
        frontend::parse(name, sql, oids.iter().copied(), &mut self.out).map_err(|_| Broken::Unwritable)
    }

    /// Bind of values in DataRow form (text) to the unnamed portal, results as text.
    pub fn bind(&mut self, name: &str, values: &[u8]) -> Result<(), Broken> {
        let mut used = 0;
        let places = wire::values(values).inspect(|value| used += 4 + value.map_or(0, <[u8]>::len)).count();
        let (Ok(places), Ok(length)) = (u16::try_from(places), i32::try_from(4 + 1 + name.len() + 1 + 2 + 2 + values.len() + 2)) else {
            return Err(Broken::Unwritable);
        };
        if used != values.len() || name.contains('\0') {
            return Err(Broken::Unwritable);
        }
        self.out.put_u8(b'B');
        self.out.put_i32(length);
        self.out.put_u8(0);
        self.out.put_slice(name.as_bytes());
        self.out.put_u8(0);
        self.out.put_u16(0);
        self.out.put_u16(places);
        self.out.put_slice(values);
        self.out.put_u16(0);
        Ok(())
    }

    /// Describe of the unnamed portal.
    pub fn describe(&mut self) -> Result<(), Broken> {
        frontend::describe(b'P', "", &mut self.out).map_err(|_| Broken::Unwritable)
    }

    /// Execute of the unnamed portal; 0: all rows.
    pub fn execute(&mut self, most: u32) -> Result<(), Broken> {
        let most = i32::try_from(most).map_err(|_| Broken::Unwritable)?;
        frontend::execute("", most, &mut self.out).map_err(|_| Broken::Unwritable)
    }

    /// Close of a prepared statement.
    pub fn close(&mut self, name: &str) -> Result<(), Broken> {
        frontend::close(b'S', name, &mut self.out).map_err(|_| Broken::Unwritable)
    }

    /// Bind, Execute of a statement of ours.
    pub fn run(&mut self, name: &str, values: &[u8]) -> Result<(), Broken> {
        self.bind(name, values)?;
        self.execute(0)
    }

    /// Sends what is in `out`. Cancel safe: what was not sent remains.
    pub async fn flush(&mut self) -> Result<(), Broken> {
        Ok(self.connection.transport.write_all(&mut self.out).await?)
    }

    /// Whether the server still owes something.
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// The next message that says something, if it is here whole. Take it away with `take`.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, Broken> {
        loop {
            let (tag, size) = match wire::frame(&self.connection.input, MOST)? {
                None => return Ok(None),
                Some(frame) => (frame.tag, frame.size()),
            };
            match tag {
                backend::NOTICE_RESPONSE_TAG | backend::NOTIFICATION_RESPONSE_TAG => {}
                backend::PARAMETER_STATUS_TAG => {
                    let body = self.connection.input.get(5..size).unwrap_or_default();
                    self.tainted |= pinned(wire::parameter(body)?.0);
                }
                _ => return Ok(wire::frame(&self.connection.input, MOST)?),
            }
            self.connection.input.advance(size);
        }
    }

    /// Takes a message of this size away; a ReadyForQuery is counted.
    pub fn take(&mut self, size: usize) {
        if self.connection.input.first() == Some(&backend::READY_FOR_QUERY_TAG) {
            self.status = self.connection.input.get(5).copied().unwrap_or(0);
            self.owed = self.owed.saturating_sub(1);
        }
        self.connection.input.advance(size.min(self.connection.input.len()));
    }

    /// Takes the rows that stand next, whole and each of so many columns, until `into` holds `most` bytes; how many.
    pub fn rows(&mut self, columns: usize, into: &mut Vec<u8>, most: usize) -> Result<u32, Broken> {
        let (mut used, mut count) = (0, 0);
        while into.len() < most {
            let rest = self.connection.input.get(used..).unwrap_or_default();
            let Some(frame) = wire::frame(rest, MOST)?.filter(|frame| frame.tag == backend::DATA_ROW_TAG) else { break };
            let (found, values) = wire::row(frame.body)?;
            if usize::from(found) != columns {
                return Err(Broken::Protocol);
            }
            into.extend_from_slice(values);
            used += frame.size();
            count += 1;
        }
        self.connection.input.advance(used);
        Ok(count)
    }

    /// Takes what has arrived without waiting; false: nothing has.
    pub fn poll(&mut self) -> Result<bool, Broken> {
        match self.connection.transport.try_read_some(&mut self.connection.input, READ) {
            Ok(0) => Err(Broken::Lost),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Broken::Lost),
        }
    }

    /// Waits for more bytes, and lets others have a turn even if a fast server always has some. Cancel safe.
    pub async fn fill(&mut self) -> Result<(), Broken> {
        consume_budget().await;
        match self.connection.transport.read_some(&mut self.connection.input, READ).await? {
            0 => Err(Broken::Lost),
            _ => Ok(()),
        }
    }

    /// Sends `out` and reads until nothing is owed; each message goes to `each`. The first error is returned beside.
    pub async fn settle(&mut self, mut each: impl FnMut(Frame<'_>) -> Result<(), Broken>) -> Result<Option<ServerError>, Broken> {
        self.flush().await?;
        let mut first = None;
        while self.owed > 0 {
            let Some(frame) = self.frame()? else {
                self.fill().await?;
                continue;
            };
            let size = frame.size();
            if frame.tag == backend::ERROR_RESPONSE_TAG {
                let error = wire::server_error(frame.body)?;
                first = first.or(Some(error));
                if error.fatal {
                    self.tainted = true;
                    return Ok(first);
                }
            } else {
                each(frame)?;
            }
            self.take(size);
        }
        Ok(first)
    }

    /// Marks it as unfit for others.
    pub fn taint(&mut self) {
        self.tainted = true;
    }

    /// Whether it may be lent again as it is: nothing owed, no transaction open, nothing changed, young enough.
    pub fn clean(&self, now: Instant) -> bool {
        self.owed == 0 && self.out.is_empty() && self.status == b'I' && !self.tainted && now < self.retire
    }

    /// When it was opened.
    pub const fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.status != b'I'
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
    pub fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// Of the files it was opened with.
    pub fn generation(&self) -> u64 {
        self.connection.generation
    }

    /// Whether an idle session still lives, without waiting: what a server says on its own (57P01, EOF) makes it unfit.
    pub fn alive(&mut self, now: Instant) -> bool {
        if !self.clean(now) {
            return false;
        }
        loop {
            match self.poll() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return false,
            }
        }
        // Notices are skipped, and a change of a pin taints; anything else has no business here.
        matches!(self.frame(), Ok(None)) && self.connection.input.is_empty() && !self.tainted
    }

    /// Stops what it does and makes it fit again: cancelled on a second connection, read to the end, rolled back, restored, and once
    /// around so that no late cancel meets the next borrower. None: it could not be saved and is closed.
    pub async fn recover(mut self) -> Option<Self> {
        let deadline = Instant::now() + RECOVER;
        if self.owed > 0 {
            let (target, key) = (Arc::clone(&self.target), self.connection.cancel.clone());
            let drained = timeout_at(deadline, self.settle(|_| Ok(())));
            let (cancelled, drained) = tokio::join!(connect::cancel(&target, &key, deadline), drained);
            cancelled.ok()?;
            drained.ok()?.ok()?;
        }
        // A stray 57014 may still hit one of these.
        for _ in 0..3 {
            if self.in_transaction() {
                self.query("ROLLBACK").ok()?;
            } else {
                self.sync();
            }
            let error = timeout_at(deadline, self.settle(|_| Ok(()))).await.ok()?.ok()?;
            if error.is_none() && !self.in_transaction() {
                return (self.restore().await && !self.tainted).then_some(self);
            }
            if self.tainted {
                return None;
            }
        }
        None
    }

    /// Undoes what a write's statement may have left in the session, and proves it. False: close it.
    pub async fn restore(&mut self) -> bool {
        if self.pooled() {
            return true;
        }
        let deadline = Instant::now() + RECOVER;
        if self.prove().is_err() {
            return false;
        }
        self.sync();
        let tainted = self.tainted;
        let mut rows = Vec::new();
        let each = |frame: Frame<'_>| {
            if frame.tag == backend::DATA_ROW_TAG {
                rows.push(wire::row(frame.body)?.1.to_vec());
            }
            Ok(())
        };
        match timeout_at(deadline, self.settle(each)).await {
            Ok(Ok(None)) => self.proven(&rows, tainted),
            _ => false,
        }
    }

    /// Something changed that we cannot undo, as far as is known.
    pub const fn tainted(&self) -> bool {
        self.tainted
    }

    /// Appends what resets the session, asks how it stands and sets what `RESET ALL` does not know: three rows, for `proven`.
    pub fn prove(&mut self) -> Result<(), Broken> {
        if !self.proof_prepared {
            self.proof_prepared = true;
            for (name, sql) in restoring() {
                self.parse(&name, sql, &[])?;
            }
            let (ask, enforce) = (self.target.settings.ask(), self.target.settings.enforce(self.connection.access));
            self.parse("standing", &ask, &[])?;
            self.parse("enforce", &enforce, &[])?;
        }
        for (name, _) in restoring() {
            self.run(&name, &[])?;
        }
        self.run("standing", &[])?;
        self.run("enforce", &[])
    }

    /// Whether the rows that `prove` asked for show a session as it was opened. `tainted`: before that; what we reset ourselves is
    /// reported, too, and only what stands in the end counts.
    pub fn proven(&mut self, rows: &[Vec<u8>], tainted: bool) -> bool {
        self.tainted = tainted;
        let standing = rows.get(1).and_then(|row| Standing::read(row));
        let read_only = rows.get(2).and_then(|row| wire::values(row).next()).flatten() == Some(b"on");
        standing.is_some_and(|standing| standing.unpinned.is_none() && self.target.settings.holds(&standing))
            && (read_only || self.connection.access == super::Access::ReadWrite)
    }
}

/// The statements of `RESTORE` with the names that they are prepared under.
fn restoring() -> impl Iterator<Item = (String, &'static str)> {
    RESTORE.iter().enumerate().map(|(n, sql)| (format!("restore{n}"), *sql))
}

fn pinned(name: &[u8]) -> bool {
    let watched = PINS.iter().map(|(name, _)| *name).chain(["default_transaction_read_only", "session_authorization", "role"]);
    watched.into_iter().any(|pin| name.eq_ignore_ascii_case(pin.as_bytes()))
}
