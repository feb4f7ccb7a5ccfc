//! Flows begin, end and change hands.

use std::collections::{BTreeMap, HashSet};

use super::{Failover, Note};
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, FlowRecord, InstanceName, StandbyRequest};

impl Failover {
    pub(super) fn flow(&mut self, now_ns: u64, owner: InstanceName, record: FlowRecord) {
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
            // Released to who had claimed it before anybody could say what it is, it is held though nobody lists it.
            self.agenda.drop_standby(id);
        }
    }

    pub(super) fn claimed_by(&mut self, now_ns: u64, by: &InstanceName, flows: Vec<(FleetId, Option<Ends>)>) {
        self.agenda.note(Note::Released { to: by.clone(), flows: flows.len() });
        self.agenda.carry(StandbyRequest::Release(flows.iter().map(|(id, _)| *id).collect()));
        for (id, ends) in flows {
            let ends = self.claims.give_up(id).or(ends);
            // Until it says more of them itself: their packets may come here again at once.
            if let Some(ends) = ends.filter(|_| self.flows.get(&id).is_none()) {
                self.promised_to(now_ns, by, id, ends);
            }
        }
    }

    /// `owner` has given a flow to `to`, who may have told of it already.
    pub(super) fn moved(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, to: &InstanceName) {
        if self.flows.get(&id).is_none() {
            return;
        }
        // Else others have told of it: who does not have it any more says so, too.
        let held = self.flows.held(&id).filter(|known| known.owner == *owner && known.also.is_empty());
        // To this one, from which it was claimed back before this came: it stays with who has claimed it last.
        let to = if *to == self.members.settings().me { owner } else { to };
        match held.map(|known| known.ends).filter(|_| self.members.peer(to).is_some()) {
            Some(ends) => {
                self.flows.take_out(id);
                self.promised_to(now_ns, to, id, ends);
            }
            None => self.ended(now_ns, owner, id),
        }
    }

    /// The offload engine holds it, and `owner` is to go on with it, who has not told of it yet.
    fn promised_to(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId, ends: Ends) {
        if self.flows.same_ends(id).is_some_and(|other| other != id) {
            // It has told of it, under another id.
            return;
        }
        self.claims.promised_to(now_ns, (owner, id, ends), &mut self.flows, &mut self.agenda);
        if self.members.is_dead(owner) {
            self.bury_flows(owner, |its| *its == ends);
        }
    }

    /// The map of this host has no room for them: they cannot go on here, and are reset and told when their owner dies.
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
            self.bury_flows(&owner, |ends| its.contains(ends));
        }
    }

    /// Flows in sockets that died with a former process of `owner`: nobody has told their ends.
    pub(super) fn tell_of_end(&mut self, owner: &InstanceName, mut flows: Vec<(FleetId, Ends)>) {
        // Its client may have begun another one meanwhile; or it had been offloaded, and whoever took it over has told so since.
        flows.retain(|(id, _)| self.flows.same_ends(*id).is_none() && !self.claims.has(id));
        for (id, ends) in &flows {
            self.flows.refuse(owner.clone(), *id, *ends, &mut self.agenda);
        }
        self.rounds.begin(owner, flows, &self.members, &mut self.agenda);
    }
}
