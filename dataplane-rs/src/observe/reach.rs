//! Whether a database can be reached, as its connections find out: told once when it changes, whichever thread or lane saw it first.
//! IO: reports to the observer. May reject: nothing.
use super::{Observation, Observer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One database, by the name of its connection. Shared by all threads and lanes; outlives snapshots.
#[derive(Debug)]
pub struct Reach {
    connection: Arc<str>,
    down: AtomicBool,
    reason: Mutex<&'static str>,
    observer: Weak<Observer>,
}

impl Reach {
    /// Of a connection; taken to be up until something fails. An observer that is gone is told nothing.
    pub(super) fn new(connection: &str, observer: Weak<Observer>) -> Self {
        Self { connection: connection.into(), down: AtomicBool::new(false), reason: Mutex::new(""), observer }
    }

    /// Whose it is.
    pub(super) fn connection(&self) -> &str {
        &self.connection
    }

    /// It could not be reached, and no connection to it is left where this was seen. `reason`: a word that shows no host.
    pub fn failed(&self, reason: &'static str) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        if !self.down.swap(true, Ordering::Relaxed)
            && let Some(observer) = self.observer.upgrade()
        {
            observer.report(&Observation::DatabaseDown { connection: self.connection.clone(), reason });
        }
    }

    /// It answered. Costs one load while it is up.
    #[inline]
    pub fn worked(&self) {
        if self.down.load(Ordering::Relaxed)
            && self.down.swap(false, Ordering::Relaxed)
            && let Some(observer) = self.observer.upgrade()
        {
            observer.report(&Observation::DatabaseUp { connection: self.connection.clone() });
        }
    }

    /// Why it cannot be reached; None: as far as is known it can.
    pub fn down(&self) -> Option<&'static str> {
        let down = self.down.load(Ordering::Relaxed);
        down.then(|| *self.reason.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once_whoever_sees_it() {
        let observer = Observer::silent();
        let (one, other) = (observer.reach("orders"), observer.reach("orders"));
        one.worked();
        assert_eq!((observer.lines(), other.down()), ([0, 0, 0], None));
        one.failed("timeout");
        other.failed("credentials");
        assert_eq!((observer.lines(), one.down()), ([0, 0, 1], Some("credentials")));
        other.worked();
        one.worked();
        assert_eq!((observer.lines(), one.down()), ([1, 0, 1], None));
        assert_eq!(observer.reach("others").down(), None);
    }
}
