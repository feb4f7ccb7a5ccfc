//! Actions at a later time, for flows that are being reset or have ended.

use std::collections::BTreeSet;

use crate::model::ids::FlowId;

/// Earliest first.
#[derive(Debug, Default)]
pub(super) struct Later(BTreeSet<(u64, FlowId)>);

impl Later {
    pub(super) fn insert(&mut self, at_ns: u64, id: FlowId) {
        self.0.insert((at_ns, id));
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<FlowId> {
        self.0.first().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.0.pop_first().map(|(_, id)| id)
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.first().map(|(at_ns, _)| *at_ns)
    }
}
