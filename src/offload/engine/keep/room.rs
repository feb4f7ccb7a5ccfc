//! Flows of other instances for which the map has no room: listed, reported once, and tried again when there may be
//! room.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use super::super::Outside;
use super::super::flows::Flows;
use super::super::witness::Witnesses;
use super::Keep;
use crate::model::ends::Key;
use crate::model::fleet::{FleetId, FlowRecord};
use crate::offload::program::Unread;
use crate::ports::offload::StandbyAnswer;

/// Flows and packets that are tried again at a time.
const AGAIN: usize = 256;

/// Between two complaints.
const SAY_EVERY_NS: u64 = 60_000_000_000;

/// Flows and packets without room, and flows whose addresses a flow of this instance uses.
#[derive(Debug, Default)]
pub(super) struct Crowded {
    /// Flows to hold.
    flows: HashMap<FleetId, Box<FlowRecord>>,
    /// Packets to forward, with the destination, and whether all but SYNs are forwarded.
    packets: HashMap<Key, (IpAddr, bool)>,
    said_ns: u64,
}

/// Why a flow of another instance is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoStandby {
    NoRoom,
    /// A flow of this instance uses its addresses.
    Taken,
    /// The entries at its keys could not be read.
    Unread,
}

impl From<Unread> for NoStandby {
    fn from(_: Unread) -> Self {
        Self::Unread
    }
}

impl Crowded {
    pub(super) fn add_flow(&mut self, id: FleetId, record: Box<FlowRecord>) {
        self.flows.insert(id, record);
    }

    pub(super) fn forget_flow(&mut self, id: FleetId) {
        self.flows.remove(&id);
    }

    pub(super) fn has_flow(&self, id: FleetId) -> bool {
        self.flows.contains_key(&id)
    }

    pub(super) fn add_packets(&mut self, key: Key, to: IpAddr, except_syn: bool) {
        self.packets.insert(key, (to, except_syn));
    }

    pub(super) fn forget_packets(&mut self, key: &Key) {
        self.packets.remove(key);
    }

    /// Number of flows; two keys of packets count as one.
    fn len(&self) -> usize {
        self.flows.len() + self.packets.len().div_ceil(2)
    }
}

/// Holds and forwards what has room by now. Call it now and then.
pub(in super::super) fn use_room(
    keep: &mut Keep,
    outside: &mut Outside,
    flows: &mut Flows,
    witnesses: &mut Witnesses,
    now_ns: u64,
) {
    let (mut held, mut is_full) = (Vec::new(), false);
    for id in keep.crowded.flows.keys().copied().take(AGAIN).collect::<Vec<_>>() {
        let Some(record) = keep.crowded.flows.remove(&id) else { continue };
        let Err(why) = keep.hold(outside, flows, witnesses, &record) else {
            held.push(id);
            continue;
        };
        keep.crowded.flows.insert(id, record);
        match why {
            NoStandby::Taken => {}
            NoStandby::NoRoom => {
                is_full = true;
                break;
            }
            NoStandby::Unread => break,
        }
    }
    if !held.is_empty() {
        outside.table.offload.standby.answer(StandbyAnswer::Held(held));
    }
    let packets: Vec<_> = keep.crowded.packets.iter().map(|(key, way)| (*key, *way)).take(AGAIN).collect();
    for (key, (to, except_syn)) in packets {
        if keep.forward(outside, flows, &[key], to, except_syn).is_err() {
            break;
        }
        if keep.crowded.packets.contains_key(&key) {
            is_full = true;
            break;
        }
    }
    let flows = keep.crowded.len() as u64;
    outside.table.fleet_census.no_standby.store(flows, Relaxed);
    if flows == 0 && keep.crowded.said_ns > 0 {
        keep.crowded.said_ns = 0;
        tracing::info!("the map has room for all flows of other instances again");
    } else if is_full && (keep.crowded.said_ns == 0 || now_ns - keep.crowded.said_ns > SAY_EVERY_NS) {
        keep.crowded.said_ns = now_ns;
        tracing::warn!(
            flows,
            room_for = outside.program.flows_max(),
            "the map has no room for flows of other instances: they are reset if their owner dies; raise offload.max_flows"
        );
    }
}
