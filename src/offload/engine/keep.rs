//! Flows of other instances. The engine holds their offloaded flows too, and carries them as soon as their packets come
//! here. Packets of their other flows it sends to the owner, or answers with RST once there is none.
//!
//! The owner lists a held flow and times it out. It becomes this instance's flow when the failover says so, and is then
//! treated as a flow of an earlier process: a worker gets it.

mod forward;
mod hops;
mod kept;
mod ports;
mod requests;
mod room;
mod standby;
mod standby_flows;

pub(super) use forward::is_foreign;
pub(super) use requests::take_standby_requests;
pub(super) use room::use_room;

use std::collections::{HashMap, HashSet};

use self::hops::Hops;
use self::kept::Kept;
use self::room::Crowded;
use crate::addr::VipAddr;
use crate::model::ends::Key;
use crate::model::fleet::{FleetId, Unknown};
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Entry};
use crate::offload::program::{Program, Unread};
use crate::ports::fleet::Fleet;
use crate::ports::offload::{Offload, StandbyRequest};
use crate::table::Part;
use standby_flows::{StandbyFlow, StandbyFlows};

pub(super) const BOTH: [FlowDirection; 2] = [FlowDirection::ToBackend, FlowDirection::ToClient];

/// The entries kept for other instances.
#[derive(Debug)]
pub(super) struct Keep {
    kept: Kept,
    hops: Hops,
    /// Flows and packets for which there was no room.
    crowded: Crowded,
    /// Flows of which an earlier process left no entries, though it was to hold them.
    missing: HashSet<FleetId>,
    /// Rules whose packets the program reports to the failover.
    asks: HashMap<VipAddr, Unknown>,
    refill_at_ns: u64,
    /// The rest of a request, because an entry could not be read. Later requests wait: they may take it back.
    unserved: Option<StandbyRequest>,
}

impl Keep {
    pub(super) fn new(fleet: Part<Fleet>, offload: Part<Offload>) -> Self {
        Self {
            kept: Kept::new(fleet, offload),
            hops: Hops::default(),
            crowded: Crowded::default(),
            missing: HashSet::new(),
            asks: HashMap::new(),
            refill_at_ns: 0,
            unserved: None,
        }
    }

    /// Offloaded flows of other instances.
    pub(super) fn held(&self) -> &StandbyFlows {
        self.kept.held()
    }

    /// Records an entry that an earlier process held for others; it stays in use, though no list here names its flow.
    pub(super) fn recover(&mut self, key: Key, entry: &Entry) {
        if entry.action == Action::Splice {
            let packets = if entry.direction == FlowDirection::ToBackend { entry.seen.packets } else { 0 };
            let ends = entry.ends(key);
            let id = FleetId::of(entry.id, &ends);
            if self.kept.held().get(id).is_none() {
                self.kept.insert_held(id, StandbyFlow { ends, packets: 0, confirmed: false });
            }
            if let Some(held) = self.kept.held_mut(id) {
                held.packets = held.packets.max(packets);
            }
        } else {
            self.kept.recover_diverted(key);
        }
    }

    /// Whether packets with this key have an entry for others.
    pub(super) fn is_diverted(&self, key: &Key) -> bool {
        self.kept.is_diverted(key)
    }

    /// Returns the flow if packets of its client have come since the last look, and the flow is a held one.
    pub(super) fn see(&mut self, key: &Key, entry: &Entry) -> Option<FleetId> {
        // Its backend's packets may take another path, and do not show where its client's packets go.
        let is_up = entry.direction == FlowDirection::ToBackend;
        let id = self.kept.held().by_packet(entry.id, entry.direction, key).filter(|_| is_up)?;
        let held = self.kept.held_mut(id)?;
        let before = std::mem::replace(&mut held.packets, entry.seen.packets);
        (entry.seen.packets > before).then_some(id)
    }
}

/// Whether an entry of this instance stands at `key`.
fn is_ours(program: &Program, key: &Key) -> Result<bool, Unread> {
    let entry = program.entry(key)?;
    Ok(entry.is_some_and(|entry| !entry.held && entry.action != Action::Witness))
}
