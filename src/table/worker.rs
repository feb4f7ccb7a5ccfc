//! The state that one worker thread publishes.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use super::count::{Count, Tally};
use super::latency::LatencyTally;

/// State of one worker, in cache lines of its own. The worker alone writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerState {
    /// Monotonic ns at which the present turn of the worker's loop began; 0 while it waits for events.
    busy_since_ns: AtomicU64,
    /// Set once the thread serves, cleared when it has returned.
    alive: AtomicBool,
    /// The thread's number in the kernel, as in /proc/self/task; 0: it has not begun.
    thread: AtomicI32,
    /// Version of the data plane's settings that the worker applies.
    pub plane_version: AtomicU64,
    /// Accepting is paused for want of file descriptors.
    pub accept_paused: AtomicBool,
    pub accepted: Count,
    /// accept(2) failed for want of file descriptors or memory.
    pub accept_errors: Tally,
    /// Connections reset unserved because accepting had been paused for too long.
    pub accept_shed: Tally,
    pub pipes_in_use: AtomicU64,
    /// Duration of each turn of the event loop: how long an event may have waited.
    pub turn: LatencyTally,
    /// Ended flows that found the queue to the log full.
    pub ended_unlogged: Tally,
}

impl WorkerState {
    /// All counters by name, for an upgrade, which passes `turn` on as well. It does not compile with a new field that is not named here.
    pub(crate) fn tallies(&self) -> [(&'static str, &Tally); 3] {
        let Self {
            accept_errors,
            accept_shed,
            ended_unlogged,
            busy_since_ns: _,
            alive: _,
            thread: _,
            plane_version: _,
            accept_paused: _,
            accepted: _,
            pipes_in_use: _,
            turn: _,
        } = self;
        [("accept errors", accept_errors), ("accepts shed", accept_shed), ("ended unreported", ended_unlogged)]
    }

    pub fn mark_busy(&self, now_ns: u64) {
        self.busy_since_ns.store(now_ns, Relaxed);
    }

    pub(crate) fn mark_waiting(&self) {
        self.busy_since_ns.store(0, Relaxed);
    }

    pub fn mark_alive(&self, alive: bool) {
        self.alive.store(alive, Relaxed);
    }

    /// Notes the thread that calls.
    pub(crate) fn mark_thread(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_pid(), Relaxed);
    }

    /// The number of its thread in the kernel.
    pub(crate) fn thread(&self) -> Option<i32> {
        Some(self.thread.load(Relaxed)).filter(|thread| *thread != 0)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// How long, in ns, the current turn has lasted at `now_ns`; 0 while waiting.
    pub(crate) fn stuck_for_ns(&self, now_ns: u64) -> u64 {
        match self.busy_since_ns.load(Relaxed) {
            0 => 0,
            since => now_ns.saturating_sub(since),
        }
    }
}
