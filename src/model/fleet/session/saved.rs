//! A peer, for the process that follows in an upgrade, and from the process before.

use super::{PeerReport, Session};
use crate::model::fleet::{Liveness, PeerVitals, SavedPeer, SavedPeerFlow, SavedTraits};

impl Session {
    pub(in crate::model::fleet) fn save(&self, now_ns: u64) -> SavedPeer {
        SavedPeer {
            name: self.name.clone(),
            link: self.address.ip(),
            public_key: None,
            vitals: self.vitals.clone(),
            settled: self.health_state == PeerReport::Settled,
            looked_ns: now_ns,
            addresses: self.has_told_addresses.then(|| self.vips.clone()),
            flows: self.flows.len() as u64,
            known: SavedTraits::default(),
        }
    }

    /// The process before this one knew the peer so. `is_whole`: all its flows follow.
    pub(in crate::model::fleet) fn restore(&mut self, saved: &SavedPeer, is_whole: bool, now_ns: u64) {
        self.vitals = PeerVitals { synced: saved.vitals.synced && is_whole, ..saved.vitals.clone() };
        if saved.settled && is_whole {
            self.health_state = PeerReport::Settled;
        }
        self.has_told_addresses = saved.addresses.is_some();
        self.vips = saved.addresses.clone().unwrap_or_default();
        self.heard_nobody_since(saved.looked_ns, now_ns);
    }

    pub(in crate::model::fleet) fn restore_flow(&mut self, flow: &SavedPeerFlow) {
        let to = flow.is_offloaded().then(|| flow.ends.backend.ip());
        let before = self.flows.insert(flow.fleet_id(), to);
        self.discount(before);
        if let Some(to) = to {
            self.offloaded += 1;
            *self.offloaded_to.entry(to).or_default() += 1;
        }
    }

    /// This host listened to nobody since then, and has no link: that is no silence of the peer. It counts as heard beside the link, so
    /// that there is time for a beat or a new link before it counts as silent.
    pub(in crate::model::fleet) fn heard_nobody_since(&mut self, since_ns: u64, now_ns: u64) {
        let absence_ns = now_ns.saturating_sub(since_ns);
        for at_ns in [&mut self.vitals.heard_ns, &mut self.vitals.witnessed_ns, &mut self.vitals.beat_ns] {
            *at_ns = at_ns.map(|at_ns| at_ns.saturating_add(absence_ns).min(now_ns));
        }
        self.vitals.left_ns = self.vitals.left_ns.saturating_add(absence_ns).min(now_ns);
        if matches!(self.vitals.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent) {
            self.vitals.witnessed_ns = self.vitals.witnessed_ns.max(self.vitals.heard_ns);
        }
        self.liveness_now(now_ns);
    }
}
