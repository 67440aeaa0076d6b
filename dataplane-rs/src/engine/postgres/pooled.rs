//! PostgreSQL's sessions as `engine::pool` sees them. IO: by `Member` and `connect`. May reject: nothing of its own.
use super::connect::{ConnectError, Connection, connect};
use super::member::Member;
use super::session::Access;
use super::target::{Source, Target};
use super::{Shared, exclusive, failure};
use crate::engine::pool::{Permit, Pooled, Refusal};
use crate::engine::{Ask, Event};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

impl Refusal for ConnectError {
    fn is_full(&self) -> bool {
        self.is_full()
    }

    fn is_credentials(&self) -> bool {
        self.is_credentials()
    }

    fn is_configuration(&self) -> bool {
        matches!(self, Self::Target(_))
    }

    fn reason(&self) -> &'static str {
        failure::reason(self)
    }
}

impl Pooled for Member {
    type Source = Source;
    type Target = Target;
    type Connection = Connection;
    type Error = ConnectError;

    fn source_generation(source: &Source) -> u64 {
        source.generation()
    }

    fn read(source: &Source) -> Result<Target, ConnectError> {
        Ok(source.read()?)
    }

    fn target_generation(target: &Target) -> u64 {
        target.generation
    }

    async fn connect(target: &Target, deadline: Instant) -> Result<Connection, ConnectError> {
        connect(target, Access::ReadOnly, deadline).await
    }

    fn of(connection: Connection, target: Arc<Target>, permit: Permit, life: Duration) -> Self {
        Self::new(connection, target, permit, life)
    }

    fn opened(&self) -> Instant {
        self.opened()
    }

    fn generation(&self) -> u64 {
        self.generation()
    }

    fn clean(&self, now: Instant) -> bool {
        self.clean(now)
    }

    fn alive(&mut self, now: Instant) -> bool {
        self.alive(now)
    }

    fn rest(&mut self, now: Instant) {
        self.rest(now);
    }

    fn idle_since(&self) -> Instant {
        self.idle_since()
    }

    async fn recover(self) -> Option<Self> {
        self.recover().await
    }

    async fn restore(&mut self) -> bool {
        self.restore().await
    }

    async fn answer(pool: Arc<Shared>, ask: Ask, events: Sender<Event>) {
        exclusive::run(pool, ask, events).await;
    }
}
