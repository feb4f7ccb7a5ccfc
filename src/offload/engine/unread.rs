//! What could not be read of the map: flows stay as they are, and are looked at again at each turn until it can.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use super::Outside;
use super::carried::Step;
use super::flows::Flows;
use super::recover::{count_claimed, offer};
use super::reset::look;
use super::scan::moved_on;
use super::tell::tell_offloaded;
use crate::model::ids::FlowId;
use crate::offload::entry::Entry;

/// Between two complaints.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Between two tries to read what an earlier process left, and tries after which peers are told of new flows without that.
const RECOVER_EVERY: Duration = Duration::from_secs(1);
const RECOVER_TRIES: u32 = 5;

/// What is to be read again.
#[derive(Debug, Default)]
pub(super) struct ToReadAgain {
    /// Something may have happened to these flows.
    looks: BTreeSet<FlowId>,
    /// Other instances do not know how the packets of these are passed on.
    untold: BTreeSet<FlowId>,
    /// These have no worker, for it is not known whom a header named. With their entries.
    offers: Vec<(FlowId, [Option<Entry>; 2])>,
    /// When what an earlier process left is read again, and how often that has failed.
    recover_at_ns: Option<u64>,
    recover_failed: u32,
    said_ns: Option<u64>,
}

impl ToReadAgain {
    pub(super) fn look_at(&mut self, id: FlowId) {
        self.looks.insert(id);
    }

    pub(super) fn tell(&mut self, id: FlowId) {
        self.untold.insert(id);
    }

    pub(super) fn offer(&mut self, id: FlowId, entries: [Option<Entry>; 2]) {
        self.offers.push((id, entries));
    }

    /// What an earlier process left could not be read; true the one time when peers have waited for it long enough.
    pub(super) fn recover_later(&mut self, now_ns: u64) -> bool {
        self.recover_at_ns = Some(now_ns + RECOVER_EVERY.as_nanos() as u64);
        self.recover_failed = self.recover_failed.saturating_add(1);
        self.recover_failed == RECOVER_TRIES
    }
}

/// Counts reads that failed, and says so now and then.
pub(super) fn say_unread(outside: &Outside, flows: &mut Flows, now_ns: u64) {
    let Some((count, error)) = outside.program.unread() else { return };
    let census = &outside.table.census;
    census.unread.add(count);
    let is_said = |at_ns: u64| now_ns.saturating_sub(at_ns) < SAY_EVERY.as_nanos() as u64;
    if !flows.unread.said_ns.is_some_and(is_said) {
        flows.unread.said_ns = Some(now_ns);
        let times = census.unread.value();
        tracing::error!(%error, times, "cannot read entries of the BPF map; Baton leaves their flows as they are and tries again");
    }
}

/// Looks at what could not be read, as far as it can by now.
pub(super) fn read_again(outside: &mut Outside, flows: &mut Flows, now_ns: u64) {
    if flows.unread.recover_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
        outside.orders.recover.store(true, Release);
    }
    for _ in 0..flows.unread.looks.len() {
        let Some(id) = flows.unread.looks.pop_first() else { break };
        if look(&outside.program, flows, id).is_err() {
            break;
        }
        moved_on(outside, flows, id);
    }
    for _ in 0..flows.unread.untold.len() {
        let Some(id) = flows.unread.untold.pop_first() else { break };
        if flows.get(&id).is_some_and(|flow| matches!(flow.step, Step::Alone)) {
            tell_offloaded(outside, flows, id);
        }
        if flows.unread.untold.contains(&id) {
            break;
        }
    }
    for _ in 0..flows.unread.offers.len() {
        let Some((id, [up, down])) = flows.unread.offers.pop() else { break };
        let left = flows.unread.offers.len();
        match flows.contains_key(&id) {
            true => offer(outside, flows, id, up.as_ref(), down.as_ref()),
            // It is over, and nobody will claim it.
            false => count_claimed(outside, flows, 1),
        }
        if flows.unread.offers.len() > left {
            break;
        }
    }
}
