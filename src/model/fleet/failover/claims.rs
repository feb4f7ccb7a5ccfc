//! Who looks after a flow that has no sockets: whoever gets its packets, one at a time.

use std::collections::BTreeMap;

use super::flows::{Known, KnownState};
use super::{Failover, FleetId, InstanceName, Mine, Note, PeerCommand, StandbyRequest, Timer};
use crate::model::ends::Ends;

/// Who has claimed a flow tells of it within this, unless another claim has crossed with it.
const PROMISED_NS: u64 = 2_000_000_000;
/// Whoever has told of all its flows, and not of this one in so many times as long, does not have it.
const PROMISES_MAX: u32 = 15;
/// A claim that explains why another instance says of a flow of this one's that it is its own has come within this.
const CONTESTED_NS: u64 = 1_000_000_000;

impl Failover {
    /// The packets of these flows' clients come here.
    pub(super) fn claim(&mut self, now_ns: u64, flows: Vec<FleetId>) {
        let mut by_owner: BTreeMap<InstanceName, Vec<FleetId>> = BTreeMap::new();
        let mut inherited = Vec::new();
        for id in flows {
            if self.flows.get(&id).is_some_and(|known| self.members.is_stuck(&known.ends)) {
                continue;
            }
            // Its packets come here, whatever others say of it for some time.
            let touched = Mine { ends: None, from: None, touched_ns: now_ns };
            self.mine.entry(id).or_insert(touched).touched_ns = now_ns;
            // Without an owner: it was released to one that has not been heard of since.
            if let Some(known) = self.flows.take_out(id) {
                let from = Some(known.owner.clone());
                self.mine.insert(id, Mine { ends: Some(known.ends), from, touched_ns: now_ns });
                by_owner.entry(known.owner).or_default().push(id);
            }
            inherited.push(id);
        }
        // Said before this instance tells of them as its own: their owner would take that for a second claim to them.
        for (owner, flows) in by_owner {
            self.agenda.note(Note::Claimed { from: owner.clone(), flows: flows.len() });
            self.agenda.claim(owner, flows);
        }
        if !inherited.is_empty() {
            self.agenda.path(StandbyRequest::Inherit(inherited));
        }
    }

    pub(super) fn claimed_by(&mut self, now_ns: u64, by: InstanceName, flows: Vec<(FleetId, Option<Ends>)>) {
        self.agenda.note(Note::Released { to: by.clone(), flows: flows.len() });
        self.agenda.carry(StandbyRequest::Release(flows.iter().map(|(id, _)| *id).collect()));
        for (id, ends) in &flows {
            self.contested.remove(id);
            let was_mine = self.mine.remove(id).and_then(|mine| mine.ends);
            // Until it says more of them itself: their packets may come here again at once.
            if let Some(ends) = was_mine.or(*ends).filter(|_| self.flows.get(id).is_none()) {
                self.promised_to(now_ns, &by, *id, ends);
            }
        }
    }

    /// `owner` has given a flow to `to`, who may have told of it already.
    pub(super) fn moved(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, to: &InstanceName) {
        let Some(known) = self.flows.get(&id) else { return };
        if known.owner != *owner || known.state != KnownState::Held || !known.also.is_empty() {
            // Others have told of it: who does not have it any more says so, too.
            return self.ended(now_ns, owner, id);
        }
        let ends = known.ends;
        // To this one, from which it was claimed back before this came: it stays with who has claimed it last.
        let to = if *to == self.members.settings().me { owner } else { to };
        if self.members.peer(to).is_some() {
            self.flows.take_out(id);
            self.promised_to(now_ns, to, id, ends);
        } else {
            self.ended(now_ns, owner, id);
        }
    }

    /// As `KnownFlows::held_for`, though `owner` has not told of it yet.
    fn promised_to(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, ends: Ends) {
        if self.flows.same_ends(id).is_some_and(|other| other != id) {
            // It has told of it, under another id.
            return;
        }
        if self.flows.promised_to(owner, id, ends) {
            self.agenda.later(now_ns + PROMISED_NS, Timer::Promised(id, 1));
        }
        if self.members.is_dead(owner) {
            self.bury_flows(owner, |its| *its == ends);
        }
    }

    pub(super) fn promise_due(&mut self, now_ns: u64, id: FleetId, times: u32) {
        let Some(known) = self.flows.held(&id).filter(|known| !known.told) else {
            return;
        };
        let owner = self.members.peer(&known.owner);
        if self.members.is_heir(known.ends.vip.ip()) {
            self.claim(now_ns, vec![id]);
        } else if times >= PROMISES_MAX && owner.is_some_and(|owner| owner.is_synced() && !owner.is_dead()) {
            // It ended there before its former owner said where it is.
            self.flows.remove(id, &mut self.agenda);
        } else {
            self.agenda.later(now_ns + PROMISED_NS, Timer::Promised(id, times.saturating_add(1)));
        }
    }

    /// The offload engine was to hold these for others, and has them as this instance's own.
    pub(super) fn also_ours(&mut self, now_ns: u64, flows: &[FleetId]) {
        for id in flows {
            let Some(known) = self.flows.held(id) else { continue };
            let others: Vec<_> = known.also.iter().chain([&known.owner]).collect();
            let verdicts: Vec<_> =
                others.iter().map(|it| self.members.prevails_by_address(it, known.ends.vip.ip())).collect();
            if let Some(has_address) = verdicts.iter().position(|verdict| *verdict == Some(false)) {
                let to = others[has_address].clone();
                self.leave(to, *id);
            } else if verdicts.contains(&None) {
                // Most likely a third one has claimed it here, the owner there, and that word comes first.
                self.contested.insert(*id);
                self.agenda.later(now_ns + CONTESTED_NS, Timer::Contested(*id));
            } else {
                self.prevail(*id);
            }
        }
    }

    pub(super) fn contest_due(&mut self, id: FleetId) {
        if self.contested.remove(&id)
            && let Some(known) = self.flows.held(&id)
        {
            let others: Vec<_> = known.also.iter().chain([&known.owner]).collect();
            match others.into_iter().find(|other| !self.members.prevails_over(other, known.ends.vip.ip())).cloned() {
                Some(to) => self.leave(to, id),
                None => self.prevail(id),
            }
        }
    }

    /// Of a flow that this one looks after, as does `to`: it goes on there. That it ends here is said as what it is, for each
    /// of several may leave it to another of them, and who takes that for its end drops it.
    pub(super) fn leave(&mut self, to: InstanceName, id: FleetId) {
        self.agenda.send(PeerCommand::Leave { to, flow: id });
        self.agenda.path(StandbyRequest::Release(vec![id]));
    }

    /// Of a flow that this one looks after, as do one or more others: it goes on here.
    fn prevail(&mut self, id: FleetId) {
        if let Some(Known { owner, ends, also, .. }) = self.flows.take_out(id) {
            self.mine.insert(id, Mine { ends: Some(ends), from: Some(owner.clone()), touched_ns: 0 });
            [owner].into_iter().chain(also).for_each(|owner| self.agenda.claim(owner, vec![id]));
            // It may have ended meanwhile, which is said then.
            self.agenda.carry(StandbyRequest::Inherit(vec![id]));
        }
    }

    /// Nobody else's word about them is to be contradicted any more.
    pub(super) fn over(&mut self, flows: &[FleetId]) {
        for id in flows {
            self.mine.remove(id);
        }
    }
}
