//! Flows in sockets whose owner died while their address was nowhere, or elsewhere, and came back without them before the
//! address came here: nobody's, and their clients wait to be told.

use super::{Failover, Timer};
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, InstanceName};

/// As long as a client's own TCP would go on (tcp_retries2).
const LONGEST_NS: u64 = 15 * 60 * 1_000_000_000;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Untold {
    pub(super) from: InstanceName,
    ends: Ends,
}

impl Failover {
    /// Another process of `owner` has told all that it has, and not these.
    pub(super) fn died_unheard(&mut self, now_ns: u64, owner: &InstanceName, flows: Vec<(FleetId, Ends)>) {
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            flows.into_iter().partition(|(_, ends)| self.members.is_here(ends.vip.ip()));
        self.tell_of_end(owner, here);
        for (id, ends) in elsewhere {
            self.untold.insert(id, Untold { from: owner.clone(), ends });
            self.agenda.later(now_ns + LONGEST_NS, Timer::Untold(id));
        }
    }

    /// Addresses have come here.
    pub(super) fn tell_untold(&mut self) {
        let here = |ends: &Ends| self.members.is_here(ends.vip.ip());
        let ids: Vec<_> = self.untold.iter().filter(|(_, it)| here(&it.ends)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(Untold { from, ends }) = self.untold.remove(&id) {
                self.tell_of_end(&from, vec![(id, ends)]);
            }
        }
    }

    fn tell_of_end(&mut self, owner: &InstanceName, mut flows: Vec<(FleetId, Ends)>) {
        // Its client may have begun another one meanwhile; or it had been offloaded, and whoever took it over has told so since.
        flows.retain(|(id, _)| self.flows.same_ends(*id).is_none() && !self.mine.contains_key(id));
        for (id, ends) in &flows {
            self.flows.refuse(owner.clone(), *id, *ends, &mut self.agenda);
        }
        if !flows.is_empty() {
            self.begin_round(owner, flows);
        }
    }
}
