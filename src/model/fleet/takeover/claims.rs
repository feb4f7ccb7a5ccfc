//! Who looks after a flow that has no sockets: whoever gets its packets, one at a time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Action, Command, HeldRequest, InstanceName, Known, Mine, Note, Pulse, State, Takeover, Timer};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

/// Who has claimed a flow tells of it within this, or it has ended before its turn came.
const PROMISED_NS: u64 = 5_000_000_000;

impl Takeover {
    /// The packets of these flows' clients come here.
    pub(super) fn claim(&mut self, now_ns: u64, flows: Vec<FlowId>) {
        let mut by_owner: BTreeMap<InstanceName, Vec<FlowId>> = BTreeMap::new();
        let mut adopted = Vec::new();
        for id in flows {
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
        self.actions.push_back(Action::Path(HeldRequest::Adopt(adopted)));
    }

    pub(super) fn claimed_by(&mut self, now_ns: u64, by: InstanceName, flows: Vec<(FlowId, Option<Ends>)>) {
        self.actions.push_back(Action::Note(Note::Released { to: by.clone(), flows: flows.len() }));
        if self.settings.carries {
            self.actions.push_back(Action::Path(HeldRequest::Release(flows.iter().map(|(id, _)| *id).collect())));
        }
        for (id, ends) in &flows {
            let was_mine = self.mine.remove(id).and_then(|mine| mine.ends);
            // Until it says more of them itself: their packets may come here again at once.
            if let Some(ends) = was_mine.or(*ends).filter(|_| !self.flows.contains_key(id)) {
                self.promised_to(now_ns, &by, *id, ends);
            }
        }
    }

    /// `owner` has given a flow to `to`, who may have told of it already.
    pub(super) fn moved(&mut self, now_ns: u64, owner: &InstanceName, id: FlowId, to: &InstanceName) {
        let Some(known) = self.flows.get(&id) else { return };
        let promised = known.owner == *owner
            && known.state == State::Held
            && !known.also.contains(to)
            && self.peers.contains_key(to);
        if !promised {
            return self.ended(now_ns, owner, id);
        }
        let ends = known.ends;
        self.take_out(id);
        self.promised_to(now_ns, to, id, ends);
    }

    /// As [`Takeover::held_for`], though `owner` has not told of it yet.
    fn promised_to(&mut self, now_ns: u64, owner: &InstanceName, id: FlowId, ends: Ends) {
        self.held_for(owner, id, ends);
        if let Some(known) = self.flows.get_mut(&id) {
            known.told = false;
            self.timers.set(now_ns + PROMISED_NS, Timer::Promised(id));
        }
        if self.peers.get(owner).is_some_and(|peer| peer.is_dead) {
            self.bury_flows(owner, |its| *its == ends);
        }
    }

    pub(super) fn promise_due(&mut self, now_ns: u64, id: FlowId) {
        let Some(known) = self.flows.get(&id).filter(|known| !known.told && known.state == State::Held) else { return };
        let peer = self.peers.get(&known.owner);
        match peer.is_some_and(|peer| peer.synced && peer.pulse == Pulse::Alive) {
            true => self.remove(id),
            false => self.timers.set(now_ns + PROMISED_NS, Timer::Promised(id)),
        }
    }

    /// What the path has of it is the owner's.
    pub(super) fn held_for(&mut self, owner: &InstanceName, id: FlowId, ends: Ends) {
        if let Some(peer) = self.peers.get_mut(owner) {
            peer.flows.insert(id);
            let state = State::Held;
            self.flows.insert(id, Known { owner: owner.clone(), ends, state, also: Vec::new(), told: true });
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
