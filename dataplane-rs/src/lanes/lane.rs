//! One lane: a connection, the calls under way on it, and when it is to be replaced. IO: none of its own.
use crate::calls::call::Call;
use crate::engine::pool::Permit;
use crate::engine::shared::{Protocol, Session};
use std::time::{Duration, Instant};

/// A connection is replaced after so long (± 20 %).
const LIFETIME: Duration = Duration::from_secs(1800);
/// Why a lane has no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// `maxConnections` are open: the exclusive lane has them.
    #[error("no connection may be opened")]
    NoRoom,
    /// It could not be opened: why, in a word that shows no host.
    #[error("no connection: {0}")]
    Connect(&'static str),
}

/// A connection and the room that it takes.
#[derive(Debug)]
pub struct Link {
    /// Read-only, with the lane's timeout.
    pub session: Session,
    /// Freed with it.
    pub permit: Permit,
}

/// One connection and what is under way on it.
#[derive(Debug)]
pub struct Lane {
    /// None: not connected.
    pub session: Option<Session>,
    /// The room that `session` takes.
    pub permit: Option<Permit>,
    /// What was sent and not yet answered.
    pub pipeline: Protocol<Box<Call>>,
    /// A connection that replaces this one when it is idle.
    pub successor: Option<Link>,
    /// An attempt is under way.
    pub connecting: bool,
    /// Failed ones in a row.
    pub attempts: u32,
    /// Not before this is the next attempt.
    pub retry: Instant,
    /// The connection is replaced after this.
    pub expires: Instant,
    /// The flush left.
    pub sent: Instant,
    /// Calls in it.
    pub size: usize,
    /// Something was brought.
    pub heard: Instant,
}

impl Lane {
    /// Not connected yet.
    pub fn new(now: Instant) -> Self {
        Self {
            session: None,
            permit: None,
            pipeline: Protocol::default(),
            successor: None,
            connecting: false,
            attempts: 0,
            retry: now,
            expires: now,
            sent: now,
            size: 0,
            heard: now,
        }
    }

    /// Starts anew on a fresh connection.
    pub fn take(&mut self, link: Link, batch: Duration, now: Instant) {
        self.pipeline = Protocol::of(&link.session, batch);
        (self.session, self.permit) = (Some(link.session), Some(link.permit));
        self.expires = now + LIFETIME.mul_f64(rand::random_range(0.8..1.2));
        self.heard = now;
    }
}
