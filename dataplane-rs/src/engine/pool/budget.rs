//! How many connections this process may hold to one database, over all threads and both lanes (`maxConnections`).
//! IO: none. May reject: nothing; who finds no room waits or goes without.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Who has waited this long for room is hungry: other threads then give up connections instead of keeping them to themselves.
const HUNGRY: Duration = Duration::from_millis(50);

/// One per ConnectionPlan, shared by all threads.
#[derive(Debug)]
pub struct Budget {
    room: Arc<Semaphore>,
    limit: usize,
    /// Part of `limit` that shared lanes hold.
    shared: AtomicUsize,
    /// Pools that draw on it, one per thread.
    pools: AtomicUsize,
    hungry: AtomicUsize,
    wanted: Notify,
    /// New connections are refused for their credentials: who has some keeps them.
    refused: AtomicBool,
}

/// Room for one connection; freed when dropped.
#[derive(Debug)]
pub struct Permit {
    _room: OwnedSemaphorePermit,
    shared: Option<Arc<Budget>>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(budget) = &self.shared {
            budget.shared.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Counts a hungry waiter as long as it lives.
struct Hunger<'a>(&'a AtomicUsize, &'a AtomicUsize);

impl<'a> Hunger<'a> {
    fn new(all: &'a AtomicUsize, own: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        own.fetch_add(1, Ordering::Relaxed);
        Self(all, own)
    }
}

impl Drop for Hunger<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A shared lane's part of the limit while it waits for room.
struct Held<'a>(&'a Budget);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.shared.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    /// Room for `limit` connections.
    pub fn new(limit: u32) -> Arc<Self> {
        let limit = limit.max(1) as usize;
        Arc::new(Self {
            room: Arc::new(Semaphore::new(limit)),
            limit,
            shared: AtomicUsize::new(0),
            pools: AtomicUsize::new(0),
            hungry: AtomicUsize::new(0),
            wanted: Notify::new(),
            refused: AtomicBool::new(false),
        })
    }

    /// Room if there is some now and nobody waits for it.
    pub fn try_acquire(&self) -> Option<Permit> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(Permit { _room: room, shared: None })
    }

    /// Room for a shared lane, which keeps it for long: at most half of all, so that the exclusive lane is never starved.
    /// None with a limit of 1: then everything is exclusive.
    pub fn try_acquire_shared(self: &Arc<Self>) -> Option<Permit> {
        let most = self.limit / 2;
        let take = |held: usize| (held < most).then_some(held + 1);
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(room) => Some(Permit { _room: room, shared: Some(Arc::clone(self)) }),
            Err(_) => {
                self.shared.fetch_sub(1, Ordering::Relaxed);
                self.want();
                None
            }
        }
    }

    /// The same, waiting for room: who holds connections beyond its share gives one up. None with a limit of 1, or when shared lanes hold
    /// all they may. Cancel safe. Give it a deadline.
    pub async fn acquire_shared(self: &Arc<Self>) -> Option<Permit> {
        let most = self.limit / 2;
        let take = |held: usize| (held < most).then_some(held + 1);
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let held = Held(self);
        let mut permit = self.acquire(&AtomicUsize::new(0)).await;
        std::mem::forget(held); // from here on the permit holds it
        permit.shared = Some(Arc::clone(self));
        Some(permit)
    }

    /// Waits for room, first come first served. `own` counts the hungry among the caller's own kind (one thread's pool).
    /// Cancel safe. Give it a deadline.
    pub async fn acquire(&self, own: &AtomicUsize) -> Permit {
        self.want();
        let room = Arc::clone(&self.room).acquire_owned();
        tokio::pin!(room);
        let mut hunger = None;
        loop {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                Ok(room) = &mut room => return Permit { _room: room, shared: None },
                () = tokio::time::sleep(HUNGRY), if hunger.is_none() => {
                    hunger = Some(Hunger::new(&self.hungry, own));
                    self.want();
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Asks all holders of idle connections to close one.
    pub fn want(&self) {
        if !self.refused.load(Ordering::Relaxed) {
            self.wanted.notify_waiters();
        }
    }

    /// Resolves when somebody looks for room.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Says whether new connections are refused for their credentials. A connection that is given up then is lost.
    pub fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Whether a connection should be given up for somebody outside of `own` who is hungry.
    pub fn others_hungry(&self, own: &AtomicUsize) -> bool {
        !self.refused.load(Ordering::Relaxed) && self.hungry.load(Ordering::Relaxed) > own.load(Ordering::Relaxed)
    }

    /// A pool begins to draw on it.
    pub fn join(&self) {
        self.pools.fetch_add(1, Ordering::Relaxed);
    }

    /// A pool that had joined is gone.
    pub fn leave(&self) {
        self.pools.fetch_sub(1, Ordering::Relaxed);
    }

    /// What a pool may keep while others are hungry: its part of what lanes don't hold, rounded down.
    pub fn fair_share(&self) -> usize {
        self.limit.saturating_sub(self.shared.load(Ordering::Relaxed)) / self.pools.load(Ordering::Relaxed).max(1)
    }

    /// Connections that may still be opened.
    pub fn free(&self) -> usize {
        self.room.available_permits()
    }

    /// `maxConnections`.
    pub const fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_fair_share_is_of_what_lanes_leave() {
        let budget = Budget::new(16);
        assert_eq!(budget.fair_share(), 16);
        budget.join();
        budget.join();
        assert_eq!(budget.fair_share(), 8);
        let _lane = budget.try_acquire_shared().unwrap();
        assert_eq!(budget.fair_share(), 7);
        budget.leave();
        assert_eq!(budget.fair_share(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn never_more_than_the_limit_and_never_all_shared() {
        let budget = Budget::new(3);
        let lane = budget.try_acquire_shared().unwrap();
        assert!(budget.try_acquire_shared().is_none());
        let _a = budget.try_acquire().unwrap();
        let b = budget.try_acquire().unwrap();
        assert!(budget.try_acquire().is_none());
        let (own, other) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let waiter = budget.acquire(&own);
        tokio::pin!(waiter);
        assert!(tokio::time::timeout(HUNGRY * 2, &mut waiter).await.is_err());
        assert!(budget.others_hungry(&other) && !budget.others_hungry(&own));
        budget.set_refused(true);
        assert!(!budget.others_hungry(&other));
        budget.set_refused(false);
        drop(b);
        let _b = waiter.await;
        assert!(!budget.others_hungry(&other));
        drop(lane);
        assert_eq!(budget.free(), 1);
        assert!(budget.try_acquire_shared().is_some());
        assert!(Budget::new(1).try_acquire_shared().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_waits_for_what_a_pool_gives_up() {
        let budget = Budget::new(2);
        budget.join();
        let (a, _b) = (budget.try_acquire().unwrap(), budget.try_acquire().unwrap());
        let pool = AtomicUsize::new(0);
        let mut lane = Box::pin(budget.acquire_shared());
        assert!(tokio::time::timeout(HUNGRY * 2, &mut lane).await.is_err());
        assert!(budget.others_hungry(&pool) && budget.fair_share() == 1);
        drop(a);
        let lane = lane.await.unwrap();
        assert!(!budget.others_hungry(&pool) && budget.free() == 0);
        assert!(budget.acquire_shared().await.is_none());
        drop(lane);
        // One that no longer waits holds nothing.
        let _c = budget.try_acquire().unwrap();
        assert!(tokio::time::timeout(HUNGRY * 2, budget.acquire_shared()).await.is_err());
        assert_eq!(budget.fair_share(), 2);
    }
}
