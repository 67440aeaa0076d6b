//! What looks after a pool's idle connections: those that died or aged, files that changed, room that others want.
//! IO: closes connections, opens one to try newer files. May reject: nothing.
use super::{Budget, Pooled, Shared};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

impl<M: Pooled> Shared<M> {
    /// Once a second: files that changed, connections that died or aged.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let generation = M::source_generation(&self.source);
        let mut state = self.state();
        let idle = self.limits.idle;
        let gone: Vec<M> = state.idle.extract_if(.., |member: &mut M| now >= member.idle_since() + idle || !member.alive(now)).collect();
        state.live -= gone.len();
        let changed = state.live > 0 && generation > state.proven && state.unproven.paused(now).is_none();
        state.trial = changed && self.budget.free() == 0;
        drop(state);
        drop(gone);
        if changed {
            self.budget.set_refused(false);
        }
        changed
    }

    /// Closes the connection that has been idle longest, for somebody who needs its room.
    fn give_up_one(&self) {
        let oldest = {
            let mut state = self.state();
            if state.idle.is_empty() {
                return;
            }
            state.live -= 1;
            state.idle.remove(0)
        };
        drop(oldest);
    }
}

/// Looks after idle connections; ends with its pool.
pub(super) async fn janitor<M: Pooled>(pool: Weak<Shared<M>>, budget: Arc<Budget>) {
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let wanted = tokio::select! {
            biased;
            _ = second.tick() => false,
            () = budget.wanted() => true,
        };
        let Some(shared) = pool.upgrade() else { return };
        if shared.state().closed {
            return;
        }
        if wanted || budget.others_hungry(&shared.hungry) {
            shared.give_up_one();
        }
        if wanted {
            continue;
        }
        if shared.sweep() {
            // The files changed: a connection by the new ones shows whether they work; only then do the old ones drain.
            let room = timeout(Duration::from_secs(1), shared.budget.acquire(&AtomicUsize::new(0))).await;
            if let Ok(room) = room
                && let Ok(opening) = shared.open(room)
                && let Ok(Ok(lent)) = opening.await
            {
                lent.give_back();
            }
        }
    }
}
