//! Flows that the map of this host has no room for: they cannot go on here, and are reset and told when their owner dies.

use std::collections::{BTreeMap, HashSet};

use super::{Failover, KnownState};
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
                self.held_for(&from, id, ends);
            }
            let Some(known) = self.flows.get_mut(&id).filter(|known| known.state == KnownState::Held) else { continue };
            known.state = KnownState::NoRoom;
            self.no_room.insert(id);
            let (owner, ends) = (known.owner.clone(), known.ends);
            self.index(id, &ends);
            if self.peers.get(&owner).is_some_and(|peer| peer.is_dead) {
                dead.entry(owner).or_default().insert(ends);
            }
        }
        for (owner, its) in dead {
            self.bury_flows(&owner, |ends| its.contains(ends));
        }
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
}
