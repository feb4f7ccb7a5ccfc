//! Source ports of this instance that flows of others have.
//!
//! A flow that began here keeps its source port when another instance takes it over, and that one's entries, or what it forwards and refuses
//! for a while after the flow's end, would take the answers to a new connection from this port to the same backend. So the port is
//! left out until nothing here is kept for the flow any more.

use std::collections::HashMap;

use super::Engine;
use super::holding::Held;
use crate::addr::{BackendAddr, LocalAddr};
use crate::model::ends::Key;
use crate::model::fleet::FleetId;
use crate::model::splice::FlowDirection;

/// What backends send to own ports for others' flows, and for how many reasons each is kept: it is held, or forwarded or refused.
#[derive(Debug, Default)]
pub(super) struct PortsElsewhere(HashMap<Key, u8>);

impl Engine {
    pub(super) fn insert_held(&mut self, id: FleetId, held: Held) {
        if self.keep.held.get(id).is_none() {
            self.leave_port_out(held.ends.key(FlowDirection::ToClient));
        }
        self.keep.held.insert(id, held);
    }

    pub(super) fn remove_held(&mut self, id: FleetId) -> Option<Held> {
        let held = self.keep.held.remove(id)?;
        self.use_port_again(held.ends.key(FlowDirection::ToClient));
        Some(held)
    }

    /// `said`: this process was asked for it.
    pub(super) fn insert_diverted(&mut self, key: Key, said: bool) {
        if self.keep.diverted.insert(key, said).is_none() {
            self.leave_port_out(key);
        }
    }

    pub(super) fn remove_diverted(&mut self, key: Key) {
        if self.keep.diverted.remove(&key).is_some() {
            self.use_port_again(key);
        }
    }

    /// `key`: of packets that come, from a client as well, whose VIP's port is none of a port range.
    fn leave_port_out(&mut self, key: Key) {
        if self.outside.table.fleet.ports().is_some_and(|own| own.contains(key.to.port())) {
            *self.keep.ports_elsewhere.0.entry(key).or_default() += 1;
            self.outside.table.offload.reserve_elsewhere(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }

    fn use_port_again(&mut self, key: Key) {
        let Some(count) = self.keep.ports_elsewhere.0.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.keep.ports_elsewhere.0.remove(&key);
            self.outside.table.offload.release_elsewhere(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }
}
