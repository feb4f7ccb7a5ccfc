//! The port between the parts that make a fleet: workers and offload engine report this instance's flows, the peer link
//! reports the other instances' flows, and the failover decides about them.
//!
//! ```text
//!   workers, engine ──Local──▶ │ peer │ ══ link ══▶ other instances
//!                              │ link │ ──Remote──▶ failover ──Request──▶ engine
//!                              │      │ ◀──Command─ failover
//!   admin ──────Summary──────▶ │      │
//! ```
//! `Remote` and `Command` go through channels that `app` makes; `Local` goes through a queue here, so that a worker
//! never waits. The link takes only the latest summary.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwapOption;
use crossbeam_queue::SegQueue;
use tokio::sync::{oneshot, watch};

pub(crate) use crate::model::fleet::Local;
use crate::model::fleet::{InstanceSummary, KnownPeers, PortRange};

/// The queue between them, and the flags that each sets for the others. Unused without peers.
#[derive(Debug, Default)]
pub struct Fleet {
    enabled: AtomicBool,
    local: SegQueue<Local>,
    /// Every peer is synced, or the deadline for that has passed and no peer can be reached.
    ready: AtomicBool,
    /// An earlier process's flows have been recovered.
    whole: AtomicBool,
    /// Packets of one flow may come to several instances.
    shared: AtomicBool,
    /// The addresses must be on `lo` as well: they are about to leave.
    keeping: watch::Sender<bool>,
    /// The flows move to another process of this host, which then does all work for them.
    succeeded: AtomicBool,
    /// The ports of this instance's backend legs; if not set, all of the host's.
    ports: OnceLock<PortRange>,
    /// What this instance last said of itself.
    summary: ArcSwapOption<InstanceSummary>,
    /// The same, until the link has taken it.
    untold_summary: ArcSwapOption<InstanceSummary>,
    /// Where the failover tells what it knows of the peers, once the link asks it to.
    known: Mutex<Option<oneshot::Sender<KnownPeers>>>,
}

impl Fleet {
    /// Whether this instance has peers. If not, [`Fleet::tell`] does nothing.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Release);
    }

    /// Queues an event for the peers; never waits. It wakes nobody: the link looks every few milliseconds, because a
    /// wake for each short flow would cost more than the flow.
    pub(crate) fn tell(&self, local: impl FnOnce() -> Local) {
        if self.is_enabled() {
            self.local.push(local());
        }
    }

    pub(crate) fn next_local(&self) -> Option<Local> {
        self.local.pop()
    }

    /// Whether packets of one flow may come to several instances, so that a silence here proves nothing.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    pub(crate) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Relaxed);
    }

    /// The source ports of this instance's backend legs. `None`: any.
    pub(crate) fn ports(&self) -> Option<PortRange> {
        self.ports.get().copied()
    }

    /// Call it once, before the first leg.
    pub(crate) fn set_ports(&self, ports: PortRange) {
        let _ = self.ports.set(ports);
    }

    /// Whether the frontends' addresses must be on `lo` as well, before they leave.
    pub(crate) fn keeping(&self) -> watch::Receiver<bool> {
        self.keeping.subscribe()
    }

    pub(crate) fn set_keeping(&self, keeping: bool) {
        self.keeping.send_replace(keeping);
    }

    /// Whether another process of this host has this one's flows, or is about to.
    pub(crate) fn is_succeeded(&self) -> bool {
        self.succeeded.load(Acquire)
    }

    pub(crate) fn set_succeeded(&self, succeeded: bool) {
        self.succeeded.store(succeeded, Release);
    }

    /// This instance's summary, at most a second or two old. `None`: none was gathered yet.
    pub(crate) fn summary(&self) -> Option<Arc<InstanceSummary>> {
        self.summary.load_full()
    }

    /// Shows the summary, and leaves it for the link, which looks every few milliseconds.
    pub fn show_summary(&self, summary: InstanceSummary) {
        let summary = Arc::new(summary);
        self.summary.store(Some(summary.clone()));
        self.untold_summary.store(Some(summary));
    }

    /// Takes the summary that the link has not seen yet.
    pub(crate) fn take_summary(&self) -> Option<Arc<InstanceSummary>> {
        self.untold_summary.swap(None)
    }

    /// What the failover knows of the peers after all that the link tells it up to [`Remote::Save`](crate::model::fleet::Remote).
    pub(crate) fn await_known(&self) -> oneshot::Receiver<KnownPeers> {
        let (sender, known) = oneshot::channel();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        known
    }

    /// Answers [`Fleet::await_known`], if somebody waits.
    pub(crate) fn tell_known(&self, known: impl FnOnce() -> KnownPeers) {
        let awaited = self.known.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = awaited {
            let _ = sender.send(known());
        }
    }

    /// Whether this instance may take a VIP: it has no peers, or knows their flows, or has waited for them long enough.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_enabled() || self.ready.load(Relaxed)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Whether all flows of this instance were reported.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Relaxed)
    }

    /// An earlier process's flows have been recovered, or there are none. Before that, peers are told of no flow.
    pub(crate) fn set_whole(&self) {
        self.whole.store(true, Release);
    }
}
