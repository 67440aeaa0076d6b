//! MySQL's sessions as `engine::pool` sees them. IO: by `Member` and `connect`. May reject: nothing of its own.
use super::connect::{Connection, connect};
use super::exclusive::{self, Shared};
use super::failure::ConnectError;
use super::member::Member;

use super::target::Target;
use crate::engine::pool::{Permit, Pooled};
use crate::engine::postgres::Source;
use crate::engine::{Ask, Event};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

impl Pooled for Member {
    type Source = Source;
    type Target = Target;
    type Connection = Connection;
    type Error = ConnectError;

    fn source_generation(source: &Source) -> u64 {
        source.generation()
    }

    fn read(source: &Source) -> Result<Target, ConnectError> {
        Ok(Target::read(source)?)
    }

    fn target_generation(target: &Target) -> u64 {
        target.generation
    }

    async fn connect(target: &Target, deadline: Instant) -> Result<Connection, ConnectError> {
        connect(target, deadline).await
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
