//! Flows begin, end and change hands.

use super::{Failover, TOUCHED_NS};
use crate::model::fleet::{FleetId, FlowRecord, InstanceName};

impl Failover {
    pub(super) fn flow(&mut self, now_ns: u64, owner: InstanceName, record: FlowRecord) {
        let (id, ends) = (record.fleet_id(), record.ends);
        if let Some(mine) = self.mine.get(&id) {
            let touched = mine.touched_ns != 0 && now_ns.saturating_sub(mine.touched_ns) < TOUCHED_NS;
            let vip = ends.vip.ip();
            // Who has the address now gets its packets now, wherever they came a moment ago.
            let by_address = self.members.prevails_by_address(&owner, vip);
            if by_address.unwrap_or(touched || self.members.prevails_over(&owner, vip)) {
                // It was taken from this owner, or from the one before.
                return self.agenda.claim(owner, vec![id]);
            }
            self.mine.remove(&id);
            self.leave(owner.clone(), id);
            self.flows.held_for(&owner, id, ends);
        }
        self.flows.told(owner, record, &self.members, &mut self.agenda);
    }

    pub(super) fn ended(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId) {
        if self.flows.get(&id).is_some() {
            self.flows.ended(now_ns, owner, id, &self.members, &mut self.agenda);
        } else if !self.mine.contains_key(&id) {
            // Released to who had claimed it before anybody could say what it is, it is held though nobody lists it.
            self.agenda.drop_standby(id);
        }
    }
}
