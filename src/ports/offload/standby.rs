//! The port between failover and offload engine: flows of other instances.
//!
//! ```text
//!   failover                                    offload engine
//!     │  Hold: an offloaded flow ────────────────────▶ │  carries its packets if they come
//!     │  Forward, Refuse, Forget: its packets ───────▶ │  sends them on, answers RST, forgets them
//!     │ ◀───────── Touched: packets have come          │
//!     │  Inherit: it is this instance's ─────────────▶ │  gives it to a worker
//!     │  Release: it is another's ───────────────────▶ │  tells its worker, and holds it
//!     │  Unknown, PortRanges: rules ─────────────────▶ │
//!     │ ◀───────── UnknownPackets                      │
//! ```

use std::io;
use std::sync::OnceLock;

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

use crate::model::ends::Key;
use crate::model::fleet::{StandbyAnswer, StandbyRequest};

/// The packets that the offload engine carries at this moment, of all instances' flows.
pub(crate) trait OffloadedKeys: std::fmt::Debug + Send + Sync {
    /// Whether such a packet is forwarded to the flow's other end. An error: that is not known.
    fn carries(&self, key: &Key) -> io::Result<bool>;
}

/// The queues between failover and offload engine.
#[derive(Debug, Default)]
pub struct StandbyQueues {
    requests: SegQueue<StandbyRequest>,
    answers: SegQueue<StandbyAnswer>,
    answered: Notify,
    /// `None`: there is no offload engine.
    offloaded: OnceLock<Box<dyn OffloadedKeys>>,
}

impl StandbyQueues {
    pub(super) fn push(&self, request: StandbyRequest) {
        self.requests.push(request);
    }

    /// Number of requests that wait for the offload engine.
    pub(crate) fn waiting(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn next_request(&self) -> Option<StandbyRequest> {
        self.requests.pop()
    }

    pub(crate) fn answer(&self, answer: StandbyAnswer) {
        self.answers.push(answer);
        self.answered.notify_one();
    }

    pub(crate) fn next_answer(&self) -> Option<StandbyAnswer> {
        self.answers.pop()
    }

    /// Returns when there may be answers.
    pub(crate) async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Whether there is an offload engine that holds and forwards flows.
    pub(crate) fn serves(&self) -> bool {
        self.offloaded.get().is_some()
    }

    /// The offload engine holds and forwards flows from now on.
    pub(crate) fn serve(&self, offloaded: Box<dyn OffloadedKeys>) {
        let _ = self.offloaded.set(offloaded);
    }

    /// As [`OffloadedKeys::carries`].
    pub(crate) fn carries(&self, key: &Key) -> io::Result<bool> {
        self.offloaded.get().map_or(Ok(false), |offloaded| offloaded.carries(key))
    }
}
