//! The entries for other instances: offloaded flows, and keys whose packets are forwarded or refused. Only this module
//! changes the two lists, because each entry blocks a source port as long as it exists.

use std::collections::HashMap;

use super::ports::PortsOfPeersFlows;
use super::standby_flows::{StandbyFlow, StandbyFlows};
use crate::model::ends::Key;
use crate::model::fleet::FleetId;
use crate::model::splice::FlowDirection;
use crate::ports::fleet::Fleet;
use crate::ports::offload::Offload;
use crate::table::Part;

#[derive(Debug)]
pub(super) struct Kept {
    held: StandbyFlows,
    /// Keys of entries that forward or refuse; true once this process was asked for the entry.
    diverted: HashMap<Key, bool>,
    ports: PortsOfPeersFlows,
}

impl Kept {
    pub(super) fn new(fleet: Part<Fleet>, offload: Part<Offload>) -> Self {
        Self { held: StandbyFlows::default(), diverted: HashMap::new(), ports: PortsOfPeersFlows::new(fleet, offload) }
    }

    pub(super) fn held(&self) -> &StandbyFlows {
        &self.held
    }

    pub(super) fn held_mut(&mut self, id: FleetId) -> Option<&mut StandbyFlow> {
        self.held.get_mut(id)
    }

    pub(super) fn insert_held(&mut self, id: FleetId, held: StandbyFlow) {
        if self.held.get(id).is_none() {
            self.ports.leave_out(held.ends.key(FlowDirection::ToClient));
        }
        self.held.insert(id, held);
    }

    pub(super) fn remove_held(&mut self, id: FleetId) -> Option<StandbyFlow> {
        let held = self.held.remove(id)?;
        self.ports.use_again(held.ends.key(FlowDirection::ToClient));
        Some(held)
    }

    pub(super) fn is_diverted(&self, key: &Key) -> bool {
        self.diverted.contains_key(key)
    }

    /// Keys of entries that this process was not asked for.
    pub(super) fn diverted_before(&self) -> Vec<Key> {
        self.diverted.iter().filter(|(_, said)| !**said).map(|(key, _)| *key).collect()
    }

    /// An earlier process entered it; if this process was asked for it, that stays.
    pub(super) fn recover_diverted(&mut self, key: Key) {
        let said = self.diverted.get(&key).copied().unwrap_or_default();
        self.insert(key, said);
    }

    /// This process was asked for the entry.
    pub(super) fn insert_diverted(&mut self, key: Key) {
        self.insert(key, true);
    }

    fn insert(&mut self, key: Key, said: bool) {
        if self.diverted.insert(key, said).is_none() {
            self.ports.leave_out(key);
        }
    }

    pub(super) fn remove_diverted(&mut self, key: Key) {
        if self.diverted.remove(&key).is_some() {
            self.ports.use_again(key);
        }
    }
}
