//! The phases of a stopping instance, published to all its parts.

use std::time::Duration;

use tokio::sync::watch;

/// The phase of the instance, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LifePhase {
    /// Not yet serving.
    Starting,
    Serving,
    /// Readiness fails, so that keepalived or a router may move the clients to another host; new flows are still accepted.
    Leaving,
    /// No new flows; existing ones have until the deadline.
    Draining,
    /// The remaining flows are reset.
    Forced,
}

impl LifePhase {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Draining => "draining",
            Self::Forced => "forced",
        }
    }
}

/// Publishes the phase.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<LifePhase>,
}

/// Reads the phase.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    phase: watch::Receiver<LifePhase>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { phase: watch::Sender::new(LifePhase::Starting) }
    }
}

impl Drain {
    /// Moves to `phase`; a move back is ignored.
    pub fn advance(&self, phase: LifePhase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    pub fn watch(&self) -> DrainWatch {
        DrainWatch { phase: self.phase.subscribe() }
    }
}

impl DrainWatch {
    pub(crate) fn phase(&self) -> LifePhase {
        *self.phase.borrow()
    }

    /// Returns once the instance is in `phase` or a later one, or has ended.
    pub(crate) async fn reached(&mut self, phase: LifePhase) {
        let _ = self.phase.wait_for(|now| *now >= phase).await;
    }

    /// As [`DrainWatch::reached`], but only waits for `limit`. Returns whether it was reached.
    pub(crate) async fn reached_within(&mut self, phase: LifePhase, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.reached(phase)).await.is_ok()
    }
}
