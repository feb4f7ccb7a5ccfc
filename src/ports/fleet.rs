//! Where the parts that make a fleet meet: workers and offload engine tell of this instance's flows, the peer link tells of the others',
//! and the failover decides what becomes of them.
//!
//! ```text
//!   workers, engine ──Local──▶ │ peer │ ══ link ══▶ other instances
//!                              │ link │ ──Remote──▶ failover ──Request──▶ engine
//!                              │      │ ◀──Command─ failover
//! ```
//! `Remote` and `Command` go through channels that `app` makes; `Local` through a queue here, so that a worker never waits.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};

use crossbeam_queue::SegQueue;
use tokio::sync::watch;

pub use crate::model::fleet::Local;
use crate::model::fleet::PortRange;

/// The queue between them, and what each of them has to know of the others. Without peers nothing of it is used.
#[derive(Debug, Default)]
pub struct Fleet {
    enabled: AtomicBool,
    local: SegQueue<Local>,
    /// Every peer is synced, or the deadline for that has passed with nobody to be reached.
    ready: AtomicBool,
    /// What an earlier process left has been inherited.
    whole: AtomicBool,
    /// Packets of one flow may come to several instances.
    shared: AtomicBool,
    /// The addresses are to be on `lo` as well: they are about to leave.
    keeping: watch::Sender<bool>,
    /// Flows go to another process of this host, which then sees to what they need.
    succeeded: AtomicBool,
    /// Of backend legs of this instance; all of the host's if none is set.
    ports: OnceLock<PortRange>,
}

impl Fleet {
    /// Whether peers want to know of this instance's flows. While they do not, [`Fleet::tell`] does nothing.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Release);
    }

    /// Leaves word for the peers; never waits. Nobody is woken: the link looks every few milliseconds, for a wake for each
    /// short flow would cost more than the flow.
    pub fn tell(&self, local: impl FnOnce() -> Local) {
        if self.is_enabled() {
            self.local.push(local());
        }
    }

    pub fn next_local(&self) -> Option<Local> {
        self.local.pop()
    }

    /// Whether packets of one flow may come to several instances, so that silence here says nothing.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    pub fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Relaxed);
    }

    /// Which source ports this instance's backend legs have. `None`: any.
    pub fn ports(&self) -> Option<PortRange> {
        self.ports.get().copied()
    }

    /// Once, before the first leg.
    pub fn set_ports(&self, ports: PortRange) {
        let _ = self.ports.set(ports);
    }

    /// Whether the frontends' addresses are to be on `lo` as well, before they leave.
    pub fn keeping(&self) -> watch::Receiver<bool> {
        self.keeping.subscribe()
    }

    pub fn set_keeping(&self, keeping: bool) {
        self.keeping.send_replace(keeping);
    }

    /// Whether another process of this host has, or is about to have, this one's flows.
    pub fn is_succeeded(&self) -> bool {
        self.succeeded.load(Acquire)
    }

    pub fn set_succeeded(&self, succeeded: bool) {
        self.succeeded.store(succeeded, Release);
    }

    /// Whether this instance may take a VIP: it has no peers, or knows their flows, or has waited for them long enough.
    pub fn is_ready(&self) -> bool {
        !self.is_enabled() || self.ready.load(Relaxed)
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Whether all flows that this instance has had since its start have been told of.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Relaxed)
    }

    /// What an earlier process left has been inherited, or there is nothing of the kind. Peers are told no flow before.
    pub fn set_whole(&self) {
        self.whole.store(true, Release);
    }
}
