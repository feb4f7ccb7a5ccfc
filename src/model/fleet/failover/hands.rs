//! Begin and end of flows, and moves from one owner to another.

use std::collections::{BTreeMap, HashSet};

use super::{Action, Failover, Note};
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, FlowRecord, InstanceName, StandbyRequest, Strangeness};

impl Failover {
    pub(super) fn flow(&mut self, now_ns: u64, owner: InstanceName, record: FlowRecord) {
        let (id, each_max) = (record.fleet_id(), self.members.settings().peer_flows_max);
        let crowd = (!self.flows.has_room(&owner, id, each_max)).then_some(Strangeness::Crowd);
        // What is known already was taken before all had told their ports.
        let is_new = self.flows.get(&id).is_none();
        let strange = self.members.strangeness(&owner, &record.ends).filter(|why| is_new || *why != Strangeness::Port);
        if let Some(why) = strange.or(crowd) {
            let peer = self.members.peer_mut(&owner);
            if let Some(is_first) = peer.and_then(|peer| peer.lacks_one(record.ends.vip.ip(), why)) {
                self.agenda.act(Action::Refused(why));
                if is_first {
                    self.agenda.note(Note::Strange { from: owner, ends: record.ends, why });
                }
            }
            return;
        }
        let told = (&owner, record.fleet_id(), record.ends);
        if !self.claims.keeps(now_ns, told, &mut self.flows, &self.members, &mut self.agenda) {
            if self.members.is_dead(&owner) {
                self.flows.late(now_ns, &owner, record.ends, &mut self.agenda);
            }
            self.flows.told(owner, record, &self.members, &mut self.agenda);
        }
    }

    pub(super) fn ended(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId) {
        if self.flows.get(&id).is_some() {
            self.flows.ended(now_ns, owner, id, &self.members, &mut self.agenda);
        } else if !self.claims.has(&id) {
            // If it was released to a claimant before any record came, the engine holds it though no list names it.
            self.agenda.drop_standby(id);
        }
    }

    pub(super) fn claimed_by(&mut self, now_ns: u64, by: &InstanceName, flows: Vec<(FleetId, Option<Ends>)>) {
        // What `by` has told of as its own is released when the engine says that it is this instance's.
        let is_told = |id: &FleetId| self.flows.held(id).is_some_and(|known| known.owner == *by);
        let released = flows.iter().filter(|(id, _)| !is_told(id)).count();
        if released > 0 {
            self.agenda.note(Note::Released { to: by.clone(), flows: released });
        }
        self.agenda.carry(StandbyRequest::Release(flows.iter().map(|(id, _)| *id).collect()));
        for (id, ends) in flows {
            let ends = self.claims.give_up(id).or(ends);
            // Until `by` itself tells of them: their packets may come here again at once.
            if let Some(ends) = ends.filter(|_| self.flows.get(&id).is_none()) {
                self.promised_to(now_ns, by, id, ends);
            }
        }
    }

    /// `owner` has given a flow to `to`, which may have told of it already.
    pub(super) fn moved(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, to: &InstanceName) {
        if self.flows.get(&id).is_none() {
            return;
        }
        // Otherwise others have told of the flow: an instance that gives it up also says so.
        let held = self.flows.held(&id).filter(|known| known.owner == *owner && known.also.is_empty());
        // If `to` is this instance, another instance claimed the flow back before this event came: the last claimant
        // keeps it.
        let to = if *to == self.members.settings().me { owner } else { to };
        match held.map(|known| known.ends).filter(|_| self.members.peer(to).is_some()) {
            Some(ends) => {
                self.flows.take_out(id);
                self.promised_to(now_ns, to, id, ends);
            }
            None => self.ended(now_ns, owner, id),
        }
    }

    /// The offload engine holds the flow. `owner` shall own it, and has not told of it yet.
    fn promised_to(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, ends: Ends) {
        if self.flows.same_ends(id).is_some_and(|other| other != id) {
            // It has told of it under another id.
            return;
        }
        self.claims.promised_to(now_ns, (owner, id, ends), &mut self.flows, &mut self.agenda);
        if self.members.is_dead(owner) {
            self.inherit_or_refuse(owner, |its| *its == ends);
        }
    }

    /// This host's map has no room for these flows: they cannot go on here. When their owner dies, they are reset and
    /// told.
    pub(super) fn no_standby(&mut self, ids: Vec<FleetId>) {
        let mut dead: BTreeMap<InstanceName, HashSet<Ends>> = BTreeMap::new();
        for id in ids {
            self.claims.give_back(id, &mut self.flows);
            let Some((owner, ends)) = self.flows.crowd(id) else { continue };
            if self.members.is_dead(&owner) {
                dead.entry(owner).or_default().insert(ends);
            }
        }
        for (owner, its) in dead {
            self.inherit_or_refuse(&owner, |ends| its.contains(ends));
        }
    }

    /// These proxied flows ended with an earlier process of `owner`, and no instance has told their ends.
    pub(super) fn tell_of_end(&mut self, owner: &InstanceName, mut flows: Vec<(FleetId, Ends)>) {
        // Not flows whose client has begun another with the same ends, nor flows that had been offloaded and that another
        // instance has inherited.
        flows.retain(|(id, _)| self.flows.same_ends(*id).is_none() && !self.claims.has(id));
        for (id, ends) in &flows {
            self.flows.refuse(owner.clone(), *id, *ends, &mut self.agenda);
        }
        self.rounds.begin(owner, flows, &self.members, &mut self.agenda);
    }
}
