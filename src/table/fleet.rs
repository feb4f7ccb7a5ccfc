//! The other instances of a fleet as this one knows them, and the counters of the fleet's parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::count::Tally;
pub(crate) use crate::model::fleet::MemberView;
use crate::model::fleet::evacuate::Places;
use crate::model::fleet::failover::ClientsAtPeers;
use crate::model::fleet::vip::VipView;
use crate::model::fleet::{InstanceName, Strangeness};

/// The fleet for status and metrics, in cache lines of its own. Unused without peers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct FleetView {
    members: ArcSwap<Vec<MemberView>>,
    /// Since when at least one of them is heard, monotonic; 0: never.
    heard_since_ns: AtomicU64,
    /// How often the process before this one sent each peer a new snapshot.
    resyncs_before: ArcSwap<BTreeMap<String, u64>>,
    /// Where the frontends' addresses are on this host.
    places: ArcSwap<Places>,
    /// The VIP as this instance sees it. `None`: Baton does not move it.
    vip: ArcSwapOption<VipView>,
    /// The clients of the others' flows. `None`: no failover runs, which keeps count of them.
    clients: ArcSwapOption<ClientsAtPeers>,
    /// Number of each peer's offloaded flows that this instance would reset, because it has neither their frontend nor their backend any more.
    unserved: ArcSwap<BTreeMap<InstanceName, usize>>,
    pub census: FleetCensus,
}

/// Counters of the fleet's parts.
#[derive(Debug, Default)]
pub struct FleetCensus {
    /// `baton_unknown_packets_total` by outcome: packets of flows that were not this instance's.
    pub reset: Tally,
    pub inherited: Tally,
    pub dropped: Tally,
    pub challenged: Tally,
    pub failovers: Tally,
    /// `baton_peer_flows_refused_total` by reason: flows of peers that were not taken.
    refused_frontend: Tally,
    refused_port: Tally,
    refused_crowd: Tally,
    /// Present number of peers' flows for which this host's map has no room.
    pub no_standby: AtomicU64,
}

impl FleetCensus {
    pub(crate) fn refused(&self, why: Strangeness) -> &Tally {
        match why {
            Strangeness::Frontend => &self.refused_frontend,
            Strangeness::Port => &self.refused_port,
            Strangeness::Crowd => &self.refused_crowd,
        }
    }

    /// All counters by name, for an upgrade.
    pub(crate) fn tallies(&self) -> Vec<(String, &Tally)> {
        let Self { reset, inherited, dropped, challenged, failovers, no_standby: _, .. } = self;
        let Self { refused_frontend, refused_port, refused_crowd, .. } = self;
        let all = [
            ("reset", reset),
            ("inherited", inherited),
            ("dropped", dropped),
            ("challenged", challenged),
            ("failovers", failovers),
            ("refused_frontend", refused_frontend),
            ("refused_port", refused_port),
            ("refused_crowd", refused_crowd),
        ];
        all.into_iter().map(|(name, tally)| (format!("fleet {name}"), tally)).collect()
    }
}

impl FleetView {
    pub(crate) fn members(&self) -> Arc<Vec<MemberView>> {
        self.members.load_full()
    }

    /// Publishes the members at `now_ns`.
    pub fn show_members(&self, mut members: Vec<MemberView>, now_ns: u64) {
        if !self.hears_one() && members.iter().any(MemberView::is_heard) {
            self.heard_since_ns.store(now_ns, Relaxed);
        }
        let before = self.resyncs_before.load();
        members.iter_mut().for_each(|it| it.resyncs += before.get(&*it.name.0).copied().unwrap_or(0));
        self.members.store(Arc::new(members));
    }

    /// Whether at least one other instance is heard.
    pub(crate) fn hears_one(&self) -> bool {
        self.members.load().iter().any(MemberView::is_heard)
    }

    /// Since when that is so, or last was, in monotonic ns; 0: never.
    pub(crate) fn heard_since_ns(&self) -> u64 {
        self.heard_since_ns.load(Relaxed)
    }

    /// How often each peer was sent a new snapshot, earlier processes included.
    pub(crate) fn resyncs(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::clone(&self.resyncs_before.load());
        all.extend(self.members().iter().map(|it| (it.name.0.to_string(), it.resyncs)));
        all
    }

    /// Sets an earlier process's snapshots per peer, in place of an earlier value.
    pub(crate) fn carry_resyncs(&self, before: BTreeMap<String, u64>) {
        self.resyncs_before.store(Arc::new(before));
    }

    pub(crate) fn places(&self) -> Arc<Places> {
        self.places.load_full()
    }

    pub(crate) fn vip(&self) -> Option<Arc<VipView>> {
        self.vip.load_full()
    }

    pub(crate) fn show_vip(&self, view: Option<VipView>) {
        self.vip.store(view.map(Arc::new));
    }

    /// The clients of the others' flows, perhaps a second ago.
    pub(crate) fn clients(&self) -> Option<Arc<ClientsAtPeers>> {
        self.clients.load_full()
    }

    pub(crate) fn show_clients(&self, clients: Arc<ClientsAtPeers>) {
        self.clients.store(Some(clients));
    }

    /// Number of `peer`'s offloaded flows that this instance could not carry on for want of a frontend, perhaps a second ago.
    pub(crate) fn unserved(&self, peer: &InstanceName) -> usize {
        self.unserved.load().get(peer).copied().unwrap_or(0)
    }

    pub(crate) fn show_unserved(&self, unserved: BTreeMap<InstanceName, usize>) {
        if **self.unserved.load() != unserved {
            self.unserved.store(Arc::new(unserved));
        }
    }

    pub(crate) fn show_places(&self, places: Places) {
        self.places.store(Arc::new(places));
    }
}
