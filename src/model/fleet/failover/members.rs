//! A reload: instances and addresses that come to the fleet, or leave it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::peer::PeerState;
use super::{Failover, Settings};
use crate::model::fleet::{InstanceName, StandbyRequest};

impl Failover {
    pub(super) fn joined(&mut self, owner: InstanceName, link: IpAddr) {
        self.peers.entry(owner).or_insert_with(|| PeerState::new(link)).link = link;
        self.show_port_ranges();
    }

    /// Nothing of it is left: packets of its flows are unknown ones from now on.
    pub(super) fn gone(&mut self, owner: &InstanceName) {
        let Some(peer) = self.peers.get(owner) else { return };
        peer.flows.iter().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.remove(id));
        self.peers.remove(owner);
        self.flows.values_mut().for_each(|known| known.also.retain(|other| other != owner));
        self.rounds.retain(|_, round| round.from != *owner);
        self.last_owners.retain(|_, last| last != owner);
        self.untold.retain(|_, untold| untold.from != *owner);
        self.see_sharing();
        self.show_port_ranges();
        self.settle();
    }

    /// The file has been read again. Of this instance itself nothing changes, and members come and go by what the link says.
    pub fn handle_settings(&mut self, now_ns: u64, settings: Settings) {
        let vips: BTreeSet<_> = settings.vips.iter().map(|vip| vip.ip()).collect();
        let Settings { vips: all, challenge, guard_ns, priority, .. } = settings;
        let known: BTreeSet<_> = self.settings.vips.iter().map(|vip| vip.ip()).collect();
        (self.settings.vips, self.settings.challenge, self.settings.guard_ns) = (all, challenge, guard_ns);
        self.settings.priority = priority;
        if let Some(here) = &mut self.here {
            // What is here has not come just now: it only counts from now on.
            let addresses: BTreeSet<_> = here.union(&self.own).copied().collect();
            (*here, self.own) = addresses.into_iter().partition(|ip| vips.contains(ip));
        }
        self.last_owners.retain(|ip, _| vips.contains(ip));
        self.just_came.retain(|ip, _| vips.contains(ip));
        let serves = |vip: &crate::addr::VipAddr| match vip.port() {
            0 => vips.contains(&vip.ip()),
            _ => self.settings.vips.contains(vip),
        };
        let over: Vec<_> = self.rules.keys().copied().filter(|vip| !serves(vip)).collect();
        for vip in over {
            self.rules.remove(&vip);
            self.agenda.path(StandbyRequest::Unknown { vip, unknown: None });
        }
        let added: Vec<_> = vips.difference(&known).copied().filter(|ip| self.is_here(*ip)).collect();
        let dead: Vec<_> = self.peers.iter().filter(|(_, peer)| peer.is_dead).map(|(name, _)| name.clone()).collect();
        dead.iter().for_each(|owner| self.bury_where(owner, &added));
        self.see_last_owners();
        self.see_sharing();
        self.show_port_ranges();
        self.settle();
        self.renew_rules(now_ns);
        self.check();
    }
}
