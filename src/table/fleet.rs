//! Where the parts that make a fleet meet: workers and path tell of this instance's flows, the peer link tells of the others',
//! and the failover decides what becomes of them.
//!
//! ```text
//!   workers, path ──Local──▶ │ peer │ ══ link ══▶ other instances
//!                            │ link │ ──Remote──▶ failover ──Request──▶ path
//!                            │      │ ◀──Command─ failover
//! ```
//! `Remote` and `Command` go through channels that `app` makes; `Local` through a queue here, so that a worker never waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_queue::SegQueue;
use tokio::sync::watch;

use super::count::Tally;
use crate::model::fleet::PortRange;
use crate::model::fleet::evacuate::Places;
pub use crate::model::fleet::{Asked, Local, MemberView, PeerCommand, Remote};

/// The shared state of a fleet. Without peers nothing of it is used.
#[derive(Debug, Default)]
pub struct Fleet {
    enabled: AtomicBool,
    local: SegQueue<Local>,
    members: ArcSwap<Vec<MemberView>>,
    /// Since when one of them at least is heard, monotonic; 0: never.
    heard_since_ns: AtomicU64,
    /// How often the process before this one told each peer everything anew.
    resyncs_before: ArcSwap<BTreeMap<String, u64>>,
    /// Every peer is synced, or the deadline for that has passed with nobody to be reached.
    ready: AtomicBool,
    /// What an earlier process left has been inherited.
    whole: AtomicBool,
    /// Packets of one flow may come to several instances.
    shared: AtomicBool,
    /// Where the frontends' addresses are on this host.
    places: ArcSwap<Places>,
    /// The addresses are to be on `lo` as well: they are about to leave.
    keeping: watch::Sender<bool>,
    /// Flows go to another process of this host, which then sees to what they need.
    succeeded: AtomicBool,
    /// Of backend legs of this instance; all of the host's if none is set.
    ports: OnceLock<PortRange>,
    pub census: FleetCensus,
}

/// What the fleet's parts have counted.
#[derive(Debug, Default)]
pub struct FleetCensus {
    /// `baton_unknown_packets_total` by outcome: packets of flows that were not this instance's.
    pub reset: Tally,
    pub inherited: Tally,
    pub dropped: Tally,
    pub challenged: Tally,
    pub failovers: Tally,
    /// Peers' flows that this host's map has no room for, now.
    pub no_standby: AtomicU64,
}

impl FleetCensus {
    /// All of them by name, for an upgrade.
    pub fn tallies(&self) -> Vec<(String, &Tally)> {
        let Self { reset, inherited, dropped, challenged, failovers, no_standby: _ } = self;
        let all = [
            ("reset", reset),
            ("inherited", inherited),
            ("dropped", dropped),
            ("challenged", challenged),
            ("failovers", failovers),
        ];
        all.into_iter().map(|(name, tally)| (format!("fleet {name}"), tally)).collect()
    }
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

    pub fn next_local(&self) -> Option<Local> {
        self.local.pop()
    }

    pub fn members(&self) -> Arc<Vec<MemberView>> {
        self.members.load_full()
    }

    /// As they are at `now_ns`.
    pub fn show_members(&self, mut members: Vec<MemberView>, now_ns: u64) {
        if !self.hears_one() && members.iter().any(MemberView::is_heard) {
            self.heard_since_ns.store(now_ns, Relaxed);
        }
        let before = self.resyncs_before.load();
        members.iter_mut().for_each(|it| it.resyncs += before.get(&*it.name.0).copied().unwrap_or(0));
        self.members.store(Arc::new(members));
    }

    /// Whether one of the other instances is heard.
    pub fn hears_one(&self) -> bool {
        self.members.load().iter().any(MemberView::is_heard)
    }

    /// Since when that is so, or last was, in monotonic ns; 0: never.
    pub fn heard_since_ns(&self) -> u64 {
        self.heard_since_ns.load(Relaxed)
    }

    /// How often each peer was told everything anew, earlier processes included.
    pub fn resyncs(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::clone(&self.resyncs_before.load());
        all.extend(self.members().iter().map(|it| (it.name.0.to_string(), it.resyncs)));
        all
    }

    /// Counts in how often an earlier process told each peer everything anew, in place of what was counted in before.
    pub fn carry_resyncs(&self, before: BTreeMap<String, u64>) {
        self.resyncs_before.store(Arc::new(before));
    }

    pub fn places(&self) -> Arc<Places> {
        self.places.load_full()
    }

    pub fn show_places(&self, places: Places) {
        self.places.store(Arc::new(places));
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
