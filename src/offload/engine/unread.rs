//! Flows whose entries could not be read: they stay as they are, and each turn tries again.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use super::Outside;
use super::flows::Flows;
use super::offloaded::Step;
use super::recover::{count_claimed, offer};
use super::reset::look;
use super::scan::moved_on;
use super::tell::tell_offloaded;
use crate::model::ids::FlowId;
use crate::offload::entry::Entry;

/// Pause between two log lines about failed reads.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Pause between two tries to read an earlier process's entries, and the tries after which peers get a snapshot without
/// those.
const RECOVER_EVERY: Duration = Duration::from_secs(1);
const RECOVER_TRIES: u32 = 5;

/// The reads to repeat.
#[derive(Debug, Default)]
pub(super) struct ToReadAgain {
    /// Flows that may have new packets.
    looks: BTreeSet<FlowId>,
    /// Flows whose passage other instances do not know.
    untold: BTreeSet<FlowId>,
    /// Flows without a worker, because the client that a PROXY header named could not be read. With their entries.
    offers: Vec<(FlowId, [Option<Entry>; 2])>,
    /// When to read an earlier process's entries again, and how often that has failed.
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

    /// The earlier process's entries could not be read. Returns true once, when peers have waited long enough.
    pub(super) fn recover_later(&mut self, now_ns: u64) -> bool {
        self.recover_at_ns = Some(now_ns + RECOVER_EVERY.as_nanos() as u64);
        self.recover_failed = self.recover_failed.saturating_add(1);
        self.recover_failed == RECOVER_TRIES
    }
}

/// Counts failed reads, and logs them now and then.
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

/// Repeats the reads that failed.
pub(super) fn read_again(outside: &mut Outside, flows: &mut Flows, now_ns: u64) {
    if flows.unread.recover_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
        outside.orders.recover.store(true, Release);
    }
    for _ in 0..flows.unread.looks.len() {
        let Some(id) = flows.unread.looks.pop_first() else { break };
        if look(&outside.program, flows, id).is_err() {
            break;
        }
        moved_on(outside, flows, id, now_ns);
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
            // It has ended, and no worker will claim it.
            false => {
                flows.take_ended_early(id);
                count_claimed(outside, flows, 1);
            }
        }
        if flows.unread.offers.len() > left {
            break;
        }
    }
}
