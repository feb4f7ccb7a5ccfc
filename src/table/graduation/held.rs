//! Where the takeover and the path meet: flows of other instances.
//!
//! ```text
//!   takeover                                          path
//!     │  Hold: a flow without sockets ──────────────▶ │  carries its packets if they come
//!     │  Forward, Refuse, Forget: its packets ──────▶ │  sends them on, answers RST, knows them no more
//!     │ ◀────────────── Touched: packets have come    │
//!     │  Adopt: it is this instance's ──────────────▶ │  finds it a worker
//!     │  Release: it is another's ──────────────────▶ │  tells its worker, and holds it
//!     │  Unknown, Slices: what nobody knows ────────▶ │
//!     │ ◀────────────── Strays: what nobody knew      │
//! ```

use std::sync::atomic::{AtomicBool, Ordering::*};

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

use crate::model::fleet::{HeldAnswer, HeldRequest};

/// The queues between them.
#[derive(Debug, Default)]
pub struct HeldQueues {
    requests: SegQueue<HeldRequest>,
    answers: SegQueue<HeldAnswer>,
    answered: Notify,
    /// The path may do what it is asked. Without it, requests are for nobody.
    serves: AtomicBool,
}

impl HeldQueues {
    pub(super) fn push(&self, request: HeldRequest) {
        self.requests.push(request);
    }

    pub fn next_request(&self) -> Option<HeldRequest> {
        self.requests.pop()
    }

    pub fn answer(&self, answer: HeldAnswer) {
        self.answers.push(answer);
        self.answered.notify_one();
    }

    pub fn next_answer(&self) -> Option<HeldAnswer> {
        self.answers.pop()
    }

    /// Returns when there may be answers.
    pub async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Whether there is a path that holds and forwards.
    pub fn serves(&self) -> bool {
        self.serves.load(Acquire)
    }

    pub fn set_serves(&self, serves: bool) {
        self.serves.store(serves, Release);
    }
}
