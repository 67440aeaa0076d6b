//! One thread's exclusive lane to one database, whatever its engine. IO: by the engine.
use crate::engine::pool::Limits;
use crate::engine::{Ask, Event, Failure, mysql, postgres};
use crate::plan::backend::Backend;
use crate::plan::snapshot::Engine;
use std::sync::Arc;
use tokio::sync::mpsc::{self, Receiver};

/// Takes statements, one call a connection.
#[derive(Debug)]
pub enum Exclusive {
    /// The thread's own connections.
    Postgres(postgres::Pool),
    /// Likewise.
    Mysql(mysql::Pool),
    /// The process's threads for this file.
    Sqlite(Arc<Backend>),
}

impl Exclusive {
    /// Of a database; opens nothing yet. Must be called in the thread's runtime.
    pub fn new(backend: &Arc<Backend>) -> Self {
        if backend.sqlite.is_some() {
            return Self::Sqlite(backend.clone());
        }
        let (source, budget, reach) = (backend.source.clone(), backend.budget.clone(), backend.reach.clone());
        if backend.plan.engine == Engine::Mysql {
            return Self::Mysql(mysql::Pool::new(source, budget, reach, Limits::default()));
        }
        Self::Postgres(postgres::Pool::new(source, budget, reach, Limits::default()))
    }

    /// The next would be told at once that as many wait as may.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Postgres(pool) => pool.is_full(),
            Self::Mysql(pool) => pool.is_full(),
            Self::Sqlite(_) => false,
        }
    }

    /// Runs one statement; see `Event` for what comes.
    pub fn submit(&self, ask: Ask) -> Receiver<Event> {
        match self {
            Self::Postgres(pool) => pool.submit(ask),
            Self::Mysql(pool) => pool.submit(ask),
            Self::Sqlite(backend) => match &backend.sqlite {
                Some(pool) => pool.submit(ask),
                None => failed(),
            },
        }
    }
}

fn failed() -> Receiver<Event> {
    let (events, receiver) = mpsc::channel(1);
    let _there_is_room = events.try_send(Event::never(Failure::Unavailable));
    receiver
}
