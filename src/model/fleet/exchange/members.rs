//! Who the peers are.

use super::{Exchange, Member, PeerReport, Session};
use crate::model::fleet::{Epoch, Farewell, InstanceName, Liveness, Remote};

impl Exchange {
    /// Sets the members of the fleet besides this instance. A peer that is no longer a member is forgotten with its
    /// flows.
    pub(crate) fn set_members(&mut self, members: &[Member], now_ns: u64) {
        // A reload reaches all instances: if all of them waited for a new peer before they are ready, no instance would
        // serve.
        let health_state = if self.is_ready() { PeerReport::Settled } else { PeerReport::Awaited { since_ns: now_ns } };
        let gone: Vec<_> = self
            .sessions
            .values()
            .filter(|session| {
                !members.iter().any(|it| it.name == session.name && it.address.ip() == session.address.ip())
            })
            .map(|session| session.name.clone())
            .collect();
        for name in gone {
            self.drops.push_back((name.clone(), "it is no longer in the configuration".to_owned()));
            self.remove(name, now_ns);
        }
        self.join(members, health_state);
    }

    /// What `peer` has told counts no more, nor do its beats: whoever told it had a key that is no longer this peer's.
    pub(crate) fn forget(&mut self, peer: &InstanceName, now_ns: u64) {
        let Some(address) = self.sessions.get(peer).map(|session| session.address) else { return };
        self.remove(peer.clone(), now_ns);
        self.join(&[Member { name: peer.clone(), address }], PeerReport::Settled);
    }

    fn remove(&mut self, name: InstanceName, now_ns: u64) {
        if let Some(session) = self.sessions.remove(&name).filter(|session| session.epoch != Epoch::default()) {
            let slot = session.view(&self.mirror, now_ns).slot.unwrap_or_default();
            self.remotes.push_back(Remote::Begin { owner: name.clone(), epoch: session.epoch, slot });
            self.remotes.push_back(Remote::Synced { owner: name.clone() });
            let liveness = Liveness::Left(Farewell::Stopped);
            self.remotes.push_back(Remote::Liveness { owner: name.clone(), liveness });
        }
        self.remotes.push_back(Remote::Gone { owner: name });
    }

    pub(super) fn join(&mut self, members: &[Member], health_state: PeerReport) {
        for Member { name, address } in members.iter().filter(|member| member.name != self.own.name) {
            let why_not = match self.dials(name) {
                true => "not reached yet",
                false => "it has not connected yet",
            };
            if let Some(session) = self.sessions.get_mut(name) {
                // Its host is the same, so its flows are too.
                session.address = *address;
            } else {
                // The first event about this peer.
                self.remotes.push_back(Remote::Joined { owner: name.clone(), link: address.ip() });
                self.sessions.insert(name.clone(), Session::new(name.clone(), *address, why_not, health_state));
            }
        }
    }
}
