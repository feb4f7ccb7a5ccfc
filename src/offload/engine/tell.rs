//! Reports to other instances which of this one's flows are offloaded, and to the failover which of theirs are.

use super::Outside;
use super::flows::Flows;
use super::offloaded::Step;
use super::retold::way;
use crate::model::fleet::{FleetId, Passage, UnknownPacket};
use crate::model::ids::FlowId;
use crate::ports::fleet::Local;
use crate::ports::offload::StandbyAnswer;

/// Bytes after which the engine reports a busy flow's progress again: an entry distinguishes new numbers from old ones
/// only within 2 GiB.
const TELL_AGAIN: u64 = 1 << 30;

/// Reports the flow's passage to the other instances.
pub(super) fn tell_offloaded(outside: &Outside, flows: &mut Flows, id: FlowId) {
    if !outside.table.fleet.is_enabled() {
        return;
    }
    // A peer could not carry it, so the peers go on taking it for a flow with sockets here: they forward its packets, and reset
    // it when this host dies.
    let Some(flow) = flows.get_mut(&id).filter(|flow| !flow.stays_here()) else { return };
    let Ok(entries) = outside.program.entries(flow.ends.keys()) else {
        return flows.unread.tell(id);
    };
    if let [Some(up), Some(down)] = entries {
        flow.told_bytes = Some(up.bytes() + down.bytes());
        let passage = Box::new(Passage { up: way(&up), down: way(&down) });
        outside.table.fleet.tell(|| Local::Offloaded { id, passage });
    }
}

/// As [`tell_offloaded`], if the flow has progressed far since the last report.
pub(super) fn tell_progress(outside: &Outside, flows: &mut Flows, id: FlowId) {
    let Some(flow) = flows.get(&id).filter(|flow| matches!(flow.step, Step::Alone)) else { return };
    if flow.told_bytes.is_some_and(|told| flow.up.bytes + flow.down.bytes > told + TELL_AGAIN) {
        tell_offloaded(outside, flows, id);
    }
}

pub(super) fn tell_failover(outside: &Outside, mut touched: Vec<FleetId>, packets: Vec<UnknownPacket>) {
    let held = &outside.table.offload.standby;
    if !touched.is_empty() {
        touched.sort_unstable();
        touched.dedup();
        held.answer(StandbyAnswer::Touched(touched));
    }
    if !packets.is_empty() {
        held.answer(StandbyAnswer::UnknownPackets(packets));
    }
}
