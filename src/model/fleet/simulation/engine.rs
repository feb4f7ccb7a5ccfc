//! The offload engine of one host: the map, which outlives processes, and the engine's lists. A model of
//! `offload::engine::keep` and of the BPF program, without the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{
    FleetId, FlowDirection, FlowId, FlowRecord, Keeping, Key, Local, PeerPortRange, StandbyAnswer, StandbyRequest,
    Unknown, VipAddr,
};

const BOTH: [FlowDirection; 2] = [FlowDirection::ToBackend, FlowDirection::ToClient];

/// The entry of the map for packets with one key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// Forwards them.
    Splice {
        id: FlowId,
        held: bool,
    },
    Forward(IpAddr),
    Reset {
        asked_for: bool,
    },
}

#[derive(Debug)]
pub(super) struct Held {
    pub record: FlowRecord,
    touched: bool,
    confirmed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    pub carries: bool,
    /// Limit for the entries of the map.
    pub room: usize,
    pub entries: BTreeMap<Key, Entry>,
    /// Of this instance.
    pub flows: BTreeMap<FlowId, FlowRecord>,
    /// Of others.
    pub held: BTreeMap<FleetId, Held>,
    /// Flows of others that should be held, and packets that should be forwarded, for which there was no room.
    pub crowded_flows: BTreeMap<FleetId, FlowRecord>,
    pub crowded_packets: BTreeMap<Key, IpAddr>,
    /// Whether the map was ever full.
    pub was_crowded: bool,
    /// An old fault: flows without room are not reported.
    pub full_is_standby: bool,
    /// An old fault: flows with the same id count as one flow.
    pub by_number: bool,
    /// Ids that were given to flows which could not keep their own.
    pub renamed: u64,
    /// Keys of entries that forward or refuse; true once this process was asked for it.
    pub diverted: BTreeMap<Key, bool>,
    pub unknown: BTreeMap<VipAddr, Unknown>,
    pub port_ranges: Vec<PeerPortRange>,
    /// Events about own flows, for the peers.
    pub locals: Vec<Local>,
    /// Answers for the failover.
    pub answers: Vec<StandbyAnswer>,
}

impl Engine {
    fn name(&self, id: FleetId) -> FleetId {
        if self.by_number { FleetId { ends: 0, ..id } } else { id }
    }

    fn is_own(&self, id: FleetId) -> bool {
        self.flows.get(&id.flow).is_some_and(|own| self.by_number || own.fleet_id() == id)
    }

    /// Another process begins: it knows only the pinned map.
    pub(super) fn begin_process(&mut self) {
        self.held.values_mut().for_each(|held| held.confirmed = false);
        self.diverted.values_mut().for_each(|asked| *asked = false);
        self.answers.clear();
        self.locals.clear();
        self.crowded_flows.clear();
        self.crowded_packets.clear();
        let own: Vec<_> = self.flows.values().cloned().collect();
        own.iter().for_each(|record| self.tell_inherited(record));
    }

    /// A worker has the flow, and reports it before the offload engine reports the offload.
    fn tell_inherited(&mut self, record: &FlowRecord) {
        let (id, Keeping::Passage(passage)) = (record.id, record.keeping.clone()) else { return };
        let record = FlowRecord { keeping: Keeping::Sockets, ..record.clone() };
        self.locals.extend([Local::Begun(Box::new(record)), Local::Offloaded { id, passage }]);
    }

    pub(super) fn has_room(&self, entries: usize) -> bool {
        self.entries.len() + entries <= self.room
    }

    /// Enters a flow of this instance that is offloaded. False: the map is full.
    pub(super) fn enter_own(&mut self, record: FlowRecord) -> bool {
        let fresh = BOTH.iter().filter(|direction| !self.entries.contains_key(&record.ends.key(**direction))).count();
        if !self.has_room(fresh) {
            return false;
        }
        let (id, held) = (record.id, false);
        for key in record.ends.keys() {
            self.entries.insert(key, Entry::Splice { id, held });
        }
        self.flows.insert(id, record);
        true
    }

    pub(super) fn end_own(&mut self, id: FlowId) {
        if let Some(record) = self.flows.remove(&id) {
            self.entries.retain(|key, _| !record.ends.keys().contains(key));
            self.locals.push(Local::Ended(id));
            self.answers.push(StandbyAnswer::Over(vec![record.fleet_id()]));
        }
    }

    /// Whether packets with this key are forwarded.
    pub(super) fn carries_key(&self, key: &Key) -> bool {
        matches!(self.entries.get(key), Some(Entry::Splice { .. }))
    }

    /// A packet has come that an entry forwards.
    pub(super) fn touch(&mut self, key: &Key, direction: FlowDirection) {
        if direction == FlowDirection::ToBackend
            && let Some((_, held)) = self.held.iter_mut().find(|(_, held)| held.record.ends.key(direction) == *key)
        {
            held.touched = true;
            self.answers.push(StandbyAnswer::Touched(vec![held.record.fleet_id()]));
        }
    }

    pub(super) fn carry_out(&mut self, request: StandbyRequest, is_here: bool) {
        match request {
            StandbyRequest::Hold(record) => {
                let id = record.fleet_id();
                for direction in BOTH {
                    self.crowded_packets.remove(&record.ends.key(direction));
                }
                if !self.hold((*record).clone(), is_here) && !self.full_is_standby {
                    self.crowded_flows.insert(id, *record);
                    self.answers.push(StandbyAnswer::NoStandby(vec![id]));
                }
            }
            StandbyRequest::Confirm(flows) => {
                for id in flows {
                    let is_own = self.is_own(id);
                    match self.held.get_mut(&id) {
                        Some(held) => held.confirmed = true,
                        None if is_own => self.answers.push(StandbyAnswer::Ours(vec![id])),
                        None => self.answers.push(StandbyAnswer::NoStandby(vec![id])),
                    }
                }
            }
            StandbyRequest::Drop(flows) => flows.into_iter().for_each(|id| self.drop_standby(id)),
            StandbyRequest::Inherit(flows) => flows.into_iter().for_each(|id| self.inherit(id)),
            StandbyRequest::Release(flows) => flows.into_iter().for_each(|id| self.release(id)),
            StandbyRequest::Settle { claim } => self.settle(claim),
            StandbyRequest::Forward { flows, to } => {
                self.forward(flows.iter().flat_map(|flow| flow.ends.keys()).collect(), to);
            }
            StandbyRequest::ForwardKeys { keys, to } => self.forward(keys, to),
            StandbyRequest::Refuse(keys) => self.divert(keys, &Entry::Reset { asked_for: false }),
            StandbyRequest::Forget(keys) => keys.iter().for_each(|key| self.forget(key)),
            StandbyRequest::FindUnanswered(keys) => {
                let silent = |key: &Key| self.entries.get(key) != Some(&Entry::Reset { asked_for: true });
                self.answers.push(StandbyAnswer::Unanswered(keys.into_iter().filter(silent).collect()));
            }
            StandbyRequest::Unknown { vip, unknown } => {
                self.unknown.remove(&vip);
                self.unknown.extend(unknown.map(|rule| (vip, rule)));
            }
            StandbyRequest::Report(number) => self.answers.push(StandbyAnswer::Reached(number)),
            StandbyRequest::PortRanges(port_ranges) => self.port_ranges = port_ranges,
            StandbyRequest::AskEnds | StandbyRequest::RoutesMoved => {}
        }
    }

    /// Enters everything that has room by now.
    pub(super) fn use_room(&mut self) {
        for (id, record) in std::mem::take(&mut self.crowded_flows) {
            match self.hold(record.clone(), true) {
                true => self.answers.push(StandbyAnswer::Held(vec![id])),
                false => drop(self.crowded_flows.insert(id, record)),
            }
        }
        for (key, to) in std::mem::take(&mut self.crowded_packets) {
            self.forward(vec![key], to);
        }
    }

    /// False: there is no room for it, or another flow has its addresses.
    fn hold(&mut self, record: FlowRecord, is_here: bool) -> bool {
        let (id, ends) = (record.fleet_id(), record.ends);
        if self.is_own(id) {
            self.answers.push(StandbyAnswer::Ours(vec![id]));
            return true;
        }
        if let Some(held) = self.held.get_mut(&self.name(id)) {
            held.confirmed = true;
            if held.touched && held.record.ends == ends {
                return true;
            }
        }
        for key in ends.keys() {
            self.give_way(&key, Some(id), is_here);
        }
        for key in ends.keys() {
            let is_ours = matches!(self.entries.get(&key), Some(Entry::Splice { held: false, .. }));
            let is_full = !self.entries.contains_key(&key) && !self.has_room(1);
            self.was_crowded |= is_full;
            if is_ours || is_full {
                self.take_out_standby(&record);
                self.held.remove(&self.name(id));
                return false;
            }
            self.entries.insert(key, Entry::Splice { id: record.id, held: true });
            self.diverted.remove(&key);
        }
        self.held.insert(self.name(id), Held { record, touched: false, confirmed: true });
        self.crowded_flows.remove(&id);
        true
    }

    fn give_way(&mut self, key: &Key, to: Option<FleetId>, is_here: bool) {
        match self.entries.get(key).cloned() {
            Some(Entry::Splice { id, held: true }) => {
                let its = |held: &&Held| held.record.id == id && BOTH.map(|it| held.record.ends.key(it)).contains(key);
                let there = self.held.values().find(its).map(|held| held.record.fleet_id());
                there.filter(|there| Some(*there) != to).into_iter().for_each(|there| self.drop_standby(there));
            }
            Some(Entry::Splice { id, held: false }) if !is_here => self.end_own(id),
            _ => {}
        }
    }

    fn drop_standby(&mut self, id: FleetId) {
        self.crowded_flows.remove(&id);
        if let Some(held) = self.held.remove(&self.name(id)) {
            self.take_out_standby(&held.record);
        }
    }

    fn take_out_standby(&mut self, record: &FlowRecord) {
        let id = record.id;
        for key in record.ends.keys() {
            if self.entries.get(&key) == Some(&Entry::Splice { id, held: true }) {
                self.entries.remove(&key);
            }
        }
    }

    fn inherit(&mut self, id: FleetId) {
        let Some(Held { mut record, .. }) = self.held.remove(&self.name(id)) else {
            if self.crowded_flows.contains_key(&id) {
                self.answers.push(StandbyAnswer::NoStandby(vec![id]));
            } else if !self.flows.contains_key(&id.flow) {
                self.answers.push(StandbyAnswer::Over(vec![id]));
            }
            return;
        };
        if self.flows.contains_key(&record.id) && !self.by_number {
            // An instance's own flows have ids of their own.
            self.renamed += 1;
            record.id = FlowId::of(record.id.tag(), 1 << 47 | self.renamed);
        }
        let id = record.id;
        for key in record.ends.keys() {
            self.entries.entry(key).and_modify(|entry| *entry = Entry::Splice { id, held: false });
        }
        self.tell_inherited(&record);
        self.flows.insert(id, record);
    }

    fn release(&mut self, id: FleetId) {
        if !self.is_own(id) {
            return;
        }
        let (name, id) = (self.name(id), id.flow);
        let Some(record) = self.flows.remove(&id) else { return };
        for key in record.ends.keys() {
            self.entries.entry(key).and_modify(|entry| *entry = Entry::Splice { id, held: true });
        }
        self.locals.push(Local::Left(id));
        self.held.insert(name, Held { record, touched: true, confirmed: true });
    }

    fn settle(&mut self, claim: bool) {
        let old: Vec<_> = self.held.iter().filter(|(_, held)| !held.confirmed).map(|(id, _)| *id).collect();
        old.into_iter().for_each(|id| if claim { self.inherit(id) } else { self.drop_standby(id) });
        let old: Vec<_> = self.diverted.iter().filter(|(_, asked)| !**asked).map(|(key, _)| *key).collect();
        old.iter().for_each(|key| self.forget(key));
    }

    fn forward(&mut self, keys: Vec<Key>, to: IpAddr) {
        for key in keys {
            self.crowded_packets.remove(&key);
            self.divert(vec![key], &Entry::Forward(to));
            let is_entered = self.entries.contains_key(&key);
            self.was_crowded |= !is_entered;
            if !is_entered && !self.full_is_standby {
                self.crowded_packets.insert(key, to);
            }
        }
    }

    fn divert(&mut self, keys: Vec<Key>, entry: &Entry) {
        for key in keys {
            if !matches!(entry, Entry::Forward(_)) {
                self.crowded_packets.remove(&key);
            }
            let free = match self.entries.get(&key) {
                None => self.has_room(1),
                Some(there) => !matches!(there, Entry::Splice { .. }),
            };
            if free {
                self.entries.insert(key, entry.clone());
                self.diverted.insert(key, true);
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        self.crowded_packets.remove(key);
        if self.diverted.remove(key).is_some() && !self.carries_key(key) {
            self.entries.remove(key);
        }
    }

    /// Flows with entries in the map, whichever instance lists them.
    pub(super) fn ids(&self) -> BTreeSet<FlowId> {
        self.flows.keys().copied().chain(self.held.keys().map(|id| id.flow)).collect()
    }
}
