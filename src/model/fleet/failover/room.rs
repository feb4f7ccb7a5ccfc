//! Flows that the map of this host has no room for: they cannot go on here, and are reset and told when their owner dies.

use std::collections::{BTreeMap, HashSet};

use super::Failover;
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, InstanceName};

impl Failover {
    pub(super) fn no_standby(&mut self, flows: Vec<FleetId>) {
        let mut dead: BTreeMap<InstanceName, HashSet<Ends>> = BTreeMap::new();
        for id in flows {
            if let Some(mine) = self.mine.get(&id) {
                // It was to go on here already.
                let (Some(ends), Some(from)) = (mine.ends, mine.from.clone()) else { continue };
                self.mine.remove(&id);
                self.flows.held_for(&from, id, ends);
            }
            let Some((owner, ends)) = self.flows.crowd(id) else { continue };
            if self.members.is_dead(&owner) {
                dead.entry(owner).or_default().insert(ends);
            }
        }
        for (owner, its) in dead {
            self.bury_flows(&owner, |ends| its.contains(ends));
        }
    }
}
