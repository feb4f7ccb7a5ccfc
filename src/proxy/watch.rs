//! Looks at flows that wait for one of their ends: as evidence against a backend, and so that patience ends when it should.

pub(super) mod deliveries;
pub(super) mod evidence;
pub(super) mod retime;

use super::flow::{Flow, Phase, patience_ns};
use super::worker::Worker;
use deliveries::{Delivering, LOOKS, look};

/// Flows looked at in one turn of the loop.
const LOOKS_PER_TURN: usize = 256;

impl Worker {
    /// Has a flow looked at that was given something to deliver.
    pub(super) fn look_after(&mut self, flow: &mut Flow) {
        let every_ns = patience_ns(flow) / LOOKS;
        if let Phase::Relaying(relaying) = &mut flow.phase
            && !std::mem::replace(&mut relaying.delivering, true)
        {
            // Another process, or the offload engine, looked at it before, and what was given then is soon over.
            let after_ns = if relaying.lenient { every_ns / 4 } else { every_ns };
            let (due_ns, since_ns) = (self.cx.now_ns + after_ns, self.cx.now_ns);
            self.deliveries.push(after_ns, Delivering { due_ns, at: flow.at, since_ns, seen: None });
        }
    }

    /// Gives those more time that are stuck and live.
    pub(super) fn look_at_deliveries(&mut self) {
        for _ in 0..LOOKS_PER_TURN {
            let Some(mut looked) = self.deliveries.pop(self.cx.now_ns) else { break };
            let now_ns = self.cx.now_ns;
            let Some(flow) = self.flows.get_mut(looked.at) else { continue };
            let every_ns = patience_ns(flow) / LOOKS;
            let (at, is_closing) = (flow.at, flow.is_closing());
            if look(flow, &mut looked, now_ns) {
                looked.due_ns = now_ns + every_ns;
                self.deliveries.push(every_ns, looked);
            }
            if is_closing {
                self.with_flow(at, Self::closing_is_late);
            }
        }
    }
}
