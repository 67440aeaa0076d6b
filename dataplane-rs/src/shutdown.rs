//! The end, in order: serving → lame duck (accepts on, says `Connection: close`) → draining (accepts no more) → gone.
//! May reject: nothing. IO: signals.
use std::time::Duration;
use tokio::sync::watch;

/// Where in its life the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// As usual.
    Serving,
    /// Not ready any more; still accepts, and every answer closes its connection.
    LameDuck,
    /// Accepts no more; calls under way may end.
    Draining,
    /// Calls under way are cut off.
    Over,
}

/// Steps through the phases from the first signal on; a second one cuts the rest short.
pub async fn conduct(phase: watch::Sender<Phase>, mut signal: impl Signal, lame_duck: Duration, drain_grace: Duration) {
    signal.next().await;
    phase.send_replace(Phase::LameDuck);
    tokio::select! {
        () = tokio::time::sleep(lame_duck) => {}
        () = signal.next() => {}
    }
    phase.send_replace(Phase::Draining);
    tokio::select! {
        () = tokio::time::sleep(drain_grace) => {}
        () = signal.next() => {}
    }
    phase.send_replace(Phase::Over);
    std::future::pending().await
}

/// What asks the process to end.
pub trait Signal {
    /// Returns at each further request to end.
    fn next(&mut self) -> impl Future<Output = ()> + Send;
}

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct ProcessSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl ProcessSignals {
    /// Takes them over from their default, which ends the process.
    pub fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
}

impl Signal for ProcessSignals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Signal for tokio::sync::mpsc::Receiver<()> {
    async fn next(&mut self) {
        if self.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
