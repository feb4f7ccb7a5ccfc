//! Source ports of this instance that flows of others have.
//!
//! A flow that began here keeps its source port when another instance takes it over, and that one's entries, or what it forwards and refuses
//! for a while after the flow's end, would take the answers to a new connection from this port to the same backend. So the port is
//! left out until nothing here is kept for the flow any more.

use std::collections::HashMap;

use crate::addr::{BackendAddr, LocalAddr};
use crate::model::ends::Key;
use crate::ports::fleet::Fleet;
use crate::ports::offload::Offload;
use crate::table::Part;

#[derive(Debug)]
pub(super) struct PortsElsewhere {
    fleet: Part<Fleet>,
    offload: Part<Offload>,
    /// What backends send to own ports for others' flows, and for how many reasons each is kept: it is held, or forwarded or
    /// refused.
    reasons: HashMap<Key, u8>,
}

impl PortsElsewhere {
    pub(super) fn new(fleet: Part<Fleet>, offload: Part<Offload>) -> Self {
        Self { fleet, offload, reasons: HashMap::new() }
    }

    /// `key`: of packets that come, from a client as well, whose VIP's port is none of a port range.
    pub(super) fn leave_out(&mut self, key: Key) {
        if self.fleet.ports().is_some_and(|own| own.contains(key.to.port())) {
            *self.reasons.entry(key).or_default() += 1;
            self.offload.reserve_elsewhere(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }

    pub(super) fn use_again(&mut self, key: Key) {
        let Some(count) = self.reasons.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.reasons.remove(&key);
            self.offload.release_elsewhere(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }
}
