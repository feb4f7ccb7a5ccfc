//! The fleet as one process leaves it to the next in an upgrade.

use super::Exchange;
use crate::model::fleet::{Epoch, Farewell, Message, Remote, SavedFleet, SavedPeer};

impl Exchange {
    /// All that this instance knows of its peers, for the process that follows. The failover is asked as well, after all that it was told
    /// before.
    pub(crate) fn save(&mut self, now_ns: u64) -> Vec<SavedPeer> {
        self.remotes.push_back(Remote::Save);
        self.sessions.values().map(|session| session.save(now_ns)).collect()
    }

    /// What the process before this one knew, before any link. Where the configuration has the peers no more, or on other hosts, it is
    /// left out.
    pub(crate) fn restore(&mut self, fleet: SavedFleet, now_ns: u64) {
        let mut all = Vec::new();
        for saved in &fleet.peers {
            let session = self.sessions.get_mut(&saved.name).filter(|it| it.address.ip() == saved.link);
            let Some(session) = session else { continue };
            let is_whole = fleet.is_whole(saved);
            session.restore(saved, is_whole, now_ns);
            let owner = saved.name.clone();
            if saved.vitals.epoch != Epoch::default() {
                let slot = saved.vitals.slot.unwrap_or_default();
                self.remotes.push_back(Remote::Begin { owner: owner.clone(), epoch: saved.vitals.epoch, slot });
            }
            let vips = saved.addresses.clone().unwrap_or_default();
            self.remotes.push_back(Remote::Addresses { owner: owner.clone(), vips });
            let known = Box::new(saved.known.clone());
            self.remotes.push_back(Remote::RestoredPeer { owner: owner.clone(), known });
            all.push(owner);
        }
        for part in fleet.flows {
            if let Some(session) = self.sessions.get_mut(&part.peer).filter(|_| all.contains(&part.peer)) {
                part.flows.iter().for_each(|flow| session.restore_flow(flow));
                self.remotes.push_back(Remote::RestoredFlows { owner: part.peer, flows: part.flows });
            }
        }
        for owner in all {
            let Some(session) = self.sessions.get(&owner) else { continue };
            let liveness = session.vitals.liveness;
            if session.vitals.synced {
                self.remotes.push_back(Remote::Synced { owner: owner.clone() });
            }
            self.remotes.push_back(Remote::Liveness { owner, liveness });
        }
        self.remotes.push_back(Remote::Restored);
    }

    /// Queues a farewell to all peers. From now on their silence means nothing.
    pub(crate) fn farewell(&mut self, farewell: Farewell) {
        self.away = true;
        for session in self.sessions.values_mut() {
            session.say(Message::Farewell(farewell));
        }
    }

    /// This instance begins another epoch: it was about to be replaced, and continues after all. Its links are gone.
    pub(crate) fn begin_again(&mut self, epoch: Epoch, now_ns: u64) {
        self.own.epoch = epoch;
        let since_ns = std::mem::replace(&mut self.looked_ns, now_ns);
        if std::mem::take(&mut self.away) {
            let mut changed = Vec::new();
            for session in self.sessions.values_mut() {
                let before = session.vitals.liveness;
                session.heard_nobody_since(since_ns, now_ns);
                changed.extend(
                    (session.vitals.liveness != before).then(|| (session.name.clone(), session.vitals.liveness)),
                );
            }
            changed.into_iter().for_each(|(peer, liveness)| self.liveness_changed(peer, liveness));
        }
    }
}
