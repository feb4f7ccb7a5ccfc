//! Offloaded flows of other instances, found by their fleet ids, by their marks, and by their packets.

use std::collections::HashMap;

use crate::model::ends::{Ends, Key};
use crate::model::fleet::FleetId;
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;
use crate::offload::moved::{Mark, Marked};

/// An offloaded flow of another instance.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct StandbyFlow {
    pub ends: Ends,
    /// Number of its client's packets seen here.
    pub packets: u64,
    /// Whether this process was asked to hold it; otherwise an earlier one was.
    pub confirmed: bool,
}

#[derive(Debug, Default)]
pub(in super::super) struct StandbyFlows {
    first: Marked<StandbyFlow>,
    /// Flows with a flow id that another flow already had: hardly ever any.
    more: HashMap<FleetId, StandbyFlow>,
}

impl StandbyFlows {
    pub(super) fn insert(&mut self, id: FleetId, held: StandbyFlow) {
        match self.first.get(&id.flow) {
            Some(other) if FleetId::of(id.flow, &other.ends) != id => drop(self.more.insert(id, held)),
            _ => {
                self.more.remove(&id);
                self.first.remove(id.flow);
                self.first.insert(id.flow, held);
            }
        }
    }

    pub(super) fn remove(&mut self, id: FleetId) -> Option<StandbyFlow> {
        match self.in_first(id) {
            true => self.first.remove(id.flow),
            false => self.more.remove(&id),
        }
    }

    pub(in super::super) fn get(&self, id: FleetId) -> Option<&StandbyFlow> {
        if self.in_first(id) { self.first.get(&id.flow) } else { self.more.get(&id) }
    }

    pub(super) fn get_mut(&mut self, id: FleetId) -> Option<&mut StandbyFlow> {
        if self.in_first(id) { self.first.get_mut(&id.flow) } else { self.more.get_mut(&id) }
    }

    fn in_first(&self, id: FleetId) -> bool {
        self.first.get(&id.flow).is_some_and(|held| FleetId::of(id.flow, &held.ends) == id)
    }

    /// The flow with this flow id that has packets with `key` in this direction.
    pub(in super::super) fn by_packet(&self, flow: FlowId, direction: FlowDirection, key: &Key) -> Option<FleetId> {
        self.with(flow).find(|(_, held)| held.ends.key(direction) == *key).map(|(id, _)| id)
    }

    /// All with this flow id.
    pub(in super::super) fn with(&self, flow: FlowId) -> impl Iterator<Item = (FleetId, &StandbyFlow)> {
        let first = self.first.get(&flow).map(|held| (FleetId::of(flow, &held.ends), held));
        first.into_iter().chain(self.more.iter().map(|(id, held)| (*id, held)).filter(move |(id, _)| id.flow == flow))
    }

    /// Flow ids of those with this mark.
    pub(in super::super) fn at(&self, mark: Mark) -> impl Iterator<Item = FlowId> + '_ {
        let more = self.more.keys().map(|id| id.flow).filter(move |flow| Mark::of(*flow) == mark);
        self.first.at(mark).chain(more)
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (FleetId, &StandbyFlow)> {
        let first = self.first.iter().map(|(flow, held)| (FleetId::of(*flow, &held.ends), held));
        first.chain(self.more.iter().map(|(id, held)| (*id, held)))
    }

    pub(in super::super) fn len(&self) -> usize {
        self.first.len() + self.more.len()
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::testing::record;

    #[test]
    fn two_held_flows_with_one_id_come_and_go_each_by_itself() {
        let (one, other) = (record(1).ends, record(2).ends);
        let ids = [FleetId::of(FlowId(7), &one), FleetId::of(FlowId(7), &other)];
        let held = |ends| StandbyFlow { ends, packets: 0, confirmed: true };
        let mut all = StandbyFlows::default();
        all.insert(ids[0], held(one));
        all.insert(ids[1], held(other));
        assert_eq!((all.len(), all.get(ids[0]).unwrap().ends, all.get(ids[1]).unwrap().ends), (2, one, other));
        assert_eq!(all.at(Mark::of(FlowId(7))).collect::<Vec<_>>(), [FlowId(7); 2]);
        assert_eq!(
            all.by_packet(FlowId(7), FlowDirection::ToClient, &other.key(FlowDirection::ToClient)),
            Some(ids[1])
        );
        all.remove(ids[0]);
        all.insert(ids[1], held(other));
        assert_eq!((all.len(), all.with(FlowId(7)).count()), (1, 1));
        assert!(all.remove(ids[0]).is_none() && all.remove(ids[1]).is_some() && all.is_empty());
        assert_eq!(all.at(Mark::of(FlowId(7))).count(), 0);
    }
}
