//! Source ports of this instance that flows of other instances use.
//!
//! A flow that began here keeps its source port when another instance takes it over. If this instance gave the port to
//! a new connection to the same backend, the held flow's entries would take its answers. So would the entries that
//! forward or refuse packets for a while after the flow's end. So the port stays unused while anything here is kept for
//! the flow.

use std::collections::HashMap;

use crate::addr::{BackendAddr, LocalAddr};
use crate::model::ends::Key;
use crate::ports::fleet::Fleet;
use crate::ports::offload::Offload;
use crate::table::Part;

#[derive(Debug)]
pub(super) struct PortsOfPeersFlows {
    fleet: Part<Fleet>,
    offload: Part<Offload>,
    /// Keys of backends' packets to own ports of others' flows, and the number of reasons to keep each: the flow is
    /// held, or forwarded or refused.
    reasons: HashMap<Key, u8>,
}

impl PortsOfPeersFlows {
    pub(super) fn new(fleet: Part<Fleet>, offload: Part<Offload>) -> Self {
        Self { fleet, offload, reasons: HashMap::new() }
    }

    /// `key`: of incoming packets. Also of a client's packets, if its VIP's port is in no port range.
    pub(super) fn leave_out(&mut self, key: Key) {
        if self.fleet.ports().is_some_and(|own| own.contains(key.to.port())) {
            *self.reasons.entry(key).or_default() += 1;
            self.offload.reserve_for_peer(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }

    pub(super) fn use_again(&mut self, key: Key) {
        let Some(count) = self.reasons.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.reasons.remove(&key);
            self.offload.release_for_peer(LocalAddr::new(key.to), BackendAddr::new(key.from));
        }
    }
}
