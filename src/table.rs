//! The state of the running instance: all flows, all backends, and their counters. State only: messages between the
//! parts go through their ports.
//!
//! The data plane writes here without waiting: each worker owns one shard of the flow table and one lane of each
//! counter. All others read snapshots.

pub mod backend;
pub(crate) mod beats;
pub(crate) mod count;
pub(crate) mod fleet;
pub mod flow_transfer;
pub mod flows;
pub mod journal;
pub mod latency;
pub mod names;
pub mod nodes;
pub mod offload;
pub(crate) mod other_process;
pub mod recorder;
pub(crate) mod saved;
pub(crate) mod slot;
pub(crate) mod standing;
pub(crate) mod totals;
pub(crate) mod worker;

mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::sync::Arc;

use crate::part::{PartOf, parts};
use crate::sys::clock::now_ns;
use backend::Registry;
use beats::LoopBeats;
use count::Tally;
use fleet::{FleetCensus, FleetView};
use flows::FlowTable;
use journal::Journal;
use latency::ProbeLatencies;
use names::ClientNames;
use nodes::NodeBoard;
use offload::OffloadCensus;
use recorder::RecorderCensus;
use standing::StandingBoard;
use worker::WorkerState;

pub use crate::part::Part;

/// The shared state of one instance.
#[derive(Debug)]
pub struct Table {
    /// Monotonic ns: this process has made no backend's state before.
    pub began_ns: u64,
    pub flows: FlowTable,
    pub registry: Registry,
    pub offload: OffloadCensus,
    pub fleet: FleetView,
    pub journal: Journal,
    /// For lists and events.
    pub names: ClientNames,
    pub nodes: NodeBoard,
    pub beats: LoopBeats,
    pub flow_log: FlowLogCensus,
    pub recorder: RecorderCensus,
    pub(crate) standing: StandingBoard,
    pub probes: ProbeLatencies,
    /// One entry per worker thread.
    pub workers: Box<[WorkerState]>,
}

/// Counters of the log of ended flows.
#[derive(Debug, Default)]
pub struct FlowLogCensus {
    /// Ended flows left out of the log by its rate limit.
    pub skipped: Tally,
}

impl Table {
    /// An empty table for `workers` worker threads.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            began_ns: now_ns(),
            flows: FlowTable::new(workers),
            registry: Registry::new(workers),
            offload: OffloadCensus::default(),
            fleet: FleetView::default(),
            journal: Journal::default(),
            names: ClientNames::default(),
            nodes: NodeBoard::default(),
            beats: LoopBeats::default(),
            flow_log: FlowLogCensus::default(),
            recorder: RecorderCensus::default(),
            standing: StandingBoard::default(),
            probes: ProbeLatencies::default(),
            workers: (0..workers).map(|_| WorkerState::default()).collect(),
        })
    }

    /// A handle of one part; the callee's signature determines which.
    pub fn part<P: PartOf<Whole = Self> + ?Sized>(self: &Arc<Self>) -> Part<P> {
        Part::of(self)
    }

    /// Flows that end with this process: all except those that the offload engine carries.
    pub fn flows_with_sockets(&self) -> usize {
        self.offload.flows_with_sockets(&self.flows)
    }

    /// Flows that end with this host: those with sockets, and offloaded ones whose backend is here.
    pub(crate) fn flows_ending_here(&self) -> usize {
        self.flows_with_sockets() + self.offload.staying()
    }
}

parts! {
    Table;
    FlowTable => table.flows;
    Registry => table.registry;
    OffloadCensus => table.offload;
    FleetView => table.fleet;
    FleetCensus => table.fleet.census;
    Journal => table.journal;
    ClientNames => table.names;
    NodeBoard => table.nodes;
    LoopBeats => table.beats;
    FlowLogCensus => table.flow_log;
    RecorderCensus => table.recorder;
    StandingBoard => table.standing;
    ProbeLatencies => table.probes;
    [WorkerState] => table.workers;
}
