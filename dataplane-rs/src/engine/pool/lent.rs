//! A connection that is lent to one call, and the ways back into its pool. IO: recovers and restores beside, through `Pooled`.
//! May reject: nothing.
use super::{Pooled, Shared};
use crate::engine::Failure;
use std::sync::Arc;
use std::time::Duration;

/// A lent connection is counted until it is given back or dropped.
#[derive(Debug)]
pub struct Lent<M: Pooled> {
    member: Option<M>,
    shared: Arc<Shared<M>>,
}

impl<M: Pooled> Lent<M> {
    /// Lends a connection of a pool.
    pub fn new(member: M, shared: Arc<Shared<M>>) -> Self {
        Self { member: Some(member), shared }
    }

    /// The session; None only after it was given back.
    pub fn member(&mut self) -> Result<&mut M, Failure> {
        self.member.as_mut().ok_or(Failure::Unavailable)
    }

    /// Back into the pool, if it is clean.
    pub fn give_back(mut self) {
        if let Some(member) = self.member.take() {
            self.shared.clone().give_back(member);
        }
    }

    /// Makes it fit again beside, then back into the pool.
    pub fn recover(self) {
        drop(self.recovering());
    }

    /// The same, but returns when it is done or after `limit`; it goes on beside then.
    pub async fn recovered(self, limit: Duration) {
        if let Some(recovering) = self.recovering() {
            _ = tokio::time::timeout(limit, recovering).await;
        }
    }

    fn recovering(mut self) -> Option<tokio::task::JoinHandle<()>> {
        let member = self.member.take()?;
        let shared = Arc::clone(&self.shared);
        Some(tokio::spawn(async move {
            match member.recover().await {
                Some(member) => shared.give_back(member),
                None => shared.lost(),
            }
        }))
    }

    /// Undoes what a write left, beside, then back into the pool.
    pub fn restore(mut self) {
        if let Some(mut member) = self.member.take() {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                if member.restore().await {
                    shared.give_back(member);
                } else {
                    drop(member);
                    shared.lost();
                }
            });
        }
    }
}

impl<M: Pooled> Drop for Lent<M> {
    fn drop(&mut self) {
        if let Some(member) = self.member.take() {
            drop(member);
            self.shared.lost();
        }
    }
}
