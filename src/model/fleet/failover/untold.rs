//! Flows that died with their owner, and whose clients this instance could not tell, or not all of them: the address was
//! on no host, or on another one. The owner came back without these flows, so no instance has them, and their clients
//! wait for a reset. Offloaded flows are among them, if no instance took them on before their owner came back.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::agenda::Agenda;
use super::flows::FailoverOutcome;
use super::members::Members;
use super::timer::Timer;
use crate::model::ends::Ends;
use crate::model::fleet::{FleetId, InstanceName};

/// Time after which a client's own TCP gives up (tcp_retries2).
const LONGEST_NS: u64 = 15 * 60 * 1_000_000_000;

/// Such flows, and flows that may become such.
#[derive(Debug, Default)]
pub(super) struct UntoldFlows {
    waiting: HashMap<FleetId, Untold>,
    /// Flows that died with their owner, which has not sent its flows since. Their address was not here then, or not all
    /// of their ends were told.
    died: BTreeMap<InstanceName, HashSet<FleetId>>,
    /// Offloaded flows of such owners that this instance does not inherit.
    left: BTreeMap<InstanceName, HashSet<FleetId>>,
}

/// A flow that no instance has.
#[derive(Clone, Debug)]
struct Untold {
    from: InstanceName,
    ends: Ends,
}

impl UntoldFlows {
    /// This instance inherited the dead `owner`'s flows or refused them; `outcome` says which.
    pub(super) fn died(&mut self, owner: &InstanceName, outcome: &FailoverOutcome) {
        let died = self.died.entry(owner.clone()).or_default();
        died.extend(&outcome.untold);
        for (id, _) in &outcome.told {
            died.remove(id);
        }
        let left = self.left.entry(owner.clone()).or_default();
        left.extend(&outcome.left);
        for (id, _) in &outcome.inherited {
            left.remove(id);
        }
    }

    /// `owner` is heard again while its flows were being told.
    pub(super) fn called_off(&mut self, owner: &InstanceName, flows: Vec<FleetId>) {
        if !flows.is_empty() {
            self.died.entry(owner.clone()).or_default().extend(flows);
        }
    }

    /// `owner` has told all its flows; it did not name its earlier flows `gone`. Returns those that died with its
    /// earlier process, if it is a new process (`is_anew`). An offloaded flow is not among them if its address is here: the
    /// other instances with that address may carry it on, and this one has yet to hear of that.
    pub(super) fn came_back(
        &mut self,
        owner: &InstanceName,
        is_anew: bool,
        mut gone: Vec<(FleetId, Ends)>,
        members: &Members,
    ) -> Vec<(FleetId, Ends)> {
        let died = self.died.remove(owner).unwrap_or_default();
        let left = self.left.remove(owner).unwrap_or_default();
        let is_left = |id: &FleetId, ends: &Ends| left.contains(id) && !members.is_here(ends.vip.ip());
        gone.retain(|(id, ends)| is_anew && (died.contains(id) || is_left(id, ends)));
        gone
    }

    /// Their address is not here: they wait until it comes, or until their clients give up by themselves.
    pub(super) fn wait(&mut self, now_ns: u64, owner: &InstanceName, flows: Vec<(FleetId, Ends)>, agenda: &mut Agenda) {
        for (id, ends) in flows {
            self.waiting.insert(id, Untold { from: owner.clone(), ends });
            agenda.later(now_ns + LONGEST_NS, Timer::Untold(id));
        }
    }

    /// The flows whose address has come here, and their owners.
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
        self.left.remove(owner);
    }

    #[cfg(test)]
    pub(super) fn has(&self, id: &FleetId) -> bool {
        self.waiting.contains_key(id)
    }
}
