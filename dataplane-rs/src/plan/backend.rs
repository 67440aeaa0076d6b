//! What all threads share of one database: its plan, where it is, how many connections may be open. Kept from snapshot to
//! snapshot while its plan is unchanged. May reject: nothing. IO: none until a thread connects.
use super::snapshot::{ConnectionPlan, Engine, Pooler};
use crate::engine::pool::Budget;
use crate::engine::postgres::Source;
use crate::engine::sqlite;
use crate::observe::reach::Reach;
use std::sync::Arc;
use std::time::Duration;

/// `statement_timeout` of shared lanes: one slow statement holds the others up no longer than this.
const LANE_TIMEOUT: Duration = Duration::from_millis(100);
/// The same for a statement that answers many callers, none of whom would be asked again.
const BATCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Shared lanes of one thread at most.
const LANES: usize = 2;

/// One database.
#[derive(Debug)]
pub struct Backend {
    /// As it came.
    pub plan: ConnectionPlan,
    /// For the exclusive lane.
    pub source: Arc<Source>,
    /// For shared lanes: the same place with a shorter `statement_timeout`.
    pub lane_source: Arc<Source>,
    /// That timeout.
    pub lane_timeout: Duration,
    /// The one of a statement that answers many callers.
    pub batch_timeout: Duration,
    /// Connections to its server, over all threads and lanes.
    pub budget: Arc<Budget>,
    /// SQLite's threads.
    pub sqlite: Option<sqlite::Pool>,
    /// Whether it can be reached.
    pub reach: Arc<Reach>,
}

impl Backend {
    /// Of a plan.
    pub fn new(plan: ConnectionPlan, reach: Arc<Reach>) -> Self {
        let lane_timeout = LANE_TIMEOUT.min(Duration::from_millis(plan.statement_timeout_ms));
        let lane_plan = ConnectionPlan { statement_timeout_ms: lane_timeout.as_millis() as u64, ..plan.clone() };
        Self {
            source: Arc::new(Source::new(&plan)),
            lane_source: Arc::new(Source::new(&lane_plan)),
            lane_timeout,
            batch_timeout: BATCH_TIMEOUT.min(Duration::from_millis(plan.statement_timeout_ms)),
            budget: Budget::new(plan.max_connections),
            sqlite: (plan.engine == Engine::Sqlite).then(|| sqlite::Pool::new(&plan, reach.clone())),
            reach,
            plan,
        }
    }

    /// Shared lanes of each of so many threads: at most half of `maxConnections` over all of them, none through a transaction
    /// pooler, where no statement stays prepared.
    pub fn lanes(&self, threads: usize) -> usize {
        if self.plan.engine == Engine::Sqlite || self.plan.pooler != Pooler::None {
            return 0;
        }
        (self.plan.max_connections as usize / 2 / threads.max(1)).min(LANES)
    }
}
