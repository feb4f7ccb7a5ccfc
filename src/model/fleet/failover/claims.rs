//! Which instance owns an offloaded flow: the one that gets its packets, and only one at a time.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Note;
use super::agenda::Agenda;
use super::flows::{Known, KnownFlows};
use super::members::Members;
use super::timer::Timer;
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, InstanceName, PeerCommand, StandbyRequest};

/// The flows that this instance inherited or claimed from others, and those of its own that others claim.
#[derive(Debug, Default)]
pub(super) struct FlowClaims {
    /// Flows of other instances that this one has inherited or claimed, or that another instance says this one owns, until they
    /// end.
    mine: HashMap<FleetId, Mine>,
    /// Flows of this instance that another instance also claims.
    contested: HashSet<FleetId>,
}

/// A flow that was another instance's.
#[derive(Clone, Debug)]
struct Mine {
    /// `None`: not known any more, or not yet.
    ends: Option<Ends>,
    from: Option<InstanceName>,
    /// When the last packets of its client came while another instance owned it; 0: never.
    touched_ns: u64,
}

/// For so long after a flow's packets have come here this instance keeps it, even if others claim it.
const TOUCHED_NS: u64 = 2_000_000_000;
/// An instance that has claimed a flow tells of it within this time, unless its claim has crossed with another.
const PROMISED_NS: u64 = 2_000_000_000;
/// If an instance has told all its flows, and has not named this one for so many times `PROMISED_NS`, it does not have
/// it.
const PROMISES_MAX: u32 = 15;
/// If another instance says that it owns a flow of this one, the claim that explains it comes within this time.
const CONTESTED_NS: u64 = 1_000_000_000;

impl FlowClaims {
    pub(super) fn has(&self, id: &FleetId) -> bool {
        self.mine.contains_key(id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = FleetId> {
        self.mine.keys().copied()
    }

    /// Makes flows of a dead owner this instance's own.
    pub(super) fn inherit(&mut self, owner: &InstanceName, flows: Vec<(FleetId, Ends)>, agenda: &mut Agenda) {
        if !flows.is_empty() {
            agenda.standby(StandbyRequest::Inherit(flows.iter().map(|(id, _)| *id).collect()));
        }
        for (id, ends) in flows {
            self.mine.insert(id, Mine { ends: Some(ends), from: Some(owner.clone()), touched_ns: 0 });
        }
    }

    /// Makes flows this instance's own, because their clients' packets come here.
    pub(super) fn claim(
        &mut self,
        now_ns: u64,
        ids: Vec<FleetId>,
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let mut by_owner: BTreeMap<InstanceName, Vec<FleetId>> = BTreeMap::new();
        let mut inherited = Vec::new();
        for id in ids {
            if flows.get(&id).is_some_and(|known| members.is_lost(&known.ends, true)) {
                continue;
            }
            // This instance keeps the flow for some time, even if others claim it.
            let touched = Mine { ends: None, from: None, touched_ns: now_ns };
            self.mine.entry(id).or_insert(touched).touched_ns = now_ns;
            // Without an owner: it was released to an instance that has not named it since.
            if let Some(known) = flows.take_out(id) {
                let from = Some(known.owner.clone());
                self.mine.insert(id, Mine { ends: Some(known.ends), from, touched_ns: now_ns });
                by_owner.entry(known.owner).or_default().push(id);
            }
            inherited.push(id);
        }
        // Before this instance tells of them as its own: their owner would take that for another claim against it.
        for (owner, flows) in by_owner {
            agenda.note(Note::Claimed { from: owner.clone(), flows: flows.len() });
            agenda.claim(owner, flows);
        }
        if !inherited.is_empty() {
            agenda.standby(StandbyRequest::Inherit(inherited));
        }
    }

    /// `owner` tells of a flow as its own. Returns whether it is this instance's all the same.
    pub(super) fn keeps(
        &mut self,
        now_ns: u64,
        (owner, id, ends): (&InstanceName, FleetId, Ends),
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) -> bool {
        let Some(mine) = self.mine.get(&id) else { return false };
        let touched = mine.touched_ns != 0 && now_ns.saturating_sub(mine.touched_ns) < TOUCHED_NS;
        let vip = ends.vip.ip();
        // The instance with the address gets the flow's packets, wherever they came a moment ago.
        if members.prevails_by_address(owner, vip).unwrap_or(touched || members.prevails_over(owner, vip)) {
            // This instance took it from `owner`, or from an earlier owner.
            agenda.claim(owner.clone(), vec![id]);
            return true;
        }
        self.mine.remove(&id);
        leave(owner.clone(), id, agenda);
        flows.held_for(owner, id, ends);
        false
    }

    /// Another instance has claimed the flow. Returns its ends, if it had come from another.
    pub(super) fn give_up(&mut self, id: FleetId) -> Option<Ends> {
        self.contested.remove(&id);
        self.mine.remove(&id)?.ends
    }

    /// The map has no room for a flow that this instance was to inherit or claim: it stays its former owner's.
    pub(super) fn give_back(&mut self, id: FleetId, flows: &mut KnownFlows) {
        let mine = self.mine.get(&id);
        if let Some((ends, from)) = mine.and_then(|mine| Some((mine.ends?, mine.from.clone()?))) {
            self.mine.remove(&id);
            flows.held_for(&from, id, ends);
        }
    }

    /// `owner` shall own the flow, and has not told of it yet.
    pub(super) fn promised_to(
        &self,
        now_ns: u64,
        (owner, id, ends): (&InstanceName, FleetId, Ends),
        flows: &mut KnownFlows,
        agenda: &mut Agenda,
    ) {
        if flows.promised_to(owner, id, ends) {
            agenda.later(now_ns + PROMISED_NS, Timer::Promised(id, 1));
        }
    }

    pub(super) fn promise_due(
        &mut self,
        now_ns: u64,
        (id, times): (FleetId, u32),
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let Some(known) = flows.held(&id).filter(|known| !known.told) else { return };
        let owner = members.peer(&known.owner);
        if members.is_heir(known.ends.vip.ip()) {
            self.claim(now_ns, vec![id], flows, members, agenda);
        } else if times >= PROMISES_MAX && owner.is_some_and(|owner| owner.is_synced() && !owner.is_dead()) {
            // It ended at `owner` before its former owner named `owner`.
            flows.remove(id, agenda);
        } else {
            agenda.later(now_ns + PROMISED_NS, Timer::Promised(id, times.saturating_add(1)));
        }
    }

    /// The failover wanted to hold these for others, but the offload engine has them as this instance's own.
    pub(super) fn also_ours(
        &mut self,
        now_ns: u64,
        ids: &[FleetId],
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        for id in ids {
            let Some(known) = flows.held(id) else { continue };
            let others: Vec<_> = known.also.iter().chain([&known.owner]).collect();
            let vip = known.ends.vip.ip();
            let verdicts: Vec<_> = others.iter().map(|it| members.prevails_by_address(it, vip)).collect();
            if let Some(has_address) = verdicts.iter().position(|verdict| *verdict == Some(false)) {
                release(others[has_address].clone(), *id, agenda);
            } else if verdicts.contains(&None) {
                // Most likely a third instance has claimed it from this one, or the owner from that one, and this word
                // came first.
                self.contested.insert(*id);
                agenda.later(now_ns + CONTESTED_NS, Timer::Contested(*id));
            } else {
                self.prevail(*id, flows, agenda);
            }
        }
    }

    pub(super) fn contest_due(&mut self, id: FleetId, flows: &mut KnownFlows, members: &Members, agenda: &mut Agenda) {
        if self.contested.remove(&id)
            && let Some(known) = flows.held(&id)
        {
            let is_ahead = |other: &&InstanceName| !members.prevails_over(other, known.ends.vip.ip());
            let other = known.also.iter().chain([&known.owner]).find(is_ahead).cloned();
            match other {
                Some(to) => release(to, id, agenda),
                None => self.prevail(id, flows, agenda),
            }
        }
    }

    /// This instance and at least one other own the flow: it stays here.
    fn prevail(&mut self, id: FleetId, flows: &mut KnownFlows, agenda: &mut Agenda) {
        if let Some(Known { owner, ends, also, .. }) = flows.take_out(id) {
            self.mine.insert(id, Mine { ends: Some(ends), from: Some(owner.clone()), touched_ns: 0 });
            [owner].into_iter().chain(also).for_each(|owner| agenda.claim(owner, vec![id]));
            // If it has ended meanwhile, the engine reports that in its answer.
            agenda.carry(StandbyRequest::Inherit(vec![id]));
        }
    }

    /// These flows have ended: drop all open claims.
    pub(super) fn over(&mut self, flows: &[FleetId]) {
        for id in flows {
            self.mine.remove(id);
        }
    }
}

/// As [`leave`], of a flow that this instance has not claimed from `to`.
fn release(to: InstanceName, id: FleetId, agenda: &mut Agenda) {
    agenda.note(Note::Released { to: to.clone(), flows: 1 });
    leave(to, id, agenda);
}

/// This instance and `to` own the flow: it goes to `to`. This instance reports that as a leave and not as an end,
/// because several instances may leave it to each other, and one that takes it for an end drops the flow.
fn leave(to: InstanceName, id: FleetId, agenda: &mut Agenda) {
    agenda.send(PeerCommand::Leave { to, flow: id });
    agenda.standby(StandbyRequest::Release(vec![id]));
}
