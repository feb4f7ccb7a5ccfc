//! Flows in sockets whose owner died while their address was nowhere, or elsewhere, and came back without them before the
//! address came here, or before all of their clients were told: nobody's, and their clients wait to be told.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::agenda::Agenda;
use super::flows::Buried;
use super::members::Members;
use super::timer::Timer;
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, InstanceName};

/// As long as a client's own TCP would go on (tcp_retries2).
const LONGEST_NS: u64 = 15 * 60 * 1_000_000_000;

/// Those flows, and those that may become such.
#[derive(Debug, Default)]
pub(super) struct UntoldFlows {
    waiting: HashMap<FleetId, Untold>,
    /// Flows in sockets that died with their owner, which has not said yet what it has, and whose address was not here then or of which
    /// not all ends were told.
    died: BTreeMap<InstanceName, HashSet<FleetId>>,
}

/// A flow that is nobody's.
#[derive(Clone, Debug)]
struct Untold {
    from: InstanceName,
    ends: Ends,
}

impl UntoldFlows {
    /// What `owner` had is buried, and it is dead.
    pub(super) fn died(&mut self, owner: &InstanceName, buried: &Buried) {
        let died = self.died.entry(owner.clone()).or_default();
        died.extend(&buried.untold);
        for (id, _) in &buried.told {
            died.remove(id);
        }
    }

    /// `owner` is heard again while these were being told.
    pub(super) fn called_off(&mut self, owner: &InstanceName, flows: Vec<FleetId>) {
        if !flows.is_empty() {
            self.died.entry(owner.clone()).or_default().extend(flows);
        }
    }

    /// `owner` has told all that it has, and of its former flows not `gone`. Returns those that died with its process before, if that
    /// is another one (`is_anew`).
    pub(super) fn came_back(
        &mut self,
        owner: &InstanceName,
        is_anew: bool,
        mut gone: Vec<(FleetId, Ends)>,
    ) -> Vec<(FleetId, Ends)> {
        let died = self.died.remove(owner).unwrap_or_default();
        gone.retain(|(id, _)| is_anew && died.contains(id));
        gone
    }

    /// Their address is not here: until it comes, or until their clients have found out by themselves.
    pub(super) fn wait(&mut self, now_ns: u64, owner: &InstanceName, flows: Vec<(FleetId, Ends)>, agenda: &mut Agenda) {
        for (id, ends) in flows {
            self.waiting.insert(id, Untold { from: owner.clone(), ends });
            agenda.later(now_ns + LONGEST_NS, Timer::Untold(id));
        }
    }

    /// Those whose address is here by now, and whose they were.
    pub(super) fn take_here(&mut self, members: &Members) -> Vec<(InstanceName, FleetId, Ends)> {
        let here = self.waiting.extract_if(|_, it| members.is_here(it.ends.vip.ip()));
        here.map(|(id, Untold { from, ends })| (from, id, ends)).collect()
    }

    pub(super) fn over(&mut self, id: FleetId) {
        self.waiting.remove(&id);
    }

    pub(super) fn gone(&mut self, owner: &InstanceName) {
        self.waiting.retain(|_, it| it.from != *owner);
        self.died.remove(owner);
    }

    #[cfg(test)]
    pub(super) fn has(&self, id: &FleetId) -> bool {
        self.waiting.contains_key(id)
    }
}
