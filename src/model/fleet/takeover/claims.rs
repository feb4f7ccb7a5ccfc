//! Who looks after a flow that has no sockets: whoever gets its packets, one at a time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Action, Command, HeldRequest, InstanceName, Known, Mine, Note, State, Takeover};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

impl Takeover {
    /// The packets of these flows' clients come here.
    pub(super) fn claim(&mut self, now_ns: u64, flows: Vec<FlowId>) {
        let mut by_owner: BTreeMap<InstanceName, Vec<FlowId>> = BTreeMap::new();
        let mut adopted = Vec::new();
        for id in flows {
            if self.flows.get(&id).is_some_and(|known| self.is_stuck(&known.ends)) {
                continue;
            }
            // Its packets come here, whatever others say of it for some time.
            let touched = Mine { ends: None, touched_ns: now_ns };
            self.mine.entry(id).or_insert(touched).touched_ns = now_ns;
            // Without an owner: it was released to one that has not been heard of since.
            if let Some(known) = self.take_out(id) {
                self.mine.insert(id, Mine { ends: Some(known.ends), touched_ns: now_ns });
                by_owner.entry(known.owner).or_default().push(id);
            }
            adopted.push(id);
        }
        // Said before this instance tells of them as its own: their owner would take that for a second claim to them.
        for (owner, flows) in by_owner {
            self.actions.push_back(Action::Note(Note::Claimed { from: owner.clone(), flows: flows.len() }));
            self.actions.push_back(Action::Send(Command::Claim { owner, flows }));
        }
        if !adopted.is_empty() {
            self.actions.push_back(Action::Path(HeldRequest::Adopt(adopted)));
        }
    }

    pub(super) fn claimed_by(&mut self, by: InstanceName, flows: Vec<FlowId>) {
        for id in &flows {
            // Until it says more of them itself: their packets may come here again at once.
            if let Some(Mine { ends: Some(ends), .. }) = self.mine.remove(id) {
                self.held_for(&by, *id, ends);
            }
        }
        self.actions.push_back(Action::Note(Note::Released { to: by, flows: flows.len() }));
        if self.settings.carries {
            self.actions.push_back(Action::Path(HeldRequest::Release(flows)));
        }
    }

    /// What the path has of it is the owner's.
    pub(super) fn held_for(&mut self, owner: &InstanceName, id: FlowId, ends: Ends) {
        if let Some(peer) = self.peers.get_mut(owner) {
            peer.flows.insert(id);
            self.flows.insert(id, Known { owner: owner.clone(), ends, state: State::Held, also: Vec::new() });
        }
    }

    /// The path was to hold these for others, and has them as this instance's own.
    pub(super) fn also_ours(&mut self, flows: &[FlowId]) {
        for id in flows {
            let Some(known) = self.flows.get(id).filter(|known| known.state == State::Held) else { continue };
            let (owner, ends) = (known.owner.clone(), known.ends);
            match self.prevails_over(&owner, ends.vip.ip()) {
                true => {
                    self.take_out(*id);
                    self.mine.insert(*id, Mine { ends: Some(ends), touched_ns: 0 });
                    self.actions.push_back(Action::Send(Command::Claim { owner, flows: vec![*id] }));
                }
                false => self.actions.push_back(Action::Path(HeldRequest::Release(vec![*id]))),
            }
        }
    }

    /// Of two that both look after a flow of `vip`, whether this one goes on with it. If both think so, or neither does, it is
    /// nobody's for a moment, and then whose its packets come to.
    pub(super) fn prevails_over(&self, owner: &InstanceName, vip: IpAddr) -> bool {
        self.prevails_by_address(owner, vip).unwrap_or(self.settings.me < *owner)
    }

    /// `None`: both have the address, or neither.
    pub(super) fn prevails_by_address(&self, owner: &InstanceName, vip: IpAddr) -> Option<bool> {
        let there = self.peers.get(owner).is_some_and(|peer| peer.addresses.contains(&vip));
        let here = self.is_here(vip);
        (here != there).then_some(here)
    }
}
