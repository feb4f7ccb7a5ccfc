//! What the other instances of a fleet are like, as this one knows them, and what its parts have counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use arc_swap::ArcSwap;

use super::count::Tally;
pub use crate::model::fleet::MemberView;
use crate::model::fleet::evacuate::Places;

/// A fleet as people are shown it, in cache lines of its own. Without peers nothing of it is used.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct FleetView {
    members: ArcSwap<Vec<MemberView>>,
    /// Since when one of them at least is heard, monotonic; 0: never.
    heard_since_ns: AtomicU64,
    /// How often the process before this one told each peer everything anew.
    resyncs_before: ArcSwap<BTreeMap<String, u64>>,
    /// Where the frontends' addresses are on this host.
    places: ArcSwap<Places>,
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

impl FleetView {
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
}
