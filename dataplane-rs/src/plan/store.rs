//! The current tables, handed to every serving thread, and who runs on them. May reject: nothing. IO: none.
use super::tables::Tables;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// Longest wait for all threads to swap. A turn takes milliseconds; a thread that needs this long is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often replaced tables are looked at until no call is left on them.
const SWEEP: Duration = Duration::from_millis(100);

/// One publication.
#[derive(Clone, Debug)]
pub struct Published {
    /// Counts publications; snapshot versions may repeat after a restart of the gateway.
    pub serial: u64,
    /// What to serve from.
    pub tables: Arc<Tables>,
    /// When.
    pub at: Instant,
}

/// Shared by the control thread, which writes, and the serving threads, which each pin once a turn.
#[derive(Debug)]
pub struct Store {
    current: watch::Sender<Option<Published>>,
    /// By thread: the serial that it runs on.
    running: Box<[AtomicU64]>,
    swapped: Notify,
}

/// Not all threads run on the new tables yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not every thread has taken the snapshot")]
pub struct NotSwapped;

impl Store {
    /// An empty one for so many serving threads.
    pub fn new(threads: usize) -> Self {
        Self { current: watch::Sender::new(None), running: (0..threads).map(|_| AtomicU64::new(0)).collect(), swapped: Notify::new() }
    }

    /// What was published last.
    pub fn current(&self) -> Option<Published> {
        self.current.borrow().clone()
    }

    /// Tells a thread of each publication.
    pub fn subscribe(&self) -> watch::Receiver<Option<Published>> {
        self.current.subscribe()
    }

    /// Says that a thread admits no call by older tables any more.
    pub fn acknowledge(&self, thread: usize, serial: u64) {
        if let Some(running) = self.running.get(thread) {
            running.store(serial, Ordering::Release);
        }
        self.swapped.notify_one();
    }

    /// Publishes and waits until every thread runs on it. What it replaces is freed here, by the runtime of the control thread, when its
    /// last call has ended, and given back to the system: of 50,000 grants that takes milliseconds, which no serving thread should spend.
    pub async fn publish(&self, tables: Arc<Tables>) -> Result<(), NotSwapped> {
        let (mut serial, mut replaced) = (0, None);
        self.current.send_modify(|current| {
            serial = current.as_ref().map_or(0, |published| published.serial) + 1;
            replaced = current.replace(Published { serial, tables, at: Instant::now() });
        });
        tokio::spawn(async move {
            // By then what the new ones were made from is freed, too.
            tokio::time::sleep(SWEEP).await;
            if let Some(Published { tables, .. }) = replaced {
                while Arc::strong_count(&tables) > 1 {
                    tokio::time::sleep(SWEEP).await;
                }
            }
            tailrace_heap::give_back();
        });
        let all = async {
            while !self.running.iter().all(|running| running.load(Ordering::Acquire) >= serial) {
                self.swapped.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.map_err(|_| NotSwapped)
    }
}
