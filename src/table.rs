//! What the running instance knows: every flow, every backend, and the orders that end flows.
//!
//! The data plane writes here without ever waiting: each worker owns one shard of the flow table and one lane of
//! each counter. Everyone else reads snapshots.

pub mod backend;
pub mod beats;
pub mod carried;
pub mod count;
pub mod fleet;
pub mod flow_transfer;
pub mod flows;
pub mod journal;
pub mod late_resets;
pub mod offload;
pub mod orders;
pub mod other_process;
mod part;
pub mod reachability;
pub mod slot;
pub mod totals;
pub mod worker;

mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::sync::Arc;

use backend::Registry;
use beats::LoopBeats;
use count::Tally;
use fleet::Fleet;
use flows::FlowTable;
use journal::Journal;
use late_resets::LateResets;
use offload::Offload;
use orders::Orders;
pub use part::{Part, TablePart};
use reachability::Reachability;
use worker::WorkerState;

/// The shared state of one instance.
#[derive(Debug)]
pub struct Table {
    pub flows: FlowTable,
    pub registry: Registry,
    pub orders: Orders,
    pub offload: Offload,
    pub fleet: Fleet,
    pub reachability: Reachability,
    pub journal: Journal,
    pub late_resets: LateResets,
    pub beats: LoopBeats,
    pub flow_log: FlowLogCensus,
    /// One entry per worker thread.
    pub workers: Box<[WorkerState]>,
}

/// What the log of ended flows has counted.
#[derive(Debug, Default)]
pub struct FlowLogCensus {
    /// Ended flows left out of the log by its rate limit.
    pub skipped: Tally,
}

impl Table {
    /// Flows that end with this process: all but those that the offload engine carries.
    pub fn flows_with_sockets(&self) -> usize {
        self.flows.len().saturating_sub(self.offload.without_sockets())
    }

    /// An empty table for `workers` worker threads.
    pub fn new(workers: usize) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            flows: FlowTable::new(workers),
            registry: Registry::new(workers),
            orders: Orders::new(workers)?,
            offload: Offload::new(workers)?,
            fleet: Fleet::default(),
            reachability: Reachability::default(),
            journal: Journal::default(),
            late_resets: LateResets::default(),
            beats: LoopBeats::default(),
            flow_log: FlowLogCensus::default(),
            workers: (0..workers).map(|_| WorkerState::default()).collect(),
        }))
    }
}
