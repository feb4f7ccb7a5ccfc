//! Flows of other instances: those without sockets are held here too, and carried as soon as their packets come; packets
//! of the others are sent to whoever has them, or answered with RST once nobody has.
//!
//! What is held is listed and aged elsewhere. It becomes this instance's when the failover says so, and goes the way that
//! flows of an earlier process go: a worker gets it.

mod forward;
mod holding;
mod hops;
mod kept;
mod ports;
mod requests;
mod room;
mod standby;

pub(super) use forward::is_foreign;
pub(super) use requests::take_standby_requests;
pub(super) use room::use_room;

use std::collections::HashMap;

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
use holding::{Held, Holding};

pub(super) const BOTH: [FlowDirection; 2] = [FlowDirection::ToBackend, FlowDirection::ToClient];

/// What is kept for other instances.
#[derive(Debug)]
pub(super) struct Keep {
    kept: Kept,
    hops: Hops,
    /// What there is no room for.
    crowded: Crowded,
    /// Rules whose packets are shown to the failover.
    asks: HashMap<VipAddr, Unknown>,
    refill_at_ns: u64,
    /// What is left of a request for which an entry could not be read. The requests behind it wait: they may take it back.
    unserved: Option<StandbyRequest>,
}

impl Keep {
    pub(super) fn new(fleet: Part<Fleet>, offload: Part<Offload>) -> Self {
        Self {
            kept: Kept::new(fleet, offload),
            hops: Hops::default(),
            crowded: Crowded::default(),
            asks: HashMap::new(),
            refill_at_ns: 0,
            unserved: None,
        }
    }

    /// Held flows.
    pub(super) fn held(&self) -> &Holding {
        self.kept.held()
    }

    /// Takes note of what an earlier process held for others; it serves on, though nobody here lists it.
    pub(super) fn recall(&mut self, key: Key, entry: &Entry) {
        if entry.action == Action::Splice {
            let packets = if entry.direction == FlowDirection::ToBackend { entry.seen.packets } else { 0 };
            let ends = entry.ends(key);
            let id = FleetId::of(entry.id, &ends);
            if self.kept.held().get(id).is_none() {
                self.kept.insert_held(id, Held { ends, packets: 0, confirmed: false });
            }
            if let Some(held) = self.kept.held_mut(id) {
                held.packets = held.packets.max(packets);
            }
        } else {
            self.kept.recall_diverted(key);
        }
    }

    /// Whether what is said of such packets is kept for others.
    pub(super) fn is_diverted(&self, key: &Key) -> bool {
        self.kept.is_diverted(key)
    }

    /// The flow, if the client's packets of a held one have come since the last look.
    pub(super) fn see(&mut self, key: &Key, entry: &Entry) -> Option<FleetId> {
        // Its backend's packets may come another way, and say nothing of where its client's go.
        let is_up = entry.direction == FlowDirection::ToBackend;
        let id = self.kept.held().by_packet(entry.id, entry.direction, key).filter(|_| is_up)?;
        let held = self.kept.held_mut(id)?;
        let before = std::mem::replace(&mut held.packets, entry.seen.packets);
        (entry.seen.packets > before).then_some(id)
    }
}

/// Whether an entry of this instance stands there.
fn is_ours(program: &Program, key: &Key) -> Result<bool, Unread> {
    let entry = program.entry(key)?;
    Ok(entry.is_some_and(|entry| !entry.held && entry.action != Action::Witness))
}
