//! What one worker thread says of itself.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;
use tokio::sync::Notify;

use super::count::{Count, Tally};
use super::flows::FlowOrigin;
use crate::model::end_reason::EndReason;
use crate::model::histogram::LatencyHistogram;
use crate::model::ids::{BackendId, FlowId};

/// Ended flows that may wait for the log; more are counted, not kept.
const ENDED_QUEUE: usize = 16_384;

/// One flow that ended: the source of its log line and its event.
#[derive(Clone, Copy, Debug)]
pub struct EndedFlow {
    pub id: FlowId,
    pub origin: FlowOrigin,
    pub backend: Option<BackendId>,
    /// Where the backend leg went, if one was connected.
    pub backend_addr: Option<SocketAddr>,
    pub reason: EndReason,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    /// 0 if no backend was connected.
    pub connect_us: u64,
    /// Nanoseconds on the monotonic clock.
    pub ended_at_ns: u64,
    /// errno of the call that told, 0 if none.
    pub errno: i32,
}

impl EndedFlow {
    /// A connection that was reset at once.
    pub fn unserved(id: FlowId, origin: FlowOrigin, reason: EndReason) -> Self {
        Self {
            id,
            origin,
            backend: None,
            backend_addr: None,
            reason,
            bytes_to_backend: 0,
            bytes_to_client: 0,
            connect_us: 0,
            ended_at_ns: origin.accepted_at_ns,
            errno: 0,
        }
    }
}

/// State of one worker. The worker alone writes it, but for `ended`, which the log drains.
#[derive(Debug)]
pub struct WorkerState {
    /// Monotonic ns since when the worker is busy with one turn of its loop; 0 while it waits for events.
    busy_since_ns: AtomicU64,
    /// Set once the thread serves, cleared when it has returned.
    alive: AtomicBool,
    /// Version of the data plane's settings that the worker follows.
    pub plane_version: AtomicU64,
    /// Accepting is paused for want of file descriptors.
    pub accept_paused: AtomicBool,
    pub accepted: Count,
    /// accept(2) failed for want of file descriptors or memory.
    pub accept_errors: Tally,
    /// Connections reset unserved because accepting had been paused for too long.
    pub accept_shed: Tally,
    pub pipes_in_use: AtomicU64,
    /// Duration of each turn of the event loop: what an event may have had to wait.
    pub turn: LatencyHistogram,
    /// Ended flows that found the queue below full.
    pub ended_unlogged: Tally,
    ended: ArrayQueue<EndedFlow>,
    ended_notify: Notify,
}

impl Default for WorkerState {
    fn default() -> Self {
        Self {
            busy_since_ns: AtomicU64::new(0),
            alive: AtomicBool::new(false),
            plane_version: AtomicU64::new(0),
            accept_paused: AtomicBool::new(false),
            accepted: Count::default(),
            accept_errors: Tally::default(),
            accept_shed: Tally::default(),
            pipes_in_use: AtomicU64::new(0),
            turn: LatencyHistogram::default(),
            ended_unlogged: Tally::default(),
            ended: ArrayQueue::new(ENDED_QUEUE),
            ended_notify: Notify::new(),
        }
    }
}

impl WorkerState {
    pub fn mark_busy(&self, now_ns: u64) {
        self.busy_since_ns.store(now_ns, Relaxed);
    }

    pub fn mark_waiting(&self) {
        self.busy_since_ns.store(0, Relaxed);
    }

    pub fn mark_alive(&self, alive: bool) {
        self.alive.store(alive, Relaxed);
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// How long, in ns, the current turn has lasted at `now_ns`; 0 while waiting.
    pub fn stuck_for_ns(&self, now_ns: u64) -> u64 {
        match self.busy_since_ns.load(Relaxed) {
            0 => 0,
            since => now_ns.saturating_sub(since),
        }
    }

    /// Hands an ended flow to the log; never waits.
    pub fn report_ended(&self, flow: EndedFlow) {
        if self.ended.push(flow).is_err() {
            self.ended_unlogged.add(1);
        }
        self.ended_notify.notify_one();
    }

    /// The oldest ended flow not yet taken.
    pub fn next_ended(&self) -> Option<EndedFlow> {
        self.ended.pop()
    }

    /// Returns when flows may have ended since the last call.
    pub async fn ended_available(&self) {
        self.ended_notify.notified().await;
    }
}
