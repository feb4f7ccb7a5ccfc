//! Flows of other instances, as their owners report them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::agenda::Agenda;
use super::clients::{ClientsAtPeers, PeerClients};
use super::members::Members;
use super::saved::saved_state;
use super::timer::Timer;
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{AcceptedFlow, FleetId, FlowRecord, InstanceName, Keeping, SavedPeerFlow, StandbyRequest};

/// A flow of another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) owner: InstanceName,
    pub(super) ends: Ends,
    /// As in its record: another than that of `ends` if a PROXY header said so.
    client: IpAddr,
    /// As in its record; 0: no owner has told of it yet.
    accepted_unix_ms: u64,
    /// As in its record. `None`: not known, as after an upgrade.
    backend_key: Option<u64>,
    pub(super) state: KnownState,
    /// Other instances that also claim to own it, for a moment: the flow is on its way from one to another.
    pub(super) also: Vec<InstanceName>,
    /// Whether its owner has told of it. If not, only the instance that gave it up has named the owner.
    pub(super) told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownState {
    Forwarded,
    /// Forwarding is impossible: there is no path to its owner, or no offload engine here.
    Noted,
    Refused,
    Held,
    /// As `Held`, but this host's map has no room for it.
    NoRoom,
}

/// The flows of all other instances: by id, by the ends of their ids, by their packets and by owner. Each change of a
/// flow also queues the request that the offload engine needs.
#[derive(Debug, Default)]
pub(super) struct KnownFlows {
    flows: HashMap<FleetId, Known>,
    /// By the ends of their ids: no two flows have the same ends at one time.
    by_ends: HashMap<u64, FleetId>,
    /// Of packets of flows that are forwarded or refused.
    by_key: HashMap<Key, FleetId>,
    /// Flows that the map had no room for, until they are held after all or forgotten.
    no_room: HashSet<FleetId>,
    lists: BTreeMap<InstanceName, PeerList>,
    clients: PeerClients,
}

/// The flows of one other instance.
#[derive(Debug, Default)]
struct PeerList {
    flows: HashSet<FleetId>,
    /// Flows from before its snapshot, which has begun and has not named them yet. Their owner may change meanwhile.
    stale: HashSet<FleetId>,
    /// Flows that it has told of since this instance took it for dead.
    late: HashSet<Ends>,
}

/// The outcome for the flows of an owner that is dead or that can no longer serve them.
#[derive(Debug, Default)]
pub(super) struct FailoverOutcome {
    /// Go on here.
    pub(super) inherited: Vec<(FleetId, Ends)>,
    /// These are reset, and their ends are told from here.
    pub(super) told: Vec<(FleetId, Ends)>,
    /// These are reset, but their ends cannot be told from here: another host has their address.
    pub(super) untold: Vec<FleetId>,
    /// Offloaded flows that wait for an instance that carries them on.
    pub(super) left: Vec<FleetId>,
    refused: Vec<Key>,
    dropped: Vec<FleetId>,
}

/// Packets of an ended flow are still forwarded for so long: the last ones are on their way.
const LINGER_NS: u64 = 5_000_000_000;

impl KnownFlows {
    /// `owner` has joined, and may tell of flows.
    pub(super) fn joined(&mut self, owner: InstanceName) {
        self.lists.entry(owner).or_default();
    }

    /// Removes all that is known of `owner`.
    pub(super) fn gone(&mut self, owner: &InstanceName, agenda: &mut Agenda) {
        self.ids_of(owner).into_iter().for_each(|id| self.remove(id, agenda));
        self.lists.remove(owner);
        self.says_no_more(owner);
    }

    /// Whether another flow of `owner` may be known. A snapshot of an honest peer fits beside the one before.
    pub(super) fn has_room(&self, owner: &InstanceName, id: FleetId, each_max: usize) -> bool {
        self.flows.contains_key(&id) || self.lists.get(owner).is_none_or(|list| list.flows.len() < each_max)
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Number of flows of each client, if that has changed since the last call.
    pub(super) fn take_clients(&mut self) -> Option<Arc<ClientsAtPeers>> {
        self.clients.take_changed()
    }

    pub(super) fn get(&self, id: &FleetId) -> Option<&Known> {
        self.flows.get(id)
    }

    pub(super) fn held(&self, id: &FleetId) -> Option<&Known> {
        self.flows.get(id).filter(|known| known.state == KnownState::Held)
    }

    /// The flow with the same ends as that of `id`, under any id.
    pub(super) fn same_ends(&self, id: FleetId) -> Option<FleetId> {
        self.by_ends.get(&id.ends).copied()
    }

    /// Whether packets with this key are forwarded or refused.
    pub(super) fn has_packets(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// The flow of these packets, if they are forwarded or refused.
    pub(super) fn of_packets(&self, key: &Key) -> Option<&Known> {
        self.by_key.get(key).and_then(|id| self.flows.get(id))
    }

    /// Whether the map has no room for at least one flow.
    pub(super) fn is_crowded(&self) -> bool {
        !self.no_room.is_empty()
    }

    /// The ends of `owner`'s flows for which `which` holds.
    pub(super) fn ends_of(&self, owner: &InstanceName, which: impl Fn(&Known) -> bool) -> HashSet<Ends> {
        let ids = self.lists.get(owner).into_iter().flat_map(|list| &list.flows);
        ids.filter_map(|id| self.flows.get(id)).filter(|known| which(known)).map(|known| known.ends).collect()
    }

    fn ids_of(&self, owner: &InstanceName) -> Vec<FleetId> {
        self.lists.get(owner).map(|list| list.flows.iter().copied().collect()).unwrap_or_default()
    }

    /// `owner` tells of a flow.
    pub(super) fn told(&mut self, owner: InstanceName, record: FlowRecord, members: &Members, agenda: &mut Agenda) {
        let (id, ends, accepted_unix_ms) = (record.fleet_id(), record.ends, record.accepted_unix_ms);
        let backend_key = Some(record.backend_key).filter(|key| *key != 0);
        let client = record.client.ip();
        let Some(list) = self.lists.get_mut(&owner) else { return };
        list.stale.remove(&id);
        if members.is_lost(&ends, matches!(record.keeping, Keeping::Passage(_))) {
            return self.refuse(owner, id, ends, agenda);
        }
        if let Some(before) = self.same_ends(id).filter(|before| *before != id) {
            // The flow goes on under another id, or another flow has the same ends.
            match record.keeping {
                Keeping::Sockets => self.remove(before, agenda),
                // The engine replaces its entry by itself, so that no packet finds it missing.
                Keeping::Passage(_) => drop(self.take_out(before)),
            }
        }
        let mut also = Vec::new();
        if let Some(before) = self.flows.get(&id) {
            also.clone_from(&before.also);
            // An owner that never told of the flow does not tell of its end either.
            also.extend(before.told.then(|| before.owner.clone()));
            let lives = |other: &InstanceName| members.peer(other).is_some_and(|peer| !peer.is_dead());
            also.retain(|other| *other != owner && lives(other));
            let same = before.owner == owner;
            match (&record.keeping, before.state) {
                (Keeping::Sockets, KnownState::Forwarded) if same => return,
                // Either this record was on its way when the flow lost its sockets, or its next owner sent it and is
                // about to report the offload. An offloaded flow never gets sockets again.
                (keeping, KnownState::Held) => {
                    let is_all = *keeping == Keeping::Sockets;
                    self.take_out(id);
                    self.hold_for(&owner, id, ends, client);
                    self.flows.entry(id).and_modify(|known| {
                        known.also.clone_from(&also);
                        known.backend_key = backend_key;
                    });
                    if is_all {
                        return;
                    }
                }
                _ if !same => self.remove(id, agenda),
                _ => {}
            }
        }
        let carries = members.settings().carries;
        let state = match record.keeping {
            Keeping::Sockets if carries && members.is_dead(&owner) => {
                agenda.standby(StandbyRequest::Refuse(ends.keys().to_vec()));
                KnownState::Refused
            }
            Keeping::Sockets => forward(&owner, AcceptedFlow { ends, accepted_unix_ms }, members, agenda),
            Keeping::Passage(_) => {
                self.unindex(id, &ends);
                agenda.carry(StandbyRequest::Hold(Box::new(record)));
                KnownState::Held
            }
        };
        if state != KnownState::Held {
            self.index(id, &ends);
        }
        self.enter(id, Known { owner, ends, client, accepted_unix_ms, backend_key, state, also, told: true });
    }

    /// `owner` tells of a flow after this instance took it for dead. Many may come at once.
    pub(super) fn late(&mut self, now_ns: u64, owner: &InstanceName, ends: Ends, agenda: &mut Agenda) {
        let Some(list) = self.lists.get_mut(owner) else { return };
        if list.late.is_empty() {
            agenda.later(now_ns, Timer::Late(owner.clone()));
        }
        list.late.insert(ends);
    }

    /// Takes the flows that `owner` has told of since this instance took it for dead.
    pub(super) fn take_late(&mut self, owner: &InstanceName) -> HashSet<Ends> {
        self.lists.get_mut(owner).map(|list| std::mem::take(&mut list.late)).unwrap_or_default()
    }

    /// `owner` says that a flow has ended or is no longer its own.
    pub(super) fn ended(
        &mut self,
        now_ns: u64,
        owner: &InstanceName,
        id: FleetId,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let Some(known) = self.flows.get_mut(&id) else { return };
        known.also.retain(|other| other != owner);
        // If the flow already has another owner, its former owner only says that it gave the flow up.
        if known.owner != *owner {
            return;
        }
        if self.goes_on_at_other(id) {
            return;
        }
        if let Some(known) = self.take_out(id) {
            match known.state {
                KnownState::Held => agenda.drop_standby(id),
                KnownState::NoRoom => self.drop_crowded(id, &known.ends, agenda),
                KnownState::Noted => {}
                KnownState::Forwarded | KnownState::Refused => {
                    if known.state == KnownState::Forwarded {
                        self.forward_last(owner, &known.ends, members, agenda);
                    }
                    agenda.later(now_ns + LINGER_NS, Timer::Forget(id, known.ends));
                }
            }
        }
    }

    /// The owner gave the flow up. Another instance that has told of it is its owner then; false: there is none.
    fn goes_on_at_other(&mut self, id: FleetId) -> bool {
        let Some(known) = self.flows.get_mut(&id).filter(|known| known.state == KnownState::Held) else { return false };
        let Some(other) = known.also.pop() else { return false };
        let (ends, client, backend_key) = (known.ends, known.client, known.backend_key);
        let also = std::mem::take(&mut known.also);
        self.take_out(id);
        self.hold_for(&other, id, ends, client);
        self.flows.entry(id).and_modify(|known| (known.also, known.backend_key) = (also, backend_key));
        true
    }

    /// A snapshot of `owner` begins: up to `synced` it names all its flows.
    pub(super) fn begin(&mut self, owner: &InstanceName) {
        let also = self.flows.iter().filter(|(_, known)| known.also.contains(owner)).map(|(id, _)| *id);
        let also: Vec<_> = also.collect();
        if let Some(list) = self.lists.get_mut(owner) {
            list.stale = list.flows.iter().copied().chain(also).collect();
        }
    }

    /// The snapshot of `owner` is complete. Returns its flows that the snapshot did not name.
    pub(super) fn synced(&mut self, owner: &InstanceName, agenda: &mut Agenda) -> Vec<(FleetId, Ends)> {
        let Some(list) = self.lists.get_mut(owner) else { return Vec::new() };
        let stale = std::mem::take(&mut list.stale);
        let mut gone = Vec::new();
        for id in stale {
            let Some(known) = self.flows.get_mut(&id) else { continue };
            known.also.retain(|other| other != owner);
            if known.owner == *owner {
                gone.push((id, known.ends));
            }
        }
        for (id, _) in &gone {
            // `owner` may not have heard yet of flows that another instance gave to it, and does not name those that it
            // gave back.
            if self.flows.get(id).is_some_and(|known| known.told) && !self.goes_on_at_other(*id) {
                self.remove(*id, agenda);
            }
        }
        gone
    }

    /// See [`super::unserved`].
    pub(super) fn unserved(&self, members: &Members) -> BTreeMap<InstanceName, usize> {
        let mut counts = BTreeMap::new();
        // While each address that a flow can have is a frontend's, the walk would find none.
        let all = members.has_former().then_some(&self.flows).into_iter().flatten();
        for known in all.map(|(_, known)| known).filter(|known| known.state == KnownState::Held) {
            if !members.serves(&known.ends, known.backend_key) {
                *counts.entry(known.owner.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// All flows, by their owners.
    pub(super) fn save(&self, members: &Members) -> BTreeMap<InstanceName, Vec<SavedPeerFlow>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, Known { owner, ends, client, accepted_unix_ms, state, told, .. }) in &self.flows {
            all.entry(owner.clone()).or_default().push(SavedPeerFlow {
                id: id.flow,
                ends: *ends,
                client: *client,
                accepted_unix_ms: *accepted_unix_ms,
                state: saved_state(*state, owner, members),
                told: *told,
            });
        }
        all
    }

    /// Drops `owner`'s claims to flows that others have told of since.
    pub(super) fn says_no_more(&mut self, owner: &InstanceName) {
        self.flows.values_mut().for_each(|known| known.also.retain(|other| other != owner));
    }

    /// The offload engine now holds the flow for `owner`.
    pub(super) fn held_for(&mut self, owner: &InstanceName, id: FleetId, ends: Ends) {
        self.hold_for(owner, id, ends, ends.client.ip());
    }

    /// As `held_for`; the client may be another than that of `ends`.
    pub(super) fn hold_for(&mut self, owner: &InstanceName, id: FleetId, ends: Ends, client: IpAddr) {
        if self.lists.contains_key(owner) {
            let state = KnownState::Held;
            let (owner, also) = (owner.clone(), Vec::new());
            self.enter(
                id,
                Known { owner, ends, client, accepted_unix_ms: 0, backend_key: None, state, also, told: true },
            );
        }
    }

    /// As `held_for`, though `owner` has not told of it yet. Returns whether it is known now.
    pub(super) fn promised_to(&mut self, owner: &InstanceName, id: FleetId, ends: Ends) -> bool {
        self.held_for(owner, id, ends);
        let known = self.flows.get_mut(&id);
        known.map(|known| known.told = false).is_some()
    }

    /// Has packets of the flow answered with RST, in whatever state it was before.
    pub(super) fn refuse(&mut self, owner: InstanceName, id: FleetId, ends: Ends, agenda: &mut Agenda) {
        if self.flows.get(&id).is_some_and(|known| known.state == KnownState::Refused && known.ends == ends) {
            return;
        }
        self.remove(id, agenda);
        agenda.carry(StandbyRequest::Refuse(ends.keys().to_vec()));
        self.index(id, &ends);
        let (client, state, also) = (ends.client.ip(), KnownState::Refused, Vec::new());
        self.enter(id, Known { owner, ends, client, accepted_unix_ms: 0, backend_key: None, state, also, told: true });
    }

    /// Removes a flow if it is still refused, because its owner lives after all. Returns whether it was.
    pub(super) fn take_refused(&mut self, id: FleetId) -> bool {
        let is_refused = self.flows.get(&id).is_some_and(|known| known.state == KnownState::Refused);
        is_refused && self.take_out(id).is_some()
    }

    /// The map has no room for a flow that should be held. Returns its owner and its ends.
    pub(super) fn crowd(&mut self, id: FleetId) -> Option<(InstanceName, Ends)> {
        let known = self.flows.get_mut(&id).filter(|known| known.state == KnownState::Held)?;
        known.state = KnownState::NoRoom;
        self.no_room.insert(id);
        let (owner, ends) = (known.owner.clone(), known.ends);
        self.index(id, &ends);
        Some((owner, ends))
    }

    pub(super) fn held_after_all(&mut self, flows: Vec<FleetId>) {
        for id in flows {
            let Some(known) = self.flows.get_mut(&id).filter(|known| known.state == KnownState::NoRoom) else {
                continue;
            };
            known.state = KnownState::Held;
            self.no_room.remove(&id);
            let ends = known.ends;
            self.unindex(id, &ends);
        }
    }

    /// Forwards those of `owner`'s flows that are in a state for which `which` holds.
    pub(super) fn forward_again(
        &mut self,
        owner: &InstanceName,
        which: KnownState,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        for id in self.ids_of(owner) {
            let again = |known: &&mut Known| known.state == which && !members.is_stuck(&known.ends);
            let Some(known) = self.flows.get_mut(&id).filter(again) else { continue };
            let flow = AcceptedFlow { ends: known.ends, accepted_unix_ms: known.accepted_unix_ms };
            known.state = forward(owner, flow, members, agenda);
        }
    }

    /// Decides about those of `owner`'s flows whose ends match `which`: flows that go on here leave this list, others are
    /// refused.
    pub(super) fn inherit_or_refuse(
        &mut self,
        owner: &InstanceName,
        which: impl Fn(&Ends) -> bool,
        members: &Members,
    ) -> FailoverOutcome {
        let mut outcome = FailoverOutcome::default();
        for id in self.ids_of(owner) {
            let Some(known) = self.flows.get(&id).filter(|known| which(&known.ends)) else { continue };
            let (ends, state, is_served) = (known.ends, known.state, members.serves(&known.ends, known.backend_key));
            match state {
                // Any other host to which the address comes can carry it.
                KnownState::Held if members.is_own(&ends) && !members.is_stuck(&ends) => outcome.left.push(id),
                KnownState::Held if members.settings().carries && !members.is_heir(ends.vip.ip()) => {
                    outcome.left.push(id);
                }
                KnownState::Held if members.settings().carries && is_served => {
                    self.take_out(id);
                    outcome.inherited.push((id, ends));
                }
                // Without offload this instance cannot carry the flow on, nor without a frontend or a backend for it.
                _ => {
                    match members.is_here(ends.vip.ip()) {
                        true => outcome.told.push((id, ends)),
                        false => outcome.untold.push(id),
                    }
                    if matches!(state, KnownState::Held | KnownState::NoRoom) {
                        outcome.dropped.push(id);
                    }
                    if state != KnownState::Refused {
                        outcome.refused.extend(ends.keys());
                    }
                    if let Some(known) = self.flows.get_mut(&id) {
                        known.state = KnownState::Refused;
                        self.index(id, &ends);
                    }
                }
            }
        }
        outcome
    }

    /// The packets of a flow that ended a while ago belong to nobody now, unless its client has used the port again:
    /// then a new flow has that key. The backend leg of the new flow has another.
    pub(super) fn forget(&self, id: FleetId, ends: &Ends, agenda: &mut Agenda) {
        let is_here = self.flows.contains_key(&id);
        let again = |key: &Key| self.by_key.get(key).is_some_and(|other| *other != id || is_here);
        agenda.forget(ends.keys().into_iter().filter(|key| !again(key)).collect());
    }

    /// Removes a flow and its requests at once.
    pub(super) fn remove(&mut self, id: FleetId, agenda: &mut Agenda) {
        if let Some(known) = self.take_out(id) {
            match known.state {
                KnownState::Held => agenda.drop_standby(id),
                KnownState::NoRoom => self.drop_crowded(id, &known.ends, agenda),
                KnownState::Noted => {}
                KnownState::Forwarded | KnownState::Refused => self.forget(id, &known.ends, agenda),
            }
        }
    }

    /// Removes a flow from the lists, without a request to the offload engine.
    pub(super) fn take_out(&mut self, id: FleetId) -> Option<Known> {
        let known = self.flows.remove(&id)?;
        self.no_room.remove(&id);
        if self.by_ends.get(&id.ends) == Some(&id) {
            self.by_ends.remove(&id.ends);
        }
        if let Some(list) = self.lists.get_mut(&known.owner) {
            list.flows.remove(&id);
        }
        self.clients.remove(known.client, &known.owner);
        self.unindex(id, &known.ends);
        Some(known)
    }

    fn enter(&mut self, id: FleetId, known: Known) {
        if let Some(list) = self.lists.get_mut(&known.owner) {
            list.flows.insert(id);
        }
        self.by_ends.insert(id.ends, id);
        // The engine is asked again, and answers again if it still has no room.
        self.no_room.remove(&id);
        self.clients.add(known.client, &known.owner);
        if let Some(before) = self.flows.insert(id, known) {
            self.clients.remove(before.client, &before.owner);
        }
    }

    fn index(&mut self, id: FleetId, ends: &Ends) {
        self.by_key.extend(ends.keys().map(|key| (key, id)));
    }

    fn unindex(&mut self, id: FleetId, ends: &Ends) {
        for key in ends.keys() {
            if self.by_key.get(&key) == Some(&id) {
                self.by_key.remove(&key);
            }
        }
    }

    /// Forwards the last packets of a flow to its owner. Its client may use the port again at once.
    fn forward_last(&self, owner: &InstanceName, ends: &Ends, members: &Members, agenda: &mut Agenda) {
        let Some(hop) = members.hop(owner, ends.vip.ip()) else { return };
        agenda.forward_keys(ends.keys().into_iter().filter(|key| !self.by_key.contains_key(key)).collect(), hop);
    }

    /// Drops an entry that forwards one direction, which may be left from the time when the flow had sockets.
    fn drop_crowded(&self, id: FleetId, ends: &Ends, agenda: &mut Agenda) {
        agenda.drop_standby(id);
        self.forget(id, ends, agenda);
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Known> {
        self.flows.values()
    }

    /// In debug builds: what must hold after every event.
    pub(super) fn check(&self) {
        for (key, id) in &self.by_key {
            let known = self.flows.get(id);
            let fits = known.is_some_and(|known| known.ends.keys().contains(key) && known.state != KnownState::Held);
            debug_assert!(fits, "{id} {known:?}");
        }
        let owned: usize = self.lists.values().map(|list| list.flows.len()).sum();
        debug_assert_eq!(owned, self.flows.len());
        debug_assert_eq!(self.clients.flows(), self.flows.len());
        debug_assert_eq!(self.by_ends.len(), self.flows.len());
        debug_assert!(self.no_room.iter().all(|id| self.flows.contains_key(id)));
        for (id, known) in &self.flows {
            debug_assert!(known.state != KnownState::NoRoom || self.no_room.contains(id), "{id}");
        }
    }
}

impl FailoverOutcome {
    pub(super) fn is_empty(&self) -> bool {
        self.inherited.is_empty() && self.refused.is_empty() && self.told.is_empty()
    }

    /// Has the offload engine refuse the flows that are not inherited.
    pub(super) fn refuse(&mut self, agenda: &mut Agenda) {
        if !self.dropped.is_empty() {
            agenda.carry(StandbyRequest::Drop(std::mem::take(&mut self.dropped)));
        }
        if !self.refused.is_empty() {
            agenda.carry(StandbyRequest::Refuse(std::mem::take(&mut self.refused)));
        }
    }
}

/// Has the packets of both directions sent to the owner.
fn forward(owner: &InstanceName, flow: AcceptedFlow, members: &Members, agenda: &mut Agenda) -> KnownState {
    let Some(hop) = members.hop(owner, flow.ends.vip.ip()).filter(|_| members.settings().carries) else {
        return KnownState::Noted;
    };
    agenda.forward(flow, hop);
    KnownState::Forwarded
}
