//! The clients of other instances' flows.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::fleet::InstanceName;

/// Number of flows of each client, by their owner.
pub(crate) type ClientsAtPeers = HashMap<IpAddr, BTreeMap<InstanceName, u32>>;

/// Kept up with each flow: at a million flows a walk would hold up the failover.
#[derive(Debug, Default)]
pub(super) struct PeerClients {
    counts: Arc<ClientsAtPeers>,
    has_changed: bool,
}

impl PeerClients {
    pub(super) fn add(&mut self, client: IpAddr, owner: &InstanceName) {
        let owners = Arc::make_mut(&mut self.counts).entry(client.to_canonical()).or_default();
        *owners.entry(owner.clone()).or_default() += 1;
        self.has_changed = true;
    }

    pub(super) fn remove(&mut self, client: IpAddr, owner: &InstanceName) {
        let counts = Arc::make_mut(&mut self.counts);
        let Some(owners) = counts.get_mut(&client.to_canonical()) else { return };
        if let Some(flows) = owners.get_mut(owner) {
            *flows -= 1;
            if *flows == 0 {
                owners.remove(owner);
            }
        }
        if owners.is_empty() {
            counts.remove(&client.to_canonical());
        }
        self.has_changed = true;
    }

    /// The counts of now, if they have changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<Arc<ClientsAtPeers>> {
        std::mem::take(&mut self.has_changed).then(|| self.counts.clone())
    }

    pub(super) fn flows(&self) -> usize {
        self.counts.values().flat_map(|owners| owners.values()).map(|flows| *flows as usize).sum()
    }
}
