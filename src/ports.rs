//! The messages between the parts of Baton. Each port serves one conversation between two or three parts, with its
//! queues, its wakes and its flags. The table has the state for status and metrics; no port knows the table.
//!
//! ```text
//!   anyone ──────────▶ orders ───────▶ the worker that has the flow
//!   workers ◀────────▶ offload ◀─────▶ the offload engine
//!   failover ◀───────▶ offload::held ▶ the offload engine
//!   health ◀─────────▶ reachability ◀▶ the offload engine
//!   workers, engine ─▶ late_resets ──▶ who repeats resets, and the failover
//!   workers, engine ─▶ fleet ────────▶ the peer link
//!   workers ─────────▶ ended ────────▶ the log of ended flows
//!   workers, engine ─▶ suspicion ────▶ health
//!   the VIP's holder ◀───▶ vip ◀─────▶ the peer link
//!   workers ─────────▶ strangers ────▶ health
//!   the journal ─────▶ unrecorded ───▶ the recorder
//!   the journal ─────▶ news ─────────▶ the pages that are open
//! ```
//! Those below the VIP's and `suspicion` belong to a backend, the registry or the journal: the table has them beside its
//! entries. `AllPorts` has the others.
//!
//! No port makes a caller wait. A part that was woken first clears the wake, then looks at the queue.

pub mod ended;
pub(crate) mod fleet;
pub(crate) mod late_resets;
pub(crate) mod news;
pub mod offload;
pub mod orders;
pub(crate) mod reachability;
pub(crate) mod strangers;
pub(crate) mod suspicion;
pub(crate) mod unrecorded;
pub(crate) mod vip;

use std::io;
use std::sync::Arc;

use crate::part::{Part, PartOf, parts};
use ended::EndedFlows;
use fleet::Fleet;
use late_resets::LateResets;
use offload::{EngineWake, Offload, StandbyQueues};
use orders::Orders;
use reachability::Reachability;
use vip::VipPort;

/// The ports of one instance. Only `app` has all of them, and gives each part its own.
#[derive(Debug)]
pub struct AllPorts {
    pub orders: Orders,
    pub offload: Offload,
    pub fleet: Fleet,
    pub reachability: Reachability,
    pub late_resets: LateResets,
    pub ended: EndedFlows,
    pub vip: VipPort,
}

impl AllPorts {
    /// For `workers` worker threads. An error: there are too few descriptors for the wakes.
    pub fn new(workers: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            orders: Orders::new(workers)?,
            offload: Offload::new(workers)?,
            fleet: Fleet::default(),
            reachability: Reachability::default(),
            late_resets: LateResets::default(),
            ended: EndedFlows::new(workers),
            vip: VipPort::default(),
        }))
    }

    /// A handle of one port; the callee's signature determines which.
    pub fn part<P: PartOf<Whole = Self> + ?Sized>(self: &Arc<Self>) -> Part<P> {
        Part::of(self)
    }
}

parts! {
    AllPorts;
    Orders => ports.orders;
    Offload => ports.offload;
    StandbyQueues => ports.offload.standby;
    EngineWake => ports.offload.wake;
    Fleet => ports.fleet;
    Reachability => ports.reachability;
    LateResets => ports.late_resets;
    EndedFlows => ports.ended;
    VipPort => ports.vip;
}
