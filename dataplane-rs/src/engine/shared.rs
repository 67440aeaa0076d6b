//! The shared lane's protocol as lanes see it, whatever the engine: calls in, bytes out; bytes in, answers out. No IO of its own.
//! Each engine has a pipeline of its own behind `Protocol`; nothing outside `engine` knows which.
//! May reject: bytes that are not the engine's protocol (`Broken`): the connection is of no further use.
use super::{Failure, mysql, postgres, postgres::transport::Transport};
use crate::plan::coalescing::Coalesced;
use crate::plan::snapshot::{ColumnPlan, StatementPlan};
use crate::plan::tables::Variant;
use bytes::BytesMut;
use std::sync::Arc;
use std::time::Duration;

/// One caller's answer held in memory at most, and one flush's rows that wait for their end, bytes. Queries with such answers don't
/// belong on a shared lane.
pub const LARGEST: usize = 4 << 20;

/// What a lane needs to know of a call.
pub trait Question {
    /// The query's slot and version: what its prepared statement is known by.
    fn identity(&self) -> (u32, u64);
    /// Which of the query's statements.
    fn variant(&self) -> Variant;
    /// Its text.
    fn statement(&self) -> &StatementPlan;
    /// What its Prepare must describe.
    fn columns(&self) -> &[ColumnPlan];
    /// One value per place: i32 length (big endian, -1 NULL), then text.
    fn values(&self) -> &[u8];
    /// Rows after which to stop; 0: all.
    fn limit(&self) -> u32;
    /// How many callers ask it in one statement.
    fn coalesced(&self) -> Option<&Coalesced>;
    /// So many callers share its statement from here on; 1: it has one of its own.
    fn shares(&mut self, callers: u16);
    /// The query's name, for who reads of it.
    fn query_name(&self) -> Arc<str>;
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its callers have their rows.
    Answered,
    /// Likewise, and each one's own statement said the same.
    Equal,
    /// Its callers have the rows of their own statements, which were others: no more batches of this version.
    Unequal,
    /// The server refused it: its callers are asked one by one. True: that has stopped batches of this version.
    Failed(bool),
    /// The lane's own time limit: nobody is asked again.
    Timeout,
    /// It is not described as planned: its callers are asked one by one. No more batches of this version.
    Shape,
}

/// One batch's end.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The query's slot and version.
    pub identity: (u32, u64),
    /// Its name.
    pub query: Arc<str>,
    /// Callers.
    pub callers: usize,
    /// Different questions of theirs.
    pub asked: usize,
    /// How.
    pub how: How,
}

/// What becomes of one call.
#[derive(Debug)]
pub enum Answer<'a> {
    /// All its rows.
    Rows(Rows<'a>),
    /// It alone failed.
    Failed(Failure),
    /// The lane's own time limit: it doesn't belong here; it may be asked on the exclusive lane.
    Slow,
    /// The lane's own time limit, in a batch: asking its callers again here would double what made it slow.
    Timeout,
    /// It was sent and no answer came, through no fault of its own; it may be asked once more.
    Again,
}

/// Where one row stands: the bytes of its columns in DataRow form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Whose it is in a batch: 1 is the first that is asked; 0 where each statement has one asker.
    pub ord: u32,
    /// Its first byte.
    pub start: u32,
    /// Behind its last byte.
    pub end: u32,
}

/// One caller's rows, wherever they stand.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: &'a [u8],
    places: &'a [Place],
}

impl<'a> Rows<'a> {
    /// No row.
    pub const NONE: Rows<'static> = Rows { data: &[], places: &[] };

    /// Rows at these places of `data`.
    pub const fn new(data: &'a [u8], places: &'a [Place]) -> Self {
        Self { data, places }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.places.len() as u64
    }

    /// Bytes of all.
    pub fn size(&self) -> usize {
        self.places.iter().map(|place| place.end.saturating_sub(place.start) as usize).sum()
    }

    /// Each row in DataRow form.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.places.iter().filter_map(move |place| self.data.get(place.start as usize..place.end as usize))
    }
}

/// The connection can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Not the engine's protocol, or an answer to nothing.
    #[error("the server sent what cannot be read")]
    Protocol,
    /// The first call in flight has an answer that is too large.
    #[error("an answer was too large")]
    TooLarge,
    /// The server closes the connection, or has.
    #[error("the server closes the connection")]
    Closing,
}

/// A connection that a lane may use.
#[derive(Debug)]
pub enum Session {
    /// PostgreSQL.
    Postgres(postgres::Connection),
    /// MySQL or MariaDB.
    Mysql(mysql::Connection),
}

impl Session {
    /// Bytes in and out.
    #[inline]
    pub fn transport(&mut self) -> &mut Transport {
        match self {
            Self::Postgres(connection) => &mut connection.transport,
            Self::Mysql(connection) => &mut connection.transport,
        }
    }

    /// Of the files it was opened with.
    pub const fn generation(&self) -> u64 {
        match self {
            Self::Postgres(connection) => connection.generation,
            Self::Mysql(connection) => connection.generation,
        }
    }
}

/// One connection's protocol state.
#[derive(Debug)]
pub enum Protocol<Q> {
    /// PostgreSQL.
    Postgres(postgres::lane::Pipeline<Q>),
    /// MySQL or MariaDB.
    Mysql(mysql::lane::Pipeline<Q>),
}

impl<Q: Question> Default for Protocol<Q> {
    fn default() -> Self {
        Self::Postgres(postgres::lane::Pipeline::default())
    }
}

macro_rules! delegate {
    ($self:ident, $pipeline:ident => $what:expr) => {
        match $self {
            Self::Postgres($pipeline) => $what,
            Self::Mysql($pipeline) => $what,
        }
    };
}

impl<Q: Question> Protocol<Q> {
    /// Fresh, for a new session. `batch`: how long a statement that answers many callers may take.
    pub fn of(session: &Session, batch: Duration) -> Self {
        match session {
            Session::Postgres(_) => Self::Postgres(postgres::lane::Pipeline::new(batch)),
            // The session's own limit is a batch's, too.
            Session::Mysql(_) => Self::Mysql(mysql::lane::Pipeline::default()),
        }
    }

    /// Nothing is under way.
    #[inline]
    pub fn idle(&self) -> bool {
        delegate!(self, pipeline => pipeline.idle())
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        delegate!(self, pipeline => pipeline.len())
    }

    /// No call is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is answered next was asked for many: it may take longer.
    pub fn batch_is_next(&self) -> bool {
        delegate!(self, pipeline => pipeline.batch_is_next())
    }

    /// Calls under way, each with whether it was told otherwise (then what comes is dropped).
    pub fn calls(&mut self, each: impl FnMut(&mut Q, &mut bool)) {
        delegate!(self, pipeline => pipeline.calls(each));
    }

    /// Bytes to be sent.
    #[inline]
    pub fn out(&mut self) -> &mut BytesMut {
        delegate!(self, pipeline => pipeline.out())
    }

    /// Adds a call to the flush that `sync` ends. Only while `idle`, or between two of these.
    #[inline]
    pub fn ask(&mut self, call: Q) {
        delegate!(self, pipeline => pipeline.ask(call));
    }

    /// Adds a call whose failure no other call of the flush shall notice.
    pub fn ask_apart(&mut self, call: Q) {
        delegate!(self, pipeline => pipeline.ask_apart(call));
    }

    /// Adds calls of one query version, which has `coalesced` and is not paged, as one statement.
    pub fn ask_batch(&mut self, calls: impl Iterator<Item = Q>) {
        delegate!(self, pipeline => pipeline.ask_batch(calls));
    }

    /// Batches of a query in this flush, until all of it is answered.
    pub fn batches(&self, slot: u32) -> usize {
        delegate!(self, pipeline => pipeline.batches(slot))
    }

    /// Batches that ended since the last look.
    #[inline]
    pub fn ended(&mut self) -> std::vec::Drain<'_, Ended> {
        delegate!(self, pipeline => pipeline.ended())
    }

    /// Ends the flush.
    pub fn sync(&mut self) {
        delegate!(self, pipeline => pipeline.sync());
    }

    /// Closes the statements of versions that `keep` doesn't know. Goes out with the next flush.
    pub fn forget(&mut self, keep: impl Fn(u32, u64) -> bool) {
        delegate!(self, pipeline => pipeline.forget(keep));
    }

    /// Takes what the connection brought.
    #[inline]
    pub fn feed(&mut self, data: &[u8], tell: &mut impl FnMut(Q, Answer<'_>)) -> Result<(), Broken> {
        delegate!(self, pipeline => pipeline.feed(data, tell))
    }

    /// Hands back everybody: after `Broken::TooLarge` the first as `Slow`, the others as `Again`.
    pub fn abandon(&mut self, why: Broken, tell: &mut impl FnMut(Q, Answer<'_>)) {
        delegate!(self, pipeline => pipeline.abandon(why, tell));
    }
}
