//! The way out: phases that a stopping instance goes through, published to all its parts.

use std::time::Duration;

use tokio::sync::watch;

/// Where the instance is in its life. The order is the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LifePhase {
    /// Not yet serving.
    Starting,
    Serving,
    /// Readiness fails, so that whoever sends clients here may stop; new flows are still taken.
    Leaving,
    /// No new flows; those that live have until the deadline.
    Draining,
    /// What is left is reset.
    Forced,
}

impl LifePhase {
    pub fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Draining => "draining",
            Self::Forced => "forced",
        }
    }
}

/// Publishes phases.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<LifePhase>,
}

/// Sees phases.
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
    /// Goes on to `phase`; going back is ignored.
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
    pub fn phase(&self) -> LifePhase {
        *self.phase.borrow()
    }

    /// Returns once the instance is in `phase` or past it, or gone.
    pub async fn reached(&mut self, phase: LifePhase) {
        let _ = self.phase.wait_for(|now| *now >= phase).await;
    }

    /// As [`DrainWatch::reached`], but gives up after `limit`. True if it was reached.
    pub async fn reached_within(&mut self, phase: LifePhase, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.reached(phase)).await.is_ok()
    }
}
